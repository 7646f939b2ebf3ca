"""The limiter of one endpoint and model: leases time slots, in-flight places and budget to everyone who asks.

Its whole state for a rate is one time, the next free slot, so a restart grants no burst. `Limiter` knows nothing of
Ray; `lending` puts those of all endpoints into the detached named actor that all runs of a Ray cluster share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from untold.udfs.llm.usage import NOTHING_USED, Usage

# Slots are leased for a quarter of a second of the rate: longer leases, and two clients exceed a second's bound.
HORIZON = 0.25
# Slots at 99 % of a limit used 98.6-99.0 % of it, and never exceeded it within a minute (measured).
SHARE_OF_LIMIT = 0.99
# No slot is further away than this, whatever was reported: one wrong usage would stop every run for days else. After a
# minute without a call any call is within the limits of a minute.
FURTHEST_SLOT = 60.0
# So many faults in a row, with no other answer between, are the endpoint's outage and not its requests' fault.
OUTAGE_FAULTS = 50
PROBE_SECONDS = 10.0
# A client reports four times a second; one that is silent for so long is gone, and its places are free.
CLIENT_EXPIRY = 30.0
# A run of which no client reported for so long is over, and what it spent is forgotten.
FORGET_SECONDS = 3600.0
# By then every client has reported to a limiter that was restarted: four polls.
SETTLE_SECONDS = 1.0
# Rate control after a 429: down by a third at most once a second, up by a tenth each second that is used.
SHRINK = 0.7
GROW = 1.1
STEP_SECONDS = 1.0
LOWEST_RATE = 0.05
NEVER = float("-inf")


@dataclass(frozen=True)
class Limits:
    """What the settings promise the endpoint: requests and tokens a minute (None: no limit), calls in flight."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrency: int = 64


@dataclass(frozen=True)
class Budget:
    """What a run may spend: calls, tokens and cost (None: no bound)."""

    max_calls: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None


@dataclass(frozen=True)
class LimiterReport:
    """What a client tells with every lease. Counts are since the last report unless said otherwise.

    `run` is one asking of a stage. `estimates`: tokens of the next calls it wants slots for. `number`: of the
    report, from 1; one that is sent twice is told once. `held`: unused slots it keeps, with `held_tokens`. `spent`:
    since the client started; `spent_before`: of the run before this client existed. `unused_tokens`: leased minus used
    of what ended or was dropped (negative where more was used). `faults`: failures to reach the endpoint since its last
    other answer; `answered`: whether there was another answer, `served`: one that was no 429, `completed`: one with a
    completion. `doubts`: errors about the run rather than a row since the last completion. `retry_after`: the longest
    wait that the endpoint asked for, None without any. `ahead`: seconds from now to the latest slot that it ever got.
    `places`: what it may have in flight by the last lease that it knows. Three more that only a limiter which was
    restarted does not know: `gone`, what clients of the run that died had spent, by their names; `paused`, seconds
    until anybody may send; `tokens_ahead`, seconds until the limit in tokens has room, by the last lease.
    """

    client: str
    run: str
    estimates: tuple[int, ...]
    in_flight: int
    number: int = 0
    held: int = 0
    held_tokens: int = 0
    spent: Usage = field(default_factory=Usage)
    spent_before: Usage = field(default_factory=Usage)
    cost_per_token: float = 0.0
    cost_per_call: float = 0.0
    unused_tokens: int = 0
    successes: int = 0
    answered: bool = False
    served: bool = False
    completed: bool = False
    faults: int = 0
    doubts: int = 0
    limited: bool = False
    retry_after: float | None = None
    ahead: float = NEVER
    places: int = 0
    gone: Mapping[str, Usage] = field(default_factory=dict)
    paused: float = 0.0
    tokens_ahead: float = NEVER
    outage_seconds: float = 600.0
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)

    def expects(self, calls: int, tokens: int) -> Usage:
        """What so many calls with so many tokens together may cost."""
        return Usage(tokens, calls=calls, cost=tokens * self.cost_per_token + calls * self.cost_per_call)


@dataclass(frozen=True)
class Lease:
    """What the limiter grants: `times` (seconds by the limiter's clock, one a call, in order) and `places`, how many
    calls the client may have in flight from now on. `paused_until`: nobody sends before. `refusal`: None, `budget` or
    `outage`. `probing`: an outage is going on, and a failure now costs no attempt. `strict`: slots are spaced, one that
    is missed must not be used late. `answered_at`: when the endpoint last answered anybody. `completed`: whether a
    completion ever came to the run, `doubts`: how many errors about the run came since the last one. `tokens_until`:
    from when on the limit in tokens has room, what was used beyond its estimate paid back.
    """

    now: float
    times: tuple[float, ...]
    places: int
    paused_until: float
    refusal: str | None
    probing: bool
    strict: bool
    answered_at: float = NEVER
    completed: bool = False
    doubts: int = 0
    tokens_until: float = NEVER


