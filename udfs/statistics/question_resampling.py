"""Intervals of confusion tables and of totals over samples that resample whole questions, queries or samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from untold.udfs.statistics import confusion
from untold.udfs.statistics.intervals import (
    CELLS_IN_MEMORY,
    SAME,
    FloatArray,
    IntArray,
    Interval,
    acceleration_of,
    bca_shares,
)

Statistic = Callable[[IntArray], FloatArray]
"""int64[..., k], totals of k counts, to float64[...], NaN where undefined."""


def total_interval(
    statistic: Statistic,
    counts: ArrayLike,
    clusters: Sequence[str] | None = None,
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """A statistic of the sums of counts over all samples, and its BCa interval.

    counts: int[samples, k], not negative, as the confusion table of a sample's items. Samples are resampled, or with
    `clusters` (a name a sample) whole clusters, and left out one at a time by the jackknife; resamples in which the
    statistic is undefined are left out. `mean` is the statistic, None where it is undefined; the limits are None where
    leaving a sample out changes nothing or makes it undefined, or all resamples fall on one side. Equal samples are
    drawn together, so that their order changes nothing. Methods, section 7;
    `scipy.stats.bootstrap(method="BCa", paired=True)` over samples is the reference.
    """
    rows, alike = _distinct(_summed(np.asarray(counts, dtype=np.int64), clusters))
    total: IntArray = (rows * alike[:, None]).sum(axis=0)
    observed = float(statistic(total)) if len(rows) else np.nan
    if np.isnan(observed):
        return Interval(None, None, None)
    influence = observed - statistic(total - rows)
    influence = influence - np.average(influence, weights=alike)
    if not np.isfinite(influence).all() or not (np.abs(influence) > SAME).any():
        return Interval(observed, None, None)
    shifts = _resampled(statistic, rows, alike, resamples, seed) - observed
    shifts = shifts[~np.isnan(shifts)]
    shifts[np.abs(shifts) <= SAME] = 0.0
    shares = bca_shares(shifts, acceleration_of(influence, alike), confidence)
    if shares is None:
        return Interval(observed, None, None)
    low, high = observed + np.quantile(shifts, shares)
    return Interval(observed, float(low), float(high))


def auc(totals: IntArray) -> FloatArray:
    """The area under the ROC curve: float64[...], NaN without a positive or without a negative item.

    totals: int64[..., 2k] as `score_counts` gives them, summed. It is the share of pairs of a positive and a negative
    item in which the positive one has the greater score, ties counting half: Mann-Whitney's U over all pairs.
    """
    positives, negatives = np.split(totals, 2, axis=-1)
    beaten = np.cumsum(negatives, axis=-1) - negatives / 2
    pairs = positives.sum(axis=-1) * negatives.sum(axis=-1)
    won = (positives * beaten).sum(axis=-1)
    shares: FloatArray = np.divide(won, pairs, out=np.full(np.shape(pairs), np.nan), where=pairs > 0)
    return shares


def score_counts(scores: ArrayLike, positive: ArrayLike, owners: Sequence[str]) -> tuple[IntArray, list[str]]:
    """How many positive and how many negative items of each owner have each score: int64[owners, 2k], and the owners.

    scores: float64[items], finite; positive: bool[items]; owners: the sample, or cluster, of each item. The first k
    columns are of positive items by ascending score, the others of negative ones.
    """
    names, owner = np.unique(np.asarray(owners, dtype=object).astype(str), return_inverse=True)
    values, place = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True)
    column = place + np.where(np.asarray(positive, dtype=bool), 0, values.size)
    counts = np.zeros((names.size, 2 * values.size), dtype=np.int64)
    np.add.at(counts, (owner, column), 1)
    return counts, [str(name) for name in names]


def _summed(counts: IntArray, clusters: Sequence[str] | None) -> IntArray:
    """The counts of each cluster."""
    if clusters is None or not len(counts):
        return counts
    names, owner = np.unique(np.asarray(clusters, dtype=object).astype(str), return_inverse=True)
    sums = np.zeros((names.size, counts.shape[1]), dtype=np.int64)
    np.add.at(sums, owner, counts)
    return sums


def _distinct(counts: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct rows, in one order, and how many samples have each; one without anything in it says nothing."""
    given = counts[counts.any(axis=-1)] if counts.size else counts.reshape(0, 0)
    rows, alike = np.unique(given, axis=0, return_counts=True)
    return rows, alike.astype(np.int64)


