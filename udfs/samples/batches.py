"""Read an input on Spark's workers: batches of units become batches of samples or of plain columns."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from untold.udfs.arrow import in_batches
from untold.udfs.samples import file_records
from untold.udfs.samples.adapters import Adapter
from untold.udfs.samples.conversion import KNOWN, Sample, to_sample
from untold.udfs.samples.file_records import FileRecord, Reader, Unit, UnreadableFileError
from untold.udfs.samples.tool_files import Names
from untold.udfs.samples.values import ENCODER, Shape, as_type, merge_shapes, shape_of, text_of

# Kinds of files with one type per column. Items may be JSON in a text column
ITEMS_ARE_TEXT = ("csv", "parquet")


@dataclass(frozen=True)
class ColumnSelection:
    """The columns to read from each row, the adapter if any, and the mapping from our columns to the file's.

    With `names`, a row is not a sample. It has only these columns, as text, and its id in the column `key`.
    """

    adapter: Adapter | None = None
    required: Sequence[str] = ()
    optional: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    names: Names = field(default_factory=dict)
    key: str = "sample_id"


def read_batches(
    batches: Iterable[pa.RecordBatch], wanted: ColumnSelection, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield a row per sample, and a row of facts per unit. A read error becomes a fact and not an exception.

    Columns: file, block, n, part (the position; `n` is the 1-based row of the unit, including blank lines), number (of
    the record in its unit), content, error; the known columns of samples or texts; rest, the other columns for
    `type_batches`, or null; facts, JSON of file, columns, shapes, rows, lines and problem.

    The reading is lazy: a unit is read while its rows are consumed, so a worker holds `ROWS_PER_BATCH` rows.
    """
    for batch in batches:
        for row in batch.to_pylist():
            yield from in_batches(_rows(Unit(**row), wanted), schema)


