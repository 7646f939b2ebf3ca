"""Declare Arrow schemas by name, and turn functions of rows into functions over batches, for `mapInArrow`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from itertools import chain, islice
from typing import Any, Concatenate, ParamSpec, Protocol, cast

import pyarrow as pa

TEXT, NUMBER, POSITION, FLOAT, FLAG = pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.bool_()
ROWS_PER_BATCH = 1000

Row = Mapping[str, Any]
P = ParamSpec("P")


def columns(*bases: pa.Schema, **kinds: Any) -> pa.Schema:
    """Return the schema of the columns of the bases, then the given columns. `[TEXT]` is a list of texts.

    >>> columns(owner=TEXT, places=[NUMBER]).field("places").type
    ListType(list<item: int64>)
    """
    return pa.schema(_fields(bases, kinds))


def struct(*bases: pa.StructType, **kinds: Any) -> pa.StructType:
    """Return the struct of the fields of the bases, then the given fields. `[TEXT]` is a list of texts."""
    return pa.struct(_fields(bases, kinds))


def _fields(bases: Iterable[Iterable[pa.Field]], kinds: Mapping[str, Any]) -> list[pa.Field]:
    own = (pa.field(name, pa.list_(kind[0]) if isinstance(kind, list) else kind) for name, kind in kinds.items())
    return [*(field for base in bases for field in base), *own]


class BatchFunction(Protocol[P]):
    """A function over Arrow batches, with the schema of its results."""

    schema: pa.Schema

    def __call__(
        self, batches: Iterable[pa.RecordBatch], /, *args: P.args, **options: P.kwargs
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the results."""


def over_rows(
    schema: pa.Schema, read: int = ROWS_PER_BATCH, most: int = ROWS_PER_BATCH
) -> Callable[[Callable[Concatenate[Any, P], Row | Iterable[Row]]], BatchFunction[P]]:
    """Turn a function from a row to its row or rows of a schema into a function over batches.

    read: the rows of a batch that are Python objects at the same time. most: the maximum rows of a result.
    """

    def decorate(function: Callable[Concatenate[Any, P], Row | Iterable[Row]]) -> BatchFunction[P]:
        @wraps(function)
        def over_batches(
            batches: Iterable[pa.RecordBatch], /, *args: P.args, **options: P.kwargs
        ) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                rows = (row for part in slices(batch, read) for row in part.to_pylist())
                results = (_as_rows(function(row, *args, **options)) for row in rows)
                yield from in_batches(chain.from_iterable(results), schema, most)

        named = cast(BatchFunction[P], over_batches)
        named.schema = schema
        return named

    return decorate


def _as_rows(result: Row | Iterable[Row]) -> Iterable[Row]:
    return (result,) if isinstance(result, Mapping) else result


def slices(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in slices of at most `most` rows."""
    return (batch.slice(start, most) for start in range(0, batch.num_rows, most))


def in_batches(rows: Iterable[Row], schema: pa.Schema, most: int = ROWS_PER_BATCH) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of at most `most` rows."""
    left = iter(rows)
    while some := list(islice(left, most)):
        yield pa.RecordBatch.from_pylist(some, schema)
