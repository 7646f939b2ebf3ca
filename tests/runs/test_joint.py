"""Run several metrics on the same input in one run. A shared request is paid once, even after a kill."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.fakes.expected_rag import rag_samples
from tests.fakes.model_server import ModelServer
from tests.fakes.world import qa_worlds
from tests.runs.harness import read_table, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import embedder
from tests.runs.killing import assert_same_tables, kill_at
from tests.runs.worlds import scores_of

METRICS = ("nli", "qa", "rag", "nuggets", "icat", "importance")
# The metrics share the requests of these stages. The summaries are the same, and rag needs the claims of both texts
SHARED = ("summarise_context", "extract_claims")


@pytest.mark.slow
def test_one_run_of_six_metrics_sends_fewer_requests_than_six_runs(run_here: RunHere, tmp_path: Path) -> None:
    # Ground truths as texts, and contexts
    samples = [one for one in rag_samples(30, 2) if one["contexts"] and isinstance(one["ground_truth"], str)]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    with ModelServer(answer="world_closed") as server:

        def asked_by(*metrics: str) -> Counter[str]:
            server.reset()
            output = tmp_path / "+".join(metrics)
            ended = run_here(server, path, output, "--metric", ",".join(metrics), settings=embedder(server))
            assert ended.code == 0, ended.err
            return Counter(str(arrival.stage) for arrival in server.arrivals())

        alone = {metric: asked_by(metric) for metric in METRICS}
        joint = asked_by(*METRICS)
    summed = sum(alone.values(), Counter[str]())
    for stage, count in joint.items():
        counts = [one[stage] for one in alone.values() if one[stage]]
        assert max(counts) <= count <= sum(counts), stage
    for stage in SHARED:
        assert joint[stage] == max(one[stage] for one in alone.values()) < summed[stage], stage
    assert joint.total() < summed.total()
    print(f"\n{joint.total():,} requests, and {summed.total():,} requests of six runs", joint, alone)
    rows = read_table(tmp_path / "+".join(METRICS), "scores")
    for metric in METRICS:
        assert {row["sample_id"]: row for row in rows if row["metric"] == metric} == scores_of(tmp_path / metric)


@pytest.mark.slow
def test_parallel_metrics_resume_after_a_kill(run_here: RunHere, tmp_path: Path) -> None:
    """Kill the run in the judgements of each metric while Spark runs the other metrics."""
    samples = [sample for world in qa_worlds(8, "noisy") for sample in world.samples(2)]
    path, metrics = write_samples(tmp_path / "samples.jsonl", samples), "e2e,nli,qa"
    with ModelServer(answer="world_noisy") as server:
        ended = run_here(server, path, tmp_path / "whole", "--metric", metrics)
        assert ended.code == 0, ended.err
        distinct, whole = server.count(), Counter(arrival.stage for arrival in server.arrivals())
    at_risk, output = 0, tmp_path / "killed"
    with ModelServer(answer="world_noisy", latency=0.1) as server:
        for stage in ("evaluate_coverage", "classify_relation", "compare_answers"):
            arrivals = server.count(stage) + max(1, min(40, whole[stage] // 4))
            at_risk += kill_at(server, path, output, metrics, stage, arrivals)
        ended = run_here(server, path, output, "--metric", metrics)
        assert ended.code == 0, ended.err
        assert distinct <= server.count() <= distinct + at_risk
    assert_same_tables(output, tmp_path / "whole", ("statements", "relations", "atoms", "scores", "measures"))
