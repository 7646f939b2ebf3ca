"""Agreement on items and verdicts: kappa, alpha, F1, rankings, and tiers of the methods that cover a reference.

The tiers are of LongRecall; methods, section 6.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np
from numpy.typing import ArrayLike

from untold.udfs.statistics.confusion import kappa, ratio
from untold.udfs.statistics.intervals import (
    CONFIDENCE,
    NOTHING,
    FloatArray,
    IntArray,
    Interval,
    acceleration_of,
    bca_limits,
    draw_counts,
    mean_interval,
    number_names,
)

MEASURES = ("precision", "recall", "f1")
AVERAGES = ("macro", "micro")


@dataclass(frozen=True)
class Average:
    """A measure with its interval, over n samples (macro) or n items (micro)."""

    interval: Interval
    n: int
    excluded: int  # samples or items with an undefined or unknown measure


def votes(labels: Sequence[str | None] | None, covered: Collection[str]) -> tuple[int, int]:
    """Count the annotators that call an item covered and those that do not. A null label does not count.

    >>> votes(["1", "0", None, "1"], {"1"})
    (2, 1)
    """
    given = [label in covered for label in labels or () if label is not None]
    return sum(given), len(given) - sum(given)


def fleiss_kappa(table: ArrayLike) -> float | None:
    """Return Fleiss' kappa of annotators, or None if no item has two labels or agreement by chance is certain.

    table: int[items, categories], the number of annotators per category. Items with fewer than two labels are left out.
    Items may have different numbers of annotators; their agreement is the share of agreeing pairs. Fleiss 1971;
    `statsmodels.stats.inter_rater.fleiss_kappa`, which accepts only one number of annotators, is the reference.
    """
    counts: IntArray = np.atleast_2d(np.asarray(table, dtype=np.int64))
    counts = counts[counts.sum(axis=1) >= 2]
    if not len(counts):
        return None
    raters = counts.sum(axis=1)
    agreed = ((counts * counts).sum(axis=1) - raters) / (raters * (raters - 1))
    shares = counts.sum(axis=0) / raters.sum()
    chance = float((shares * shares).sum())
    # With one category the share is exactly 1
    return None if chance == 1 else (fsum(agreed) / len(counts) - chance) / (1 - chance)


def krippendorff_alpha(table: ArrayLike, items: ArrayLike = 1) -> float | None:
    """Return Krippendorff's alpha of nominal labels, or None if no item has two labels or all labels are equal.

    table: as `fleiss_kappa`. An item has the weight of its labels, while items have equal weights in Fleiss' kappa.
    items: the number of items with the labels of each row, int64[rows].
    Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability"; the package `krippendorff` is the reference.
    """
    counts: IntArray = np.atleast_2d(np.asarray(table, dtype=np.int64))
    numbers = np.broadcast_to(np.asarray(items, dtype=np.int64), len(counts))
    are_comparable = counts.sum(axis=1) >= 2
    counts, numbers = counts[are_comparable], numbers[are_comparable]
    if not len(counts):
        return None
    raters, labels = counts.sum(axis=1), (counts * numbers[:, None]).sum(axis=0)
    total = int(labels.sum())
    by_chance = total * total - int((labels * labels).sum())
    if not by_chance:
        return None
    unequal = (raters * raters - (counts * counts).sum(axis=1)) / (raters - 1)
    return 1 - (total - 1) * fsum(unequal * numbers) / by_chance


def auc(totals: IntArray) -> FloatArray:
    """Return the area under the ROC curve: float64[...], NaN without a positive or without a negative item.

    totals: int64[..., 2k], sums of the rows of `score_counts`. The area is the share of pairs of a positive and a
    negative item in which the positive item has the greater score. Ties count half. This is the U of Mann and Whitney
    over all pairs.
    """
    positives, negatives = np.split(totals, 2, axis=-1)
    beaten = np.cumsum(negatives, axis=-1) - negatives / 2
    pairs = positives.sum(axis=-1) * negatives.sum(axis=-1)
    return ratio((positives * beaten).sum(axis=-1), pairs)


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


def item_averages(
    hits: ArrayLike, wrong: ArrayLike, missed: ArrayLike, clusters: Sequence[str] | None = None, *, seed: int
) -> dict[tuple[str, str], Average]:
    """Return precision, recall and F1 of covered items by measure and average: macro over samples, micro over items.

    hits, wrong, missed: int[samples], the items that metric and people call covered, only the metric, only people.
    precision = hits / (hits + wrong), recall = hits / (hits + missed), F1 = 2 hits / (2 hits + wrong + missed). The
    macro average leaves out a sample with 0 / 0. Intervals resample samples or, with `clusters` (a name per sample),
    whole clusters. Micro averages are ratios of sums over these. Methods, sections 6 and 7.
    """
    tp, fp, fn = (np.asarray(each, dtype=np.int64) for each in (hits, wrong, missed))
    parts = {"precision": (tp, tp + fp), "recall": (tp, tp + fn), "f1": (2 * tp, 2 * tp + fp + fn)}
    found = {}
    for name, (above, below) in parts.items():
        known = (below > 0).astype(np.int64)
        shares = np.divide(above, below, out=np.zeros(known.size), where=below > 0)
        macro = mean_interval(shares, known, clusters, seed=seed)
        found[name, "macro"] = Average(macro, int(known.sum()), int((1 - known).sum()))
        # A sample is a cluster of as many items as its denominator counts, also for F1
        found[name, "micro"] = Average(mean_interval(above, below, clusters, seed=seed), int(below.sum()), 0)
    return found


# Resamples of whole queries by the measures of two forms
RESAMPLES = 2_000
# 95 % of a normal distribution lie within so many standard deviations of its mean
SPREAD = 1.959963984540054


def kappa_by_query(tables: ArrayLike, *, seed: int) -> Interval:
    """Return Cohen's kappa of verdicts with its BCa interval over queries. Both limits are kappa if no query disagrees.

    tables: int64[queries, k, k or more], the confusion table of each query, as `kappa` accepts it.
    """
    cells = np.asarray(tables, dtype=np.int64)
    total, ones = cells.sum(axis=0), np.ones(len(cells), dtype=np.int64)
    observed = float(kappa(total))
    # A query without which kappa is undefined counts as a query without influence
    changes = np.nan_to_num(observed - kappa(total - cells))
    acceleration = acceleration_of(changes - changes.mean(), ones) if len(cells) else None
    if acceleration is None and not np.isnan(observed):
        return Interval(observed, observed, observed)

    def draw() -> FloatArray:
        weights = np.concatenate([*draw_counts(ones, RESAMPLES, np.random.default_rng(seed))])
        return kappa(np.tensordot(weights, cells, axes=1)) - observed

    return bca_limits(observed, acceleration, draw)


def limits_of_agreement(
    sums: ArrayLike, squares: ArrayLike, sizes: ArrayLike, *, seed: int, resamples: int = RESAMPLES
) -> tuple[Interval, Interval]:
    """Return the lower and the upper limit of 95 % of differences: mean ± 1.96 standard deviations.

    sums, squares: float64[queries], of the differences of a query and of their squares; sizes: int64[queries], their
    number. Each limit has the percentile interval of whole queries resampled. All are None with fewer than two
    differences. Bland and Altman 1986.
    """
    columns = np.stack([np.asarray(one, dtype=np.float64) for one in (sums, squares, sizes)], axis=1)
    if columns[:, 2].sum() < 2:
        return NOTHING, NOTHING
    total, square, count = (_with_resamples(len(columns), resamples, seed) @ columns).T
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = SPREAD * np.sqrt(np.maximum(square - total**2 / count, 0) / (count - 1))
    lower, upper = (_percentiles(total / count + sign * spread) for sign in (-1, 1))
    return lower, upper


def _with_resamples(queries: int, resamples: int, seed: int) -> FloatArray:
    """Return the weights of queries, float64[1 + resamples, queries]: the sample itself, then its resamples."""
    ones = np.ones(queries, dtype=np.int64)
    drawn = draw_counts(ones, resamples, np.random.default_rng(seed))
    weights: FloatArray = np.concatenate([ones[None], *drawn]).astype(np.float64)
    return weights


def _percentiles(values: FloatArray) -> Interval:
    """Return the first of the values with the percentile interval of the others. NaN is left out."""
    drawn = values[1:][~np.isnan(values[1:])]
    limits = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) if drawn.size else [None, None]
    low, high = (None if limit is None else float(limit) for limit in limits)
    return Interval(None if np.isnan(values[0]) else float(values[0]), low, high)


@dataclass(frozen=True)
class RankingAgreement:
    """`tau`: Kendall's tau-b of the means of systems; `changes`: share of resamples with two different best systems."""

    tau: Interval
    same_winner: bool
    changes: float


