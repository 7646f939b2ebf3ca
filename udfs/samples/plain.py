"""Some columns of any file of rows, each as text: documents to index, queries to search with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from untold.udfs.samples.batches import Tally, in_batches
from untold.udfs.samples.file_records import (
    READ_ERRORS,
    READERS_OF_PARTS,
    FileRecord,
    Unit,
    UnreadableFileError,
    check_width,
)
from untold.udfs.samples.values import text_of

Names = Mapping[str, Sequence[str]]
"""Columns by the names that they may have in a file, the first found counting: `{"text": ("text", "contents")}`."""


def read_plain(
    batches: Iterable[pa.RecordBatch], names: Names, columns: Mapping[str, str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """A row a record, and a row of facts a unit. What cannot be read on is a fact, not an exception.

    Columns of `schema`: file, block, n (the place, as `udfs.samples.batches.read_batches` has it), number (of the
    record in its unit), those of `names` as text, problem (of a record that could not be read), facts. `columns`: what
    a file calls ours.
    """
    for batch in batches:
        for row in batch.to_pylist():
            yield from in_batches(_rows(Unit(**row), names, columns), schema)


def _rows(unit: Unit, names: Names, renaming: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The rows of a unit, then that of its facts."""
    place = {"file": unit.file, "block": unit.start}
    columns: set[str] = set()
    tally = Tally()
    try:
        for record in tally.rows(unit, READERS_OF_PARTS[unit.kind], renaming):
            columns.update(record.values)
            # As it grows: a file whose keys are data would fill the memory before its end
            check_width(len(columns))
            told = {"n": tally.row, "number": tally.rows_read, "problem": record.problem}
            yield {**place, **told, **_texts(record, names)}
    except (UnreadableFileError, *READ_ERRORS) as error:
        tally.broken = error
    yield {**place, "n": tally.row, "facts": tally.facts(unit, columns | given(names, columns), {})}


def given(names: Names, columns: Iterable[str]) -> set[str]:
    """Which of the columns are there, under whatever of their names.

    >>> given({"text": ("text", "contents"), "url": ("url",)}, ["contents"])
    {'text'}
    """
    there = set(columns)
    return {name for name, others in names.items() if there.intersection(others)}


def _texts(record: FileRecord, names: Names) -> dict[str, str | None]:
    """The columns of a record as text; null where it has none, or nothing under any of their names."""
    values = record.values
    return {name: next((text_of(values[one]) for one in names[name] if one in values), None) for name in names}
