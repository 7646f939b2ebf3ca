"""Measure processor seconds and peak memory of statistics at ten million rows, and their distance from SciPy.

Measurements at ten million rows run in a separate process: `python -m tests.benchmarks.statistics NAME DISTINCT`.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import process_time

import numpy as np
from scipy import stats

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import ROOT
from untold.udfs.statistics.intervals import (
    FloatArray,
    IntArray,
    Interval,
    _clusters,
    acceleration_of,
    bca_interval,
    clustered_bca_interval,
)
from untold.udfs.statistics.permutation import clustered_permutation_test

ROWS = 10_000_000
CLUSTER = 5  # rows of a question
# Matches and shares of few statements; values on the grid, the maximum for the driver; and a distinct value per row
DISTINCT = (3, 10_001, 200_000)
EVERY_ROW = ROWS
GOAL_SECONDS, GOAL_MEGABYTES = 2.0, 1000.0
TURNS = 3
SIZES = (2_000, 10_000)
RESAMPLES = 10_000
BATCH = 100  # resamples that SciPy draws at once
# Two bootstraps of 10,000 resamples differ by about 0.08 standard errors in each limit
GOAL_LIMITS = 0.3
GOAL_ACCELERATION = 1e-9
STANDARD_ERRORS = "standard errors"
Made = tuple[FloatArray, IntArray]


def measure(options: Options) -> list[Figure]:
    """Measure the cost at ten million rows, then distances from SciPy at few rows."""
    turns = options.pairs or TURNS
    cost = [figure for name in STATISTICS for distinct in DISTINCT for figure in _cost(name, distinct, turns)]
    unjudged = [figure for name in STATISTICS for figure in _cost(name, EVERY_ROW, 1, judged=False)]
    return [*cost, *unjudged, *(figure for n in SIZES for figure in compare_with_scipy(n))]


# Ten million rows


def make_counts(distinct: int) -> Made:
    """Return distinct values within [0, 1], and their counts in ten million rows."""
    chance = np.random.default_rng(distinct)
    if distinct == ROWS:
        return chance.random(distinct), np.ones(distinct, dtype=np.int64)
    return np.linspace(0, 1, distinct), chance.multinomial(ROWS, np.full(distinct, 1 / distinct))


def interval_of(values: FloatArray, counts: IntArray) -> Interval:
    """Return the interval of the rows."""
    return bca_interval(values, counts, seed=0)


def clustered_interval_of(values: FloatArray, counts: IntArray) -> Interval:
    """Return the interval of rows in clusters of five equal rows."""
    return clustered_bca_interval(CLUSTER * values, np.full(values.size, CLUSTER), counts // CLUSTER + 1, seed=0)


def p_value_of(values: FloatArray, counts: IntArray) -> float | None:
    """Return the p-value of differences around 0."""
    differences = values - np.average(values, weights=counts)
    return clustered_permutation_test(differences, np.ones_like(counts), counts, seed=0).p_value


STATISTICS: Mapping[str, Callable[[FloatArray, IntArray], object]] = {
    "bca_interval": interval_of,
    "clustered_bca_interval": clustered_interval_of,
    "clustered_permutation_test": p_value_of,
}


def _cost(name: str, distinct: int, turns: int, *, judged: bool = True) -> list[Figure]:
    found = [_measure_alone(name, distinct) for _ in range(turns)]
    what = f"{name}, {distinct:,} distinct values"
    seconds, megabytes = (tuple(turn[key] for turn in found) for key in ("seconds", "megabytes"))
    return [
        Figure(what, seconds, "CPU s", at_most=GOAL_SECONDS if judged else None),
        Figure(f"{what}, peak", megabytes, "MB", at_most=GOAL_MEGABYTES if judged else None),
    ]


def _measure_alone(name: str, distinct: int) -> dict[str, float]:
    command = [sys.executable, "-m", __name__, name, str(distinct)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{name} with {distinct:,} distinct values failed: {ran.stderr.strip()[-500:]}")
    measured: dict[str, float] = json.loads(ran.stdout)
    return measured


def main(name: str, distinct: int) -> None:
    """Run one statistic once, and print its processor seconds and its peak resident memory as JSON."""
    values, counts = make_counts(distinct)
    began = process_time()
    STATISTICS[name](values, counts)
    seconds = process_time() - began
    print(json.dumps({"seconds": seconds, "megabytes": peak_bytes() / 1e6}))


def peak_bytes() -> int:
    """Return the peak of this program. Unlike getrusage, it does not include the parent process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


# SciPy


def compare_with_scipy(n: int) -> list[Figure]:
    """Compare each statistic with SciPy's on n rows, and SciPy's with itself under another seed."""
    return [*_compare_limits(n), *_compare_clustered(n), *_compare_tests(n)]


def make_shapes(n: int) -> dict[str, FloatArray]:
    """Return rows like scores, and skewed rows."""
    chance = np.random.default_rng(7)
    return {"shares": chance.integers(0, 6, n) / 5, "skewed": chance.lognormal(0, 1.5, n)}


