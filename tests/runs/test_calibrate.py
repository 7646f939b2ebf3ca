"""Test `untold calibrate`. Each figure is computed again from the tables of two full runs without variants."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.fakes.model_server import ModelServer
from tests.fakes.world import qa_worlds, worlds
from tests.fakes.world_icat import icat_worlds
from tests.fakes.world_importance import importance_worlds
from tests.runs.calibrated import assert_agreement
from tests.runs.harness import Row, read_manifest, read_table, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import embedder, words_among
from tests.udfs.retrieval.onnx_files import write_classifier
from untold.jobs.cli.forms import folder_of

pytestmark = pytest.mark.slow
PROMPT, COMPLETION = "price_per_million_prompt_tokens", "price_per_million_completion_tokens"
A_MINUTE = 60_000
SETTINGS = {
    f"llm.{PROMPT}": 1,
    f"llm.{COMPLETION}": 4,
    "llm.requests_per_minute": A_MINUTE,
    "llm.structured": "off",
}
IN_TASKS = ("embed_text", "classify_entailment")
QUERIES, RESPONSES, DRAWN = 5, 2, 9
NLI = [sample for world in worlds(QUERIES, "noisy", first=50) for sample in world.samples(RESPONSES)]


def small(stage: str) -> tuple[str, ...]:
    return f"stages.{stage}.model=small-model", f"stages.{stage}.{PROMPT}=0.1", f"stages.{stage}.{COMPLETION}=0.4"


def lists(metric: str) -> tuple[str, ...]:
    return f"{metric}.judgement=lists", f"{metric}.list_size=3"


def errs(stage: str, word: str) -> dict[str, Any]:
    """Return a rule that makes the small model return this word for some pairs."""
    return {"when": {"stage": stage, "contains": '"small-model"', "share": 0.3}, "do": {"text": word}}


def of_worlds(metric: str) -> list[Row]:
    known: Mapping[str, Sequence[Any]] = {
        "qa": qa_worlds(QUERIES, "noisy"),
        "icat": icat_worlds(QUERIES, "noisy"),
        "importance": importance_worlds(QUERIES, "noisy"),
    }
    return [sample for world in known[metric] for sample in world.samples(RESPONSES)]


def test_nli_in_lists_filtered_by_a_cascade_and_by_a_smaller_model(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    words = words_among(str(sample["response"]) + str(sample["contexts"]) for sample in NLI)
    write_classifier(tmp_path / "judge", words, ["entailment", "neutral", "contradiction"], doubted=words[::2])
    forms = {
        "filtered": ("nli.filter=words", "nli.audit_share=0.3"),
        "small": small("classify_relation"),
        "cascade": (
            *lists("nli"),
            "nli.filter=words",
            f"nli.classifier={tmp_path / 'judge'}",
            "nli.classifier_threshold=0.8",
        ),
        "in lists": lists("nli"),
    }
    server.configure(answer="careless_noisy", rules=[errs("classify_relation", "neutral")])
    rows = assert_calibrated(run_here, server, tmp_path, "nli", NLI, forms)
    assert (rows["in lists"]["kappa"], rows["in lists"]["kappa_low"]) == (1, 1)
    assert rows["cascade"]["kappa"] < rows["filtered"]["kappa"]
    assert rows["small"]["kappa_low"] < rows["small"]["kappa"] < rows["small"]["kappa_high"] < 1
    assert rows["cascade"]["requests"] < rows["in lists"]["requests"] < rows["filtered"]["requests"]
    # A list with missing items is sent again, so there are more calls than requests
    assert rows["in lists"]["calls"] > rows["in lists"]["requests"]
    files = [
        file for file in (tmp_path / "out/completions/v1").glob("classify_entailment-*/*") if file.name[0] not in "._"
    ]
    seconds = sum(sum(pq.read_table(file)["seconds"].to_pylist()) for file in files)
    assert rows["cascade"]["task_seconds"] == pytest.approx(seconds)
    assert rows["small"]["task_seconds"] == 0 < seconds < rows["cascade"]["seconds"]


@pytest.mark.parametrize(
    ("metric", "stage", "word"),
    [
        ("qa", "compare_answers", "neutral"),
        ("icat", "classify_relation", "neutral"),
        ("importance", "verify_claim", "not supported"),
    ],
)
def test_metrics_of_statements_and_of_answers(
    run_here: RunHere, server: ModelServer, tmp_path: Path, metric: str, stage: str, word: str
) -> None:
    server.configure(answer="careless_noisy", rules=[errs(stage, word)])
    rows = assert_calibrated(
        run_here, server, tmp_path, metric, of_worlds(metric), {"in lists": lists(metric), "small": small(stage)}
    )
    assert rows["small"]["kappa"] < 1
    # Responses are compared in other stages. A noisy judge can be wrong about several chunks but right about each chunk
    assert rows["in lists"]["kappa"] == 1 or metric in ("qa", "importance")


def test_a_plan_of_forms_has_the_totals_of_a_plan_of_each(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    path = write_samples(tmp_path / "samples.jsonl", NLI[:4])
    forms = {"in lists": lists("nli"), "small": small("classify_relation")}
    words = [word for name, own in forms.items() for word in ("--forms", f"{name}: {','.join(own)}")]
    given = (server, path, tmp_path / "out", "--metric", "nli", "--json")
    ended = run_here(*given, *words, settings=SETTINGS, command="plan")
    assert ended.code == 0, ended.err
    found = {row["form"]: row for row in json.loads(ended.out)}
    assert list(found) == ["published", *forms]
    for name, own in {"published": (), **forms}.items():
        alone = run_here(*given, settings={**SETTINGS, **dict(one.split("=", 1) for one in own)}, command="plan")
        rows = json.loads(alone.out)
        assert found[name]["settings"] == list(own)
        for total in ("requests", "expected_requests", "prompt_tokens", "completion_tokens", "cost", "hours"):
            assert found[name][total] == pytest.approx(sum(row[total] for row in rows)), (name, total)
    assert found["in lists"]["requests"] < found["published"]["requests"] == found["small"]["requests"]
    assert found["small"]["cost"] < found["published"]["cost"]
    assert server.count() == 0


def assert_calibrated(
    run_here: RunHere,
    server: ModelServer,
    folder: Path,
    metric: str,
    samples: Sequence[Row],
    forms: Mapping[str, Sequence[str]],
) -> dict[str, Row]:
    """Calibrate, check each figure against the tables of full runs, and return the rows by variant.

    The last variant also runs separately with its own store, which shows its cost.
    """
    path, output = write_samples(folder / "samples.jsonl", samples), folder / "out"
    shared = {**SETTINGS, **({} if metric in ("nli", "qa") else embedder(server))}
    given = ["--metric", metric, "--random", str(DRAWN), "--kappa", ".05", "--json"]
    words = [word for name, own in forms.items() for word in ("--forms", f"{name}: {','.join(own)}")]
    ended = run_here(server, path, output, *given, *words, settings=shared, command="calibrate")
    assert ended.code == 0, ended.err
    assert "has the prices of" not in ended.err
    rows = read_table(output, "calibration")
    assert json.loads(ended.out) == rows
    paid = server.count()
    runs = {name: output / "forms" / folder_of(name) for name in ("published", *forms)}
    for row in rows:
        assert_agreement(row, [runs["published"], runs[row["form"]]], metric)
    name, own = next(reversed(forms.items()))
    settings = {**shared, **dict(one.split("=", 1) for one in own)}
    ended = run_here(server, path, folder / "alone", *given[:4], settings=settings)
    assert ended.code == 0, ended.err
    assert_costs(next(row for row in rows if row["form"] == name), folder / "alone", len(samples))
    assert_agreement(next(row for row in rows if row["form"] == name), [runs["published"], folder / "alone"], metric)
    good = [row for row in rows[1:] if (row["kappa_low"] or 0) >= 0.05 and row["cost"] < rows[0]["cost"]]
    chosen = min(good, key=lambda row: float(row["cost"]), default=None)
    assert [row["recommended"] for row in rows] == [row is chosen for row in rows]
    assert (output / "calibration.png").read_bytes().startswith(b"\x89PNG")
    assert paid < sum(row["calls"] for row in rows)
    before = server.count()
    again = run_here(server, path, output, *given, *words, settings=shared, command="calibrate")
    assert (again.code, server.count()) == (0, before), again.err
    return {row["form"]: row for row in rows}


def assert_costs(row: Row, alone: Path, samples: int) -> None:
    """Check the requests, tokens, cost and hours against a separate run of the variant, for all samples and for one
    sample.
    """
    used = [stage for stage in read_manifest(alone)["starts"][0]["usage"] if stage["stage"] not in IN_TASKS[1:]]
    small = {one.split(".")[1] for one in row["settings"] if one.endswith("=small-model")}
    costs = [
        (stage["prompt_tokens"] * (0.1 if stage["stage"] in small else 1.0)) / 1e6
        + (stage["completion_tokens"] * (0.4 if stage["stage"] in small else 4.0)) / 1e6
        for stage in used
        if stage["stage"] != "embed_text"
    ]
    sums = {
        name: sum(stage[name] for stage in used) for name in ("requests", "calls", "prompt_tokens", "completion_tokens")
    }
    for name, expected in {**sums, "cost": sum(costs)}.items():
        if name != "calls" or "embed_text" not in {stage["stage"] for stage in used}:
            assert row[name] == pytest.approx(expected), name
            assert row[f"projected_{name}"] == pytest.approx(expected * samples / DRAWN)
            assert row[f"sample_{name}"] == pytest.approx(expected / DRAWN)
    assert (row["samples"], row["population_size"]) == (DRAWN, samples)
    assert row["sample_seconds"] * DRAWN == pytest.approx(row["seconds"])
    assert row["seconds"] > row["task_seconds"]
    # The server responds immediately, so the request limit determines the time
    assert row["projected_hours"] >= row["projected_calls"] / A_MINUTE / 60 * 0.99
    assert row["projected_hours"] <= row["projected_calls"] / A_MINUTE / 60 + row["projected_seconds"] / 64 / 3600
