"""Agreement on items and verdicts, and between two variants of a metric: kappa, alpha, F1, rankings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from untold.udfs.facts.claim_verdicts import CONTRADICTED, NOT_SUPPORTED, SUPPORTED
from untold.udfs.statistics.confusion import accuracy, kappa, macro_f1, resampled_interval, table_interval
from untold.udfs.statistics.intervals import (
    FloatArray,
    IntArray,
    Interval,
    acceleration_of,
    bca_interval,
    clustered_bca_interval,
    wilson_interval,
)
from untold.udfs.statistics.question_resampling import total_interval

MEASURES = ("precision", "recall", "f1")
AVERAGES = ("macro", "micro")


@dataclass(frozen=True)
class Average:
    """A measure over samples with its interval: over n samples that have it (macro), or n items (micro)."""

    interval: Interval
    n: int
    excluded: int  # samples, or items, of which it is undefined or nothing is known


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


VERDICTS = (SUPPORTED, CONTRADICTED, NOT_SUPPORTED)
VERDICT_MEASURES = {"accuracy": accuracy, "kappa": kappa, "macro_f1": macro_f1}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class VerdictLabels:
    """The labels that claims have, of `VERDICTS`, in their order.

    Where none is `contradicted`, people did not tell it from `not_supported`, and a verdict of it is one of these.
    """

    names: tuple[str, ...]

    def place_of(self, verdict: str) -> int:
        """The column of a verdict in a confusion table; behind all labels where no claim has it.

        >>> both = VerdictLabels(("supported", "not_supported"))
        >>> [both.place_of(one) for one in VERDICTS], VerdictLabels(("supported",)).place_of("not_supported")
        ([0, 1, 1], 1)
        """
        if verdict == CONTRADICTED and CONTRADICTED not in self.names:
            verdict = NOT_SUPPORTED
        return self.names.index(verdict) if verdict in self.names else len(self.names)

    def table(self, rows: Iterable[Row]) -> IntArray:
        """int64[k, k + 1], claims by label and verdict; rows: label, verdict (null ones are passed over), count."""
        table = np.zeros((len(self.names), len(self.names) + 1), dtype=np.int64)
        for row in rows:
            if row["verdict"] is not None:
                table[self.names.index(row["label"]), self.place_of(row["verdict"])] += row["count"]
        return table


def labels_of(rows: Iterable[Row]) -> VerdictLabels:
    """The labels of rows of label and count."""
    given = {row["label"] for row in rows if row["count"]}
    return VerdictLabels(tuple(name for name in VERDICTS if name in given))


def constant_label(rows: Iterable[Row]) -> str:
    """The most frequent label of rows of label and count, the first of `VERDICTS` of equals."""
    counts = dict.fromkeys(VERDICTS, 0)
    for row in rows:
        counts[row["label"]] += row["count"]
    return max(VERDICTS, key=lambda name: counts[name])


def verdict_intervals(rows: Sequence[Row], labels: VerdictLabels, *, seed: int) -> dict[str, Interval]:
    """By name of `VERDICT_MEASURES`, over all claims. rows: unit, label, verdict, count.

    A unit is a cluster of claims (those of one answer), resampled as a whole; where it is None claims are resampled one
    by one, and the interval of accuracy is Wilson's. Methods, sections 6 and 7.
    """
    if any(row["unit"] is None for row in rows) or not rows:
        table = labels.table(rows)
        found = {name: table_interval(measure, table, seed=seed) for name, measure in VERDICT_MEASURES.items()}
        return {**found, "accuracy": wilson_interval(int(np.trace(table)), int(table.sum()))}
    by_unit: dict[str, list[Row]] = {}
    for row in rows:
        by_unit.setdefault(row["unit"], []).append(row)
    tables = np.stack([labels.table(own) for own in by_unit.values()])
    shape = tables.shape[1:]
    found = {}
    for name, measure in VERDICT_MEASURES.items():

        def of_counts(totals: IntArray, measure: Any = measure) -> FloatArray:
            values: FloatArray = measure(totals.reshape(*totals.shape[:-1], *shape))
            return values

        found[name] = total_interval(of_counts, tables.reshape(len(tables), -1), seed=seed)
    return found


def supported_share(rows: Sequence[Row], column: str, *, seed: int) -> tuple[Interval, int]:
    """The share of claims whose `column` (label or verdict) is supported, pooled, and how many have one.

    rows and units as `verdict_intervals`. Of labels it is the published precision of human labels, S / (S + NS).
    """
    sums: dict[str | None, list[int]] = {}
    for row in rows:
        if row[column] is not None:
            counts = sums.setdefault(row["unit"], [0, 0])
            counts[0] += row["count"] * (row[column] == SUPPORTED)
            counts[1] += row["count"]
    size = sum(own for _, own in sums.values())
    if None in sums:
        supported = sum(one for one, _ in sums.values())
        return wilson_interval(supported, size), size
    above, below = ([counts[place] for counts in sums.values()] for place in (0, 1))
    return clustered_bca_interval(above, below, seed=seed), size


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
