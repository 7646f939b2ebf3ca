"""Intervals of statistics of totals of counts. Whole samples, queries or questions are resampled."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from untold.udfs.statistics import confusion
from untold.udfs.statistics.intervals import (
    SAME,
    FloatArray,
    IntArray,
    Interval,
    acceleration_of,
    bca_limits,
    draw_counts,
)

Name = TypeVar("Name", bound=Hashable)
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
    confidence: float = 0.95,
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
    rows, alike = _distinct(_summed(given, clusters)) if counts is None else (given, np.asarray(counts, dtype=np.int64))
    total: IntArray = (rows * alike[:, None]).sum(axis=0)
    held, without = alike[alike > 0], total - rows[alike > 0]
    observed = {name: float(of(total)) if alike.any() else np.nan for name, of in statistics.items()}
    changes = {name: observed[name] - of(without) for name, of in statistics.items() if not np.isnan(observed[name])}
    accelerations = {
        name: acceleration_of(own - np.average(own, weights=held), held, negligible=SAME)
        for name, own in changes.items()
    }

    @cache
    def draw() -> dict[Name, FloatArray]:
        drawn = [[of(some) for of in statistics.values()] for some in _draw_totals(rows, alike, resamples, seed)]
        return {name: np.concatenate(values) for name, values in zip(statistics, zip(*drawn, strict=True), strict=True)}

    return {
        name: bca_limits(value, accelerations.get(name), partial(_centred, draw, name, value), confidence)
        for name, value in observed.items()
    }


def _centred(draw: Callable[[], Mapping[Name, FloatArray]], name: Name, observed: float) -> FloatArray:
    return draw()[name] - observed


def table_intervals(
    measures: Mapping[Name, confusion.Measure],
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


def _measure_totals(measure: confusion.Measure, shape: tuple[int, int], totals: IntArray) -> FloatArray:
    return measure(totals.reshape(*totals.shape[:-1], *shape))


def auc(totals: IntArray) -> FloatArray:
    """Return the area under the ROC curve: float64[...], NaN without a positive or without a negative item.

    totals: int64[..., 2k], sums of the rows of `score_counts`. The area is the share of pairs of a positive and a
    negative item in which the positive item has the greater score. Ties count half. This is the U of Mann and Whitney
    over all pairs.
    """
    positives, negatives = np.split(totals, 2, axis=-1)
    beaten = np.cumsum(negatives, axis=-1) - negatives / 2
    pairs = positives.sum(axis=-1) * negatives.sum(axis=-1)
    won = (positives * beaten).sum(axis=-1)
    shares: FloatArray = np.divide(won, pairs, out=np.full(np.shape(pairs), np.nan), where=pairs > 0)
    return shares


def score_counts(scores: ArrayLike, positive: ArrayLike, owners: Sequence[str]) -> tuple[IntArray, list[str]]:
    """Count the positive and the negative items of each owner by score. Return int64[owners, 2k] and the owners.

    scores: float64[items], finite; positive: bool[items]; owners: the sample or the cluster of each item. The first k
    columns count positive items by ascending score, the other columns negative items.
    """
    names, owner = np.unique(np.asarray(owners, dtype=object).astype(str), return_inverse=True)
    values, place = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True)
    column = place + np.where(np.asarray(positive, dtype=bool), 0, values.size)
    counts = np.zeros((names.size, 2 * values.size), dtype=np.int64)
    np.add.at(counts, (owner, column), 1)
    return counts, [str(name) for name in names]


def _summed(counts: IntArray, clusters: Sequence[str] | None) -> IntArray:
    """Return the counts of each cluster."""
    if clusters is None or not len(counts):
        return counts
    names, owner = np.unique(np.asarray(clusters, dtype=object).astype(str), return_inverse=True)
    sums = np.zeros((names.size, counts.shape[1]), dtype=np.int64)
    np.add.at(sums, owner, counts)
    return sums


def _distinct(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct rows in one order, and how many samples have each, without the samples that count nothing."""
    given = counts[counts.any(axis=-1)] if counts.size else counts.reshape(0, 0)
    rows, alike = np.unique(given, axis=0, return_counts=True)
    return rows, alike.astype(np.int64)


def _draw_totals(rows: IntArray, counts: IntArray, resamples: int, seed: int) -> Iterator[IntArray]:
    """Yield the totals of resamples of rows int64[k, columns] with counts int64[k]: int64[some, columns]."""
    for drawn in draw_counts(counts, resamples, np.random.default_rng(seed), width=rows.shape[1]):
        yield _weigh(drawn, rows)


def _weigh(weights: IntArray, rows: IntArray) -> IntArray:
    """Return the weighted sums of the rows: int64[resamples, columns]; weights: int64[resamples, k]."""
    # Whole numbers below 2^53 are exact as floats in any order of their sum, and BLAS is ten times as fast
    return (weights.astype(np.float64) @ rows.astype(np.float64)).astype(np.int64)
