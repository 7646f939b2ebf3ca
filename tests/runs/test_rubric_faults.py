"""The metric rubric with faults and kills: lost verdicts and bounds are as predicted, and later starts go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.criteria import STAGE
from tests.fakes.model_server import ModelServer
from tests.fakes.rubrics import ExpectedRubric, JudgedRubric, rubric_worlds
from tests.runs.harness import Row, write_samples
from tests.runs.here import RunHere
from tests.runs.killing import Whole, assert_same_tables, kill_in_stages, run_whole
from tests.runs.mending import Expectation, Fates, faults_of, mend_worlds
from tests.runs.test_rubric import assert_concluded

pytestmark = pytest.mark.gate
TABLES = ("criteria", "scores", "measures", "failures", "summary", "measures_summary")


@pytest.fixture(scope="module")
def whole(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    samples = [sample for world in rubric_worlds(40, "noisy") for sample in world.samples(2)]
    path = write_samples(tmp_path_factory.mktemp("whole") / "samples.jsonl", samples)
    with ModelServer(answer="world_noisy") as server:
        yield run_whole(run_here, server, path, "rubric", (STAGE,), {"llm.timeout_seconds": 5, "rubric.list_size": 2})


def test_a_killed_run_sends_no_stored_request(run_here: RunHere, whole: Whole, tmp_path: Path) -> None:
    kill_in_stages(run_here, whole, tmp_path / "out", (STAGE,))
    assert_same_tables(tmp_path / "out", whole.output, TABLES)


def expect(samples: Sequence[Row], fates: Fates) -> Expectation[ExpectedRubric]:
    """Return the expected samples and lost requests."""
    found: Expectation[ExpectedRubric] = Expectation()
    for sample in samples:
        judge = JudgedRubric(fates.ask, size=3)
        found.samples[sample["sample_id"]] = judge.judged(sample)
        found.failures.update((sample["sample_id"], stage, error) for stage, _, error in judge.lost)
    return found


def test_every_fault(run_here: RunHere, tmp_path: Path) -> None:
    samples = [sample for world in rubric_worlds(150) for sample in world.samples(2)]
    first = mend_worlds(
        run_here,
        tmp_path,
        samples,
        *("--metric", "rubric"),
        rules=faults_of((STAGE,), unread=(STAGE,), hanging=(STAGE,)),
        expect=lambda fates: expect(samples, fates),
        check=partial(assert_concluded, score="strict"),
        settings={"rubric.list_size": 3},
    )
    statuses = Counter(one.status for one in first.samples.values())
    assert min(statuses[name] for name in ("ok", "partial", "failed", "no_statements")) > 1, statuses
