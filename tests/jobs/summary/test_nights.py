from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.object_store import BUCKET, ObjectStore
from untold.jobs.run.manifest import identify, write_manifest
from untold.jobs.run.terminal import Page
from untold.jobs.settings.model import Settings
from untold.jobs.summary.nights import (
    breaks_of,
    cost_within,
    describe_break,
    parse_date,
    read_nights,
    row_of,
    table_of,
    write_nights,
)
from untold.udfs.llm.keys import Stage
from untold.udfs.storage import StoragePath

MEAN = {"metric": "e2e", "level": "overall", "system": None, "n": 4, "scored": 4, "undefined": 0, "failed": 0}
SUMMARY = [{**MEAN, "mean": 0.75, "ci_low": 0.5, "ci_high": 1.0}]


def night(
    settings: Settings | None = None, *, template: str = "one", model: str = "m", content: str = "a", **fields: Any
) -> dict[str, Any]:
    """The manifest of a date's output."""
    stages = {"evaluate_coverage": Stage("evaluate_coverage", ("query",), "judge", template)}
    metrics = tuple(fields.pop("metrics", ("e2e",)))
    usage = [{"cost": 0.5}, {"cost": None}]
    start = {"run": "r", "started_at": "2026-11-21T02:30:00+00:00", "ended_at": "2026-11-21T02:40:00+00:00"}
    return {
        "format": 1,
        "status": "finished",
        "identity": identify(content, metrics, settings or Settings(), stages),
        "metrics": list(metrics),
        "models": [model],
        "counts": {"samples": 4, "statuses": {"ok": 4}, "failures": 0},
        "totals": {"calls": 12, "prompt_tokens": 100, "completion_tokens": 20, "cost": 0.5},
        "starts": [{**start, "usage": usage}],
        "summary": SUMMARY,
        **fields,
    }


@pytest.mark.parametrize("text", ["", "2026-1-3", "20261120", "2026-W47-5", "2026-02-30", "yesterday"])
def test_a_date_has_one_form(text: str) -> None:
    with pytest.raises(ValueError, match="must be a date as YYYY-MM-DD"):
        parse_date(text)


@pytest.mark.parametrize("pattern", ["{date}", "run-{date}.out", "{date}/e2e", "{date}/of-{date}"])
def test_outputs_are_found_by_their_dates(tmp_path: Path, pattern: str) -> None:
    whole = f"{tmp_path}/{pattern}"
    for day in ("2026-11-21", "2026-11-20"):
        write_manifest(whole.replace("{date}", day), night(content=day))
    for other in ("completions", "2026-11-19", "2026-1-3"):
        (tmp_path / other).mkdir()
    damaged = Path(whole.replace("{date}", "2026-11-22"))
    damaged.mkdir(parents=True)
    (damaged / "manifest.json").write_text("half of", encoding="utf-8")
    found = read_nights(whole)
    assert {day: one["identity"]["input"] for day, one in found.items()} == {
        day: day for day in ("2026-11-20", "2026-11-21")
    }
    assert list(found) == sorted(found)
    assert read_nights(f"{tmp_path}/nowhere/{pattern}") == {}


def test_a_file_has_all_dates_on_an_object_store_too(object_store: ObjectStore) -> None:
    pattern = f"s3://{BUCKET}/out/{{date}}"
    for day in ("2026-11-20", "2026-11-21"):
        write_manifest(pattern.replace("{date}", day), night(content=day, template=day))
    path = write_nights(pattern, read_nights(pattern))
    assert path == f"s3://{BUCKET}/out/nightly.json"
    found = json.loads(StoragePath(path).read_bytes())
    assert [row["date"] for row in found["dates"]] == ["2026-11-20", "2026-11-21"]
    assert found["breaks"] == [{"date": "2026-11-21", "before": "2026-11-20", "differs": ["another model or template"]}]


def test_a_row_has_the_figures_and_the_cost_of_a_date() -> None:
    row = row_of("2026-11-20", night())
    assert (row["samples"], row["calls"], row["tokens"], row["cost"], row["seconds"]) == (4, 12, 120, 0.5, 600.0)
    assert row["summary"] == SUMMARY
    lines = table_of([row, {"date": "2026-11-21", "status": "empty"}], Page())
    assert lines[1].split() == [
        *("2026-11-20", "finished", "e2e", "4", "4", "0", "0.750", "0.500", "..", "1.000", "(n", "<", "10)"),
        *("12", "0.5000"),
    ]
    assert lines[2].split()[:2] == ["2026-11-21", "empty"]


def test_a_running_date_has_a_row() -> None:
    assert row_of("2026-11-20", {"format": 1, "status": "running", "starts": [], "totals": {}})["calls"] == 0


SAME = {
    "another input": night(content="b"),
    "limits": night(Settings.model_validate({"llm": {"max_concurrency": 3}})),
    "a metric beside it": night(metrics=("e2e", "nli")),
    "a setting of another metric": night(Settings.model_validate({"nli": {"skip_implied": True}})),
    "the same model among others": night(models=["m", "m"]),
}
OTHER = {
    "another model or template": night(template="two"),
    "other settings (llm.temperature)": night(Settings.model_validate({"llm": {"temperature": 0.5}})),
    "other settings (summarise_contexts)": night(Settings.model_validate({"summarise_contexts": False})),
    "another model answers (m-2)": night(models=["m", "m-2"]),
}


@pytest.mark.parametrize("after", SAME.values(), ids=SAME)
def test_figures_stay_comparable(after: dict[str, Any]) -> None:
    assert breaks_of({"2026-11-20": night(), "2026-11-21": after}) == []


@pytest.mark.parametrize(("differs", "after"), OTHER.items(), ids=OTHER)
def test_a_changed_judge_interrupts_the_figures(differs: str, after: dict[str, Any]) -> None:
    nights = {"2026-11-19": night(), "2026-11-20": night(), "2026-11-21": after, "2026-11-22": after}
    (found,) = breaks_of(nights)
    assert found == {"date": "2026-11-21", "before": "2026-11-20", "differs": [differs]}
    assert describe_break(found) == (f"from 2026-11-21 on, figures are not comparable with those before: {differs}")


def test_an_endpoint_that_keeps_its_new_model_breaks_figures_once() -> None:
    nights = {f"2026-11-2{number}": night(models=models) for number, models in enumerate([["a"], ["a", "b"], ["b"]])}
    assert [one["date"] for one in breaks_of(nights)] == ["2026-11-21"]


def test_a_month_is_that_of_the_starts() -> None:
    assert cost_within("2026-11", night()) == 0.5
    assert cost_within("2026-11", {**night(), "sentinel": night()}) == 1.0
    assert cost_within("2026-10", night()) == 0
    assert cost_within("2026-11", {"status": "running"}) == 0
