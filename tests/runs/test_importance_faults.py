"""Test importance with errors and kills: other results do not change, the bounds hold, and later runs are complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.fakes.model_server import ModelServer
from tests.fakes.world_importance import importance_worlds
from tests.runs.harness import Row, read_table, write_samples
from tests.runs.here import RunHere
from tests.runs.killing import Whole, assert_same_tables, kill_in_stages, run_whole
from tests.runs.mending import faults_of
from tests.runs.worlds import rows_by_sample, scores_of

pytestmark = pytest.mark.slow
IMPORTANCE = ("--metric", "importance")
STAGES = (
    *("summarise_context", "extract_facts", "embed_text"),
    *("rate_importance", "extract_claims", "verify_claim", "check_coverage"),
)
# Any text is a summary, a fact or a claim
UNREAD = ("rate_importance", "verify_claim", "check_coverage")
TABLES = ("statements", "scores", "measures", "claims", "evidence", "chunks", "failures", "summary", "measures_summary")
OF_SAMPLES = ("statements", "measures", "claims", "evidence")


@pytest.fixture(scope="module")
def whole(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    samples = [sample for world in importance_worlds(70, "noisy") for sample in world.samples(2)]
    path = write_samples(tmp_path_factory.mktemp("whole") / "samples.jsonl", samples)
    settings = {"llm.timeout_seconds": 5, "importance.evidence_chunks": 1}
    with ModelServer(answer="world_noisy") as server:
        yield run_whole(run_here, server, path, "importance", STAGES, settings)


def test_a_run_killed_in_every_stage_sends_no_stored_request(run_here: RunHere, whole: Whole, tmp_path: Path) -> None:
    kill_in_stages(run_here, whole, tmp_path / "out", STAGES)
    assert_same_tables(tmp_path / "out", whole.output, TABLES)


def test_faults_in_every_stage_leave_valid_bounds_and_are_fixed_later(
    run_here: RunHere, whole: Whole, tmp_path: Path
) -> None:
    server, output = whole.server, tmp_path / "out"
    server.reset()
    server.configure(rules=faults_of(STAGES, unread=UNREAD))
    ended = run_here(server, whole.samples, output, *IMPORTANCE, settings=whole.settings)
    assert ended.code == 4, ended.err
    failures = read_table(output, "failures")
    assert {row["stage"] for row in failures} == set(STAGES)
    statuses = Counter(row["status"] for row in scores_of(output).values())
    assert statuses.keys() >= {"ok", "partial", "failed"}
    touched = {row["sample_id"] for row in failures}
    for table in OF_SAMPLES:
        found, wanted = rows_by_sample(output, table), rows_by_sample(whole.output, table)
        assert {name: rows for name, rows in found.items() if name not in touched} == {
            name: rows for name, rows in wanted.items() if name not in touched
        }, table
    assert_bounds_hold(rows_by_sample(output, "measures"), rows_by_sample(whole.output, "measures"))

    server.configure(rules=[])
    ended = run_here(server, whole.samples, output, *IMPORTANCE, "--retry-failed", settings=whole.settings)
    assert ended.code == 0, ended.err
    assert_same_tables(output, whole.output, TABLES)


def assert_bounds_hold(found: Mapping[str, list[Row]], wanted: Mapping[str, list[Row]]) -> None:
    """Check that the bounds of a measure contain its value in a run without errors."""
    for name, rows in wanted.items():
        values = {row["measure"]: row["value"] for row in rows}
        for row in found[name]:
            value = values[row["measure"]]
            if value is not None and row["value_low"] is not None:
                assert row["value_low"] - 1e-9 <= value <= row["value_high"] + 1e-9, (name, row)
