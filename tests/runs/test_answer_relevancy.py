"""Compare the tables of a whole job of the metric answer_relevancy over symbolic worlds with brute force."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.criteria import RELEVANCY
from tests.fakes.relevancy import ExpectedRelevancy, JudgedRelevancy, relevancy_samples
from tests.runs.harness import read_table, words_of
from tests.runs.here import RunHere
from tests.runs.mending import Expectation, faults_of, mend_worlds
from tests.runs.reported import assert_reported
from tests.runs.world_jobs import WorldJob, assert_measured, run_worlds
from tests.runs.worlds import concluded_of

METRIC = ("--metric", "answer_relevancy")
WORLDS, LISTED = 60, 3
SETTINGS = {"answer_relevancy.list_size": LISTED}


@pytest.fixture(scope="module")
def job(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldJob]:
    samples = [sample for sample, _ in relevancy_samples(WORLDS)]
    with run_worlds(run_here, tmp_path_factory.mktemp("relevancy"), samples, *METRIC, settings=SETTINGS) as ran:
        yield ran


def expected_of(ask: Any = lambda *_, **__: None, worlds: int = WORLDS) -> Expectation[ExpectedRelevancy]:
    """Return the expected samples and lost requests."""
    found: Expectation[ExpectedRelevancy] = Expectation()
    for sample, sentences in relevancy_samples(worlds):
        judge = JudgedRelevancy(ask, size=LISTED)
        found.samples[sample["sample_id"]] = judge.judged(sample, sentences)
        found.failures.update((sample["sample_id"], stage, error) for stage, _, error in judge.lost)
    return found


def assert_concluded(output: Path, expected: Mapping[str, ExpectedRelevancy]) -> None:
    """Compare all tables with brute force."""
    scores, measures, statements = concluded_of(output, "statements")
    assert scores.keys() == expected.keys()
    for name, one in expected.items():
        assert_measured(scores[name], measures[name], one, one.measures["answer_relevancy"])
        rows = sorted(statements.get(name, ()), key=lambda row: int(row["statement_id"].rpartition(":")[2]))
        labels = () if one.status == "failed" else one.labels
        assert [(row["text"], row["relation"]) for row in rows] == list(labels), name
        assert all(row["covered"] is (row["relation"] and row["relation"] != "irrelevant") for row in rows)
        assert all(row["reason"] is None or row["reason"].startswith("It says ") for row in rows)


def test_all_tables_are_those_of_brute_force(job: WorldJob) -> None:
    assert job.ended.code == 0, job.ended.err
    assert not read_table(job.output, "failures")
    expected = expected_of().samples
    assert_concluded(job.output, expected)
    assert {label for one in expected.values() for _, label in one.labels} == {"relevant", "background", "irrelevant"}


def test_every_distinct_request_is_sent_once_and_planned(run_here: RunHere, job: WorldJob) -> None:
    asked = set()

    def ask(stage: str, **variables: Any) -> None:
        asked.add((stage, json.dumps(variables, sort_keys=True)))

    expected_of(ask)
    assert Counter(arrival.stage for arrival in job.server.arrivals()) == {RELEVANCY: len(asked)}
    words = words_of(job.server, job.path, job.output, *METRIC, "--json", settings=SETTINGS, command="plan")
    (planned,) = json.loads(run_here.command(words).out)
    assert (planned["stage"], planned["exact"], planned["requests"]) == (RELEVANCY, True, planned["reused"])


def test_show_and_the_report_have_the_sentences(run_here: RunHere, job: WorldJob) -> None:
    assert_reported(job.output)
    name, one = next((name, one) for name, one in expected_of().samples.items() if min(one.counts[:2]))
    ended = run_here.command(["show", str(job.output), "--sample", name])
    assert ended.code == 0, ended.err
    assert f"off the query: {one.counts[1]} sentence" in ended.out
    assert f"on the query: {one.counts[0]} sentence" in ended.out
    assert "irrelevant: It says irrelevant" in ended.out


@pytest.mark.gate
def test_every_fault(run_here: RunHere, tmp_path: Path) -> None:
    worlds = 500
    first = mend_worlds(
        run_here,
        tmp_path,
        [sample for sample, _ in relevancy_samples(worlds)],
        *METRIC,
        rules=faults_of((RELEVANCY,), unread=(RELEVANCY,), hanging=(RELEVANCY,)),
        expect=lambda fates: expected_of(fates.ask, worlds),
        check=assert_concluded,
        settings=SETTINGS,
    )
    statuses = Counter(one.status for one in first.samples.values())
    assert min(statuses[name] for name in ("ok", "partial", "failed", "no_statements")) > 1, statuses
