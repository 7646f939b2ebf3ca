"""Locks on local folders and object stores, and the processes that hold them."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, Self
from uuid import uuid4

from filelock import FileLock, Timeout

from untold.udfs.errors import UserError
from untold.udfs.object_stores import Root, WrittenObject
from untold.udfs.storage import StoragePath, naming


@dataclass(frozen=True)
class Process:
    """A process for all machines: the host's name, the boot of its kernel, PID namespace, number and start time."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: str

    @property
    def shares_kernel(self) -> bool:
        """Whether it runs, or ran, under the kernel of this process: on this machine since it was last started."""
        return self.boot == boot_id()

    @property
    def is_alive(self) -> bool | None:
        """Whether it lives; None where its number means nothing here: on another machine, in another container."""
        if not self.shares_kernel or self.namespace != pid_namespace():
            return None
        return start_time(self.pid) == self.started and not _is_zombie(self.pid)


def this_process(pid: int | None = None) -> Process:
    """The process of that number on this machine, its caller's own by default."""
    number = os.getpid() if pid is None else pid
    return Process(socket.gethostname(), boot_id(), pid_namespace(), number, start_time(number))


@cache
def boot_id() -> str:
    """What is the same for all containers of a machine and new with each of its starts; else the host's name.

    A host's name alone is no identity: clones of a machine and containers share names, and a machine keeps its own.
    """
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # macOS has no /proc
    return _first_line("sysctl", "-n", "kern.bootsessionuuid") or socket.gethostname()


def pid_namespace() -> str:
    """Within which process numbers mean what they mean here; empty where the system has no such thing."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def start_time(pid: int) -> str:
    """When the process of that number began, as the system tells it; empty where there is no such process.

    On Linux clock ticks since the boot, elsewhere the line of `ps`: to be compared with what this gave before, no more.
    """
    fields = _stat_fields(pid)
    if fields is not None:
        # The 22nd field of proc(5), of which the first two are cut off
        return fields[19] if fields else ""
    return _first_line("ps", "-o", "lstart=", "-p", str(pid))


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended and nobody has asked for its exit code yet; it holds no locks any more."""
    return (_stat_fields(pid) or [""])[0] == "Z"


def _stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on, its state; [] for no such process, None without /proc.

    They are counted after the last bracket: the second, the program's name in brackets, may hold anything.
    """
    if not os.path.exists("/proc/self/stat"):
        return None
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _first_line(*command: str) -> str:
    """The first line that a command of the system prints; empty where there is no such command."""
    with suppress(OSError):
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return shown.strip().partition("\n")[0]
    return ""


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
        StoragePath(self._folder).make_folder()
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
                f"another run took over {self._folder} because this run lost its lock. "
                "The completions are kept. Start again when the other run has ended"
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


NAME = "_lock"
# Whether a root keeps conditions, once it was tried
_TRIED: dict[Root, bool] = {}


class UnlockableError(UserError):
    """A folder that runs cannot lock. The message says why and what to do."""


class ObjectLock(Lock):
    """A lock on a folder of an object store.

    The object says run, process, how often it was taken (`epoch`) and written since (`beat`), and whether it was given
    back (`ended`); it stays, so that epochs only grow.
    """

    # Each look is a request
    _look_seconds = 2.0

    def __init__(self, folder: str, run: str, *, wait: bool, notify: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(folder, run, wait=wait, notify=notify)
        self._place = StoragePath(folder) / NAME
        self._tag: Mapping[str, Any] | None = None
        self._epoch = self._beats = 0
        self._renewed_at = 0.0

    @property
    def lost(self) -> bool:
        """Whether another run took the folder over: asked of the store where no beat has come through for a while."""
        if not self._lost and monotonic() - self._renewed_at > 2 * HEARTBEAT_SECONDS:
            self._renew()
        return self._lost

    def _is_lost(self) -> bool:
        return self._lost

    def _take(self) -> Holder | None:
        while True:
            found = self._place.read_written()
            plain = _read(found)
            if found is not None and not plain.get("ended"):
                holder = holder_of(found.content)
                if not self._is_gone(holder, found):
                    return holder
                # What the killed run's helpers have answered is paid for: they write it before anybody asks again
                wait_for(holder.helpers)
            self._epoch = int(plain.get("epoch", 0)) + 1
            tag = self._place.put_if(self._content(), found.tag if found else None)
            if tag is not None:
                self._tag, self._renewed_at = tag, monotonic()
                return None

    def _is_gone(self, holder: Holder, found: WrittenObject) -> bool:
        """Whether a holder has ended: a process of this machine by itself, another by its silence."""
        alive = holder.process.is_alive
        return not alive if alive is not None else self._now() - found.modified > STALE_SECONDS

    def _now(self) -> float:
        """The time by the store's clock, in seconds since 1970."""
        probe = StoragePath(f"{self._place}-{self._run}")
        probe.write_bytes(b"")
        written = probe.read_written()
        probe.remove()
        return written.modified if written else 0.0

    def _write(self) -> None:
        tag = self._place.put_if(self._content(), self._tag)
        self._lost = tag is None
        if tag is not None:
            self._tag, self._renewed_at = tag, monotonic()

    def _release(self) -> None:
        # A store that does not answer finds the holder silent in five minutes
        with suppress(OSError):
            if not self._lost:
                self._place.put_if(self._content(ended=True), self._tag)

    def _content(self, *, ended: bool = False) -> bytes:
        self._beats += 1
        return json.dumps({**self._described(), "epoch": self._epoch, "beat": self._beats, "ended": ended}).encode()


def lock_folder(folder: str, run: str, *, wait: bool, notify: Callable[[str], None] = lambda _: None) -> Lock:
    """The lock of a folder, to be entered. Raises UnlockableError where its file system has none."""
    check_lockable(folder)
    place = StoragePath(folder)
    if place.local is not None:
        return FolderLock(place.local, run, wait=wait, notify=notify)
    return ObjectLock(folder, run, wait=wait, notify=notify)


def check_lockable(folder: str) -> None:
    """Raises UnlockableError where runs cannot lock a folder."""
    if not is_lockable(folder):
        raise UnlockableError(
            f"cannot lock {folder}, because two writes of one new file both succeed there and runs cannot detect each "
            "other. Start one run at a time on it, with --no-lock"
        )


def is_lockable(folder: str) -> bool:
    """Whether runs can lock a folder: not on HDFS, and not on object stores that know no conditions."""
    place = StoragePath(folder)
    return place.local is not None or (place.has_conditions and _keeps_conditions(place))


def _keeps_conditions(place: StoragePath) -> bool:
    """Whether a store refuses to create an object twice, and to change one that was changed meanwhile."""
    root, _ = place.root
    if root not in _TRIED:
        probe = place / f"{NAME}-{uuid4().hex[:12]}"
        first = probe.put_if(b"1", None)
        try:
            creates_once = probe.put_if(b"2", None) is None
            _TRIED[root] = creates_once and bool(probe.put_if(b"3", first)) and probe.put_if(b"4", first) is None
        finally:
            probe.remove()
    return _TRIED[root]


def _read(found: WrittenObject | None) -> dict[str, Any]:
    """What a lock says; nothing where there is none, or where it is damaged."""
    with suppress(ValueError):
        plain = json.loads(found.content) if found else {}
        return plain if isinstance(plain, dict) else {}
    return {}
