"""Kill runs with SIGKILL in their stages.

The next run continues, sends no stored request again, and has the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep, time
from typing import Any

import pyarrow.parquet as pq

from tests.fakes.model_server import ModelServer
from tests.runs.harness import Run, read_manifest, sorted_rows, times
from tests.runs.here import RunHere

IN_FLIGHT = 2
LATENCY = 0.3
FLUSH_SECONDS = 0.5
# The number of requests in flight when a run without a slow stage is killed
_AT_ONCE = 8
# The number of requests of a stage before the kill, their share if the stage has few requests, and the number in a
# second run of the stage, which has few requests left
_SEEN, _SHARE, _SEEN_AGAIN = 20, 4, 2


@dataclass(frozen=True)
class Whole:
    """An undisturbed run: the number of requests by stage, the output, and the server to repeat the run."""

    server: ModelServer
    samples: Path
    metric: str
    output: Path
    settings: Mapping[str, Any]
    asked: Mapping[str, int]


def run_whole(
    run_here: RunHere,
    server: ModelServer,
    samples: Path,
    metric: str,
    stages: Sequence[str],
    settings: Mapping[str, Any],
) -> Whole:
    """Run the metric for the samples and write the output into the folder of the samples."""
    # Each call has one text, so that the number of calls equals the number of requests
    place = {"embeddings.base_url": server.base_url, "embeddings.model": "embedder", "embeddings.batch": 1}
    slow = {
        "llm.max_concurrency": IN_FLIGHT,
        "embeddings.max_concurrency": IN_FLIGHT,
        "llm.flush_seconds": FLUSH_SECONDS,
    }
    whole = Whole(server, samples, metric, samples.parent / "out", {**place, **slow, **settings}, {})
    ended = run_here(server, samples, whole.output, "--metric", metric, settings=whole.settings)
    assert ended.code == 0, ended.err
    asked = {stage: server.count(stage) for stage in stages}
    assert all(asked.values()), asked
    return Whole(server, samples, metric, whole.output, whole.settings, asked)


def kill_in_stages(run_here: RunHere, whole: Whole, output: Path, stages: Sequence[str]) -> None:
    """Kill the run in each of the stages, and then run it to the end.

    A stage that occurs twice is also killed in its second run. The only requests sent twice are the requests without a
    durable completion: the requests in flight and the completions since the last flush.
    """
    server, words = whole.server, ("--metric", whole.metric)
    server.reset()
    lost = known = 0
    for place, stage in enumerate(stages):
        few = min(_SEEN, max(1, whole.asked[stage] // _SHARE))
        # The stage before the kill is slow, and the earlier stages are fast
        server.configure(rules=[{"when": {"stage": stage}, "do": {"delay": LATENCY}}])
        run = Run(server, whole.samples, output, *words, settings=whole.settings)
        run.wait_for(server, server.count(stage) + (_SEEN_AGAIN if stage in stages[:place] else few), stage)
        killed_at = time()
        run.kill()
        # The requests in flight still arrive at the server
        sleep(2 * LATENCY)
        assert read_manifest(output)["status"] == "running"
        before, known = known, stored(output)
        assert known > before
        unstored = server.count() - lost - known
        assert unstored <= IN_FLIGHT + sum(moment >= killed_at - FLUSH_SECONDS for moment in times(server.arrivals()))
        lost += unstored
    server.configure(rules=[])
    ended = run_here(server, whole.samples, output, *words, settings=whole.settings)
    assert ended.code == 0, ended.err
    assert server.count() == sum(whole.asked.values()) + lost


def kill_among(
    run_here: RunHere,
    server: ModelServer,
    samples: Path,
    output: Path,
    metric: str,
    stage: str,
    arrivals: int,
    distinct: int,
    **more: Any,
) -> None:
    """Kill a run after this number of requests of a stage and resume it. Only requests at risk are sent twice."""
    settings = {"llm.max_concurrency": _AT_ONCE, **more}
    at_risk = kill_at(server, samples, output, metric, stage, arrivals, **settings)
    ended = run_here(server, samples, output, "--metric", metric, settings=settings)
    assert ended.code == 0, ended.err
    assert distinct <= server.count() <= distinct + at_risk


def kill_at(
    server: ModelServer, samples: Path, output: Path, metric: str, stage: str, arrivals: int, **settings: Any
) -> int:
    """Kill a run after this number of requests of a stage and return the number of requests at risk."""
    settings = {"llm.max_concurrency": _AT_ONCE, **settings}
    run = Run(server, samples, output, "--metric", metric, settings=settings)
    run.wait_for(server, arrivals, stage)
    killed_at = time()
    run.kill()
    # The completions since the last flush, which runs every second
    return _AT_ONCE + sum(moment >= killed_at - 1.0 for moment in times(server.arrivals()))


def assert_same_tables(output: Path, other: Path, tables: Sequence[str]) -> None:
    """Check that two outputs have the same rows in any order."""
    for table in tables:
        assert sorted_rows(output, table) == sorted_rows(other, table), table


def stored(output: Path) -> int:
    """Return the number of requests with a completion on the disk."""
    files = (output / "completions").glob("v1/*/*.parquet")
    kept = [file for file in files if file.name[0] not in "._"]
    return len({one for file in kept for one in pq.read_table(file, columns=["request_id"])["request_id"].to_pylist()})
