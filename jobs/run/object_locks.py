"""Locks on folders of object stores: a small object that is created, renewed and taken over on a condition.

Who writes an object only as it was left by themselves, or by a holder that has ended, is never two at once: the store
refuses one of them. A holder that was silent for five minutes, by the clock of the store, is taken to be gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any
from uuid import uuid4

from untold.jobs.run.locks import HEARTBEAT_SECONDS, STALE_SECONDS, FolderLock, Holder, Lock, holder_of, wait_for
from untold.udfs.errors import UserError
from untold.udfs.object_stores import Root, Written
from untold.udfs.storage import Place

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
        self._place = Place(folder) / NAME
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

    def _is_gone(self, holder: Holder, found: Written) -> bool:
        """Whether a holder has ended: a process of this machine by itself, another by its silence."""
        alive = holder.process.is_alive
        return not alive if alive is not None else self._now() - found.modified > STALE_SECONDS

    def _now(self) -> float:
        """The time by the store's clock, in seconds since 1970."""
        probe = Place(f"{self._place}-{self._run}")
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
    place = Place(folder)
    if place.local is not None:
        return FolderLock(place.local, run, wait=wait, notify=notify)
    return ObjectLock(folder, run, wait=wait, notify=notify)


def check_lockable(folder: str) -> None:
    """Raises UnlockableError where runs cannot lock a folder."""
    if not is_lockable(folder):
        raise UnlockableError(
            f"{folder} cannot be locked: two writes of one new file both succeed there, so runs cannot see each other; "
            "start one run at a time on it, with --no-lock"
        )


def is_lockable(folder: str) -> bool:
    """Whether runs can lock a folder: not on HDFS, and not on object stores that know no conditions."""
    place = Place(folder)
    return place.local is not None or (place.has_conditions and _keeps_conditions(place))


def _keeps_conditions(place: Place) -> bool:
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


def _read(found: Written | None) -> dict[str, Any]:
    """What a lock says; nothing where there is none, or where it is damaged."""
    with suppress(ValueError):
        plain = json.loads(found.content) if found else {}
        return plain if isinstance(plain, dict) else {}
    return {}