def compare_rankings(sums: ArrayLike, sizes: ArrayLike, *, seed: int) -> RankingAgreement | None:
    """Compare the rankings of systems by two measures, or return None for fewer than two systems with samples.

    sums: float64[2, queries, systems], the sum of each measure over the samples of a query and system; sizes:
    int64[queries, systems], their number. The interval is the percentile interval of whole queries resampled.
    """
    scores, counts = np.asarray(sums, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    known = counts.sum(axis=0) > 0
    scores, counts = scores[:, :, known], counts[:, known]
    if counts.shape[1] < 2:
        return None
    weights = _with_resamples(len(counts), RESAMPLES, seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Sums in another order differ in their last bits, and equal means have to tie. NaN without samples
        means = np.round(np.stack([weights @ one for one in scores]) / (weights @ counts), 12)
    # A system without samples in a resample does not win in it
    winners = np.where(np.isnan(means), -np.inf, means).argmax(axis=2)
    changed = winners[0] != winners[1]
    return RankingAgreement(_percentiles(_taus(*means)), not changed[0], float(changed[1:].mean()))


def _taus(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return Kendall's tau-b of the systems in each resample, NaN if a measure ties all of them."""
    places = np.triu_indices(first.shape[1], 1)
    one, other = (np.sign(means[:, places[0]] - means[:, places[1]]) for means in (first, second))
    one, other = np.nan_to_num(one), np.nan_to_num(other)
    return ratio((one * other).sum(axis=1), np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1)))


FULL, PARTIAL, NONE = "full", "partial", "none"
SINGLETON = "singleton:"
KINDS = ("standard", "challenging")


@dataclass(frozen=True)
class Subset:
    """The size of a study and its choice of references: in proportion to the tiers (standard), or if methods differ."""

    kind: str
    size: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.size}"


