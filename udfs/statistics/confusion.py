"""Agreement of scores with human labels: matches, confusion tables, their measures, token overlap."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from untold.udfs.statistics.intervals import SAME, FloatArray, IntArray, Interval, acceleration_of, bca_shares

LABELS = ("Incorrect", "Partially correct", "Correct")
UNDEFINED = "undefined"
PREDICTIONS = (*LABELS, UNDEFINED)
FAILED = "failed"  # a score that could not be had: nothing is known of what it would say
OUTCOMES = (*PREDICTIONS, FAILED)
# An undefined score and a failed one: labels of their own that match none; the score 0 and left out; both the score 0,
# as in the published code
CONVENTIONS = ("mismatch", "zero", "published")
OVERLAP_FIELDS = (("sample_id", pa.string()), ("query", pa.string()), ("label", pa.string()), ("overlap", pa.float64()))
WORD = re.compile(r"\w+")

Measure = Callable[[IntArray], FloatArray]


def predict_label(score: float | None) -> str:
    """What a score says of a response: Incorrect for 0, Correct for 1, Partially correct between, `undefined` for None.

    Dejl et al. 2025; methods, section 6.

    >>> [predict_label(score) for score in (0.0, 0.5, 1.0, None)]
    ['Incorrect', 'Partially correct', 'Correct', 'undefined']
    """
    if score is None:
        return UNDEFINED
    return LABELS[0] if score == 0 else LABELS[2] if score == 1 else LABELS[1]


def match_label(score: float | None, label: str) -> bool:
    """Whether a score agrees with a label of `LABELS`; an undefined score agrees with none.

    Dejl et al. 2025, match(S, l) of LMR_WC; methods, section 6. Raises ValueError for another label.
    """
    if label not in LABELS:
        raise ValueError(f"label {label!r} is none of {', '.join(LABELS)}")
    return predict_label(score) == label


def under_convention(confusion: ArrayLike, convention: str) -> IntArray:
    """The confusion table under a convention of `CONVENTIONS`, int64[..., 3, 4], labels by `PREDICTIONS`.

    confusion: int64[..., 3, 4 or 5], labels by `OUTCOMES`. `zero` and `published` count undefined scores as predicted
    Incorrect; failed ones are undefined, and under `zero` in no table. Methods, section 6.
    """
    given = np.array(confusion, dtype=np.int64)
    table, failed = given[..., : len(PREDICTIONS)].copy(), given[..., len(PREDICTIONS) :].sum(axis=-1)
    if convention != "zero":
        table[..., -1] += failed
    if convention != "mismatch":
        table[..., 0] += table[..., -1]
        table[..., -1] = 0
    return table


def kappa(confusion: IntArray) -> FloatArray:
    """Cohen's kappa over all predictions: float64[...], NaN where agreement by chance is certain or there are no rows.

    confusion: int64[..., k, k or more], as `under_convention` gives it for three labels; predictions come in the order
    of the labels, and what follows them is no label and agrees with none.
    """
    rows = confusion.sum(axis=(-2, -1))
    agreed = _hits(confusion).sum(axis=-1)
    chance = (confusion.sum(axis=-1) * _predicted(confusion)).sum(axis=-1)
    return _ratio(agreed * rows - chance, rows * rows - chance)


def macro_f1(confusion: IntArray) -> FloatArray:
    """The mean F1 of the labels: float64[...]. A label that neither occurs nor is predicted is left out.

    confusion: as `kappa` takes it. NaN without rows.
    """
    return _mean_of_known(_ratio(2 * _hits(confusion), confusion.sum(axis=-1) + _predicted(confusion)))


def balanced_accuracy(confusion: IntArray) -> FloatArray:
    """The mean recall of the labels: float64[...]. A label that does not occur is left out.

    confusion: as `kappa` takes it. NaN without rows.
    """
    return _mean_of_known(_ratio(_hits(confusion), confusion.sum(axis=-1)))


def accuracy(confusion: IntArray) -> FloatArray:
    """The share of rows whose prediction is their label: float64[...], NaN without rows.

    confusion: as `kappa` takes it.
    """
    return _ratio(_hits(confusion).sum(axis=-1), confusion.sum(axis=(-2, -1)))


MEASURES: dict[str, Measure] = {"kappa": kappa, "macro_f1": macro_f1, "balanced_accuracy": balanced_accuracy}


def table_interval(
    measure: Measure, confusion: ArrayLike, *, seed: int, confidence: float = 0.95, resamples: int = 10_000
) -> Interval:
    """A measure of a confusion table, and its BCa bootstrap interval.

    confusion: int64[3, 4]. Rows are resampled as multinomial counts of the cells, and the jackknife leaves out one row
    of each cell in turn, as often as the cell has rows, so that no cost grows with the number of rows. Resamples in
    which the measure is undefined are left out. `mean` is the measure, None where it is undefined; the limits are None
    where every row is in one cell, or leaving a row out changes nothing or makes the measure undefined.

    Methods, section 7; `scipy.stats.bootstrap(method="BCa", paired=True)` over labels and predictions is the reference.
    """
    table = np.asarray(confusion, dtype=np.int64)
    acceleration = None if np.isnan(measure(table)) else _table_acceleration(measure, table)

    def draw() -> IntArray:
        drawn = np.random.default_rng(seed).multinomial(table.sum(), table.ravel() / table.sum(), size=resamples)
        return drawn.reshape(-1, *table.shape)

    return resampled_interval(measure, table, draw, acceleration, confidence)


def resampled_interval(
    measure: Measure, table: IntArray, draw: Callable[[], IntArray], acceleration: float | None, confidence: float
) -> Interval:
    """A measure of a confusion table with its BCa interval, from resampled tables and the acceleration.

    table: int64[3, 4]; `draw` gives int64[resamples, 3, 4], and is called where an acceleration is known.
    """
    observed = float(measure(table))
    if np.isnan(observed):
        return Interval(None, None, None)
    if acceleration is None:
        return Interval(observed, None, None)
    values = measure(draw())
    shifts = values[~np.isnan(values)] - observed
    shifts[np.abs(shifts) <= SAME] = 0.0
    shares = bca_shares(shifts, acceleration, confidence)
    if shares is None:
        return Interval(observed, None, None)
    low, high = (observed + float(limit) for limit in np.quantile(shifts, shares))
    return Interval(observed, low, high)


def _table_acceleration(measure: Measure, table: IntArray) -> float | None:
    """The acceleration from leaving out one row of each cell; None where that changes nothing."""
    cells = np.flatnonzero(table)
    if cells.size < 2:
        return None
    rows = table.ravel()[cells]
    left_out = measure(table - np.eye(table.size, dtype=np.int64)[cells].reshape(-1, *table.shape))
    influence = np.average(left_out, weights=rows) - left_out
    return acceleration_of(influence, rows) if (np.abs(influence) > SAME).any() else None


def _hits(confusion: IntArray) -> IntArray:
    """The cells in which prediction and label are one: int64[..., labels]."""
    return cast(IntArray, np.diagonal(confusion, axis1=-2, axis2=-1))


def _predicted(confusion: IntArray) -> IntArray:
    """How often each label is predicted: int64[..., labels]."""
    return cast(IntArray, confusion.sum(axis=-2)[..., : confusion.shape[-2]])


def _ratio(above: IntArray | FloatArray, below: IntArray) -> FloatArray:
    """above / below, NaN where `below` is 0."""
    shares: FloatArray = np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below != 0)
    return shares


def _mean_of_known(values: FloatArray) -> FloatArray:
    """The mean over the last axis without NaN; NaN where all are."""
    known = ~np.isnan(values)
    return _ratio(np.where(known, values, 0.0).sum(axis=-1), known.sum(axis=-1))


def overlap_score(response: str, contexts: Sequence[str]) -> float | None:
    """The share of contexts that a response covers by its words alone: a baseline. None without contexts.

    A context is covered where at least half of its distinct lower-cased `\\w+` tokens occur in the response.
    """
    said = set(WORD.findall(response.lower()))
    words = [set(WORD.findall(context.lower())) for context in contexts]
    return sum(2 * len(known & said) >= len(known) for known in words) / len(words) if words else None


def overlap_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of samples -> sample_id, query, label string, overlap double: `overlap_score`, null for unusable rows.

    Columns read: sample_id, query, response, contexts list<struct<id, text>>, label.
    """
    for batch in batches:
        yield pa.RecordBatch.from_pylist([_overlap_row(row) for row in batch.to_pylist()], pa.schema(OVERLAP_FIELDS))


def _overlap_row(row: dict[str, Any]) -> dict[str, Any]:
    response, contexts = row["response"], row["contexts"]
    usable = response is not None and contexts is not None
    score = overlap_score(response, [context["text"] for context in contexts]) if usable else None
    return {"sample_id": row["sample_id"], "query": row["query"], "label": row["label"], "overlap": score}
