"""What people say of items against what a metric says of them: majorities, precision, recall, F1, kappa and alpha."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np
from numpy.typing import ArrayLike

from untold.udfs.statistics.intervals import IntArray, Interval, bca_interval, clustered_bca_interval

MEASURES = ("precision", "recall", "f1")
AVERAGES = ("macro", "micro")


@dataclass(frozen=True)
class Average:
    """A measure over samples with its interval: over n samples that have it (macro), or n items (micro)."""

    interval: Interval
    n: int
    left_out: int  # samples, or items, of which it is undefined or nothing is known


def votes(labels: Sequence[str | None] | None, covered: Collection[str]) -> tuple[int, int]:
    """How many annotators found an item covered, and how many did not. A null label is of nobody.

    >>> votes(["1", "0", None, "1"], {"1"})
    (2, 1)
    """
    given = [label in covered for label in labels or () if label is not None]
    return sum(given), len(given) - sum(given)


def fleiss_kappa(table: ArrayLike) -> float | None:
    """Fleiss' kappa of annotators; None where no item has two labels, or agreement by chance is certain.

    table: int[items, categories], how many annotators chose each. Items with fewer than two labels say nothing of
    agreement and are left out; of the others each may have its own number of annotators, whose agreement is then the
    share of its pairs that agree. Fleiss 1971; `statsmodels.stats.inter_rater.fleiss_kappa`, which takes one number of
    annotators alone, is the reference.
    """
    counts: IntArray = np.atleast_2d(np.asarray(table, dtype=np.int64))
    counts = counts[counts.sum(axis=1) >= 2]
    if not len(counts):
        return None
    raters = counts.sum(axis=1)
    agreed = ((counts * counts).sum(axis=1) - raters) / (raters * (raters - 1))
    shares = counts.sum(axis=0) / raters.sum()
    chance = float((shares * shares).sum())
    # One category alone: 1 exactly, as its share is
    return None if chance == 1 else (fsum(agreed) / len(counts) - chance) / (1 - chance)


def krippendorff_alpha(table: ArrayLike) -> float | None:
    """Krippendorff's alpha of annotators, of nominal labels; None where no item has two labels, or all are equal.

    table: int[items, categories], how many annotators chose each; items may differ in how many labelled them, and those
    with fewer than two are left out. An item counts by its labels, where Fleiss' kappa counts all items alike.
    Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability"; the package `krippendorff` is the reference.
    """
    counts: IntArray = np.atleast_2d(np.asarray(table, dtype=np.int64))
    counts = counts[counts.sum(axis=1) >= 2]
    if not len(counts):
        return None
    raters, labels = counts.sum(axis=1), counts.sum(axis=0)
    total = int(labels.sum())
    by_chance = total * total - int((labels * labels).sum())
    if not by_chance:
        return None
    unequal = (raters * raters - (counts * counts).sum(axis=1)) / (raters - 1)
    return 1 - (total - 1) * fsum(unequal) / by_chance


def item_averages(
    hits: ArrayLike, wrong: ArrayLike, missed: ArrayLike, clusters: Sequence[str] | None = None, *, seed: int
) -> dict[tuple[str, str], Average]:
    """By measure and average: precision, recall and F1 of covered items, macro over samples and micro over items.

    hits, wrong, missed: int[samples], items that metric and people call covered, the metric alone, people alone.
    precision = hits / (hits + wrong), recall = hits / (hits + missed), F1 = 2 hits / (2 hits + wrong + missed); a
    sample where one is 0 / 0 is left out of its macro average. Intervals resample samples, or with `clusters` (a name
    a sample) whole clusters; micro averages are ratios of sums over these. Methods, sections 6 and 7.
    """
    tp, fp, fn = (np.asarray(each, dtype=np.int64) for each in (hits, wrong, missed))
    parts = {"precision": (tp, tp + fp), "recall": (tp, tp + fn), "f1": (2 * tp, 2 * tp + fp + fn)}
    found = {}
    for name, (above, below) in parts.items():
        found[name, "macro"] = _macro(above, below, clusters, seed)
        found[name, "micro"] = _micro(above, below, clusters, seed)
    return found


def _macro(above: IntArray, below: IntArray, clusters: Sequence[str] | None, seed: int) -> Average:
    known = below > 0
    shares = above[known] / below[known]
    if clusters is None:
        interval = bca_interval(shares, np.ones(shares.size, dtype=np.int64), seed=seed)
    else:
        owner, number = _owners(clusters)
        owner = owner[known]
        sums = [fsum(shares[owner == one]) for one in range(number)]
        interval = clustered_bca_interval(sums, np.bincount(owner, minlength=number), seed=seed)
    return Average(interval, int(known.sum()), int((~known).sum()))


def _micro(above: IntArray, below: IntArray, clusters: Sequence[str] | None, seed: int) -> Average:
    """A sample is a cluster of as many items as its denominator counts, F1's denominator included."""
    if clusters is not None:
        owner, number = _owners(clusters)
        above, below = (np.bincount(owner, weights=each, minlength=number).astype(np.int64) for each in (above, below))
    return Average(clustered_bca_interval(above, below, seed=seed), int(below.sum()), 0)


def _owners(clusters: Sequence[str]) -> tuple[IntArray, int]:
    """int64[samples], the cluster of each as a number from 0, and how many clusters there are."""
    names, owner = np.unique(np.asarray(clusters, dtype=object).astype(str), return_inverse=True)
    return owner.astype(np.int64), len(names)
