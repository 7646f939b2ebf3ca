"""Write, read, check and merge the files of completions in a store. A file is complete or absent."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from hashlib import blake2b
from operator import attrgetter
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from untold.udfs.llm.calls import Answer, Request
from untold.udfs.llm.retrying import ASKED_AGAIN
from untold.udfs.llm.units import RequestIds
from untold.udfs.ratings import read_alternatives
from untold.udfs.storage import FOOTERS_AT_ONCE, StoragePath

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALTERNATIVE = pa.struct(
    [
        ("offset", pa.int32()),
        ("top", pa.list_(pa.struct([("token", pa.string()), ("logprob", pa.float64())]))),
    ]
)


# The type of a column is next to its field, so that there is no second list with another order
_TEXT, _COUNT = {"type": pa.string()}, {"type": pa.int64()}


@dataclass(slots=True)
class Completion:
    """A row of `completions`: a request with its usage and its result.

    The fields are the columns, in order. Existing stores have them, so new fields are only added at the end. Rows are
    never changed. A frozen class takes four times as long to create.
    """

    request_id: str = field(metadata=_TEXT)
    text: str | None = field(default=None, metadata=_TEXT)
    finish_reason: str | None = field(default=None, metadata=_TEXT)
    tool_trace: str | None = field(default=None, metadata=_TEXT)
    alternatives: list[dict[str, Any]] | None = field(default=None, metadata={"type": pa.list_(ALTERNATIVE)})
    model: str | None = field(default=None, metadata=_TEXT)
    prompt_tokens: int | None = field(default=None, metadata=_COUNT)
    cached_prompt_tokens: int | None = field(default=None, metadata=_COUNT)
    completion_tokens: int | None = field(default=None, metadata=_COUNT)
    tokens_estimated: bool | None = field(default=None, metadata={"type": pa.bool_()})
    attempts: int | None = field(default=None, metadata={"type": pa.int32()})
    seconds: float | None = field(default=None, metadata={"type": pa.float64()})
    answered_at: datetime | None = field(default=None, metadata={"type": pa.timestamp("us", tz="UTC")})
    error_type: str | None = field(default=None, metadata=_TEXT)
    error: str | None = field(default=None, metadata=_TEXT)
    run_id: str | None = field(default=None, metadata=_TEXT)
    vector: NDArray[np.float32] | None = field(default=None, metadata={"type": pa.list_(pa.float32())})
    endpoint: str | None = field(default=None, metadata=_TEXT)

    @property
    def size(self) -> int:
        """The approximate number of bytes."""
        # About 200 bytes in addition to the text or the vector
        vector = 0 if self.vector is None else self.vector.nbytes
        return len(self.text or "") + vector + len(self.request_id) + 200


COMPLETIONS = pa.schema([(item.name, item.metadata["type"]) for item in fields(Completion)])


def completion_of(
    request: Request, answer: Answer, *, rated: bool, run: str, endpoint: str | None = None
) -> Completion:
    """Return the row of a finished request. `rated` keeps the alternatives of its digits."""
    return Completion(
        request_id=request.request_id,
        text=answer.text,
        finish_reason=answer.finish_reason,
        tool_trace=json.dumps(request.trace, ensure_ascii=False) if request.trace else None,
        alternatives=read_alternatives(answer.text, answer.logprobs) if rated and answer.text else None,
        model=answer.model,
        prompt_tokens=request.usage.prompt_tokens,
        cached_prompt_tokens=request.usage.cached_prompt_tokens,
        completion_tokens=request.usage.completion_tokens,
        tokens_estimated=request.usage.estimated,
        attempts=request.calls,
        seconds=monotonic() - request.first_sent if request.first_sent else None,
        answered_at=datetime.now(UTC),
        error_type=answer.error_type,
        error=answer.error,
        run_id=run,
        vector=answer.vector,
        endpoint=endpoint,
    )


def completions_table(rows: Sequence[Completion]) -> pa.Table:
    """Return the rows as a table with the schema `COMPLETIONS`."""
    columns = [pa.array(map(attrgetter(column.name), rows), column.type) for column in COMPLETIONS]
    return pa.table(columns, schema=COMPLETIONS)


# A killed process loses the rows since its last write, so a write is due after this size or the seconds of the writer
FLUSH_BYTES = 2**20
# Half of the limit of unwritten rows, because rows are collected during a write
FLUSH_ROWS = 2500
# The limit of paid rows that are not on a disk, without calls in flight
MOST_ROWS = 5000
MOST_BYTES = 64 * 2**20
# Seconds after failed writes, doubled each time
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
# A flush at this share of its interval ends within the interval
FLUSH_AHEAD = 0.75


def write_file(uri: str, table: pa.Table) -> None:
    """Write a Parquet file atomically and durably: readers see no partial file, and a power cut loses nothing."""
    StoragePath(uri).write_whole(lambda file: pq.write_table(table, file, compression="zstd", write_page_checksum=True))


def check_probe(uri: str) -> None:
    """Read and remove the probe of an actor. Raises an error if this process does not share the disk of the actor."""
    probe = StoragePath(uri)
    try:
        with probe.open() as file:
            pq.read_schema(file)
        probe.remove()
    except OSError as error:
        raise RuntimeError(
            f"an answering actor wrote {uri}, and it cannot be read here: give the store a path that all nodes share"
        ) from error


class SegmentWriter:
    """Collect completions and write them to files `<directory>/<prefix>-<number>.parquet`, in one event loop.

    A failed write loses nothing: its rows are written again with later rows, after a growing wait. `trouble` is the
    error of the last write, or None.
    """

    def __init__(self, directory: str, prefix: str, seconds: float) -> None:
        self._directory, self._prefix, self._seconds = directory, prefix, seconds
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
        """Add a row. `size` is its approximate number of bytes."""
        self._rows.append(row)
        self._bytes += size

    @property
    def unwritten(self) -> int:
        """The number of rows that are not on a disk, including rows of the current write."""
        return len(self._rows) + self._leaving[0]

    @property
    def full(self) -> bool:
        """True if there are too many unwritten rows to send more requests."""
        return self.unwritten >= MOST_ROWS or self._bytes + self._leaving[1] >= MOST_BYTES

    @property
    def failing_for(self) -> float:
        """Seconds since the first failed write after the last successful one, 0 if the last write succeeded."""
        return 0.0 if self._failing_since is None else monotonic() - self._failing_since

    @property
    def may_write(self) -> bool:
        """True if the wait after a failed write is over."""
        return monotonic() - self._flushed_at >= self._wait

    @property
    def due(self) -> bool:
        """True if the collected rows should be written now."""
        late = monotonic() - self._flushed_at >= self._seconds * FLUSH_AHEAD
        much = self._bytes >= FLUSH_BYTES or len(self._rows) >= FLUSH_ROWS
        return bool(self._rows) and (late or much) and self.may_write

    async def flush(self) -> None:
        """Write the collected rows. Rows that are added during the write wait for the next file.

        Raises the error of a failed write. If the caller is cancelled, the write continues, and the next flush waits
        for it.
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
        # The number changes only after a successful write, so the next write replaces the file of a failed one
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
        self._failing_since, self._wait, self.trouble = None, 0.0, None


