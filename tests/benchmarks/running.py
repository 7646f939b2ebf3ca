"""Run the compared programs, each in separate processes, with one model server: the whole job, and the bare loops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import time

import psutil

from tests.benchmarks.samples import SETTINGS, STAGE
from tests.benchmarks.watching import Look, Watch
from tests.fakes.model_server import ModelServer
from untold.jobs.tables import RESULT_TABLES

ROOT = Path(__file__).resolve().parents[2]
IN_FLIGHT = 64
LONGEST_SECONDS = 3600.0
_KEPT_LINES = 20


@dataclass(frozen=True)
class Ran:
    """The requests of one run at the server. `began`, `ended` and `arrivals` (sorted) are time.time."""

    began: float
    ended: float
    arrivals: tuple[float, ...]
    rejected: int
    looks: tuple[Look, ...] = ()
    cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Return calls per second from the first to the last arrival."""
        return (len(self.arrivals) - 1) / (self.arrivals[-1] - self.arrivals[0])

    @property
    def seconds_before(self) -> float:
        """Return the seconds from the start of the process to the first arrival."""
        return self.arrivals[0] - self.began

    @property
    def seconds_after(self) -> float:
        """Return the seconds from the last arrival to the end of the process."""
        return self.ended - self.arrivals[-1]

    @property
    def seconds(self) -> float:
        """Return the seconds from the start of the process to its end."""
        return self.ended - self.began


def run_job(
    server: ModelServer,
    samples: Path,
    folder: Path,
    *settings: str,
    metric: str = "e2e",
    calls: int | None = None,
    watch: bool = False,
    look: Callable[[Path], None] = lambda output: None,
) -> Ran:
    """Run `untold score` on the samples into a new `folder`, which is removed. `watch` fills `looks`.

    `look` is called with the output before the removal. Raises RuntimeError if the run fails, or if the server did not
    receive exactly `calls` requests.
    """
    folder.mkdir()
    command = [sys.executable, "-m", "untold", "score", "--input", str(samples), "--metric", metric]
    command += ["--output", str(folder / "out"), *_set(server, settings)]
    ran = _run(server, command, folder, folder / "log", watch=watch)
    look(folder / "out")
    rmtree(folder)
    return _checked(ran, calls)


def copy_tables(output: Path) -> float:
    """Return the seconds in which a new Spark reads and writes the tables of an output."""
    with TemporaryDirectory(prefix="untold-") as name:
        where = [str(output), f"{name}/copy"]
        command = [sys.executable, "-m", "tests.benchmarks.bare", "tables", *where, *RESULT_TABLES]
        began = time()
        run_command(command, ROOT, Path(name) / "log", watch=False)
        return time() - began


def run_night(server: ModelServer, folder: Path, day: str, *settings: str, calls: int) -> Ran:
    """Run `untold nightly` for a date, from `folder/in/<date>.jsonl` into `folder/out/<date>`. Raises as `run_job`."""
    command = [sys.executable, "-m", "untold", "nightly", "--metric", "e2e", "--date", day]
    command += ["--input", f"{folder}/in/{{date}}.jsonl", "--output", f"{folder}/out/{{date}}", *_set(server, settings)]
    return _checked(_run(server, command, folder, folder / "log", watch=False), calls)


def _set(server: ModelServer, settings: Sequence[str]) -> list[str]:
    """Return the arguments of these settings and of the settings of all runs."""
    given = (*SETTINGS, f"llm.base_url={server.base_url}", f"llm.max_concurrency={IN_FLIGHT}", *settings)
    return [word for setting in given for word in ("--set", setting)]


def run_loop(server: ModelServer, kind: str, rows: Path, *, stage: str = STAGE, calls: int | None = None) -> Ran:
    """Run a loop of `tests.benchmarks.loops` over requests with their variables in the rows. Fills `cpu_seconds`."""
    command = [sys.executable, "-m", "tests.benchmarks.loops", kind, server.base_url, stage, str(rows), str(IN_FLIGHT)]
    log = rows.parent / f"{kind}.log"
    ran = _run(server, command, ROOT, log, watch=False)
    cpu = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])["cpu_seconds"]
    return _checked(Ran(ran.began, ran.ended, ran.arrivals, ran.rejected, cpu_seconds=cpu), calls)


def _run(server: ModelServer, command: Sequence[str], where: Path, log: Path, *, watch: bool) -> Ran:
    server.reset()
    began = time()
    looks = run_command(command, where, log, watch=watch)
    ended = time()
    arrived = server.arrivals()
    rejected = sum(arrival.status == 429 for arrival in arrived)
    return Ran(began, ended, tuple(sorted(arrival.at for arrival in arrived)), rejected, looks)


def run_command(command: Sequence[str], where: Path, log: Path, *, watch: bool) -> tuple[Look, ...]:
    """Run a command in the folder `where`, with its output in `log`. With `watch`, return its measured usage.

    Raises RuntimeError if it fails.
    """
    looks: tuple[Look, ...] = ()
    with log.open("w", encoding="utf-8") as written, _process(command, where, written.fileno()) as process:
        if watch:
            with Watch(process.pid) as watching:
                code = process.wait(LONGEST_SECONDS)
            looks = tuple(watching.looks)
        else:
            code = process.wait(LONGEST_SECONDS)
    if code:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_KEPT_LINES:]
        raise RuntimeError("\n".join([f"a run ended with code {code}:", *last]))
    return looks


@contextmanager
def _process(command: Sequence[str], where: Path, output: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process without proxies, keys or settings, and end it with this context."""
    kept = {name: value for name, value in os.environ.items() if not _disturbs(name)}
    process = subprocess.Popen(command, cwd=where, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=kept)
    try:
        yield process
    finally:
        if process.poll() is None:
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    below: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for child in below:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def _disturbs(name: str) -> bool:
    return name.startswith(("UNTOLD_", "OPENAI_")) or name.lower().endswith("_proxy")


def _checked(ran: Ran, calls: int | None) -> Ran:
    if calls is not None and len(ran.arrivals) != calls:
        raise RuntimeError(f"{len(ran.arrivals)} calls reached the model server, not {calls}: the figures would be off")
    return ran
