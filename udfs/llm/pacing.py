"""When an asker may send: its slots, its clock against the limiter's, pauses, and what a call is expected to take.

No clock, no waiting: every function is given the time. `now` is the asker's monotonic clock, in seconds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

from untold.udfs.llm.calls import Work
from untold.udfs.llm.limiter import Lease, LimiterReport
from untold.udfs.llm.usage import Usage

# A slot used later than this would crowd the next ones: a second's bound allows a tenth more than the rate.
LATE_SECONDS = 0.05
# Clocks of two hosts drift by up to 500 ppm where they are being set right: 30 ms a minute, below LATE_SECONDS.
MEASURE_SECONDS = 60.0
# Slots that are held where nothing is spaced; half of them bridges the round trip of a lease.
PREFETCH = 512
# Timers end a little early; a wait below this is none.
_NO_WAIT = 0.001
# Of the stage's own completions, since `max_tokens` for each would leave most of a limit in tokens unused.
_COMPLETION_QUANTILE = 0.9
_COMPLETIONS_REMEMBERED = 1000
# Before any completion is known; too much is given back with the first, too little is taken from the next slots.
_FIRST_COMPLETION_TOKENS = 512


class LimiterClock:
    """What to add to the asker's clock to get the limiter's, measured by the quickest round trip of the last minute.

    Both clocks are monotonic, each of its own process: their difference means nothing but here, and holds for a while.

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
        """Takes the limiter's time of a lease that was asked for at `sent` and came at `received`.

        The offset lies between `limiter_now - received` and `limiter_now - sent`; the middle is off by half of the
        round trip at most. One outside of that is proven wrong: a clock was set, or the limiter is another process.
        """
        low, high = limiter_now - received, limiter_now - sent
        wrong = not low <= self.offset <= high
        old = received - self._measured_at >= MEASURE_SECONDS
        if wrong or old or received - sent < self._round_trip:
            self.offset, self._round_trip, self._measured_at = (low + high) / 2, received - sent, received

    def reset_clock_offset(self) -> None:
        """Measures anew with the next lease."""
        self._round_trip = float("inf")

    def local(self, limiter_time: float) -> float:
        """A time of the limiter's by the asker's clock."""
        return limiter_time - self.offset


class Pacing:
    """The slots that an asker holds, and whether it may send now."""

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
        """How many slots wait to be used."""
        return len(self._slots)

    @property
    def held_tokens(self) -> int:
        """What was reserved with these slots."""
        return sum(tokens for _, tokens in self._slots)

    @property
    def runs_low(self) -> bool:
        """Whether new slots should be asked for now."""
        return len(self._slots) < (1 if self.strict else PREFETCH // 2)

    def wait(self, now: float) -> float | None:
        """Seconds until the next slot may be used, 0 for now, None without a slot; missed ones are dropped.

        A slot is for its own time: used late, it would fall together with the next ones and exceed a second's bound.
        """
        while self._slots:
            at, tokens = self._slots[0]
            # Its tokens go back with the next report; its place in time is gone.
            if self.strict and (at < now - LATE_SECONDS or at < self.paused_until):
                self._slots.popleft()
                self._unused_tokens += tokens
                continue
            wait = max(at, self.paused_until) - now
            return wait if wait > _NO_WAIT else 0.0
        return None

    def use(self) -> int:
        """Takes the next slot; the tokens that are reserved with it."""
        _, tokens = self._slots.popleft()
        self.reserved += tokens
        return tokens

    def settle(self, reserved: int, used: int) -> None:
        """Ends the reservation of a call that used so many tokens."""
        self.reserved -= reserved
        self._unused_tokens += reserved - used

    def pause(self, seconds: float, now: float) -> None:
        """Sends nothing for so long."""
        self.paused_until = max(self.paused_until, now + seconds)

    def paused(self, now: float) -> float:
        """Seconds until the endpoint may be asked again."""
        return max(0.0, self.paused_until - now)

    def wanted(self, waiting: int, in_flight: int) -> int:
        """How many more slots are of use for so many waiting requests."""
        # One more than can be sent at once: it bridges the round trip of the next lease.
        room = max(1, self.places - in_flight) + 1 if self.strict else PREFETCH
        return max(0, min(waiting, room) - len(self._slots))

    def report(self, work: Work, spent: Usage, estimates: tuple[int, ...], in_flight: int, now: float) -> LimiterReport:
        """What is told with the next lease, but for the news; unused tokens are told once.

        `spent` has its cost. `ahead` says how far away the latest slot is that was ever leased, and `tokens_ahead` the
        room for the next tokens: seconds from now hold by whatever clock.
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
        """Takes the slots of a lease that was asked for at `sent`, with these estimates, and came at `received`."""
        self.clock.measure(lease.now, sent, received)
        self.places, self.strict, self.refusal = lease.places, lease.strict, lease.refusal
        self.paused_until = max(self.paused_until, self.clock.local(lease.paused_until))
        self._tokens_until = self.clock.local(lease.tokens_until)
        # Slots from before an outage would all be used as probes, at once.
        if lease.probing or lease.refusal:
            self._drop()
        times = [self.clock.local(time) for time in lease.times]
        self._slots.extend(zip(times, estimates, strict=False))
        if times:
            self._until = max(self._until, times[-1])
            # Late on arrival: the round trip was long, or the clocks are further apart than was measured.
            if times[0] < received - LATE_SECONDS:
                self.clock.reset_clock_offset()

    def _drop(self) -> None:
        """Gives up all slots; what was reserved with them is told with the next lease."""
        self._unused_tokens += self.held_tokens
        self._slots.clear()


class CompletionSizes:
    """What a completion of a stage is expected to take at most, in all but one of ten, from the last thousand.

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
        """Takes the size of a completion."""
        # In step with the deque, which is about to lose its first: found by bisection, in sorted order.
        if len(self._latest) == _COMPLETIONS_REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._latest[0])]
        self._latest.append(tokens)
        insort(self._sorted, tokens)

    @property
    def expected(self) -> int:
        """Tokens; a guess before the first completion."""
        if not self._sorted:
            return self._first
        return self._sorted[int(_COMPLETION_QUANTILE * (len(self._sorted) - 1))]
