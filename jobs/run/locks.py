"""Locks on folders: who holds one, from which host and process, and whether it is still there.

On one machine the operating system decides: a lock of its own is held for the holder's life, across containers, and
goes with the process however that ends. Between machines, whose locks may not see each other on a shared disk, the
file `_lock` decides: its holder writes it anew every 30 seconds, and is taken to be gone after five minutes. Object
stores have a lock of their own (`untold.jobs.run.object_locks`).
"""

from __future__ import annotations

import errno
import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, Self

from filelock import FileLock, Timeout

from untold.jobs.run.processes import Process, this_process
from untold.udfs.errors import UserError
from untold.udfs.storage import Place, naming

# Ten beats may be missed, to a paused machine or a disk that hangs, before another takes over what costs money
HEARTBEAT_SECONDS = 30.0
STALE_SECONDS = 300.0
LOOK_SECONDS = 0.5
# Between the lock of the system and the file that names its holder, and back, lie milliseconds
NAMING_SECONDS = 1.0
# What a killed run's answering process has in memory it writes within seconds of its end; then it is looked up again
HELPER_SECONDS = 10.0
# What network disks that are mounted without locks say to the call
_NO_LOCKS_HERE = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)
_NOBODY = Process("unknown", "", "", 0, "")


class LockedError(UserError):
    """Another run holds the folder. The message names its host and process."""


class LostLockError(LockedError):
    """Another run took the folder over while this one stood still. The message says what to do."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: run id, process, and processes that help it."""

    run: str
    process: Process
    helpers: tuple[Process, ...] = ()

    def __str__(self) -> str:
        elsewhere = self.process.shares_kernel and self.process.is_alive is None
        where = " of another container" if elsewhere else ""
        return f"host {self.process.host}, pid {self.process.pid}{where}"


class Lock(ABC):
    """An exclusive lock on a folder for as long as the process lives. Use it as a context manager.

    `wait`: whether it waits for another run, which it says once to `notify`, or raises LockedError. `waited` says
    whether another run held it first. A run that stood still for five minutes may lose it to another machine: `check`
    before every write. The folder is made where it is not there.
    """

    def __init__(self, folder: str, run: str, *, wait: bool, notify: Callable[[str], None] = lambda _: None) -> None:
        self._folder = folder
        self._run, self._wait, self._notify = run, wait, notify
        self._process, self._helpers = this_process(), tuple[Process, ...]()
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._lost = False
        self.waited = False

    def __enter__(self) -> Self:
        Place(self._folder).make_folder()
        while (holder := self._take()) is not None:
            text = f"{self._folder} is in use by a run on {holder}"
            if not self._wait:
                raise LockedError(text)
            if not self.waited:
                self._notify(f"{text}; waiting for it")
            self.waited = True
            sleep(self._look_seconds)
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with self._changing:
            self._release()

    def check(self) -> None:
        """Raises LostLockError where another run took the folder over. It is quick: call it before writes."""
        if self.lost:
            raise LostLockError(
                f"another run took over {self._folder} while this one stood still; "
                "what was answered is kept: start again once it has ended"
            )

    def add_process(self, pid: int) -> None:
        """Names a helper process. It holds nothing, but who follows a killed run gives it time to write what it has."""
        self._helpers = (*self._helpers, this_process(pid))
        self._renew()

    @property
    @abstractmethod
    def lost(self) -> bool:
        """Whether another run took the folder over. Once lost is lost for good."""

    @abstractmethod
    def _take(self) -> Holder | None:
        """Takes the lock where it is free or its holder is gone; else who holds it."""

    @abstractmethod
    def _write(self) -> None:
        """Writes who holds the lock."""

    @abstractmethod
    def _release(self) -> None:
        """Gives the lock back, unless it was lost."""

    _look_seconds = LOOK_SECONDS

    def _beat(self) -> None:
        """Writes the file anew until the lock is given back, in a thread of its own."""
        while not self._ended.wait(HEARTBEAT_SECONDS):
            self._renew()

    def _renew(self) -> None:
        """Writes the file, unless the lock was given back or lost: the file is another's then."""
        # A beat that fails is one of ten: the next may succeed. The lock keeps one from following the end
        with suppress(OSError), self._changing:
            if not self._ended.is_set() and not self._is_lost():
                self._write()

    def _is_lost(self) -> bool:
        """Whether the lock is lost, for who is about to write it."""
        return self.lost

    def _described(self) -> dict[str, Any]:
        """What the file says of the holder."""
        return asdict(Holder(self._run, self._process, self._helpers)) | {"heartbeat": time()}


