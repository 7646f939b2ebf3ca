"""Write completions to Parquet segments: append-only files, with a journal on the node's disk until they are stored."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from untold.udfs.llm.calls import Answer, Request
from untold.udfs.llm.retrying import ASKED_AGAIN
from untold.udfs.llm.store_files import DamagedError, read_fields
from untold.udfs.ratings import read_alternatives
from untold.udfs.storage import StoragePath

if TYPE_CHECKING:
    import numpy as np
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


FLUSH_BYTES = 8 * 2**20
# Half of the limit of unwritten rows, because rows are collected during a write
FLUSH_ROWS = 2500
# The limit of paid rows that are not on a disk, without calls in flight
MOST_ROWS = 5000
MOST_BYTES = 64 * 2**20
# With a journal, a killed process loses no rows, and each write of an object store costs money
JOURNALED_BYTES = 32 * 2**20
JOURNALED_ROWS = 25_000
# Rows within this time share one sync of the journal
SYNC_SECONDS = 0.05
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
    error of the last write, or None. A `journal` has the rows until they are written.
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
        """Add a row. `size` is its approximate number of bytes."""
        self._rows.append(row)
        self._bytes += size
        if self._journal is not None:
            self._journal.append(row)

    @property
    def unwritten(self) -> int:
        """The number of rows that are not on a disk, including rows of the current write."""
        return len(self._rows) + self._leaving[0]

    @property
    def full(self) -> bool:
        """True if there are too many unwritten rows to send more requests."""
        most = 2 * JOURNALED_ROWS if self.journaled else MOST_ROWS
        return self.unwritten >= most or self._bytes + self._leaving[1] >= MOST_BYTES

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
        most = (JOURNALED_BYTES, JOURNALED_ROWS) if self.journaled else (FLUSH_BYTES, FLUSH_ROWS)
        much = self._bytes >= most[0] or len(self._rows) >= most[1]
        return bool(self._rows) and (late or much) and self.may_write

    @property
    def journaled(self) -> bool:
        """True if a journal has the unwritten rows."""
        return self._journal is not None and not self._journal.broken

    async def keep_synced(self) -> None:
        """Sync the journal, if there is one, until the task is cancelled."""
        while self._journal is not None:
            await asyncio.sleep(SYNC_SECONDS)
            if self._journal.dirty:
                await asyncio.to_thread(self._journal.sync)

    def close(self) -> None:
        """Close the journal. Keep its files if rows are unwritten."""
        if self._journal is not None:
            self._journal.close(keep=self.unwritten > 0)

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
        rotated = self._journal.rotate() if self._journal and self.journaled else 0
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
        if self._journal is not None:
            self._journal.forget(rotated)
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


SUFFIX = ".journal"
_HEAD = struct.Struct(">II")
_COLUMNS = tuple(column.name for column in fields(Completion))


def journal_folder(folder: str) -> Path:
    """Return the folder of journals: `folder`, or a folder of this user in the temporary folder of the node."""
    path = Path(folder or f"{tempfile.gettempdir()}/untold-journal-{os.getuid()}")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not folder and path.lstat().st_uid != os.getuid():
        raise PermissionError(f"{path} is another user's: name a folder by llm.journal")
    return path


class Journal:
    """The journal of one writer of segments: a file with the rows of the next segment, and older files.

    Only `sync` may run in another thread. `broken` is True if its disk is full or fails, and it then accepts no rows.
    `dirty` is True if rows are not synced.
    """

    def __init__(self, folder: Path, directory: str, prefix: str) -> None:
        self._folder, self._directory, self._prefix = folder, directory, prefix
        self._number = 0
        self._older: list[IO[bytes]] = []
        self._file = self._begin()
        self.dirty = False
        self.broken = False

    def append(self, row: Completion) -> None:
        """Write a row. It survives a kill of this process, and after `sync` also a power cut."""
        if self.broken:
            return
        record = _record(_plain(row))
        with self._breaking():
            self.broken = self._file.write(record) < len(record)
            self.dirty = True

    def sync(self) -> None:
        """Sync the rows that were added since the last sync, also in the previous file."""
        self.dirty = False
        # A closed file has its rows in the store
        with self._breaking(), suppress(ValueError):
            for file in (*self._older[-1:], self._file):
                os.fsync(file.fileno())

    def rotate(self) -> int:
        """Begin another file, and return the number of files with earlier rows."""
        with self._breaking():
            new = self._begin()
            self._older.append(self._file)
            self._file = new
        return len(self._older)

    def forget(self, count: int) -> None:
        """Remove the oldest files, because the store has their rows."""
        for file in self._older[:count]:
            _remove(file)
        del self._older[:count]

    def close(self, *, keep: bool) -> None:
        """Close the files. With `keep`, they stay for the next actor of this node."""
        for file in (*self._older, self._file):
            file.close() if keep else _remove(file)

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Stop the journal if its disk fails. The run then continues with more frequent writes to the store."""
        try:
            yield
        except OSError:
            self.broken = True

    def _begin(self) -> IO[bytes]:
        self._number += 1
        path = self._folder / f"{self._prefix}-{self._number:06d}{SUFFIX}"
        aside = path.with_suffix(".new")
        file = open(aside, "wb", buffering=0)  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(_record({"directory": self._directory, "segment": f"{self._prefix}-j{self._number:06d}.parquet"}))
        # Renamed after the lock, so that no other actor reads it as the journal of a dead writer
        aside.rename(path)
        return file


