"""Rows of samples on their way through a task: a row has all facts of a sample, so that few are held at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from untold.udfs.samples.batches import in_batches

Row = dict[str, Any]
# The 2,000 rows of one of Spark's batches, with 108 and 100 facts each, took 230 MB as Python's objects, so 35 MB
_ROWS = 32


def sliced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches in slices of few rows."""
    return (batch.slice(start, _ROWS) for batch in batches for start in range(0, batch.num_rows, _ROWS))


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """The rows of batches, few of them at a time as Python's objects."""
    return (row for batch in sliced(batches) for row in batch.to_pylist())


def batches_of(rows: Iterable[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows, a row a sample, in batches of few."""
    return in_batches(rows, schema, _ROWS)
