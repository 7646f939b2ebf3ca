"""Measure the agreement of points and confusion tables with labels; methods, sections 6 and 7."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations, groupby, product
from math import fsum
from operator import itemgetter
from typing import Any

import numpy as np

from untold.jobs.study.judgements import AVERAGE, Owner, Row, Rows, whole_rows
from untold.jobs.study.meta_evaluation import PromptPairs
from untold.jobs.study.rendering import with_published
from untold.jobs.summary.score_counts import group_by
from untold.udfs.statistics import confusion
from untold.udfs.statistics.intervals import (
    FloatArray,
    IntArray,
    count_tables,
    joint_bca_interval,
    sum_by,
    table_intervals,
)
from untold.udfs.statistics.permutation import adjust_p_values, clustered_permutation_test

# Rounding to these digits makes means tie if they tie as fractions
DIGITS = 12
LMR, STRICT, LAX = "lmr", "lmr_strict", "lmr_lax"
LABEL_BASELINES = ("baseline_constant", "baseline_overlap")
# In the order of the table `meta_evaluation`
ALL_MEASURES = (LMR, STRICT, LAX, *confusion.MEASURES, *LABEL_BASELINES)
SPREAD = "lmr_spread"
Key = tuple[str | None, str | None, str, str]
"""A model, a metric, a convention and a measure."""
Values = Mapping[str, Any]
"""The columns value, ci_low, ci_high, n (units) and excluded (comparisons) of a measure."""
Points = Mapping[tuple[str, str], tuple[IntArray, IntArray]]
"""By measure and convention the points of each unit, and its comparisons that are left out.

