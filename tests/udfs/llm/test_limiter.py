from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tests.udfs.llm.limiter_world import (
    LATE,
    START,
    Behaviour,
    Clock,
    World,
    assert_requests_within,
    most_tokens,
    random_behaviour,
)
from untold.udfs.llm.limiter import CLIENT_EXPIRY, OUTAGE_FAULTS, Budget, EndpointNews, Limiter, LimiterReport, Limits
from untold.udfs.llm.usage import Usage

NEWS = {field.name for field in fields(EndpointNews)}


def report(client: str = "a", count: int = 1, **given: Any) -> LimiterReport:
    """Return a report of a client that needs this number of slots."""
    values: dict[str, Any] = {"run": "run", "estimates": (0,) * count, "in_flight": 0}
    news = EndpointNews(**{name: given.pop(name) for name in NEWS & given.keys()})
    return LimiterReport(client=client, news=news, **{**values, **given})


@pytest.mark.parametrize("clients", [1, 4, 16])
@pytest.mark.parametrize("limit", [60, 600, 6000])
def test_random_clients_never_exceed_the_request_limit(clients: int, limit: int) -> None:
    random = Random(clients * limit)
    behaviours = [random_behaviour(random) for _ in range(clients)]
    world = World(behaviours, Limits(requests_per_minute=limit, max_concurrency=256), seed=limit).run(180)
    assert world.sent
    assert_requests_within(world, limit)


@pytest.mark.parametrize("seed", range(6))
def test_odd_limits_hold_too(seed: int) -> None:
    random = Random(seed)
    limit = random.choice([1, 2, 7, 59, 61, 100, 333, 1000])
    behaviours = [random_behaviour(random) for _ in range(random.randint(1, 8))]
    world = World(behaviours, Limits(requests_per_minute=limit, max_concurrency=64), seed=seed).run(300)
    assert_requests_within(world, limit)


@pytest.mark.parametrize("clients", [1, 4, 16])
@pytest.mark.parametrize("limit", [600, 6000])
def test_hungry_clients_use_the_limit(clients: int, limit: int) -> None:
    limits = Limits(requests_per_minute=limit, max_concurrency=256)
    world = World([Behaviour(jitter=0.005) for _ in range(clients)], limits).run(125)
    used = sum(START + 5 <= one.at < START + 125 for one in world.sent) / 2
    assert used >= 0.97 * limit
    assert_requests_within(world, limit)


def test_slots_are_spaced_evenly_and_no_further_ahead_than_a_quarter_second() -> None:
    clock = Clock()
    lease = aged_limiter(clock).lease(report(count=1000, limits=Limits(requests_per_minute=6000)))
    gaps = {round(later - sooner, 6) for sooner, later in pairwise(lease.times)}
    assert gaps == {round(60 / (6000 * 0.99), 6)}
    assert clock.now + 0.2 < lease.times[-1] <= clock.now + 0.25 + 1e-6
    assert lease.strict


def test_without_limits_everything_may_go_at_once() -> None:
    clock = Clock()
    lease = Limiter(clock).lease(report(count=500))
    assert lease.times == (clock.now,) * 500
    assert not lease.strict


@pytest.mark.parametrize("clients", [1, 4, 16])
def test_tokens_stay_within_the_limit_and_the_error_of_requests_in_flight(clients: int) -> None:
    limit, places = 60_000, 16
    behaviour = Behaviour(estimates=(100, 1000), error=(-0.5, 0.2))
    world = World([behaviour] * clients, Limits(tokens_per_minute=limit, max_concurrency=places), seed=1).run(240)
    assert most_tokens(60.0, world.sent) <= limit + places * 0.2 * 1000
    assert world.peak <= places


def test_unused_leases_are_returned() -> None:
    limit = 60_000
    behaviour = Behaviour(estimates=(50, 100), error=(-0.3, -0.2))
    world = World([behaviour] * 4, Limits(tokens_per_minute=limit, max_concurrency=64), seed=2).run(200)
    used = sum(one.used for one in world.sent if START + 20 <= one.at < START + 200) / 3
    assert used >= 0.9 * limit
    assert most_tokens(60.0, world.sent) <= limit


