"""One endpoint as an asker uses it: its client and slots, what is known of it, and what it used."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from math import ceil, floor
from time import monotonic
from typing import TYPE_CHECKING

from untold.udfs.llm.calls import Answer, Request, Work
from untold.udfs.llm.limiter import Lease, LimiterReport, Limits
from untold.udfs.llm.pacing import Pacing
from untold.udfs.llm.retrying import DOUBTS_IN_A_ROW, EndpointHealth
from untold.udfs.llm.text_models import LocalClassifier
from untold.udfs.llm.usage import NOTHING_USED, Usage, UsageCounter

if TYPE_CHECKING:
    from untold.udfs.llm.client import Endpoint

Lend = Callable[[LimiterReport], Awaitable[Lease]]
# While nothing of the run has ever succeeded, a user waits and watches: a minute is long enough to tell.
FIRST_OUTAGE_SECONDS = 60.0
# A budget is held by a limiter of its own where several endpoints spend it, which limits nothing else
NO_LIMITS = Limits(max_concurrency=10**9)


class Waiters:
    """Workers without a slot or a request, woken one by one.

    One, not all: with hundreds of workers, each slot would be hundreds of turns of the loop for one call.
    """

    def __init__(self) -> None:
        self._sleepers: deque[asyncio.Future[None]] = deque()
        self._alarm: asyncio.TimerHandle | None = None

    async def wait(self) -> None:
        """Until it is this worker's turn to look again."""
        sleeper = asyncio.get_running_loop().create_future()
        self._sleepers.append(sleeper)
        await sleeper

    def wake(self) -> None:
        """Wakes one worker, which wakes the next one where there is more to do."""
        while self._sleepers:
            sleeper = self._sleepers.popleft()
            # One that was cancelled while it slept cannot pass the turn on.
            if not sleeper.done():
                sleeper.set_result(None)
                return

    def wake_after(self, seconds: float) -> None:
        """Wakes one worker when the next slot's time comes."""
        loop = asyncio.get_running_loop()
        # One alarm is enough: a worker that wakes sets the next, for the slot that is first by then.
        if self._alarm is None or self._alarm.cancelled() or self._alarm.when() <= loop.time():
            self._alarm = loop.call_later(seconds, self.wake)


class Slots:
    """Slots of one limiter, kept at hand; `lend` may wait, and is asked by one loop alone.

    `work` is that of the asker, with the settings of this endpoint.
    """

    def __init__(self, work: Work, lend: Lend) -> None:
        self.work, self.lend = work, lend
        self.pacing = Pacing()
        self.needs_lease = asyncio.Event()
        self._reports = 0

    def wait(self, now: float) -> float | None:
        """Seconds until the next slot, 0 for now; None where new ones are needed, which are asked for."""
        wait = self.pacing.wait(now)
        if wait is None:
            self.needs_lease.set()
        return wait

    def use(self) -> int:
        """Takes the next slot; the tokens that are reserved with it."""
        reserved = self.pacing.use()
        if self.pacing.runs_low:
            self.needs_lease.set()
        return reserved

    def report(self, usage: Usage, estimates: tuple[int, ...], in_flight: int) -> LimiterReport:
        """What is told with the next lease, but for what is news."""
        self._reports += 1
        spent = self.work.settings.priced(usage)
        report = self.pacing.report(self.work, spent, estimates, in_flight, monotonic())
        return replace(report, number=self._reports)

    async def renew(self, report: LimiterReport) -> Lease:
        """Reports to the limiter, takes the slots that it grants, and learns what it knows."""
        sent = monotonic()
        lease = await self.lend(report)
        self.pacing.receive(lease, report.estimates, sent, monotonic())
        self.learn(lease)
        return lease

    def learn(self, lease: Lease) -> None:
        """Takes what the limiter knows of the endpoint from everybody."""


class Channel(Slots):
    """One endpoint. `held`: errors about the run that may turn out to be their rows' alone.

    `rejected`: requests with an error that every request may get, before any completion; `errors_differ`: these errors
    were not the same, so that each is its row's.
    """

    def __init__(self, work: Work, client: Endpoint | LocalClassifier, lend: Lend) -> None:
        super().__init__(work, lend)
        self.client = client
        self.standing = EndpointHealth(answered_ever=work.call.answered_before, completed=work.call.answered_before)
        self.tally = UsageCounter()
        self.models: set[str] = set()
        self.held: list[tuple[Request, Answer]] = []
        self.rejected: list[tuple[Request, Answer]] = []
        self.rejected_at = 0.0
        self.errors_differ = False
        self.in_flight = 0
        self.refused: str | None = None

    @property
    def usage(self) -> Usage:
        """What it was used for."""
        return self.tally.usage

    @property
    def label(self) -> str:
        """What the endpoint goes by in tables and messages."""
        return self.work.settings.label

    @property
    def is_out(self) -> bool:
        """Whether it is of no use now: it refuses the run, or is away but for single probes."""
        return self.refused is not None or self.standing.probing or self.pacing.refusal == "outage"

    @property
    def is_unlimited(self) -> bool:
        """Whether it is of use now, and nothing but its places limits it."""
        return not self.is_out and not self.pacing.strict

    def learn(self, lease: Lease) -> None:
        """Takes what the limiter knows of the endpoint from everybody."""
        self.standing.learn(lease, self.pacing.clock.local(lease.answered_at))

    @property
    def is_doubtful(self) -> bool:
        """Whether an error about the run came before any completion: most likely it is true of every row."""
        return bool(self.held) and not self.standing.completed

    @property
    def waits_for_completion(self) -> bool:
        """Return True if a rejected request may be one of a run in which all requests are rejected."""
        return not (self.standing.completed or self.errors_differ)

    @property
    def may_try(self) -> bool:
        """Return True unless as many requests are rejected, or in flight beside rejected ones, as end the run."""
        return not self.rejected or len(self.rejected) + self.in_flight < DOUBTS_IN_A_ROW

    @property
    def held_rows(self) -> int:
        """The rows of the requests that are held."""
        return sum(request.rows for request, _ in self.held)


