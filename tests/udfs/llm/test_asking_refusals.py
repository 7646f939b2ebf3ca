"""Test errors of a run, a bill and a clock: the errors that stop a run, the errors of a single row, and the costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.model_server import ModelServer
from tests.udfs.llm.askers import SETTINGS, Run, ask, requests, rows_in
from untold.udfs.llm.calls import CallSettings, Progress
from untold.udfs.llm.limiter import Budget, Lease, LimiterReport, Limits
from untold.udfs.llm.usage import Prices, estimate_tokens

NO_CREDIT = {"status": 402, "error": {"message": "Insufficient credits", "code": 402}}
NO_QUOTA = {"status": 429, "error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
FLAGGED = {"status": 403, "error": {"message": "Your chosen model requires moderation: flagged", "code": 403}}
ECHO = {"status": 400, "error": {"message": "cannot parse: 'which model was not found by him?'"}}


def ask_until(
    server: ModelServer,
    folder: Path,
    count: int,
    done: Callable[[Progress], bool],
    settings: CallSettings = SETTINGS,
    **kinds: Any,
) -> Progress:
    """Send this number of requests until the condition is true or all rows are written, and stop."""

    async def run() -> Progress:
        one = Run(server, folder, settings, **kinds)
        one.asker.start()
        one.asker.feed("unit", requests(count))
        await one.until(lambda progress: done(progress) or bool(progress.finished_units))
        return await one.asker.stop(1.0)

    return asyncio.run(run())


def is_refused(progress: Progress) -> bool:
    return progress.refused is not None


@pytest.mark.parametrize("deed", [NO_CREDIT, NO_QUOTA], ids=["402", "quota"])
def test_an_exhausted_credit_ends_the_run_and_fails_no_row(server: ModelServer, tmp_path: Path, deed: Any) -> None:
    server.configure(rules=[{"when": {"after": 50}, "do": deed}])
    progress = ask_until(server, tmp_path, 400, is_refused)
    assert "add credit" in (progress.refused or "")
    assert {row["error_type"] for row in rows_in(tmp_path).values()} == {None}
    assert len(rows_in(tmp_path)) == progress.usage.done == 50
    assert server.count() <= 50 + SETTINGS.limits.max_concurrency


@pytest.mark.parametrize("deed", [FLAGGED, ECHO, {"status": 404}], ids=["403", "echo", "404"])
@pytest.mark.parametrize("number", [0, 150])
def test_only_the_row_that_the_endpoint_refuses_fails(
    server: ModelServer, tmp_path: Path, deed: Any, number: int
) -> None:
    server.configure(rules=[{"when": {"contains": f"number {number}."}, "do": deed}], latency=0.02)
    progress = ask_until(server, tmp_path, 200, is_refused)
    rows = rows_in(tmp_path)
    assert progress.refused is None
    assert rows.pop(f"r{number:04d}")["error_type"] == f"http_{deed['status']}"
    assert {row["error_type"] for row in rows.values()} == {None}
    assert server.count() == len(rows) + 1 == 200


def test_the_last_row_may_be_refused_too(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": FLAGGED}])
    progress = ask_until(server, tmp_path, 3, is_refused, answered_before=True)
    assert progress.refused is None
    assert {row["error_type"] for row in rows_in(tmp_path).values()} == {"http_403"}


@pytest.mark.parametrize("status", [302, 403, 404])
def test_a_run_without_any_success_is_refused(server: ModelServer, tmp_path: Path, status: int) -> None:
    server.configure(rules=[{"do": {"status": status}}])
    progress = ask_until(server, tmp_path, 100, is_refused)
    assert (progress.refused or "").startswith(f"HTTP {status}")
    assert server.count() <= SETTINGS.limits.max_concurrency
    assert rows_in(tmp_path) == {}


def test_twenty_refusals_in_a_row_end_a_run_that_had_succeeded(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"when": {"after": 50}, "do": FLAGGED}])
    progress = ask_until(server, tmp_path, 400, is_refused)
    assert (progress.refused or "").startswith("HTTP 403")
    assert len(rows_in(tmp_path)) == 50
    assert 70 <= server.count() <= 70 + SETTINGS.limits.max_concurrency


def test_a_wrong_key_always_refuses(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"when": {"contains": "number 9."}, "do": {"status": 401}}])
    progress = ask_until(server, tmp_path, 100, is_refused)
    assert (progress.refused or "").startswith("HTTP 401")


def test_a_429_without_end_is_an_outage(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": {"status": 429}}])
    settings = replace(SETTINGS, outage=1.5)
    progress = ask_until(server, tmp_path, 100, lambda progress: progress.refusal == "outage", settings)
    assert progress.refusal == "outage"
    assert (progress.usage.failed, rows_in(tmp_path)) == (0, {})


@pytest.mark.parametrize("status", [408, 409, 425])
def test_a_passing_client_error_is_retried_within_the_run(server: ModelServer, tmp_path: Path, status: int) -> None:
    rules = [{"when": {"contains": "number 1."}, "do": {"status": status}}]
    rules += [{"when": {"contains": "number 2.", "attempt_below": 2}, "do": {"status": status}}]
    server.configure(rules=rules)
    ask(server, tmp_path, requests(3), replace(SETTINGS, max_attempts=2))
    found = {name: (row["error_type"], row["attempts"]) for name, row in rows_in(tmp_path).items()}
    assert found == {"r0000": (None, 1), "r0001": (f"http_{status}", 2), "r0002": (None, 2)}


def test_an_unknown_finish_reason_is_retried(server: ModelServer, tmp_path: Path) -> None:
    body = '{"choices": [{"message": {"content": "half"}, "finish_reason": "error"}]}'
    server.configure(rules=[{"when": {"attempt_below": 2}, "do": {"status": 200, "body": body}}])
    ask(server, tmp_path, requests(3))
    assert {(row["error_type"], row["attempts"]) for row in rows_in(tmp_path).values()} == {(None, 2)}


def test_an_error_with_status_200_is_limited_by_its_code(server: ModelServer, tmp_path: Path) -> None:
    limited = {"status": 200, "body": '{"error": {"code": 429}}', "headers": {"Retry-After": "0.1"}}
    server.configure(rules=[{"when": {"attempt_below": 2}, "do": limited}])
    progress = ask(server, tmp_path, requests(3), replace(SETTINGS, max_attempts=1))
    assert (progress.usage.rate_limited, progress.usage.failed, progress.usage.done) == (3, 0, 3)


def test_a_long_wait_is_shown(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": {"status": 429, "headers": {"Retry-After": "1800"}}}])
    settings = replace(SETTINGS, deadline=3600.0)
    progress = ask_until(server, tmp_path, 3, lambda progress: progress.paused > 0, settings)
    assert 1700 < progress.paused <= 1800


def test_calls_that_time_out_are_booked_as_estimated(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": "hang"}])
    settings = replace(SETTINGS, timeout=0.2, max_attempts=2, prices=Prices(prompt=1e6))
    progress = ask_until(server, tmp_path, 4, lambda progress: False, settings)
    rows = rows_in(tmp_path).values()
    assert {(row["error_type"], row["tokens_estimated"]) for row in rows} == {("timeout", True)}
    assert all(row["prompt_tokens"] >= 2 * estimate_tokens(100) and row["completion_tokens"] > 0 for row in rows)
    assert progress.usage.prompt_tokens == sum(row["prompt_tokens"] for row in rows)


def test_calls_that_time_out_use_up_the_budget(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": "hang"}])
    limits = Limits(max_concurrency=4)
    settings = replace(SETTINGS, timeout=0.2, max_attempts=9, prices=Prices(prompt=1e6), budget=Budget(max_cost=2000.0))
    progress = ask_until(
        server, tmp_path, 8, lambda progress: progress.refusal == "budget", replace(settings, limits=limits)
    )
    assert progress.refusal == "budget"
    assert progress.usage.prompt_tokens <= 2000
    assert progress.usage.calls == server.count() < 8 * 9


def test_one_wrong_usage_does_not_stop_a_token_limit(server: ModelServer, tmp_path: Path) -> None:
    usage = f'{{"prompt_tokens": 5, "completion_tokens": {2**32 - 1}}}'
    body = f'{{"choices": [{{"message": {{"content": "a"}}, "finish_reason": "stop"}}], "usage": {usage}}}'
    server.configure(rules=[{"when": {"contains": "number 3."}, "do": {"status": 200, "body": body}}])
    ask(server, tmp_path, requests(40), replace(SETTINGS, limits=Limits(None, 10**6, 8)))
    row = rows_in(tmp_path)["r0003"]
    assert (row["completion_tokens"], row["tokens_estimated"]) == (len(body), True)


class SteppedRun(Run):
    """After `calls` calls, the clock of the limiter jumps by `step` seconds."""

    step, calls = 2.0, 20

    async def _lease(self, report: LimiterReport) -> Lease:
        await asyncio.sleep(0.002)
        lease = self.limiter.lease(report)
        by = self.step if report.spent.calls >= self.calls else 0.0
        return replace(lease, now=lease.now - by, times=tuple(at - by for at in lease.times))


@pytest.mark.parametrize("step", [2.0, -2.0, 3600.0, -3600.0])
def test_diverging_clocks_do_not_starve_a_client(server: ModelServer, tmp_path: Path, step: float) -> None:
    async def run() -> Progress:
        one = SteppedRun(server, tmp_path, replace(SETTINGS, limits=Limits(3000, None, 8)))
        one.step = step
        return await one.ask({"unit": requests(60)}, 15.0)

    assert asyncio.run(run()).usage.done == 60
