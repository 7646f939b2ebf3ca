"""Both passes over the input, on Spark's workers: batches of units -> batches of what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from udfs.samples.adapters import Adapter
from udfs.samples.conversion import Sample, to_sample
from udfs.samples.records import READ_ERRORS, READERS, ROWS_PER_BATCH, Record, Unit, UnreadableFileError, check_width
from udfs.samples.shapes import Shape, merge_shapes, shape_of
from udfs.samples.values import as_type

CONTEXTS_ARE_TEXT = ("csv", "parquet")


def index_batches(
    batches: Iterable[pa.RecordBatch], adapter: Adapter | None, required: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """First pass: a row a sample, and a row of facts a unit. What cannot be read on is a fact, not an exception.

    Columns: file, block, n, part (the place), sample_id, content, error; facts (JSON: columns, shapes, rows, problem).
    """
    for unit in _units(batches):
        yield from _chunks(_index_rows(unit, adapter, required), schema)


def sample_batches(
    batches: Iterable[pa.RecordBatch],
    adapter: Adapter | None,
    required: Sequence[str],
    schema: pa.Schema,
    sources: Mapping[str, str],
) -> Iterator[pa.RecordBatch]:
    """Second pass: a row a sample, as `sample` (a struct) and its place. `sources`: column -> its name in the file."""
    for unit in _units(batches):
        samples = _samples(unit, adapter, required)
        yield from _chunks(_sample_rows(samples, schema.field("sample").type, sources), schema)


def _units(batches: Iterable[pa.RecordBatch]) -> Iterator[Unit]:
    for batch in batches:
        yield from (Unit(**row) for row in batch.to_pylist())


def _samples(
    unit: Unit, adapter: Adapter | None, required: Sequence[str]
) -> Iterator[tuple[dict[str, int], Record, Sample]]:
    """Each sample with its place (`n` is the 1-based row of the unit) and the record that it was read from."""
    for n, record in enumerate(READERS[unit.kind](unit), start=1):
        expanded = adapter.expand(record, unit.start + n - 1) if adapter else [record]
        for part, row in enumerate(expanded):
            place = {"file": unit.file, "block": unit.start, "n": n, "part": part}
            yield place, record, to_sample(row, unit.kind in CONTEXTS_ARE_TEXT, required)


def _index_rows(unit: Unit, adapter: Adapter | None, required: Sequence[str]) -> Iterator[dict[str, Any]]:
    types_are_known = unit.kind == "parquet" and adapter is None
    columns: set[str] = set()
    shapes: dict[str, Shape] = {}
    problem, n = None, 0
    try:
        for place, record, sample in _samples(unit, adapter, required):
            n = place["n"]
            columns.update(record.values)
            check_width(len(columns))
            if not types_are_known:
                for name, value in sample.rest.items():
                    shapes[name] = merge_shapes(shapes.get(name, "null"), shape_of(value))
            yield {**place, "sample_id": sample.known["sample_id"], "content": sample.content, "error": sample.error}
    except UnreadableFileError as error:
        problem = str(error)
    except READ_ERRORS as error:
        problem = f"cannot be read to its end ({type(error).__name__}); replace the file or check its rights"
    facts = {"columns": sorted(columns), "shapes": shapes, "rows": n, "problem": problem}
    yield {"file": unit.file, "block": unit.start, "n": n, "facts": json.dumps(facts)}


def _sample_rows(
    samples: Iterable[tuple[dict[str, int], Record, Sample]], columns: pa.StructType, sources: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    types = {name: columns.field(name).type for name in sources}
    for place, _, sample in samples:
        others = {name: as_type(sample.rest.get(source), types[name]) for name, source in sources.items()}
        yield {"sample": {**sample.known, **others}, **place}


def _chunks(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == ROWS_PER_BATCH:
            yield pa.RecordBatch.from_pylist(chunk, schema)
            chunk = []
    if chunk:
        yield pa.RecordBatch.from_pylist(chunk, schema)
