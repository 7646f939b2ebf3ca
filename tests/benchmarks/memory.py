"""Peak memory of driver and workers as the number of samples grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import run_job
from tests.benchmarks.samples import write_samples
from tests.benchmarks.watching import ACTOR, ANSWERING, DRIVER, JVM, PYTHON_WORKERS, Look, peak_bytes
from tests.fakes.model_server import ModelServer

# What still counts as flat: the peak at the largest input over the peak at the next smaller one.
GOAL_FLAT = 1.2
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
    """One run a size."""
    return compare_peaks({size: _look(size) for size in options.sizes})


def compare_peaks(looks: Mapping[int, Sequence[Look]]) -> list[Figure]:
    """The peak of every part by the number of samples, and the ratios of the last two sizes."""
    peaks = {
        (part, size): peak_bytes(looks[size], *roles) / MEGABYTE for part, roles in PARTS.items() for size in looks
    }
    figures = [Figure(f"{part}, {size:,} samples", (peak,), "MB") for (part, size), peak in peaks.items()]
    return figures + _ratios(peaks, sorted(looks))


def _look(size: int) -> Sequence[Look]:
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="fixed") as server:
        samples = write_samples(Path(name) / "samples.jsonl", size)
        return run_job(server, samples, Path(name) / "job", calls=size, watch=True).looks


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
