"""Intervals of statistics of totals of counts. Whole samples, queries or questions are resampled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from untold.udfs.statistics import confusion
from untold.udfs.statistics.intervals import (
    NOTHING,
    FloatArray,
    IntArray,
    Interval,
    Name,
    clustered_bca_interval,
    draw_counts,
    weighted_intervals,
)

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
    return weighted_intervals(of_weights, alike, left_out, draws, confidence)


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


def mean_interval(sums: ArrayLike, sizes: IntArray, clusters: Sequence[str] | None = None, *, seed: int) -> Interval:
    """Return the mean of all units with its BCa interval, from the sum and the number of the units of each sample.

    sums: float64[samples]; sizes: int64[samples]; clusters: the cluster of each sample, if whole clusters are
    resampled. The sums of clusters are exact. Errors as `clustered_bca_interval`.
    """
    if clusters is None:
        return clustered_bca_interval(sums, sizes, seed=seed)
    of_cluster: dict[str, tuple[list[float], list[int]]] = defaultdict(lambda: ([], []))
    for name, one, size in zip(clusters, np.asarray(sums, dtype=np.float64), sizes, strict=True):
        own = of_cluster[str(name)]
        own[0].append(float(one))
        own[1].append(int(size))
    totals = [(fsum(own), sum(counts)) for own, counts in of_cluster.values()]
    return clustered_bca_interval([one for one, _ in totals], [size for _, size in totals], seed=seed)


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
    names, owner = number_names(owners)
    values, place = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True)
    column = place + np.where(np.asarray(positive, dtype=bool), 0, values.size)
    counts = np.zeros((len(names), 2 * values.size), dtype=np.int64)
    np.add.at(counts, (owner, column), 1)
    return counts, names


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
