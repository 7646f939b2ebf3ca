"""Units of work: requests files, or ranges of their rows, that an actor can hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from untold.udfs.files import open_filesystem

# One unit is lost from an actor's memory when it dies, and two wait in it: both bounds keep that small (2,000 requests
# with contexts of 100 KB took 327 MB).
UNIT_ROWS = 2000
UNIT_BYTES = 16 * 2**20
# Rows that are decoded at once where a file is cut up: of 1 MB each they are still one unit.
BATCH_ROWS = 16


def list_units(requests: str, max_rows: int = UNIT_ROWS, max_bytes: int = UNIT_BYTES) -> list[str]:
    """The units under a path, in order: a file, or `<file>#<first>-<end>` for its rows from `first` to before `end`.

    None is over the bounds, but for a single row that is. Files without a byte or a row have no unit.
    """
    system, path = open_filesystem(requests)
    found = system.get_file_info(fs.FileSelector(path, recursive=True))
    prefix = requests.removesuffix(path) if requests.endswith(path) else ""
    files = sorted(info.path for info in found if info.base_name.endswith(".parquet") and info.size)
    return [prefix + unit for file in files for unit in _cut(system, file, max_rows, max_bytes)]


def count_unit(unit: str) -> int:
    """How many requests a unit has."""
    uri, rows = _parse(unit)
    if rows is not None:
        return len(rows)
    system, path = open_filesystem(uri)
    return int(pq.read_metadata(path, filesystem=system).num_rows)


def read_requests(unit: str) -> list[tuple[str, dict[str, Any]]]:
    """The (request id, variables) of a unit.

    All of it at once: a unit is bounded so that an actor can hold it. Raises OSError for a file that cannot be read.
    """
    rows = [row for batch in _batches(unit) for row in batch.to_pylist()]
    return [(row.pop("request_id"), row) for row in rows]


def read_request_ids(unit: str) -> list[str]:
    """The request ids of a unit."""
    return [one for batch in _batches(unit, ["request_id"]) for one in batch.column(0).to_pylist()]


def ids_among(unit: str, known: Set[str]) -> frozenset[str]:
    """Those of known ids that are requests of a unit: all that are known would be 35 MB a million with every unit."""
    return frozenset(known & set(read_request_ids(unit))) if known else frozenset()


def _cut(system: fs.FileSystem, path: str, max_rows: int, max_bytes: int) -> list[str]:
    """The units of one file; none for a file without rows."""
    with system.open_input_file(path) as file:
        footer = pq.read_metadata(file)
        if not footer.num_rows:
            return []
        # The footer alone tells for most files; only others have to be decoded to know how large their rows are.
        if footer.num_rows <= max_rows and _is_plain(footer) and _bytes_of(footer) <= max_bytes:
            return [path]
        ranges = list(_ranges(pq.ParquetFile(file), max_rows, max_bytes))
    return [path] if len(ranges) == 1 else [f"{path}#{rows.start}-{rows.stop}" for rows in ranges]


def _ranges(file: pq.ParquetFile, max_rows: int, max_bytes: int) -> Iterator[range]:
    """The rows of a file in ranges within the bounds, as long as they can be."""
    first = at = held = 0
    for batch in file.iter_batches(BATCH_ROWS):
        for number in range(batch.num_rows):
            size = batch.slice(number, 1).nbytes
            if at > first and (at - first == max_rows or held + size > max_bytes):
                yield range(first, at)
                first, held = at, 0
            at, held = at + 1, held + size
    yield range(first, at)


def _is_plain(footer: pq.FileMetaData) -> bool:
    """Whether no column has a dictionary: one says of a text that a thousand rows share as if only one had it."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    return not any(group.column(n).has_dictionary_page for group in groups for n in range(group.num_columns))


def _bytes_of(footer: pq.FileMetaData) -> int:
    """The bytes of all columns as they are in memory but for dictionaries: not compressed."""
    return sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))


def _batches(unit: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a unit, a few at a time; of the file, only row groups with rows of the unit are read."""
    uri, rows = _parse(unit)
    system, path = open_filesystem(uri)
    with system.open_input_file(path) as opened:
        file = pq.ParquetFile(opened)
        rows = range(file.metadata.num_rows) if rows is None else rows
        groups, at = _groups_of(file.metadata, rows)
        for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns):
            begin, end = max(rows.start - at, 0), min(rows.stop - at, batch.num_rows)
            if end > begin:
                yield batch.slice(begin, end - begin)
            at += batch.num_rows


def _groups_of(footer: pq.FileMetaData, rows: range) -> tuple[list[int], int]:
    """The row groups that hold rows of a range, and the first row of the first of them."""
    found: list[int] = []
    first = at = 0
    for number in range(footer.num_row_groups):
        end = at + footer.row_group(number).num_rows
        if at < rows.stop and end > rows.start:
            first = at if not found else first
            found.append(number)
        at = end
    return found, first


def _parse(unit: str) -> tuple[str, range | None]:
    """A unit's file, and its rows where it is a part of it.

    >>> _parse("s3://bucket/requests.parquet#2000-4000")
    ('s3://bucket/requests.parquet', range(2000, 4000))
    """
    match = re.fullmatch(r"(.*)#(\d+)-(\d+)", unit, re.DOTALL)
    return (match[1], range(int(match[2]), int(match[3]))) if match else (unit, None)
