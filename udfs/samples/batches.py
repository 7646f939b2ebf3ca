"""The pass over the input on Spark's workers: batches of units -> batches of what is in them, and of these as typed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from untold.udfs.samples.adapters import Adapter
from untold.udfs.samples.conversion import KNOWN, Sample, to_sample
from untold.udfs.samples.records import (
    READ_ERRORS,
    READERS,
    ROWS_PER_BATCH,
    Record,
    Unit,
    UnreadableFileError,
    check_width,
)
from untold.udfs.samples.shapes import Shape, merge_shapes, shape_of
from untold.udfs.samples.values import as_type

# Kinds of files whose columns have one type each: contexts may be JSON in a column of text.
CONTEXTS_ARE_TEXT = ("csv", "parquet")


def read_batches(
    batches: Iterable[pa.RecordBatch],
    adapter: Adapter | None,
    required: Sequence[str],
    schema: pa.Schema,
    optional: Sequence[str] = (),
) -> Iterator[pa.RecordBatch]:
    """A row a sample, and a row of facts a unit. What cannot be read on is a fact, not an exception.

    Columns: file, block, n, part (the place; `n` is the 1-based row of the unit), content, error; the six known columns
    of samples; rest, the other columns as `type_batches` takes them, null where there are none; facts, JSON of file,
    columns, shapes, rows and problem.

    Lazy: a unit is read as its rows are taken, so that a worker holds `ROWS_PER_BATCH` of them.
    """
    for batch in batches:
        for row in batch.to_pylist():
            yield from in_batches(_rows(Unit(**row), adapter, required, optional), schema)


def type_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, sources: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """The known columns of `read_batches` as they are, the others as `schema` types them.

    `sources`: column -> its name in the file. What type a column has is known only after all files were read.
    """
    for batch in batches:
        rest = [pickle.loads(packed) if packed else {} for packed in batch.column("rest").to_pylist()]
        known = [batch.column(name) for name in KNOWN]
        yield pa.RecordBatch.from_arrays([*known, *_typed(rest, schema, sources)], schema=schema)


def _typed(rest: Sequence[Mapping[str, Any]], schema: pa.Schema, sources: Mapping[str, str]) -> Iterator[pa.Array]:
    """The columns of `schema` behind the known ones, in its order."""
    for field in list(schema)[len(KNOWN) :]:
        source = sources[field.name]
        yield pa.array([as_type(values.get(source), field.type) for values in rest], field.type)


def _samples(
    unit: Unit, adapter: Adapter | None, required: Sequence[str], optional: Sequence[str]
) -> Iterator[tuple[dict[str, int], Record, Sample]]:
    """Each sample with its place and the record that it was read from."""
    read = READERS[unit.kind] if adapter is None or adapter.read is None else adapter.read
    for n, record in enumerate(read(unit), start=1):
        expanded = adapter.expand(record, unit.start + n - 1) if adapter else [record]
        for part, row in enumerate(expanded):
            place = {"file": unit.file, "block": unit.start, "n": n, "part": part}
            yield place, record, to_sample(row, unit.kind in CONTEXTS_ARE_TEXT, required, optional)


def _rows(
    unit: Unit, adapter: Adapter | None, required: Sequence[str], optional: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The rows of a unit as `read_batches` has them, then that of its facts."""
    types_are_known = unit.kind == "parquet" and adapter is None
    columns: set[str] = set()
    shapes: dict[str, Shape] = {}
    # Rows that were read before a file breaks off are kept; what the break means is decided where all facts are known.
    problem, n = None, 0
    try:
        for place, record, sample in _samples(unit, adapter, required, optional):
            n = place["n"]
            columns.update(record.values)
            # As it grows: a file whose keys are data would fill the memory before its end.
            check_width(len(columns))
            if not types_are_known:
                for name, value in sample.rest.items():
                    shapes[name] = merge_shapes(shapes.get(name, "null"), shape_of(value))
            yield {**place, "content": sample.content, "error": sample.error, **sample.known, "rest": _packed(sample)}
    except UnreadableFileError as error:
        problem = str(error)
    except READ_ERRORS as error:
        problem = f"cannot be read to its end ({type(error).__name__}); replace the file or check its rights"
    facts = {
        "file": unit.file,
        "block": unit.start,
        "columns": sorted(columns),
        "shapes": shapes,
        "rows": n,
        "problem": problem,
    }
    yield {"file": unit.file, "block": unit.start, "n": n, "facts": json.dumps(facts)}


def _packed(sample: Sample) -> bytes | None:
    """What is carried along, exactly as it was read: JSON has no dates, bytes and decimals, which Parquet has."""
    return pickle.dumps(dict(sample.rest)) if sample.rest else None


def in_batches(
    rows: Iterable[dict[str, Any]], schema: pa.Schema, most: int = ROWS_PER_BATCH
) -> Iterator[pa.RecordBatch]:
    """The rows in batches of at most so many."""
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == most:
            yield pa.RecordBatch.from_pylist(chunk, schema)
            chunk = []
    if chunk:
        yield pa.RecordBatch.from_pylist(chunk, schema)
