"""Test a request loop with several endpoints: shares, groups and errors.

No row is lost, and no request is paid twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.model_server import ModelServer
from tests.udfs.llm.askers import SETTINGS, InProcess, RunOfSeveral, requests, rows_in
from untold.udfs.llm import limiter
from untold.udfs.llm.calls import Progress
from untold.udfs.llm.limiter import Budget, Lease, LimiterReport, Limits
from untold.udfs.llm.usage import Prices
from untold.udfs.stages.definitions import Unparsable

Servers = Sequence[ModelServer]
QUICK = replace(SETTINGS, limits=Limits(max_concurrency=8))


@pytest.fixture(scope="module")
def started() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield [stack.enter_context(ModelServer()) for _ in range(3)]


@pytest.fixture
def servers(started: Servers) -> Servers:
    for server in started:
        server.configure(rules=[], latency=0.0, limits={}, api_key=None, down=False, prefix_cache=False)
        server.reset()
    return started


def grouped(groups: int, size: int) -> list[tuple[str, dict[str, str]]]:
    """Return requests in groups. The prompts of a group have the same beginning."""
    return [
        (f"r{group:03d}-{number:03d}", {"query": f"Who {group}?", "text": f"T {number}."})
        for group in range(groups)
        for number in range(size)
    ]


def ask_all(run: RunOfSeveral, rows: Sequence[Any] | None = None, seconds: float = 60.0) -> Progress:
    return asyncio.run(run.ask({"unit": rows or requests(300)}, seconds))


def ask_until(run: RunOfSeveral, done: Callable[[Progress], bool], count: int = 200) -> Progress:
    async def ask() -> Progress:
        run.asker.start()
        run.asker.feed("unit", requests(count))
        await run.until(lambda progress: done(progress) or bool(progress.finished_units), 60.0)
        return await run.asker.stop(1.0)

    return asyncio.run(ask())


def check_all_answered(folder: Path, count: int) -> None:
    rows = rows_in(folder)
    assert (len(rows), {row["error_type"] for row in rows.values()}) == (count, {None})


def counts(servers: Servers) -> list[int]:
    return [server.count() for server in servers]


def test_requests_are_shared_by_weight(servers: Servers, tmp_path: Path) -> None:
    # If the calls took no time, the scheduler of a busy machine would determine the shares
    for server in servers:
        server.configure(latency=0.15)
    run = RunOfSeveral(servers, tmp_path, [{"weight": 1.0}, {"weight": 2.0}, {"weight": 3.0}], QUICK)
    ask_all(run, grouped(120, 5))
    check_all_answered(tmp_path, 600)
    assert counts(servers) == [pytest.approx(share, abs=12) for share in (100, 200, 300)]


def test_shares_are_kept_if_one_limiter_is_slow(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[LimiterReport]()
    lend_at_once = InProcess.lend

    async def lend(lender: InProcess, reports: Mapping[int, LimiterReport]) -> dict[int, Lease]:
        if 1 in reports and not waited:
            waited.append(reports[1])
            await asyncio.sleep(0.5)
        return await lend_at_once(lender, reports)

    monkeypatch.setattr(InProcess, "lend", lend)
    run = RunOfSeveral(servers, tmp_path, settings=QUICK)
    ask_all(run)
    assert len(waited) == 1
    assert counts(servers) == [pytest.approx(100, abs=8)] * 3


def test_reports_during_another_report_are_sent_together(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, under_way = list[set[int]](), list[int]()
    lend_at_once = InProcess.lend

    async def lend(lender: InProcess, reports: Mapping[int, LimiterReport]) -> dict[int, Lease]:
        sent.append(set(reports))
        under_way.append(1)
        await asyncio.sleep(0.01)
        assert len(under_way) == 1
        under_way.clear()
        return await lend_at_once(lender, reports)

    monkeypatch.setattr(InProcess, "lend", lend)
    ask_all(RunOfSeveral(servers, tmp_path, settings=QUICK))
    assert sent[0] == {0, 1, 2}
    check_all_answered(tmp_path, 300)


def test_a_list_of_one_endpoint_has_the_usage_of_the_endpoint(servers: Servers, tmp_path: Path) -> None:
    run = RunOfSeveral(servers[:1], tmp_path, [{"prices": Prices(1e6, 1e6)}], QUICK)
    usage = ask_all(run, requests(20)).usage
    (own,) = usage.endpoints.values()
    assert (own.calls, own.done) == (usage.calls, usage.done) == (20, 20)
    assert usage.cost == own.cost == own.prompt_tokens + own.completion_tokens > 0


def test_prompts_with_the_same_beginning_are_sent_to_one_endpoint(servers: Servers, tmp_path: Path) -> None:
    ask_all(RunOfSeveral(servers, tmp_path, settings=QUICK), grouped(60, 10))
    places = defaultdict[str, set[str]](set)
    for key, row in rows_in(tmp_path).items():
        places[key.partition("-")[0]].add(row["endpoint"])
    assert sum(len(one) > 1 for one in places.values()) <= 4
    assert set().union(*places.values()) == {server.base_url for server in servers}


def test_rows_and_usage_name_the_endpoint(servers: Servers, tmp_path: Path) -> None:
    own = [{"prices": Prices(1.0, 1.0)}, {"prices": Prices(2.0, 2.0)}, {"prices": Prices()}]
    progress = ask_all(RunOfSeveral(servers, tmp_path, own))
    written = Counter(row["endpoint"] for row in rows_in(tmp_path).values())
    used = progress.usage.endpoints
    assert written == {server.base_url: server.count() for server in servers}
    assert {name: one.calls for name, one in used.items()} == written
    first, second, third = (used[server.base_url] for server in servers)
    assert (first.cost, second.cost) == (first.tokens / 1e6, second.tokens * 2 / 1e6)
    assert third.cost is None
    assert progress.usage.cost == pytest.approx((first.cost or 0) + (second.cost or 0))


def test_each_endpoint_gets_its_own_name_of_the_model(servers: Servers, tmp_path: Path) -> None:
    own = [{"model": "ours"}, {"model": "theirs", "limits": Limits(tokens_per_minute=10**7, max_concurrency=8)}]
    for server in servers[:2]:
        # Without a latency, the first endpoint could complete all requests before the second gets a lease
        server.configure(latency=0.2)
    ask_all(RunOfSeveral(servers[:2], tmp_path, own))
    models = [{arrival.model for arrival in server.arrivals()} for server in servers[:2]]
    assert models == [{"ours"}, {"theirs"}]


def test_a_dead_endpoint_is_skipped_and_used_again_later(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter, "PROBE_SECONDS", 0.5)
    first = servers[0]
    for server in servers:
        server.configure(latency=0.02)

    async def ask() -> tuple[int, int]:
        run = RunOfSeveral(servers, tmp_path, settings=replace(QUICK, outage=1.0))
        run.asker.start()
        run.asker.feed("unit", requests(3000))
        await run.until(lambda progress: progress.usage.done >= 300)
        first.configure(down=True)
        # This takes longer than the permitted outage of all endpoints
        await run.until(lambda progress: progress.usage.done >= 1500)
        first.configure(down=False)
        before = first.count()
        progress = await run.until(lambda progress: bool(progress.finished_units))
        assert progress.refusal is None
        await run.asker.stop(1.0)
        return before, first.count()

    before, after = asyncio.run(ask())
    check_all_answered(tmp_path, 3000)
    assert after > before + 200
    # The requests in flight at the stop can also have a completion
    assert sum(counts(servers)) <= 3000 + 2 * QUICK.limits.max_concurrency


def test_a_limited_endpoint_gets_the_calls_within_its_limit(servers: Servers, tmp_path: Path) -> None:
    own = [{"limits": Limits(requests_per_minute=120, max_concurrency=8)}]
    ask_all(RunOfSeveral(servers[:2], tmp_path, own), requests(1000))
    check_all_answered(tmp_path, 1000)
    limited, free = counts(servers[:2])
    assert limited < 0.2 * free
    assert limited + free == 1000


def test_a_slow_endpoint_does_not_delay_the_others(servers: Servers, tmp_path: Path) -> None:
    servers[0].configure(latency=0.5)
    ask_all(RunOfSeveral(servers, tmp_path, settings=QUICK), grouped(200, 5))
    check_all_answered(tmp_path, 1000)
    slow, *others = counts(servers)
    assert 0 < slow < min(others)
    assert sum(counts(servers)) == 1000


def test_the_requests_of_a_poisoned_model_are_sent_to_another(servers: Servers, tmp_path: Path) -> None:
    def parse(text: str, _: Any) -> None:
        if not text.startswith("Text number"):
            raise Unparsable("a heading is missing")

    servers[0].configure(rules=[{"do": {"text": "purple monkey dishwasher"}}])
    progress = ask_all(RunOfSeveral(servers, tmp_path, settings=QUICK, parse=parse))
    check_all_answered(tmp_path, 300)
    poisoned = servers[0].base_url
    assert poisoned not in {row["endpoint"] for row in rows_in(tmp_path).values()}
    assert progress.usage.endpoints[poisoned].retries_after_parse == servers[0].count() == sum(counts(servers)) - 300


def test_an_outage_of_all_ends_the_run(servers: Servers, tmp_path: Path) -> None:
    for server in servers:
        server.configure(down=True)
    run = RunOfSeveral(servers, tmp_path, settings=replace(QUICK, outage=1.0))
    progress = ask_until(run, lambda progress: progress.refusal is not None)
    assert (progress.refusal, progress.usage.failed, rows_in(tmp_path)) == ("outage", 0, {})


@pytest.mark.parametrize("status", [401, 402, 404])
def test_an_endpoint_that_refuses_is_skipped(servers: Servers, tmp_path: Path, status: int) -> None:
    servers[0].configure(rules=[{"when": {"after": 20}, "do": {"status": status}}])
    progress = ask_all(RunOfSeveral(servers, tmp_path, settings=QUICK))
    check_all_answered(tmp_path, 300)
    assert progress.refused is None
    assert [line.split("; ")[0] for line in progress.left_out] == [f"{servers[0].base_url}: HTTP {status}"]
    assert sum(counts(servers)) - 300 <= 20 + QUICK.limits.max_concurrency


def test_a_run_is_refused_once_all_refuse(servers: Servers, tmp_path: Path) -> None:
    for server, status in zip(servers, (401, 402, 404), strict=True):
        server.configure(rules=[{"when": {"after": 10}, "do": {"status": status}}])
    progress = ask_until(RunOfSeveral(servers, tmp_path, settings=QUICK), lambda progress: progress.refused is not None)
    assert len(rows_in(tmp_path)) == progress.usage.done == 30
    assert progress.usage.failed == 0
    assert [f"HTTP {status}" in (progress.refused or "") for status in (401, 402, 404)] == [True] * 3


def test_a_row_that_one_endpoint_refuses_is_sent_to_another(servers: Servers, tmp_path: Path) -> None:
    flagged = {"when": {"contains": "number 7."}, "do": {"status": 403}}
    for server in servers[:2]:
        server.configure(rules=[flagged])
    ask_all(RunOfSeveral(servers, tmp_path, settings=QUICK))
    check_all_answered(tmp_path, 300)


def test_where_some_refuse_and_the_rest_are_out_the_run_ends_as_an_outage(servers: Servers, tmp_path: Path) -> None:
    servers[0].configure(rules=[{"do": {"status": 401}}])
    for server in servers[1:]:
        server.configure(down=True)
    run = RunOfSeveral(servers, tmp_path, settings=replace(QUICK, outage=1.0))
    progress = ask_until(run, lambda progress: progress.refusal is not None)
    assert (progress.refusal, progress.refused, progress.usage.failed) == ("outage", None, 0)
    assert [line.split("; ")[0] for line in progress.left_out] == [f"{servers[0].base_url}: HTTP 401"]


def test_prefixes_are_sent_to_the_endpoint_with_their_cache(servers: Servers, tmp_path: Path) -> None:
    """Three replicas have almost the same hit rate in their caches as one replica.

    In turns, the rate would be much lower.
    """
    rows = [(key, {**one, "query": one["query"] * 40}) for key, one in grouped(40, 12)]
    cached = []
    for number, some in enumerate((servers[:1], servers)):
        for server in servers:
            server.configure(prefix_cache=True)
            server.reset()
        (tmp_path / str(number)).mkdir()
        cached.append(ask_all(RunOfSeveral(some, tmp_path / str(number), settings=QUICK), rows).usage)
        check_all_answered(tmp_path / str(number), len(rows))
    alone, several = cached
    assert alone.cached_prompt_tokens > 0.8 * alone.prompt_tokens
    assert several.cached_prompt_tokens > 0.95 * alone.cached_prompt_tokens


@pytest.mark.parametrize("budget", [Budget(max_calls=100), Budget(max_cost=3000.0)])
def test_one_budget_holds_over_all_endpoints(servers: Servers, tmp_path: Path, budget: Budget) -> None:
    own = [{"prices": Prices(1e6, 1e6)}, {"prices": Prices(2e6, 2e6)}, {"prices": Prices(1e6, 1e6)}]
    run = RunOfSeveral(servers, tmp_path, own, replace(QUICK, budget=budget))
    progress = ask_until(run, lambda progress: progress.refusal == "budget" and not progress.in_flight)
    assert progress.refusal == "budget"
    assert 0 < progress.usage.calls == sum(counts(servers)) <= (budget.max_calls or 300)
    if budget.max_cost is not None:
        assert 0.5 * budget.max_cost < (progress.usage.cost or 0.0) <= budget.max_cost
    else:
        assert progress.usage.calls == 100
