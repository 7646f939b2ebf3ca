"""Send requests to one or several endpoints, through a queue for all and a channel for each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import ceil, floor
from typing import TYPE_CHECKING
from zlib import crc32

from untold.udfs.llm.calls import Answer, Request, Work
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.limiter import Lease, LimiterReport, Limits
from untold.udfs.llm.pacing import Slots
from untold.udfs.llm.retrying import ASK_AGAIN, DOUBTS_IN_A_ROW, EndpointHealth, is_fault
from untold.udfs.llm.templates import order_of_variables
from untold.udfs.llm.text_models import LocalClassifier
from untold.udfs.llm.usage import NOTHING_USED, Usage, UsageCounter

if TYPE_CHECKING:
    from untold.udfs.llm.client import Endpoint


def gather(rows: Sequence[Request], size: int) -> Iterator[Request]:
    """Yield requests of up to `size` rows each, in order.

    >>> rows = [Request(str(number), {}, "unit") for number in range(5)]
    >>> [request.rows for request in gather(rows, 2)]
    [2, 2, 1]
    """
    for first in range(0, len(rows), size):
        members = list(rows[first : first + size])
        yield Request(members[0].request_id, members[0].variables, members[0].unit, members=members)


def split(request: Request, attempts: int) -> tuple[Request, Request]:
    """Return two requests for the halves of its rows, with the same deadline and `attempts` used attempts.

    Both inherit the number of calls, so their next calls count as retries.
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
        limited=request.limited,
        first_sent=request.first_sent,
        first_fault=request.first_fault,
        last=request.last,
        members=members,
    )


def attempts_of_halves(request: Request, answer: Answer, max_attempts: int) -> int:
    """Return the used attempts of the halves of a failed request.

    A 4xx is never repeated, so the halves keep the attempts of the request. Otherwise each half has one attempt.
    """
    return request.attempts - 1 if _is_about_rows(answer) else max_attempts - 1


def may_fail_for_one_row(request: Request, answer: Answer) -> bool:
    """Return True if one of several rows can cause the failure: a 4xx, or an error that retries did not resolve."""
    kind = answer.error_type or ""
    return request.rows > 1 and (_is_about_rows(answer) or is_fault(kind) or kind in ASK_AGAIN)


def _is_about_rows(answer: Answer) -> bool:
    kind = answer.error_type or ""
    return kind.startswith("http_4") and kind != "http_429"


def spend(request: Request, usage: Usage, parts: Sequence[Answer]) -> None:
    """Add the tokens of a call to its members, by their responses or in equal shares."""
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
    """Return the rows with a usable response, a request for the other rows or None, and the response of these."""
    pairs = list(zip(request.members, answer.parts, strict=True))
    good = [(member, part) for member, part in pairs if part.error_type is None]
    bad = [(member, part) for member, part in pairs if part.error_type is not None]
    if not bad:
        return good, None, answer
    rest = _part_of(request, [member for member, _ in bad], request.attempts)
    return good, rest, replace(bad[0][1], parts=())


# The most requests by which an endpoint catches up after an outage
MOST_BEHIND = 64
# An endpoint gets no new requests while this number of its failed requests waits for other endpoints
MOST_RETURNED = 64
# A group of prompts is divided if an endpoint is behind its share by this part of all requests
SHARE_BEHIND = 0.01
# The number of first groups among which an endpoint searches for its own group
MOST_LOOKED_AT = 64
_NO_GROUP = object()


