"""Rank and linear correlations of two measures of the same samples, with intervals that resample samples or queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from untold.udfs.statistics.intervals import CELLS_IN_MEMORY, SAME, FloatArray, IntArray, acceleration_of, bca_shares

# Two points always lie on a line
LEAST = 3
# Below it a resample or a jackknife has two points, and the limits are -1 and 1 whatever the pairs are
LEAST_FOR_LIMITS = 5
# Columns of the matrix of signs that are held as numbers of 32 bits at once: a few MiB at thousands of samples
SIGNS_AT_ONCE = 1024


@dataclass(frozen=True)
class Correlation:
    """A coefficient over n pairs; all else is None below three pairs or where a side is constant.

    `p_value` is two-sided, of independent pairs; `low` and `high` are None too below `LEAST_FOR_LIMITS` pairs, or
    where the bootstrap is degenerate.
    """

    n: int
    value: float | None
    p_value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class _Measure:
    """One measure of the pairs: its values about their mean, and the distinct values that they are."""

    centred: FloatArray  # float64[n]
    order: IntArray  # int64[n], the places of the values in ascending order
    starts: IntArray  # int64[k], where in that order a new value begins
    group: IntArray  # int64[n], which of the k distinct values each is

    def sizes(self, weights: FloatArray) -> FloatArray:
        """How often each distinct value occurs in each resample: float64[resamples, k], exact."""
        sums: FloatArray = np.add.reduceat(weights[:, self.order], self.starts, axis=1)
        return sums


@dataclass(frozen=True)
class _MeasurePairs:
    """Both measures, and the signs of all differences of pairs: 1 where they are concordant, -1 where discordant."""

    first: _Measure
    second: _Measure
    signs: NDArray[np.int8]  # [n, n]


def correlate(
    first: ArrayLike,
    second: ArrayLike,
    clusters: Sequence[str] | None = None,
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> dict[str, Correlation]:
    """By name of `COEFFICIENTS`: Pearson's r, Spearman's rho and Kendall's tau-b, with paired BCa bootstrap intervals.

    first, second: float64[n], finite. clusters: n names; whole clusters are resampled, and left out by the jackknife,
    where they are given. Resamples in which a coefficient is undefined are left out. Time and memory grow with n^2, by
    the pairs of Kendall: 2,500 pairs take some seconds. Order of the pairs matters to the seed's draws: sort them.

    Values and p-values are SciPy's (`pearsonr`, `spearmanr`, `kendalltau`), and its `bootstrap(paired=True,
    method="BCa")` is the reference of the intervals. Methods, section 7. Raises ValueError for lengths that differ and
    values that are not finite.
    """
    x, y = _checked(first, second)
    if x.size < LEAST or min(np.ptp(x), np.ptp(y)) == 0:
        return {name: Correlation(x.size, None, None, None, None) for name in COEFFICIENTS}
    owner = _places(clusters, x.size)
    if x.size < LEAST_FOR_LIMITS:
        return {name: Correlation(x.size, *_from_scipy(name, x, y), None, None) for name in COEFFICIENTS}
    pairs = _pair(x, y)
    observed = _all(pairs, np.ones((1, x.size)))
    drawn = _over(pairs, _drawn(owner, resamples, seed))
    left_out = _over(pairs, _left_out(owner))
    return {
        name: Correlation(
            x.size, *_from_scipy(name, x, y), *_limits(observed[name], drawn[name], left_out[name], confidence)
        )
        for name in COEFFICIENTS
    }


def _checked(first: ArrayLike, second: ArrayLike) -> tuple[FloatArray, FloatArray]:
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"two measures must be of one length, not of shapes {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("measures must be finite; leave out what is undefined")
    return x, y


def _places(clusters: Sequence[str] | None, n: int) -> IntArray:
    """int64[n], the cluster of each pair as a number from 0; each pair is one of its own without clusters."""
    if clusters is None:
        return np.arange(n)
    if len(clusters) != n:
        raise ValueError(f"{len(clusters)} clusters are given for {n} pairs")
    return np.unique(np.asarray(clusters, dtype=object).astype(str), return_inverse=True)[1].astype(np.int64)


def _from_scipy(name: str, x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """The coefficient and its two-sided p-value."""
    # Here, as it takes most of a second, which not every command that imports this module needs
    from scipy import stats

    by_name: dict[str, Callable[..., Any]] = {
        "pearson": stats.pearsonr,
        "spearman": stats.spearmanr,
        "kendall": stats.kendalltau,
    }
    found = by_name[name](x, y)
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


def _drawn(owner: IntArray, resamples: int, seed: int) -> Iterator[FloatArray]:
    """How often each pair is in each resample of clusters, float64[some, n] at a time."""
    random = np.random.default_rng(seed)
    number = int(owner.max()) + 1
    step = max(1, CELLS_IN_MEMORY // owner.size)
    for start in range(0, resamples, step):
        some = min(step, resamples - start)
        # Each resample counts in cells of its own
        picked = random.integers(0, number, size=(some, number)) + number * np.arange(some)[:, None]
        counts = np.bincount(picked.ravel(), minlength=some * number).reshape(some, number)
        yield counts[:, owner].astype(np.float64)


def _left_out(owner: IntArray) -> Iterator[FloatArray]:
    """The pairs without each cluster in turn, float64[some, n] at a time."""
    number = int(owner.max()) + 1
    step = max(1, CELLS_IN_MEMORY // owner.size)
    for start in range(0, number, step):
        yield (owner[None, :] != np.arange(start, min(start + step, number))[:, None]).astype(np.float64)


def _over(pairs: _MeasurePairs, weights: Iterator[FloatArray]) -> dict[str, FloatArray]:
    parts = [_all(pairs, some) for some in weights]
    return {name: np.concatenate([part[name] for part in parts]) for name in COEFFICIENTS}


def _all(pairs: _MeasurePairs, weights: FloatArray) -> dict[str, FloatArray]:
    """Every coefficient of each resample, float64[resamples], NaN where a side is constant.

    weights: float64[resamples, n], how often each pair is in it.
    """
    sizes = [side.sizes(weights) for side in (pairs.first, pairs.second)]
    total = weights.sum(axis=1)
    constant = (sizes[0].max(axis=1) == total) | (sizes[1].max(axis=1) == total)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {name: np.where(constant, np.nan, of(pairs, weights, sizes)) for name, of in COEFFICIENTS.items()}


def _pearson(pairs: _MeasurePairs, weights: FloatArray, sizes: Sequence[FloatArray]) -> FloatArray:
    x, y = pairs.first.centred, pairs.second.centred
    total = weights.sum(axis=1)
    # Not matrix products: the last bits of BLAS depend on the number of its threads
    sum_x, sum_y = (weights * x).sum(axis=1), (weights * y).sum(axis=1)
    within_x = (weights * (x * x)).sum(axis=1) - sum_x * sum_x / total
    within_y = (weights * (y * y)).sum(axis=1) - sum_y * sum_y / total
    between = (weights * (x * y)).sum(axis=1) - sum_x * sum_y / total
    pearson: FloatArray = between / np.sqrt(within_x * within_y)
    return pearson


def _spearman(pairs: _MeasurePairs, weights: FloatArray, sizes: Sequence[FloatArray]) -> FloatArray:
    """Pearson's r of mean ranks, which are whole or half numbers, so that all sums are exact."""
    middle = (weights.sum(axis=1, keepdims=True) + 1) / 2
    ranks = [np.cumsum(each, axis=1) - (each - 1) / 2 - middle for each in sizes]
    within = [(each * rank * rank).sum(axis=1) for each, rank in zip(sizes, ranks, strict=True)]
    of_pair = ranks[0][:, pairs.first.group] * ranks[1][:, pairs.second.group]
    spearman: FloatArray = (weights * of_pair).sum(axis=1) / np.sqrt(within[0] * within[1])
    return spearman


def _kendall(pairs: _MeasurePairs, weights: FloatArray, sizes: Sequence[FloatArray]) -> FloatArray:
    """tau-b: concordant less discordant pairs, over the geometric mean of the pairs that each side does not tie."""
    total = weights.sum(axis=1)
    # Sums of whole numbers up to the number of pairs: exact in 32 bits below 2^24, in any order that BLAS takes
    counts = weights.astype(np.float32)
    twice = np.zeros(len(weights))
    for start in range(0, weights.shape[1], SIGNS_AT_ONCE):
        part = slice(start, start + SIGNS_AT_ONCE)
        twice += ((counts @ pairs.signs[:, part].astype(np.float32)) * weights[:, part]).sum(axis=1)
    everything = total * (total - 1)
    untied = [everything - (each * (each - 1)).sum(axis=1) for each in sizes]
    kendall: FloatArray = twice / np.sqrt(untied[0] * untied[1])
    return kendall


def _limits(
    observed: FloatArray, drawn: FloatArray, left_out: FloatArray, confidence: float
) -> tuple[float | None, float | None]:
    """The BCa limits from the observed coefficient (an array of one), those of resamples, and of the jackknife."""
    shifts = drawn[~np.isnan(drawn)] - observed[0]
    shifts[np.abs(shifts) <= SAME] = 0.0
    influence = left_out.mean() - left_out
    if not np.isfinite(influence).all() or not (np.abs(influence) > SAME).any():
        return None, None
    shares = bca_shares(shifts, acceleration_of(influence, np.ones(influence.size, dtype=np.int64)), confidence)
    if shares is None:
        return None, None
    low, high = np.clip(observed[0] + np.quantile(shifts, shares), -1.0, 1.0)
    return float(low), float(high)


COEFFICIENTS: Mapping[str, Callable[[_MeasurePairs, FloatArray, Sequence[FloatArray]], FloatArray]] = {
    "pearson": _pearson,
    "spearman": _spearman,
    "kendall": _kendall,
}
