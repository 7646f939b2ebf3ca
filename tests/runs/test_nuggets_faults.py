"""nuggets among faults and killed: what was not lost is as without them, bounds hold what was, starts mend all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.model_server import ModelServer
from tests.fakes.world_nuggets import nugget_worlds
from tests.runs.harness import read_table, write_samples
from tests.runs.here import RunHere
from tests.runs.killing import Whole, assert_same_tables, kill_in_stages, run_whole
from tests.runs.mending import faults_of
from tests.runs.test_importance_faults import assert_bounds_hold
from tests.runs.worlds import rows_by_sample, scores_of

pytestmark = pytest.mark.slow
STAGES = ("summarise_context", "create_nuggets", "rate_nuggets", "assign_nuggets")
TABLES = ("statements", "scores", "measures", "failures", "summary", "measures_summary")


@pytest.fixture(scope="module")
def whole(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    samples = [sample for world in nugget_worlds(70, "noisy") for sample in world.samples(2)]
    path = write_samples(tmp_path_factory.mktemp("whole") / "samples.jsonl", samples)
    with ModelServer(answer="world_noisy") as server:
        yield run_whole(run_here, server, path, "nuggets", STAGES, {"llm.timeout_seconds": 5, "nuggets.window": 1})


def test_a_run_killed_in_every_stage_asks_nothing_that_is_stored(
    run_here: RunHere, whole: Whole, tmp_path: Path
) -> None:
    kill_in_stages(run_here, whole, tmp_path / "out", STAGES)
    assert_same_tables(tmp_path / "out", whole.output, TABLES)


def test_faults_in_every_stage_leave_bounds_that_hold_and_are_mended(
    run_here: RunHere, whole: Whole, tmp_path: Path
) -> None:
    server, output = whole.server, tmp_path / "out"
    server.reset()
    server.configure(rules=faults_of(STAGES, unread=STAGES[2:]))
    ended = run_here(server, whole.samples, output, "--metric", "nuggets", settings=whole.settings)
    assert ended.code == 4, ended.err
    failures = read_table(output, "failures")
    assert {row["stage"] for row in failures} == set(STAGES)
    assert Counter(row["status"] for row in scores_of(output).values()).keys() >= {"ok", "partial", "failed"}
    touched = {row["sample_id"] for row in failures}
    for table in ("statements", "measures"):
        found, wanted = rows_by_sample(output, table), rows_by_sample(whole.output, table)
        assert {name: rows for name, rows in found.items() if name not in touched} == {
            name: rows for name, rows in wanted.items() if name not in touched
        }, table
    assert_bounds_hold(rows_by_sample(output, "measures"), rows_by_sample(whole.output, "measures"))

    server.configure(rules=[])
    ended = run_here(server, whole.samples, output, "--metric", "nuggets", "--retry-failed", settings=whole.settings)
    assert ended.code == 0, ended.err
    assert_same_tables(output, whole.output, TABLES)
