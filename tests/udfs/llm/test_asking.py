from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.fakes.model_server import ModelServer
from tests.udfs.llm.askers import SETTINGS, STAGE, Run, all_rows_in, ask, requests, rows_in
from untold.jobs.tables import COMPLETIONS
from untold.udfs.llm.calls import Progress
from untold.udfs.llm.limiter import Budget, Limits
from untold.udfs.stages.definitions import Refused, Unparsable


def reject(text: str, _: Any) -> None:
    raise Unparsable("a heading is missing")


def test_all_requests_are_answered_once(server: ModelServer, tmp_path: Path) -> None:
    progress = ask(server, tmp_path, requests(200))
    rows = rows_in(tmp_path)
    assert {key: row["text"] for key, row in rows.items()} == {f"r{n:04d}": f"Text number {n}." for n in range(200)}
    assert server.count() == progress.usage.calls == progress.usage.done == 200
    assert progress.usage.failed == 0


def test_rows_have_the_usage_of_all_paid_calls(server: ModelServer, tmp_path: Path) -> None:
    progress = ask(server, tmp_path, requests(5))
    arrivals = server.arrivals()
    rows = rows_in(tmp_path).values()
    assert sum(row["prompt_tokens"] for row in rows) == sum(one.prompt_tokens for one in arrivals)
    assert sum(row["completion_tokens"] for row in rows) == sum(one.completion_tokens for one in arrivals)
    assert progress.usage.prompt_tokens == sum(one.prompt_tokens for one in arrivals)
    for row in rows:
        assert (row["finish_reason"], row["model"], row["attempts"], row["run_id"]) == ("stop", "fake-model", 1, "run")
        assert (row["error_type"], row["error"], row["tokens_estimated"]) == (None, None, False)
        assert row["seconds"] >= 0
    assert progress.models == ("fake-model",)


def test_segments_have_the_schema_of_completions(server: ModelServer, tmp_path: Path) -> None:
    ask(server, tmp_path, requests(3))
    assert all(pq.read_schema(path).equals(COMPLETIONS) for path in tmp_path.glob("*.parquet"))


def test_units_are_finished_one_by_one(server: ModelServer, tmp_path: Path) -> None:
    async def run() -> Progress:
        return await Run(server, tmp_path).ask({"one": requests(5), "two": requests(9)[5:], "none": []})

    assert sorted(asyncio.run(run()).finished_units) == ["none", "one", "two"]


@pytest.mark.parametrize(
    ("deed", "error_type"), [("empty", "empty"), ("length", "truncated"), ("cut_json", "bad_body")]
)
def test_an_unparsable_completion_is_retried_up_to_max_attempts(
    server: ModelServer, tmp_path: Path, deed: str, error_type: str
) -> None:
    server.configure(rules=[{"do": deed}])
    ask(server, tmp_path, requests(3), replace(SETTINGS, max_attempts=2))
    assert {(row["error_type"], row["attempts"]) for row in rows_in(tmp_path).values()} == {(error_type, 2)}
    assert server.count() == 6


def test_a_cut_off_completion_without_usage_gets_twice_the_sent_limit(server: ModelServer, tmp_path: Path) -> None:
    # The reasoning needs more tokens than the limit of the stage, and fewer than twice the limit
    server.configure(rules=[{"do": {"reasoning": 5000, "no_usage": True}}])
    ask(server, tmp_path, requests(3), stage=replace(STAGE, max_tokens=4096))
    assert {(row["error_type"], row["attempts"]) for row in rows_in(tmp_path).values()} == {(None, 2)}
    assert server.count() == 6


def test_an_unparsable_completion_is_kept_with_its_text(server: ModelServer, tmp_path: Path) -> None:
    progress = ask(server, tmp_path, requests(3), replace(SETTINGS, max_attempts=3), parse=reject)
    for row in rows_in(tmp_path).values():
        assert (row["error_type"], row["error"], row["attempts"]) == ("unparsable", "a heading is missing", 3)
        assert row["text"].startswith("Text number")
    assert (progress.usage.failed, server.count()) == (3, 9)


