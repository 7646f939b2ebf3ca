from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.udfs.llm.askers import SETTINGS, STAGE
from untold.udfs.llm.calls import CallContext, Work
from untold.udfs.llm.limiter import Lease
from untold.udfs.llm.pacing import IDLE_POLL_SECONDS, LATE_SECONDS, POLL_SECONDS, CompletionSizes, LimiterClock, Slots

# The limiter and the request loop run on different machines, so their clocks have different start times
APART = 12345.0


def lease(times: Sequence[float], now: float, *, paused_until: float = 0.0, strict: bool = True) -> Lease:
    return Lease(now, tuple(times), 8, paused_until, None, False, strict)


def paced(*waits: float, now: float = 100.0, strict: bool = True) -> Slots:
    """Return the slots of a lease that took no time. The arguments are the seconds until each slot."""
    pacing = Slots(Work("a", "run/stage", "run", CallContext(STAGE), SETTINGS))
    limiter_now = now + APART
    granted = lease([limiter_now + wait for wait in waits], limiter_now, strict=strict)
    pacing.receive(granted, [10] * len(waits), now, now)
    return pacing


def test_a_slot_is_used_when_its_time_has_come() -> None:
    pacing = paced(0.5)
    assert pacing.wait(100.0) == pytest.approx(0.5)
    assert pacing.wait(100.5) == 0.0
    assert pacing.use() == 10
    assert pacing.wait(100.5) is None


def test_a_missed_slot_is_dropped_and_its_tokens_are_given_back() -> None:
    pacing = paced(0.1, 0.5)
    assert pacing.wait(100.1 + 2 * LATE_SECONDS) == pytest.approx(0.3)
    assert (pacing.held, pacing.held_tokens) == (1, 10)


def test_without_spacing_no_slot_is_missed() -> None:
    assert paced(0.0, strict=False).wait(200.0) == 0.0


def test_a_pause_delays_all_requests() -> None:
    pacing = paced(0.0, strict=False)
    pacing.pause(90.0, 100.0)
    assert (pacing.wait(130.0), pacing.paused(130.0), pacing.paused(200.0)) == (60.0, 60.0, 0.0)


@pytest.mark.parametrize("step", [-3600.0, -2.0, 2.0, 3600.0])
def test_a_clock_that_is_set_costs_no_slot(step: float) -> None:
    pacing = paced(0.0)
    moved = 101.0 + APART + step
    pacing.receive(lease([moved + 0.1], moved), [10], 101.0 - 0.003, 101.0)
    assert pacing.wait(101.0) == pytest.approx(0.1, abs=0.002)


def test_a_needed_lease_is_requested_at_once_but_not_soon_after_one_without_slots() -> None:
    pacing = paced(0.5)
    assert pacing.next_report(waiting=True) == 100.0 + POLL_SECONDS
    assert pacing.next_report(waiting=False) == 100.0 + IDLE_POLL_SECONDS
    pacing.needed = True
    assert pacing.next_report(waiting=True) <= 100.0
    pacing.receive(lease([], 100.1 + APART), [10], 100.1, 100.1)
    assert 100.1 < pacing.next_report(waiting=True) < 100.1 + POLL_SECONDS
    pacing.receive(lease([100.3 + APART], 100.2 + APART), [10], 100.2, 100.2)
    assert pacing.next_report(waiting=True) <= 100.2


def test_the_fastest_round_trip_has_the_best_offset() -> None:
    clock = LimiterClock()
    clock.measure(APART + 100.0, 100.0, 100.2)
    clock.measure(APART + 100.201, 100.2, 100.202)
    clock.measure(APART + 100.3, 100.3, 100.6)
    assert clock.offset == pytest.approx(APART, abs=0.001)


def test_the_drift_of_a_clock_does_not_add_up() -> None:
    clock, trip = LimiterClock(), 0.002
    for tenths in range(36_000):
        now = 100.0 + tenths / 10
        apart = APART + 0.0005 * (now - 100.0)
        clock.measure(now + trip / 2 + apart, now, now + trip)
        assert abs(clock.offset - apart) <= trip


@given(st.lists(st.tuples(st.floats(0, 0.3), st.floats(0, 0.3), st.sampled_from([0.0, 0.0, -3600.0, 2.0, 0.05]))))
def test_the_offset_is_never_off_by_more_than_half_of_the_last_round_trip(
    trips: list[tuple[float, float, float]],
) -> None:
    clock, apart, now = LimiterClock(), APART, 100.0
    for there, back, step in trips:
        apart += step
        now += 1.0
        clock.measure(now + there + apart, now, now + there + back)
        assert abs(clock.offset - apart) <= there + back + 1e-6
        now += there + back


def test_completions_are_expected_to_be_as_long_as_most_were() -> None:
    sizes = CompletionSizes(None)
    assert (sizes.expected, CompletionSizes(100).expected) == (512, 100)
    for size in [10] * 95 + [1000] * 5:
        sizes.remember(size)
    assert sizes.expected == 10


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_the_sizes_of_the_last_thousand_decide(sizes: list[int]) -> None:
    kept = CompletionSizes(None)
    for size in [*sizes, *sizes[:1] * 1000]:
        kept.remember(size)
    assert kept.expected == sizes[0]
