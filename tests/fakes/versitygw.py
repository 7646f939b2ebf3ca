"""versitygw: an S3 server of its own over a folder, which checks signatures and keeps conditions."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
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
    """The settings `storage.*` and the environment of a process that uses the server."""

    settings: Mapping[str, Any]
    variables: Mapping[str, str]


def install() -> Path | None:
    """The program, built once a machine; None without Go or where it cannot be built."""
    program = CACHE / "versitygw"
    if not program.exists() and (go := shutil.which("go")):
        subprocess.run([go, "install", PROGRAM], env={**os.environ, "GOBIN": str(CACHE)}, check=False)
    return program if program.exists() else None


@contextmanager
def serve(program: Path, folder: Path) -> Iterator[Gateway]:
    """The server on loopback, with an empty bucket in the folder."""
    (folder / BUCKET).mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(program), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)]
    roots = {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
    server = subprocess.Popen(words, env={**os.environ, **roots}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        settings = {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}
        yield Gateway(settings, {**environment_of(settings), **KEYS})
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
    raise TimeoutError("versitygw does not listen")