def _resampled(statistic: Statistic, rows: IntArray, alike: IntArray, resamples: int, seed: int) -> FloatArray:
    """The statistic of each resample: float64[resamples]."""
    random = np.random.default_rng(seed)
    # Whole numbers below 2^53 are exact as floats, whatever the order of their sum, and BLAS is ten times as fast
    weighed = rows.astype(np.float64)
    step = max(1, CELLS_IN_MEMORY // max(rows.shape))
    found = []
    for start in range(0, resamples, step):
        drawn = random.multinomial(alike.sum(), alike / alike.sum(), size=min(step, resamples - start))
        found.append(statistic((drawn.astype(np.float64) @ weighed).astype(np.int64)))
    return np.concatenate(found)


SHAPE = (len(confusion.LABELS), len(confusion.OUTCOMES))
CELLS = len(confusion.LABELS) * len(confusion.OUTCOMES)
RESAMPLES = 10_000  # methods, section 7
FORMS = tuple(product(confusion.CONVENTIONS, confusion.MEASURES))
Form = tuple[str, str]


@dataclass(frozen=True)
class Resampled:
    """A confusion table, its resamples by question, and each measure's acceleration (None: nothing ever changes).

    table: int64[3, 5], labels by `OUTCOMES`; drawn: int64[resamples, 3, 5]; accelerations: by convention and measure.
    """

    table: IntArray
    drawn: IntArray
    accelerations: dict[Form, float | None]

    def interval(self, convention: str, measure: str, *, confidence: float = 0.95) -> Interval:
        """The measure under the convention, and its BCa interval; degenerate as `table_interval`."""
        return confusion.resampled_interval(
            confusion.MEASURES[measure],
            confusion.under_convention(self.table, convention),
            partial(confusion.under_convention, self.drawn, convention),
            self.accelerations[convention, measure],
            confidence,
        )


def resample_questions(tables: ArrayLike, counts: ArrayLike, *, seed: int, resamples: int = RESAMPLES) -> Resampled:
    """Bootstraps questions that are given by their confusion tables, and how many have each.

    tables: int64[k, 3, 4 or 5], a question's answers by label and outcome; counts: int64[k], positive. A multinomial
    resample of the counts is a resample of the questions. The order of the tables changes nothing. Methods, section 7;
    `scipy.stats.bootstrap(method="BCa")` over questions is the reference.
    """
    cells, rows = _sorted_tables(np.asarray(tables, dtype=np.int64), np.asarray(counts, dtype=np.int64))
    total = (cells * rows[:, None]).sum(axis=0)
    random = np.random.default_rng(seed)
    drawn = np.empty((resamples, CELLS), dtype=np.int64)
    step = max(1, CELLS_IN_MEMORY // rows.size)
    for start in range(0, resamples, step):
        part = slice(start, min(start + step, resamples))
        drawn[part] = _weigh(random.multinomial(rows.sum(), rows / rows.sum(), size=part.stop - part.start), cells)
    table = total.reshape(SHAPE)
    accelerations = {form: _acceleration(form, table, cells.reshape(-1, *SHAPE), rows) for form in FORMS}
    return Resampled(table, drawn.reshape(-1, *SHAPE), accelerations)


def _sorted_tables(tables: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct tables as rows of `CELLS` cells, in one order, and how many questions have each."""
    wide = np.zeros((len(tables), *SHAPE), dtype=np.int64)
    wide[..., : tables.shape[-1]] = tables
    cells, place = np.unique(wide.reshape(-1, CELLS), axis=0, return_inverse=True)
    rows = np.bincount(place.ravel(), weights=counts, minlength=len(cells)).astype(np.int64)
    return cells, rows


def _weigh(weights: IntArray, cells: IntArray) -> IntArray:
    """Tables weighted and summed: int64[resamples, CELLS] of weights int64[resamples, k], cells int64[k, CELLS]."""
    # Whole numbers below 2^53 are exact as floats, whatever the order of their sum, and BLAS is ten times as fast
    return (weights.astype(np.float64) @ cells.astype(np.float64)).astype(np.int64)


def _changes(form: Form, table: IntArray, tables: IntArray) -> FloatArray:
    """By how much the measure changes where a question of each table is left out: float64[k]."""
    convention, name = form
    measure: confusion.Measure = confusion.MEASURES[name]
    changes: FloatArray = measure(confusion.under_convention(table, convention)) - measure(
        confusion.under_convention(table - tables, convention)
    )
    return changes


def _acceleration(form: Form, table: IntArray, tables: IntArray, counts: IntArray) -> float | None:
    """The acceleration of a measure by leaving out questions; None where none of them changes it, or one undoes it."""
    if counts.sum() < 2:
        return None
    changes = _changes(form, table, tables)
    influence = changes - np.average(changes, weights=counts)
    return acceleration_of(influence, counts) if np.isfinite(influence).all() and influence.any() else None
