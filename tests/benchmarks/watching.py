"""Measure memory and processor time of a process and its descendants, by role."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import basename
from time import time
from types import TracebackType

import psutil

from untold.jobs.run.session import DAEMON

SECONDS = 0.2
DRIVER, JVM, ANSWERING, ACTOR, PYTHON_WORKERS = "driver", "jvm", "answering", "actor", "python workers"
LIMITER = "limiter"
OTHER = "other"
# Roles with one process. A child with the same command line will start another program, and shares its memory until
# then
SINGLE = (DRIVER, JVM, ANSWERING, ACTOR)


@dataclass(frozen=True)
class Look:
    """A look at a process tree: resident bytes by role, roles and processor seconds by pid, and the time `at`."""

    at: float
    bytes: Mapping[str, int]
    roles: Mapping[int, str]
    cpu: Mapping[int, float]


class Watch:
    """Looks at a process tree every 0.2 s until it is left. Memory is resident size, and shared pages count in each."""

    def __init__(self, pid: int) -> None:
        self.looks: list[Look] = []
        self._root = psutil.Process(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _keep_looking(self) -> None:
        while not self._ended.wait(SECONDS):
            try:
                self.looks.append(look_at([self._root, *self._root.children(recursive=True)]))
            except psutil.NoSuchProcess:
                return


def look_at(processes: Sequence[psutil.Process]) -> Look:
    """Return the memory and processor time of these processes (parents first), without processes that have ended."""
    sizes: Counter[str] = Counter()
    roles: dict[int, str] = {}
    cpu: dict[int, float] = {}
    for process in processes:
        try:
            with process.oneshot():
                role, times = role_of(process.cmdline()), process.cpu_times()
                if role in SINGLE and roles.get(process.ppid()) == role:
                    continue
                sizes[role] += process.memory_info().rss
            roles[process.pid], cpu[process.pid] = role, times.user + times.system
        except psutil.Error:
            continue
    return Look(time(), sizes, roles, cpu)


def role_of(command: Sequence[str]) -> str:
    """Return the role of a process of a run, from its command line."""
    if not command:
        return OTHER
    if basename(command[0]) == "java":
        return JVM
    if command[0].startswith("ray::AnsweringActor"):
        return ACTOR
    if command[0].startswith("ray::LimiterActor"):
        return LIMITER
    roles = {
        "untold": DRIVER,
        "tests.benchmarks.comparing": DRIVER,
        "untold.jobs.inference.backends.actor_driver": ANSWERING,
    }
    roles |= dict.fromkeys((DAEMON, "pyspark.daemon"), PYTHON_WORKERS)
    return next((role for module, role in roles.items() if module in command), OTHER)


def peak_bytes(looks: Sequence[Look], *roles: str) -> int:
    """Return the maximum total of resident bytes of these roles in one look."""
    return max((sum(look.bytes.get(role, 0) for role in roles) for look in looks), default=0)


def cpu_between(looks: Sequence[Look], role: str, first: float, last: float) -> float:
    """Return the processor seconds of a role from the look before `first` to the look after `last` (time.time).

    A process has the role of the later look, because an actor starts as a worker without a name. Raises LookupError if
    the role was not seen then.
    """
    before = max((look for look in looks if look.at <= first), key=lambda look: look.at, default=None)
    after = min((look for look in looks if look.at >= last), key=lambda look: look.at, default=None)
    pids = [pid for pid, known in after.roles.items() if known == role] if after else []
    if before is None or after is None or not pids:
        raise LookupError(f"no look at the {role} before the first and after the last call")
    return sum(after.cpu[pid] - before.cpu.get(pid, 0.0) for pid in pids)
