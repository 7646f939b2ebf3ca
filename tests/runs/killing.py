"""`kill -9` of whole runs in their stages: they go on, ask nothing that is stored again, and come to the same."""

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
# Requests in flight of runs that are killed as they are, without a stage that is slow
_AT_ONCE = 8
# Requests of a stage that are seen before it is killed, and the share of them where there are few; then how many of one
# that was killed before, as there may be a handful when it is asked again
_SEEN, _SHARE, _SEEN_AGAIN = 20, 4, 2


@dataclass(frozen=True)
class Whole:
    """A run that nothing befell: how often each stage was asked, and its output; and a server on which to repeat it."""

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
    """Runs the metric over the samples, into the folder that they are in."""
    # One text a call, so that calls can be counted as requests
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
    """Starts the run again and again, each time killed in the next stage, and once to its end.

    A stage that comes twice is killed once more when it is asked again. What was not durable at a kill is asked twice:
    what was on its way, and what came since the last flush; nothing else is.
    """
    server, words = whole.server, ("--metric", whole.metric)
    server.reset()
    lost = known = 0
    for place, stage in enumerate(stages):
        few = min(_SEEN, max(1, whole.asked[stage] // _SHARE))
        # The stage that is to be killed is slow, those before it are not
        server.configure(rules=[{"when": {"stage": stage}, "do": {"delay": LATENCY}}])
        run = Run(server, whole.samples, output, *words, settings=whole.settings)
        run.wait_for(server, server.count(stage) + (_SEEN_AGAIN if stage in stages[:place] else few), stage)
        killed_at = time()
        run.kill()
        # What was on its way to the server still arrives
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
    """Kills a run once so many requests of a stage came, and lets it go on: only what was at risk is asked twice."""
    settings = {"llm.max_concurrency": _AT_ONCE, **more}
    at_risk = kill_at(server, samples, output, metric, stage, arrivals, **settings)
    ended = run_here(server, samples, output, "--metric", metric, settings=settings)
    assert ended.code == 0, ended.err
    assert distinct <= server.count() <= distinct + at_risk


def kill_at(
    server: ModelServer, samples: Path, output: Path, metric: str, stage: str, arrivals: int, **settings: Any
) -> int:
    """Kills a run once so many requests of a stage came. How many may be asked twice: those in flight or unflushed."""
    settings = {"llm.max_concurrency": _AT_ONCE, **settings}
    run = Run(server, samples, output, "--metric", metric, settings=settings)
    run.wait_for(server, arrivals, stage)
    killed_at = time()
    run.kill()
    # What came since the last flush, a second
    return _AT_ONCE + sum(moment >= killed_at - 1.0 for moment in times(server.arrivals()))


def assert_same_tables(output: Path, other: Path, tables: Sequence[str]) -> None:
    """Two outputs have the same rows, in whatever order."""
    for table in tables:
        assert sorted_rows(output, table) == sorted_rows(other, table), table


def stored(output: Path) -> int:
    """How many requests have an answer on the disk."""
    files = (output / "completions").glob("v1/*/*.parquet")
    kept = [file for file in files if file.name[0] not in "._"]
    return len({one for file in kept for one in pq.read_table(file, columns=["request_id"])["request_id"].to_pylist()})