def read_journal(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the records of a journal up to the first incomplete one, after a power cut or on a full disk."""
    at = 0
    while len(head := content[at : at + _HEAD.size]) == _HEAD.size:
        size, check = _HEAD.unpack(head)
        body = content[at + _HEAD.size : at + _HEAD.size + size]
        if len(body) < size or zlib.crc32(body) != check:
            return
        yield json.loads(body)
        at += _HEAD.size + size


def replay(folder: Path, directory: str, write: Callable[[str, pa.Table], None]) -> list[str]:
    """Write the journals of dead writers of a folder to segments in it, remove them, and return the segments.

    `write` writes a table as a complete file. Raises OSError if the folder is not writable.
    """
    written = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with _open_left(path) as file:
            first, *rows = ([*read_journal(file.read())] if file else []) or [{}]
            if first.get("directory") == directory:
                segment = f"{directory}/{first['segment']}"
                if rows:
                    write(segment, completions_table([_completion(row) for row in rows]))
                    written.append(segment)
                path.unlink()
    return written


@contextmanager
def _open_left(path: Path) -> Iterator[IO[bytes] | None]:
    """Lock the journal of a dead writer. Yield None if its writer is alive, or if another actor reads it."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError):
            yield None
        else:
            yield file


def _record(value: Mapping[str, Any]) -> bytes:
    body = json.dumps(value).encode()
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _plain(row: Completion) -> dict[str, Any]:
    """Return the fields of a row as JSON values, with a vector as bytes."""
    plain = {name: value for name in _COLUMNS if (value := getattr(row, name)) is not None}
    if row.answered_at is not None:
        plain["answered_at"] = row.answered_at.isoformat()
    if row.vector is not None:
        plain["vector"] = base64.b64encode(row.vector.astype("<f4").tobytes()).decode()
    return plain


def _completion(plain: dict[str, Any]) -> Completion:
    """Return the row from the fields of `_plain`. Fields of a later version are left out."""
    known = {name: plain[name] for name in _COLUMNS if name in plain}
    if "answered_at" in known:
        known["answered_at"] = datetime.fromisoformat(known["answered_at"])
    if "vector" in known:
        known["vector"] = np.frombuffer(base64.b64decode(known["vector"]), dtype="<f4")
    return Completion(**known)


def _remove(file: IO[bytes]) -> None:
    """Remove a file before its lock ends."""
    with suppress(FileNotFoundError):
        os.unlink(Path(file.name).with_suffix(SUFFIX))
    file.close()
