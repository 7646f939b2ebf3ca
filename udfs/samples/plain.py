"""Some columns of any file of rows, each as text: documents to index, queries to search with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from untold.udfs.samples.batches import in_batches
from untold.udfs.samples.records import READ_ERRORS, READERS, Record, Unit, UnreadableFileError, check_width
from untold.udfs.samples.values import text_of

Names = Mapping[str, Sequence[str]]
"""Columns by the names that they may have in a file, the first found counting: `{"text": ("text", "contents")}`."""


def read_plain(batches: Iterable[pa.RecordBatch], names: Names, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A row a record, and a row of facts a unit. What cannot be read on is a fact, not an exception.

    Columns of `schema`: file, block, n (the place, as `udfs.samples.batches.read_batches` has it), those of `names` as
    text, problem (of a record that could not be read), facts.
    """
    for batch in batches:
        for row in batch.to_pylist():
            yield from in_batches(_rows(Unit(**row), names), schema)


def _rows(unit: Unit, names: Names) -> Iterator[dict[str, Any]]:
    """The rows of a unit, then that of its facts."""
    place = {"file": unit.file, "block": unit.start}
    columns: set[str] = set()
    problem, n = None, 0
    try:
        for n, record in enumerate(READERS[unit.kind](unit), start=1):
            columns.update(record.values)
            # As it grows: a file whose keys are data would fill the memory before its end
            check_width(len(columns))
            yield {**place, "n": n, **_texts(record, names), "problem": record.problem}
    except UnreadableFileError as error:
        problem = str(error)
    except READ_ERRORS as error:
        problem = f"cannot be read to its end ({type(error).__name__}); replace the file or check its rights"
    named = sorted(columns | given(names, columns))
    facts: dict[str, Any] = {**place, "columns": named, "shapes": {}, "rows": n, "problem": problem}
    yield {**place, "n": n, "facts": json.dumps(facts)}


def given(names: Names, columns: Iterable[str]) -> set[str]:
    """Which of the columns are there, under whatever of their names.

    >>> given({"text": ("text", "contents"), "url": ("url",)}, ["contents"])
    {'text'}
    """
    there = set(columns)
    return {name for name, others in names.items() if there.intersection(others)}


def _texts(record: Record, names: Names) -> dict[str, str | None]:
    """The columns of a record as text; null where it has none, or nothing under any of their names."""
    values = record.values
    return {name: next((text_of(values[one]) for one in names[name] if one in values), None) for name in names}