def test_tokens_of_all_attempts_count(server: ModelServer, tmp_path: Path) -> None:
    ask(server, tmp_path, requests(2), replace(SETTINGS, max_attempts=3), parse=reject)
    rows = all_rows_in(tmp_path)
    assert Counter(row["error_type"] for row in rows) == {"asked_again": 4, "unparsable": 2}
    assert sum(row["prompt_tokens"] for row in rows) == sum(one.prompt_tokens for one in server.arrivals())
    assert sum(row["completion_tokens"] for row in rows) == sum(one.completion_tokens for one in server.arrivals())


def test_a_second_attempt_may_succeed(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"when": {"attempt_below": 3}, "do": "empty"}])
    ask(server, tmp_path, requests(3))
    assert {(row["error_type"], row["attempts"]) for row in rows_in(tmp_path).values()} == {(None, 3)}


def test_a_parser_that_breaks_makes_a_completion_unparsable(server: ModelServer, tmp_path: Path) -> None:
    def broken(text: str, _: Any) -> None:
        raise ZeroDivisionError(text)

    ask(server, tmp_path, requests(1), replace(SETTINGS, max_attempts=1), parse=broken)
    (row,) = rows_in(tmp_path).values()
    assert (row["error_type"], row["error"]) == ("unparsable", "the parser failed (ZeroDivisionError)")


def test_a_refusal_is_retried_and_then_lasting(server: ModelServer, tmp_path: Path) -> None:
    def refuse(text: str, _: Any) -> None:
        raise Refused("the model declined the task")

    ask(server, tmp_path, requests(1), replace(SETTINGS, max_attempts=2), parse=refuse)
    (row,) = rows_in(tmp_path).values()
    assert (row["error_type"], row["error"], row["attempts"]) == ("refused", "the model declined the task", 2)


@pytest.mark.parametrize("deed", ["filter", {"status": 400}, {"status": 422}])
def test_a_lasting_error_is_not_retried(server: ModelServer, tmp_path: Path, deed: Any) -> None:
    server.configure(rules=[{"when": {"contains": "number 1."}, "do": deed}])
    ask(server, tmp_path, requests(3))
    assert server.count() == 3
    assert rows_in(tmp_path)["r0001"]["error_type"] in ("filtered", "http_400", "http_422")


@pytest.mark.parametrize(("deed", "error_type"), [({"status": 500}, "http_500"), ("refuse", "connection")])
def test_errors_are_retried_after_a_wait(server: ModelServer, tmp_path: Path, deed: Any, error_type: str) -> None:
    server.configure(rules=[{"when": {"contains": "number 1."}, "do": deed}])
    one_at_a_time = replace(SETTINGS, max_attempts=2, limits=Limits(max_concurrency=1))
    ask(server, tmp_path, requests(20), one_at_a_time)
    rows = rows_in(tmp_path)
    assert (rows["r0001"]["error_type"], rows["r0001"]["attempts"]) == (error_type, 2)
    assert {row["error_type"] for name, row in rows.items() if name != "r0001"} == {None}
    # The other requests are sent during the wait
    first, again = (at for at, arrival in enumerate(server.arrivals()) if arrival.status not in (200,))
    assert again - first > 1


def test_being_limited_uses_no_attempts(server: ModelServer, tmp_path: Path) -> None:
    headers = {"Retry-After": "0.1"}
    server.configure(rules=[{"when": {"attempt_below": 4}, "do": {"status": 429, "headers": headers}}])
    progress = ask(server, tmp_path, requests(4), replace(SETTINGS, max_attempts=1))
    assert {(row["error_type"], row["attempts"]) for row in rows_in(tmp_path).values()} == {(None, 4)}
    assert (progress.usage.calls, progress.usage.rate_limited) == (16, 12)
    assert server.count() == 16