def read_subset(text: str) -> Subset:
    """Return the subset that a text names. Raises ValueError for any other text.

    >>> read_subset("challenging:300")
    Subset(kind='challenging', size=300)
    """
    kind, colon, size = text.partition(":")
    if kind not in KINDS or not colon or not size.isdecimal() or int(size) < 1:
        raise ValueError(f"{text!r} is neither standard:N nor challenging:N, N at least 1")
    return Subset(kind, int(size))


def tier_of(covered: Mapping[str, bool]) -> str:
    """Return the tier of a reference from the verdict of each method.

    >>> [tier_of(dict(zip("abc", one))) for one in ([1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 0])]
    ['full', 'partial', 'singleton:b', 'none']
    """
    calling = [name for name, says in covered.items() if says]
    if not calling:
        return NONE
    if len(calling) == len(covered):
        return FULL
    return f"{SINGLETON}{calling[0]}" if len(calling) == 1 else PARTIAL


def all_tiers(methods: Sequence[str]) -> list[str]:
    """Return every tier of the methods in the order of reports.

    >>> all_tiers(["a", "b"])
    ['full', 'partial', 'singleton:a', 'singleton:b', 'none']
    """
    return [FULL, PARTIAL, *(f"{SINGLETON}{name}" for name in methods), NONE]


def largest_remainder(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """Divide `size` in proportion to the counts: the shares rounded down, and one more for the greatest remainders.

    Equal remainders have the order of the counts. A quota is at most its count.

    >>> largest_remainder({"full": 50, "partial": 30, "none": 21}, 10)
    {'full': 5, 'partial': 3, 'none': 2}
    """
    total = sum(counts.values())
    if size >= total:
        return dict(counts)
    # Integers keep equal fractions equal
    quotas = {name: count * size // total for name, count in counts.items()}
    rest = sorted(counts, key=lambda name: -(counts[name] * size % total))[: size - sum(quotas.values())]
    return {name: quota + (name in rest) for name, quota in quotas.items()}


def quotas_of(subset: Subset, counts: Mapping[str, int], methods: Sequence[str]) -> dict[str, int]:
    """Return the number of references to draw from each tier. A tier may have fewer.

    standard: in proportion to the counts of all tiers but `none`. challenging: half partial and half singleton, with
    an odd one partial. The methods have equal numbers of singletons, and the first methods one more if these do not
    divide.

    >>> quotas_of(Subset("standard", 10), {"full": 50, "partial": 30, "singleton:a": 20, "none": 900}, ["a"])
    {'full': 5, 'partial': 3, 'singleton:a': 2}
    >>> quotas_of(Subset("challenging", 11), {}, ["a", "b"])
    {'partial': 6, 'singleton:a': 3, 'singleton:b': 2}
    """
    if subset.kind == "standard":
        return largest_remainder({name: count for name, count in counts.items() if name != NONE}, subset.size)
    alone = subset.size // 2
    each, odd = divmod(alone, len(methods)) if methods else (0, 0)
    singles = {f"{SINGLETON}{name}": each + (place < odd) for place, name in enumerate(methods)}
    return {PARTIAL: subset.size - alone, **singles}


def shortages(subset: Subset, quotas: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the tiers with too few references: their number and the quota.

    `all` means that the methods cover too few references together.

    >>> shortages(Subset("standard", 9), {"full": 4}, {"full": 4})
    {'all': (4, 9)}
    """
    if subset.kind == "standard":
        total = sum(count for name, count in counts.items() if name != NONE)
        return {"all": (total, subset.size)} if total < subset.size else {}
    return {name: (counts.get(name, 0), wanted) for name, wanted in quotas.items() if counts.get(name, 0) < wanted}
