"""The report of a machine of a run: the folders that it reaches, and its versions."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from time import sleep
from typing import Any, TypedDict
from uuid import uuid4

import pyarrow as pa

from untold.udfs.errors import ENGINE, PLATFORM, UserError
from untold.udfs.llm.store_files import digest_of
from untold.udfs.object_stores import OverdueError, run_within
from untold.udfs.storage import StoragePath

DRIVER = "driver"
# A disk or an object store that needs longer for a file of 32 bytes is too slow for a run
PLACE_SECONDS = 10.0
# Each task occupies its core for this time, so that the other tasks run on other cores and other executors
HOLD_SECONDS = 0.5


class NodeReport(TypedDict):
    """The report of a machine.

    `machine` is its name in messages, `file` the name of its file, and `problems` are errors by folder. `silence` is
    the reason for a missing report, empty otherwise.
    """

    machine: str
    silence: str
    file: str
    problems: dict[str, str]
    versions: dict[str, str]


def visit(machine: str, folders: Mapping[str, str], files: Mapping[str, str], nonce: str) -> NodeReport:
    """Check each folder, and compare the files with their digests, within `PLACE_SECONDS` each."""
    name = uuid4().hex
    tried = {place: within(partial(_try, StoragePath(folder), nonce, name)) for place, folder in folders.items()}
    read = {path: within(partial(_compare, path, digest)) for path, digest in files.items()}
    problems = {place: problem for place, problem in (tried | read).items() if problem is not None}
    return {"machine": machine, "silence": "", "file": name, "problems": problems, "versions": versions()}


def silent(machine: str, reason: str) -> NodeReport:
    """Return the report of a machine that did not report."""
    return {"machine": machine, "silence": reason, "file": "", "problems": {}, "versions": {}}


def visit_in_task(
    batches: Iterator[pa.RecordBatch], folders: Mapping[str, str], files: Mapping[str, str], nonce: str
) -> Iterator[pa.RecordBatch]:
    """Yield the report of the executor that runs this task, as rows of executor and report."""
    for _ in batches:
        sleep(HOLD_SECONDS)
    # Each executor has separate folders. Python workers have no other name for their executor
    executor = os.environ.get("SPARK_LOCAL_DIRS", str(os.getppid()))
    report = visit(f"the executor on {socket.gethostname()}", folders, files, nonce)
    yield pa.RecordBatch.from_pylist([{"executor": executor, "report": json.dumps(report)}])


def within(act: Callable[[], Any], seconds: float = PLACE_SECONDS) -> str | None:
    """Return a short reason if an access failed or took too long, or None."""
    try:
        run_within(seconds, act)
    except OverdueError:
        return f"no answer within {seconds:g} s"
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        said = str(error) if isinstance(error, UserError | ValueError) else type(error).__name__
        return os.strerror(number) if number else said
    return None


def _try(folder: StoragePath, nonce: str, name: str) -> None:
    """Read the file of the driver. Write, list, read and remove a file, and leave another file."""
    if DRIVER not in {entry.name for entry in folder.entries()}:
        raise ValueError("it does not see the file that the driver wrote there")
    own, content = folder / f"{name}-own", nonce.encode()
    own.write_bytes(content)
    listed = {entry.name for entry in folder.entries()}
    if own.name not in listed or not (own.read_bytes() == content == (folder / DRIVER).read_bytes()):
        raise ValueError("it reads another content than the driver wrote there")
    own.remove()
    (folder / name).write_bytes(content)


def _compare(path: str, digest: str) -> None:
    if digest_of(StoragePath(path)) != digest:
        raise ValueError("it reads another file than the driver does")


def versions() -> dict[str, str]:
    """Return the installed versions of Python, of untold and of the requirements of its engine, by name."""
    found = {"python": platform.python_version(), **_installed(["untold", *_needed()])}
    # Workers use a copy of pyspark from Spark, without package metadata
    pyspark = sys.modules.get("pyspark")
    return {**({"pyspark": pyspark.__version__} if pyspark else {}), **found}


def _needed() -> Sequence[str]:
    try:
        lines = requires("untold") or []
    except PackageNotFoundError:
        return []
    of_engine = re.compile(rf"extra == .(?:{ENGINE}|{PLATFORM})\b")
    wanted = [line for line in lines if "extra ==" not in line or of_engine.search(line)]
    names = dict.fromkeys(re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in wanted)
    # The metadata of a clone and of an installation spell names differently (typing_extensions, typing-extensions)
    return [re.sub(r"[-_.]+", "-", name).lower() for name in names]


def _installed(names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
