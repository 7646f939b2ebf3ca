"""Decide when a request loop can send: slots, the clock of the limiter, pauses, and expected tokens of calls.

No function reads a clock or waits. `now` is the time of the monotonic clock of the loop in seconds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

from untold.udfs.llm.calls import Work
from untold.udfs.llm.limiter import Lease, LimiterReport
from untold.udfs.llm.usage import Usage

# The maximum delay of a slot. With a longer delay, the calls of one second could exceed the rate by more than 10 %
LATE_SECONDS = 0.05
# The clocks of two hosts drift by up to 500 ppm during a correction: 30 ms per minute, below LATE_SECONDS
MEASURE_SECONDS = 60.0
# The number of held slots without a rate limit. Half of them are enough for the round trip of a lease
PREFETCH = 512
# Timers end early, so a shorter wait counts as none
_NO_WAIT = 0.001
# The quantile of the tokens of completions. With `max_tokens` for each call, most of a token limit would be unused
_COMPLETION_QUANTILE = 0.9
_COMPLETIONS_REMEMBERED = 1000
# Before the first completion. The next slots correct a wrong estimate
_FIRST_COMPLETION_TOKENS = 512


class LimiterClock:
    """The offset of the clock of the limiter to the clock of the loop, by the fastest round trip of the last minute.

    Both clocks are monotonic clocks of their processes, and their difference changes slowly.

    >>> clock = LimiterClock()
    >>> clock.measure(limiter_now=100.0, sent=10.0, received=10.5)
    >>> clock.local(101.0)
    11.25
    """

    def __init__(self) -> None:
        self.offset = 0.0
        self._round_trip = float("inf")
        self._measured_at = float("-inf")

    def measure(self, limiter_now: float, sent: float, received: float) -> None:
        """Update the offset from the time of a lease that was requested at `sent` and arrived at `received`.

        The offset is between `limiter_now - received` and `limiter_now - sent`. The error of the middle is at most half
        of the round trip. An offset outside is wrong: a clock was set, or the limiter has another process.
        """
        low, high = limiter_now - received, limiter_now - sent
        wrong = not low <= self.offset <= high
        old = received - self._measured_at >= MEASURE_SECONDS
        if wrong or old or received - sent < self._round_trip:
            self.offset, self._round_trip, self._measured_at = (low + high) / 2, received - sent, received

    def reset_clock_offset(self) -> None:
        """Measure the offset again with the next lease."""
        self._round_trip = float("inf")

    def local(self, limiter_time: float) -> float:
        """Return a time of the limiter as a time of the clock of the loop."""
        return limiter_time - self.offset


class Pacing:
    """The slots of a request loop, and its pauses."""

    def __init__(self) -> None:
        self.clock = LimiterClock()
        self.places = 0
        self.strict = True
        self.refusal: str | None = None
        self.paused_until = float("-inf")
        self.reserved = 0
        self._unused_tokens = 0
        self._until = float("-inf")
        self._tokens_until = float("-inf")
        self._slots: deque[tuple[float, int]] = deque()

    @property
    def held(self) -> int:
        """The number of unused slots."""
        return len(self._slots)

    @property
    def held_tokens(self) -> int:
        """The tokens that are reserved with the unused slots."""
        return sum(tokens for _, tokens in self._slots)

    @property
    def runs_low(self) -> bool:
        """True if the loop should request new slots now."""
        return len(self._slots) < (1 if self.strict else PREFETCH // 2)

    def wait(self, now: float) -> float | None:
        """Return the seconds until the next slot: 0 for now, None without a slot. Missed slots are dropped.

        A late slot would be used at the time of the next slots, and the calls would exceed the limit of a second.
        """
        while self._slots:
            at, tokens = self._slots[0]
            # The next report returns its tokens
            if self.strict and (at < now - LATE_SECONDS or at < self.paused_until):
                self._slots.popleft()
                self._unused_tokens += tokens
                continue
            wait = max(at, self.paused_until) - now
            return wait if wait > _NO_WAIT else 0.0
        return None

    def use(self) -> int:
        """Take the next slot and return its reserved tokens."""
        _, tokens = self._slots.popleft()
        self.reserved += tokens
        return tokens

    def settle(self, reserved: int, used: int) -> None:
        """End the reservation of a call that used `used` tokens."""
        self.reserved -= reserved
        self._unused_tokens += reserved - used

    def pause(self, seconds: float, now: float) -> None:
        """Send nothing for `seconds`."""
        self.paused_until = max(self.paused_until, now + seconds)

    def paused(self, now: float) -> float:
        """Return the seconds until the end of the pause."""
        return max(0.0, self.paused_until - now)

    def wanted(self, waiting: int, in_flight: int) -> int:
        """Return the number of additional slots that the waiting requests can use."""
        # One more than can be sent at once, for the round trip of the next lease
        room = max(1, self.places - in_flight) + 1 if self.strict else PREFETCH
        return max(0, min(waiting, room) - len(self._slots))

    def report(self, work: Work, spent: Usage, estimates: tuple[int, ...], in_flight: int, now: float) -> LimiterReport:
        """Return the report for the next lease, without news. Unused tokens are reported once.

        `spent` has its cost. `ahead` and `tokens_ahead` are seconds from now, so they do not depend on a clock.
        """
        settings, unused = work.settings, self._unused_tokens
        self._unused_tokens = 0
        price = settings.prices.most_of_a_token
        return LimiterReport(
            client=work.name,
            run=work.call_id,
            estimates=estimates,
            in_flight=in_flight,
            held=self.held,
            held_tokens=self.held_tokens,
            spent=spent + Usage(self.reserved, cost=self.reserved * price),
            spent_before=work.call.spent,
            cost_per_token=price,
            cost_per_call=settings.prices.of_a_call,
            unused_tokens=unused if settings.counts_tokens else 0,
            ahead=self._until - now,
            places=self.places,
            gone=work.gone,
            paused=self.paused(now),
            tokens_ahead=self._tokens_until - now,
            limits=settings.limits,
            budget=settings.budget,
        )

    def receive(self, lease: Lease, estimates: Sequence[int], sent: float, received: float) -> None:
        """Add the slots of a lease that was requested at `sent` with these estimates and arrived at `received`."""
        self.clock.measure(lease.now, sent, received)
        self.places, self.strict, self.refusal = lease.places, lease.strict, lease.refusal
        self.paused_until = max(self.paused_until, self.clock.local(lease.paused_until))
        self._tokens_until = self.clock.local(lease.tokens_until)
        # Older slots would all become probes of an outage
        if lease.probing or lease.refusal:
            self._drop()
        times = [self.clock.local(time) for time in lease.times]
        self._slots.extend(zip(times, estimates, strict=False))
        if times:
            self._until = max(self._until, times[-1])
            # Too late: the round trip was long, or the offset of the clocks is wrong
            if times[0] < received - LATE_SECONDS:
                self.clock.reset_clock_offset()

    def _drop(self) -> None:
        """Drop all slots. The next report returns their reserved tokens."""
        self._unused_tokens += self.held_tokens
        self._slots.clear()


class CompletionSizes:
    """The expected tokens of a completion: the 0.9 quantile of the last thousand completions of the stage.

    >>> sizes = CompletionSizes(max_tokens=256)
    >>> before = sizes.expected
    >>> for tokens in (10, 20, 30):
    ...     sizes.remember(tokens)
    >>> before, sizes.expected
    (256, 20)
    """

    def __init__(self, max_tokens: int | None) -> None:
        self._first = _FIRST_COMPLETION_TOKENS if max_tokens is None else min(_FIRST_COMPLETION_TOKENS, max_tokens)
        self._latest: deque[int] = deque(maxlen=_COMPLETIONS_REMEMBERED)
        self._sorted: list[int] = []

    def remember(self, tokens: int) -> None:
        """Add the size of a completion."""
        # The deque is about to drop its first size, so the sorted list drops it too
        if len(self._latest) == _COMPLETIONS_REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._latest[0])]
        self._latest.append(tokens)
        insort(self._sorted, tokens)

    @property
    def expected(self) -> int:
        """The expected tokens, a constant before the first completion."""
        if not self._sorted:
            return self._first
        return self._sorted[int(_COMPLETION_QUANTILE * (len(self._sorted) - 1))]
