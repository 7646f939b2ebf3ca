"""The limiter of one endpoint and model. It leases time slots, calls in flight and budget to clients.

The state of a rate is one time, the next free slot, so a restart grants no burst. `Limiter` does not use Ray.
`limiter_actor` puts the limiters of all endpoints into the detached named actor that all runs of a Ray cluster share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from untold.udfs.llm.usage import NOTHING_USED, Prices, Usage

# A lease has the slots of a quarter of a second. With longer leases, two clients exceed the limit of a second
HORIZON = 0.25
# Slots at 99 % of a limit used 98.6 to 99.0 % of it and never exceeded it within a minute (measured)
SHARE_OF_LIMIT = 0.99
# The maximum distance of a slot, because one wrong usage could stop all runs for days. After a minute without a call,
# any call is within the limits of a minute
FURTHEST_SLOT = 60.0
# This number of errors of the endpoint in a row is an outage, and the requests are not the reason
OUTAGE_FAULTS = 50
PROBE_SECONDS = 10.0
# A client reports four times a second. After this time without a report it is dead, and its places are free
CLIENT_EXPIRY = 30.0
# After this time without a report of a client, a run is over, and its usage is removed
FORGET_SECONDS = 3600.0
# Every client has reported to a restarted limiter after this time: four reports
SETTLE_SECONDS = 1.0
# Rate control after a 429: 30 % less at most once per second, and 10 % more after each second with calls
SHRINK = 0.7
GROW = 1.1
STEP_SECONDS = 1.0
LOWEST_RATE = 0.05
NEVER = float("-inf")


@dataclass(frozen=True)
class Limits:
    """The limits in the settings: requests and tokens per minute (None is no limit), and calls in flight."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrency: int = 64


@dataclass(frozen=True)
class Budget:
    """The budget of a run: calls, tokens and cost (None is no limit)."""

    max_calls: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None

    def allows(self, usage: Usage) -> bool:
        """Return True if the usage is within the budget."""
        pairs = (
            (usage.calls, self.max_calls),
            (usage.tokens, self.max_tokens),
            (usage.cost or 0.0, self.max_cost),
        )
        return all(bound is None or value <= bound for value, bound in pairs)


@dataclass
class EndpointNews:
    """The responses of an endpoint to a client since its last report.

    Attributes:
        answered: True if there was a response. `served`: a response other than 429. `completed`: a completion.
        faults: errors of the endpoint since its last response.
        doubts: errors about the run, and not only about a row, since the last completion.
        limited: True after a 429. `retry_after`: the longest wait that the endpoint requested, or None.
    """

    successes: int = 0
    answered: bool = False
    served: bool = False
    completed: bool = False
    faults: int = 0
    doubts: int = 0
    limited: bool = False
    retry_after: float | None = None


