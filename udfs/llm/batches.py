"""Requests for several rows in one call: how rows are gathered, divided again, and given their own answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from untold.udfs.llm.calls import Answer, Request
from untold.udfs.llm.retrying import ASK_AGAIN, is_fault
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


def halve(request: Request, attempts: int) -> tuple[Request, Request]:
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
