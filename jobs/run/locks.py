"""Locks as files: who holds a folder, from which host and process, and whether it is still there."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import sleep, time

from udfs.errors import UserError

HEARTBEAT_SECONDS = 30.0
STALE_SECONDS = 300.0
LOOK_SECONDS = 0.5


class LockedError(UserError):
    """Another run holds the folder. The message names its host and process."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: run id, host, process ids (the run and its helpers), and when it was last heard of."""

    run: str
    host: str
    pids: tuple[int, ...]
    heartbeat: float

    @property
    def is_gone(self) -> bool:
        """Whether its processes ended on this host, or it has not been heard of for five minutes."""
        ended = self.host == socket.gethostname() and not any(_is_alive(pid) for pid in self.pids)
        return ended or time() - self.heartbeat > STALE_SECONDS


class FolderLock:
    """An exclusive lock on a folder, kept alive by a heartbeat. Use it as a context manager.

    `lost` is set where another run took over, which happens to one that stood still for five minutes.
    """

    def __init__(self, folder: str, run: str, *, wait: bool, notify: Callable[[str], None] = lambda _: None) -> None:
        self._path = Path(folder) / "_lock"
        self._run, self._wait, self._notify = run, wait, notify
        self._pids: tuple[int, ...] = (os.getpid(),)
        self._ended = threading.Event()
        self.waited = False
        self.lost = False

    def __enter__(self) -> FolderLock:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while (holder := self._take()) is not None:
            if not self._wait:
                raise LockedError(_describe(self._path.parent, holder))
            if not self.waited:
                self._notify(_describe(self._path.parent, holder) + "; waiting for it")
            self.waited = True
            sleep(LOOK_SECONDS)
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with self._guard():
            if self._is_own():
                self._path.unlink()

    def add_process(self, pid: int) -> None:
        """Counts a helper process as part of the holder."""
        self._pids = (*self._pids, pid)
        self._renew()

    def _take(self) -> Holder | None:
        """Takes the lock where it is free or its holder is gone; else who holds it."""
        with self._guard():
            holder = read_holder(self._path)
            if holder is not None and not holder.is_gone:
                return holder
            self._write()
        return None

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            self._renew()

    def _renew(self) -> None:
        with suppress(OSError), self._guard():
            if self._ended.is_set():
                return
            self.lost = not self._is_own()
            if not self.lost:
                self._write()

    def _is_own(self) -> bool:
        holder = read_holder(self._path)
        return holder is not None and holder.run == self._run

    def _write(self) -> None:
        aside = self._path.with_name(f"_lock-{self._run}")
        holder = Holder(self._run, socket.gethostname(), self._pids, time())
        aside.write_text(json.dumps(asdict(holder)), encoding="utf-8")
        os.replace(aside, self._path)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Makes looking at the lock and changing it one step, over all processes and threads."""
        with open(self._path.with_name("_lock-guard"), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def read_holder(path: Path) -> Holder | None:
    """The holder that a lock file names; None where there is no such file. A damaged file is held by nobody known."""
    try:
        changed = path.stat().st_mtime
        plain = json.loads(path.read_text(encoding="utf-8"))
        return Holder(plain["run"], plain["host"], tuple(plain["pids"]), plain["heartbeat"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return Holder("unknown", "unknown", (0,), changed)


def _describe(folder: Path, holder: Holder) -> str:
    return f"{folder} is in use by a run on host {holder.host}, pid {holder.pids[0]}"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False