def _reason(error: BaseException) -> str:
    """Return the reason of a failed write without its content: the message of the system, or the name of the error."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else type(error).__name__


def read_ids(directory: str, prefix: str) -> set[str]:
    """Return the ids of the finished requests in the segments of one writer.

    A damaged segment has no ids, so its requests are sent again. Raises OSError for an unreadable segment.
    """
    ids: set[str] = set()
    for entry in StoragePath(directory).entries():
        if entry.name.startswith(f"{prefix}-") and entry.name.endswith(".parquet"):
            with suppress(DamagedError):
                rows = read_fields(entry.place, "request_id", "error_type")
                ids.update(row["request_id"] for row in rows if row.get("error_type") != ASKED_AGAIN)
    return ids


# Seconds before each attempt to read a file, because a mount or an object store can fail for a few seconds
PAUSES = (0.0, 0.1, 1.0, 5.0)
READ_BYTES = 8 * 2**20
BATCH_ROWS = 1024
# Large enough for zstd and for a scan by columns, and small enough for a merge with tens of megabytes of memory
ROW_GROUP_BYTES = 16 * 2**20
# The key of the sources in the footer of a merged file
SOURCES = "untold.sources"
# The errors of Arrow for invalid Parquet, with ValueError for a name that is not text
UNREADABLE = (OSError, ValueError, pa.ArrowException, MemoryError)

Given = TypeVar("Given")


class DamagedError(ValueError):
    """A readable file that is not valid Parquet."""


@dataclass(frozen=True)
class FooterFacts:
    """The number of rows in the footer of a file, and the sources of a merged file."""

    rows: int
    sources: tuple[str, ...] = ()


def read_fields(place: StoragePath, *names: str) -> list[dict[str, Any]]:
    """Return the rows of a file with its columns among `names`. Raises DamagedError, or OSError if it is unreadable."""
    rows: list[dict[str, Any]] | None = _read(place, lambda file: pq.ParquetFile(file).read(list(names)).to_pylist())
    if rows is None:
        raise DamagedError(f"{place} is damaged")
    return rows


def read_footers(places: Iterable[StoragePath]) -> list[FooterFacts | None]:
    """Return the facts in the footer of each file, None for a damaged file.

    Only footers are read, because files are much larger. Raises OSError for an unreadable file, and FileNotFoundError
    for a missing one.
    """
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        return list(pool.map(lambda place: _read(place, _read_footer), places))


def count_rows(places: Iterable[StoragePath]) -> list[int | None]:
    """Return the number of rows in the footer of each file, None for a damaged file.

    Raises OSError for an unreadable file, and FileNotFoundError for a missing one.
    """
    return [None if footer is None else footer.rows for footer in read_footers(places)]


def is_damaged(place: StoragePath) -> bool:
    """Return True if a readable file is invalid. This reads the whole file. Raises OSError if it is unreadable."""
    return _read(place, _read_through) is None


def digest_of(place: StoragePath) -> str:
    """Return the hash of the bytes of a file: 32 hex characters."""
    digest = blake2b(digest_size=16)
    with place.open() as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


@dataclass(frozen=True)
class Unneeded:
    """Unneeded rows: completed before a time, and of no request in `needed`."""

    before: datetime
    needed: RequestIds

    def kept(self, rows: pa.RecordBatch) -> pa.Array:
        """Return True for each row to keep. Rows without a time of completion are kept."""
        ids, times = (rows.column(name).to_pylist() for name in ("request_id", "answered_at"))
        young = np.array([at is None or at >= self.before for at in times], np.bool_)
        return pa.array(young | (self.needed.places(ids) >= 0))


def count_kept(place: StoragePath, unneeded: Unneeded) -> tuple[int, int]:
    """Return the rows of a file, and the rows to keep. Raises DamagedError, or OSError if it is unreadable."""

    def count(file: Any) -> tuple[int, int]:
        columns = ["request_id", "answered_at"]
        kept = [unneeded.kept(rows) for rows in pq.ParquetFile(file).iter_batches(columns=columns)]
        return sum(map(len, kept)), sum(one.true_count for one in kept)

    counted = _read(place, count)
    if counted is None:
        raise DamagedError(f"{place} is damaged")
    return counted


@dataclass(frozen=True)
class Merge:
    """A merge of files of a folder into one, on any machine with access to the folder.

    `size` is the bytes of the files. Rows in `unneeded` are left out, and `rows` is then the number of kept rows.
    """

    folder: str
    names: tuple[str, ...]
    target: str
    schema: pa.Schema
    size: int
    unneeded: Unneeded | None = None
    rows: int | None = None


def merge_files(merge: Merge) -> None:
    """Write the rows of the files into the new file, with one row group in memory. Its footer names the files.

    The columns are the columns of the schema, then all others of the files, which another version may have written.
    Raises ValueError or OSError, and writes nothing, if a file is incomplete.
    """
    folder = StoragePath(merge.folder)
    places = [folder / name for name in merge.names]
    footers = [_footer(place) for place in places]
    columns = _with_further(merge.schema, [footer.schema.to_arrow_schema() for footer in footers])
    rows = sum(footer.num_rows for footer in footers) if merge.rows is None else merge.rows

    def write(stream: Any) -> None:
        if (written := _copy_rows(places, columns, stream, merge)) != rows:
            raise ValueError(f"{written:,} of {rows:,} rows could be read from {len(places)} files of {folder}")

    (folder / merge.target).write_whole(write)


def _footer(place: StoragePath) -> Any:
    with place.open() as file:
        return pq.read_metadata(file)


def _copy_rows(places: Sequence[StoragePath], schema: pa.Schema, stream: Any, merge: Merge) -> int:
    """Write the needed rows of the files in their order to an open stream, and return their number."""
    written, size, held = 0, 0, [schema.empty_table()]
    # Checksums of pages are verified and written again, so that a merge does not copy damaged bytes
    with pq.ParquetWriter(stream, schema, compression="zstd", write_page_checksum=True) as writer:
        for place in places:
            with place.open() as file:
                parquet = pq.ParquetFile(file, page_checksum_verification=True)
                for batch in parquet.iter_batches(BATCH_ROWS, use_threads=False):
                    rows = batch if merge.unneeded is None else batch.filter(merge.unneeded.kept(batch))
                    held.append(_conform(rows, schema))
                    written, size = written + rows.num_rows, size + held[-1].nbytes
                    if size >= ROW_GROUP_BYTES:
                        writer.write_table(pa.concat_tables(held))
                        size, held = 0, held[:1]
        writer.write_table(pa.concat_tables(held))
        writer.add_key_value_metadata({SOURCES: json.dumps(merge.names)})
    return written


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return the rows with the columns and types of `schema`. Missing columns are null."""
    known = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in known else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _with_further(schema: pa.Schema, others: Sequence[pa.Schema]) -> pa.Schema:
    """Return the schema with the additional columns of the others at its end, in their order."""
    further = {field.name: field for other in others for field in other if field.name not in schema.names}
    return pa.schema([*schema, *further.values()])


