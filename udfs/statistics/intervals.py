"""Statistics of samples given as counts of their distinct values, so that no cost grows with the number of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtr, ndtri

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_CELLS = 1024  # a resample costs one binomial draw a cell: 10,000 resamples of 1,024 cells take 0.6 s
CELLS_IN_MEMORY = 1 << 20  # drawn at once: 8 MiB an array
SAME = 100 * float(np.finfo(np.float64).eps)  # numbers this close, relatively, are equal: SciPy's convention


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence limits: `mean` is None without rows, `low` and `high` where they are degenerate."""

    mean: float | None
    low: float | None
    high: float | None

    def columns(self, mean: str = "value") -> dict[str, float | None]:
        """As columns of a table: `mean` under this name, `ci_low` and `ci_high`."""
        return {mean: self.mean, "ci_low": self.low, "ci_high": self.high}


@dataclass(frozen=True)
class Cells:
    """Adjacent distinct values taken together: int64 and float64 arrays of one length, in ascending order."""

    counts: IntArray
    means: FloatArray
    variances: FloatArray  # of the rows within the cell


@dataclass(frozen=True)
class _Clusters:
    """Distinct clusters, by what they add to the numerator and the denominator of the mean of all samples."""

    counts: IntArray  # how many clusters are alike: int64[k], positive
    residuals: FloatArray  # the cluster's sum less its size times the mean: float64[k], ascending
    sizes: FloatArray  # float64[k], positive
    mean: float
    lowest: float  # mean within a cluster
    highest: float


def mean_of_counts(values: ArrayLike, counts: ArrayLike) -> float | None:
    """The mean of a sample given as values and their counts, None where there are no rows.

    values: float64[k]; counts: int[k], not negative. Neither the order of the values nor splitting a value's count
    over several entries changes a bit of the result. Raises ValueError for lengths that differ, negative or
    fractional counts and values that are not finite.

    >>> mean_of_counts([0.5, 1.0], [3, 1])
    0.625
    """
    return _mean(*sort_counts(values, counts))


def jackknife_acceleration(values: ArrayLike, counts: ArrayLike) -> float | None:
    """The acceleration of the mean for BCa, None where fewer than two values are distinct.

    Leaving out row x moves the mean of n rows by (x - mean) / (n - 1), so that the jackknife's influence values are
    x - mean, and the acceleration is sum (x - mean)^3 / (6 * (sum (x - mean)^2)^1.5): the skewness / (6 * sqrt(n)).
    Arguments and errors as `mean_of_counts`. Efron and Tibshirani 1993, equation 14.15.
    """
    distinct, rows = sort_counts(values, counts)
    mean = _mean(distinct, rows)
    return None if mean is None or distinct.size < 2 else acceleration_of(distinct - mean, rows)


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
    _check_options(confidence, resamples)
    distinct, rows = sort_counts(values, counts)
    mean = _mean(distinct, rows)
    if mean is None or distinct.size < 2:
        return Interval(mean, None, None)
    deviations = distinct - mean
    shifts = _resampled_shifts(cut_cells(deviations, rows), resamples, np.random.default_rng(seed))
    # Equal compositions must tie exactly, whatever the last bits of their sums.
    tie = 4 * np.finfo(np.float64).eps * float(np.abs(distinct).max())
    shifts[np.abs(shifts) <= tie] = 0.0
    shares = bca_shares(shifts, acceleration_of(deviations, rows), confidence)
    return _limits(mean, shifts, shares, float(distinct[0]), float(distinct[-1]))