def test_what_was_used_beyond_the_lease_is_paid_back() -> None:
    limit, places = 60_000, 4
    behaviour = Behaviour(estimates=(100, 200), error=(1.0, 1.0))
    world = World([behaviour] * 2, Limits(tokens_per_minute=limit, max_concurrency=places), seed=3).run(200)
    assert most_tokens(60.0, world.sent) <= limit + places * 200


def test_both_limits_hold_at_once() -> None:
    limits = Limits(requests_per_minute=300, tokens_per_minute=60_000, max_concurrency=16)
    world = World([Behaviour(estimates=(10, 600))] * 4, limits, seed=4).run(200)
    assert_requests_within(world, 300)
    assert most_tokens(60.0, world.sent) <= 60_000


def test_retry_after_pauses_everybody() -> None:
    clock = Clock()
    limiter, limits = Limiter(clock), Limits(requests_per_minute=6000)
    limiter.lease(report("a", limits=limits))
    limiter.lease(report("b", limits=limits))
    limiter.lease(report("a", limited=True, retry_after=20.0, limits=limits))
    lease = limiter.lease(report("b", 5, limits=limits))
    assert lease.paused_until == clock.now + 20
    assert all(at >= clock.now + 20 for at in lease.times)


def test_the_longest_wait_counts() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    limiter.lease(report("a", limited=True, retry_after=20.0))
    assert limiter.lease(report("b", limited=True, retry_after=3.0)).paused_until == clock.now + 20


def aged_limiter(clock: Clock) -> Limiter:
    """Return a limiter after its initial wait."""
    limiter = Limiter(clock)
    clock.now += 1
    return limiter


def spacing(limiter: Limiter, limits: Limits, **given: Any) -> float:
    """Return the seconds between two slots of a lease, or 0 if the calls are not limited."""
    times = limiter.lease(report(count=2000, limits=limits, **given)).times
    return (times[-1] - times[0]) / (len(times) - 1)


def test_only_a_429_shrinks_the_rate() -> None:
    clock = Clock()
    limiter, limits = aged_limiter(clock), Limits(requests_per_minute=6000)
    before = spacing(limiter, limits)
    clock.now += 5
    assert spacing(limiter, limits, faults=20) == pytest.approx(before)
    clock.now += 5
    assert spacing(limiter, limits, successes=100, answered=True, limited=True) > before * 1.3


def test_many_429_at_once_shrink_the_rate_once() -> None:
    clock = Clock()
    limiter, limits = aged_limiter(clock), Limits(requests_per_minute=6000)
    before = spacing(limiter, limits)
    clock.now += 5
    for number in range(20):
        clock.now += 0.01
        limiter.lease(report(f"c{number}", limited=True, answered=True, limits=limits))
    clock.now += 0.5
    assert spacing(limiter, limits) == pytest.approx(before / 0.7, rel=0.01)


def test_use_grows_the_rate_again_up_to_the_limit_and_rest_does_not() -> None:
    clock = Clock()
    limiter, limits = aged_limiter(clock), Limits(requests_per_minute=6000)
    before = spacing(limiter, limits)
    clock.now += 5
    shrunk = spacing(limiter, limits, limited=True, answered=True)
    for _ in range(10):
        clock.now += 2
        assert spacing(limiter, limits) == pytest.approx(shrunk)
    for _ in range(10):
        clock.now += 2
        spacing(limiter, limits, successes=100, answered=True)
    clock.now += 2
    assert spacing(limiter, limits) == pytest.approx(before)


def test_without_a_limit_a_429_sets_a_rate_below_the_previous_rate() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    limiter.lease(report())
    clock.now += 2
    limiter.lease(report(successes=200, answered=True))
    clock.now += 2
    limiter.lease(report(successes=200, answered=True, limited=True))
    clock.now += 0.5
    lease = limiter.lease(report(count=2000))
    assert lease.strict
    assert 0.005 < (lease.times[-1] - lease.times[0]) / (len(lease.times) - 1) < 0.05


@pytest.mark.parametrize("clients", [1, 3, 16])
def test_calls_in_flight_never_exceed_their_places(clients: int) -> None:
    random = Random(clients)
    behaviours = [
        Behaviour(answer=(0.2, 4.0), awake=(2.0, 20.0), asleep=(1.0, 40.0), poll=(0.05, random.choice([0.1, 1.0])))
        for _ in range(clients)
    ]
    world = World(behaviours, Limits(requests_per_minute=6000, max_concurrency=24), seed=clients).run(180)
    assert world.peak <= 24
    assert world.peak >= 12