def test_the_deadline_ends_waits(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": {"status": 429, "headers": {"Retry-After": "0.8"}}}])
    ask(server, tmp_path, requests(2), replace(SETTINGS, deadline=2.0))
    assert {row["error_type"] for row in rows_in(tmp_path).values()} == {"http_429"}
    assert server.count() <= 2 * 3


def test_a_wait_beyond_the_deadline_is_not_begun(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": {"status": 503, "headers": {"Retry-After": "600"}}}])
    # The wait would be ten minutes, and `ask` would raise an error
    ask(server, tmp_path, requests(1))
    assert server.count() == 1


def test_the_deadline_ends_calls(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"do": "hang"}])
    # If there was no deadline, the call would take ten minutes, and `ask` would raise an error
    ask(server, tmp_path, requests(1), replace(SETTINGS, timeout=600.0, deadline=0.5))
    (row,) = rows_in(tmp_path).values()
    assert row["error_type"] == "timeout"


def test_a_hanging_request_does_not_hold_up_the_rest(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"when": {"contains": "number 3."}, "do": "hang"}])

    async def run() -> Progress:
        one = Run(server, tmp_path, replace(SETTINGS, timeout=600.0, max_attempts=1))
        one.asker.start()
        one.asker.feed("unit", requests(100))
        waiting = await one.until(lambda progress: progress.usage.done == 99)
        await one.asker.stop(0.1)
        return waiting

    assert asyncio.run(run()).in_flight == 1
    rows = rows_in(tmp_path)
    assert len(rows) == 99
    assert "r0003" not in rows
    assert {row["error_type"] for row in rows.values()} == {None}


def test_no_more_calls_are_in_flight_than_allowed(server: ModelServer, tmp_path: Path) -> None:
    server.configure(latency=0.02)
    ask(server, tmp_path, requests(60), replace(SETTINGS, limits=Limits(max_concurrency=3)))
    assert server.in_flight_peak() == 3


def test_a_rate_is_kept(server: ModelServer, tmp_path: Path) -> None:
    ask(server, tmp_path, requests(60), replace(SETTINGS, limits=Limits(requests_per_minute=1800, max_concurrency=8)))
    times = [arrival.at for arrival in server.arrivals()]
    assert 1.8 < times[-1] - times[0] < 3.5
    assert all(later - sooner > 1.0 for sooner, later in zip(times, times[33:], strict=False))


def test_calls_end_with_the_budget(server: ModelServer, tmp_path: Path) -> None:
    async def run() -> Progress:
        one = Run(server, tmp_path, replace(SETTINGS, budget=Budget(max_calls=7)))
        one.asker.start()
        one.asker.feed("unit", requests(30))
        await one.until(lambda progress: progress.refusal == "budget", 10)
        return await one.asker.stop(1.0)

    progress = asyncio.run(run())
    assert server.count() == progress.usage.calls == len(rows_in(tmp_path)) == 7


@pytest.mark.parametrize("deed", [{"status": 401}, {"status": 404}, {"status": 302}])
def test_a_refused_run_stops_asking(server: ModelServer, tmp_path: Path, deed: Any) -> None:
    server.configure(rules=[{"do": deed}])

    async def run() -> Progress:
        one = Run(server, tmp_path)
        one.asker.start()
        one.asker.feed("unit", requests(100))
        await one.until(lambda progress: progress.refused is not None)
        await asyncio.sleep(0.3)
        return await one.asker.stop(1.0)

    progress = asyncio.run(run())
    assert (progress.refused or "").startswith("HTTP ")
    assert server.count() <= 8
    assert rows_in(tmp_path) == {}


def test_an_endpoint_that_was_never_there_is_an_outage_without_failures(server: ModelServer, tmp_path: Path) -> None:
    server.configure(down=True)

    async def run() -> Progress:
        one = Run(server, tmp_path, replace(SETTINGS, outage=1.5))
        one.asker.start()
        one.asker.feed("unit", requests(20))
        await one.until(lambda progress: progress.refusal == "outage", 10)
        return await one.asker.stop(1.0)

    assert asyncio.run(run()).usage.failed == 0
    assert rows_in(tmp_path) == {}


def test_a_short_outage_costs_no_attempts(server: ModelServer, tmp_path: Path) -> None:
    server.configure(down=True)

    async def run() -> Progress:
        one = Run(server, tmp_path, replace(SETTINGS, outage=4.0, max_attempts=1))
        one.asker.start()
        one.asker.feed("unit", requests(20))
        await one.until(lambda progress: progress.usage.calls > 0, 10)
        await asyncio.sleep(0.5)
        server.configure(down=False)
        await one.until(lambda progress: bool(progress.finished_units), 15)
        return await one.asker.stop(1.0)

    assert asyncio.run(run()).usage.failed == 0
    assert len(rows_in(tmp_path)) == 20