def _read(place: StoragePath, make: Callable[[Any], Given]) -> Given | None:
    """Return the result of `make` for an open file, None if it fails twice for a file with readable bytes.

    Only such a file is damaged. Errors of a disk or a network are temporary, and do not depend on the content.
    """
    senseless = 0
    for last, pause in zip((False,) * (len(PAUSES) - 1) + (True,), PAUSES, strict=True):
        sleep(pause)
        try:
            with place.open() as file:
                return make(file)
        except FileNotFoundError:
            raise
        except UNREADABLE as error:
            senseless += _has_readable_bytes(place)
            # Twice, because a failing mount can return wrong bytes at first
            if senseless == 2:
                return None
            if last:
                raise OSError(f"{place} cannot be read ({error}). Repair its disk, or move it elsewhere") from error
    return None


def _has_readable_bytes(place: StoragePath) -> bool:
    """Return True if all bytes of a file can be read."""
    try:
        digest_of(place)
    except OSError:
        return False
    return True


def _read_footer(file: Any) -> FooterFacts:
    """Return the facts in the footer of a file. Sources that are no list of names are an error of Arrow."""
    footer = pq.read_metadata(file)
    names = json.loads((footer.metadata or {}).get(SOURCES.encode(), b"[]"))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise pa.ArrowInvalid("the sources of a merged file are no list of names")
    return FooterFacts(footer.num_rows, tuple(names))


def _read_through(file: Any) -> int:
    """Return the number of rows of a file after decoding all values."""
    parquet, rows = pq.ParquetFile(file, page_checksum_verification=True), 0
    for batch in parquet.iter_batches(BATCH_ROWS):
        batch.validate(full=True)
        rows += batch.num_rows
    if rows != parquet.metadata.num_rows:
        raise pa.ArrowInvalid(f"{rows:,} rows, not the {parquet.metadata.num_rows:,} of the footer")
    return rows
