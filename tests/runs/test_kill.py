"""Kill a run, its parent, an actor and the limiter with SIGKILL. No result is lost, and few calls are repeated.

One kill of a whole run is in the quick tier. The other tests are slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep, time

import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.harness import (
    Run,
    alive,
    canonical,
    count_distinct,
    find_actor,
    kill_processes,
    make_samples,
    read_manifest,
    times,
    write_samples,
)
from tests.runs.here import RunHere

IN_FLIGHT = 8
LATENCY = 0.4
FLUSH_SECONDS = 1.0
ORPHAN_SECONDS = 60.0
SETTINGS = {"llm.max_concurrency": IN_FLIGHT}


@dataclass(frozen=True)
class Whole:
    """An uninterrupted run, and a server on which to repeat it slowly."""

    server: ModelServer
    samples: Path
    distinct: int
    results: dict[str, list[str]]


@pytest.fixture(scope="module")
def whole(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("whole")
    samples = make_samples(100)
    path = write_samples(folder / "samples.jsonl", samples)
    with ModelServer() as server:
        ended = run_here(server, path, folder / "out", settings=SETTINGS)
        assert (ended.code, server.count()) == (0, count_distinct(samples)), ended.err
        server.configure(latency=LATENCY)
        yield Whole(server, path, count_distinct(samples), canonical(folder / "out"))


def _at_risk(server: ModelServer, killed_at: float) -> int:
    """Return the most calls that a kill can cost: the calls in flight and the calls of the last flush interval."""
    return IN_FLIGHT + sum(moment >= killed_at - FLUSH_SECONDS for moment in times(server.arrivals()))


def _start(whole: Whole, output: Path) -> Run:
    return Run(whole.server, whole.samples, output, settings=SETTINGS)


# Requests that have arrived at the server before a kill, and their stage
MOMENTS = [(90, "summarise_context"), (40, "evaluate_coverage"), (60, "evaluate_coverage")]


@pytest.mark.parametrize(
    "moments", [pytest.param(MOMENTS[1:2], id="once"), pytest.param(MOMENTS, id="three-times", marks=pytest.mark.slow)]
)
def test_a_killed_run_continues_without_paying_twice(
    run_here: RunHere, whole: Whole, tmp_path: Path, moments: list[tuple[int, str]]
) -> None:
    server, output = whole.server, tmp_path / "out"
    server.reset()
    at_risk = 0
    for arrivals, stage in moments:
        run = _start(whole, output)
        run.wait_for(server, arrivals, stage)
        killed_at = time()
        run.kill()
        at_risk += _at_risk(server, killed_at)
        assert read_manifest(output)["status"] == "running"
    ended = run_here(server, whole.samples, output, settings=SETTINGS)
    assert ended.code == 0, ended.err
    assert whole.distinct <= server.count() <= whole.distinct + at_risk
    assert canonical(output) == whole.results


@pytest.mark.slow
def test_all_processes_of_a_run_end_with_it(run_here: RunHere, whole: Whole, tmp_path: Path) -> None:
    server, output = whole.server, tmp_path / "out"
    server.reset()
    run = _start(whole, output)
    run.wait_for(server, 40)
    below = run.tree()[1:]
    killed_at = time()
    run.kill_parent()
    end = monotonic() + ORPHAN_SECONDS
    while alive(below) and monotonic() < end:
        sleep(0.1)
    left = [process.name() for process in alive(below)]
    kill_processes(alive(below))
    assert not left
    at_risk = _at_risk(server, killed_at)
    ended = run_here(server, whole.samples, output, settings=SETTINGS)
    assert ended.code == 0, ended.err
    assert server.count() <= whole.distinct + at_risk
    assert canonical(output) == whole.results


@pytest.mark.slow
def test_a_run_survives_the_death_of_an_actor_and_of_the_limiter(whole: Whole, tmp_path: Path) -> None:
    server, output = whole.server, tmp_path / "out"
    server.reset()
    run = _start(whole, output)
    at_risk = 0
    for arrivals, stage, actor in (
        (30, "summarise_context", "AnsweringActor"),
        (80, "summarise_context", "LimiterActor"),
        (40, "evaluate_coverage", "AnsweringActor"),
    ):
        run.wait_for(server, arrivals, stage)
        process, killed_at = find_actor(run, actor), time()
        process.kill()
        at_risk += _at_risk(server, killed_at)
    ended = run.wait()
    assert ended.code == 0, ended.err
    assert whole.distinct <= server.count() <= whole.distinct + at_risk
    assert canonical(output) == whole.results
