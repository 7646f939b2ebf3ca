"""The metric citations with faults and kills: lost verdicts and bounds are as predicted, and later starts go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.citations import ExpectedCitations, JudgedCitations, citation_worlds, pages_of
from tests.fakes.criteria import CITED
from tests.fakes.model_server import ModelServer
from tests.runs.harness import write_samples
from tests.runs.here import RunHere
from tests.runs.killing import Whole, assert_same_tables, kill_in_stages, run_whole
from tests.runs.mending import Expectation, Fates, faults_of, mend_worlds
from tests.runs.test_citations import assert_concluded

pytestmark = pytest.mark.gate
TABLES = ("citations", "scores", "measures", "failures", "summary", "measures_summary")
WORLDS = 150


@pytest.fixture(scope="module")
def whole(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    worlds, folder = citation_worlds(60, "noisy"), tmp_path_factory.mktemp("whole")
    path = write_samples(folder / "samples.jsonl", [sample for world in worlds for sample in world.samples(2)])
    pages = write_samples(folder / "pages.jsonl", pages_of(worlds))
    settings = {"llm.timeout_seconds": 5, "citations.list_size": 1, "citations.sources": str(pages)}
    with ModelServer(answer="world_noisy") as server:
        yield run_whole(run_here, server, path, "citations", (CITED,), settings)


def test_a_killed_run_sends_no_stored_request(run_here: RunHere, whole: Whole, tmp_path: Path) -> None:
    kill_in_stages(run_here, whole, tmp_path / "out", (CITED,))
    assert_same_tables(tmp_path / "out", whole.output, TABLES)


def expect(fates: Fates) -> Expectation[ExpectedCitations]:
    """Return the expected samples and lost requests."""
    found: Expectation[ExpectedCitations] = Expectation()
    for sample, sentences in (one for world in citation_worlds(WORLDS) for one in world.responses(2)):
        judge = JudgedCitations(fates.ask, size=3)
        found.samples[sample["sample_id"]] = judge.judged(sample, sentences)
        found.failures.update((sample["sample_id"], stage, error) for stage, _, error in judge.lost)
    return found


def test_every_fault(run_here: RunHere, tmp_path: Path) -> None:
    worlds = citation_worlds(WORLDS)
    pages = write_samples(tmp_path / "pages.jsonl", pages_of(worlds))
    first = mend_worlds(
        run_here,
        tmp_path,
        [sample for world in worlds for sample in world.samples(2)],
        *("--metric", "citations"),
        rules=faults_of((CITED,), unread=(CITED,), hanging=(CITED,)),
        expect=expect,
        check=partial(assert_concluded, score="f1"),
        settings={"citations.list_size": 3, "citations.sources": str(pages)},
    )
    statuses = Counter(one.status for one in first.samples.values())
    assert min(statuses[name] for name in ("ok", "partial", "failed", "no_statements")) > 1, statuses
