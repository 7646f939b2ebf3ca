"""Which process on which machine: what tells one that lives from an ended one whose number was given anew."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path


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
