"""Measure the peak memory of driver and workers by samples, and the time of tables after the last completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import Ran, copy_tables, run_job
from tests.benchmarks.samples import write_samples
from tests.benchmarks.watching import ACTOR, ANSWERING, DRIVER, JVM, PYTHON_WORKERS, Look, peak_bytes
from tests.fakes.model_server import ModelServer

# The limit for constant memory: the peak at the largest input over the peak at the next smaller one
GOAL_FLAT = 1.2
# Relative to the time that Spark needs for the same tables
GOAL_END = 3.0
MEGABYTE = 2.0**20
PARTS = {
    "driver": (DRIVER, JVM),
    "driver, Python": (DRIVER,),
    "driver, JVM": (JVM,),
    "workers": (ACTOR, ANSWERING, PYTHON_WORKERS),
    "answering actor": (ACTOR,),
    "answering process": (ANSWERING,),
    "Spark's Python workers": (PYTHON_WORKERS,),
}
JUDGED = ("driver", "driver, Python", "workers", "answering actor")


def measure(options: Options) -> list[Figure]:
    """Run one job per size."""
    runs = {size: _run(size) for size in options.sizes}
    figures = compare_peaks({size: ran.looks for size, (ran, _) in runs.items()})
    for size, (ran, bare) in runs.items():
        end, goal = (ran.ended - ran.arrivals[-1]) / bare, GOAL_END if size == max(runs) else None
        figures.append(Figure(f"tables bare, {size:,} samples", (bare,), "s"))
        figures.append(Figure(f"last answer to end, of the tables bare, {size:,} samples", (end,), at_most=goal))
    return figures


def compare_peaks(looks: Mapping[int, Sequence[Look]]) -> list[Figure]:
    """Return the peak of each part by the number of samples, and the ratios of the last two sizes."""
    peaks = {
        (part, size): peak_bytes(looks[size], *roles) / MEGABYTE for part, roles in PARTS.items() for size in looks
    }
    figures = [Figure(f"{part}, {size:,} samples", (peak,), "MB") for (part, size), peak in peaks.items()]
    return figures + _ratios(peaks, sorted(looks))


def _run(size: int) -> tuple[Ran, float]:
    """Return a run, and the seconds that only Spark needs for its tables."""
    bare: list[float] = []
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="fixed") as server:
        samples = write_samples(Path(name) / "samples.jsonl", size)
        ran = run_job(
            server,
            samples,
            Path(name) / "job",
            calls=size,
            watch=True,
            look=lambda output: bare.append(copy_tables(output)),
        )
    return ran, bare[0]


def _ratios(peaks: dict[tuple[str, int], float], sizes: Sequence[int]) -> list[Figure]:
    if len(sizes) < 2:
        return []
    small, large = sizes[-2:]
    return [
        Figure(
            f"{part}, {large:,} / {small:,} samples",
            (peaks[part, large] / peaks[part, small],),
            at_most=GOAL_FLAT if part in JUDGED else None,
        )
        for part in PARTS
    ]
