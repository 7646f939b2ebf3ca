"""Measure the duration of a start: whole commands on ten samples, against a Spark session and a Ray.

Machines differ by a factor of three, so every figure except the bare start is a ratio of two times of one round.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import time
from typing import Any

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import ROOT, copy_tables, run_command
from tests.benchmarks.samples import PROMPTS
from tests.fakes.model_server import ModelServer
from tests.fakes.world import qa_worlds, worlds
from tests.runs.harness import make_samples, write_samples

SAMPLES = 10
RESPONSES = 2
MANY = 20_000
WORLD = "noisy"
BARE = ("spark", "ray")
METRICS = {"e2e": "e2e", "qa": f"world_{WORLD}", "nli": f"world_{WORLD}"}
EVERY_METRIC = ("--metric", "e2e,nli,qa")
# Limits relative to a bare start, and Spark executions, measured on the machine of the docs. A slower start seems
# broken
GOALS = {"e2e": 1.6, "qa": 2.2, "nli": 2.2, "again": 1.3, "plan": 1.6, "stored": 3.0}
MOST_EXECUTIONS = 14
EXECUTION = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"
JOB = "SparkListenerJobStart"


@dataclass(frozen=True)
class Started:
    """A finished command: its seconds, and the counts in Spark's event log."""

    seconds: float
    executions: int = 0
    jobs: int = 0


def measure(options: Options) -> list[Figure]:
    """Measure rounds, each with a separate bare start. The name of a figure has the counts of Spark."""
    rounds: dict[str, list[Started]] = defaultdict(list)
    with TemporaryDirectory(prefix="untold-") as name:
        for number in range(options.pairs or 1):
            folder = Path(name) / str(number)
            folder.mkdir()
            for what, started in {**_small_starts(folder), **_stored(folder, options.requests or MANY)}.items():
                rounds[what].append(started)
                print(f"  {what}: {started.seconds:.1f} s, {started.executions} executions, {started.jobs} jobs")
            rmtree(folder)
    return _figures(rounds)


def _figures(rounds: Mapping[str, Sequence[Started]]) -> list[Figure]:
    bare = rounds["bare"]
    figures = [Figure("a bare Spark and a bare Ray at once", tuple(each.seconds for each in bare), "s")]
    for what, goal in GOALS.items():
        beside = rounds["tables"] if what == "stored" else bare
        ratios = tuple(each.seconds / base.seconds for each, base in zip(rounds[what], beside, strict=True))
        figures.append(Figure(f"{what}, of {'the tables bare' if what == 'stored' else 'it'}", ratios, at_most=goal))
        counted = tuple(float(each.executions) for each in rounds[what])
        figures.append(Figure(f"{what}, Spark executions", counted, at_most=MOST_EXECUTIONS if what == "e2e" else None))
        figures.append(Figure(f"{what}, Spark jobs", tuple(float(each.jobs) for each in rounds[what])))
    return figures


def _small_starts(folder: Path) -> dict[str, Started]:
    """Measure by name: the bare start, each metric on ten samples, a second start, and a plan of all metrics."""
    found = {"bare": _bare(folder)}
    inputs = {metric: write_samples(folder / f"{metric}.jsonl", samples) for metric, samples in _inputs().items()}
    with ModelServer() as server:
        for metric, answer in METRICS.items():
            server.configure(answer=answer)
            words = ["--input", str(inputs[metric]), "--output", str(folder / f"out-{metric}"), "--metric", metric]
            found[metric] = _untold(folder, server, metric, "score", *words)
            if metric == "e2e":
                found["again"] = _untold(folder, server, "again", "score", *words)
        found["plan"] = _untold(folder, server, "plan", "plan", "--input", str(inputs["e2e"]), *EVERY_METRIC)
    return found


def _bare(folder: Path) -> Started:
    """Start Spark and Ray in parallel, as a run does. Return the longer start."""

    def start(kind: str) -> float:
        return _run(folder, f"bare-{kind}", ["-m", "tests.benchmarks.bare", kind], ROOT).seconds

    with ThreadPoolExecutor(len(BARE)) as pool:
        return Started(max(pool.map(start, BARE)))


def _inputs() -> dict[str, list[dict[str, Any]]]:
    made = {"qa": qa_worlds, "nli": worlds}
    count = SAMPLES // RESPONSES
    found = {
        name: [row for world in make(count, WORLD) for row in world.samples(RESPONSES)] for name, make in made.items()
    }
    return {"e2e": make_samples(SAMPLES), **found}


def _stored(folder: Path, count: int) -> dict[str, Started]:
    """Measure a run of e2e with a full store, and a Spark that reads and writes the same tables."""
    samples = write_samples(folder / "many.jsonl", make_samples(count))
    store = ("--set", f"completion_store={folder / 'store'}")
    with ModelServer() as server:
        for name in ("fill", "stored"):
            words = ("--input", str(samples), "--output", str(folder / f"out-{name}"), "--metric", "e2e", *store)
            stored = _untold(folder, server, name, "score", *words)
    return {"stored": stored, "tables": Started(copy_tables(folder / "out-stored"))}


def _untold(folder: Path, server: ModelServer, name: str, command: str, *words: str) -> Started:
    """Run a command of `untold`, with Spark's event log, because Spark keeps no status without its pages."""
    events = folder / f"events-{name}"
    events.mkdir()
    settings = {
        "llm.base_url": server.base_url,
        "llm.model": "fake-model",
        "prompts_dir": PROMPTS,
        "spark.conf.spark.eventLog.enabled": "true",
        "spark.conf.spark.eventLog.dir": events.as_uri(),
        "spark.conf.spark.eventLog.compress": "false",
        "spark.conf.spark.eventLog.rolling.enabled": "false",
    }
    given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return _run(folder, name, ["-m", "untold", command, *words, *given], folder, events)


def _run(folder: Path, name: str, words: Sequence[str], where: Path, events: Path | None = None) -> Started:
    began = time()
    run_command([sys.executable, *words], where, folder / f"log-{name}", watch=False)
    seconds = time() - began
    return Started(seconds, *(_count_events(events) if events else ()))


def _count_events(folder: Path) -> tuple[int, int]:
    """Return the numbers of executions and jobs in the event log of a folder."""
    names = []
    for file in folder.iterdir():
        for line in file.read_text(encoding="utf-8").splitlines():
            # The last line of a log may be incomplete
            with suppress(ValueError):
                names.append(json.loads(line)["Event"])
    return names.count(EXECUTION), names.count(JOB)
