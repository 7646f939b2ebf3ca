"""Confidence intervals: the bootstrap of means and of statistics of totals, Wilson's interval and the exact interval.

Samples are given as counts of their distinct values, so that no cost grows with the number of rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

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

CONFIDENCE = 0.95
MAX_CELLS = 1024  # a resample costs one binomial draw per cell: 10,000 resamples of 1,024 cells take 0.6 s
CELLS_IN_MEMORY = 1 << 20  # numbers that are drawn at once: 8 MiB per array
SAME = 100 * float(np.finfo(np.float64).eps)  # the relative distance of equal numbers, as in SciPy


@dataclass(frozen=True)
class Interval:
    """A value with its confidence limits. `mean` is None without rows, `low` and `high` are None without limits."""

    mean: float | None
    low: float | None
    high: float | None

    def columns(self, mean: str = "value", limits: str = "ci") -> dict[str, float | None]:
        """Return the columns of a table: the value under the name `mean`, and `<limits>_low` and `<limits>_high`."""
        return {mean: self.mean, f"{limits}_low": self.low, f"{limits}_high": self.high}


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
    *,
    confidence: float = CONFIDENCE,
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
    below = (np.count_nonzero(shifts < 0) + np.count_nonzero(shifts <= 0)) / max(1, 2 * shifts.size)
    if not 0 < below < 1:
        return Interval(observed, None, None)
    bias = float(ndtri(below))
    moved = [bias + float(ndtri(share)) for share in ((1 - confidence) / 2, (1 + confidence) / 2)]
    # A wider confidence would have a narrower interval beyond this point
    if any(acceleration * z >= 1 for z in moved):
        return Interval(observed, None, None)
    # The shares of the bootstrap distribution below the two limits
    shares = [float(ndtr(bias + z / (1 - acceleration * z))) for z in moved]
    low, high = np.clip(observed + np.quantile(shifts, shares), *bounds)
    return Interval(observed, float(low), float(high))


def weighted_intervals(
    statistics: Callable[[IntArray], Mapping[Name, FloatArray]],
    counts: IntArray,
    left_out: Mapping[Name, FloatArray],
    draws: Callable[[], Iterator[IntArray]],
    *,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> dict[Name, Interval]:
    """Return statistics of weighted units with their BCa intervals, by name.

    statistics: from weights of the units, int64[some, k], to float64[some] by name, NaN if undefined; counts: int64[k],
    the number of units of each kind, not all 0; left_out: the statistics without one unit of each kind with a count;
    draws: yields the weights of the resamples. A resample with an undefined statistic is left out.
    Value and limits are None as in `bca_limits`; the acceleration is undefined if leaving out a unit never changes a
    statistic or makes it undefined.
    """
    observed = {name: float(values[0]) for name, values in statistics(counts[None]).items()}
    weights = counts[counts > 0]
    draw = cache(lambda: join_parts(map(statistics, draws())))
    found = {}
    for name, value in observed.items():
        changes = value - left_out[name]
        centred = changes - np.average(changes, weights=weights)
        acceleration = acceleration_of(centred, weights, negligible=SAME)
        found[name] = bca_limits(value, acceleration, partial(_shifts, draw, name, value), bounds=bounds)
    return found


def join_parts(parts: Iterable[Mapping[Name, FloatArray]]) -> dict[Name, FloatArray]:
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


def bca_interval(values: ArrayLike, counts: ArrayLike, *, seed: int, **options: Any) -> Interval:
    """Return the mean of a sample with its BCa interval, from counts of values.

    values: float64[k]; counts: int[k], not negative. Options, order and errors as `joint_bca_interval`. The limits are
    None with fewer than two distinct values. Methods, section 7; `scipy.stats.bootstrap(method="BCa")` is the
    reference.
    """
    sizes = np.ones(np.shape(values), dtype=np.int64)
    return joint_bca_interval([(values, sizes, counts)], seed=seed, **options)


def clustered_bca_interval(
    sums: ArrayLike, sizes: ArrayLike, counts: ArrayLike | None = None, *, seed: int, **options: Any
) -> Interval:
    """Return the mean of all samples with its BCa interval if whole clusters (samples of one question) are resampled.

    sums: float64[k], the sum of the values of a cluster; sizes: int[k], the number of its values; counts: int[k], the
    number of clusters with this sum and size, by default one each. Options, order, `MAX_CELLS` and errors as
    `joint_bca_interval`. The limits are None if fewer than two clusters have samples, or if all clusters have one mean.

    Methods, section 7; `scipy.stats.bootstrap((sums, sizes), ratio, paired=True, method="BCa")` is the reference.
    """
    given = np.ones(np.shape(sums), dtype=np.int64) if counts is None else counts
    return joint_bca_interval([(sums, sizes, given)], seed=seed, **options)


def joint_bca_interval(
    samples: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike]],
    *,
    seed: int,
    confidence: float = CONFIDENCE,
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
        confidence=confidence,
        tie=SAME * max(max(-one.lowest, one.highest) for one in clusters),
        bounds=(
            math.fsum(one.lowest for one in clusters) / len(clusters),
            math.fsum(one.highest for one in clusters) / len(clusters),
        ),
    )


def wilson_interval(successes: int, n: int, *, confidence: float = CONFIDENCE) -> Interval:
    """Return the share of successes in n independent trials with its Wilson score interval; all None if n is 0.

    Unlike a bootstrap it has limits if all trials have the same outcome. Wilson 1927;
    `scipy.stats.binomtest(successes, n).proportion_ci(method="wilson")` is the reference. Raises ValueError if
    successes are not between 0 and n.

    >>> wilson_interval(9, 10)
    Interval(mean=0.9, low=0.5958499732047615, high=0.9821237869049271)
    """
    _check_successes(successes, n)
    _check_options(confidence, 1)
    if n == 0:
        return NOTHING
    z = float(ndtri((1 + confidence) / 2))
    middle = successes + z * z / 2
    half = z * math.sqrt(successes * (n - successes) / n + z * z / 4)
    low = 0.0 if successes == 0 else (middle - half) / (n + z * z)
    high = 1.0 if successes == n else (middle + half) / (n + z * z)
    return Interval(successes / n, low, high)


def clopper_pearson_interval(successes: int, n: int) -> Interval:
    """Return the share of successes in n independent trials with its exact interval, which is never too short.

    The limits are 0 and 1 if n is 0. Clopper and Pearson 1934; `scipy.stats.binomtest(successes, n).proportion_ci()` is
    the reference. Raises ValueError if successes are not between 0 and n.

    >>> round(clopper_pearson_interval(0, 100).high, 6)
    0.036217
    """
    # Not at the top: an install that only reads has no SciPy
    from scipy.special import betaincinv

    _check_successes(successes, n)
    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
    return Interval(successes / n if n else None, low, high)


def _check_successes(successes: int, n: int) -> None:
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be between 0 and {n}, not {successes}")


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


Statistic = Callable[[IntArray], FloatArray]
"""int64[..., k], totals of k counts, to float64[...], NaN if undefined."""


def total_interval(
    statistic: Statistic, totals: ArrayLike, clusters: Sequence[str] | None = None, **options: Any
) -> Interval:
    """Return a statistic of the sums of counts over all samples with its BCa interval, as `total_intervals`."""
    return total_intervals({"": statistic}, totals, clusters, **options)[""]


def total_intervals(
    statistics: Mapping[Name, Statistic],
    totals: ArrayLike,
    clusters: Sequence[str] | None = None,
    *,
    counts: ArrayLike | None = None,
    seed: int,
    resamples: int = 10_000,
) -> dict[Name, Interval]:
    """Return statistics of the sums of counts over all samples with their BCa intervals, by name.

    totals: int[samples, k], not negative, for example the confusion table of the items of a sample; clusters: the
    cluster of each sample. Samples, or whole clusters, are resampled, and the jackknife leaves out one at a time.
    Equal samples are drawn together, so their order has no effect. With `counts`, int[samples], each row stands for as
    many samples, and the rows are distinct and have one order. A resample with an undefined statistic is left out.

    `mean` is None if the statistic is undefined. The limits are None if leaving out a sample never changes the
    statistic or makes it undefined, or if all resamples lie on one side. Methods, section 7;
    `scipy.stats.bootstrap(method="BCa", paired=True)` over samples is the reference.
    """
    given = np.asarray(totals, dtype=np.int64)
    rows, alike = _distinct(sum_by(given, clusters)) if counts is None else (given, np.asarray(counts, dtype=np.int64))
    if not alike.any():
        return dict.fromkeys(statistics, NOTHING)

    def of_weights(weights: IntArray) -> dict[Name, FloatArray]:
        # Whole numbers below 2^53 are exact as floats in any order of their sum, and BLAS is ten times as fast
        sums = (weights.astype(np.float64) @ rows.astype(np.float64)).astype(np.int64)
        return {name: of(sums) for name, of in statistics.items()}

    def draws() -> Iterator[IntArray]:
        return draw_counts(alike, resamples, np.random.default_rng(seed), width=rows.shape[1])

    total: IntArray = (rows * alike[:, None]).sum(axis=0)
    left_out = {name: of(total - rows[alike > 0]) for name, of in statistics.items()}
    return weighted_intervals(of_weights, alike, left_out, draws)


def count_tables(
    labels: ArrayLike, values: ArrayLike, owners: Sequence[Any] | IntArray, shape: tuple[int, int]
) -> IntArray:
    """Count the units of each owner by label and value: int64[owners, *shape], by sorted owner.

    labels, values: int[units], positions in the rows and the columns of a table, -1 if unknown; owners: the sample or
    the cluster of each unit. Units with an unknown label or value do not count. Owners with only such units have
    no table.
    """
    rows, columns = np.asarray(labels, dtype=np.int64), np.asarray(values, dtype=np.int64)
    known = (rows >= 0) & (columns >= 0)
    names, owner = number_names(np.asarray(owners)[known])
    tables = np.zeros((len(names), *shape), dtype=np.int64)
    np.add.at(tables, (owner, rows[known], columns[known]), 1)
    return tables


def table_intervals(
    measures: Mapping[Name, Statistic],
    tables: ArrayLike,
    clusters: Sequence[str] | None = None,
    *,
    seed: int,
    resamples: int = 10_000,
) -> dict[Name, Interval]:
    """Return measures of a confusion table with their BCa intervals, as `total_intervals`.

    tables: int[r, c], the table of all items, which are resampled one by one; or int[samples, r, c], the table of each
    sample, which are resampled as a whole.
    """
    given = np.asarray(tables, dtype=np.int64)
    shape = given.shape[-2:]
    counts = None
    if given.ndim == 2:
        given, counts = np.eye(given.size, dtype=np.int64), given.ravel()
    rows = given.reshape(len(given), shape[0] * shape[1])
    of_totals = {name: partial(_measure_totals, measure, shape) for name, measure in measures.items()}
    return total_intervals(of_totals, rows, clusters, counts=counts, seed=seed, resamples=resamples)


def _measure_totals(measure: Statistic, shape: tuple[int, int], totals: IntArray) -> FloatArray:
    return measure(totals.reshape(*totals.shape[:-1], *shape))


def mean_interval(sums: ArrayLike, sizes: IntArray, clusters: Sequence[str] | None = None, *, seed: int) -> Interval:
    """Return the mean of all units with its BCa interval, from the sum and the number of the units of each sample.

    sums: float64[samples]; sizes: int64[samples]; clusters: the cluster of each sample, if whole clusters are
    resampled. The sums of clusters are exact. Errors as `clustered_bca_interval`.
    """
    if clusters is None:
        return clustered_bca_interval(sums, sizes, seed=seed)
    sums_of, sizes_of = defaultdict[str, list[float]](list), defaultdict[str, int](int)
    for name, one, size in zip(clusters, np.asarray(sums, dtype=np.float64).tolist(), sizes.tolist(), strict=True):
        sums_of[str(name)].append(one)
        sizes_of[str(name)] += size
    return clustered_bca_interval([math.fsum(own) for own in sums_of.values()], list(sizes_of.values()), seed=seed)


def sum_by(counts: IntArray, clusters: Sequence[Any] | IntArray | None) -> IntArray:
    """Return the sums of the rows of each cluster, or the rows themselves without clusters."""
    if clusters is None or not len(counts):
        return counts
    names, owner = number_names(clusters)
    sums = np.zeros((len(names), counts.shape[1]), dtype=np.int64)
    np.add.at(sums, owner, counts)
    return sums


def number_names(names: Sequence[Any] | IntArray) -> tuple[list[Any], IntArray]:
    """Return the sorted distinct names, and the position of each name among them."""
    given = np.asarray(names)
    distinct, places = np.unique(given.astype(str) if given.dtype == object else given, return_inverse=True)
    return distinct.tolist(), places.astype(np.int64)


def _distinct(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct rows in one order, and how many samples have each, without the samples that count nothing."""
    given = counts[counts.any(axis=-1)] if counts.size else counts.reshape(0, 0)
    rows, alike = np.unique(given, axis=0, return_counts=True)
    return rows, alike.astype(np.int64)
