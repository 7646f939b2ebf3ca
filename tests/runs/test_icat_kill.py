"""`kill -9` of a run of icat in each of its stages: it goes on, and nothing that is stored is asked again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import sleep, time
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.fakes.expected_icat import Options, expected_icat
from tests.fakes.model_server import ModelServer
from tests.fakes.world_icat import icat_worlds
from tests.runs.harness import Row, Run, read_manifest, times, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import ICAT, TABLES, concluded, embedder, in_contexts, read_concluded, sorted_rows

# A killed run of other stages is in the tests that always run (test_kill_in_writes.py)
pytestmark = pytest.mark.slow
STAGES = ("extract_claims", "generate_aspects", "embed_text", "classify_relation", "align_claims")
IN_FLIGHT = 2
LATENCY = 0.3
FLUSH_SECONDS = 0.5


@dataclass(frozen=True)
class Whole:
    """An uninterrupted run: how often each stage was asked, and its tables; and a server on which to repeat it."""

    server: ModelServer
    known: list[Row]
    samples: Path
    output: Path
    settings: dict[str, Any]
    asked: dict[str, int]
    tables: dict[str, list[str]]


@pytest.fixture(scope="module")
def whole(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("whole")
    samples = [sample for world in icat_worlds(16, "noisy", ids=True) for sample in world.samples(2)]
    path = write_samples(folder / "samples.jsonl", samples)
    with ModelServer(answer="world_noisy") as server:
        # One text a call, so that calls can be counted as requests
        settings = {**embedder(server), "embeddings.batch": 1, "embeddings.max_in_flight": IN_FLIGHT}
        settings |= {"llm.max_in_flight": IN_FLIGHT, "llm.flush_seconds": FLUSH_SECONDS}
        ended = run_here(server, path, folder / "out", *ICAT, settings=settings)
        assert ended.code == 0, ended.err
        asked = {stage: server.count(stage) for stage in STAGES}
        yield Whole(server, samples, path, folder / "out", settings, asked, tables_of(folder / "out"))


def test_what_is_repeated_is_what_brute_force_concludes(whole: Whole) -> None:
    found = read_concluded(whole.output)
    expected = {one["sample_id"]: expected_icat(one, in_contexts(one), Options(judge="noisy")) for one in whole.known}
    assert found == {name: concluded(one) for name, one in expected.items()}


def tables_of(output: Path) -> dict[str, list[str]]:
    return {name: sorted_rows(output, name) for name in TABLES}


def stored(output: Path) -> int:
    """How many requests have an answer on the disk."""
    files = (output / "completions").glob("v1/*/*.parquet")
    kept = [file for file in files if file.name[0] not in "._"]
    return len({one for file in kept for one in pq.read_table(file, columns=["request_id"])["request_id"].to_pylist()})


@pytest.mark.parametrize("stages", [STAGES[3:4], STAGES], ids=["one stage", "every stage"])
def test_a_run_killed_in_its_stages_asks_nothing_that_is_stored(
    run_here: RunHere, whole: Whole, tmp_path: Path, stages: tuple[str, ...]
) -> None:
    server, output = whole.server, tmp_path / "out"
    server.reset()
    lost = known = 0
    for stage in stages:
        # The stage that is to be killed is slow, those before it are not
        server.configure(rules=[{"when": {"stage": stage}, "do": {"delay": LATENCY}}])
        run = Run(server, whole.samples, output, *ICAT, settings=whole.settings)
        run.wait_for(server, server.count(stage) + whole.asked[stage] // 2, stage)
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
    ended = run_here(server, whole.samples, output, *ICAT, settings=whole.settings)
    assert ended.code == 0, ended.err
    assert server.count() == sum(whole.asked.values()) + lost
    assert tables_of(output) == whole.tables
