"""Test the exit codes of `untold score` and the identity of an output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from untold.jobs.metrics import METRICS
from untold.jobs.metrics.scoring import ScoreRequest
from untold.jobs.metrics.settings import NliSettings
from untold.jobs.run.manifest import Added, Identity, OutputError, differences, identify
from untold.jobs.run.outcome import Ending, below_bars
from untold.jobs.run.terminal import Display
from untold.jobs.score import score
from untold.jobs.settings.model import GraphSettings, LlmSettings, Settings, StageSettings
from untold.udfs.llm.keys import Stage


@pytest.mark.parametrize(
    ("ended", "failed", "fail_on_error", "code"),
    [
        ("finished", 0, "any", 0),
        ("finished", 1, "any", 4),
        ("finished", 1, "none", 0),
        ("finished", 1, {"count": 1}, 0),
        ("finished", 2, {"count": 1}, 4),
        ("finished", 1, {"count": 0}, 4),
        ("finished", 100, {"share": 1}, 0),
        ("finished", 1, {"share": 0.01}, 0),
        ("finished", 2, {"share": 0.01}, 4),
        ("finished", 2, {"share": 0.5, "count": 1}, 4),
        ("finished", 2, {"share": 0.01, "count": 5}, 4),
        ("budget", 9, "none", 3),
        ("outage", 0, "any", 5),
        ("interrupted", 0, "any", 130),
        ("refused", 0, "any", 1),
    ],
)
def test_exit_codes(ended: str, failed: int, fail_on_error: str | dict[str, float], code: int) -> None:
    statuses = {"ok": 100 - failed, "failed": failed}
    assert Ending(None if ended == "finished" else ended).exit_code(statuses, fail_on_error) == code


def test_a_partial_sample_counts_as_an_error() -> None:
    assert Ending().exit_code({"ok": 1, "partial": 1}, "any") == 4


def test_a_mean_below_its_bar_is_reported_with_mean_bar_and_n() -> None:
    rows = [
        {"metric": "e2e", "level": "overall", "mean": 0.65, "n": 4, "scored": 3},
        {"metric": "e2e", "level": "system", "mean": 0.1, "n": 4, "scored": 3},
        {"metric": "qa", "level": "overall", "mean": None, "n": 4, "scored": 0},
    ]
    assert below_bars(rows, {"e2e": 0.65}) == []
    assert below_bars(rows, {"e2e": 0.7, "qa": 0.0}) == [
        "e2e: mean 0.65 is below the bar 0.7 (n 4, scored 3)",
        "qa: undefined mean is below the bar 0 (n 4, scored 0)",
    ]


STAGE = {"evaluate_coverage": Stage("evaluate_coverage", ("query",), "model", "template")}


def test_settings_without_effect_on_results_do_not_change_the_identity() -> None:
    one = identify("input", ("e2e",), Settings(), STAGE)
    llm = Settings().llm.model_copy(update={"requests_per_minute": 5.0, "base_url": "http://other/v1", "actors": 3})
    two = identify("input", ("e2e",), Settings(llm=llm, fail_on_error={"share": 0.5}), STAGE)
    assert differences(one, two) == []


def test_a_setting_missing_in_an_older_output_had_its_default() -> None:
    one = identify("input", ("e2e",), Settings(), STAGE)
    older = {**one, "results": {name: value for name, value in one["results"].items() if name != "graph"}}
    assert differences(one, older) == []
    other = identify("input", ("e2e",), Settings(graph=GraphSettings(max_edges_in_task=5)), STAGE)
    assert differences(other, older) == ["other settings (graph.max_edges_in_task)"]


BOTH = {**STAGE, "extract_atoms": Stage("extract_atoms", ("text",), "model", "template")}
E2E = Added(METRICS["e2e"].depends_on, "input")


@pytest.mark.parametrize(
    ("settings", "stages", "found"),
    [
        (Settings(), BOTH, []),
        (Settings(nli=NliSettings(skip_implied=True), prompts_dir="mine"), BOTH, []),
        (Settings(stages={**Settings().stages, "extract_atoms": StageSettings(model="other")}), BOTH, []),
        (Settings(summarise_contexts=False), BOTH, ["other settings (summarise_contexts)"]),
        (Settings(llm=LlmSettings(model="other")), BOTH, ["other settings (llm.model)"]),
        (Settings(), {**BOTH, **{name: replace(one, template="t") for name, one in STAGE.items()}}, ["another model"]),
    ],
)
def test_added_metrics_can_have_other_settings_that_existing_metrics_do_not_use(
    settings: Settings, stages: dict[str, Stage], found: list[str]
) -> None:
    there = identify("input", ("e2e",), Settings(), STAGE)
    added = identify("input with types", ("e2e", "nli"), settings, stages)
    told = differences(added, there, E2E)
    assert len(told) == len(found)
    assert all(one.startswith(part) for one, part in zip(told, found, strict=True))
    assert "another input" in differences(added, there, Added(E2E.uses, "other"))


def test_only_settings_that_differ_are_named() -> None:
    def identity(model: str, stages: dict[str, Stage]) -> Identity:
        return identify("input", ("e2e",), Settings(llm=LlmSettings(model=model, temperature=0.5)), stages)

    both = {**STAGE, "summarise_context": Stage("summarise_context", ("text",), "model", "template")}
    assert differences(identity("a", both), identity("b", both)) == ["other settings (llm.model)"]
    # A stage that only one of the two runs uses has no settings to compare
    assert differences(identity("a", both), identity("a", STAGE)) == ["another model or template"]


@pytest.mark.parametrize(
    ("update", "named"),
    [
        ({"fingerprint": "b"}, "another input"),
        ({"metrics": ("other",)}, "other metrics"),
        ({"settings": Settings(summarise_contexts=False)}, "other settings (summarise_contexts)"),
        ({"stages": {"evaluate_coverage": Stage("evaluate_coverage", ("query",), "model", "templatf")}}, "template"),
    ],
)
def test_what_changes_results_is_named(update: dict[str, object], named: str) -> None:
    given = {"fingerprint": "a", "metrics": ("e2e",), "settings": Settings(), "stages": STAGE}
    other = identify(**{**given, **update})  # type: ignore[arg-type]
    (difference,) = differences(identify(**given), other)  # type: ignore[arg-type]
    assert named in difference


def test_no_table_is_written_over_the_samples_that_it_is_made_of(tmp_path: Path) -> None:
    given = tmp_path / "samples" / "part-0.parquet"
    given.parent.mkdir()
    given.write_bytes(b"answers")
    request = ScoreRequest(
        input=str(given), output=str(tmp_path), metrics=("e2e",), settings=Settings(), embedded=False, overwrite=True
    )
    with pytest.raises(OutputError, match="Give another --output"):
        score(request, Display())
    assert given.read_bytes() == b"answers"
