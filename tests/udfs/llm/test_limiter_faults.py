"""Test the limiter with clock changes, wrong usage, dead clients and an exhausted quota."""

from __future__ import annotations

from typing import Any

import pytest

from tests.udfs.llm.limiter_world import START, Behaviour, Clock, World, most_in, most_tokens
from tests.udfs.llm.test_limiter import report
from untold.udfs.llm.limiter import FORGET_SECONDS, FURTHEST_SLOT, Budget, Limiter, Limits
from untold.udfs.llm.usage import Usage

BOTH = Limits(requests_per_minute=6000, tokens_per_minute=60_000, max_concurrency=8)


@pytest.mark.parametrize("used", [2**32 - 1, 2**62])
def test_no_usage_stops_anybody_for_more_than_a_minute(used: int) -> None:
    clock = Clock()
    limiter = Limiter(clock)
    limiter.lease(report(limits=BOTH))
    limiter.lease(report(count=0, unused_tokens=-used, answered=True, limits=BOTH))
    assert limiter.lease(report("b", run="other", limits=BOTH)).times == ()
    clock.now += FURTHEST_SLOT
    assert limiter.lease(report("b", run="other", limits=BOTH)).times


def test_a_clock_that_is_set_back_costs_at_most_a_minute() -> None:
    clock = Clock()
    limiter, limits = Limiter(clock), Limits(requests_per_minute=6000)
    limiter.lease(report(limits=limits))
    clock.now -= 3600
    waited = 0.0
    while not limiter.lease(report(limits=limits)).times:
        clock.now += 1
        waited += 1
    assert waited <= FURTHEST_SLOT


def test_no_slot_is_further_away_than_a_minute_in_a_long_pause() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    limiter.lease(report(limited=True, retry_after=1800.0))
    for _ in range(31):
        times = limiter.lease(report("b", 4)).times
        assert all(at <= clock.now + FURTHEST_SLOT for at in times)
        clock.now += 60
    assert limiter.lease(report("b", 4)).times


def test_calls_larger_than_the_limit_go_one_a_minute() -> None:
    behaviour = Behaviour(in_flight=4, estimates=(1000, 1000))
    world = World([behaviour], Limits(tokens_per_minute=100, max_concurrency=4)).run(600)
    assert 8 <= len(world.sent) <= 11
    assert most_tokens(59.0, world.sent) == 1000


def test_a_limiter_that_is_restarted_elsewhere_has_another_clock() -> None:
    clock = Clock()
    limits = Limits(requests_per_minute=600)
    Limiter(clock).lease(report(limits=limits))
    clock.now = 5.0
    limiter = Limiter(clock, restarted=True)
    clock.now += 2
    times = limiter.lease(report(count=5, ahead=0.05, limits=limits)).times
    assert times
    assert times[-1] <= clock.now + 1
    assert all(at >= clock.now + 0.05 for at in times)


@pytest.mark.parametrize("hours", [0.01, 1.1, 50.0])
def test_a_budget_includes_the_usage_of_dead_clients(hours: float) -> None:
    clock = Clock()
    limiter, budget = Limiter(clock), Budget(max_calls=1000)
    limiter.lease(report("dead", 0, spent=Usage(calls=990), budget=budget))
    limiter.leave("dead")
    for _ in range(int(hours * 120)):
        clock.now += 30
        limiter.lease(report("alive", 0, spent=Usage(calls=5), budget=budget))
    assert len(limiter.lease(report("alive", 50, spent=Usage(calls=5), budget=budget)).times) == 5


def test_a_run_that_is_over_is_forgotten() -> None:
    clock = Clock()
    limiter, budget = Limiter(clock), Budget(max_calls=10)
    limiter.lease(report("a", 0, spent=Usage(calls=10), budget=budget))
    clock.now += FORGET_SECONDS + 1
    limiter.lease(report("b", run="other"))
    assert len(limiter.lease(report("c", 10, budget=budget)).times) == 10


def test_a_report_that_is_sent_twice_counts_once() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    for _ in range(2):
        limiter.lease(report(number=1, faults=25))
    assert not limiter.lease(report(number=2)).probing
    assert limiter.lease(report(number=3, faults=25)).probing


def limited(limiter: Limiter, clock: Clock, seconds: int, **fields: Any) -> str | None:
    """Return the refusal after this number of seconds with a 429 each."""
    refusal = None
    for _ in range(seconds):
        clock.now += 1
        refusal = limiter.lease(report(limited=True, answered=True, outage_seconds=600, **fields)).refusal
    return refusal


def test_429s_without_a_success_are_an_outage_after_its_time() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    assert limited(limiter, clock, 600) is None
    assert limited(limiter, clock, 1) == "outage"


def test_other_responses_between_429s_are_not_an_outage() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    assert limited(limiter, clock, 599) is None
    limiter.lease(report(served=True, answered=True))
    assert limited(limiter, clock, 600) is None


def test_a_requested_pause_is_kept_and_later_responses_decide() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    limiter.lease(report(limited=True, answered=True, retry_after=1800.0))
    clock.now += 1799
    assert limiter.lease(report()).refusal is None
    clock.now += 1
    assert limiter.lease(report(limited=True, answered=True)).refusal == "outage"


def test_a_run_that_begins_among_429s_has_its_own_time() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    limited(limiter, clock, 590)
    assert limited(limiter, clock, 20, client="b", run="next") is None
    assert limited(limiter, clock, 1) == "outage"


def test_all_clients_of_a_run_share_its_completions_and_refusals() -> None:
    limiter = Limiter(Clock())
    assert not limiter.lease(report("a")).completed
    limiter.lease(report("b", completed=True))
    limiter.lease(report("b", doubts=3))
    lease = limiter.lease(report("a", doubts=2))
    assert (lease.completed, lease.doubts) == (True, 5)
    assert limiter.lease(report("b", completed=True, doubts=1)).doubts == 1
    assert not limiter.lease(report("c", run="other")).completed


def test_the_clock_is_monotonic() -> None:
    world = World([Behaviour()], Limits(requests_per_minute=600)).run(30)
    assert all(one.at >= START for one in world.sent)
    assert most_in(60.0, [one.at for one in world.sent]) <= 600
