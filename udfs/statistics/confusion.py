"""Agreement of scores with human labels: matches, measures of confusion tables, token overlap."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from untold.udfs.statistics.intervals import FloatArray, IntArray

LABELS = ("Incorrect", "Partially correct", "Correct")
UNDEFINED = "undefined"
PREDICTIONS = (*LABELS, UNDEFINED)
FAILED = "failed"  # the score is unknown
OUTCOMES = (*PREDICTIONS, FAILED)
# mismatch: undefined and failed scores match no label; zero: undefined scores are 0 and failed ones are left out;
# published: both are 0, as in the published code
CONVENTIONS = ("mismatch", "zero", "published")
WORD = re.compile(r"\w+")

Measure = Callable[[IntArray], FloatArray]


def predict_label(score: float | None) -> str:
    """Return Incorrect for a score of 0, Correct for 1, Partially correct in between, `undefined` for None.

    Dejl et al. 2025; methods, section 6.

    >>> [predict_label(score) for score in (0.0, 0.5, 1.0, None)]
    ['Incorrect', 'Partially correct', 'Correct', 'undefined']
    """
    if score is None:
        return UNDEFINED
    return LABELS[0] if score == 0 else LABELS[2] if score == 1 else LABELS[1]


def match_label(score: float | None, label: str) -> bool:
    """Return True if a score agrees with a label of `LABELS`. An undefined score agrees with none.

    Dejl et al. 2025, match(S, l) of LMR_WC; methods, section 6. Raises ValueError for another label.
    """
    if label not in LABELS:
        raise ValueError(f"label {label!r} is none of {', '.join(LABELS)}")
    return predict_label(score) == label


def under_convention(confusion: ArrayLike, convention: str) -> IntArray:
    """Return the confusion table under a convention of `CONVENTIONS`, int64[..., 3, 4], a column per `PREDICTIONS`.

    confusion: int64[..., 3, 4 or 5], a column per `OUTCOMES`. `zero` and `published` count undefined scores as
    predicted Incorrect. Failed scores count as undefined, but `zero` leaves them out. Methods, section 6.
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
    """Return Cohen's kappa: float64[...], NaN if agreement by chance is certain or there are no rows.

    confusion: int64[..., k, k or more], for three labels the result of `under_convention`. The columns have the order
    of the labels. Further columns are predictions that agree with no label.
    """
    rows = confusion.sum(axis=(-2, -1))
    agreed = _hits(confusion).sum(axis=-1)
    chance = (confusion.sum(axis=-1) * _predicted(confusion)).sum(axis=-1)
    return ratio(agreed * rows - chance, rows * rows - chance)


def macro_f1(confusion: IntArray) -> FloatArray:
    """Return the mean F1 of the labels: float64[...], NaN without rows. confusion: as `kappa`.

    A label that neither occurs nor is predicted is left out.
    """
    return _mean_of_known(ratio(2 * _hits(confusion), confusion.sum(axis=-1) + _predicted(confusion)))


def balanced_accuracy(confusion: IntArray) -> FloatArray:
    """Return the mean recall of the labels: float64[...], NaN without rows. confusion: as `kappa`.

    A label that does not occur is left out.
    """
    return _mean_of_known(ratio(_hits(confusion), confusion.sum(axis=-1)))


def accuracy(confusion: IntArray) -> FloatArray:
    """Return the share of rows with a correct prediction: float64[...], NaN without rows. confusion: as `kappa`."""
    return ratio(_hits(confusion).sum(axis=-1), confusion.sum(axis=(-2, -1)))


MEASURES: dict[str, Measure] = {"kappa": kappa, "macro_f1": macro_f1, "balanced_accuracy": balanced_accuracy}


def _hits(confusion: IntArray) -> IntArray:
    """Return the cells in which the prediction is the label: int64[..., labels]."""
    return cast(IntArray, np.diagonal(confusion, axis1=-2, axis2=-1))


def _predicted(confusion: IntArray) -> IntArray:
    """Count the predictions of each label: int64[..., labels]."""
    return cast(IntArray, confusion.sum(axis=-2)[..., : confusion.shape[-2]])


def ratio(above: IntArray | FloatArray, below: IntArray | FloatArray) -> FloatArray:
    """Return above / below, NaN if `below` is 0."""
    shares: FloatArray = np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below != 0)
    return shares


def _mean_of_known(values: FloatArray) -> FloatArray:
    """Return the mean over the last axis without NaN, NaN if all are NaN."""
    known = ~np.isnan(values)
    return ratio(np.where(known, values, 0.0).sum(axis=-1), known.sum(axis=-1))


def overlap_score(response: str, contexts: Sequence[str]) -> float | None:
    """Return the share of contexts that the words of a response cover, a baseline, or None without contexts.

    A context is covered if at least half of its distinct lower-cased `\\w+` tokens occur in the response.
    """
    said = set(WORD.findall(response.lower()))
    words = [set(WORD.findall(context.lower())) for context in contexts]
    return sum(2 * len(known & said) >= len(known) for known in words) / len(words) if words else None
