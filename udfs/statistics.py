"""Statistics of samples given as counts of their distinct values, so that no cost grows with the number of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_CELLS = 1024  # a resample costs one binomial draw a cell: 10,000 resamples of 1,024 cells take 0.6 s
CELLS_IN_MEMORY = 1 << 20  # drawn at once: 8 MiB an array


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence limits: `mean` is None without rows, `low` and `high` where they are degenerate."""

    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class _Cells:
    """Adjacent distinct values taken together: float64 and int64 arrays of one length, in ascending order."""

    counts: IntArray
    deviations: FloatArray  # the cell's mean less the mean of all rows
    variances: FloatArray  # of the rows within the cell


def mean_of_counts(values: ArrayLike, counts: ArrayLike) -> float | None:
    """The mean of a sample given as values and their counts, None where there are no rows.

    values: float64[k]; counts: int[k], not negative. Neither the order of the values nor splitting a value's count
    over several entries changes a bit of the result. Raises ValueError for lengths that differ, negative or
    fractional counts and values that are not finite.
    """
    return _mean(*_sorted_counts(values, counts))


def jackknife_acceleration(values: ArrayLike, counts: ArrayLike) -> float | None:
    """The acceleration of the mean for BCa, None where fewer than two values are distinct.

    Leaving out row x moves the mean of n rows by (x - mean) / (n - 1), so that the jackknife's influence values are
    x - mean, and the acceleration is sum (x - mean)^3 / (6 * (sum (x - mean)^2)^1.5): the skewness / (6 * sqrt(n)).
    Arguments and errors as `mean_of_counts`. Efron and Tibshirani 1993, equation 14.15.
    """
    distinct, rows = _sorted_counts(values, counts)
    mean = _mean(distinct, rows)
    return None if mean is None or distinct.size < 2 else _acceleration(distinct - mean, rows)


def bca_interval(
    values: ArrayLike, counts: ArrayLike, *, seed: int, confidence: float = 0.95, resamples: int = 10_000
) -> Interval:
    """The mean of a sample and its bias-corrected and accelerated (BCa) bootstrap interval, from counts of values.

    values: float64[k]; counts: int[k], not negative. A multinomial resample of the counts is the bootstrap of the
    mean. More than `MAX_CELLS` distinct values are resampled as that many cells of neighbours: the cells' counts are
    multinomial as before, and what the rows within the cells add to the sum is one normal draw of its exact variance.
    Only the third moment within cells is left out, and the cells are cut so that outliers stand alone.

    The same seed gives the same limits in any order of the values. Limits are None where no row, one row or one
    distinct value is given, or where all resamples fall on one side of the mean. Raises ValueError as
    `mean_of_counts`, and for a confidence outside (0, 1) or fewer than one resample.

    Methods section 7; Efron and Tibshirani 1993, section 14.3; `scipy.stats.bootstrap(method="BCa")` is the reference.
    """
    if not 0 < confidence < 1 or resamples < 1:
        raise ValueError(
            f"confidence must lie between 0 and 1 and resamples be at least 1, not {confidence} and {resamples}"
        )
    distinct, rows = _sorted_counts(values, counts)
    mean = _mean(distinct, rows)
    if mean is None or distinct.size < 2:
        return Interval(mean, None, None)
    deviations = distinct - mean
    shifts = _resampled_shifts(_cells(deviations, rows), resamples, np.random.default_rng(seed))
    # Equal compositions must tie exactly, whatever the last bits of their sums.
    tie = 4 * np.finfo(np.float64).eps * float(np.abs(distinct).max())
    shifts[np.abs(shifts) <= tie] = 0.0
    shares = _bca_shares(shifts, _acceleration(deviations, rows), confidence)
    if shares is None:
        return Interval(mean, None, None)
    low, high = np.clip(mean + np.quantile(shifts, shares), distinct[0], distinct[-1])
    return Interval(mean, float(low), float(high))


