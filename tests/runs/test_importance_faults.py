"""importance among faults and killed: what was not lost is as without them, bounds hold what was, starts mend all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import sleep, time
from typing import Any

import pytest

from tests.fakes.model_server import ModelServer
from tests.fakes.world_importance import importance_worlds
from tests.runs.harness import Row, Run, read_manifest, read_table, times, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import embedder, sorted_rows
from tests.runs.test_icat_faults import LIMITED
from tests.runs.test_icat_kill import FLUSH_SECONDS, IN_FLIGHT, LATENCY, stored
from tests.runs.worlds import rows_by_sample, scores_of

pytestmark = pytest.mark.slow
IMPORTANCE = ("--metric", "importance")
STAGES = (
    *("summarise_context", "extract_facts", "embed_text"),
    *("rate_importance", "extract_claims", "verify_claim", "check_coverage"),
)
PROMPTED = tuple(stage for stage in STAGES if stage != "embed_text")
TABLES = ("statements", "scores", "measures", "claims", "evidence", "chunks", "failures", "summary", "measures_summary")
OF_SAMPLES = ("statements", "measures", "claims", "evidence")
SHARE = 0.01


@dataclass(frozen=True)
class Whole:
    """A run that nothing befell: how often each stage was asked, and its output; and a server on which to repeat it."""

    server: ModelServer
    samples: Path
    output: Path
    settings: dict[str, Any]
    asked: dict[str, int]


@pytest.fixture(scope="module")
def whole(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("whole")
    samples = [sample for world in importance_worlds(70, "noisy") for sample in world.samples(2)]
    path = write_samples(folder / "samples.jsonl", samples)
    with ModelServer(answer="world_noisy") as server:
        # One text a call: which texts share a call is no part of what is asked
        settings = {**embedder(server), "embeddings.batch": 1, "embeddings.max_in_flight": IN_FLIGHT}
        settings |= {"llm.max_in_flight": IN_FLIGHT, "llm.flush_seconds": FLUSH_SECONDS, "llm.timeout_seconds": 5}
        settings |= {"importance.evidence_chunks": 1}
        ended = run_here(server, path, folder / "out", *IMPORTANCE, settings=settings)
        assert ended.code == 0, ended.err
        yield Whole(server, path, folder / "out", settings, {stage: server.count(stage) for stage in STAGES})


def test_a_run_killed_in_every_stage_asks_nothing_that_is_stored(
    run_here: RunHere, whole: Whole, tmp_path: Path
) -> None:
    server, output = whole.server, tmp_path / "out"
    server.reset()
    lost = known = 0
    for stage in STAGES:
        # The stage that is to be killed is slow, those before it are not
        server.configure(rules=[{"when": {"stage": stage}, "do": {"delay": LATENCY}}])
        run = Run(server, whole.samples, output, *IMPORTANCE, settings=whole.settings)
        run.wait_for(server, server.count(stage) + min(20, whole.asked[stage] // 2), stage)
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
    ended = run_here(server, whole.samples, output, *IMPORTANCE, settings=whole.settings)
    assert ended.code == 0, ended.err
    assert server.count() == sum(whole.asked.values()) + lost
    assert_same_tables(output, whole.output)


def rules() -> list[Row]:
    """A hundredth of each fault in each stage, once or until the end of all attempts."""
    once = (LIMITED, {"status": 500}, "refuse", "cut_json")
    always: tuple[Any, ...] = ({"status": 500}, "html", {"status": 400}, {"status": 408})
    said = ("empty", "length", "filter", {"finish": "error"}, "no_usage")

    def rule(stage: str, deed: Any, **more: Any) -> Row:
        return {"when": {"share": SHARE, "stage": stage, **more}, "do": deed}

    found = [rule(stage, deed, attempt_below=2) for stage in STAGES for deed in once]
    found += [rule(stage, deed) for stage in STAGES for deed in always]
    found += [rule(stage, deed) for stage in PROMPTED for deed in said]
    # Any text is a summary, a fact or a claim
    labelled = ("rate_importance", "verify_claim", "check_coverage")
    found += [rule(stage, "garbage") for stage in labelled]
    return found + [rule("embed_text", deed) for deed in ("nan", "zero", "drop")]


def test_faults_in_every_stage_leave_bounds_that_hold_and_are_mended(
    run_here: RunHere, whole: Whole, tmp_path: Path
) -> None:
    server, output = whole.server, tmp_path / "out"
    server.reset()
    server.configure(rules=rules())
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
    assert_same_tables(output, whole.output)


def assert_bounds_hold(found: Mapping[str, list[Row]], wanted: Mapping[str, list[Row]]) -> None:
    """What a measure is without faults lies between its bounds."""
    for name, rows in wanted.items():
        values = {row["measure"]: row["value"] for row in rows}
        for row in found[name]:
            value = values[row["measure"]]
            if value is not None and row["value_low"] is not None:
                assert row["value_low"] - 1e-9 <= value <= row["value_high"] + 1e-9, (name, row)


def assert_same_tables(output: Path, other: Path) -> None:
    for table in TABLES:
        assert sorted_rows(output, table) == sorted_rows(other, table), table