def wilson_interval(successes: int, n: int, *, confidence: float = 0.95) -> Interval:
    """The share of n independent answers of yes or no, and its Wilson score interval; all None where n is 0.

    It has limits where all answers are equal too, where a bootstrap has none. Wilson 1927;
    `scipy.stats.binomtest(successes, n).proportion_ci(method="wilson")` is the reference. Raises ValueError where
    successes are not from 0 to n.

    >>> wilson_interval(9, 10)
    Interval(mean=0.9, low=0.5958499732047615, high=0.9821237869049271)
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must lie between 0 and {n}, not {successes}")
    _check_options(confidence, 1)
    if n == 0:
        return Interval(None, None, None)
    z = float(ndtri((1 + confidence) / 2))
    middle = successes + z * z / 2
    half = z * math.sqrt(successes * (n - successes) / n + z * z / 4)
    low = 0.0 if successes == 0 else (middle - half) / (n + z * z)
    high = 1.0 if successes == n else (middle + half) / (n + z * z)
    return Interval(successes / n, low, high)


def clopper_pearson_interval(successes: int, n: int, *, confidence: float = 0.95) -> Interval:
    """The share of n independent answers of yes or no, and its exact interval, which is never too short.

    Clopper and Pearson 1934; `scipy.stats.binomtest(successes, n).proportion_ci()` is the reference. From 0 to 1
    where n is 0. Raises ValueError where successes are not from 0 to n.

    >>> round(clopper_pearson_interval(0, 100).high, 6)
    0.036217
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must lie between 0 and {n}, not {successes}")
    _check_options(confidence, 1)
    tail = (1 - confidence) / 2
    low = float(betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
    return Interval(successes / n if n else None, low, high)


def clustered_acceleration(sums: ArrayLike, sizes: ArrayLike, counts: ArrayLike | None = None) -> float | None:
    """The acceleration of the mean over all samples, leaving out one cluster at a time; None where no cluster matters.

    Leaving out a cluster of sum s and size n moves the mean S / N by (s - n * S / N) / (N - n). Arguments and errors as
    `clustered_bca_interval`. Efron and Tibshirani 1993, equation 14.15; methods section 7.
    """
    clusters = _clusters(sums, sizes, counts)
    return None if clusters is None or not clusters.residuals.any() else _acceleration_of_clusters(clusters)


def clustered_bca_interval(
    sums: ArrayLike,
    sizes: ArrayLike,
    counts: ArrayLike | None = None,
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """The mean over all samples and its BCa interval where whole clusters (the samples of one question) are resampled.

    sums: float64[k], the sum of a cluster's values; sizes: int[k], how many they are; counts: int[k], how many clusters
    have this sum and size, one each where it is None. The statistic is the sum of all values / the number of all
    samples, the jackknife leaves out clusters. Clusters of size 0 hold nothing defined and are left out. More than
    `MAX_CELLS` distinct clusters are resampled as that many cells, as in `bca_interval`; the mean size within a cell
    stands for the sizes of its clusters.

    Order, seed and errors as `bca_interval`. Limits are None where fewer than two clusters have samples, where all
    clusters have the same mean, or where all resamples fall on one side of it.

    Methods section 7; `scipy.stats.bootstrap((sums, sizes), ratio, paired=True, method="BCa")` is the reference.
    """
    _check_options(confidence, resamples)
    clusters = _clusters(sums, sizes, counts)
    if clusters is None:
        return Interval(None, None, None)
    if not clusters.residuals.any():
        return Interval(clusters.mean, None, None)
    shifts = _resampled_ratios(clusters, resamples, np.random.default_rng(seed))
    shifts[np.abs(shifts) <= SAME * max(-clusters.lowest, clusters.highest)] = 0.0
    shares = bca_shares(shifts, _acceleration_of_clusters(clusters), confidence)
    return _limits(clusters.mean, shifts, shares, clusters.lowest, clusters.highest)


def joint_bca_interval(
    samples: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike]],
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """The average of the means of several independent samples (data sets), and its BCa interval over all of them.

    samples: sums, sizes and counts of each, as `clustered_bca_interval` takes them. Each is resampled by itself, and
    counts the same however many rows it has; the jackknife leaves out one cluster of one sample at a time. `mean` is
    None where one of them has no rows, the limits where none of them varies.

    Methods, section 6; `scipy.stats.bootstrap` of several samples with the average of their means is the reference.
    """
    _check_options(confidence, resamples)
    found = [_clusters(*sample) for sample in samples]
    clusters = [one for one in found if one is not None]
    if not clusters or len(clusters) < len(found):
        return Interval(None, None, None)
    mean = math.fsum(one.mean for one in clusters) / len(clusters)
    varying = [one for one in clusters if one.residuals.any()]
    if not varying:
        return Interval(mean, None, None)
    generators = np.random.default_rng(seed).spawn(len(varying))
    shifts = np.sum([_resampled_ratios(one, resamples, own) for one, own in zip(varying, generators, strict=True)], 0)
    shifts /= len(clusters)
    largest = max(max(-one.lowest, one.highest) for one in clusters)
    shifts[np.abs(shifts) <= SAME * largest] = 0.0
    shares = bca_shares(shifts, _joint_acceleration(varying), confidence)
    lowest, highest = (math.fsum(getattr(one, end) for one in clusters) for end in ("lowest", "highest"))
    return _limits(mean, shifts, shares, lowest / len(clusters), highest / len(clusters))


def _joint_acceleration(clusters: Sequence[_Clusters]) -> float:
    """The acceleration of a sum of means: Efron and Tibshirani 1993, equation 14.15, summed over the samples."""
    cubes = squares = 0.0
    for one in clusters:
        number = int(one.counts.sum())
        influence = one.residuals * (number - 1) / (float((one.sizes * one.counts).sum()) - one.sizes)
        influence = (influence - np.average(influence, weights=one.counts)) / number
        squares += float((one.counts * influence**2).sum())
        cubes += float((one.counts * influence**3).sum())
    return cubes / (6 * math.sqrt(squares) ** 3)


def _check_options(confidence: float, resamples: int) -> None:
    """Raises ValueError for a confidence outside (0, 1) and for fewer than one resample."""
    if not 0 < confidence < 1 or resamples < 1:
        raise ValueError(
            f"confidence must lie between 0 and 1 and resamples be at least 1, not {confidence} and {resamples}"
        )


def sort_counts(values: ArrayLike, counts: ArrayLike) -> tuple[FloatArray, IntArray]:
    """The distinct values in ascending order, float64, and how many rows hold each, int64, all positive.

    Arguments and errors as `mean_of_counts`.
    """
    numbers, rows = _checked(values, counts, "values", "counts")
    numbers, rows = numbers[rows > 0], rows[rows > 0]
    order = np.argsort(numbers)
    numbers, rows = numbers[order], rows[order]
    first = np.flatnonzero(np.diff(numbers, prepend=-np.inf))
    merged = np.add.reduceat(rows, first) if first.size else rows
    return numbers[first] + 0.0, merged  # + 0.0 makes -0.0 and 0.0 one


def _checked(values: ArrayLike, counts: ArrayLike, first: str, second: str) -> tuple[FloatArray, IntArray]:
    """float64[k] and int64[k] of one length; errors as `mean_of_counts`, naming the arguments `first` and `second`."""
    numbers = np.asarray(values, dtype=np.float64)
    given = np.asarray(counts)
    rows = given.astype(np.int64)
    if numbers.ndim != 1 or numbers.shape != rows.shape:
        raise ValueError(f"{first} and {second} must be of one length, not of shapes {numbers.shape} and {rows.shape}")
    if (rows < 0).any() or (rows != given).any():
        raise ValueError(f"{second} must be whole numbers, not negative")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{first} must be finite; leave out what is undefined")
    return numbers, rows


def _clusters(sums: ArrayLike, sizes: ArrayLike, counts: ArrayLike | None) -> _Clusters | None:
    """The distinct clusters that have samples, None where there are none."""
    numbers, lengths = _checked(sums, sizes, "sums", "sizes")
    _, alike = _checked(sums, np.ones_like(lengths) if counts is None else counts, "sums", "counts")
    some = (lengths > 0) & (alike > 0)
    numbers, lengths, alike = numbers[some] + 0.0, lengths[some], alike[some]
    if not alike.size:
        return None
    # Into one order whatever the input's: the seed's draws then fall on the same clusters
    order = np.lexsort((lengths, numbers))
    numbers, lengths, alike = numbers[order], lengths[order], alike[order]
    first = np.flatnonzero(np.diff(numbers, prepend=-np.inf).astype(bool) | np.diff(lengths, prepend=0).astype(bool))
    numbers, widths, alike = numbers[first], lengths[first].astype(np.float64), np.add.reduceat(alike, first)
    mean = math.fsum(numbers * alike) / math.fsum(widths * alike)
    residuals = numbers - widths * mean
    residuals[np.abs(residuals) <= SAME * np.abs(numbers)] = 0.0
    order = np.argsort(residuals, kind="stable")
    within = numbers / widths
    return _Clusters(alike[order], residuals[order], widths[order], mean, float(within.min()), float(within.max()))


def _mean(distinct: FloatArray, rows: IntArray) -> float | None:
    """The mean of distinct values, exact where there is one: its sum over its count need not be it."""
    if distinct.size < 2:
        return float(distinct[0]) if distinct.size else None
    return math.fsum(distinct * rows) / int(rows.sum())


def acceleration_of(deviations: FloatArray, rows: IntArray) -> float:
    """The acceleration from jackknife deviations, not all zero: float64[k], each of as many rows as int64[k] says."""
    scaled = deviations / np.abs(deviations).max()  # keeps the powers of tiny deviations from vanishing
    squares = rows * scaled * scaled
    return float((squares * scaled).sum() / (6 * squares.sum() ** 1.5))


def _acceleration_of_clusters(clusters: _Clusters) -> float:
    """The acceleration of the mean over all samples, from its changes where a cluster is left out."""
    others = float((clusters.sizes * clusters.counts).sum()) - clusters.sizes
    influence = clusters.residuals / others
    return acceleration_of(influence - np.average(influence, weights=clusters.counts), clusters.counts)


def cut_cells(deviations: FloatArray, rows: IntArray) -> Cells:
    """One cell a distinct value, or at most about `MAX_CELLS` cells of equal shares of rows and of third moment.

    deviations: float64[k], ascending, not all zero; rows: int64[k], positive: how many rows have each.
    """
    if deviations.size <= MAX_CELLS:
        return Cells(rows, deviations, np.zeros_like(deviations))
    starts = _cell_starts(deviations, rows)
    sizes = np.add.reduceat(rows, starts)
    means = np.add.reduceat(rows * deviations, starts) / sizes
    within = deviations - np.repeat(means, np.diff(starts, append=deviations.size))
    return Cells(sizes, means, np.add.reduceat(rows * within * within, starts) / sizes)


def _cell_starts(deviations: FloatArray, rows: IntArray) -> IntArray:
    """At which distinct values the cells begin, so that outliers stand alone."""
    if deviations.size <= MAX_CELLS:
        return np.arange(deviations.size)
    scaled = np.abs(deviations) / np.abs(deviations).max()
    cubes = rows * scaled * scaled * scaled
    weights = rows / rows.sum() + cubes / cubes.sum()
    cell = ((np.cumsum(weights) - weights / 2) * (MAX_CELLS / 2)).astype(np.int64)
    return np.flatnonzero(np.diff(cell, prepend=-1))


def _resampled_shifts(cells: Cells, resamples: int, random: np.random.Generator) -> FloatArray:
    """By how much the mean of each resample differs from the sample's: float64[resamples]."""
    sums, variances = _resampled_sums(cells.counts, np.stack([cells.means, cells.variances]), resamples, random)
    if cells.variances.any():
        sums += np.sqrt(variances) * random.standard_normal(resamples)
    shifts: FloatArray = sums / int(cells.counts.sum())
    return shifts


def _resampled_ratios(clusters: _Clusters, resamples: int, random: np.random.Generator) -> FloatArray:
    """By how much the mean of each resample of clusters differs from the sample's: float64[resamples]."""
    cells = cut_cells(clusters.residuals, clusters.counts)
    starts = _cell_starts(clusters.residuals, clusters.counts)
    widths = np.add.reduceat(clusters.counts * clusters.sizes, starts) / cells.counts
    columns = np.stack([cells.means, widths, cells.variances])
    sums, sizes, variances = _resampled_sums(cells.counts, columns, resamples, random)
    if cells.variances.any():
        sums += np.sqrt(variances) * random.standard_normal(resamples)
    ratios: FloatArray = sums / sizes
    return ratios


def _resampled_sums(counts: IntArray, columns: FloatArray, resamples: int, random: np.random.Generator) -> FloatArray:
    """The sums of each column over multinomial resamples of the counts: float64[columns, resamples]."""
    total = int(counts.sum())
    sums = np.empty((len(columns), resamples))
    step = max(1, CELLS_IN_MEMORY // counts.size)
    for start in range(0, resamples, step):
        part = slice(start, min(start + step, resamples))
        drawn = random.multinomial(total, counts / total, size=part.stop - part.start)
        for column, into in zip(columns, sums, strict=True):
            # Not a matrix product: the last bits of BLAS depend on the number of its threads.
            into[part] = (drawn * column).sum(axis=1)
    return sums


def _limits(
    mean: float, shifts: FloatArray, shares: tuple[float, float] | None, lowest: float, highest: float
) -> Interval:
    """The limits at these shares, never beyond the least and the greatest mean that a resample can have."""
    if shares is None:
        return Interval(mean, None, None)
    low, high = np.clip(mean + np.quantile(shifts, shares), lowest, highest)
    return Interval(mean, float(low), float(high))


def bca_shares(shifts: FloatArray, acceleration: float, confidence: float) -> tuple[float, float] | None:
    """The shares of the bootstrap distribution at which the two limits stand, None where they are not defined.

    shifts: float64[resamples], by how much each resample differs from the sample.
    """
    below = (np.count_nonzero(shifts < 0) + np.count_nonzero(shifts <= 0)) / (2 * shifts.size)
    if not 0 < below < 1:
        return None
    bias = float(ndtri(below))
    moved = [bias + float(ndtri(share)) for share in ((1 - confidence) / 2, (1 + confidence) / 2)]
    # Here the BCa share turns around: beyond it a wider confidence would give a narrower interval
    if any(acceleration * z >= 1 for z in moved):
        return None
    low, high = (float(ndtr(bias + z / (1 - acceleration * z))) for z in moved)
    return low, high
