"""Test all kinds of errors at random. Each error is in the tables, and later runs retry the temporary errors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.fates import ASKED_ONCE, ATTEMPTS, ERRORS, PASSING, RETRIED, Fate, fate_of, key_of
from tests.runs.harness import (
    Ended,
    Row,
    expected_statements,
    make_samples,
    payloads_of,
    read_manifest,
    read_statements,
    read_table,
    snapshot,
    write_samples,
)
from tests.runs.here import RunHere

SHARE = 0.02
STAGES = ("summarise_context", "evaluate_coverage")
SETTINGS = {"llm.timeout_seconds": 2, "llm.max_attempts": ATTEMPTS}
LIMITED = {"status": 429, "headers": {"Retry-After": "0.5"}}


def _rule(stage: str, deed: Any, *, attempts: int | None = None) -> Row:
    when: Row = {"share": SHARE, "stage": stage}
    return {"when": when if attempts is None else {**when, "attempt_below": attempts + 1}, "do": deed}


RULES = [
    *(_rule(stage, deed, attempts=1) for stage in STAGES for deed in (LIMITED, {"status": 500}, "refuse", "cut_json")),
    *(_rule(stage, deed) for stage in STAGES for deed in ("html", "empty", "length", "filter", "no_usage")),
    *(_rule(stage, {"status": status}) for stage in STAGES for status in (400, 403, 408)),
    *(_rule(stage, {"status": 200, "error": {"code": 502}}, attempts=1) for stage in STAGES),
    *(_rule(stage, {"finish": "abort"}, attempts=1) for stage in STAGES),
    _rule("evaluate_coverage", {"finish": "error"}),
    _rule("summarise_context", {"status": 500}),
    _rule("summarise_context", "hang", attempts=1),
    _rule("summarise_context", "refuse"),
    _rule("evaluate_coverage", "hang"),
    _rule("evaluate_coverage", "garbage"),
]


@dataclass
class Expectation:
    """The expected result of a run: the result of each request by stage and key, and the failures of each sample."""

    fates: dict[tuple[str, str], Fate] = field(default_factory=dict)
    failures: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def of_stage(self, stage: str) -> list[Fate]:
        return [fate for (name, _), fate in self.fates.items() if name == stage]


def expect(samples: Sequence[Row], rules: Sequence[Row]) -> Expectation:
    """Return the expected results of all samples with these rules. A sample with a failed summary is not judged."""
    found = Expectation()

    def look(sample: Row, payload: Row) -> bool:
        key = (payload["stage"], f"{key_of(payload):016x}")
        if key not in found.fates:
            found.fates[key] = fate_of(payload, rules)
        error_type = found.fates[key].error_type
        if error_type:
            found.failures[(sample["sample_id"], payload["stage"], error_type)] += 1
        return error_type is None

    for sample in samples:
        summaries, coverage = payloads_of(sample)
        verdicts = [look(sample, payload) for payload in summaries]
        if all(verdicts):
            look(sample, coverage)
    return found


@dataclass(frozen=True)
class Case:
    server: ModelServer
    samples: list[Row]
    path: Path
    output: Path
    # The first run, with `RULES`
    first: Ended


@pytest.fixture
def case(run_here: RunHere, tmp_path: Path) -> Iterator[Case]:
    samples = make_samples(300)
    path, output = write_samples(tmp_path / "samples.jsonl", samples), tmp_path / "out"
    with ModelServer(rules=RULES) as server:
        yield Case(server, samples, path, output, run_here(server, path, output, settings=SETTINGS))


def _failed(output: Path) -> Counter[tuple[str, str, str]]:
    return Counter((row["sample_id"], row["stage"], row["error_type"]) for row in read_table(output, "failures"))


def _check_samples(case: Case, failed: set[str]) -> None:
    """Check that every sample has one row.

    A failed sample has a null score with wide bounds, and others are as expected.
    """
    scores = {row["sample_id"]: row for row in read_table(case.output, "scores")}
    assert len(read_table(case.output, "scores")) == len(scores) == len(case.samples)
    statements = read_statements(case.output)
    for sample in case.samples:
        row, expected = scores[sample["sample_id"]], expected_statements(sample)
        if sample["sample_id"] in failed:
            assert (row["status"], row["score"], row["score_low"], row["score_high"]) == ("failed", None, 0, 1)
            assert sample["sample_id"] not in statements
            continue
        covered = sum(is_covered for _, is_covered, _ in expected)
        assert (row["status"], row["score"]) == ("ok", covered / len(expected)), sample["sample_id"]
        assert (row["covered"], row["uncovered"]) == (covered, len(expected) - covered)
        assert statements[sample["sample_id"]] == expected


def _check_summary(case: Case, failed: set[str]) -> None:
    for row in read_table(case.output, "summary"):
        assert row["n"] == row["scored"] + row["undefined"] + row["failed"]
        if row["level"] == "overall":
            assert (row["n"], row["failed"]) == (len(case.samples), len(failed))
    counts = read_manifest(case.output)["counts"]
    statuses = {"ok": len(case.samples) - len(failed), "failed": len(failed)}
    assert counts["statuses"] == {status: count for status, count in statuses.items() if count}
    assert counts["samples"] == counts["scores"] == len(case.samples)


def _check_usage(case: Case, expected: Expectation, before: Expectation | None) -> None:
    """Check that the usage table is consistent and equals the calls since the reset of the server."""
    for row in read_table(case.output, "usage"):
        stage = row["stage"]
        keys = [key for key in expected.fates if key[0] == stage]
        reused = {key for key in keys if before and key in before.fates and before.fates[key].error_type is None}
        kept = {key for key in keys if before and expected.fates[key].calls == 0} - reused
        asked = [expected.fates[key] for key in keys if key not in reused and key not in kept]
        failed = sum(expected.fates[key].error_type is not None for key in keys)
        calls, limited = sum(fate.calls for fate in asked), sum(fate.limited for fate in asked)
        assert row["requests"] == len(keys) == row["reused"] + row["answered"] + row["failed"] + row["unasked"]
        assert (row["reused"], row["failed"], row["unasked"]) == (len(reused), failed, 0)
        assert row["calls"] == calls == case.server.count(stage)
        assert (row["rate_limited"], row["retries"]) == (limited, calls - len(asked) - limited)


def test_every_fault_is_accounted_for(case: Case) -> None:
    assert case.first.code == 4, case.first.err
    expected = expect(case.samples, RULES)
    seen = {fate.error_type for fate in expected.fates.values()}
    assert seen == {None, *ERRORS.values(), "filtered", *ASKED_ONCE, f"http_{RETRIED}"}
    assert _failed(case.output) == expected.failures
    failed = {sample_id for sample_id, _, _ in expected.failures}
    _check_samples(case, failed)
    _check_summary(case, failed)
    _check_usage(case, expected, None)
    assert {row["stage"]: row["tokens_estimated"] for row in read_table(case.output, "usage")} == dict.fromkeys(
        STAGES, True
    )
    assert read_manifest(case.output)["totals"]["calls"] == case.server.count()
    assert read_manifest(case.output)["status"] == "finished"


def _again(first: Expectation, samples: Sequence[Row], lasting: bool) -> Expectation:
    """Return the expected result of a run without rules.

    It retries temporary errors, and optionally the lasting errors.
    """
    found = expect(samples, [])
    kept = {key: fate for key, fate in first.fates.items() if not lasting and fate.error_type not in {None, *PASSING}}
    found.fates |= {key: Fate(fate.error_type, 0, 0) for key, fate in kept.items()}
    for sample in samples:
        summaries, coverage = payloads_of(sample)
        keys = [(payload["stage"], f"{key_of(payload):016x}") for payload in (*summaries, coverage)]
        lost = [key for key in keys[:-1] if key in kept]
        if lost:
            found.fates.pop(keys[-1], None)
        for stage, key in lost or [key for key in keys if key in kept]:
            found.failures[(sample["sample_id"], stage, str(kept[stage, key].error_type))] += 1
    return found


@pytest.mark.slow
def test_later_runs_retry_temporary_errors_then_all_errors_if_requested(run_here: RunHere, case: Case) -> None:
    first = expect(case.samples, RULES)
    case.server.configure(rules=[])

    case.server.reset()
    ended = run_here(case.server, case.path, case.output, settings=SETTINGS)
    second = _again(first, case.samples, lasting=False)
    failed = {sample_id for sample_id, _, _ in second.failures}
    assert ended.code == 4, ended.err
    assert 0 < len(failed) < len({sample_id for sample_id, _, _ in first.failures})
    assert _failed(case.output) == second.failures
    _check_samples(case, failed)
    _check_usage(case, second, first)
    tokens = sum(arrival.prompt_tokens for arrival in case.server.arrivals())
    assert sum(row["prompt_tokens"] for row in read_table(case.output, "usage")) == tokens
    assert not any(row["tokens_estimated"] for row in read_table(case.output, "usage"))

    case.server.reset()
    ended = run_here(case.server, case.path, case.output, "--retry-failed", settings=SETTINGS)
    assert ended.code == 0, ended.err
    assert _failed(case.output) == Counter()
    _check_samples(case, set())
    _check_summary(case, set())
    _check_usage(case, _again(first, case.samples, lasting=True), second)
    assert len(read_manifest(case.output)["starts"]) == 3

    case.server.reset()
    before = snapshot(case.output)
    ended = run_here(case.server, case.path, case.output, settings=SETTINGS)
    assert (ended.code, case.server.count()) == (0, 0), ended.err
    assert snapshot(case.output) == before


def test_a_run_with_only_failures_reports_the_reason_each_time(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    server.configure(rules=[{"when": {"after": 2}, "do": {"status": 413}}, {"do": {"status": 400}}])
    path, output = write_samples(tmp_path / "samples.jsonl", make_samples(4)), tmp_path / "out"
    settings = {"summarise_contexts": "false", "llm.max_concurrency": 1}
    for _ in range(2):
        ended = run_here(server, path, output, settings=settings)
        assert ended.code == 4, ended.err
        assert ended.err.splitlines()[-1] == (
            "untold: every request of evaluate_coverage failed (4 of 4). "
            "The most frequent error (2 times): http_413: HTTP 413"
        )
    assert server.count() == 4


@pytest.mark.slow
def test_many_requests_that_always_fail_are_not_an_outage(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    server.configure(rules=[{"when": {"share": 0.3}, "do": {"status": 500}}])
    path, output = write_samples(tmp_path / "samples.jsonl", make_samples(100)), tmp_path / "out"
    settings = {"summarise_contexts": "false", "llm.outage_minutes": 0.2}
    ended = run_here(server, path, output, settings=settings)
    assert ended.code == 4, ended.err
    assert {row["error_type"] for row in read_table(output, "failures")} == {"http_500"}
    assert {row["status"] for row in read_table(output, "scores")} == {"ok", "failed"}
    assert json.loads((output / "manifest.json").read_text(encoding="utf-8"))["status"] == "finished"
