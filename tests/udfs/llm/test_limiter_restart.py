"""Test a restarted limiter. Its earlier leases and the usage of dead clients remain valid."""

from __future__ import annotations

import pytest

from tests.udfs.llm.limiter_world import Behaviour, Clock, World, assert_requests_within, most_tokens
from tests.udfs.llm.test_limiter import report
from untold.udfs.llm.limiter import SETTLE_SECONDS, Budget, Limiter, Limits
from untold.udfs.llm.usage import Usage


@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize("limit", [600, 6000])
def test_a_restart_of_the_limiter_grants_no_burst(clients: int, limit: int) -> None:
    world = World([Behaviour(jitter=0.01)] * clients, Limits(requests_per_minute=limit, max_concurrency=64)).run(70)
    for _ in range(5):
        world.restart_limiter()
        world.run(7)
    assert_requests_within(world, limit)


def test_restarts_grant_no_burst_at_low_rates_either() -> None:
    world = World([Behaviour(poll=(0.1, 0.2))] * 4, Limits(requests_per_minute=6, max_concurrency=64)).run(70)
    for _ in range(10):
        world.restart_limiter()
        world.run(3)
    assert_requests_within(world, 6)


def test_usage_beyond_the_lease_survives_restarts() -> None:
    limit, places, estimate = 60_000, 16, 1000
    behaviour = Behaviour(in_flight=places, answer=(0.5, 5.0), estimates=(estimate, estimate), error=(3.0, 3.0))
    world = World([behaviour] * 3, Limits(tokens_per_minute=limit, max_concurrency=places))
    for _ in range(60):
        world.run(5)
        world.restart_limiter()
    assert most_tokens(60.0, world.sent) <= limit + places * 3 * estimate


def test_a_restart_does_not_end_a_pause_for_new_clients() -> None:
    clock = Clock()
    limiter = Limiter(clock, restarted=True)
    limiter.lease(report("a", 0, paused=30.0))
    lease = limiter.lease(report("b", 4))
    assert all(at >= clock.now + 30 for at in (lease.paused_until, *lease.times))
    clock.now += 10
    # The pause does not get longer, although the reports of the clients take time
    assert limiter.lease(report("a", 0, paused=30.0)).paused_until == lease.paused_until


def test_places_hold_over_a_restart_of_the_limiter() -> None:
    clock, limits = Clock(), Limits(max_concurrency=8)
    limiter = Limiter(clock)
    limiter.lease(report("a", 4, limits=limits))
    limiter.lease(report("b", 4, limits=limits))
    for client in ("a", "b", "a", "b"):
        limiter.lease(report(client, 4, in_flight=4, limits=limits))
    limiter = Limiter(clock, restarted=True)
    assert limiter.lease(report("a", 4, in_flight=4, places=4, limits=limits)).places <= 4


def test_the_budget_holds_over_a_restart_of_the_limiter() -> None:
    limiter, budget = Limiter(Clock()), Budget(max_calls=100)
    for client in ("a", "b"):
        limiter.lease(report(client, 0, spent=Usage(calls=50), budget=budget))
    limiter = Limiter(Clock(), restarted=True)
    lease = limiter.lease(report("a", 10, spent=Usage(calls=50), budget=budget))
    assert (lease.times, lease.refusal) == ((), None)


def test_the_budget_holds_over_the_death_of_a_client_and_then_of_the_limiter() -> None:
    clock, budget = Clock(), Budget(max_calls=100)
    limiter = Limiter(clock)
    assert len(limiter.lease(report("dead", 60, budget=budget)).times) == 60
    gone = {"dead": limiter.leave("dead")}
    assert gone["dead"].calls == 60
    limiter = Limiter(clock, restarted=True)
    for fields in ({"gone": gone}, {}):
        # Each of the running clients can report it, any number of times
        limiter.lease(report("a", 0, budget=budget, **fields))
        limiter.lease(report("b", 0, budget=budget, **fields))
    clock.now += 2 * SETTLE_SECONDS
    granted = [len(limiter.lease(report(client, 50, budget=budget)).times) for client in ("a", "b")]
    assert sum(granted) == 40


def test_the_possible_usage_of_a_dead_client_counts_once() -> None:
    limiter, budget = Limiter(Clock()), Budget(max_calls=100)
    limiter.lease(report("dead", 0, spent=Usage(calls=60), budget=budget))
    lease = limiter.lease(report("a", 100, gone={"dead": Usage(calls=55)}, budget=budget))
    assert len(lease.times) == 40
