"""Servers that tests build once per machine, and run on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "untold-tests"
START_SECONDS = 20.0


class Gateway(NamedTuple):
    """The settings `storage.*`, the environment of a process that uses a server, and settings of Spark."""

    settings: Mapping[str, Any]
    variables: Mapping[str, str]
    spark: Mapping[str, str] = {}


def install_go(module: str) -> Path | None:
    """Install a Go program, such as `example.com/program@v1.0.0`. Return None without Go or after a failed build."""
    program = CACHE / module.partition("@")[0].rpartition("/")[2]
    if not program.exists() and (go := shutil.which("go")):
        subprocess.run([go, "install", module], env={**os.environ, "GOBIN": str(CACHE)}, check=False)
    return program if program.exists() else None


def install_npm(package: str, program: str) -> Path | None:
    """Install a file of an npm package, such as `name@1.0.0`. Return None without npm or after a failure."""
    folder = CACHE / package.partition("@")[0]
    found = folder / "node_modules" / program
    if not found.exists() and (npm := shutil.which("npm")):
        subprocess.run([npm, "install", "--silent", "--prefix", str(folder), package], check=False)
    return found if found.exists() else None


def free_port() -> int:
    """Return a free port on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(words: Sequence[str], port: int, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run a server until the end of the context. It listens at the beginning of the context. Raises TimeoutError."""
    given = {**os.environ, **(environment or {})}
    server = subprocess.Popen(words, env=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield
    finally:
        server.kill()
        server.wait()


def _wait_for(port: int) -> None:
    end = monotonic() + START_SECONDS
    while monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        sleep(0.05)
    raise TimeoutError(f"no server listens on port {port}")
