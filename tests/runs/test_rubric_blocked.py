"""Compare the metric rubric with blocked sources with brute force, also with faults."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.blocked_rubrics import blocked_samples, judged_without_blocked, texts_judged
from tests.fakes.criteria import STAGE
from tests.fakes.rubrics import ExpectedRubric, JudgedRubric
from tests.runs.harness import read_table
from tests.runs.here import RunHere
from tests.runs.mending import Expectation, faults_of, mend_worlds
from tests.runs.test_rubric import assert_concluded
from tests.runs.world_jobs import run_worlds

RUBRIC = ("--metric", "rubric")


def expected_of(ask: Any, worlds: int) -> Expectation[ExpectedRubric]:
    """Return the expected samples and lost requests."""
    found: Expectation[ExpectedRubric] = Expectation()
    for one in blocked_samples(worlds):
        judge, name = JudgedRubric(ask, size=3), one.sample["sample_id"]
        found.samples[name] = judged_without_blocked(judge, one)
        found.failures.update((name, stage, error) for stage, _, error in judge.lost)
    return found


@pytest.mark.gate
def test_all_tables_and_requests_are_those_of_brute_force(run_here: RunHere, tmp_path: Path) -> None:
    worlds, asked = 40, set()

    def ask(stage: str, **variables: Any) -> None:
        asked.add((stage, json.dumps(variables, sort_keys=True)))

    expected, samples = expected_of(ask, worlds).samples, blocked_samples(worlds)
    rows = [one.sample for one in samples]
    with run_worlds(run_here, tmp_path, rows, *RUBRIC, settings={"rubric.list_size": 3}) as job:
        assert job.ended.code == 0, job.ended.err
        assert_concluded(job.output, expected, "strict")
        assert Counter(arrival.stage for arrival in job.server.arrivals()) == {STAGE: len(asked)}
        assert not read_table(job.output, "failures")
    rates = [one.measures["blocked_rate"][0] for one in expected.values() if "blocked_rate" in one.measures]
    assert sum(bool(rate) for rate in rates) > 5
    assert rates.count(0.0) > 5
    assert 10 < texts_judged(samples) < len(samples)


@pytest.mark.gate
def test_every_fault(run_here: RunHere, tmp_path: Path) -> None:
    worlds = 120
    first = mend_worlds(
        run_here,
        tmp_path,
        [one.sample for one in blocked_samples(worlds)],
        *RUBRIC,
        rules=faults_of((STAGE,), unread=(STAGE,), hanging=(STAGE,)),
        expect=lambda fates: expected_of(fates.ask, worlds),
        check=partial(assert_concluded, score="strict"),
        settings={"rubric.list_size": 3},
    )
    statuses = Counter(one.status for one in first.samples.values())
    assert min(statuses[name] for name in ("ok", "partial", "no_statements")) > 1, statuses