def test_places_hold_while_leases_are_on_their_way() -> None:
    limiter, limits = Limiter(Clock()), Limits(max_concurrency=8)
    assert limiter.lease(report("a", 8, limits=limits)).places == 8
    limiter.lease(report("b", 8, limits=limits))
    assert limiter.lease(report("a", 8, in_flight=2, limits=limits)).places == 4
    still_used_by_a = 8
    assert limiter.lease(report("b", 8, limits=limits)).places + still_used_by_a <= 8
    limiter.lease(report("a", 8, in_flight=2, limits=limits))
    assert limiter.lease(report("b", 8, limits=limits)).places == 4


def test_a_second_client_gets_places_as_the_first_gives_them_up() -> None:
    limiter, limits = Limiter(Clock()), Limits(max_concurrency=8)
    assert limiter.lease(report("a", 8, limits=limits)).places == 8
    assert limiter.lease(report("b", 8, limits=limits)).places == 0
    assert limiter.lease(report("a", 8, in_flight=8, limits=limits)).places == 4
    assert limiter.lease(report("b", 8, limits=limits)).places == 0
    assert limiter.lease(report("a", 8, in_flight=3, limits=limits)).places == 4
    assert limiter.lease(report("b", 8, limits=limits)).places == 4


def test_a_client_without_work_has_no_places() -> None:
    limiter, limits = Limiter(Clock()), Limits(max_concurrency=8)
    limiter.lease(report("a", 8, limits=limits))
    limiter.lease(report("a", 0, limits=limits))
    assert limiter.lease(report("b", 8, limits=limits)).places == 0
    limiter.lease(report("a", 0, limits=limits))
    assert limiter.lease(report("b", 8, limits=limits)).places == 8


def test_a_client_that_vanished_frees_its_places_after_its_time() -> None:
    clock = Clock()
    limiter, limits = Limiter(clock), Limits(max_concurrency=8)
    limiter.lease(report("a", 8, limits=limits))
    clock.now += CLIENT_EXPIRY - 1
    assert limiter.lease(report("b", 8, limits=limits)).places == 0
    clock.now += 1
    assert limiter.lease(report("b", 8, limits=limits)).places == 8


def test_a_client_that_left_frees_its_places_at_once() -> None:
    limiter, limits = Limiter(Clock()), Limits(max_concurrency=8)
    limiter.lease(report("a", 8, limits=limits))
    limiter.leave("a")
    assert limiter.lease(report("b", 8, limits=limits)).places == 8
    # The node of the client was assumed to be dead, and the slots of the client now belong to another
    assert limiter.lease(report("a", 8, limits=limits)).times == ()


def in_outage(clock: Clock) -> Limiter:
    limiter = Limiter(clock)
    limiter.lease(report(faults=OUTAGE_FAULTS))
    return limiter


def test_fifty_faults_in_a_row_begin_an_outage() -> None:
    limiter = Limiter(Clock())
    assert OUTAGE_FAULTS == 50
    assert not limiter.lease(report(faults=49)).probing
    assert limiter.lease(report(faults=1)).probing


def test_faults_of_all_clients_count() -> None:
    limiter = Limiter(Clock())
    probing = [limiter.lease(report(f"c{number}", faults=10)).probing for number in range(5)]
    assert probing == [False, False, False, False, True]


def test_any_success_between_errors_resets_the_count() -> None:
    limiter = Limiter(Clock())
    limiter.lease(report(faults=49))
    limiter.lease(report("b", answered=True))
    assert not limiter.lease(report(faults=49)).probing


def test_an_outage_lets_one_probe_through_every_ten_seconds() -> None:
    clock = Clock()
    limiter = in_outage(clock)
    probes = []
    for _ in range(600):
        clock.now += 0.1
        for client in ("a", "b", "c"):
            probes += [clock.now] * len(limiter.lease(report(client, 20)).times)
    gaps = [later - sooner for sooner, later in pairwise(probes)]
    assert 5 <= len(probes) <= 7
    assert all(gap == pytest.approx(10, abs=0.11) for gap in gaps)


def test_an_answer_ends_an_outage() -> None:
    clock = Clock()
    limiter = in_outage(clock)
    clock.now += 30
    lease = limiter.lease(report(count=20, answered=True, successes=1))
    assert (lease.probing, lease.refusal, len(lease.times)) == (False, None, 20)