@dataclass(frozen=True)
class LimiterReport:
    """The report of a client with each request for a lease.

    Attributes:
        run: id of one call of a stage.
        estimates: tokens of the next calls that need slots.
        number: number of the report, from 1. A report that is sent twice counts once.
        held: unused slots of the client, with `held_tokens`.
        spent: usage since the start of the client. `spent_before`: usage of the run before the client started.
        unused_tokens: leased minus used tokens of calls that finished or were dropped since the last report, negative
            if more were used.
        ahead: seconds from now to the latest slot that the client ever got.
        places: calls in flight that the last known lease allows.
        gone: usage of dead clients of the run, by name. Only a restarted limiter needs this and the next two fields.
        paused: seconds until clients may send.
        tokens_ahead: seconds until the limit of tokens allows a call, by the last lease.
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
    prices: Prices = field(default_factory=Prices)
    unused_tokens: int = 0
    news: EndpointNews = field(default_factory=EndpointNews)
    ahead: float = NEVER
    places: int = 0
    gone: Mapping[str, Usage] = field(default_factory=dict)
    paused: float = 0.0
    tokens_ahead: float = NEVER
    outage_seconds: float = 600.0
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)

    def expects(self, calls: int, tokens: int) -> Usage:
        """Return the expected usage of `calls` calls with `tokens` tokens in total."""
        cost = tokens * self.prices.most_of_a_token + calls * self.prices.of_a_call
        return Usage(tokens, calls=calls, cost=cost)


@dataclass(frozen=True)
class Lease:
    """The grant of the limiter. Times are seconds of the clock of the limiter.

    Attributes:
        times: time of each granted call, in order.
        places: number of calls that the client may have in flight from now on.
        paused_until: no client sends before this time.
        refusal: None, `budget` or `outage`.
        probing: True during an outage, in which a failure is not an attempt.
        strict: True if slots are spaced, so that a missed slot cannot be used later.
        answered_at: time of the last response of the endpoint to any client.
        completed: True after a completion of the run. `doubts`: errors about the run since the last completion.
        tokens_until: time from which the limit of tokens allows calls, with used tokens beyond their estimates.
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
    """The state of a client.

    Attributes:
        seen: time of its last report. `number`: number of that report.
        places: calls in flight of its last lease. `may_hold`: their maximum until its next report.
        left: True if it gets no more slots. Its node may seem dead while it is still alive.
    """

    seen: float
    wants: bool = False
    places: int = 0
    may_hold: int = 0
    number: int = 0
    left: bool = False

    def free(self) -> None:
        """Set its places to 0."""
        self.places, self.may_hold, self.wants = 0, 0, False


@dataclass
class _RunAccount:
    """The state of a run. `committed` is the usage that each of its clients, living or dead, has or may have."""

    began: float
    seen: float
    spent_before: Usage = field(default_factory=Usage)
    committed: dict[str, Usage] = field(default_factory=dict)
    completed: bool = False
    doubts: int = 0

    @property
    def spent(self) -> Usage:
        """The usage that all its starts have or may have, including dead clients."""
        return sum(self.committed.values(), self.spent_before)


