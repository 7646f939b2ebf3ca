"""How far two forms of a metric agree: verdicts, scores, rankings of systems; whole queries are resampled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from untold.udfs.statistics.confusion import kappa, resampled_interval
from untold.udfs.statistics.intervals import FloatArray, IntArray, Interval, acceleration_of

# Standard deviations on both sides of the mean within which 95 % of a normal distribution lies
SPREAD = 1.959963984540054


def kappa_by_query(tables: ArrayLike, *, seed: int, confidence: float = 0.95, resamples: int = 2_000) -> Interval:
    """Cohen's kappa of verdicts with its BCa interval over queries; the limits are kappa where no query disagrees.

    tables: int64[queries, k, k or more], the confusion table of each query, as `kappa` takes it.
    """
    cells = np.asarray(tables, dtype=np.int64)
    total, number = cells.sum(axis=0), len(cells)
    observed = kappa(total)
    changes = np.nan_to_num(observed - kappa(total - cells))
    influence = changes - changes.mean() if number else changes
    if not np.isnan(observed) and not influence.any():
        return Interval(*(float(observed),) * 3)

    def draw() -> IntArray:
        weights = np.random.default_rng(seed).multinomial(number, np.full(number, 1 / number), size=resamples)
        tables: IntArray = np.tensordot(weights, cells, axes=1)
        return tables

    acceleration = acceleration_of(influence, np.ones(number, np.int64)) if number > 1 else None
    return resampled_interval(kappa, total, draw, acceleration, confidence)


def limits_of_agreement(
    sums: ArrayLike,
    squares: ArrayLike,
    sizes: ArrayLike,
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 2_000,
) -> tuple[Interval, Interval]:
    """Limits within which 95 % of differences lie, mean ± 1.96 standard deviations: the lower and the upper one.

    sums, squares: float64[queries], of a query's differences and of their squares; sizes: int64[queries], how many they
    are. Each has the percentile interval of whole queries resampled. None for fewer than two differences. Bland and
    Altman 1986.
    """
    columns = np.stack([np.asarray(one, dtype=np.float64) for one in (sums, squares, sizes)], axis=1)
    number = len(columns)
    if number == 0 or columns[:, 2].sum() < 2:
        return (Interval(None, None, None),) * 2
    weights = np.random.default_rng(seed).multinomial(number, np.full(number, 1 / number), size=resamples)
    total, square, count = np.concatenate([columns.sum(axis=0)[None], weights @ columns]).T
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = SPREAD * np.sqrt(np.maximum(square - total**2 / count, 0) / (count - 1))
        limits = total / count + np.outer((-1, 1), spread)
    ends = [np.nanquantile(one[1:], [(1 - confidence) / 2, (1 + confidence) / 2]) for one in limits]
    lower, upper = (Interval(float(one[0]), *map(float, end)) for one, end in zip(limits, ends, strict=True))
    return lower, upper


@dataclass(frozen=True)
class RankingAgreement:
    """`tau`: Kendall's tau-b of the systems' means; `changes`: share of resamples whose best system is another's."""

    tau: Interval
    same_winner: bool
    changes: float


def compare_rankings(
    sums: ArrayLike, sizes: ArrayLike, *, seed: int, confidence: float = 0.95, resamples: int = 2_000
) -> RankingAgreement | None:
    """Rankings of systems by two measures, from what each query adds to their means.

    sums: float64[2, queries, systems], the sum of each measure over a query's samples of a system; sizes:
    int64[queries, systems], how many they are. The interval is the percentile interval of whole queries resampled.
    None for fewer than two systems with samples.
    """
    scores, counts = np.asarray(sums, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    known = counts.sum(axis=0) > 0
    scores, counts = scores[:, :, known], counts[:, known]
    if counts.shape[1] < 2:
        return None
    number = len(counts)
    weights = np.random.default_rng(seed).multinomial(number, np.full(number, 1 / number), size=resamples)
    means = _means(scores, counts, np.concatenate([np.ones((1, number)), weights]))
    taus = _taus(*means)
    # A system that a resample lacks does not win in it
    winners = np.where(np.isnan(means), -np.inf, means).argmax(axis=2)
    drawn = taus[1:][~np.isnan(taus[1:])]
    limits = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2]) if drawn.size else [None, None]
    low, high = (None if limit is None else float(limit) for limit in limits)
    tau = None if np.isnan(taus[0]) else float(taus[0])
    changed = winners[0] != winners[1]
    return RankingAgreement(Interval(tau, low, high), not changed[0], float(changed[1:].mean()))


def _means(scores: FloatArray, counts: FloatArray, weights: FloatArray) -> FloatArray:
    """The mean of each measure and system in each resample, float64[2, resamples, systems]; NaN without samples."""
    below = weights @ counts
    with np.errstate(invalid="ignore", divide="ignore"):
        # Sums of other orders differ in their last bits, and equal means have to tie
        found: FloatArray = np.round(np.stack([weights @ one for one in scores]) / below, 12)
    return found


def _taus(first: FloatArray, second: FloatArray) -> FloatArray:
    """Kendall's tau-b of the systems in each resample, NaN where a measure ties all of them."""
    places = np.triu_indices(first.shape[1], 1)
    one, other = (np.sign(means[:, places[0]] - means[:, places[1]]) for means in (first, second))
    one, other = np.nan_to_num(one), np.nan_to_num(other)
    below = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    found: FloatArray = np.divide((one * other).sum(axis=1), below, out=np.full(len(one), np.nan), where=below > 0)
    return found