def make_clusters(n: int) -> tuple[FloatArray, IntArray]:
    """Return sums and sizes of clusters with about n rows."""
    chance = np.random.default_rng(7)
    sizes = chance.integers(1, 2 * CLUSTER, n // CLUSTER)
    return chance.binomial(sizes, chance.random(sizes.size)).astype(np.float64), sizes


def ratio(sums: FloatArray, sizes: FloatArray, axis: int) -> FloatArray:
    """Return the mean of all rows of clusters."""
    means: FloatArray = sums.sum(axis=axis) / sizes.sum(axis=axis)
    return means


def acceleration_of_clusters(sums: FloatArray, sizes: IntArray) -> float | None:
    """Return the acceleration of the mean of clusters."""
    found = _clusters(sums, sizes, np.ones_like(sizes))
    return None if found is None else acceleration_of(found.influence(), found.counts)


def _compare_limits(n: int) -> list[Figure]:
    figures = []
    for shape, rows in make_shapes(n).items():
        scipys = [_bootstrap((rows,), np.mean, seed) for seed in (0, 1)]
        ours = bca_interval(*np.unique(rows, return_counts=True), seed=1)
        left_out = np.array([np.delete(rows, i).mean() for i in range(n)])
        acceleration = acceleration_of_clusters(rows, np.ones(n, dtype=np.int64))
        figures += _distances(f"limits, {n:,} rows, {shape}", ours, scipys)
        figures.append(_acceleration_figure(f"{n:,} rows, {shape}", acceleration, left_out))
    return figures


def _compare_clustered(n: int) -> list[Figure]:
    sums, sizes = make_clusters(n)
    scipys = [_bootstrap((sums, sizes.astype(np.float64)), ratio, seed) for seed in (0, 1)]
    ours = clustered_bca_interval(sums, sizes, seed=1)
    left_out = np.array([np.delete(sums, i).sum() / np.delete(sizes, i).sum() for i in range(sums.size)])
    what = f"{n:,} rows in clusters"
    return [
        *_distances(f"limits, {what}", ours, scipys),
        _acceleration_figure(what, acceleration_of_clusters(sums, sizes), left_out),
    ]


def _bootstrap(samples: Sequence[FloatArray], statistic: Callable[..., FloatArray], seed: int) -> tuple[float, ...]:
    """Return SciPy's lower and upper limit, and its standard error."""
    options = {"n_resamples": RESAMPLES, "batch": BATCH, "vectorized": True, "method": "BCa"}
    found = stats.bootstrap(samples, statistic, paired=True, rng=seed, **options)
    return (*found.confidence_interval, float(found.standard_error))


def _distances(what: str, ours: Interval, scipys: Sequence[tuple[float, ...]]) -> list[Figure]:
    """Return the distances of both limits: ours from SciPy's, and SciPy's from SciPy's."""
    (low, high, error), (other_low, other_high, _) = scipys
    if ours.low is None or ours.high is None:
        raise RuntimeError(f"{what}: no limits")
    own = max(abs(ours.low - low), abs(ours.high - high)) / error
    noise = max(abs(other_low - low), abs(other_high - high)) / error
    return [
        Figure(what, (own,), STANDARD_ERRORS, at_most=GOAL_LIMITS),
        Figure(f"{what}, SciPy with another seed", (noise,), STANDARD_ERRORS),
    ]


def _acceleration_figure(what: str, ours: float | None, left_out: FloatArray) -> Figure:
    """Return the distance from the acceleration that is computed by leaving out each row or cluster."""
    influence = (left_out.size - 1) * (left_out.mean() - left_out)
    expected = (influence**3).sum() / (6 * (influence**2).sum() ** 1.5)
    distance = math.inf if ours is None else abs(ours - float(expected))
    return Figure(f"acceleration, {what}", (distance,), at_most=GOAL_ACCELERATION)


def _compare_tests(n: int) -> list[Figure]:
    rows = np.random.default_rng(7).choice([-1.0, 0.0, 1.0], n, p=[0.21, 0.57, 0.22])
    first, second = (_permute(rows, seed) for seed in (0, 1))
    values, counts = np.unique(rows, return_counts=True)
    ours = clustered_permutation_test(values, np.ones_like(counts), counts, seed=1).p_value or math.inf
    side = first / 2
    # Four standard errors of the difference of two such p-values
    noise = 4 * 2 * math.sqrt(2 * side * (1 - side) / RESAMPLES)
    what = f"p-value, {n:,} rows"
    return [
        Figure(what, (abs(ours - first),), at_most=noise),
        Figure(f"{what}, SciPy with another seed", (abs(second - first),)),
    ]


def _permute(rows: FloatArray, seed: int) -> float:
    options = {"n_resamples": RESAMPLES, "batch": BATCH, "vectorized": True, "permutation_type": "samples"}
    return float(stats.permutation_test((rows,), np.mean, rng=seed, **options).pvalue)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
