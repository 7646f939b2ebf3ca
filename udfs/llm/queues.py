"""Choose the next request of an endpoint, and group requests into one call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from zlib import crc32

from untold.udfs.llm.calls import Answer, Request
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.retrying import ASK_AGAIN, is_fault
from untold.udfs.llm.templates import order_of_variables
from untold.udfs.llm.usage import Usage


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
