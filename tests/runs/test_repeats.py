"""Test `llm.repeats`.

A share of the samples is scored several times, and the output reports the agreement of the judge.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.fakes.model_server import ModelServer
from tests.fakes.world import worlds
from tests.runs.harness import make_samples, read_manifest, read_table, sorted_rows, write_samples
from tests.runs.here import RunHere
from untold.jobs.metrics.scoring import shuffle_contexts

# In the first repetition, the judge covers no statement of this sample. Later it returns the usual completion
CHANGES = {
    "when": {"stage": "evaluate_coverage", "contains": "Fact C1.", "attempt_below": 2},
    "do": {
        "text": "[Covered statements]\n\n[Uncovered statements]\n- Fact A0. [1]\n- Fact B0. [1, 2]\n- Fact C1. [2]\n"
    },
}


@pytest.mark.slow
def test_samples_are_scored_again_with_other_salts(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    server.configure(answer="e2e", rules=[CHANGES])
    path = write_samples(tmp_path / "samples.jsonl", make_samples(10))
    settings = {"llm.repeats": 3, "llm.repeated_share": 1, "llm.structured": "off", "statistics.widen": "true"}
    planned = run_here(server, path, tmp_path / "out", "--metric", "e2e", "--json", settings=settings, command="plan")
    assert planned.code == 0, planned.err
    expected = {row["stage"]: row["requests"] for row in json.loads(planned.out)}
    ended = run_here(server, path, tmp_path / "out", settings=settings)
    assert ended.code == 0, ended.err
    assert {stage: server.count(stage) for stage in expected} == expected
    overall, even, odd = read_table(tmp_path / "out", "repeatability")
    assert (overall["metric"], overall["repeats"], overall["n"], overall["system"]) == ("e2e", 3, 10, None)
    # The scores are 0 once and 2 / 3 twice. The other samples have the same result each time
    variance = (2 / 3) ** 2 / 3
    assert odd["deviation"] == pytest.approx((variance / 5) ** 0.5)
    assert overall["deviation"] == pytest.approx((variance / 10) ** 0.5)
    # The scores are all equal, so there is no variance to divide by
    assert (even["deviation"], even["disagreement_rate"], even["share"]) == (0, 0, None)
    assert odd["disagreement_rate"] == pytest.approx(2 / odd["statements"])
    assert "e2e: over 3 scorings of 10 samples a score varies by 0.122 (standard deviation)" in ended.err
    usage = {row["stage"]: row["requests"] for row in read_table(tmp_path / "out", "usage")}
    assert usage == expected
    # The interval equals the interval of a run without repeats, except for the width
    shared = {"llm.structured": "off", "completion_store": tmp_path / "out" / "completions"}
    alone = run_here(server, path, tmp_path / "alone", settings=shared)
    assert alone.code == 0, alone.err
    assert server.count() == sum(expected.values())
    (wide, *_), (plain, *_) = (read_manifest(tmp_path / name)["summary"] for name in ("out", "alone"))
    assert wide["mean"] == plain["mean"]
    factor = (1 + overall["share"]) ** 0.5
    assert wide["mean"] - wide["ci_low"] == pytest.approx(factor * (plain["mean"] - plain["ci_low"]))
    again = run_here(server, path, tmp_path / "out", settings=settings)
    assert (again.code, server.count()) == (0, sum(expected.values()))
    refused = run_here(server, path, tmp_path / "out", settings={**settings, "llm.repeats": 2})
    assert refused.code == 1
    assert "other settings (llm.repeats)" in refused.err


@pytest.mark.slow
def test_a_share_of_the_samples_is_judged_again_by_nli(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    """Only the requests of these samples are sent again, and the summary also counts the other samples."""
    known = worlds(10, "noisy")
    server.configure(answer=known[0].answer)
    path = write_samples(tmp_path / "samples.jsonl", [sample for world in known for sample in world.samples(1)])
    settings = {"llm.repeats": 2, "llm.repeated_share": 0.4, "llm.structured": "off"}
    planned = run_here(server, path, tmp_path / "out", "--metric", "nli", "--json", settings=settings, command="plan")
    ended = run_here(server, path, tmp_path / "out", "--metric", "nli", settings=settings)
    assert ended.code == 0, ended.err
    asked = server.count()
    assert asked <= sum(row["requests"] for row in json.loads(planned.out))
    overall = read_table(tmp_path / "out", "repeatability")[0]
    scored = [row for row in read_table(tmp_path / "out", "scores") if row["score"] is not None]
    # A judge that depends only on the texts has the same result in each repetition
    assert 0 < overall["n"] <= 4 < len(scored)
    assert (overall["metric"], overall["repeats"], overall["deviation"], overall["disagreement_rate"]) == (
        "nli",
        2,
        0,
        0,
    )
    shared = {"llm.structured": "off", "completion_store": tmp_path / "out" / "completions"}
    alone = run_here(server, path, tmp_path / "alone", "--metric", "nli", settings=shared)
    assert (alone.code, server.count()) == (0, asked), alone.err
    once = sum(row["requests"] for row in read_table(tmp_path / "alone", "usage"))
    assert once < asked < 2 * once
    assert sorted_rows(tmp_path / "alone", "scores") == sorted_rows(tmp_path / "out", "scores")


@pytest.mark.gate
def test_an_order_of_contexts_that_changes_scores_is_in_the_summary(
    run_here: RunHere, server: ModelServer, spark: SparkSession, tmp_path: Path
) -> None:
    """The judge reads only the first context, and the response states only this one in the given order."""
    server.configure(answer="first_only")
    samples = [
        {
            "sample_id": f"s{n}",
            "query": f"Query {n}?",
            "response": f"Fact {n}.0.",
            "contexts": [f"Fact {n}.{place}." for place in range(1 + n % 4)],
            "system": "ab"[n % 2],
        }
        for n in range(12)
    ]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    settings = {
        "llm.repeats": 3,
        "llm.repeated_share": 1,
        "llm.structured": "off",
        "summarise_contexts": "false",
        "repeats.shuffle_contexts": "true",
    }
    planned = run_here(server, path, tmp_path / "out", "--metric", "e2e", "--json", settings=settings, command="plan")
    assert planned.code == 0, planned.err
    ended = run_here(server, path, tmp_path / "out", settings=settings)
    assert ended.code == 0, ended.err
    (row,) = json.loads(planned.out)
    assert server.count() == row["requests"] - row["reused"]
    given = spark.read.parquet(str(tmp_path / "out" / "samples"))
    orders = {
        number: {one["sample_id"]: [text.text for text in one["contexts"]] for one in frame.collect()}
        for number, frame in ((0, given), *((n, shuffle_contexts(given, 0, n)) for n in (2, 3)))
    }
    differences = {}
    for sample in samples:
        own = [orders[number][sample["sample_id"]] for number in orders]
        assert {tuple(sorted(order)) for order in own} == {tuple(sorted(sample["contexts"]))}
        assert all((order != own[0]) == (len(order) > 1) for order in own[1:])
        scores = [(order[0] in sample["response"]) / len(order) for order in own]
        differences[sample["sample_id"]] = scores[0] - sum(scores[1:]) / 2
    for one in read_table(tmp_path / "out", "summary"):
        known = [differences[each["sample_id"]] for each in samples if one["system"] in (None, each["system"])]
        assert one["order_difference"] == pytest.approx(sum(known) / len(known))
        assert one["order_ci_low"] < one["order_difference"] < one["order_ci_high"]
    assert sum(differences.values()) > 0
    alone = run_here(server, path, tmp_path / "alone", settings={**settings, "llm.repeats": 1})
    assert (alone.code, "needs llm.repeats above 1" in alone.err) == (1, True)