Shapes: int64[units] each. The points of a unit without a comparison are -1.
"""
Earned = tuple[IntArray, IntArray]
"""The points of each unit, and the number of its items that earn them, 0 for a unit that does not count."""


def table_rows(
    measures: Mapping[str, confusion.Measure],
    tables: IntArray,
    clusters: Sequence[str] | None = None,
    *,
    excluded: int,
    seed: int,
) -> Rows:
    """Return measures of confusion tables as rows: measure, value, ci_low, ci_high, n, excluded.

    `tables` as `table_intervals` accepts them. `n` is the number of units in them, `excluded` the number of others.
    """
    sizes = {"n": int(tables.sum()), "excluded": excluded}
    found = table_intervals(measures, tables, clusters, seed=seed)
    return [{"measure": name, **one.columns(), **sizes} for name, one in found.items()]


def verdict_rows(
    measures: Mapping[str, confusion.Measure],
    names: Sequence[str],
    pairs: Sequence[tuple[str | None, str | None]],
    owners: Sequence[str] | None,
    *,
    seed: int,
    other: str | None = None,
) -> Rows:
    """Return measures of pairs of a label and a verdict as `table_rows`; pairs with an unknown one are excluded.

    `names` are the known labels and verdicts, and `other` is the last of them if it is no label. Whole owners of pairs
    are resampled, or single pairs without owners.
    """
    position: dict[str | None, int] = {name: place for place, name in enumerate(names)}
    labels, verdicts = ([position.get(pair[side], -1) for pair in pairs] for side in (0, 1))
    shape = (len(names) - (other is not None), len(names))
    tables = count_tables(labels, verdicts, owners or [""] * len(pairs), shape)
    excluded = sum(-1 in codes for codes in zip(labels, verdicts, strict=True))
    return table_rows(measures, tables if owners else tables.sum(axis=0), excluded=excluded, seed=seed)


def group_rows(rows: Iterable[Row], name: str) -> list[list[Row]]:
    """Return the rows by the value of a column, in the order of the values."""
    key = itemgetter(name)
    return [list(own) for _, own in groupby(sorted(rows, key=key), key=key)]


def group_means(rows: Iterable[Row], name: str, columns: Sequence[str]) -> list[list[float]]:
    """Return the means of each column by the value of another column, in the order of `group_rows`."""
    groups = group_rows(rows, name)
    return [[round(fsum(row[column] for row in own) / len(own), DIGITS) for own in groups] for column in columns]


def count_units(
    dataset: str,
    earned: Iterable[tuple[tuple[str | None, str | None], Points]],
    clusters: IntArray | None,
    scales: Mapping[str, int],
) -> Rows:
    """Return the rows of the table `match_counts`: the numbers of units, or of clusters, that earn the same.

    Args:
        earned: The points of each model and metric; both are None for baselines.
        clusters: int64[units], or None to count single units. The points and sizes of a cluster are sums.
        scales: The points of a full match by measure.
    """
    rows = []
    for (model, metric), found in earned:
        for (measure, convention), (points, excluded) in found.items():
            # A unit without comparisons has no weight, but its excluded comparisons count
            cells = sum_by(np.stack([np.maximum(points, 0), points >= 0, excluded], axis=1), clusters)
            distinct, owner, counts = np.unique(cells[:, :2], axis=0, return_inverse=True, return_counts=True)
            left_out = np.bincount(owner.ravel(), weights=cells[:, 2], minlength=len(distinct)).astype(np.int64)
            names = {"dataset": dataset, "metric": metric, "model": model, "convention": convention}
            rows += [
                {**names, "measure": measure, "scale": scales[measure]}
                | {"points": total, "size": size, "count": count, "excluded": left}
                for (total, size), count, left in zip(
                    distinct.tolist(), counts.tolist(), left_out.tolist(), strict=True
                )
            ]
    order = ("metric", "model", "convention", "measure", "points", "size")
    # The model and the metric of baselines are None
    return sorted(rows, key=lambda row: [(row[name] is not None, row[name]) for name in order])


def match_means(counts: Iterable[Row], *, seed: int) -> dict[Key, Values]:
    """Return the mean share of the points by model, metric, convention and measure. `counts`: as `count_units`."""
    found = group_by(counts, "model", "metric", "convention", "measure")
    return {key: mean_match([rows], seed=seed) for key, rows in found.items()}


def mean_match(datasets: Sequence[Sequence[Row]], *, seed: int) -> dict[str, Any]:
    """Return the mean share of the points with its BCa interval, and sums of n and excluded; methods, section 7.

    `datasets` has the rows of `match_counts` of one measure. The mean of several data sets is that of their means, and
    every data set is resampled independently.
    """
    samples = [
        ([row["points"] / row["scale"] for row in own], [row["size"] for row in own], [row["count"] for row in own])
        for own in datasets
    ]
    rows = [row for own in datasets for row in own]
    n, excluded = sum(row["size"] * row["count"] for row in rows), sum(row["excluded"] for row in rows)
    return joint_bca_interval(samples, seed=seed).columns() | {"n": n, "excluded": excluded}


def confusion_intervals(tables: Mapping[Owner, IntArray], *, seed: int) -> dict[Key, Values]:
    """Return the measures of confusion tables with their BCa intervals, by model, metric, convention and measure.

    `tables`: int64[units or clusters, 3, 5], with a row per label and a column per outcome. Only the convention `zero`
    excludes units, the failed ones.
    """
    measures = {
        (convention, name): partial(_under, convention, measure)
        for convention, (name, measure) in product(confusion.CONVENTIONS, confusion.MEASURES.items())
    }
    found: dict[Key, Values] = {}
    for (model, metric), cells in tables.items():
        total = cells.sum(axis=0)
        for (convention, name), interval in table_intervals(measures, cells, seed=seed).items():
            n = int(confusion.under_convention(total, convention).sum())
            found[model, metric, convention, name] = {**interval.columns(), "n": n, "excluded": int(total.sum()) - n}
    return found


def _under(convention: str, measure: confusion.Measure, tables: IntArray) -> FloatArray:
    return measure(confusion.under_convention(tables, convention))


def agreement_rows(dataset: str, metrics: Sequence[str], models: Sequence[str], found: Mapping[Key, Values]) -> Rows:
    """Return the rows of the table `meta_evaluation` in the given order, with the baselines beside each metric.

    A metric without scores of a model has no row. value and limits are None if the measure is undefined.
    """
    rows = []
    for metric, model, convention, measure in product(metrics, models, confusion.CONVENTIONS, ALL_MEASURES):
        owner = (None, None) if measure in LABEL_BASELINES else (model, metric)
        if (model, metric, convention, LMR) in found and (*owner, convention, measure) in found:
            names = {"dataset": dataset, "metric": metric, "model": model, "convention": convention, "measure": measure}
            rows.append({**names, **found[*owner, convention, measure]})
    return rows


Pairs = Sequence[tuple[Row, Owner, Owner]]
"""The names of a comparison, and the two methods that it compares."""


def metric_pairs(models: Iterable[str], metrics: Iterable[str]) -> Pairs:
    """Return all pairs of metrics of each model."""
    return [
        ({"model": model, "first": one, "second": other, "metric": None}, (model, one), (model, other))
        for model, (one, other) in product(sorted(models), sorted(combinations(metrics, 2)))
    ]


def prompt_pairs(metrics: Iterable[str], pairs: PromptPairs) -> Pairs:
    """Return all pairs of prompts of a model under each metric."""
    return [
        (
            {"metric": metric, "model": one.name, "first": one.prompt_set, "second": other.prompt_set},
            (one.model, metric),
            (other.model, metric),
        )
        for metric, (one, other) in product(metrics, pairs)
    ]


def compare_points(
    dataset: str, earned: Mapping[Owner, Points], pairs: Pairs, clusters: IntArray | None, *, scale: int, seed: int
) -> Rows:
    """Return the rows of the table `comparisons` with the tests of LMR of each pair under each convention.

    `scale` is the points of a full match. Pairs without a common unit have no row.
    """
    rows = []
    for convention in confusion.CONVENTIONS:
        points = {owner: one[LMR, convention][0] for owner, one in earned.items()}
        counted = {owner: (one, (one >= 0).astype(np.int64)) for owner, one in points.items()}
        rows += comparison_rows(counted, pairs, clusters, scale=scale, seed=seed, convention=convention)
    return [{"dataset": dataset, **row} for row in rows if row["n"]]


def comparison_rows(
    earned: Mapping[Owner, Earned],
    pairs: Pairs,
    clusters: Sequence[Any] | IntArray | None,
    *,
    seed: int,
    scale: int = 1,
    convention: str | None = None,
) -> Rows:
    """Return rows of the table `comparisons` with the paired permutation tests of a family of pairs.

    A unit counts if both methods earn points of equally many of its items. Whole clusters of units flip together.
    `clusters` has one name per unit, None for single units. The p-values are adjusted after Benjamini and Hochberg over
    the family. Methods, section 7.
    """
    tests = []
    for names, *owners in pairs:
        if all(owner in earned for owner in owners):
            (first, sizes), (second, others) = (earned[owner] for owner in owners)
            cells = np.where((sizes == others)[:, None], np.stack([first - second, sizes], axis=1), 0)
            cells = sum_by(cells, clusters)
            tests.append((names, clustered_permutation_test(cells[:, 0] / scale, cells[:, 1], seed=seed)))
    adjusted = adjust_p_values([test.p_value for _, test in tests])
    return [
        {"convention": convention, **names}
        | {"difference": test.difference, "p_value": test.p_value, "p_adjusted": value, "n": test.n}
        for (names, test), value in zip(tests, adjusted, strict=True)
    ]


def confusion_cells(tables: Mapping[Owner, IntArray]) -> Rows:
    """Return the confusion tables as rows of the manifest: model, metric, label, predicted, count."""
    return [
        {"model": model, "metric": metric, "label": label, "predicted": predicted, "count": int(table[row, column])}
        for (model, metric), table in sorted(tables.items())
        for row, label in enumerate(confusion.LABELS)
        for column, predicted in enumerate(confusion.PREDICTIONS)
    ]


def average_rows(counts: Iterable[Row], *, seed: int) -> Rows:
    """Return the rows of `meta_evaluation` with the average LMR of each metric and model, then its spread over models.

    `counts` are rows of `match_counts`. Averages only metrics and models that all data sets have. Every data set has
    the same weight, and the interval is joint over all of them. Dejl et al. 2025; methods, section 6.
    """
    by_owner = _by_owner(counts)
    datasets = sorted({dataset for found in by_owner.values() for dataset in found})
    rows = [
        {"metric": metric, "model": model, "convention": convention, "measure": LMR}
        | mean_match([found[name] for name in datasets], seed=seed)
        for (metric, model, convention), found in sorted(by_owner.items())
        if len(found) == len(datasets)
    ]
    return with_published(whole_rows([*rows, *_spreads(rows)], dataset=AVERAGE))


def has_answered(rows: Iterable[Row]) -> bool:
    """Return True if any score did not fail. `rows` are those of `meta_evaluation`; `zero` leaves failed scores out."""
    return any(row["value"] is not None for row in rows if (row["measure"], row["convention"]) == (LMR, "zero"))


def missing_averages(counts: Iterable[Row]) -> list[tuple[str, str, list[str]]]:
    """Return the metrics and models without an average, with the data sets that lack them."""
    found = {(metric, model): set(sets) for (metric, model, _), sets in _by_owner(counts).items()}
    datasets = set[str]().union(*found.values())
    return [(*owner, sorted(datasets - sets)) for owner, sets in sorted(found.items()) if sets != datasets]


def _by_owner(counts: Iterable[Row]) -> dict[tuple[str, str, str], dict[str, list[Row]]]:
    """Return the rows of LMR by metric, model and convention, then by data set."""
    by_owner = group_by((row for row in counts if row["measure"] == LMR), "metric", "model", "convention")
    return {owner: group_by(own, "dataset") for owner, own in by_owner.items()}


def _spreads(averages: Iterable[Row]) -> Rows:
    """Return the population standard deviation of the averages over at least two models, by metric and convention.

    n counts models. The published figure covers five models under the convention `published`.
    """
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in averages:
        if row["value"] is not None:
            values[row["metric"], row["convention"]].append(row["value"])
    return [
        {"metric": metric, "convention": convention, "measure": SPREAD}
        | {"value": statistics.pstdev(found), "n": len(found)}
        for (metric, convention), found in sorted(values.items())
        if len(found) > 1
    ]
