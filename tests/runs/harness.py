"""Whole runs of `untold score` as processes of their own, their samples, and what must come of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import psutil
import pyarrow.parquet as pq

from tests.fakes.answers import expected_e2e, expected_summary
from tests.fakes.model_server import Arrival, ModelServer
from untold.jobs.run.session import SMALL_JVM

PROMPTS = Path(__file__).resolve().parents[1] / "fakes" / "prompts"
RESULTS = ("samples", "atoms", "relations", "statements", "conflicts", "scores", "measures", "failures")
# Ten times what the longest run takes on a slow machine: these end a run that hangs, and show nothing
WAIT_SECONDS = 900.0
SETTINGS: Mapping[str, Any] = {
    "llm.model": "fake-model",
    "prompts_dir": PROMPTS,
    "spark.conf.spark.sql.shuffle.partitions": 2,
    "spark.conf.spark.sql.codegen.wholeStage": "false",
    "spark.conf.spark.sql.adaptive.enabled": "false",
    "spark.conf.spark.driver.extraJavaOptions": SMALL_JVM,
}
Row = dict[str, Any]


def words_of(
    endpoint: ModelServer | str,
    samples: Path,
    output: Path,
    *flags: str,
    settings: Mapping[str, Any] | None = None,
    command: str = "score",
) -> list[str]:
    """The command line of a run, less the program; e2e is the metric where the flags name none."""
    base_url = endpoint if isinstance(endpoint, str) else endpoint.base_url
    words = [command, "--input", str(samples), "--output", str(output)]
    words += ["--metric", "e2e"] if command == "score" and "--metric" not in flags else []
    words += flags
    for key, value in {**SETTINGS, "llm.base_url": base_url, **(settings or {})}.items():
        words += ["--set", f"{key}={value}"]
    return words


def write_foreign_modules(folder: Path) -> Path:
    """Makes modules of a user's in a folder, named as ours and one of Python's, that break when they are imported."""
    for name in ("jobs/__init__.py", "udfs/__init__.py", "graph/__init__.py", "conf/__init__.py", "json.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("raise ImportError('a module of the user was imported')\n", encoding="utf-8")
    return folder


def clean_environment() -> dict[str, str]:
    """This process's environment without what would be settings or keys of a run."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("UNTOLD_", "OPENAI_"))}


@dataclass(frozen=True)
class Ended:
    """How a run ended: exit code, standard output, standard error, seconds."""

    code: int
    out: str
    err: str
    seconds: float