def type_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, sources: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Yield the known columns of `read_batches` unchanged, and the others with the types of `schema`.

    `sources` maps a column to its name in the file. The type of a column is only known after all files were read.
    """
    for batch in batches:
        rest = [pickle.loads(packed) if packed else {} for packed in batch.column("rest").to_pylist()]
        known = [batch.column(name) for name in KNOWN]
        typed = [
            pa.array([as_type(values.get(sources[column.name]), column.type) for values in rest], column.type)
            for column in list(schema)[len(KNOWN) :]
        ]
        yield pa.RecordBatch.from_arrays([*known, *typed], schema=schema)


def _rows(unit: Unit, wanted: ColumnSelection) -> Iterator[dict[str, Any]]:
    """Yield the rows of a unit in the format of `read_batches`, then its row of facts."""
    types_are_known = unit.kind == "parquet" and wanted.adapter is None
    columns: set[str] = set()
    shapes: dict[str, Shape] = {}
    tally, n, part = UnitProgress(), 0, 0
    # Rows before a read error are kept. The error is handled when all facts are known
    try:
        for record in tally.rows(unit, reader_of(unit, wanted.adapter), wanted.columns):
            rows = expanded(wanted.adapter, record, unit.start + tally.rows_read - 1, unit.path)
            columns.update(columns_of(wanted.adapter, record, rows))
            # During the reading: a file with data as keys would otherwise fill the memory
            file_records.check_width(len(columns))
            for sample in samples_of(unit, rows, wanted):
                if not types_are_known:
                    for name, value in sample.rest.items():
                        shapes[name] = merge_shapes(shapes.get(name, "null"), shape_of(value))
                # Several records may belong to one row
                n, part = tally.row, part + 1 if tally.row == n else 0
                place = {"file": unit.file, "block": unit.start, "n": n, "part": part, "number": tally.rows_read}
                # Exactly as read: JSON has no dates, bytes and decimals, which Parquet has
                rest = pickle.dumps(dict(sample.rest)) if sample.rest else None
                yield {**place, "content": sample.content, "error": sample.error, **sample.known, "rest": rest}
    except (UnreadableFileError, *file_records.READ_ERRORS) as error:
        tally.broken = error
    facts = tally.facts(unit, columns, shapes)
    yield {"file": unit.file, "block": unit.start, "n": tally.row, "facts": facts}


def reader_of(unit: Unit, adapter: Adapter | None) -> Reader:
    """Return the reader of a unit."""
    return file_records.READERS_OF_PARTS[unit.kind] if adapter is None or adapter.read is None else adapter.read


def expanded(adapter: Adapter | None, record: FileRecord, row: int, path: str = "") -> list[FileRecord]:
    """Return the records of a record, which is the 0-based row of its file."""
    if adapter is None or adapter.expand is None or record.problem:
        return [record]
    expand = adapter.expand
    if adapter.of_path is not None:
        record = replace(record, values={**adapter.of_path(path), **record.values})
    found = file_records.converted(lambda one: expand(one.values, row), record)
    return [one if isinstance(one, FileRecord) else FileRecord(one) for one in found]


def columns_of(adapter: Adapter | None, record: FileRecord, rows: Sequence[FileRecord]) -> set[str]:
    """Return the columns for the check of a file: the columns of the record, or of its results if these are ours."""
    found = rows if adapter is not None and adapter.required is None else [record]
    return {name for one in found for name in one.values}


def samples_of(unit: Unit, rows: Sequence[FileRecord], wanted: ColumnSelection) -> list[Sample]:
    """Return the records of a unit as samples, or as texts."""
    if wanted.names:
        return [_to_texts(row, wanted) for row in rows]
    as_text = unit.kind in ITEMS_ARE_TEXT

    def convert(row: FileRecord) -> Sample:
        return to_sample(row, as_text, wanted.required, wanted.optional)

    found = [one for row in rows for one in file_records.converted(lambda given: [convert(given)], row)]
    return [one if isinstance(one, Sample) else convert(one) for one in found]


def _to_texts(record: FileRecord, wanted: ColumnSelection) -> Sample:
    """Return the named columns of a record as text, null for a missing column or value, and its first error.

    Only a usable record has a content: all columns but its id.
    """
    values, texts = record.values, dict[str, str | None]()
    for name, names in wanted.names.items():
        texts[name] = next((text_of(values[one]) for one in names if one in values), None)
    problems = (_text_problem(name, texts[name], wanted.key) for name in wanted.required)
    problem = record.problem or next(filter(None, problems), None)
    columns = [text for name, text in texts.items() if name != wanted.key]
    content = None if problem else hashlib.sha256(ENCODER.encode(columns).encode()).hexdigest()
    return Sample(texts, {}, content, problem)


def _text_problem(name: str, text: str | None, key: str) -> str | None:
    """Return the error of a required text, or None. An id must not be empty, and a query must not be blank."""
    if name == key:
        return None if text else f"{name} is null or empty"
    if text is None:
        return f"{name} is null"
    return "query is empty" if name == "query" and not text.strip() else None


@dataclass
class UnitProgress:
    """The progress of a unit: its rows, the start of the last row, and the error that ended it."""

    rows_read: int = 0
    row: int = 0
    lines: int = 0
    broken: Exception | None = None

    def rows(self, unit: Unit, read: Reader, columns: Mapping[str, str]) -> Iterator[FileRecord]:
        """Yield the records of a unit with our column names, and with the values of its table or folders."""
        constants = pickle.loads(unit.constants) if unit.constants else {}
        for record in read(unit):
            if constants and not record.problem:
                given = {name: value for name, value in record.values.items() if value is not None}
                record = replace(record, values={**record.values, **constants, **given})
            self.lines = record.row or self.lines + 1
            if not record.blank:
                self.rows_read, self.row = self.rows_read + 1, self.lines
                if columns:
                    values = dict(file_records.renamed(record.values, columns))
                    # As in `_read_csv` for a column with this name
                    if unit.kind == "csv" and "response" in values:
                        values["response"] = values["response"] or ""
                    record = replace(record, values=values)
                yield record

    def facts(self, unit: Unit, columns: Iterable[str], shapes: Mapping[str, Shape]) -> str:
        """Return the facts of a unit as JSON, for `untold.jobs.inputs.samples`."""
        broken = self.broken
        undecodable = (broken.line, broken.encoding) if isinstance(broken, file_records.UndecodableError) else None
        facts = {
            "file": unit.file,
            "block": unit.start,
            "columns": sorted(columns),
            "shapes": shapes,
            "rows": self.rows_read,
            "lines": self.lines,
            "problem": None if broken is None else file_records.describe_break(broken),
            "undecodable": undecodable,
        }
        return json.dumps(facts)


def given(names: Names, columns: Iterable[str]) -> set[str]:
    """Return the columns that exist, under any of their names.

    >>> given({"text": ("text", "contents"), "url": ("url",)}, ["contents"])
    {'text'}
    """
    there = set(columns)
    return {name for name, others in names.items() if there.intersection(others)}