def test_stop_writes_completions_and_waits_for_requests_in_flight(server: ModelServer, tmp_path: Path) -> None:
    server.configure(latency=0.2)

    async def run() -> Progress:
        one = Run(server, tmp_path, replace(SETTINGS, flush=1000.0))
        one.asker.start()
        one.asker.feed("unit", requests(100))
        await one.until(lambda progress: progress.usage.done >= 8)
        return await one.asker.stop(2.0)

    progress = asyncio.run(run())
    assert progress.in_flight == 0
    assert len(rows_in(tmp_path)) == progress.usage.done == server.count() < 100


def test_stop_does_not_wait_longer_than_its_grace(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"when": {"contains": "number 0."}, "do": "hang"}])

    async def run() -> None:
        one = Run(server, tmp_path, replace(SETTINGS, timeout=600.0))
        one.asker.start()
        one.asker.feed("unit", requests(5))
        await one.until(lambda progress: progress.usage.done == 4)
        await one.asker.stop(0.3)

    asyncio.run(run())
    # The run did not wait for the response or for the timeout of the other request
    assert (server.count(), len(rows_in(tmp_path))) == (5, 4)


def test_a_stop_that_waits_is_hurried(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"when": {"contains": "number 0."}, "do": "hang"}])

    async def run() -> None:
        one = Run(server, tmp_path, replace(SETTINGS, timeout=600.0))
        one.asker.start()
        one.asker.feed("unit", requests(5))
        await one.until(lambda progress: progress.usage.done == 4)
        stopping = asyncio.create_task(one.asker.stop(600.0))
        await asyncio.sleep(0.1)
        one.asker.shorten_deadline(0.1)
        async with asyncio.timeout(30.0):
            await stopping

    asyncio.run(run())
    assert (server.count(), len(rows_in(tmp_path))) == (5, 4)


def test_a_template_that_cannot_be_rendered_only_fails_its_request(server: ModelServer, tmp_path: Path) -> None:
    stage = replace(STAGE, template="{{ 10 // text | length }}")
    rows = [("r1", {"query": "q", "text": ""}), ("r2", {"query": "q", "text": "x"})]
    ask(server, tmp_path, rows, stage=stage)
    written = rows_in(tmp_path)
    assert (written["r1"]["error_type"], written["r1"]["attempts"]) == ("template", 0)
    assert written["r2"]["error_type"] is None
    assert server.count() == 1


HOSTILE = {
    "surrogates in the text": '{"choices": [{"message": {"content": "a\\ud800"}, "finish_reason": "stop"}]}',
    "a model of surrogates": '{"model": "\\ud800", "choices": [{"message": {"content": "a"}}]}',
    "a null character": '{"choices": [{"message": {"content": "a\\u0000b"}}]}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_answers_are_written(server: ModelServer, tmp_path: Path, body: str) -> None:
    server.configure(rules=[{"do": {"status": 200, "body": body}}])
    ask(server, tmp_path, requests(1))
    (row,) = rows_in(tmp_path).values()
    assert row["text"].startswith("a")


def test_a_hostile_finish_reason_is_written(server: ModelServer, tmp_path: Path) -> None:
    body = '{"choices": [{"message": {"content": "a"}, "finish_reason": "\\ud800"}]}'
    server.configure(rules=[{"do": {"status": 200, "body": body}}])
    ask(server, tmp_path, requests(1))
    assert len(rows_in(tmp_path)) == 1


def test_hostile_token_counts_are_written(server: ModelServer, tmp_path: Path) -> None:
    usage = f'{{"prompt_tokens": {2**62 - 1}, "completion_tokens": 1}}'
    body = f'{{"choices": [{{"message": {{"content": ""}}}}], "usage": {usage}}}'
    server.configure(rules=[{"do": {"status": 200, "body": body}}])
    ask(server, tmp_path, requests(1))
    assert len(rows_in(tmp_path)) == 1
