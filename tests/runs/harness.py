"""Run `untold score` in separate processes, with sample files and the expected results."""

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
# Ten times the duration of the longest run on a slow machine. The limit stops a run that hangs
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
    """Return the arguments of a run without the program name. The default metric is e2e."""
    base_url = endpoint if isinstance(endpoint, str) else endpoint.base_url
    words = [command, "--input", str(samples), "--output", str(output)]
    words += ["--metric", "e2e"] if command == "score" and "--metric" not in flags else []
    words += flags
    for key, value in {**SETTINGS, "llm.base_url": base_url, **(settings or {})}.items():
        words += ["--set", f"{key}={value}"]
    return words


def write_foreign_modules(folder: Path) -> Path:
    """Write modules into a folder with names of the project and of Python. Their import raises an error."""
    for name in ("jobs/__init__.py", "udfs/__init__.py", "graph/__init__.py", "conf/__init__.py", "json.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("raise ImportError('a module of the user was imported')\n", encoding="utf-8")
    return folder


def clean_environment() -> dict[str, str]:
    """Return the environment of this process without the settings and keys of a run."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("UNTOLD_", "OPENAI_"))}


@dataclass(frozen=True)
class Ended:
    """The end of a run: exit code, standard output, standard error and seconds."""

    code: int
    out: str
    err: str
    seconds: float


class Run:
    """A running command of `untold`.

    Its output is written to files instead of pipes, so that a process that survives a kill does not block the test.
    The arguments are the same as in `words_of`: an endpoint, samples, an output, flags, `settings` and `command`.
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
        """Return the process id, which is also the id of the process group."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return True if the process has not ended yet."""
        return self._process.poll() is None

    @property
    def errors(self) -> str:
        """Return the text on standard error so far."""
        return (self._logs / "err").read_text(encoding="utf-8", errors="replace")

    def tree(self) -> list[psutil.Process]:
        """Return the process and all its children: the JVM, the actor process, Ray and the actors."""
        try:
            process = psutil.Process(self.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """Kill all processes of the run with SIGKILL."""
        kill_processes(self.tree())
        self._process.wait()

    def kill_parent(self) -> None:
        """Kill only the main process with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout: float = WAIT_SECONDS) -> Ended:
        """Wait for the end of the run. If the timeout expires, kill the run and raise TimeoutError."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"the run took more than {timeout:g} s. Standard error: {self.errors[-2000:]}") from None
        out = (self._logs / "out").read_text(encoding="utf-8")
        return Ended(self._process.returncode, out, self.errors, monotonic() - self._began)

    def wait_for(
        self, server: ModelServer, count: int, stage: str | None = None, timeout: float = WAIT_SECONDS
    ) -> None:
        """Wait until the server has received this number of requests. Raise an error if the run ends before that."""
        end = monotonic() + timeout
        while (arrived := server.count(stage)) < count:
            if not self.is_running or monotonic() > end:
                raise TimeoutError(f"{arrived} of {count} requests arrived. Standard error: {self.errors[-2000:]}")
            sleep(0.02)


def score(endpoint: ModelServer | str, samples: Path, output: Path, *flags: str, **options: Any) -> Ended:
    """Run `untold score`, or another command, and return the result."""
    run = Run(endpoint, samples, output, *flags, **options)
    try:
        return run.wait()
    finally:
        if run.is_running:
            run.kill()


def start_worker(spool: Path, *flags: str, **variables: str) -> subprocess.Popen[str]:
    """Start `untold answer` for a spool in a separate process, with its own folder and its own Ray."""
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
    """Kill the parents first, and then wait until all of the processes have ended."""
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
    """Return the processes that have not ended."""
    return [process for process in processes if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def find_actor(run: Run, name: str, timeout: float = 20.0) -> psutil.Process:
    """Return the process of a Ray actor with this class name. Raise LookupError if it does not exist."""
    end = monotonic() + timeout
    while monotonic() < end:
        for process in run.tree():
            try:
                if any(f"ray::{name}" in part for part in process.cmdline()):
                    return process
            except psutil.NoSuchProcess:
                continue
        sleep(0.05)
    raise LookupError(f"there is no actor {name} in the processes of the run")


def make_samples(count: int, group: int = 5) -> list[Row]:
    """Return samples with two contexts each. A group shares the first, and each response has a part of the contexts."""
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
    """Write samples as JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples), encoding="utf-8")
    return path


def payloads_of(sample: Row) -> tuple[list[Row], Row]:
    """Return the requests of a sample: one for the summary of each context, and one for the coverage."""
    texts = sample["contexts"]
    summaries = [{"stage": "summarise_context", "query": sample["query"], "text": text} for text in texts]
    kept = [summary for text in texts if (summary := expected_summary(text)) is not None]
    coverage = {"stage": "evaluate_coverage", "contexts": kept, **{k: sample[k] for k in ("query", "response")}}
    return summaries, coverage


def count_distinct(samples: Sequence[Row]) -> int:
    """Return the number of requests for the samples."""
    asked = [payload for sample in samples for payload in (*payloads_of(sample)[0], payloads_of(sample)[1])]
    return len({json.dumps(payload, sort_keys=True) for payload in asked})


def expected_statements(sample: Row) -> list[tuple[str, bool, tuple[str, ...]]]:
    """Return the text, the coverage and the context ids of each expected statement of a sample, sorted."""
    kept = [(str(number), expected_summary(text)) for number, text in enumerate(sample["contexts"], start=1)]
    ids = [name for name, summary in kept if summary is not None]
    texts = [summary for _, summary in kept if summary is not None]
    lists = zip((True, False), expected_e2e(sample["query"], texts, sample["response"]), strict=True)
    return sorted(
        (text, is_covered, tuple(ids[n - 1] for n in ns)) for is_covered, found in lists for text, ns in found
    )


def read_statements(output: Path) -> dict[str, list[tuple[str, bool, tuple[str, ...]]]]:
    """Return the text, the coverage and the context ids of each statement by sample, sorted."""
    found = defaultdict(list)
    for row in read_table(output, "statements"):
        found[row["sample_id"]].append((row["text"], row["covered"], tuple(row["sources"])))
    return {sample_id: sorted(rows) for sample_id, rows in found.items()}


def read_table(output: Path, name: str) -> list[Row]:
    """Return the rows of a table of an output."""
    rows: list[Row] = pq.read_table(output / name).to_pylist()
    return rows


def read_manifest(output: Path) -> Row:
    """Return the manifest of an output."""
    manifest: Row = json.loads((output / "manifest.json").read_text(encoding="utf-8"))
    return manifest


def sorted_rows(output: Path, name: str) -> list[str]:
    """Return the rows of a table as JSON, sorted."""
    return sorted(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in read_table(output, name))


def canonical(output: Path) -> dict[str, list[str]]:
    """Return the result tables as canonical JSON with sorted rows."""
    return {name: sorted_rows(output, name) for name in RESULTS}


def sum_usage(output: Path, name: str) -> int:
    """Return the sum of a column of the table usage over all stages."""
    return sum(int(row[name]) for row in read_table(output, "usage"))


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the time of the last change and the content of all files of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def times(arrivals: Iterable[Arrival]) -> list[float]:
    """Return the arrival times of the requests in order."""
    return sorted(arrival.at for arrival in arrivals)


def most_within(moments: Sequence[float], seconds: float, weights: Sequence[float] | None = None) -> float:
    """Return the maximum count, or the maximum weight, in any window of this length in seconds."""
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
