"""The rows of the table `completions`: one class from which its Arrow schema follows, so that no row is positional."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from untold.udfs.llm.calls import Answer, Request
from untold.udfs.ratings import read_alternatives

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ALTERNATIVE = pa.struct(
    [
        ("offset", pa.int32()),
        ("top", pa.list_(pa.struct([("token", pa.string()), ("logprob", pa.float64())]))),
    ]
)


# A column's type stands beside its field, so that no second list can be in another order.
_TEXT, _COUNT = {"type": pa.string()}, {"type": pa.int64()}


@dataclass(slots=True)
class Completion:
    """A row of `completions`: what was paid for, and what came of it.

    The fields are the columns, in order. They are on the disks of whoever has a store: only ever add one, at the end.
    Nobody changes a row; a class that forbids it takes four times as long to make one.
    """

    request_id: str = field(metadata=_TEXT)
    text: str | None = field(default=None, metadata=_TEXT)
    finish_reason: str | None = field(default=None, metadata=_TEXT)
    tool_trace: str | None = field(default=None, metadata=_TEXT)
    alternatives: list[dict[str, Any]] | None = field(default=None, metadata={"type": pa.list_(ALTERNATIVE)})
    model: str | None = field(default=None, metadata=_TEXT)
    prompt_tokens: int | None = field(default=None, metadata=_COUNT)
    cached_prompt_tokens: int | None = field(default=None, metadata=_COUNT)
    completion_tokens: int | None = field(default=None, metadata=_COUNT)
    tokens_estimated: bool | None = field(default=None, metadata={"type": pa.bool_()})
    attempts: int | None = field(default=None, metadata={"type": pa.int32()})
    seconds: float | None = field(default=None, metadata={"type": pa.float64()})
    answered_at: datetime | None = field(default=None, metadata={"type": pa.timestamp("us", tz="UTC")})
    error_type: str | None = field(default=None, metadata=_TEXT)
    error: str | None = field(default=None, metadata=_TEXT)
    run_id: str | None = field(default=None, metadata=_TEXT)
    vector: NDArray[np.float32] | None = field(default=None, metadata={"type": pa.list_(pa.float32())})
    endpoint: str | None = field(default=None, metadata=_TEXT)

    @property
    def size(self) -> int:
        """Roughly its bytes."""
        # Numbers, names and times are some 200 bytes; the text, or the vector, is the rest
        vector = 0 if self.vector is None else self.vector.nbytes
        return len(self.text or "") + vector + len(self.request_id) + 200


COMPLETIONS = pa.schema([(item.name, item.metadata["type"]) for item in fields(Completion)])


def completion_of(
    request: Request, answer: Answer, *, rated: bool, run: str, endpoint: str | None = None
) -> Completion:
    """The row that a request ends with, answered by an endpoint; `rated` keeps the alternatives at its digits."""
    return Completion(
        request_id=request.request_id,
        text=answer.text,
        finish_reason=answer.finish_reason,
        tool_trace=json.dumps(request.trace, ensure_ascii=False) if request.trace else None,
        alternatives=read_alternatives(answer.text, answer.logprobs) if rated and answer.text else None,
        model=answer.model,
        prompt_tokens=request.usage.prompt_tokens,
        cached_prompt_tokens=request.usage.cached_prompt_tokens,
        completion_tokens=request.usage.completion_tokens,
        tokens_estimated=request.usage.estimated,
        attempts=request.calls,
        seconds=monotonic() - request.first_sent if request.first_sent else None,
        answered_at=datetime.now(UTC),
        error_type=answer.error_type,
        error=answer.error,
        run_id=run,
        vector=answer.vector,
        endpoint=endpoint,
    )


def completions_table(rows: Sequence[Completion]) -> pa.Table:
    """The rows as a table with the schema `COMPLETIONS`."""
    columns = [pa.array(map(attrgetter(column.name), rows), column.type) for column in COMPLETIONS]
    return pa.table(columns, schema=COMPLETIONS)
