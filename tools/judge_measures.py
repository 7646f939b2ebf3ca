"""Measures of a judge on labelled pairs, and their bootstrap intervals over documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Labelled:
    """Pairs of texts and facts, whether people found the fact in the text, and the document of each pair."""

    texts: Sequence[str]
    facts: Sequence[str]
    holds: Flags
    documents: Sequence[str]


def area(scores: Numbers, holds: Flags) -> float:
    """Return the area under the ROC curve, NaN with one class."""
    positive = int(holds.sum())
    if positive in (0, len(holds)):
        return float("nan")
    ranks = rankdata(scores)[holds].sum()
    return float((ranks - positive * (positive + 1) / 2) / (positive * (len(holds) - positive)))


def calibration_error(probabilities: Numbers, holds: Flags, bins: int = 10) -> float:
    """Return the expected calibration error over bins of equal width (Naeini et al. 2015)."""
    places = np.minimum((probabilities * bins).astype(int), bins - 1)
    gaps = [abs(probabilities[places == one].sum() - holds[places == one].sum()) for one in range(bins)]
    return float(sum(gaps) / len(holds))


def cascade_threshold(probabilities: Numbers, holds: Flags, most_wrong: float = 0.02) -> tuple[float, float]:
    """Return the lowest threshold with at most a share `most_wrong` of wrong pairs, and the share of pairs above it.

    The first column of `probabilities` [pairs, 3] is entailment. The threshold applies to the largest probability of a
    pair. A pair is wrong if entailment has this probability and the fact is not stated, or if another class has it and
    the fact is stated. The threshold is NaN if no pair is above it.
    """
    certainty = probabilities.max(axis=1)
    wrong = (probabilities.argmax(axis=1) == 0) != holds
    order = np.argsort(-certainty, kind="stable")
    allowed = np.flatnonzero(np.cumsum(wrong[order]) <= most_wrong * np.arange(1, len(order) + 1))
    if not len(allowed):
        return float("nan"), 0.0
    return float(certainty[order[allowed[-1]]]), float((allowed[-1] + 1) / len(order))


def interval(
    measure: Callable[[NDArray[np.int64]], float], documents: Sequence[str], *, resamples: int = 1000, seed: int = 17
) -> tuple[float, float]:
    """Return the 95 % percentile interval of a measure of rows, by resampling documents.

    `measure` accepts the indices of the rows of a resample.
    """
    random = np.random.default_rng(seed)
    rows_of: dict[str, list[int]] = {}
    for row, document in enumerate(documents):
        rows_of.setdefault(document, []).append(row)
    groups = [np.array(rows) for rows in rows_of.values()]
    draws = random.integers(len(groups), size=(resamples, len(groups)))
    values = [measure(np.concatenate([groups[one] for one in draw])) for draw in draws]
    low, high = np.nanpercentile(values, (2.5, 97.5))
    return float(low), float(high)