@dataclass
class _Client:
    """What is known of a client: `places` it has by its last lease, `may_hold` is the most that it may act by until its
    next report, `number` is that of its last report. `seen` is the time of that. One that `left` is given no slot: it
    may have been taken for dead with its node and live on.
    """

    seen: float
    wants: bool = False
    places: int = 0
    may_hold: int = 0
    number: int = 0
    left: bool = False

    def free(self) -> None:
        """Takes its places back."""
        self.places, self.may_hold, self.wants = 0, 0, False


@dataclass
class _RunAccount:
    """What is known of a run: `committed` is what each of its clients, living or dead, spent or may spend."""

    began: float
    seen: float
    spent_before: Usage = field(default_factory=Usage)
    committed: dict[str, Usage] = field(default_factory=dict)
    completed: bool = False
    doubts: int = 0

    @property
    def spent(self) -> Usage:
        """What all of its starts spent or may spend, those of clients that are dead included."""
        return sum(self.committed.values(), self.spent_before)


class Limiter:
    """One endpoint's limits. `clock` gives seconds, and never goes back.

    A `restarted` one does not know what was leased before: until everybody has reported, it grants no place that the
    client does not have, and nothing on a budget. What it knew of clients that are dead, of pauses and of tokens used
    beyond their estimates, the living tell it.

    At 600 requests a minute the next slot is a tenth of a second after the first, and so beyond the quarter that is
    leased:

    >>> limiter = Limiter(clock=lambda: 0.0)
    >>> limits = Limits(requests_per_minute=600)
    >>> asked = LimiterReport("actor", "run/stage", estimates=(0, 0), in_flight=0, limits=limits)
    >>> limiter.lease(asked).times
    (0.25,)
    """

    def __init__(self, clock: Callable[[], float] = monotonic, *, restarted: bool = False) -> None:
        self._clock = clock
        start = clock() + HORIZON
        self._restarted = restarted
        self._settled = start + SETTLE_SECONDS if restarted else start - HORIZON
        # A horizon from now: what a limiter before this one leased lies before that.
        self._next_request = start
        self._next_token = start
        self._paused_until = NEVER
        self._rate: float | None = None
        self._stepped = NEVER
        self._successes = 0
        self._success_rate = 0.0
        self._counted = start
        self._faults = 0
        self._fault_since: float | None = None
        self._limited_since: float | None = None
        self._limited_at = NEVER
        self._answered_at = NEVER
        self._next_probe = NEVER
        self._clients: dict[str, _Client] = {}
        self._runs: dict[str, _RunAccount] = {}

    def lease(self, report: LimiterReport) -> Lease:
        """Takes a client's report and grants what the limits, the endpoint's state and the run's budget allow.

        Never waits and never raises: what cannot be granted is left out, and the client asks again.
        """
        now = self._clock()
        client, run = self._find(report, now)
        self._recall(report, now)
        # A report that was told and whose lease was lost is told again; successes and faults count once.
        if report.number == 0 or report.number > client.number:
            client.number = report.number
            self._observe(report, now)
            self._observe_run(report, run)
        places = self._share_places(report, client, now)
        refusal, probing = self._outage(report, run, now)
        wanted = report.estimates if refusal is None and not client.left else ()
        if probing:
            wanted = wanted[:1] if now >= self._next_probe else ()
        affordable, spent_up = self._afford(report, run, wanted, now)
        times = self._slots(report.limits, affordable, now, now + report.ahead)
        if probing and times:
            self._next_probe = now + min(PROBE_SECONDS, report.outage_seconds / 4)
        # Leased is spent until the next report says otherwise: two clients cannot both have the last of a budget.
        run.committed[report.client] += report.expects(len(times), sum(affordable[: len(times)]))
        if spent_up and refusal is None:
            refusal = "budget"
        strict = self._rate_now(report.limits) is not None or report.limits.tokens_per_minute is not None
        paused, answered, told = self._paused_until, self._answered_at, (run.completed, run.doubts)
        return Lease(now, tuple(times), places, paused, refusal, probing, strict, answered, *told, self._next_token)

    def leave(self, client: str) -> Usage:
        """Frees the places of a client that is gone; what it spent, or might have, stays spent and is given."""
        if client in self._clients:
            self._clients[client].left = True
            self._clients[client].free()
        return next((run.committed[client] for run in self._runs.values() if client in run.committed), NOTHING_USED)

    def _find(self, report: LimiterReport, now: float) -> tuple[_Client, _RunAccount]:
        """The client and the run of a report, brought up to date with what it may spend."""
        client = self._clients.setdefault(report.client, _Client(now))
        run = self._runs.setdefault(report.run, _RunAccount(now, now))
        client.seen = run.seen = now
        run.committed[report.client] = report.spent + report.expects(report.held, report.held_tokens)
        run.spent_before = _more(run.spent_before, report.spent_before)
        for name, spent in report.gone.items():
            run.committed[name] = _more(run.committed.get(name, NOTHING_USED), spent)
        return client, run

    def _recall(self, report: LimiterReport, now: float) -> None:
        """Learns from a client what was forgotten with a restart."""
        # Later it would count for more than it is: tokens are given back meanwhile, and a pause that clients hand to
        # each other grows by the time that a report takes.
        if now < self._settled:
            self._paused_until = max(self._paused_until, now + report.paused)
            self._next_token = max(self._next_token, now + min(report.tokens_ahead, FURTHEST_SLOT))

    def _observe_run(self, report: LimiterReport, run: _RunAccount) -> None:
        """Takes what a client tells of its run: a completion ends the row of doubts, whoever had them."""
        run.completed |= report.completed
        run.doubts = report.doubts if report.completed else run.doubts + report.doubts

    def _observe(self, report: LimiterReport, now: float) -> None:
        """Takes what a client tells of the endpoint: what it used, whether it was answered, limited, or could not reach
        it.
        """
        # What was leased and not used is time that the next slots need not wait for; used beyond, time that they do.
        self._next_token -= _seconds_of(report.unused_tokens, report.limits.tokens_per_minute)
        if report.answered:
            self._faults, self._fault_since, self._answered_at = 0, None, now
        if report.faults:
            self._fault_since = self._fault_since or now
            self._faults += report.faults
        if report.served:
            self._limited_since = None
        if report.limited:
            self._limited_since, self._limited_at = self._limited_since or now, now
        self._successes += report.successes
        if report.retry_after is not None:
            self._paused_until = max(self._paused_until, now + report.retry_after)
        if report.limited:
            self._slow_down(report, now)
        elif now - self._stepped >= STEP_SECONDS:
            self._speed_up(report.limits, now)

    def _slow_down(self, report: LimiterReport, now: float) -> None:
        """After a 429, once a second: `SHRINK` times the rate, or of the calls a second that succeeded."""
        # The 429s of one moment come from calls that were sent at the old rate; each would shrink it again.
        if now - self._stepped < STEP_SECONDS:
            return
        observed = self._successes / max(now - self._counted, STEP_SECONDS)
        rate = self._rate_now(report.limits) or max(observed, self._success_rate, 1.0)
        self._rate = max(LOWEST_RATE, rate * SHRINK)
        self._start_step(now)

    def _speed_up(self, limits: Limits, now: float) -> None:
        """A tenth more where calls succeeded; at the limit of the settings the rate is free again."""
        # A rate that nobody uses is proven by nothing.
        used = self._successes > 0
        if self._rate is not None and used:
            self._rate *= GROW
            ceiling = _ceiling(limits)
            if ceiling is not None and self._rate >= ceiling:
                self._rate = None
        self._start_step(now)

    def _start_step(self, now: float) -> None:
        """Begins to count successes anew, and remembers their rate: the 429 may come just after."""
        self._success_rate = self._successes / max(now - self._counted, STEP_SECONDS)
        self._successes = 0
        self._counted = self._stepped = now

    def _rate_now(self, limits: Limits) -> float | None:
        """Requests a second: the limit's share, or less after a 429; None for as fast as possible."""
        rates = [rate for rate in (self._rate, _ceiling(limits)) if rate is not None]
        return min(rates) if rates else None

    def _share_places(self, report: LimiterReport, client: _Client, now: float) -> int:
        """In-flight places: an equal share for everyone active, never more than is left by what others may hold.

        Until its next report a client may act by its last lease or by this one.
        """
        self._forget(now)
        client.wants = report.in_flight + report.held + len(report.estimates) > 0
        held_by_others = sum(other.may_hold for other in self._clients.values() if other is not client)
        busy = sum(1 for other in self._clients.values() if other.wants)
        # Rounded up, so that no place is lost; what is over in sum is held back by what the others hold.
        share = -(-report.limits.max_concurrency // max(busy, 1))
        places = max(0, min(share, report.limits.max_concurrency - held_by_others)) if client.wants else 0
        if now < self._settled:
            places = min(places, report.places)
        client.may_hold = max(client.places, report.places, places, report.in_flight)
        client.places = places
        return places

    def _forget(self, now: float) -> None:
        """Frees the places of clients that are silent, and forgets clients and runs that are long gone."""
        for name, other in list(self._clients.items()):
            if now - other.seen >= CLIENT_EXPIRY:
                other.free()
            if now - other.seen >= FORGET_SECONDS:
                del self._clients[name]
        for name, run in list(self._runs.items()):
            if now - run.seen >= FORGET_SECONDS:
                del self._runs[name]

    def _outage(self, report: LimiterReport, run: _RunAccount, now: float) -> tuple[str | None, bool]:
        """`outage` where it has lasted, for this run, as long as the report allows; and whether calls are probes.

        429s alone are one where the last of them came that long after the first: a pause that the endpoint asked for
        is waited for, and what comes after it decides.
        """
        probing = self._faults >= OUTAGE_FAULTS
        away = now - max(self._fault_since, run.began) if probing and self._fault_since is not None else 0.0
        limited = 0.0 if self._limited_since is None else self._limited_at - max(self._limited_since, run.began)
        return ("outage" if max(away, limited) >= report.outage_seconds else None), probing

    def _afford(
        self, report: LimiterReport, run: _RunAccount, wanted: tuple[int, ...], now: float
    ) -> tuple[tuple[int, ...], bool]:
        """The leading calls that the run's budget still covers, and whether it is used up for good."""
        if report.budget == Budget():
            return wanted, False
        if now < self._settled:
            return (), False
        committed = run.spent
        affordable = 0
        for estimate in wanted:
            committed += report.expects(1, estimate)
            if not _within(committed, report.budget):
                break
            affordable += 1
        # What is in flight or held may turn out to cost less than estimated, and leave something for one call more.
        idle = report.in_flight == 0 and report.held == 0
        return wanted[:affordable], bool(wanted) and affordable == 0 and idle

    def _slots(self, limits: Limits, estimates: tuple[int, ...], now: float, until: float) -> list[float]:
        """Times for the leading calls that start within the horizon."""
        rate = self._rate_now(limits)
        start = max(now, self._paused_until)
        if start > now + FURTHEST_SLOT:
            return []
        if rate is None and limits.tokens_per_minute is None:
            return [start] * len(estimates)
        spacing = 1.0 / rate if rate else 0.0
        # Below one request a minute the next slot after one at the horizon is rightly further away
        horizon = max(HORIZON, spacing)
        furthest = start + max(FURTHEST_SLOT, horizon + spacing)
        if self._restarted:
            # The last slot before the restart may be one that only a client who is gone knew of.
            self._restarted, self._next_request = False, self._next_request + spacing
        # After a restart a client knows of slots that this limiter does not: the next one comes after the latest of
        # them.
        self._next_request = min(max(self._next_request, until + spacing, start), furthest)
        self._next_token = min(max(self._next_token, start), start + FURTHEST_SLOT)
        times: list[float] = []
        for estimate in estimates:
            at = max(self._next_request, self._next_token)
            if at > start + horizon or at > now + max(FURTHEST_SLOT, spacing):
                break
            times.append(at)
            self._next_request = at + spacing
            self._next_token = at + _seconds_of(estimate, limits.tokens_per_minute)
        return times


def _ceiling(limits: Limits) -> float | None:
    """Requests a second that are leased of a limit in requests a minute; None without a limit."""
    return None if limits.requests_per_minute is None else limits.requests_per_minute * SHARE_OF_LIMIT / 60.0


def _seconds_of(tokens: int, tokens_per_minute: float | None) -> float:
    """How long so many tokens fill their limit, in seconds; 0 without a limit, negative for tokens given back."""
    return 0.0 if tokens_per_minute is None else tokens * 60.0 / (tokens_per_minute * SHARE_OF_LIMIT)


def _more(first: Usage, second: Usage) -> Usage:
    """The later of two accounts of the same client: calls only grow."""
    return max(first, second, key=lambda spent: spent.calls)


def _within(spent: Usage, budget: Budget) -> bool:
    """Whether what was spent is no more than each bound of the budget."""
    pairs = (
        (spent.calls, budget.max_calls),
        (spent.tokens, budget.max_tokens),
        (spent.cost or 0.0, budget.max_cost),
    )
    return all(bound is None or value <= bound for value, bound in pairs)
