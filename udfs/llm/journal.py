"""Answers on the disk of a node until they are in the store: what an actor that is killed had not written there yet.

A journal is a file of records: length and CRC-32 of a body, then the body, which is JSON. The first names the folder
and the prefix of the segments, each other one is a completion. Whoever writes a journal holds its lock while it lives.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from untold.udfs.llm.records import Completion, completions_table

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
