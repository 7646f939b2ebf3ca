"""Linear and rank correlations of two measures of the same samples. Intervals resample samples or queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from untold.udfs.statistics.intervals import (
    FloatArray,
    IntArray,
    in_parts,
    join_parts,
    number_names,
    weighted_intervals,
)

# Two points always lie on a line
LEAST = 3
# With fewer pairs a resample or a jackknife has two points, and the limits are -1 and 1 for any pairs
LEAST_FOR_LIMITS = 5
# Columns of the matrix of signs in memory as 32-bit numbers: a few MiB for thousands of samples
SIGNS_AT_ONCE = 1024


@dataclass(frozen=True)
class Correlation:
    """A coefficient over n pairs. All other fields are None below three pairs, or if a side is constant.

    `p_value` is two-sided, for independent pairs. `low` and `high` are also None below `LEAST_FOR_LIMITS` pairs, or if
    the bootstrap is degenerate.
    """

    n: int
    value: float | None
    p_value: float | None
    low: float | None
    high: float | None

    def columns(self) -> dict[str, float | None]:
        """Return the columns of a table: value, p_value, ci_low, ci_high and n."""
        ends = {"ci_low": self.low, "ci_high": self.high}
        return {"value": self.value, "p_value": self.p_value, **ends, "n": self.n}


@dataclass(frozen=True)
class _Measure:
    """One measure of the pairs: its values less their mean, grouped by distinct value."""

    centred: FloatArray  # float64[n]
    order: IntArray  # int64[n], the indices of the values in ascending order
    starts: IntArray  # int64[k], the positions in that order at which a new value begins
    group: IntArray  # int64[n], the index of the distinct value of each pair

    def sizes(self, weights: FloatArray) -> FloatArray:
        """Return the frequency of each distinct value in each resample: float64[resamples, k], exact."""
        sums: FloatArray = np.add.reduceat(weights[:, self.order], self.starts, axis=1)
        return sums


class _MeasurePairs(NamedTuple):
    """Both measures, and the sign of each difference of pairs: 1 if they are concordant, -1 if discordant."""

    first: _Measure
    second: _Measure
    signs: NDArray[np.int8]  # int8[n, n]


def correlate(
    first: ArrayLike,
    second: ArrayLike,
    clusters: Sequence[str] | None = None,
    *,
    seed: int,
    resamples: int = 10_000,
) -> dict[str, Correlation]:
    """Return Pearson's r, Spearman's rho and Kendall's tau-b with paired BCa bootstrap intervals, by `COEFFICIENTS`.

    first, second: float64[n], finite; clusters: n names. With clusters, the bootstrap and the jackknife take whole
    clusters. A resample with an undefined coefficient is left out. Time and memory grow with n^2 because of Kendall's
    pairs: 2,500 pairs take some seconds. The draws of a seed depend on the order of the pairs, so sort them.

    Values and p-values are SciPy's (`pearsonr`, `spearmanr`, `kendalltau`). Its `bootstrap(paired=True, method="BCa")`
    is the reference of the intervals. Methods, section 7. Raises ValueError if the lengths differ or a value is not
    finite.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"two measures must have the same length, not the shapes {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("measures must be finite. Remove undefined values")
    if x.size < LEAST or min(np.ptp(x), np.ptp(y)) == 0:
        return {name: Correlation(x.size, None, None, None, None) for name in COEFFICIENTS}
    if clusters is not None and len(clusters) != x.size:
        raise ValueError(f"{len(clusters)} clusters are given for {x.size} pairs")
    owner = np.arange(x.size) if clusters is None else number_names(clusters)[1]
    if x.size < LEAST_FOR_LIMITS:
        return {name: Correlation(x.size, *_from_scipy(name, x, y), None, None) for name in COEFFICIENTS}
    pairs = _pair(x, y)
    number = int(owner.max()) + 1

    def of_weights(weights: IntArray) -> dict[str, FloatArray]:
        return _all(pairs, weights[:, owner].astype(np.float64))

    def draws() -> Iterator[IntArray]:
        random = np.random.default_rng(seed)
        for some in in_parts(resamples, x.size):
            # Each resample counts in a range of its own
            picked = random.integers(0, number, size=(some, number)) + number * np.arange(some)[:, None]
            yield np.bincount(picked.ravel(), minlength=some * number).reshape(some, number)

    # The jackknife: each row of weights leaves out one cluster. Its time grows with the square of the clusters
    each = np.arange(number)
    starts = np.cumsum([0, *in_parts(number, number)]).tolist()
    left_out = join_parts(
        of_weights((each != each[start:end, None]).astype(np.int64)) for start, end in pairwise(starts)
    )
    ones = np.ones(number, dtype=np.int64)
    found = weighted_intervals(of_weights, ones, left_out, draws, bounds=(-1.0, 1.0))
    return {name: Correlation(x.size, *_from_scipy(name, x, y), one.low, one.high) for name, one in found.items()}


