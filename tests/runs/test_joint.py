"""Six metrics in one run over one input: what they share is paid once, and less is asked than by six runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.fakes.expected_rag import rag_samples
from tests.fakes.model_server import ModelServer
from tests.runs.harness import read_table, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import embedder
from tests.runs.worlds import scores_of

METRICS = ("nli", "qa", "rag", "nuggets", "icat", "importance")
# Of these one metric's requests are those of all: contexts are summarised alike, and rag needs claims of both texts
SHARED = ("summarise_context", "extract_claims")


@pytest.mark.slow
def test_one_run_of_six_metrics_asks_less_than_six_runs(run_here: RunHere, tmp_path: Path) -> None:
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
    print(f"\n{joint.total():,} requests, and {summed.total():,} of six runs", joint, alone)
    rows = read_table(tmp_path / "+".join(METRICS), "scores")
    for metric in METRICS:
        assert {row["sample_id"]: row for row in rows if row["metric"] == metric} == scores_of(tmp_path / metric)