class Channels:
    """The endpoints of an asker. `purse` leases the budget where there are several: each has a limiter of its own."""

    def __init__(self, work: Work, each: Sequence[Channel], purse: Slots | None = None) -> None:
        self.each, self.purse = each, purse
        self.slots: list[Slots] = [*each, *([purse] if purse else [])]
        self._settings = work.settings

    @property
    def in_flight(self) -> int:
        """Calls that are not answered yet."""
        return sum(channel.in_flight for channel in self.each)

    @property
    def used(self) -> Usage:
        """What all of them were used for; of a list of them with the cost, and with what each has of it."""
        total = sum((channel.usage for channel in self.each), NOTHING_USED)
        if not self._settings.endpoints:
            return total
        return self._settings.priced(replace(total, endpoints={each.label: each.usage for each in self.each}))

    @property
    def living(self) -> list[int]:
        """Those that are of use, by number."""
        return [number for number, channel in enumerate(self.each) if not channel.is_out]

    def others_live(self, channel: Channel) -> bool:
        """Whether another endpoint is of use."""
        return any(other is not channel and not other.is_out for other in self.each)

    @property
    def refused(self) -> str | None:
        """Why the run is refused: every endpoint refuses it."""
        if not all(channel.refused for channel in self.each):
            return None
        return self.each[0].refused if len(self.each) == 1 else "; ".join(self.left_out)

    @property
    def left_out(self) -> tuple[str, ...]:
        """A line for each endpoint that refuses the run."""
        return tuple(f"{channel.label}: {channel.refused}" for channel in self.each if channel.refused)

    @property
    def refusal(self) -> str | None:
        """Why nothing is leased: the budget, or an outage of every endpoint that does not refuse the run."""
        if self.purse and self.purse.pacing.refusal:
            return self.purse.pacing.refusal
        refusals = {channel.pacing.refusal for channel in self.each if not channel.refused}
        return refusals.pop() if len(refusals) == 1 else None

    def places_of_one(self) -> float:
        """How many calls an endpoint of the weight 1 has in flight, where what they have decides their shares.

        Infinite where there is only one. Once for all: with twenty endpoints, once for each is 400 looks a call.
        """
        unlimited = [each for each in self.each if each.is_unlimited] if len(self.each) > 1 else []
        if not unlimited:
            return float("inf")
        largest = max(each.work.settings.weight for each in unlimited)
        return max(each.pacing.places for each in unlimited) / largest

    def places(self, channel: Channel, of_one: float, *, ahead: bool) -> int:
        """How many calls an endpoint may have in flight now: those of its lease, or a part of them by its weight.

        Where nothing else limits the endpoints, what they have in flight decides their shares (`places_of_one`). One
        more or less, by whether it is `ahead` of its share, makes these exact.
        """
        most, share = channel.pacing.places, of_one * channel.work.settings.weight
        if share >= most or not channel.is_unlimited:
            return most
        return max(1, ceil(share) - 1) if ahead else min(most, floor(share) + 1)

    def need_leases(self) -> None:
        """Asks for slots of all limiters."""
        for slots in self.slots:
            slots.needs_lease.set()

    def report(self, slots: Slots, estimates: tuple[int, ...]) -> LimiterReport:
        """What is told with the next lease, with all that is news since the last one."""
        if not isinstance(slots, Channel):
            return slots.report(self.used, estimates, self.in_flight)
        completed = any(channel.standing.completed for channel in self.each)
        outage = self._settings.outage if completed else min(FIRST_OUTAGE_SECONDS, self._settings.outage)
        # While another answers it is probed for as long as it takes
        patience = float("inf") if self.others_live(slots) else outage
        report = slots.report(slots.usage, estimates, slots.in_flight)
        return replace(report, outage_seconds=patience, **vars(slots.standing.tell()))

    def settle(self, channel: Channel, reserved: tuple[int, int], used: int, *, lost: bool = False) -> None:
        """Ends what was reserved of the limit and of the budget for a call of so many tokens.

        What became of a call without an answer nobody knows; the limit holds whichever it was, so that all of it is
        used up.
        """
        for slots, tokens in zip((channel, self.purse), reserved, strict=True):
            if slots is not None:
                slots.pacing.settle(tokens, max(used, tokens) if lost else used)
