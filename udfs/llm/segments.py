"""Completions as Parquet segments: append-only files that appear whole or not at all."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from untold.udfs.llm.records import Completion, completions_table
from untold.udfs.llm.retrying import ASKED_AGAIN
from untold.udfs.llm.store_files import DamagedError, read_fields
from untold.udfs.storage import Place

if TYPE_CHECKING:
    from untold.udfs.llm.journal import Journal

FLUSH_BYTES = 8 * 2**20
# Half of what may be unwritten: the other half goes on being collected while these are written.
FLUSH_ROWS = 2500
# What may be paid for and on no disk yet; what is in flight comes on top.
MOST_ROWS = 5000
MOST_BYTES = 64 * 2**20
# With a journal a death costs none of it, and each write of an object store is paid for
JOURNALED_BYTES = 32 * 2**20
JOURNALED_ROWS = 25_000
# Rows that came within it share one sync of the journal
SYNC_SECONDS = 0.05
# Waits after failed writes, doubled each time.
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
# A flush that begins this early is over when its interval is.
FLUSH_AHEAD = 0.75


def write_file(uri: str, table: pa.Table) -> None:
    """Writes a Parquet file so that readers never see a part of it, and a power cut takes nothing of it back."""
    Place(uri).write_whole(lambda file: pq.write_table(table, file, compression="zstd", write_page_checksum=True))


def check_probe(uri: str) -> None:
    """Reads and removes what an actor wrote. Raises where this process does not see the actor's disk."""
    probe = Place(uri)
    try:
        with probe.open() as file:
            pq.read_schema(file)
        probe.remove()
    except OSError as error:
        raise RuntimeError(
            f"an answering actor wrote {uri}, and it cannot be read here: give the store a path that all nodes share"
        ) from error


class SegmentWriter:
    """Collects completions and writes them to files `<directory>/<prefix>-<number>.parquet`; for one event loop.

    A write that fails loses nothing: its rows go back, and are written with later ones after a wait that grows.
    `trouble` says why the last one failed, None where it did not. A `journal` has the rows meanwhile.
    """

    def __init__(self, directory: str, prefix: str, seconds: float, journal: Journal | None = None) -> None:
        self._directory, self._prefix, self._seconds = directory, prefix, seconds
        self._journal = journal
        self._rows: list[Completion] = []
        self._bytes = 0
        self._leaving = (0, 0)
        self._number = 1
        self._flushed_at = monotonic()
        self._failing_since: float | None = None
        self._wait = 0.0
        self._lock = asyncio.Lock()
        self._writing: asyncio.Future[None] | None = None
        self.trouble: str | None = None

    def add(self, row: Completion, size: int) -> None:
        """Takes a row; `size` is roughly its bytes."""
        self._rows.append(row)
        self._bytes += size
        if self._journal is not None:
            self._journal.append(row)

    @property
    def unwritten(self) -> int:
        """How many rows are on no disk yet, those included that are being written."""
        return len(self._rows) + self._leaving[0]

    @property
    def full(self) -> bool:
        """Whether so much is unwritten that nothing more should be asked."""
        most = 2 * JOURNALED_ROWS if self.journaled else MOST_ROWS
        return self.unwritten >= most or self._bytes + self._leaving[1] >= MOST_BYTES

    @property
    def failing_for(self) -> float:
        """Seconds since the first write failed after which none succeeded; 0 where the last one did."""
        return 0.0 if self._failing_since is None else monotonic() - self._failing_since

    @property
    def may_write(self) -> bool:
        """Whether no wait after a failed write is going on."""
        return monotonic() - self._flushed_at >= self._wait

    @property
    def due(self) -> bool:
        """Whether what is collected should be written now."""
        late = monotonic() - self._flushed_at >= self._seconds * FLUSH_AHEAD
        most = (JOURNALED_BYTES, JOURNALED_ROWS) if self.journaled else (FLUSH_BYTES, FLUSH_ROWS)
        much = self._bytes >= most[0] or len(self._rows) >= most[1]
        return bool(self._rows) and (late or much) and self.may_write

    @property
    def journaled(self) -> bool:
        """Whether a journal has what is not written yet."""
        return self._journal is not None and not self._journal.broken

    async def keep_synced(self) -> None:
        """Syncs the journal, where there is one, until it is cancelled."""
        while self._journal is not None:
            await asyncio.sleep(SYNC_SECONDS)
            if self._journal.dirty:
                await asyncio.to_thread(self._journal.sync)

    def close(self) -> None:
        """Ends the journal, which stays where rows are not written."""
        if self._journal is not None:
            self._journal.close(keep=self.unwritten > 0)

    async def flush(self) -> None:
        """Writes what is collected. Rows added meanwhile wait for the next file. Raises what a failed write raised.

        A write goes on where the caller is cancelled, and the next flush waits for it.
        """
        async with self._lock:
            if self._writing is not None:
                await asyncio.wait([self._writing])
            if self._rows:
                self._writing = asyncio.ensure_future(self._write_all())
                await asyncio.shield(self._writing)

    async def _write_all(self) -> None:
        rows, size = self._rows, self._bytes
        self._rows, self._bytes, self._leaving = [], 0, (len(rows), size)
        rotated = self._journal.rotate() if self._journal and self.journaled else 0
        # A number is used until its file is there: what a failed write may have left is replaced by more of the same.
        uri = f"{self._directory}/{self._prefix}-{self._number:06d}.parquet"
        self._flushed_at = monotonic()
        try:
            await asyncio.to_thread(lambda: write_file(uri, completions_table(rows)))
        except BaseException as error:
            self._rows, self._bytes = rows + self._rows, self._bytes + size
            self._failing_since = self._failing_since or self._flushed_at
            self._wait = min(LONGEST_WAIT, max(FIRST_WAIT, 2 * self._wait))
            self._flushed_at, self.trouble = monotonic(), _reason(error)
            raise
        finally:
            self._leaving = (0, 0)
        self._number += 1
        if self._journal is not None:
            self._journal.forget(rotated)
        self._failing_since, self._wait, self.trouble = None, 0.0, None


def _reason(error: BaseException) -> str:
    """Why a write failed, without what was to be written: the system's words for it, else the error's name."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else type(error).__name__


def read_ids(directory: str, prefix: str) -> set[str]:
    """The request ids that the segments of one writer settle; empty where it wrote none.

    A damaged segment holds none: what it was to hold has to be asked again. Raises OSError where one cannot be read.
    """
    ids: set[str] = set()
    for entry in Place(directory).entries():
        if entry.name.startswith(f"{prefix}-") and entry.name.endswith(".parquet"):
            with suppress(DamagedError):
                rows = read_fields(entry.place, "request_id", "error_type")
                ids.update(row["request_id"] for row in rows if row.get("error_type") != ASKED_AGAIN)
    return ids