def test_an_outage_ends_the_run_after_its_time() -> None:
    clock = Clock()
    limiter = in_outage(clock)
    clock.now += 599
    assert limiter.lease(report(outage_seconds=600)).refusal is None
    clock.now += 1
    lease = limiter.lease(report(outage_seconds=600))
    assert (lease.refusal, lease.times) == ("outage", ())


def test_an_outage_counts_from_its_first_fault() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    for _ in range(60):
        clock.now += 10
        lease = limiter.lease(report(faults=1, outage_seconds=590))
    assert lease.refusal == "outage"


def test_calls_of_all_clients_stay_within_the_budget() -> None:
    behaviour = Behaviour(answer=(0.1, 2.0))
    world = World([behaviour] * 4, Limits(max_concurrency=64), budget=Budget(max_calls=333)).run(60)
    assert len(world.sent) == 333
    assert {client.refusal for client in world.clients} == {"budget"}


def test_calls_stay_within_the_budget_with_slots_too() -> None:
    limits = Limits(requests_per_minute=6000, max_concurrency=64)
    world = World([Behaviour(jitter=LATE)] * 4, limits, budget=Budget(max_calls=333)).run(60)
    assert len(world.sent) == 333


@pytest.mark.parametrize(("budget", "price"), [(Budget(max_tokens=50_000), 0.0), (Budget(max_cost=50.0), 0.001)])
def test_tokens_and_cost_stay_within_the_budget_up_to_estimation(budget: Budget, price: float) -> None:
    behaviour = Behaviour(estimates=(100, 500), error=(-0.5, 0.0))
    world = World([behaviour] * 4, Limits(max_concurrency=16), budget=budget, price=price).run(60)
    used = sum(one.used for one in world.sent)
    assert 49_000 <= used <= 50_000
    assert {client.refusal for client in world.clients} == {"budget"}


def test_underestimated_tokens_exceed_the_budget_only_by_their_error() -> None:
    behaviour = Behaviour(estimates=(100, 500), error=(0.0, 0.5))
    world = World([behaviour] * 4, Limits(max_concurrency=16), budget=Budget(max_tokens=50_000)).run(60)
    assert sum(one.used for one in world.sent) <= 50_000 + 16 * 250


def test_what_a_run_spent_before_its_clients_counts() -> None:
    limiter, budget = Limiter(Clock()), Budget(max_calls=100)
    lease = limiter.lease(report(count=10, spent_before=Usage(calls=95), budget=budget))
    assert len(lease.times) == 5


def test_an_exhausted_budget_is_reported_without_requests_in_flight() -> None:
    limiter, budget = Limiter(Clock()), Budget(max_calls=2)
    spent = Usage(calls=2)
    waiting = limiter.lease(report(spent=spent, in_flight=1, budget=budget))
    assert (waiting.times, waiting.refusal) == ((), None)
    assert limiter.lease(report(spent=spent, budget=budget)).refusal == "budget"


def test_a_run_without_wishes_is_not_refused() -> None:
    limiter, budget = Limiter(Clock()), Budget(max_calls=2)
    assert limiter.lease(report(count=0, spent=Usage(calls=2), budget=budget)).refusal is None


def test_another_run_has_its_own_budget() -> None:
    limiter, budget = Limiter(Clock()), Budget(max_calls=2)
    limiter.lease(report("a", spent=Usage(calls=2), budget=budget))
    assert len(limiter.lease(report("b", run="other", budget=budget)).times) == 1


def test_calls_of_a_client_that_vanished_stay_spent() -> None:
    clock = Clock()
    limiter, budget = Limiter(clock), Budget(max_calls=10)
    limiter.lease(report("a", 0, spent=Usage(calls=8), budget=budget))
    limiter.leave("a")
    clock.now += 10 * CLIENT_EXPIRY
    assert len(limiter.lease(report("b", 10, budget=budget)).times) == 2


def test_a_run_that_begins_in_an_outage_has_its_own_time() -> None:
    clock = Clock()
    limiter = in_outage(clock)
    clock.now += 590
    limiter.lease(report("b", run="next"))
    clock.now += 20
    assert limiter.lease(report("a")).refusal == "outage"
    assert limiter.lease(report("b", run="next")).refusal is None
