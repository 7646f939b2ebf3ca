"""Compare jobs of the metric e2e with lists of conflicts with brute force."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.expected_conflicts import ExpectedConflicts, expected_conflicts
from tests.fakes.facts import normalise
from tests.fakes.model_server import ModelServer
from tests.fakes.world import worlds
from tests.runs.fates import ATTEMPTS
from tests.runs.harness import Row, read_table, words_of, write_samples
from tests.runs.here import RunHere
from tests.runs.killing import assert_same_tables, kill_in_stages, run_whole
from tests.runs.mending import Expectation, Fates, assert_mended, faults_of, request_of
from tests.runs.world_jobs import WorldJob, run_worlds
from tests.runs.worlds import assert_conflicts_listed, with_kinds

pytestmark = pytest.mark.gate

WORLDS = 30
E2E = ("--metric", "e2e")
LIST, COVER = "list_conflicts", "cover_sides"
SETTINGS = {"e2e.conflicts": "true"}
STAGES = ("summarise_context", "evaluate_coverage", LIST, COVER)
TABLES = (
    "statements",
    "conflicts",
    "scores",
    "measures",
    "failures",
    "summary",
    "measures_summary",
    "source_preference",
)
JUDGE = "closed"


@pytest.fixture(scope="module")
def job(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldJob]:
    """Two responses to the query of each world."""
    known = [*worlds(WORLDS // 2, "closed"), *worlds(WORLDS // 2, "closed", ids=True, first=WORLDS // 2)]
    samples = [with_kinds(sample) for world in known for sample in world.samples(2)]
    folder = tmp_path_factory.mktemp("conflicts")
    with run_worlds(run_here, folder, samples, *E2E, settings=SETTINGS, answer="world_closed") as ran:
        yield ran


def test_conflicts_equal_brute_force(job: WorldJob) -> None:
    assert job.ended.code == 0, job.ended.err
    expected = {sample["sample_id"]: expected_conflicts(sample, JUDGE) for sample in job.samples}
    assert_conflicts_listed(job.output, expected)
    assert {row[4] for one in expected.values() for row in one.rows} >= {"first", "second", "neither"}
    assert {row["by"] for row in read_table(job.output, "source_preference")} == {"rank", "kind"}


def test_sides_that_are_statements_name_them(job: WorldJob) -> None:
    statements = {row["statement_id"]: row for row in read_table(job.output, "statements")}
    named = [
        (row[side], statements[row[f"{side}_id"]]["text"])
        for row in read_table(job.output, "conflicts")
        for side in ("first", "second")
        if row[f"{side}_id"] is not None
    ]
    assert 10 < len(named) < 2 * len(read_table(job.output, "conflicts"))
    assert all(normalise(text) == normalise(statement) for text, statement in named)


def test_every_distinct_request_is_sent_once(job: WorldJob) -> None:
    """The conflicts of a query are listed once for all responses.

    A side needs a request only if it is not a statement.
    """
    asked = set()

    def ask(stage: str, **variables: Any) -> bool:
        asked.add((stage, json.dumps(variables, sort_keys=True)))
        return True

    for sample in job.samples:
        expected_conflicts(sample, JUDGE, ask)
    found = Counter({stage: job.server.count(stage) for stage in STAGES})
    assert found == Counter(stage for stage, _ in asked)
    assert job.server.count() == len(asked)


@pytest.mark.slow
def test_a_plan_counts_the_stages(run_here: RunHere, job: WorldJob, tmp_path: Path) -> None:
    words = words_of(job.server, job.path, tmp_path / "out", *E2E, "--json", settings=SETTINGS, command="plan")
    planned = {row["stage"]: row for row in json.loads(run_here.command(words).out)}
    assert planned[LIST]["requests"] >= job.server.count(LIST)
    assert planned[COVER]["requests"] >= job.server.count(COVER)


@pytest.mark.slow
def test_a_run_killed_in_every_stage_sends_no_stored_request(run_here: RunHere, tmp_path: Path) -> None:
    samples = [with_kinds(sample) for world in worlds(40, JUDGE, ids=True) for sample in world.samples(2)]
    path = write_samples(tmp_path / "whole" / "samples.jsonl", samples)
    with ModelServer(answer="world_closed") as server:
        whole = run_whole(run_here, server, path, "e2e", STAGES, SETTINGS)
        kill_in_stages(run_here, whole, tmp_path / "out", STAGES)
    assert_same_tables(tmp_path / "out", whole.output, TABLES)


def expect(samples: Sequence[Row], fates: Fates) -> Expectation[ExpectedConflicts]:
    """Return the expected results of the samples and the failed requests."""
    found: Expectation[ExpectedConflicts] = Expectation()
    for sample in samples:
        lost = set()

        def ask(stage: str, lost: set[Any] = lost, **variables: Any) -> bool:
            error = fates.ask(stage, **variables)
            if error:
                lost.add((request_of(stage, variables), error))
            return error is None

        found.samples[sample["sample_id"]] = expected_conflicts(sample, JUDGE, ask)
        found.failures.update((sample["sample_id"], stage, error) for (stage, _), error in lost)
    return found


@pytest.mark.slow
def test_every_fault_in_every_stage(run_here: RunHere, tmp_path: Path) -> None:
    samples = [sample for world in worlds(260, JUDGE) for sample in world.samples(2)]
    path, output = write_samples(tmp_path / "samples.jsonl", samples), tmp_path / "out"
    # Any text is a summary
    rules = faults_of(STAGES, unread=STAGES[1:], hanging=(LIST,))
    with ModelServer(answer="world_closed") as server:
        settings = {"llm.timeout_seconds": 2, "llm.max_attempts": ATTEMPTS, **SETTINGS}
        first = assert_mended(
            lambda *flags: run_here(server, path, output, *E2E, *flags, settings=settings),
            server,
            output,
            rules,
            lambda fates: expect(samples, fates),
            lambda expected: assert_conflicts_listed(output, expected),
        )
    # Some samples have failed lists and some have failed sides. Their measures have bounds
    assert {(one.known, one.whole) for one in first.samples.values()} == {(True, True), (False, True), (True, False)}
    assert {one.status for one in first.samples.values() if not one.whole} == {"ok"}