class SharedQueue:
    """The waiting requests of endpoints that are numbered from 0.

    The requests of a group go to one endpoint, in order, while the other endpoints have other groups. The queues of all
    actors prefer the same endpoint for a group. A failed request goes to another endpoint, before new requests. With
    one endpoint it is a plain queue. `group` returns the group of a request: the common beginning of its prompts.
    """

    def __init__(self, weights: Sequence[float], group: Callable[[Request], Hashable] | None = None) -> None:
        self.rows = 0
        self._weights, self._group = weights, group
        self._taken = [0.0] * len(weights)
        self._groups: dict[Hashable, deque[Request]] = {}
        self._current: list[Hashable] = [_NO_GROUP] * len(weights)
        # Failed requests by the endpoints at which they failed
        self._returned: dict[frozenset[int], deque[Request]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the waiting requests, roughly in the order of `take`."""
        return chain(*self._returned.values(), *self._groups.values())

    def extend(self, requests: Iterable[Request]) -> None:
        """Add new requests."""
        for request in requests:
            key = self._group(request) if self._group else None
            self._groups.setdefault(key, deque()).append(request)
            self._add(request, 1)

    def give_back(self, request: Request, endpoint: int | None = None) -> None:
        """Put a failed request before the new ones, for an endpoint at which it has not failed yet."""
        if endpoint is not None:
            failed = request.failed_at | {endpoint}
            request.failed_at = failed if len(failed) < len(self._weights) else frozenset((endpoint,))
        self._returned.setdefault(request.failed_at, deque()).appendleft(request)
        self._add(request, 1)

    def ahead(self, living: Collection[int]) -> set[int]:
        """Return the endpoints that had more than their share of the living endpoints' requests."""
        weights = sum(self._weights[one] for one in living)
        everything = sum(self._taken[one] * self._weights[one] for one in living)
        return {one for one, taken in enumerate(self._taken) if weights > 0 and taken * weights > everything}

    def order(self, able: Iterable[int]) -> list[int]:
        """Return the endpoints that can send, the one furthest behind its share first."""
        if len(self._weights) == 1:
            return [*able]
        most, longest = max(self._taken), 2 / min(self._weights)
        for one in able:
            # Behind by the longest step of another endpoint, it is its turn
            behind = max(MOST_BEHIND / self._weights[one], longest)
            self._taken[one] = max(self._taken[one], most - behind)
        return sorted(able, key=self._taken.__getitem__)

    def take(self, endpoint: int, able: Collection[int], living: Collection[int]) -> Request | None:
        """Return the next request of an endpoint, or None if the waiting requests suit another endpoint better.

        `able` are the endpoints that can send now, and `living` all endpoints that are not down.
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
        """Return a free group, the endpoint's own first, or the largest group of an endpoint that cannot keep up."""
        others = [other for other in range(len(self._weights)) if other != endpoint]
        held = {self._current[other]: other for other in others if self._current[other] in self._groups}
        free = islice((key for key in self._groups if key not in held), MOST_LOOKED_AT)
        first = next(free, _NO_GROUP)
        if first is not _NO_GROUP:
            return next((key for key in chain((first,), free) if hash(key) % len(self._weights) == endpoint), first)
        shared = [key for key, other in held.items() if other not in able or self._is_behind(endpoint, other)]
        return max(shared, key=lambda key: len(self._groups[key]), default=_NO_GROUP)

    def _is_behind(self, endpoint: int, other: int) -> bool:
        """Return True if an endpoint is so far behind another that it needs a part of its group."""
        behind = (self._taken[other] - self._taken[endpoint]) * self._weights[endpoint]
        everything = sum(taken * weight for taken, weight in zip(self._taken, self._weights, strict=True))
        return behind > max(1.0, SHARE_BEHIND * everything)


def group_of(stage: Stage) -> Callable[[Request], Hashable]:
    """Return a function from a request to its group: the first variable in the prompt of the stage."""
    first = next(iter(order_of_variables(stage.template, stage.variables, api=stage.api)), "")
    # Equal in all actors, unlike `hash`
    return lambda request: crc32(repr(request.variables.get(first)).encode("utf-8", "surrogatepass"))


# Sends reports to limiters, by their numbers, and returns the leases
Lend = Callable[[Mapping[int, LimiterReport]], Awaitable[Mapping[int, Lease]]]
# Before the first success of a run, a user waits for it, so an outage ends the run after a minute.
FIRST_OUTAGE_SECONDS = 60.0
# Limits of the limiter that leases only the budget of several endpoints
NO_LIMITS = Limits(max_concurrency=10**9)


class Channel(Slots):
    """One endpoint.

    `held_back` are requests with an error about the run, which can still turn out to be an error of their rows.
    `rejected` are requests with an error that every request can get, before any completion. If `errors_differ`, each
    error belongs to its row.
    """

    def __init__(self, work: Work, client: Endpoint | LocalClassifier) -> None:
        super().__init__(work)
        self.client = client
        self.standing = EndpointHealth(answered_ever=work.call.answered_before, completed=work.call.answered_before)
        self.tally = UsageCounter()
        self.models: set[str] = set()
        self.held_back: list[tuple[Request, Answer]] = []
        self.rejected: list[tuple[Request, Answer]] = []
        self.rejected_at = 0.0
        self.errors_differ = False
        self.in_flight = 0
        self.refused: str | None = None

    @property
    def usage(self) -> Usage:
        """Return the usage of the endpoint."""
        return self.tally.usage

    @property
    def label(self) -> str:
        """Return the name of the endpoint in tables and messages."""
        return self.work.settings.label

    @property
    def is_out(self) -> bool:
        """Return True if the endpoint refuses the run or is down."""
        return self.refused is not None or self.standing.probing or self.refusal == "outage"

    @property
    def is_unlimited(self) -> bool:
        """Return True if the endpoint is up and only its places in flight limit it."""
        return not self.is_out and not self.strict

    def receive(self, lease: Lease, estimates: Sequence[int], sent: float, received: float) -> None:
        """Add the slots of a lease, and update the state of the endpoint, which the limiter knows from all actors."""
        super().receive(lease, estimates, sent, received)
        self.standing.learn(lease, self.clock.local(lease.answered_at))

    @property
    def is_doubtful(self) -> bool:
        """Return True if an error about the run came before any completion, so it probably holds for every row."""
        return bool(self.held_back) and not self.standing.completed

    @property
    def waits_for_completion(self) -> bool:
        """Return True if all requests of the run can still turn out to be rejected."""
        return not (self.standing.completed or self.errors_differ)

    @property
    def may_try(self) -> bool:
        """Return True unless the rejected requests and the requests in flight are enough to end the run."""
        return not self.rejected or len(self.rejected) + self.in_flight < DOUBTS_IN_A_ROW

    @property
    def held_rows(self) -> int:
        """Return the number of rows of the held requests."""
        return sum(request.rows for request, _ in self.held_back)


class Channels:
    """The endpoints of an actor, each with a limiter. With several endpoints, `budget_slots` lease their budget.

    `lend` requests leases and can wait. Its numbers are the positions in `slots`.
    """

    def __init__(self, work: Work, lend: Lend, each: Sequence[Channel], budget_slots: Slots | None = None) -> None:
        self.lend, self.each, self.budget_slots = lend, each, budget_slots
        self.needs_lease = asyncio.Event()
        self.slots: list[Slots] = [*each, *([budget_slots] if budget_slots else [])]
        self._settings = work.settings

    @property
    def in_flight(self) -> int:
        """Return the number of calls in flight."""
        return sum(channel.in_flight for channel in self.each)

    @property
    def used(self) -> Usage:
        """Return the usage of all endpoints. With several endpoints it contains the cost and the usage of each."""
        total = sum((channel.usage for channel in self.each), NOTHING_USED)
        if not self._settings.endpoints:
            return total
        return self._settings.priced(replace(total, endpoints={each.label: each.usage for each in self.each}))

    @property
    def living(self) -> list[int]:
        """Return the numbers of the endpoints that are up."""
        return [number for number, channel in enumerate(self.each) if not channel.is_out]

    def others_live(self, channel: Channel) -> bool:
        """Return True if another endpoint is up."""
        return any(other is not channel and not other.is_out for other in self.each)

    @property
    def refused(self) -> str | None:
        """Return the reason if every endpoint refuses the run."""
        if not all(channel.refused for channel in self.each):
            return None
        return self.each[0].refused if len(self.each) == 1 else "; ".join(self.left_out)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return a line for each endpoint that refuses the run."""
        return tuple(f"{channel.label}: {channel.refused}" for channel in self.each if channel.refused)

    @property
    def refusal(self) -> str | None:
        """Return the reason for no lease: the budget, or an outage of all endpoints that do not refuse the run."""
        if self.budget_slots and self.budget_slots.refusal:
            return self.budget_slots.refusal
        refusals = {channel.refusal for channel in self.each if not channel.refused}
        return refusals.pop() if len(refusals) == 1 else None

    def places_of_one(self) -> float:
        """Return the calls in flight of an endpoint of weight 1, if calls in flight decide the shares.

        The result is infinite for one endpoint. It is computed once for all endpoints: per endpoint, twenty endpoints
        would be visited 400 times per call.
        """
        unlimited = [each for each in self.each if each.is_unlimited] if len(self.each) > 1 else []
        if not unlimited:
            return float("inf")
        largest = max(each.work.settings.weight for each in unlimited)
        return max(each.places for each in unlimited) / largest

    def places(self, channel: Channel, of_one: float, *, ahead: bool) -> int:
        """Return the number of calls that an endpoint can have in flight now, from its lease or its weight.

        If nothing else limits the endpoints, the calls in flight decide their shares (`places_of_one`). One call more
        or less, depending on `ahead`, makes the shares exact.
        """
        most, share = channel.places, of_one * channel.work.settings.weight
        if share >= most or not channel.is_unlimited:
            return most
        return max(1, ceil(share) - 1) if ahead else min(most, floor(share) + 1)

    def need_leases(self, *some: Slots) -> None:
        """Request leases for these slots, or for all."""
        for slots in some or self.slots:
            slots.needed = True
        self.needs_lease.set()

    def report(self, slots: Slots, estimates: tuple[int, ...], now: float) -> LimiterReport:
        """Return the report for the next lease, with the news since the last report."""
        if not isinstance(slots, Channel):
            return slots.report(self.used, estimates, self.in_flight, now)
        completed = any(channel.standing.completed for channel in self.each)
        outage = self._settings.outage if completed else min(FIRST_OUTAGE_SECONDS, self._settings.outage)
        # While another endpoint responds, probes continue without a limit
        patience = float("inf") if self.others_live(slots) else outage
        report = slots.report(slots.usage, estimates, slots.in_flight, now)
        return replace(report, outage_seconds=patience, news=slots.standing.tell())

    def slots_of(self, channel: Channel) -> list[Slots]:
        """Return the slots that a call of an endpoint needs: its own, and those of the shared budget."""
        return [channel, *self.slots[len(self.each) :]]

    def settle(self, channel: Channel, request: Request, used: int, *, lost: bool = False) -> None:
        """End the reservations of a call with `used` tokens.

        The tokens of a lost call are unknown, so its whole reservation counts as used.
        """
        for slots, tokens in zip(self.slots_of(channel), request.reserved, strict=True):
            slots.settle(tokens, max(used, tokens) if lost else used)
        request.reserved = ()
