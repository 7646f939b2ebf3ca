"""Completions as Parquet segments: append-only files that appear whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from udfs.files import is_local as is_local
from udfs.files import open_filesystem as open_filesystem
from udfs.files import write_whole
from udfs.llm.store_files import DamagedError, read_column

FLUSH_BYTES = 8 * 2**20
# A flush that begins this early is over when its interval is.
FLUSH_AHEAD = 0.75


def write_file(uri: str, table: pa.Table) -> None:
    """Writes a Parquet file so that readers never see a part of it, and a power cut takes nothing of it back."""
    write_whole(uri, lambda stream: pq.write_table(table, stream, compression="zstd", write_page_checksum=True))


class SegmentWriter:
    """Collects rows of one schema and writes them to files `<directory>/<prefix>-<number>.parquet`.

    Rows are tuples in the schema's order. Use it from one event loop.
    """

    def __init__(self, directory: str, prefix: str, schema: pa.Schema, seconds: float) -> None:
        self._directory, self._prefix, self._schema, self._seconds = directory, prefix, schema, seconds
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0
        self._number = 0
        self._flushed_at = monotonic()
        self._lock = asyncio.Lock()
        self._writing: asyncio.Future[None] | None = None

    def add(self, row: tuple[Any, ...], size: int) -> None:
        """Takes a row; `size` is roughly its bytes."""
        self._rows.append(row)
        self._bytes += size

    @property
    def due(self) -> bool:
        """Whether what is collected should be written now."""
        late = monotonic() - self._flushed_at >= self._seconds * FLUSH_AHEAD
        return bool(self._rows) and (late or self._bytes >= FLUSH_BYTES)

    async def flush(self) -> None:
        """Writes what is collected. Rows added meanwhile wait for the next file.

        A write goes on where the caller is cancelled, and the next flush waits for it.
        """
        async with self._lock:
            if self._writing is not None:
                await asyncio.shield(self._writing)
            self._flushed_at = monotonic()
            if self._rows:
                self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, self._take()))
                await asyncio.shield(self._writing)

    def _take(self) -> list[tuple[Any, ...]]:
        rows, self._rows, self._bytes = self._rows, [], 0
        self._number += 1
        return rows

    def _write(self, rows: list[tuple[Any, ...]]) -> None:
        uri = f"{self._directory}/{self._prefix}-{self._number:06d}.parquet"
        write_file(uri, rows_to_table(rows, self._schema))


def rows_to_table(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """A table of rows given as tuples in the schema's order."""
    columns = zip(*rows, strict=True)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def read_ids(directory: str, prefix: str) -> set[str]:
    """The request ids in the segments of one writer; empty where it wrote none.

    A damaged segment holds none: what it was to hold has to be asked again. Raises OSError where one cannot be read.
    """
    system, path = open_filesystem(directory)
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    ids: set[str] = set()
    for info in found:
        if info.base_name.startswith(f"{prefix}-") and info.base_name.endswith(".parquet"):
            with suppress(DamagedError):
                ids.update(read_column(system, info.path, "request_id"))
    return ids
