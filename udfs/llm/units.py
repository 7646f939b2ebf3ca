"""Units of work: files of requests, or ranges of their rows, that fit into the memory of an actor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from untold.udfs.storage import FOOTERS_AT_ONCE, StoragePath

# An actor has up to three units in memory, so both limits keep them small (2,000 requests with contexts of 100 KB took
# 327 MB)
UNIT_ROWS = 2000
UNIT_BYTES = 16 * 2**20
# The minimum number of rows that are decoded together. 16 rows of 1 MB are one unit
BATCH_ROWS = 16
# Bytes that are decoded together if the footer has the size of rows. Groups of 16 short rows take seven times as long
BATCH_BYTES = 2**20


def list_units(requests: str, max_rows: int = UNIT_ROWS, max_bytes: int = UNIT_BYTES) -> dict[str, int]:
    """Return the units in a folder, in order, with their numbers of requests.

    A unit is a file, or `<file>#<first>-<end>` for its rows from `first` to `end` - 1. No unit exceeds the limits
    unless a single row does. Files without bytes or rows have no unit. Each file is opened once, several in parallel.
    """
    found = StoragePath(requests).entries(recursive=True, missing_ok=False)
    files = sorted(str(entry.place) for entry in found if entry.name.endswith(".parquet") and entry.size)
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        cut = list(pool.map(lambda file: _cut(file, max_rows, max_bytes), files))
    return {unit: rows for units in cut for unit, rows in units.items()}


def read_requests(unit: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the pairs of request id and variables of a unit. Raises OSError for an unreadable file."""
    rows = [row for batch in _batches(unit) for row in batch.to_pylist()]
    return [(row.pop("request_id"), row) for row in rows]


def read_request_ids(unit: str) -> list[str]:
    """Return the request ids of a unit."""
    return [one for batch in _batches(unit, ["request_id"]) for one in batch.column(0).to_pylist()]


class RequestIds:
    """A sorted set of request ids (ASCII) with 32 bytes per id. A set of Python needs about 100."""

    def __init__(self, ids: NDArray[np.bytes_] | Sequence[str] = ()) -> None:
        self._ids = np.unique(np.asarray(ids, np.bytes_))

    def __len__(self) -> int:
        return len(self._ids)

    def places(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the index of each id in the set, int64[len(ids)], -1 for an id that is not in the set."""
        if not len(self) or not ids:
            return np.full(len(ids), -1)
        wanted = np.asarray(ids, np.bytes_)
        found = np.minimum(np.searchsorted(self._ids, wanted), len(self) - 1)
        return np.where(self._ids[found] == wanted, found, -1)

    def __or__(self, other: RequestIds) -> RequestIds:
        return RequestIds(np.concatenate([self._ids, other._ids])) if len(self) and len(other) else self or other

    def among(self, ids: Sequence[str]) -> frozenset[str]:
        """Return the ids that are in the set."""
        return frozenset(compress(ids, self.places(ids) >= 0))

    def where(self, kept: NDArray[np.bool_]) -> RequestIds:
        """Return the set of the ids with True in `kept`, bool[len(self)]."""
        return RequestIds(self._ids[kept])


def _cut(uri: str, max_rows: int, max_bytes: int) -> dict[str, int]:
    """Return the units of one file with their numbers of rows. Empty for a file without rows."""
    with StoragePath(uri).open() as file:
        footer = pq.read_metadata(file)
        if not footer.num_rows:
            return {}
        # The footer is enough for most files. Other files are decoded to get the size of their rows
        if footer.num_rows <= max_rows and _is_plain(footer) and _bytes_of(footer) <= max_bytes:
            return {uri: footer.num_rows}
        ranges = list(_ranges(pq.ParquetFile(file), max_rows, max_bytes))
    if len(ranges) == 1:
        return {uri: footer.num_rows}
    return {f"{uri}#{rows.start}-{rows.stop}": len(rows) for rows in ranges}


def _ranges(file: pq.ParquetFile, max_rows: int, max_bytes: int) -> Iterator[range]:
    """Yield the longest ranges of rows of a file within the limits."""
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
    """Return True if no column has a dictionary, because a dictionary counts a text in a thousand rows only once."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    return not any(group.column(n).has_dictionary_page for group in groups for n in range(group.num_columns))


def _bytes_of(footer: pq.FileMetaData) -> int:
    """Return the uncompressed bytes of all columns, which is their size in memory without dictionaries."""
    return sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))


def _batches(unit: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a unit in batches. Only row groups with rows of the unit are read."""
    uri, rows = _parse(unit)
    with StoragePath(uri).open() as opened:
        file = pq.ParquetFile(opened)
        rows = range(file.metadata.num_rows) if rows is None else rows
        groups, at = _groups_of(file.metadata, rows)
        for batch in file.iter_batches(_rows_at_once(file.metadata), row_groups=groups, columns=columns):
            begin, end = max(rows.start - at, 0), min(rows.stop - at, batch.num_rows)
            if end > begin:
                yield batch.slice(begin, end - begin)
            at += batch.num_rows


def _rows_at_once(footer: pq.FileMetaData) -> int:
    """Return the average number of rows in `BATCH_BYTES`, or `BATCH_ROWS` if the footer does not have their size."""
    known = _bytes_of(footer) if _is_plain(footer) else 0
    return max(BATCH_ROWS, min(UNIT_ROWS, footer.num_rows * BATCH_BYTES // known)) if known else BATCH_ROWS


def _groups_of(footer: pq.FileMetaData, rows: range) -> tuple[list[int], int]:
    """Return the row groups with rows of a range, and the first row of the first group."""
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
    """Return the file of a unit, and its range of rows, None for the whole file.

    >>> _parse("s3://bucket/requests.parquet#2000-4000")
    ('s3://bucket/requests.parquet', range(2000, 4000))
    """
    match = re.fullmatch(r"(.*)#(\d+)-(\d+)", unit, re.DOTALL)
    return (match[1], range(int(match[2]), int(match[3]))) if match else (unit, None)
