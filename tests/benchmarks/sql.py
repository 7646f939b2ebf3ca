"""Measure SQL over the scores of a run by their number: processor time per million rows, and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.comparing import write_output
from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.memory import GOAL_FLAT, MEGABYTE

ROWS_OF_A_SAMPLE = 50
QUERIES = {
    "means by system": "select metric, system, avg(score), count(*) from scores group by all",
    "statuses": "select status, count(*) from scores group by all",
    "one sample": "select * from scores where sample_id = 's000000042'",
    "the lowest": "select sample_id, score from scores order by score, sample_id limit 100",
    "with their queries": "select count(*) from scores join samples using (sample_id) where score < 0.01",
}
# In a separate process: seconds of the processor, and the peak in bytes (`getrusage` includes the parent's peak)
PROGRAM = """
import json, resource, sys
import untold
run, query = untold.open_run(sys.argv[1]), sys.argv[2]
run.sql("select count(*) from scores").fetchall()
def used():
    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime + now.ru_stime
before = used()
run.sql(query).fetchall()
took = used() - before
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([took, 1024 * int(peak.split()[1])]))
"""
GOAL_SECONDS = 1.0  # of the processor, a million rows


def measure(options: Options) -> list[Figure]:
    """Measure seconds per million rows and the peak of each query at the largest size, and the ratio of its peaks."""
    sizes = [size * ROWS_OF_A_SAMPLE for size in options.sizes[-2:]]
    found = {size: _measure(size) for size in sizes}
    largest = sizes[-1]
    figures = []
    for name in QUERIES:
        seconds, peak = found[largest][name]
        took = 1e6 * seconds / largest
        figures.append(Figure(f"sql: {name}, a million of {largest:,} rows", (took,), "s", at_most=GOAL_SECONDS))
        figures.append(Figure(f"sql: {name}, peak at {largest:,} rows", (peak / MEGABYTE,), "MB"))
        for small, large in pairwise(sizes):
            ratio = found[large][name][1] / found[small][name][1]
            figures.append(Figure(f"sql: {name}, peak, {large:,} / {small:,} rows", (ratio,), at_most=GOAL_FLAT))
    return figures


def _measure(size: int) -> dict[str, tuple[float, float]]:
    with TemporaryDirectory(prefix="untold-") as name:
        folder = Path(name) / "out"
        write_output(folder, size)
        return {name: _run(folder, query) for name, query in QUERIES.items()}


def _run(folder: Path, query: str) -> tuple[float, float]:
    words = [sys.executable, "-c", PROGRAM, str(folder), query]
    seconds, peak = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return float(seconds), float(peak)