class Limiter:
    """The limits of one endpoint. `clock` returns seconds and never decreases.

    A `restarted` limiter does not know the leases before its start. Until all clients have reported, it grants no
    additional calls in flight and no budget. The reports of living clients contain the usage of dead clients, pauses,
    and tokens beyond estimates.

    A lease has slots within a quarter of a second. At 600 requests per minute, the second slot is later:

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
        # After one horizon, because an earlier limiter has leased slots until then
        self._next_request = start
        self._next_token = start
        self._paused_until = NEVER
        self._rate: float | None = None
        self._stepped = start - HORIZON - STEP_SECONDS
        self._successes = 0
        self._success_rate = 0.0
        self._faults = 0
        self._fault_since: float | None = None
        self._limited_since: float | None = None
        self._limited_at = NEVER
        self._answered_at = NEVER
        self._next_probe = NEVER
        self._clients: dict[str, _Client] = {}
        self._runs: dict[str, _RunAccount] = {}

    def lease(self, report: LimiterReport) -> Lease:
        """Grant slots to a client within the limits, the state of the endpoint and the budget of the run.

        Never waits and never raises. The client sends another report for calls without a slot.
        """
        now = self._clock()
        client, run = self._find(report, now)
        # A client sends a report again if its lease was lost. Successes and errors count once
        if report.number == 0 or report.number > client.number:
            client.number = report.number
            self._observe(report, run, now)
        places = self._share_places(report, client, now)
        refusal, probing = self._outage(report, run, now)
        wanted = report.estimates if refusal is None and not client.left else ()
        if probing:
            wanted = wanted[:1] if now >= self._next_probe else ()
        affordable, spent_up = self._afford(report, run, wanted, now)
        times = self._slots(report.limits, affordable, now, now + report.ahead)
        if probing and times:
            self._next_probe = now + min(PROBE_SECONDS, report.outage_seconds / 4)
        # Leased calls count as spent until the next report, so that two clients cannot both use the rest of a budget
        run.committed[report.client] += report.expects(len(times), sum(affordable[: len(times)]))
        if spent_up and refusal is None:
            refusal = "budget"
        return Lease(
            now,
            tuple(times),
            places,
            self._paused_until,
            refusal,
            probing,
            strict=self._rate_now(report.limits) is not None or report.limits.tokens_per_minute is not None,
            answered_at=self._answered_at,
            completed=run.completed,
            doubts=run.doubts,
            tokens_until=self._next_token,
        )

    def leave(self, client: str) -> Usage:
        """Free the places of a client that ended. Return the usage that it has or may have, which stays counted."""
        if client in self._clients:
            self._clients[client].left = True
            self._clients[client].free()
        return next((run.committed[client] for run in self._runs.values() if client in run.committed), NOTHING_USED)

    def _find(self, report: LimiterReport, now: float) -> tuple[_Client, _RunAccount]:
        """Return the client and the run of a report, with updated usage."""
        client = self._clients.setdefault(report.client, _Client(now))
        run = self._runs.setdefault(report.run, _RunAccount(now, now))
        client.seen = run.seen = now
        run.committed[report.client] = report.spent + report.expects(report.held, report.held_tokens)
        run.spent_before = _more(run.spent_before, report.spent_before)
        for name, spent in report.gone.items():
            run.committed[name] = _more(run.committed.get(name, NOTHING_USED), spent)
        # Only shortly after a restart: later, tokens were returned, and a repeated pause would grow with each report
        if now < self._settled:
            self._paused_until = max(self._paused_until, now + report.paused)
            self._next_token = max(self._next_token, now + min(report.tokens_ahead, FURTHEST_SLOT))
        return client, run

    def _observe(self, report: LimiterReport, run: _RunAccount, now: float) -> None:
        """Update the endpoint and the run from the news of a report."""
        news = report.news
        run.completed |= news.completed
        # A completion of any client resets the number of doubts
        run.doubts = news.doubts if news.completed else run.doubts + news.doubts
        # Unused tokens move the next slot to an earlier time, and tokens beyond estimates to a later one
        self._next_token -= _seconds_of(report.unused_tokens, report.limits.tokens_per_minute)
        if news.answered:
            self._faults, self._fault_since, self._answered_at = 0, None, now
        if news.faults:
            self._fault_since = self._fault_since or now
            self._faults += news.faults
        if news.served:
            self._limited_since = None
        if news.limited:
            self._limited_since, self._limited_at = self._limited_since or now, now
        if news.retry_after is not None:
            self._paused_until = max(self._paused_until, now + news.retry_after)
        self._successes += news.successes
        # Several 429s at one time come from calls at the old rate, and each would reduce it again
        if now - self._stepped >= STEP_SECONDS:
            self._change_rate(report.limits, now, limited=news.limited)

    def _change_rate(self, limits: Limits, now: float, *, limited: bool) -> None:
        """Reduce the rate after a 429 (`SHRINK`), or increase it after successful calls (`GROW`).

        The reduced rate starts from the successful calls per second of this or the last step. At the limit of the
        settings, the rate is free again. A rate without calls is not proven, so it stays.
        """
        observed = self._successes / (now - self._stepped)
        if limited:
            rate = self._rate_now(limits) or max(observed, self._success_rate, 1.0)
            self._rate = max(LOWEST_RATE, rate * SHRINK)
        elif self._rate is not None and self._successes:
            self._rate *= GROW
            ceiling = _ceiling(limits)
            if ceiling is not None and self._rate >= ceiling:
                self._rate = None
        self._success_rate, self._successes, self._stepped = observed, 0, now

    def _rate_now(self, limits: Limits) -> float | None:
        """Return the requests per second: the share of the limit, or less after a 429. None is no limit."""
        rates = [rate for rate in (self._rate, _ceiling(limits)) if rate is not None]
        return min(rates) if rates else None

    def _share_places(self, report: LimiterReport, client: _Client, now: float) -> int:
        """Return the calls in flight for a client: an equal share per active client, within the rest of the limit.

        Until its next report, a client can use its last lease or this one.
        """
        self._forget(now)
        client.wants = report.in_flight + report.held + len(report.estimates) > 0
        held_by_others = sum(other.may_hold for other in self._clients.values() if other is not client)
        busy = sum(1 for other in self._clients.values() if other.wants)
        # Rounded up, so that no place is lost. The places of the other clients limit the sum
        share = -(-report.limits.max_concurrency // max(busy, 1))
        places = max(0, min(share, report.limits.max_concurrency - held_by_others)) if client.wants else 0
        if now < self._settled:
            places = min(places, report.places)
        client.may_hold = max(client.places, report.places, places, report.in_flight)
        client.places = places
        return places

    def _forget(self, now: float) -> None:
        """Free the places of clients without reports, and remove old clients and runs."""
        for name, other in list(self._clients.items()):
            if now - other.seen >= CLIENT_EXPIRY:
                other.free()
            if now - other.seen >= FORGET_SECONDS:
                del self._clients[name]
        for name, run in list(self._runs.items()):
            if now - run.seen >= FORGET_SECONDS:
                del self._runs[name]

    def _outage(self, report: LimiterReport, run: _RunAccount, now: float) -> tuple[str | None, bool]:
        """Return `outage` after the time in the report, and True if calls are probes.

        Only 429s are an outage if they last for that time. The limiter first waits for a pause that the endpoint
        requested.
        """
        probing = self._faults >= OUTAGE_FAULTS
        away = now - max(self._fault_since, run.began) if probing and self._fault_since is not None else 0.0
        limited = 0.0 if self._limited_since is None else self._limited_at - max(self._limited_since, run.began)
        return ("outage" if max(away, limited) >= report.outage_seconds else None), probing

    def _afford(
        self, report: LimiterReport, run: _RunAccount, wanted: tuple[int, ...], now: float
    ) -> tuple[tuple[int, ...], bool]:
        """Return the first calls within the rest of the budget, and True if the budget is used up."""
        if report.budget == Budget():
            return wanted, False
        if now < self._settled:
            return (), False
        committed = run.spent
        affordable = 0
        for estimate in wanted:
            committed += report.expects(1, estimate)
            if not report.budget.allows(committed):
                break
            affordable += 1
        # Calls in flight may use less than estimated and leave budget for another call
        idle = report.in_flight == 0 and report.held == 0
        return wanted[:affordable], bool(wanted) and affordable == 0 and idle

    def _slots(self, limits: Limits, estimates: tuple[int, ...], now: float, until: float) -> list[float]:
        """Return the times of the first calls, which start within the horizon."""
        rate = self._rate_now(limits)
        start = max(now, self._paused_until)
        if start > now + FURTHEST_SLOT:
            return []
        if rate is None and limits.tokens_per_minute is None:
            return [start] * len(estimates)
        spacing = 1.0 / rate if rate else 0.0
        # Below one request per minute, the slot after the horizon can be further away
        horizon = max(HORIZON, spacing)
        furthest = start + max(FURTHEST_SLOT, horizon + spacing)
        if self._restarted:
            # Only a dead client may know the last slot before the restart
            self._restarted, self._next_request = False, self._next_request + spacing
        # After a restart, clients know slots that this limiter does not, so the next slot comes after these
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
    """Return the leased requests per second for a limit of requests per minute, None without a limit."""
    return None if limits.requests_per_minute is None else limits.requests_per_minute * SHARE_OF_LIMIT / 60.0


def _seconds_of(tokens: int, tokens_per_minute: float | None) -> float:
    """Return the seconds in which the limit allows these tokens: 0 without a limit, negative for returned tokens."""
    return 0.0 if tokens_per_minute is None else tokens * 60.0 / (tokens_per_minute * SHARE_OF_LIMIT)


def _more(first: Usage, second: Usage) -> Usage:
    """Return the later of two usages of a client, which has more calls."""
    return max(first, second, key=lambda spent: spent.calls)