def _sorted_counts(values: ArrayLike, counts: ArrayLike) -> tuple[FloatArray, IntArray]:
    """The distinct values in ascending order, float64, and how many rows hold each, int64, all positive."""
    numbers = np.asarray(values, dtype=np.float64)
    given = np.asarray(counts)
    rows = given.astype(np.int64)
    if numbers.ndim != 1 or numbers.shape != rows.shape:
        raise ValueError(f"values and counts must be of one length, not of shapes {numbers.shape} and {rows.shape}")
    if (rows < 0).any() or (rows != given).any():
        raise ValueError("counts must be whole numbers, not negative")
    if not np.isfinite(numbers).all():
        raise ValueError("values must be finite; leave out what is undefined")
    numbers, rows = numbers[rows > 0], rows[rows > 0]
    order = np.argsort(numbers)
    numbers, rows = numbers[order], rows[order]
    first = np.flatnonzero(np.diff(numbers, prepend=-np.inf))
    merged = np.add.reduceat(rows, first) if first.size else rows
    return numbers[first] + 0.0, merged  # + 0.0 makes -0.0 and 0.0 one


def _mean(distinct: FloatArray, rows: IntArray) -> float | None:
    if distinct.size < 2:
        return float(distinct[0]) if distinct.size else None
    return math.fsum(distinct * rows) / int(rows.sum())


def _acceleration(deviations: FloatArray, rows: IntArray) -> float:
    scaled = deviations / np.abs(deviations).max()  # keeps the powers of tiny deviations from vanishing
    squares = rows * scaled * scaled
    return float((squares * scaled).sum() / (6 * squares.sum() ** 1.5))


def _cells(deviations: FloatArray, rows: IntArray) -> _Cells:
    """One cell a distinct value, or at most about `MAX_CELLS` cells of equal shares of rows and of third moment."""
    if deviations.size <= MAX_CELLS:
        return _Cells(rows, deviations, np.zeros_like(deviations))
    scaled = np.abs(deviations) / np.abs(deviations).max()
    cubes = rows * scaled * scaled * scaled
    weights = rows / rows.sum() + cubes / cubes.sum()
    cell = ((np.cumsum(weights) - weights / 2) * (MAX_CELLS / 2)).astype(np.int64)
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    sizes = np.add.reduceat(rows, starts)
    means = np.add.reduceat(rows * deviations, starts) / sizes
    within = deviations - np.repeat(means, np.diff(starts, append=deviations.size))
    return _Cells(sizes, means, np.add.reduceat(rows * within * within, starts) / sizes)


def _resampled_shifts(cells: _Cells, resamples: int, random: np.random.Generator) -> FloatArray:
    """By how much the mean of each resample differs from the sample's: float64[resamples]."""
    total = int(cells.counts.sum())
    sums, variances = np.empty(resamples), np.empty(resamples)
    step = max(1, CELLS_IN_MEMORY // cells.counts.size)
    for start in range(0, resamples, step):
        part = slice(start, min(start + step, resamples))
        drawn = random.multinomial(total, cells.counts / total, size=part.stop - part.start)
        # Not a matrix product: the last bits of BLAS depend on the number of its threads.
        sums[part] = (drawn * cells.deviations).sum(axis=1)
        variances[part] = (drawn * cells.variances).sum(axis=1)
    if cells.variances.any():
        sums += np.sqrt(variances) * random.standard_normal(resamples)
    shifts: FloatArray = sums / total
    return shifts


def _bca_shares(shifts: FloatArray, acceleration: float, confidence: float) -> tuple[float, float] | None:
    """The shares of the bootstrap distribution at which the two limits stand, None where they are not defined."""
    below = (np.count_nonzero(shifts < 0) + np.count_nonzero(shifts <= 0)) / (2 * shifts.size)
    if not 0 < below < 1:
        return None
    bias = float(ndtri(below))
    moved = [bias + float(ndtri(share)) for share in ((1 - confidence) / 2, (1 + confidence) / 2)]
    if any(acceleration * z >= 1 for z in moved):
        return None
    low, high = (float(ndtr(bias + z / (1 - acceleration * z))) for z in moved)
    return low, high
