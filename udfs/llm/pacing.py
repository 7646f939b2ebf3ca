"""Decide when a request loop can send: slots, the clock of the limiter, pauses, and expected tokens of calls.

No function reads a clock or waits. `now` is the time of the monotonic clock of the loop in seconds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from untold.udfs.llm.calls import Work
from untold.udfs.llm.limiter import NEVER, Lease, LimiterReport
from untold.udfs.llm.usage import Usage

# The maximum delay of a slot. With a longer delay, the calls of one second could exceed the rate by more than 10 %
LATE_SECONDS = 0.05
# The number of held slots without a rate limit. Half of them are enough for the round trip of a lease
PREFETCH = 512
# The time between two reports, while requests wait for spaced slots, and otherwise
POLL_SECONDS = 0.1
IDLE_POLL_SECONDS = 0.25
# Timers end early, so a shorter wait counts as none
_NO_WAIT = 0.001
# The quantile of the tokens of completions. With `max_tokens` for each call, most of a token limit would be unused
_COMPLETION_QUANTILE = 0.9
_COMPLETIONS_REMEMBERED = 1000
# Before the first completion. The next slots correct a wrong estimate
_FIRST_COMPLETION_TOKENS = 512


class LimiterClock:
    """The offset of the clock of the limiter to the clock of the loop. Its error is at most the last round trip.

    Both clocks are monotonic clocks of their processes, and their difference changes slowly.

    >>> clock = LimiterClock()
    >>> clock.measure(limiter_now=100.0, sent=10.0, received=10.5)
    >>> clock.local(101.0)
    11.25
    """

    def __init__(self) -> None:
        self.offset = 0.0

    def measure(self, limiter_now: float, sent: float, received: float) -> None:
        """Correct the offset by the time of a lease that was requested at `sent` and arrived at `received`.

        The offset is between `limiter_now - received` and `limiter_now - sent`. An offset outside becomes the middle:
        the clocks drifted, the limiter has another process, or the last round trip was slower.
        """
        low, high = limiter_now - received, limiter_now - sent
        if not low <= self.offset <= high:
            self.offset = (low + high) / 2

    def local(self, limiter_time: float) -> float:
        """Return a time of the limiter as a time of the clock of the loop."""
        return limiter_time - self.offset


class Slots:
    """The leased slots of one limiter, and the pauses of its endpoint.

    `work` is the actor's work with the settings of the endpoint. `needed` requests a new lease. `refusal` is the reason
    for no lease: `budget` or `outage`.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.clock = LimiterClock()
        self.places = 0
        self.strict = True
        self.refusal: str | None = None
        self.paused_until = NEVER
        self.needed = False
        self._reserved = 0
        self._unused_tokens = 0
        self._until = self._tokens_until = NEVER
        self._slots: deque[tuple[float, int]] = deque()
        self._reports = 0
        # Nothing is reported before the first need
        self._received = float("inf")
        self._earliest_report = NEVER

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
        self._reserved += tokens
        return tokens

    def settle(self, reserved: int, used: int) -> None:
        """End the reservation of a call that used `used` tokens."""
        self._reserved -= reserved
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

    def next_report(self, *, waiting: bool) -> float:
        """Return the time of the next report: when a lease is needed, or some time after the last lease."""
        if self.needed:
            return self._earliest_report
        return self._received + (POLL_SECONDS if waiting and self.strict else IDLE_POLL_SECONDS)

    def report(self, usage: Usage, estimates: tuple[int, ...], in_flight: int, now: float) -> LimiterReport:
        """Return the report for the next lease, without news. Unused tokens are reported once.

        `ahead` and `tokens_ahead` are seconds from now, so they do not depend on a clock.
        """
        work, settings, unused = self.work, self.work.settings, self._unused_tokens
        self._unused_tokens, self.needed = 0, False
        self._reports += 1
        report = LimiterReport(
            client=work.name,
            run=work.call_id,
            estimates=estimates,
            in_flight=in_flight,
            number=self._reports,
            held=self.held,
            held_tokens=self.held_tokens,
            spent=settings.priced(usage),
            spent_before=work.call.spent,
            prices=settings.prices,
            unused_tokens=unused if settings.counts_tokens else 0,
            ahead=self._until - now,
            places=self.places,
            gone=work.gone,
            paused=self.paused(now),
            tokens_ahead=self._tokens_until - now,
            limits=settings.limits,
            budget=settings.budget,
        )
        return replace(report, spent=report.spent + report.expects(0, self._reserved))

    def receive(self, lease: Lease, estimates: Sequence[int], sent: float, received: float) -> None:
        """Add the slots of a lease that was requested at `sent` with these estimates and arrived at `received`."""
        self.clock.measure(lease.now, sent, received)
        self.places, self.strict, self.refusal = lease.places, lease.strict, lease.refusal
        self.paused_until = max(self.paused_until, self.clock.local(lease.paused_until))
        self._tokens_until = self.clock.local(lease.tokens_until)
        # Older slots would all become probes of an outage. The next report returns their reserved tokens
        if lease.probing or lease.refusal:
            self._unused_tokens += self.held_tokens
            self._slots.clear()
        times = [self.clock.local(time) for time in lease.times]
        self._slots.extend(zip(times, estimates, strict=False))
        self._until = max([self._until, *times[-1:]])
        # Without new slots, the limiter gets a pause. It grants slots for a quarter of a second
        in_vain = not times and (estimates or self._slots)
        self._received = received
        self._earliest_report = received + (POLL_SECONDS / 2 if in_vain else 0.0)


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
