"""Send requests to one or several endpoints, through a queue for all and a channel for each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import ceil, floor
from time import monotonic
from typing import TYPE_CHECKING
from zlib import crc32

from untold.udfs.llm.calls import Answer, Request, Work
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.limiter import Lease, LimiterReport, Limits
from untold.udfs.llm.pacing import Pacing
from untold.udfs.llm.retrying import ASK_AGAIN, DOUBTS_IN_A_ROW, EndpointHealth, is_fault
from untold.udfs.llm.templates import order_of_variables
from untold.udfs.llm.text_models import LocalClassifier
from untold.udfs.llm.usage import NOTHING_USED, Usage, UsageCounter

if TYPE_CHECKING:
    from untold.udfs.llm.client import Endpoint


def gather(rows: Sequence[Request], size: int) -> Iterator[Request]:
    """Requests of up to `size` rows each, in their order.

    >>> rows = [Request(str(number), {}, "unit") for number in range(5)]
    >>> [request.rows for request in gather(rows, 2)]
    [2, 2, 1]
    """
    for first in range(0, len(rows), size):
        members = list(rows[first : first + size])
        yield Request(members[0].request_id, members[0].variables, members[0].unit, members=members)


def split(request: Request, attempts: int) -> tuple[Request, Request]:
    """Two requests for the halves of its rows, with the deadline that it has, as if `attempts` were used up.

    Its calls are theirs too: those that they make are no first attempts.
    """
    middle = request.rows // 2
    first, second = request.members[:middle], request.members[middle:]
    return _part_of(request, first, attempts), _part_of(request, second, attempts)


def _part_of(request: Request, members: list[Request], attempts: int) -> Request:
    return Request(
        members[0].request_id,
        members[0].variables,
        request.unit,
        attempts=attempts,
        calls=request.calls,
        first_sent=request.first_sent,
        first_fault=request.first_fault,
        last=request.last,
        members=members,
    )


def attempts_of_halves(request: Request, answer: Answer, max_attempts: int) -> int:
    """How many attempts the halves of a request have behind them, after the answer that it ended with.

    A 4xx was never repeated: they keep what the request had left before it. Else all together had theirs, so that one
    is left to each.
    """
    return request.attempts - 1 if _is_about_rows(answer) else max_attempts - 1


def may_hide_a_culprit(request: Request, answer: Answer) -> bool:
    """Whether a failure may be that of one row among several: a 4xx, or what no repetition of all of them helped."""
    kind = answer.error_type or ""
    return request.rows > 1 and (_is_about_rows(answer) or is_fault(kind) or kind in ASK_AGAIN)


def _is_about_rows(answer: Answer) -> bool:
    kind = answer.error_type or ""
    return kind.startswith("http_4") and kind != "http_429"


def spend(request: Request, usage: Usage, parts: Sequence[Answer]) -> None:
    """Books a call's tokens: for its members what their answers say; without these, equal shares."""
    if not request.members:
        request.usage += usage
        return
    if parts:
        for member, part in zip(request.members, parts, strict=True):
            member.usage += part.usage
        return
    for place, member in enumerate(request.members):
        low, high = (usage.prompt_tokens * number // request.rows for number in (place, place + 1))
        member.usage += Usage(high - low, estimated=usage.estimated)


def split_answered(request: Request, answer: Answer) -> tuple[list[tuple[Request, Answer]], Request | None, Answer]:
    """The rows whose own answers can be used, with these; a request for the others, if there are any; their answer."""
    pairs = list(zip(request.members, answer.parts, strict=True))
    good = [(member, part) for member, part in pairs if part.error_type is None]
    bad = [(member, part) for member, part in pairs if part.error_type is not None]
    if not bad:
        return good, None, answer
    rest = _part_of(request, [member for member, _ in bad], request.attempts)
    rest.limited = request.limited
    return good, rest, replace(bad[0][1], parts=())


# An endpoint that was away catches up on so many requests and no more: it has just come back
MOST_BEHIND = 64
# An endpoint whose requests have to be asked again elsewhere gets no new ones while so many of them wait
MOST_RETURNED = 64
# Prompts with one beginning are divided between endpoints where one of them is behind its share by so much of all
SHARE_BEHIND = 0.01
# Among so many groups that wait first an endpoint looks for one that all queues would give it
MOST_LOOKED_AT = 64
_NO_GROUP = object()


class SharedQueue:
    """The requests that wait, for endpoints that are numbered from 0.

    Requests of one group go to one endpoint, in order, while there are other groups for the others, and to the same one
    from the queues of other actors where that has nothing else to do. What came back from an endpoint goes to another
    one, before all that is new. With one endpoint it is a plain queue.

    `group`: what the prompts with a common beginning have in common; None where that is of no matter.
    """

    def __init__(self, weights: Sequence[float], group: Callable[[Request], Hashable] | None = None) -> None:
        self.rows = 0
        self._weights, self._group = weights, group
        self._taken = [0.0] * len(weights)
        self._groups: dict[Hashable, deque[Request]] = {}
        self._current: list[Hashable] = [_NO_GROUP] * len(weights)
        # By the endpoints that they came back from
        self._returned: dict[frozenset[int], deque[Request]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        """What waits, roughly in the order in which it is taken."""
        return chain(*self._returned.values(), *self._groups.values())

    def extend(self, requests: Iterable[Request]) -> None:
        """Adds new requests."""
        for request in requests:
            key = self._group(request) if self._group else None
            self._groups.setdefault(key, deque()).append(request)
            self._add(request, 1)

    def give_back(self, request: Request, endpoint: int | None = None) -> None:
        """Puts a request before those that are new; one that has not failed it yet takes it if it can."""
        if endpoint is not None:
            failed = request.failed_at | {endpoint}
            request.failed_at = failed if len(failed) < len(self._weights) else frozenset((endpoint,))
        self._returned.setdefault(request.failed_at, deque()).appendleft(request)
        self._add(request, 1)

    def ahead(self, living: Collection[int]) -> set[int]:
        """The endpoints that have had more than their share, beside those that live."""
        weights = sum(self._weights[one] for one in living)
        everything = sum(self._taken[one] * self._weights[one] for one in living)
        return {one for one, taken in enumerate(self._taken) if weights > 0 and taken * weights > everything}

    def order(self, able: Iterable[int]) -> list[int]:
        """Endpoints that can send, the one that is furthest behind its share first."""
        if len(self._weights) == 1:
            return [*able]
        most, longest = max(self._taken), 2 / min(self._weights)
        for one in able:
            # Behind by the longest step of another it is in its turn
            behind = max(MOST_BEHIND / self._weights[one], longest)
            self._taken[one] = max(self._taken[one], most - behind)
        return sorted(able, key=self._taken.__getitem__)

    def take(self, endpoint: int, able: Collection[int], living: Collection[int]) -> Request | None:
        """The next request of an endpoint; None where what waits is better sent by another.

        able: endpoints that can send now; living: those that will at some time, `able` included.
        """
        request = self._take_returned(endpoint, living) or self._take_new(endpoint, able, living)
        if request is not None:
            self._add(request, -1)
            self._taken[endpoint] += 1 / self._weights[endpoint]
        return request

    def _add(self, request: Request, sign: int) -> None:
        self._count += sign
        self.rows += sign * request.rows

    def _take_returned(self, endpoint: int, living: Collection[int]) -> Request | None:
        for failed_at, held in self._returned.items():
            if endpoint not in failed_at or not set(living) - failed_at:
                request = held.popleft()
                if not held:
                    del self._returned[failed_at]
                return request
        return None

    def _take_new(self, endpoint: int, able: Collection[int], living: Collection[int]) -> Request | None:
        returned = sum(len(held) for failed_at, held in self._returned.items() if endpoint in failed_at)
        if returned >= MOST_RETURNED and set(living) - {endpoint}:
            return None
        key = self._current[endpoint]
        if key not in self._groups:
            key = self._choose_group(endpoint, able)
        if key not in self._groups:
            return None
        self._current[endpoint], group = key, self._groups[key]
        request = group.popleft()
        if not group:
            del self._groups[key]
        return request

    def _choose_group(self, endpoint: int, able: Collection[int]) -> Hashable:
        """A group that no other endpoint is at, its own first; else the largest that one would keep for too long."""
        others = [other for other in range(len(self._weights)) if other != endpoint]
        held = {self._current[other]: other for other in others if self._current[other] in self._groups}
        free = islice((key for key in self._groups if key not in held), MOST_LOOKED_AT)
        first = next(free, _NO_GROUP)
        if first is not _NO_GROUP:
            return next((key for key in chain((first,), free) if hash(key) % len(self._weights) == endpoint), first)
        shared = [key for key, other in held.items() if other not in able or self._is_behind(endpoint, other)]
        return max(shared, key=lambda key: len(self._groups[key]), default=_NO_GROUP)

    def _is_behind(self, endpoint: int, other: int) -> bool:
        """Whether an endpoint has so much less than its share, beside another, that it needs a part of its group."""
        behind = (self._taken[other] - self._taken[endpoint]) * self._weights[endpoint]
        everything = sum(taken * weight for taken, weight in zip(self._taken, self._weights, strict=True))
        return behind > max(1.0, SHARE_BEHIND * everything)


def group_of(stage: Stage) -> Callable[[Request], Hashable]:
    """What the prompts of a stage that begin alike have in common: the first variable that they show."""
    first = next(iter(order_of_variables(stage.template, stage.variables, api=stage.api)), "")
    # A number that all actors give it
    return lambda request: crc32(repr(request.variables.get(first)).encode("utf-8", "surrogatepass"))


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
