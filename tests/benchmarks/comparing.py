"""Measure `untold compare` and a run's summary on outputs with many rows: ten systems, by the number of scores."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.memory import GOAL_FLAT, MEGABYTE
from tests.benchmarks.running import ROOT, run_command
from tests.benchmarks.watching import DRIVER, JVM, peak_bytes
from untold.jobs.run_tables import open_run
from untold.jobs.settings.model import Settings
from untold.jobs.summary.aggregate import summarise
from untold.jobs.tables import SAMPLES, SCORES

SYSTEMS = 10
# The number of rows here per sample of other benchmarks
ROWS_OF_A_SAMPLE = 10
ROWS_OF_A_FILE = 500_000
# The arguments of each command before its output
COMMANDS = {
    "compare": ("untold", "compare", "--json"),
    "compare --cluster": ("untold", "compare", "--json", "--cluster"),
    "summary": ("tests.benchmarks.comparing",),
}


def measure(options: Options) -> list[Figure]:
    """Measure microseconds per row and peaks of `COMMANDS` by number of rows, with ratios of the last two sizes."""
    sizes = [size * ROWS_OF_A_SAMPLE for size in options.sizes]
    return [figure for name in COMMANDS for figure in by_size(name, sizes)]


def by_size(name: str, sizes: Sequence[int]) -> list[Figure]:
    """Return the figures of one of `COMMANDS`."""
    found = {size: _run(COMMANDS[name], size) for size in sizes}
    units = {"a row": "us", DRIVER: "MB", JVM: "MB"}
    figures = [
        Figure(f"{name}: {part}, {size:,} rows", (found[size][part],), unit)
        for size in sizes
        for part, unit in units.items()
    ]
    for small, large in list(pairwise(sizes))[-1:]:
        figures += [
            Figure(
                f"{name}: {part}, {large:,} / {small:,} rows",
                (found[large][part] / found[small][part],),
                at_most=GOAL_FLAT,
            )
            for part in ("a row", DRIVER)
        ]
    return figures


def _run(words: Sequence[str], size: int) -> dict[str, float]:
    with TemporaryDirectory(prefix="untold-") as name:
        folder = Path(name)
        write_output(folder / "out", size)
        began = monotonic()
        looks = run_command([sys.executable, "-m", *words, str(folder / "out")], ROOT, folder / "log", watch=True)
        seconds = monotonic() - began
    peaks = {role: peak_bytes(looks, role) / MEGABYTE for role in (DRIVER, JVM)}
    return {"a row": 1e6 * seconds / size, **peaks}


def summarise_output(output: Path) -> None:
    """Compute the table `summary` of an output, and print the number of its rows."""
    print(len(summarise(open_run(output), seed=Settings().statistics.seed)), "rows")


def write_output(folder: Path, size: int) -> None:
    """Write an output with distinct scores. Five rows of a system share the query of each question."""
    random = np.random.default_rng(0)
    for name in ("samples", "scores"):
        (folder / name).mkdir(parents=True)
    for number, first in enumerate(range(0, size, ROWS_OF_A_FILE)):
        rows = np.arange(first, min(first + ROWS_OF_A_FILE, size))
        questions = rows // SYSTEMS
        systems = pa.array([f"system{row % SYSTEMS}" for row in rows])
        ids = pa.array([f"s{row:09d}" for row in rows])
        contexts = pa.array([[{"id": "1", "text": f"context of {one}"}] for one in questions], SAMPLES.field(3).type)
        queries = pa.array([f"What of {one // 5}?" for one in questions])
        samples = {"sample_id": ids, "query": queries, "response": ids, "contexts": contexts, "system": systems}
        ones = pa.array(np.ones(len(rows), np.int64))
        scores = {
            "sample_id": ids,
            "metric": pa.repeat("e2e", len(rows)),
            "system": systems,
            "score": pa.array(random.random(len(rows))),
            "covered": ones,
            "uncovered": ones,
            "status": pa.repeat("ok", len(rows)),
        }
        for name, columns, schema in (("samples", samples, SAMPLES), ("scores", scores, SCORES)):
            missing = {field.name: pa.nulls(len(rows), field.type) for field in schema if field.name not in columns}
            table = pa.table({**columns, **missing}).select(schema.names).cast(schema)
            pq.write_table(table, folder / name / f"part-{number}.parquet")
    identity = {"input": "i", "metrics": ["e2e"], "results": {}, "stages": {}}
    manifest = {"status": "finished", "metrics": ["e2e"], "identity": identity}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


if __name__ == "__main__":
    summarise_output(Path(sys.argv[1]))
