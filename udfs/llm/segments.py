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


# A column's type stands beside its field, so that no second list can be in another order.
_TEXT, _COUNT = {"type": pa.string()}, {"type": pa.int64()}


@dataclass(slots=True)
class Completion:
    """A row of `completions`: what was paid for, and what came of it.

    The fields are the columns, in order. They are on the disks of whoever has a store: only ever add one, at the end.
    Nobody changes a row; a class that forbids it takes four times as long to make one.
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
        """Roughly its bytes."""
        # Numbers, names and times are some 200 bytes; the text, or the vector, is the rest
        vector = 0 if self.vector is None else self.vector.nbytes
        return len(self.text or "") + vector + len(self.request_id) + 200


COMPLETIONS = pa.schema([(item.name, item.metadata["type"]) for item in fields(Completion)])


def completion_of(
    request: Request, answer: Answer, *, rated: bool, run: str, endpoint: str | None = None
) -> Completion:
    """The row that a request ends with, answered by an endpoint; `rated` keeps the alternatives at its digits."""
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
    """The rows as a table with the schema `COMPLETIONS`."""
    columns = [pa.array(map(attrgetter(column.name), rows), column.type) for column in COMPLETIONS]
    return pa.table(columns, schema=COMPLETIONS)


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
    StoragePath(uri).write_whole(lambda file: pq.write_table(table, file, compression="zstd", write_page_checksum=True))


def check_probe(uri: str) -> None:
    """Reads and removes what an actor wrote. Raises where this process does not see the actor's disk."""
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
    """The folder of journals: the one that is named, else one of this user in the node's temporary folder."""
    path = Path(folder or f"{tempfile.gettempdir()}/untold-journal-{os.getuid()}")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not folder and path.lstat().st_uid != os.getuid():
        raise PermissionError(f"{path} is another user's: name a folder by llm.journal")
    return path


class Journal:
    """The journal of one writer of segments: a file for those rows that the next segment takes, and older ones.

    Not for several threads, but for `sync`. `broken`: its disk is full or failed, and it takes no more; `dirty`: `sync`
    has something to do.
    """

    def __init__(self, folder: Path, directory: str, prefix: str) -> None:
        self._folder, self._directory, self._prefix = folder, directory, prefix
        self._number = 0
        self._older: list[IO[bytes]] = []
        self._file = self._begin()
        self.dirty = False
        self.broken = False

    def append(self, row: Completion) -> None:
        """Writes a row, which outlives this process from here on, and a power cut after `sync`."""
        if self.broken:
            return
        record = _record(_plain(row))
        with self._breaking():
            self.broken = self._file.write(record) < len(record)
            self.dirty = True

    def sync(self) -> None:
        """Syncs what was appended since the last time, to the file before this one too."""
        self.dirty = False
        # A file may be closed meanwhile: its rows are in the store
        with self._breaking(), suppress(ValueError):
            for file in (*self._older[-1:], self._file):
                os.fsync(file.fileno())

    def rotate(self) -> int:
        """Begins another file; gives how many files have the rows before."""
        with self._breaking():
            new = self._begin()
            self._older.append(self._file)
            self._file = new
        return len(self._older)

    def forget(self, count: int) -> None:
        """Removes the oldest files, whose rows are in the store."""
        for file in self._older[:count]:
            _remove(file)
        del self._older[:count]

    def close(self, *, keep: bool) -> None:
        """Lets go of the files; `keep` leaves them, and their rows, to the next actor of this node."""
        for file in (*self._older, self._file):
            file.close() if keep else _remove(file)

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Ends the journal where its disk fails: the store is written all the more often, and the run goes on."""
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
        # Under its name only once it is locked, so that nobody takes it for a dead writer's
        aside.rename(path)
        return file


def read_journal(content: bytes) -> Iterator[dict[str, Any]]:
    """The records of a journal, up to the first that is torn: what a power cut or a full disk left of it."""
    at = 0
    while len(head := content[at : at + _HEAD.size]) == _HEAD.size:
        size, check = _HEAD.unpack(head)
        body = content[at + _HEAD.size : at + _HEAD.size + size]
        if len(body) < size or zlib.crc32(body) != check:
            return
        yield json.loads(body)
        at += _HEAD.size + size


def replay(folder: Path, directory: str, write: Callable[[str, pa.Table], None]) -> list[str]:
    """Writes what dead writers left of a stage's folder into it, and removes their journals; gives the segments.

    write: writes a table as a whole file. Raises OSError where the folder cannot be written.
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
    """A journal whose writer is dead, locked; None where it lives, or another actor replays it."""
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
    """The fields that a row has, as JSON; a vector by its bytes."""
    plain = {name: value for name in _COLUMNS if (value := getattr(row, name)) is not None}
    if row.answered_at is not None:
        plain["answered_at"] = row.answered_at.isoformat()
    if row.vector is not None:
        plain["vector"] = base64.b64encode(row.vector.astype("<f4").tobytes()).decode()
    return plain


def _completion(plain: dict[str, Any]) -> Completion:
    """The row of `_plain`. Fields of a later version are left out."""
    known = {name: plain[name] for name in _COLUMNS if name in plain}
    if "answered_at" in known:
        known["answered_at"] = datetime.fromisoformat(known["answered_at"])
    if "vector" in known:
        known["vector"] = np.frombuffer(base64.b64decode(known["vector"]), dtype="<f4")
    return Completion(**known)


def _remove(file: IO[bytes]) -> None:
    """Removes a file of ours before its lock ends with it."""
    with suppress(FileNotFoundError):
        os.unlink(Path(file.name).with_suffix(SUFFIX))
    file.close()
