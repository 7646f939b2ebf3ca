"""versitygw: an S3 server of its own over a folder, which checks signatures and keeps conditions."""

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

from tests.fakes.object_store import BUCKET, KEYS
from untold.udfs.schemes import environment_of

PROGRAM = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "untold-tests"
START_SECONDS = 20.0


class Gateway(NamedTuple):
    """The settings `storage.*` and the environment of a process that uses the server; what Spark is told besides."""

    settings: Mapping[str, Any]
    variables: Mapping[str, str]
    spark: Mapping[str, str] = {}


def install(module: str = PROGRAM) -> Path | None:
    """The program, built once a machine; None without Go or where it cannot be built."""
    program = CACHE / module.partition("@")[0].rpartition("/")[2]
    if not program.exists() and (go := shutil.which("go")):
        subprocess.run([go, "install", module], env={**os.environ, "GOBIN": str(CACHE)}, check=False)
    return program if program.exists() else None


@contextmanager
def serve(program: Path, folder: Path) -> Iterator[Gateway]:
    """The server on loopback, with an empty bucket in the folder."""
    (folder / BUCKET).mkdir(parents=True)
    port = free_port()
    words = [str(program), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)]
    roots = {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
    with serving(words, port, roots):
        settings = {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}
        yield Gateway(settings, {**environment_of(settings), **KEYS})


def free_port() -> int:
    """A port of loopback that nobody has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(words: Sequence[str], port: int, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Runs a server until the end of the context. It listens once this begins. Raises TimeoutError."""
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
