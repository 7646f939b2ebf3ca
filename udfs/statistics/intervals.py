"""Confidence intervals of means: the bootstrap that all statistics share, Wilson's interval and the exact interval.

Samples are given as counts of their distinct values, so that no cost grows with the number of rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

try:
    from scipy.special import ndtr as ndtr
    from scipy.special import ndtri as ndtri
except ModuleNotFoundError:
    # An install that only reads has no SciPy. The differences from SciPy are below 1e-13 of a value
    from statistics import NormalDist

    ndtri = NormalDist().inv_cdf  # type: ignore[assignment]

    def ndtr(value: float) -> float:  # type: ignore[misc]
        """Return the probability that a standard normal variable is below a value, exact in both tails."""
        return math.erfc(-value / math.sqrt(2)) / 2


Name = TypeVar("Name", bound=Hashable)
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_CELLS = 1024  # a resample costs one binomial draw per cell: 10,000 resamples of 1,024 cells take 0.6 s
CELLS_IN_MEMORY = 1 << 20  # numbers that are drawn at once: 8 MiB per array
SAME = 100 * float(np.finfo(np.float64).eps)  # the relative distance of equal numbers, as in SciPy


@dataclass(frozen=True)
class Interval:
    """A value with its confidence limits. `mean` is None without rows, `low` and `high` are None without limits."""

    mean: float | None
    low: float | None
    high: float | None

    def columns(self, mean: str = "value") -> dict[str, float | None]:
        """Return the columns of a table: the value under this name, `ci_low` and `ci_high`."""
        return {mean: self.mean, "ci_low": self.low, "ci_high": self.high}


NOTHING = Interval(None, None, None)


@dataclass(frozen=True)
class Cells:
    """Neighbouring distinct values, grouped: int64 and float64 arrays of one length, in ascending order."""

    counts: IntArray
    means: FloatArray
    variances: FloatArray  # of the rows within each cell
    starts: IntArray  # the index of the first value of each cell


@dataclass(frozen=True)
class _Clusters:
    """Distinct clusters: how each adds to the numerator and to the denominator of the mean of all samples."""

    counts: IntArray  # the number of equal clusters: int64[k], positive
    residuals: FloatArray  # the sum of the cluster less its size times the mean: float64[k], ascending
    sizes: FloatArray  # float64[k], positive
    mean: float
    lowest: float  # mean of a cluster
    highest: float

    def influence(self) -> FloatArray:
        """Return the centred change of the mean if a cluster is left out, up to the sign: float64[k]."""
        clusters = int(self.counts.sum())
        changes = self.residuals / (float((self.sizes * self.counts).sum()) - self.sizes)
        centred: FloatArray = changes - np.average(changes, weights=self.counts)
        return centred * ((clusters - 1) / clusters)


def draw_counts(counts: IntArray, resamples: int, random: np.random.Generator, *, width: int = 1) -> Iterator[IntArray]:
    """Yield multinomial resamples of the counts, int64[some, k]; each yield fits the memory.

    counts: int64[k]; width: the columns that the caller computes per resample, if they are more than k.
    """
    total = int(counts.sum())
    for some in in_parts(resamples, max(counts.size, width)):
        yield random.multinomial(total, counts / total, size=some)


def in_parts(rows: int, width: int) -> Iterator[int]:
    """Yield the sizes of the parts of an array, such that each part fits the memory."""
    step = max(1, CELLS_IN_MEMORY // max(1, width))
    for start in range(0, rows, step):
        yield min(step, rows - start)


def acceleration_of(influence: FloatArray, counts: IntArray, *, negligible: float = 0.0) -> float | None:
    """Return the acceleration of BCa from the centred changes of the jackknife, or None if it is undefined.

    influence: float64[k]; counts: int64[k], the number of units with this influence. The acceleration is undefined if a
    change is not finite, or if every change is at most `negligible`. Efron and Tibshirani 1993, equation 14.15.
    """
    if not np.isfinite(influence).all() or not (np.abs(influence) > negligible).any():
        return None
    scaled = influence / np.abs(influence).max()  # keeps the powers of tiny changes from vanishing
    squares = counts * scaled * scaled
    return float((squares * scaled).sum() / (6 * squares.sum() ** 1.5))


def bca_limits(
    observed: float,
    acceleration: float | None,
    draw: Callable[[], FloatArray],
    confidence: float,
    *,
    tie: float = SAME,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Interval:
    """Return an observed value with its bias-corrected and accelerated (BCa) bootstrap limits.

    draw: returns float64[resamples], the value of each resample less the observed value, NaN if it is undefined. Shifts
    up to `tie` count as 0, because equal resamples may differ in their last bits. The limits stay within `bounds`.

    The value is None if it is NaN. The limits are None if the acceleration is None, or if all resamples are on one
    side. Efron and Tibshirani 1993, section 14.3.
    """
    if math.isnan(observed):
        return NOTHING
    if acceleration is None:
        return Interval(observed, None, None)
    shifts = draw()
    shifts = shifts[~np.isnan(shifts)]
    shifts[np.abs(shifts) <= tie] = 0.0
    shares = _bca_shares(shifts, acceleration, confidence)
    if shares is None:
        return Interval(observed, None, None)
    low, high = np.clip(observed + np.quantile(shifts, shares), *bounds)
    return Interval(observed, float(low), float(high))


def _bca_shares(shifts: FloatArray, acceleration: float, confidence: float) -> tuple[float, float] | None:
    """Return the shares of the bootstrap distribution below the two limits, or None if they are undefined."""
    below = (np.count_nonzero(shifts < 0) + np.count_nonzero(shifts <= 0)) / max(1, 2 * shifts.size)
    if not 0 < below < 1:
        return None
    bias = float(ndtri(below))
    moved = [bias + float(ndtri(share)) for share in ((1 - confidence) / 2, (1 + confidence) / 2)]
    # A wider confidence would have a narrower interval beyond this point
    if any(acceleration * z >= 1 for z in moved):
        return None
    low, high = (float(ndtr(bias + z / (1 - acceleration * z))) for z in moved)
    return low, high


def weighted_intervals(
    statistics: Callable[[IntArray], Mapping[Name, FloatArray]],
    counts: IntArray,
    left_out: Mapping[Name, FloatArray],
    draws: Callable[[], Iterator[IntArray]],
    confidence: float,
    *,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> dict[Name, Interval]:
    """Return statistics of weighted units with their BCa intervals, by name.

    statistics: from weights of the units, int64[some, k], to float64[some] by name, NaN if undefined; counts: int64[k],
    the number of units of each kind, not all 0; left_out: the statistics without one unit of each kind with a count
    (`leave_one_out`); draws: yields the weights of the resamples. A resample with an undefined statistic is left out.
    Value and limits are None as in `bca_limits`; the acceleration is undefined if leaving out a unit never changes a
    statistic or makes it undefined.
    """
    observed = {name: float(values[0]) for name, values in statistics(counts[None]).items()}
    weights = counts[counts > 0]
    draw = cache(lambda: _join(map(statistics, draws())))
    found = {}
    for name, value in observed.items():
        changes = value - left_out[name]
        centred = changes - np.average(changes, weights=weights)
        acceleration = acceleration_of(centred, weights, negligible=SAME)
        found[name] = bca_limits(value, acceleration, partial(_shifts, draw, name, value), confidence, bounds=bounds)
    return found


def leave_one_out(
    statistics: Callable[[IntArray], Mapping[Name, FloatArray]], counts: IntArray
) -> dict[Name, FloatArray]:
    """Return the statistics without one unit of each kind with a count, by name. Time grows with the square of kinds.

    See `weighted_intervals` for the arguments. Statistics of sums have a faster way: subtract a unit from the sum.
    """
    kinds = np.flatnonzero(counts)
    starts = np.cumsum([0, *in_parts(kinds.size, counts.size)])
    return _join(
        statistics(counts - (np.arange(counts.size) == kinds[start:end, None]))
        for start, end in itertools.pairwise(starts.tolist())
    )


def _join(parts: Iterable[Mapping[Name, FloatArray]]) -> dict[Name, FloatArray]:
    """Return the values of all parts by name."""
    every = list(parts)
    return {name: np.concatenate([part[name] for part in every]) for name in every[0]}


def _shifts(draw: Callable[[], Mapping[Name, FloatArray]], name: Name, observed: float) -> FloatArray:
    return draw()[name] - observed


def mean_of_counts(values: ArrayLike, counts: ArrayLike) -> float | None:
    """Return the mean of a sample given as values and their counts, or None if it has no rows.

    values: float64[k]; counts: int[k], not negative. The order of the values does not change a bit of the result, and
    equal values may occur several times. Raises ValueError if the lengths differ, if a count is negative or fractional,
    or if a value is not finite.

    >>> mean_of_counts([0.5, 1.0], [3, 1])
    0.625
    """
    distinct, rows = sort_counts(values, counts)
    if distinct.size < 2:
        return float(distinct[0]) if distinct.size else None  # sum / count may differ in the last bit
    return math.fsum(distinct * rows) / int(rows.sum())


def bca_interval(
    values: ArrayLike, counts: ArrayLike, *, seed: int, confidence: float = 0.95, resamples: int = 10_000
) -> Interval:
    """Return the mean of a sample with its BCa interval, from counts of values.

    values: float64[k]; counts: int[k], not negative. Order, seed, `MAX_CELLS` and errors as `joint_bca_interval`. The
    limits are None with fewer than two distinct values. Methods, section 7; `scipy.stats.bootstrap(method="BCa")` is
    the reference.
    """
    sizes = np.ones(np.shape(values), dtype=np.int64)
    return joint_bca_interval([(values, sizes, counts)], seed=seed, confidence=confidence, resamples=resamples)


def clustered_bca_interval(
    sums: ArrayLike,
    sizes: ArrayLike,
    counts: ArrayLike | None = None,
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """Return the mean of all samples with its BCa interval if whole clusters (samples of one question) are resampled.

    sums: float64[k], the sum of the values of a cluster; sizes: int[k], the number of its values; counts: int[k], the
    number of clusters with this sum and size, by default one each. Order, seed, `MAX_CELLS` and errors as
    `joint_bca_interval`. The limits are None if fewer than two clusters have samples, or if all clusters have one mean.

    Methods, section 7; `scipy.stats.bootstrap((sums, sizes), ratio, paired=True, method="BCa")` is the reference.
    """
    given = np.ones(np.shape(sums), dtype=np.int64) if counts is None else counts
    return joint_bca_interval([(sums, sizes, given)], seed=seed, confidence=confidence, resamples=resamples)


def joint_bca_interval(
    samples: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike]],
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """Return the average of the means of independent samples (data sets) with its BCa interval.

    samples: sums, sizes and counts of clusters, each as `clustered_bca_interval` accepts them. The mean of a sample is
    the sum of its values / their number. Each sample is resampled separately, and all samples have the same weight.
    The jackknife leaves out one cluster of one sample at a time. Clusters of size 0 have no effect.

    A multinomial resample of the counts is the bootstrap of the mean. More than `MAX_CELLS` distinct clusters are
    resampled as that many cells of neighbours: the counts of the cells are multinomial as before, and the rows within
    the cells add one normal draw of their exact variance to the sum. This loses only the third moment within cells, and
    outliers have separate cells. The mean size within a cell replaces the sizes of its clusters.

    The order of the clusters does not change the limits. `mean` is None if a sample has no rows. The limits
    are None if no sample varies, or if all resamples are on one side of the mean. Raises ValueError as
    `mean_of_counts`, for a confidence outside (0, 1), and for fewer than one resample.

    Methods, sections 6 and 7; `scipy.stats.bootstrap` of several samples is the reference.
    """
    _check_options(confidence, resamples)
    found = [_clusters(*sample) for sample in samples]
    clusters = [one for one in found if one is not None]
    if not clusters or len(clusters) < len(found):
        return NOTHING
    varying = [one for one in clusters if one.residuals.any()]

    def draw() -> FloatArray:
        random = np.random.default_rng(seed)
        generators = random.spawn(len(varying)) if len(clusters) > 1 else [random]
        shifts = [_resampled_means(one, resamples, own) for one, own in zip(varying, generators, strict=True)]
        average: FloatArray = np.sum(shifts, axis=0) / len(clusters)
        return average

    return bca_limits(
        math.fsum(one.mean for one in clusters) / len(clusters),
        acceleration_of(
            np.concatenate([one.influence() for one in varying] or [np.zeros(1)]),
            np.concatenate([one.counts for one in varying] or [np.ones(1, dtype=np.int64)]),
        ),
        draw,
        confidence,
        tie=SAME * max(max(-one.lowest, one.highest) for one in clusters),
        bounds=(
            math.fsum(one.lowest for one in clusters) / len(clusters),
            math.fsum(one.highest for one in clusters) / len(clusters),
        ),
    )


def wilson_interval(successes: int, n: int, *, confidence: float = 0.95) -> Interval:
    """Return the share of successes in n independent trials with its Wilson score interval; all None if n is 0.

    Unlike a bootstrap it has limits if all trials have the same outcome. Wilson 1927;
    `scipy.stats.binomtest(successes, n).proportion_ci(method="wilson")` is the reference. Raises ValueError if
    successes are not between 0 and n.

    >>> wilson_interval(9, 10)
    Interval(mean=0.9, low=0.5958499732047615, high=0.9821237869049271)
    """
    _check_successes(successes, n, confidence)
    if n == 0:
        return NOTHING
    z = float(ndtri((1 + confidence) / 2))
    middle = successes + z * z / 2
    half = z * math.sqrt(successes * (n - successes) / n + z * z / 4)
    low = 0.0 if successes == 0 else (middle - half) / (n + z * z)
    high = 1.0 if successes == n else (middle + half) / (n + z * z)
    return Interval(successes / n, low, high)


def clopper_pearson_interval(successes: int, n: int, *, confidence: float = 0.95) -> Interval:
    """Return the share of successes in n independent trials with its exact interval, which is never too short.

    The limits are 0 and 1 if n is 0. Clopper and Pearson 1934; `scipy.stats.binomtest(successes, n).proportion_ci()` is
    the reference. Raises ValueError if successes are not between 0 and n.

    >>> round(clopper_pearson_interval(0, 100).high, 6)
    0.036217
    """
    # Not at the top: an install that only reads has no SciPy
    from scipy.special import betaincinv

    _check_successes(successes, n, confidence)
    tail = (1 - confidence) / 2
    low = float(betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
    return Interval(successes / n if n else None, low, high)


def _check_successes(successes: int, n: int, confidence: float) -> None:
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be between 0 and {n}, not {successes}")
    _check_options(confidence, 1)


def _check_options(confidence: float, resamples: int) -> None:
    if not 0 < confidence < 1 or resamples < 1:
        raise ValueError(
            f"confidence must be between 0 and 1 and resamples at least 1, not {confidence} and {resamples}"
        )


def sort_counts(values: ArrayLike, counts: ArrayLike) -> tuple[FloatArray, IntArray]:
    """Return the distinct values in ascending order, float64, and the rows of each, int64, all positive.

    Arguments and errors as `mean_of_counts`.
    """
    numbers, rows = _checked(values, counts, "values", "counts")
    (distinct,), rows = _merge([numbers[rows > 0]], rows[rows > 0])
    return distinct, rows


def _checked(values: ArrayLike, counts: ArrayLike, first: str, second: str) -> tuple[FloatArray, IntArray]:
    """Return float64[k] without -0.0 and int64[k]. Errors as `mean_of_counts`; they name the arguments so."""
    numbers = np.asarray(values, dtype=np.float64)
    given = np.asarray(counts)
    rows = given.astype(np.int64)
    if numbers.ndim != 1 or numbers.shape != rows.shape:
        raise ValueError(f"{first} and {second} differ in length, with shapes {numbers.shape} and {rows.shape}")
    if (rows < 0).any() or (rows != given).any():
        raise ValueError(f"{second} must be whole numbers, not negative")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{first} must be finite. Remove undefined values")
    return numbers + 0.0, rows


def _merge(columns: Sequence[FloatArray], counts: IntArray) -> tuple[list[FloatArray], IntArray]:
    """Return the distinct rows of the columns in ascending order, and the sum of the counts of each."""
    order = np.argsort(columns[0]) if len(columns) == 1 else np.lexsort(columns[::-1])
    ordered = [column[order] for column in columns]
    changes = np.ones(counts.size, dtype=bool)
    changes[1:] = np.any([column[1:] != column[:-1] for column in ordered], axis=0)
    first = np.flatnonzero(changes)
    return [column[first] for column in ordered], np.add.reduceat(counts[order], first) if first.size else counts


def _clusters(sums: ArrayLike, sizes: ArrayLike, counts: ArrayLike) -> _Clusters | None:
    """Return the distinct clusters with samples, or None if there are none."""
    numbers, alike = _checked(sums, counts, "sums", "counts")
    _, lengths = _checked(sums, sizes, "sums", "sizes")
    some = (lengths > 0) & (alike > 0)
    # One order for any input, so that the draws of a seed concern the same clusters
    (numbers, widths), alike = _merge([numbers[some], lengths[some].astype(np.float64)], alike[some])
    if not alike.size:
        return None
    means = numbers / widths
    one = alike.size == 1  # the quotient of two sums may differ from its mean in the last bit
    mean = float(means[0]) if one else math.fsum(numbers * alike) / math.fsum(widths * alike)
    residuals = numbers - widths * mean
    residuals[np.abs(residuals) <= SAME * np.abs(numbers)] = 0.0
    order = np.argsort(residuals, kind="stable")
    return _Clusters(alike[order], residuals[order], widths[order], mean, float(means.min()), float(means.max()))


def cut_cells(deviations: FloatArray, rows: IntArray) -> Cells:
    """Return one cell per distinct value, or about `MAX_CELLS` cells of equal shares of rows and of the third moment.

    deviations: float64[k], ascending, not all zero; rows: int64[k], positive, the number of rows of each.
    """
    if deviations.size <= MAX_CELLS:
        return Cells(rows, deviations, np.zeros_like(deviations), np.arange(deviations.size))
    scaled = np.abs(deviations) / np.abs(deviations).max()
    cubes = rows * scaled * scaled * scaled
    weights = rows / rows.sum() + cubes / cubes.sum()
    cell = ((np.cumsum(weights) - weights / 2) * (MAX_CELLS / 2)).astype(np.int64)
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    sizes = np.add.reduceat(rows, starts)
    means = np.add.reduceat(rows * deviations, starts) / sizes
    within = deviations - np.repeat(means, np.diff(starts, append=deviations.size))
    return Cells(sizes, means, np.add.reduceat(rows * within * within, starts) / sizes, starts)


def _resampled_means(clusters: _Clusters, resamples: int, random: np.random.Generator) -> FloatArray:
    """Return the mean of each resample of clusters less that of the sample: float64[resamples]."""
    cells = cut_cells(clusters.residuals, clusters.counts)
    widths = np.add.reduceat(clusters.counts * clusters.sizes, cells.starts) / cells.counts
    columns = (cells.means, widths, cells.variances)
    # Not a matrix product: the last bits of BLAS depend on the number of its threads
    parts = [[(drawn * one).sum(axis=1) for one in columns] for drawn in draw_counts(cells.counts, resamples, random)]
    sums, sizes, variances = (np.concatenate(column) for column in zip(*parts, strict=True))
    if cells.variances.any():
        sums += np.sqrt(variances) * random.standard_normal(resamples)
    means: FloatArray = sums / sizes
    return means
