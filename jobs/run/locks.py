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
    """The identity of a process on any machine: host, boot of its kernel, PID namespace, number and start time."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: str

    @property
    def shares_kernel(self) -> bool:
        """True if it runs or ran under the kernel of this process: on this machine since its last boot."""
        return self.boot == boot_id()

    @property
    def is_alive(self) -> bool | None:
        """True if it is alive. None if its number is unknown here, on another machine or in another container."""
        if not self.shares_kernel or self.namespace != pid_namespace():
            return None
        # A zombie has ended and holds no locks, but its parent has not read its exit code
        is_zombie = (_stat_fields(self.pid) or [""])[0] == "Z"
        return start_time(self.pid) == self.started and not is_zombie


def this_process(pid: int | None = None) -> Process:
    """Return a process of this machine by its number, by default the current process."""
    number = os.getpid() if pid is None else pid
    return Process(socket.gethostname(), boot_id(), pid_namespace(), number, start_time(number))


@cache
def boot_id() -> str:
    """Return an id of the boot of this machine, the same in all its containers, or the name of the host.

    The name of a host is not enough, because cloned machines and containers can share it, and it survives a boot.
    """
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # macOS has no /proc
    return _first_line("sysctl", "-n", "kern.bootsessionuuid") or socket.gethostname()


def pid_namespace() -> str:
    """Return the namespace of process numbers. The text is empty if the system has no namespaces."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def start_time(pid: int) -> str:
    """Return the start time of a process as text. The text is empty if the process does not exist.

    On Linux it is clock ticks since the boot, elsewhere a line of `ps`. Only compare it with other results.
    """
    fields = _stat_fields(pid)
    if fields is not None:
        # The 22nd field of proc(5), of which the first two are cut off
        return fields[19] if fields else ""
    return _first_line("ps", "-o", "lstart=", "-p", str(pid))


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on. Return [] without the process, None without /proc.

    They begin after the last bracket, because the second field, the name of the program in brackets, can be any text.
    """
    if not os.path.exists("/proc/self/stat"):
        return None
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _first_line(*command: str) -> str:
    """Return the first line that a command of the system prints, empty without such a command."""
    with suppress(OSError):
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return shown.strip().partition("\n")[0]
    return ""


NAME = "_lock"
# A run can miss ten beats, on a paused machine or a slow disk, before another run takes over
HEARTBEAT_SECONDS = 30.0
STALE_SECONDS = 300.0
LOOK_SECONDS = 0.5
# The lock of the system and the file with its holder change within milliseconds
NAMING_SECONDS = 1.0
# The actor process of a killed run writes its completions within this time. Then they are looked up again
HELPER_SECONDS = 10.0
# The errors of network disks without locks
_NO_LOCKS_HERE = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)
_NOBODY = Process("unknown", "", "", 0, "")


class LockedError(UserError):
    """A folder that another run has locked. The message names its host and process."""


class LostLockError(LockedError):
    """The lock of this run is lost to another run. The message has the remedy."""


@dataclass(frozen=True)
class Holder:
    """The holder of a lock: id of the run, process, and helper processes."""

    run: str
    process: Process
    helpers: tuple[Process, ...] = ()

    def __str__(self) -> str:
        elsewhere = self.process.shares_kernel and self.process.is_alive is None
        where = " of another container" if elsewhere else ""
        return f"host {self.process.host}, pid {self.process.pid}{where}"


class Lock(ABC):
    """An exclusive lock on a folder within a context, at most for the life of the process. It creates the folder.

    With `wait`, the lock waits for another run and calls `notify` once. Otherwise it raises LockedError. `waited` is
    True if the lock was held by another run. Another machine can take over the lock of a run that was paused for five
    minutes, so call `check` before each write.
    """

    def __init__(self, folder: str, run: str, *, wait: bool, notify: Callable[[str], None] = lambda _: None) -> None:
        self._folder, self._place = folder, StoragePath(folder) / NAME
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
        """Raise LostLockError if another run took over the folder. It is fast: call it before writes."""
        if self.lost:
            raise LostLockError(
                f"another run took over {self._folder} because this run lost its lock. "
                "The completions are kept. Start again when the other run has ended"
            )

    def add_process(self, pid: int) -> None:
        """Add a helper process. It has no lock, but the successor of a killed run gives it time to write its data."""
        self._helpers = (*self._helpers, this_process(pid))
        self._renew()

    @property
    @abstractmethod
    def lost(self) -> bool:
        """True if another run took over the folder. A lost lock stays lost."""

    @abstractmethod
    def _take(self) -> Holder | None:
        """Take the lock if it is free or if its holder has ended. Otherwise return the holder."""

    @abstractmethod
    def _write(self) -> None:
        """Write the holder of the lock."""

    @abstractmethod
    def _release(self) -> None:
        """Release the lock unless it was lost."""

    _look_seconds = LOOK_SECONDS

    def _may_follow(self, holder: Holder | None, *, locked: bool = False) -> bool:
        """Return True if there is no holder, or if it and its helpers have ended.

        The helpers of a killed run first write their paid completions. With `locked`, this run has the lock of the
        system, which only a process of another kernel can ignore.
        """
        if holder is None:
            return True
        alive = False if locked and holder.process.shares_kernel else holder.process.is_alive
        is_gone = self._silence() > STALE_SECONDS if alive is None else not alive
        if is_gone:
            wait_for(holder.helpers)
        return is_gone

    def _silence(self) -> float:
        """Return the seconds since the holder wrote the file, by the clock of its disk or store."""
        probe = StoragePath(f"{self._place}-{self._run}")
        probe.write_bytes(b"now")
        now = probe.entry().modified
        probe.remove()
        return now - self._place.entry().modified

    def _beat(self) -> None:
        """Write the file again and again, in its own thread, until the lock is released."""
        while not self._ended.wait(HEARTBEAT_SECONDS):
            self._renew()

    def _renew(self) -> None:
        """Write the file unless the lock was released or lost, because the file then belongs to another run."""
        # A failed beat is one of ten, and the next can succeed. The lock prevents a beat after the end
        with suppress(OSError), self._changing:
            if not self._ended.is_set() and not self._is_lost():
                self._write()

    def _is_lost(self) -> bool:
        """Return True if the lock is lost, before a write."""
        return self.lost

    def _described(self) -> dict[str, Any]:
        """Return the content of the file: the holder and the time."""
        return asdict(Holder(self._run, self._process, self._helpers)) | {"heartbeat": time()}


class FolderLock(Lock):
    """A lock on a folder of a disk."""

    def __init__(self, folder: str, run: str, *, wait: bool, notify: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(folder, run, wait=wait, notify=notify)
        self._path = Path(folder) / NAME
        # Opened with close-on-exec, so that no helper process inherits it. The file stays, because all runs lock it
        held = self._path.with_name("_lock-held")
        self._system_lock = FileLock(held, thread_local=False, fallback_to_soft=False)

    @property
    def lost(self) -> bool:
        """True if another run took over the folder, by the current content of the file. A lost lock stays lost."""
        # An error of the disk does not show the holder
        with suppress(OSError):
            holder = read_holder(self._path)
            self._lost = self._lost or holder is None or holder.run != self._run
        return self._lost

    def _release(self) -> None:
        with ExitStack() as stack:
            # This is the last step, so that other runs do not find the file of an old holder
            stack.callback(self._system_lock.release)
            if not self.lost:
                self._path.unlink(missing_ok=True)

    def _take(self) -> Holder | None:
        """Take the lock if it is free or if its holder has ended. Otherwise return the holder."""
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
            if not self._may_follow(holder, locked=bool(locked)):
                return holder
            self._write()
            stack.pop_all()
        return None

    def _lock_system(self) -> bool | None:
        """Return True if this run has the lock of the system, None if the disk has no locks."""
        try:
            self._system_lock.acquire(timeout=0)
        except Timeout:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            return None
        return True

    def _write(self) -> None:
        """Write another file and rename it, so that readers always see a complete file."""
        aside = self._path.with_name(f"_lock-{self._run}")
        with naming(str(self._path.parent)):
            aside.write_text(json.dumps(self._described()), encoding="utf-8")
            os.replace(aside, self._path)


def read_holder(path: Path) -> Holder | None:
    """Return the holder in a lock file, None without a file. The holder of a damaged file is unknown."""
    try:
        return holder_of(path.read_bytes())
    except FileNotFoundError:
        return None


def holder_of(content: bytes) -> Holder:
    """Return the holder in the content of a lock, an unknown holder for damaged content."""
    try:
        plain = json.loads(content)
        helpers = tuple(Process(**helper) for helper in plain["helpers"])
        return Holder(plain["run"], Process(**plain["process"]), helpers)
    except (ValueError, KeyError, TypeError):
        return Holder("unknown", _NOBODY)


def wait_for(helpers: tuple[Process, ...]) -> None:
    """Wait until the helpers of a killed run have ended, at most `HELPER_SECONDS`."""
    until = monotonic() + HELPER_SECONDS
    while any(helper.is_alive for helper in helpers) and monotonic() < until:
        sleep(LOOK_SECONDS / 10)


# True for roots that support conditional writes, after a test
_TRIED: dict[Root, bool] = {}


class UnlockableError(UserError):
    """A folder that runs cannot lock. The message has the reason and the remedy."""


class ObjectLock(Lock):
    """A lock on a folder of an object store.

    The object has the run, the process, the number of locks so far (`epoch`) and of writes since (`beat`), and if it
    was released (`ended`). It stays, so that epochs only grow.
    """

    # Each look is a request
    _look_seconds = 2.0

    _tag: Mapping[str, Any] | None = None
    _epoch = _beats = 0
    _renewed_at = 0.0

    @property
    def lost(self) -> bool:
        """True if another run took over the folder. After a time without a successful beat, this reads the store."""
        if not self._lost and monotonic() - self._renewed_at > 2 * HEARTBEAT_SECONDS:
            self._renew()
        return self._lost

    def _is_lost(self) -> bool:
        return self._lost

    def _take(self) -> Holder | None:
        while True:
            found = self._place.read_written()
            plain = _read(found)
            holder = None if found is None or plain.get("ended") else holder_of(found.content)
            if not self._may_follow(holder):
                return holder
            self._epoch = int(plain.get("epoch", 0)) + 1
            tag = self._place.put_if(self._content(), found.tag if found else None)
            if tag is not None:
                self._tag, self._renewed_at = tag, monotonic()
                return None

    def _write(self) -> None:
        tag = self._place.put_if(self._content(), self._tag)
        self._lost = tag is None
        if tag is not None:
            self._tag, self._renewed_at = tag, monotonic()

    def _release(self) -> None:
        # If the store does not respond, the lock expires after five minutes
        with suppress(OSError):
            if not self._lost:
                self._place.put_if(self._content(ended=True), self._tag)

    def _content(self, *, ended: bool = False) -> bytes:
        self._beats += 1
        return json.dumps({**self._described(), "epoch": self._epoch, "beat": self._beats, "ended": ended}).encode()


def lock_folder(folder: str, run: str, *, wait: bool, notify: Callable[[str], None] = lambda _: None) -> Lock:
    """Return the lock of a folder as a context manager. Raises UnlockableError for file systems without locks."""
    check_lockable(folder)
    place = StoragePath(folder)
    if place.local is not None:
        return FolderLock(place.local, run, wait=wait, notify=notify)
    return ObjectLock(folder, run, wait=wait, notify=notify)


def check_lockable(folder: str) -> None:
    """Raise UnlockableError if runs cannot lock a folder."""
    if not is_lockable(folder):
        raise UnlockableError(
            f"cannot lock {folder}, because two writes of one new file both succeed there and runs cannot detect each "
            "other. Start one run at a time on it, with --no-lock"
        )


def is_lockable(folder: str) -> bool:
    """Return True if runs can lock a folder: not on HDFS, and not on object stores without conditional writes."""
    place = StoragePath(folder)
    return place.local is not None or (place.has_conditions and _keeps_conditions(place))


def _keeps_conditions(place: StoragePath) -> bool:
    """Return True if a store refuses to create an existing object, and to overwrite an object that has changed."""
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
    """Return the fields of a lock, none without a lock or for a damaged one."""
    with suppress(ValueError):
        plain = json.loads(found.content) if found else {}
        return plain if isinstance(plain, dict) else {}
    return {}
