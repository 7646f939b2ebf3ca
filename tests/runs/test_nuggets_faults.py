"""Test nuggets with errors and kills.

The lost requests are as predicted, the bounds hold, and later runs are complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.fakes.asked_nuggets import judge_nuggets
from tests.fakes.expected_nuggets import ExpectedNuggets, Options
from tests.fakes.model_server import ModelServer
from tests.fakes.world_nuggets import nugget_worlds
from tests.runs.harness import Row, write_samples
from tests.runs.here import RunHere
from tests.runs.killing import Whole, assert_same_tables, kill_in_stages, run_whole
from tests.runs.mending import Expectation, Fates, faults_of, mend_worlds
from tests.runs.test_nuggets import assert_concluded

pytestmark = pytest.mark.slow
STAGES = ("summarise_context", "create_nuggets", "rate_nuggets", "assign_nuggets")
OPTIONS = Options(window=1)
TABLES = ("statements", "scores", "measures", "failures", "summary", "measures_summary")


@pytest.fixture(scope="module")
def whole(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    samples = [sample for world in nugget_worlds(70, "noisy") for sample in world.samples(2)]
    path = write_samples(tmp_path_factory.mktemp("whole") / "samples.jsonl", samples)
    with ModelServer(answer="world_noisy") as server:
        yield run_whole(run_here, server, path, "nuggets", STAGES, {"llm.timeout_seconds": 5, "nuggets.window": 1})


def test_a_run_killed_in_every_stage_sends_no_stored_request(run_here: RunHere, whole: Whole, tmp_path: Path) -> None:
    kill_in_stages(run_here, whole, tmp_path / "out", STAGES)
    assert_same_tables(tmp_path / "out", whole.output, TABLES)


def expect(samples: Sequence[Row], fates: Fates) -> Expectation[ExpectedNuggets | None]:
    """Return the expected results of the samples and their failed requests."""
    found: Expectation[ExpectedNuggets | None] = Expectation()
    for sample in samples:
        judged = judge_nuggets(sample, OPTIONS, fates.ask)
        found.samples[sample["sample_id"]] = judged.verdict
        found.failures.update((sample["sample_id"], stage, error) for stage, _, error in judged.lost)
    return found


def test_every_fault_in_every_stage(run_here: RunHere, tmp_path: Path) -> None:
    samples = [sample for world in nugget_worlds(220) for sample in world.samples(2)]
    first = mend_worlds(
        run_here,
        tmp_path,
        samples,
        *("--metric", "nuggets"),
        # Any text is a summary or a nugget
        rules=faults_of(STAGES, unread=STAGES[2:], hanging=STAGES[1:2]),
        expect=lambda fates: expect(samples, fates),
        check=assert_concluded,
        settings={"nuggets.window": 1},
    )
    statuses = Counter("failed" if one is None else one.status for one in first.samples.values())
    assert min(statuses[name] for name in ("ok", "partial", "failed", "no_statements")) > 5, statuses