def _from_scipy(name: str, x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Return the coefficient and its two-sided p-value."""
    # Not at the top: the import takes most of a second, and not every command needs it
    from scipy import stats

    of: Any = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}[name]
    found = of(x, y)
    return float(found.statistic), float(found.pvalue)


def _pair(x: FloatArray, y: FloatArray) -> _MeasurePairs:
    signs = [np.sign(side[:, None] - side[None, :]).astype(np.int8) for side in (x, y)]
    return _MeasurePairs(_side(x), _side(y), signs[0] * signs[1])


def _side(values: FloatArray) -> _Measure:
    order = np.argsort(values, kind="stable")
    new = np.diff(values[order], prepend=-np.inf) > 0
    group = np.empty(values.size, dtype=np.int64)
    group[order] = np.cumsum(new) - 1
    return _Measure(values - values.mean(), order, np.flatnonzero(new), group)


def _all(pairs: _MeasurePairs, weights: FloatArray) -> dict[str, FloatArray]:
    """Return every coefficient of each resample, float64[resamples], NaN if a side is constant.

    weights: float64[resamples, n], the frequency of each pair.
    """
    sizes = [side.sizes(weights) for side in pairs[:2]]
    total = weights.sum(axis=1)
    constant = (sizes[0].max(axis=1) == total) | (sizes[1].max(axis=1) == total)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {name: np.where(constant, np.nan, of(pairs, weights, sizes)) for name, of in COEFFICIENTS.items()}


def _pearson(pairs: _MeasurePairs, weights: FloatArray, sizes: Sequence[FloatArray]) -> FloatArray:
    x, y = (side.centred for side in pairs[:2])
    total = weights.sum(axis=1)
    # Not matrix products: the last bits of BLAS depend on the number of its threads
    sum_x, sum_y = (weights * x).sum(axis=1), (weights * y).sum(axis=1)
    within_x = (weights * (x * x)).sum(axis=1) - sum_x * sum_x / total
    within_y = (weights * (y * y)).sum(axis=1) - sum_y * sum_y / total
    between = (weights * (x * y)).sum(axis=1) - sum_x * sum_y / total
    pearson: FloatArray = between / np.sqrt(within_x * within_y)
    return pearson


def _spearman(pairs: _MeasurePairs, weights: FloatArray, sizes: Sequence[FloatArray]) -> FloatArray:
    """Return Pearson's r of mean ranks. These are whole or half numbers, so all sums are exact."""
    middle = (weights.sum(axis=1, keepdims=True) + 1) / 2
    ranks = [np.cumsum(each, axis=1) - (each - 1) / 2 - middle for each in sizes]
    within = [(each * rank * rank).sum(axis=1) for each, rank in zip(sizes, ranks, strict=True)]
    of_pair = ranks[0][:, pairs.first.group] * ranks[1][:, pairs.second.group]
    spearman: FloatArray = (weights * of_pair).sum(axis=1) / np.sqrt(within[0] * within[1])
    return spearman


def _kendall(pairs: _MeasurePairs, weights: FloatArray, sizes: Sequence[FloatArray]) -> FloatArray:
    """Return tau-b: concordant less discordant pairs / the geometric mean of the pairs that each side does not tie."""
    total = weights.sum(axis=1)
    # Sums of whole numbers up to the number of pairs are exact in 32 bits below 2^24, in any order of BLAS
    counts = weights.astype(np.float32)
    twice = np.zeros(len(weights))
    for start in range(0, weights.shape[1], SIGNS_AT_ONCE):
        part = slice(start, start + SIGNS_AT_ONCE)
        twice += ((counts @ pairs.signs[:, part].astype(np.float32)) * weights[:, part]).sum(axis=1)
    everything = total * (total - 1)
    untied = [everything - (each * (each - 1)).sum(axis=1) for each in sizes]
    kendall: FloatArray = twice / np.sqrt(untied[0] * untied[1])
    return kendall


COEFFICIENTS: Mapping[str, Callable[[_MeasurePairs, FloatArray, Sequence[FloatArray]], FloatArray]] = {
    "pearson": _pearson,
    "spearman": _spearman,
    "kendall": _kendall,
}