class Run:
    """A running command of `untold`. Its streams go to files, so that nothing of it outlives a kill unnoticed.

    Takes what `words_of` takes: an endpoint, samples, an output, flags, `settings` and `command`.
    """

    def __init__(
        self,
        endpoint: ModelServer | str,
        samples: Path,
        output: Path,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        words = [sys.executable, "-m", "untold", *words_of(endpoint, samples, output, *flags, **options)]
        self._logs = output.parent / f"log-{output.name}-{time():.3f}"
        self._logs.mkdir(parents=True)
        self._began = monotonic()
        with open(self._logs / "out", "w") as out, open(self._logs / "err", "w") as err:
            self._process = subprocess.Popen(
                words,
                cwd=self._logs,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**clean_environment(), **(environment or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id, and that of its process group."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def errors(self) -> str:
        """What it wrote to standard error so far."""
        return (self._logs / "err").read_text(encoding="utf-8", errors="replace")

    def tree(self) -> list[psutil.Process]:
        """Its process and all below it: the JVM, the answering process, Ray and its actors."""
        try:
            process = psutil.Process(self.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """`kill -9` of everything that belongs to it."""
        kill_processes(self.tree())
        self._process.wait()

    def kill_parent(self) -> None:
        """`kill -9` of its own process only."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout: float = WAIT_SECONDS) -> Ended:
        """Waits for its end; kills it and raises TimeoutError where that takes too long."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"the run took more than {timeout:g} s; it wrote: {self.errors[-2000:]}") from None
        out = (self._logs / "out").read_text(encoding="utf-8")
        return Ended(self._process.returncode, out, self.errors, monotonic() - self._began)

    def wait_for(
        self, server: ModelServer, count: int, stage: str | None = None, timeout: float = WAIT_SECONDS
    ) -> None:
        """Waits until the server has seen so many requests; says what the run wrote where it ends before."""
        end = monotonic() + timeout
        while (arrived := server.count(stage)) < count:
            if not self.is_running or monotonic() > end:
                raise TimeoutError(f"{arrived} of {count} requests arrived; the run wrote: {self.errors[-2000:]}")
            sleep(0.02)


def score(endpoint: ModelServer | str, samples: Path, output: Path, *flags: str, **options: Any) -> Ended:
    """Runs `untold score`, or another command, to its end."""
    run = Run(endpoint, samples, output, *flags, **options)
    try:
        return run.wait()
    finally:
        if run.is_running:
            run.kill()


def start_worker(spool: Path, *flags: str, **variables: str) -> subprocess.Popen[str]:
    """`untold answer` of a spool in a process and a folder of its own, with a Ray of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "untold", "answer", str(spool), *flags],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**clean_environment(), **variables},
    )


def kill_processes(processes: Iterable[psutil.Process]) -> None:
    """`kill -9`, parents first, then waits until all are gone."""
    known = list(processes)
    for process in known:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    end = monotonic() + 10
    while alive(known) and monotonic() < end:
        sleep(0.05)


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended."""
    return [process for process in processes if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def find_actor(run: Run, name: str, timeout: float = 20.0) -> psutil.Process:
    """The process of a Ray actor of that class. Raises LookupError where there is none."""
    end = monotonic() + timeout
    while monotonic() < end:
        for process in run.tree():
            try:
                if any(f"ray::{name}" in part for part in process.cmdline()):
                    return process
            except psutil.NoSuchProcess:
                continue
        sleep(0.05)
    raise LookupError(f"no actor {name} among the processes of the run")


def make_samples(count: int, group: int = 5) -> list[Row]:
    """Samples with two contexts each, the first shared by a group; every answer says some of what these say."""
    return [
        {
            "sample_id": f"s{number:04d}",
            "query": f"What of {number // group}?",
            "response": f"Fact A{number // group}. Fact C{number}." if number % 2 else f"Fact B{number // group}.",
            "contexts": [
                f"Fact A{number // group}. Fact B{number // group}.",
                f"IRRELEVANT thing {number}. Fact C{number}. Fact B{number // group}.",
            ],
            "system": f"system{number % 2}",
        }
        for number in range(count)
    ]


def write_samples(path: Path, samples: Sequence[Row]) -> Path:
    """Writes samples as JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples), encoding="utf-8")
    return path


def payloads_of(sample: Row) -> tuple[list[Row], Row]:
    """What is asked for a sample: the prompts of its contexts' summaries, and that of its coverage."""
    texts = sample["contexts"]
    summaries = [{"stage": "summarise_context", "query": sample["query"], "text": text} for text in texts]
    kept = [summary for text in texts if (summary := expected_summary(text)) is not None]
    coverage = {"stage": "evaluate_coverage", "contexts": kept, **{k: sample[k] for k in ("query", "response")}}
    return summaries, coverage


def count_distinct(samples: Sequence[Row]) -> int:
    """How many requests the samples need."""
    asked = [payload for sample in samples for payload in (*payloads_of(sample)[0], payloads_of(sample)[1])]
    return len({json.dumps(payload, sort_keys=True) for payload in asked})


def expected_statements(sample: Row) -> list[tuple[str, bool, tuple[str, ...]]]:
    """The (text, covered, context ids) of a sample, sorted."""
    kept = [(str(number), expected_summary(text)) for number, text in enumerate(sample["contexts"], start=1)]
    ids = [name for name, summary in kept if summary is not None]
    texts = [summary for _, summary in kept if summary is not None]
    lists = zip((True, False), expected_e2e(sample["query"], texts, sample["response"]), strict=True)
    return sorted(
        (text, is_covered, tuple(ids[n - 1] for n in ns)) for is_covered, found in lists for text, ns in found
    )


def read_statements(output: Path) -> dict[str, list[tuple[str, bool, tuple[str, ...]]]]:
    """The (text, covered, context ids) of every sample, sorted."""
    found = defaultdict(list)
    for row in read_table(output, "statements"):
        found[row["sample_id"]].append((row["text"], row["covered"], tuple(row["sources"])))
    return {sample_id: sorted(rows) for sample_id, rows in found.items()}


def read_table(output: Path, name: str) -> list[Row]:
    """The rows of a table of an output."""
    rows: list[Row] = pq.read_table(output / name).to_pylist()
    return rows


def read_manifest(output: Path) -> Row:
    """The manifest of an output."""
    manifest: Row = json.loads((output / "manifest.json").read_text(encoding="utf-8"))
    return manifest


def sorted_rows(output: Path, name: str) -> list[str]:
    """The rows of a table as JSON, sorted."""
    return sorted(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in read_table(output, name))


def canonical(output: Path) -> dict[str, list[str]]:
    """The result tables as canonical JSON, rows sorted."""
    return {name: sorted_rows(output, name) for name in RESULTS}


def sum_usage(output: Path, name: str) -> int:
    """A column of the table usage, over all stages."""
    return sum(int(row[name]) for row in read_table(output, "usage"))


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All files of a folder: time of change and content."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def times(arrivals: Iterable[Arrival]) -> list[float]:
    """When requests arrived, in order."""
    return sorted(arrival.at for arrival in arrivals)


def most_within(moments: Sequence[float], seconds: float, weights: Sequence[float] | None = None) -> float:
    """The most (or the heaviest) that came within any window of so many seconds."""
    weights = weights or [1.0] * len(moments)
    most = total = 0.0
    first = 0
    for moment, weight in zip(moments, weights, strict=True):
        total += weight
        while moments[first] <= moment - seconds:
            total -= weights[first]
            first += 1
        most = max(most, total)
    return most
