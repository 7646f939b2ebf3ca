"""Intervals of statistics of totals of counts. Whole samples, queries or questions are resampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

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

Statistic = Callable[[IntArray], FloatArray]
"""int64[..., k], totals of k counts, to float64[...], NaN if undefined."""


def total_interval(
    statistic: Statistic,
    totals: ArrayLike,
    clusters: Sequence[str] | None = None,
    *,
    counts: ArrayLike | None = None,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """Return a statistic of the sums of counts over all samples, with its BCa interval.

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
    observed = float(statistic(total)) if alike.any() else np.nan
    acceleration = None
    if not np.isnan(observed):
        changes = observed - statistic(total - rows[alike > 0])
        held = alike[alike > 0]
        acceleration = acceleration_of(changes - np.average(changes, weights=held), held, negligible=SAME)

    def draw() -> FloatArray:
        values: FloatArray = np.concatenate([statistic(some) for some in _draw_totals(rows, alike, resamples, seed)])
        return values - observed

    return bca_limits(observed, acceleration, draw, confidence)


def table_interval(
    measure: confusion.Measure,
    tables: ArrayLike,
    counts: ArrayLike | None = None,
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """Return a measure of a confusion table with its BCa interval, as `total_interval`.

    tables: int[r, c], the table of all items, which are resampled one by one; or int[samples, r, c], the table of each
    sample, which are resampled as a whole, with counts int[samples] as `total_interval` accepts them.
    """
    given = np.asarray(tables, dtype=np.int64)
    shape = given.shape[-2:]
    if given.ndim == 2:
        given, counts = np.eye(given.size, dtype=np.int64), given.ravel()

    def of_totals(totals: IntArray) -> FloatArray:
        return measure(totals.reshape(*totals.shape[:-1], *shape))

    rows = given.reshape(len(given), -1)
    return total_interval(of_totals, rows, counts=counts, seed=seed, confidence=confidence, resamples=resamples)


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


SHAPE = (len(confusion.LABELS), len(confusion.OUTCOMES))
CELLS = len(confusion.LABELS) * len(confusion.OUTCOMES)
RESAMPLES = 10_000  # methods, section 7
FORMS = tuple(product(confusion.CONVENTIONS, confusion.MEASURES))
Form = tuple[str, str]


@dataclass(frozen=True)
class Resampled:
    """A confusion table, its resamples by question, and the acceleration of each measure, None if nothing changes it.

    table: int64[3, 5], with a column per `OUTCOMES`; drawn: int64[resamples, 3, 5]; accelerations: by convention and
    measure.
    """

    table: IntArray
    drawn: IntArray
    accelerations: dict[Form, float | None]

    def interval(self, convention: str, measure: str, *, confidence: float = 0.95) -> Interval:
        """Return the measure under the convention with its BCa interval, as `total_interval`."""

        def of(tables: IntArray) -> FloatArray:
            return confusion.MEASURES[measure](confusion.under_convention(tables, convention))

        observed = float(of(self.table))
        acceleration = self.accelerations[convention, measure]
        return bca_limits(observed, acceleration, lambda: of(self.drawn) - observed, confidence)


def resample_questions(tables: ArrayLike, counts: ArrayLike, *, seed: int, resamples: int = RESAMPLES) -> Resampled:
    """Resample questions that are given by their confusion tables and by the number of questions with each.

    tables: int64[k, 3, 4 or 5], the responses to a question by label and outcome; counts: int64[k], positive. A
    multinomial resample of the counts is a resample of the questions. The order of the tables has no effect. Methods,
    section 7; `scipy.stats.bootstrap(method="BCa")` over questions is the reference.
    """
    cells, rows = _sorted_tables(np.asarray(tables, dtype=np.int64), np.asarray(counts, dtype=np.int64))
    table = (cells * rows[:, None]).sum(axis=0).reshape(SHAPE)
    drawn = np.concatenate([*_draw_totals(cells, rows, resamples, seed)])
    accelerations = {form: _acceleration(form, table, cells.reshape(-1, *SHAPE), rows) for form in FORMS}
    return Resampled(table, drawn.reshape(-1, *SHAPE), accelerations)


def _sorted_tables(tables: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct tables as rows of `CELLS` cells in one order, and how many questions have each."""
    wide = np.zeros((len(tables), *SHAPE), dtype=np.int64)
    wide[..., : tables.shape[-1]] = tables
    cells, place = np.unique(wide.reshape(-1, CELLS), axis=0, return_inverse=True)
    rows = np.bincount(place.ravel(), weights=counts, minlength=len(cells)).astype(np.int64)
    return cells, rows


def _changes(form: Form, table: IntArray, tables: IntArray) -> FloatArray:
    """Return the change of the measure if a question of each table is left out: float64[k]."""
    convention, name = form
    measure: confusion.Measure = confusion.MEASURES[name]
    changes: FloatArray = measure(confusion.under_convention(table, convention)) - measure(
        confusion.under_convention(table - tables, convention)
    )
    return changes


def _acceleration(form: Form, table: IntArray, tables: IntArray, counts: IntArray) -> float | None:
    """Return the acceleration of a measure, or None with fewer than two questions."""
    if counts.sum() < 2:
        return None
    changes = _changes(form, table, tables)
    return acceleration_of(changes - np.average(changes, weights=counts), counts)