class FolderLock(Lock):
    """A lock on a folder of a disk."""

    def __init__(self, folder: str, run: str, *, wait: bool, notify: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(folder, run, wait=wait, notify=notify)
        self._path = Path(folder) / "_lock"
        # Opened with close-on-exec: no helper process inherits it. It stays when released, for all to lock one file
        held = self._path.with_name("_lock-held")
        self._system_lock = FileLock(held, thread_local=False, fallback_to_soft=False)

    @property
    def lost(self) -> bool:
        """Whether another run took the folder over, by a look at the file now. Once lost is lost for good."""
        # A disk that does not answer at this moment says nothing about who holds the folder
        with suppress(OSError):
            holder = read_holder(self._path)
            self._lost = self._lost or holder is None or holder.run != self._run
        return self._lost

    def _release(self) -> None:
        with ExitStack() as stack:
            # Last, so that whoever waits finds no file of a holder that has gone
            stack.callback(self._system_lock.release)
            if not self.lost:
                self._path.unlink(missing_ok=True)

    def _take(self) -> Holder | None:
        """Takes the lock where it is free or its holder is gone; else who holds it."""
        until = monotonic() + NAMING_SECONDS
        while not (locked := self._lock_system()) and locked is not None:
            holder = read_holder(self._path)
            if holder is not None and holder.process.is_alive is not False:
                return holder
            if monotonic() > until:
                return holder or Holder("unknown", _NOBODY)
            sleep(LOOK_SECONDS / 10)
        with ExitStack() as stack:
            stack.callback(self._system_lock.release)
            holder = read_holder(self._path)
            if holder is not None and not self._is_gone(holder, locked=bool(locked)):
                return holder
            # What the killed run's helpers have answered is paid for: they write it before anybody asks again
            if holder is not None:
                wait_for(holder.helpers)
            self._write()
            stack.pop_all()
        return None

    def _lock_system(self) -> bool | None:
        """Whether the lock of the system was taken; None where the disk has no such locks."""
        try:
            self._system_lock.acquire(timeout=0)
        except Timeout:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            return None
        return True

    def _is_gone(self, holder: Holder, *, locked: bool) -> bool:
        """Whether a holder has ended. `locked`: this run has the lock of the system, so nobody on this machine has."""
        if holder.process.shares_kernel and (locked or holder.process.is_alive is not None):
            return locked or not holder.process.is_alive
        return self._silence() > STALE_SECONDS

    def _silence(self) -> float:
        """Seconds since the holder wrote the file, by the clock of the disk: those of two machines may differ."""
        probe = self._path.with_name(f"_lock-{self._run}")
        probe.write_text("", encoding="utf-8")
        now = probe.stat().st_mtime
        probe.unlink()
        return now - self._path.stat().st_mtime

    def _write(self) -> None:
        """Writes the file aside and renames it: readers see all of it, the one before or the one after."""
        aside = self._path.with_name(f"_lock-{self._run}")
        with naming(str(self._path.parent)):
            aside.write_text(json.dumps(self._described()), encoding="utf-8")
            os.replace(aside, self._path)


def read_holder(path: Path) -> Holder | None:
    """The holder that a lock file names; None where there is no such file. A damaged file is held by nobody known."""
    try:
        return holder_of(path.read_bytes())
    except FileNotFoundError:
        return None


def holder_of(content: bytes) -> Holder:
    """The holder that the content of a lock names; one that is not known where it is damaged."""
    try:
        plain = json.loads(content)
        helpers = tuple(Process(**helper) for helper in plain["helpers"])
        return Holder(plain["run"], Process(**plain["process"]), helpers)
    except (ValueError, KeyError, TypeError):
        return Holder("unknown", _NOBODY)


def wait_for(helpers: tuple[Process, ...]) -> None:
    """Waits until the helpers of a killed run have ended, or for as long as they get."""
    until = monotonic() + HELPER_SECONDS
    while any(helper.is_alive for helper in helpers) and monotonic() < until:
        sleep(LOOK_SECONDS / 10)
