"""Runs with the judge of the package, from the command line on a real Spark, without a key and a server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.harness import canonical, clean_environment, read_table, write_samples
from untold.jobs.metrics import JUDGED_METRICS, METRICS, stages_of
from untold.jobs.settings.loading import load_settings
from untold.jobs.settings.model import SettingsError

BEES = ["Bees make honey from nectar.", "Bees dance to show others the way to flowers."]
SAMPLES = [
    {"sample_id": "all", "query": "What do bees do?", "response": " ".join(BEES), "contexts": BEES},
    {"sample_id": "half", "query": "What do bees do?", "response": BEES[0], "contexts": BEES},
    {
        "sample_id": "foreign",
        "query": "What do bees do?",
        "response": "Die Bienen machen den Honig aus dem Nektar und sie tanzen auch, um den Weg zu zeigen.",
        "contexts": BEES,
    },
]


def untold(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in clean_environment().items() if not name.startswith("OPENAI_")}
    command = [sys.executable, "-m", "untold", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.slow
def test_nli_needs_no_endpoint_and_two_runs_have_equal_tables(tmp_path: Path) -> None:
    write_samples(tmp_path / "samples.jsonl", SAMPLES)
    words = ("score", "--input", "samples.jsonl", "--metric", "nli", "--set", "fail_on_error=none", "--output")
    first = untold(tmp_path, *words, "one")
    assert first.returncode == 0, first.stderr
    scores = {row["sample_id"]: (row["score"], row["status"]) for row in read_table(tmp_path / "one", "scores")}
    assert (scores["all"], scores["half"]) == ((1.0, "ok"), (0.5, "ok"))
    # The judge cannot read the text, so there is no score for it
    assert scores["foreign"][1] == "partial"
    failures = {(row["stage"], row["error_type"], row["sample_id"]) for row in read_table(tmp_path / "one", "failures")}
    assert failures == {("classify_relation", "unjudged", "foreign")}
    usage = {row["stage"]: row for row in read_table(tmp_path / "one", "usage")}
    assert set(usage) == {"extract_atoms", "revise_atoms", "rate_relevance", "classify_relation"}
    assert {(row["model"], row["calls"], row["cost"]) for row in usage.values()} == {("judge", 0, 0.0)}
    stored = [row for file in (tmp_path / "one/completions/v1").glob("classify_relation-*") for row in _rows(file)]
    assert all(trace[0]["windows"] == 1 for trace in stored if "entailment" in trace[0])

    again = untold(tmp_path, *words, "one")
    assert "Nothing to do" in again.stdout, again.stderr
    second = untold(tmp_path, *words, "two", "--endpoint", "judge")
    assert second.returncode == 0, second.stderr
    one, two = canonical(tmp_path / "one"), canonical(tmp_path / "two")
    assert one == two


def _rows(folder: Path) -> list[list[dict[str, float]]]:
    import pyarrow.parquet as pq

    return [
        json.loads(text) for file in folder.glob("*.parquet") for text in pq.read_table(file)["tool_trace"].to_pylist()
    ]


@pytest.mark.parametrize(
    ("metric", "settings", "stages"),
    [
        ("e2e", (), "evaluate_coverage"),
        ("qa", (), "mine_questions"),
        ("nli", ("summarise_contexts=true",), "summarise_context"),
        ("icat", ("icat.variant=auto",), "generate_aspects"),
        ("longrecall", ('longrecall.baselines=["holistic"]',), "match_holistic"),
    ],
)
def test_a_metric_beyond_the_judge_ends_before_spark_starts(
    tmp_path: Path, metric: str, settings: tuple[str, ...], stages: str
) -> None:
    write_samples(tmp_path / "samples.jsonl", SAMPLES)
    overrides = [word for one in settings for word in ("--set", one)]
    words = ("score", "--input", "samples.jsonl", "--output", "out", "--endpoint", "judge", "--metric", metric)
    ended = untold(tmp_path, *words, *overrides)
    assert ended.returncode == 1
    assert f"{metric}: the judge cannot answer" in ended.stderr
    assert stages in ended.stderr
    assert f"the judge works with {', '.join(JUDGED_METRICS)}" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_the_judged_metrics_only_use_stages_of_the_judge() -> None:
    settings = load_settings(None, [], "judge", {}, local_installed=lambda: False).settings
    can = []
    for metric in METRICS:
        try:
            stages_of([metric], settings)
        except SettingsError:
            continue
        can.append(metric)
    assert tuple(sorted(can)) == JUDGED_METRICS
