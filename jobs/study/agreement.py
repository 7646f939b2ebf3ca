"""Measure the agreement of points and confusion tables with labels; methods, sections 6 and 7."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np

from untold.jobs.study.judgements import AVERAGE, BoolArray, Owner, Row
from untold.jobs.study.meta_evaluation import PromptPairs, StudyEndpoint
from untold.jobs.study.rendering import with_published
from untold.udfs.statistics import confusion
from untold.udfs.statistics.intervals import (
    FloatArray,
    IntArray,
    bca_interval,
    clustered_bca_interval,
    joint_bca_interval,
)
from untold.udfs.statistics.permutation import PairedTest, adjust_p_values, clustered_permutation_test
from untold.udfs.statistics.question_resampling import table_intervals

LMR, STRICT, LAX = "lmr", "lmr_strict", "lmr_lax"
LABEL_BASELINES = ("baseline_constant", "baseline_overlap")
# In the order of the table `meta_evaluation`
ALL_MEASURES = (LMR, STRICT, LAX, *confusion.MEASURES, *LABEL_BASELINES)
SPREAD = "lmr_spread"
Key = tuple[str | None, str | None, str, str]
"""A model, a metric, a convention and a measure."""
Values = Mapping[str, Any]
"""The columns value, ci_low, ci_high, n (units) and excluded (comparisons) of a measure."""
Parts = Mapping[tuple[str, str], tuple[IntArray, IntArray]]
"""By measure and convention the points of each unit, and its comparisons that are left out.

Shapes: int64[units] each. The points of a unit without a comparison are -1.
"""


@dataclass(frozen=True)
class Earned:
    """The points of each unit, and True for the units that have a score: bool[units]."""

    parts: Parts
    given: BoolArray


def count_units(earned: Earned, clusters: IntArray | None) -> list[dict[str, Any]]:
    """Count the units, or the clusters, that earn the same: convention, measure, points, size, count, excluded.

    `points` are sums over the cluster, `size` is its number of units with points, and `excluded` is the sum over
    `count` clusters. `clusters`: int64[units], or None to count single units.
    """
    rows = []
    for (measure, convention), (points, excluded) in earned.parts.items():
        # A unit without comparisons has no weight, but its excluded comparisons count
        counted = points >= 0
        cells = np.stack([np.where(counted, points, 0), counted, excluded], axis=1)
        summed = _sum_by(cells[earned.given], None if clusters is None else clusters[earned.given])
        distinct, owner, counts = np.unique(summed[:, :2], axis=0, return_inverse=True, return_counts=True)
        left_out = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(left_out, owner.ravel(), summed[:, 2])
        for (total, size), count, left in zip(distinct.tolist(), counts.tolist(), left_out.tolist(), strict=True):
            named = {"convention": convention, "measure": measure}
            rows.append(named | {"points": total, "size": size, "count": count, "excluded": left})
    return rows


def _sum_by(cells: IntArray, clusters: IntArray | None) -> IntArray:
    """Return the sums of the rows of each cluster."""
    if clusters is None:
        return cells
    names, owner = np.unique(clusters, return_inverse=True)
    sums = np.zeros((len(names), cells.shape[1]), dtype=np.int64)
    np.add.at(sums, owner, cells)
    return sums


def label_tables(labels: IntArray, predicted: IntArray, given: BoolArray, clusters: IntArray | None) -> IntArray:
    """Return the confusion table of each given unit, or of each cluster of them: int64[units or clusters, 3, 5].

    `labels` and `predicted`: int64[units], positions in `LABELS` and `OUTCOMES`.
    """
    owner = np.unique((np.arange(len(labels)) if clusters is None else clusters)[given], return_inverse=True)[1]
    tables = np.zeros((owner.max() + 1, len(confusion.LABELS), len(confusion.OUTCOMES)), dtype=np.int64)
    np.add.at(tables, (owner, labels[given], predicted[given]), 1)
    return tables


def point_intervals(counted: Iterable[Row], scales: Mapping[str, int], *, seed: int) -> dict[Key, Values]:
    """Return the mean share of the points with its BCa interval, by model, metric, convention and measure.

    `counted` are rows of `count_units` with model and metric; `scales` are the points of a full match by measure.
    Resamples clusters if any cluster has more than one unit. Methods, section 7.
    """
    found: dict[Key, list[Row]] = defaultdict(list)
    for row in counted:
        found[row["model"], row["metric"], row["convention"], row["measure"]].append(row)
    return {key: _interval(rows, scales[key[3]], seed) for key, rows in found.items()}


def _interval(rows: Sequence[Row], scale: int, seed: int) -> Values:
    sums, sizes, counts = unit_counts(rows, scale)
    excluded = sum(row["excluded"] for row in rows)
    if max(sizes) > 1:
        interval = clustered_bca_interval(sums, sizes, counts, seed=seed)
    else:
        # Sizes are 0 or 1: a unit without points has no weight
        interval = bca_interval(sums, np.multiply(sizes, counts), seed=seed)
    return {**interval.columns(), "n": int(np.dot(sizes, counts)), "excluded": excluded}


def unit_counts(rows: Sequence[Row], scale: int) -> tuple[list[float], list[int], list[int]]:
    """Return the sums of shares, the sizes and the counts of clusters, as `clustered_bca_interval` accepts them."""
    sums = [row["points"] / scale for row in rows]
    return sums, [row["size"] for row in rows], [row["count"] for row in rows]


def match_counts(dataset: str, counted: Iterable[Row], scales: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the sorted rows of the table `match_counts`, from which averages over data sets are computed."""
    rows = [{"dataset": dataset, **row, "scale": scales[row["measure"]]} for row in counted]
    names = ("metric", "model", "convention", "measure", "points", "size")
    # None, the model and metric of baselines, sorts first
    return sorted(rows, key=lambda row: [(row[name] is not None, row[name]) for name in names])


def confusion_intervals(tables: Mapping[Owner, IntArray], *, seed: int) -> dict[Key, Values]:
    """Return the measures of confusion tables with their BCa intervals, by model, metric, convention and measure.

    `tables` are those of `label_tables`. Only the convention `zero` excludes units, the failed ones.
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


def agreement_rows(
    dataset: str, metrics: Sequence[str], models: Sequence[str], found: Mapping[Key, Values]
) -> list[dict[str, Any]]:
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


@dataclass(frozen=True)
class PointTests:
    """Paired permutation tests of LMR under each convention. Whole clusters of units flip together.

    `scale` is the points of a full match; `clusters`: int64[units], or None for single units. The tests under one
    convention are a family, which is adjusted after Benjamini and Hochberg. Methods, section 7.
    """

    dataset: str
    scale: int
    clusters: IntArray | None
    seed: int

    def of_metrics(self, earned: Mapping[Owner, Earned], metrics: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows of the table `comparisons` for all pairs of metrics of each model."""
        pairs = [
            ({"model": model, "first": one, "second": other, "metric": None}, (model, one), (model, other))
            for model in sorted({model for model, _ in earned})
            for one, other in sorted(combinations(metrics, 2))
        ]
        return self._rows(earned, pairs)

    def of_prompts(
        self, earned: Mapping[Owner, Earned], metrics: Sequence[str], pairs: PromptPairs
    ) -> list[dict[str, Any]]:
        """Return the rows of the table `comparisons` for all pairs of prompts of a model under each metric."""
        named = [
            (_names(metric, one, other), (one.model, metric), (other.model, metric))
            for metric in sorted(metrics)
            for one, other in sorted(pairs, key=lambda pair: (pair[0].model, pair[1].model))
        ]
        return self._rows(earned, named)

    def _rows(self, earned: Mapping[Owner, Earned], pairs: Sequence[tuple[Row, Owner, Owner]]) -> list[dict[str, Any]]:
        rows = []
        for convention in confusion.CONVENTIONS:
            tests = []
            for names, one, other in pairs:
                if one in earned and other in earned:
                    cells = self._differences(earned[one], earned[other], convention)
                    if len(cells):
                        distinct, counts = np.unique(cells, axis=0, return_counts=True)
                        sums, sizes = distinct[:, 0] / self.scale, distinct[:, 1]
                        tests.append((names, clustered_permutation_test(sums, sizes, counts, seed=self.seed)))
            rows += comparison_rows(tests, self.dataset, convention)
        return rows

    def _differences(self, one: Earned, other: Earned, convention: str) -> IntArray:
        """Return the difference of the points and the number of units of each cluster: int64[clusters, 2].

        A unit counts if both have points of it.
        """
        (first, _), (second, _) = (each.parts[LMR, convention] for each in (one, other))
        both = (first >= 0) & (second >= 0) & one.given & other.given
        cells = np.stack([first - second, np.ones_like(first)], axis=1)[both]
        return _sum_by(cells, None if self.clusters is None else self.clusters[both])


def comparison_rows(
    tests: Sequence[tuple[Row, PairedTest]], dataset: str, convention: str | None
) -> list[dict[str, Any]]:
    """Return the rows of the table `comparisons` for a family of tests, each with its names."""
    adjusted = adjust_p_values([test.p_value for _, test in tests])
    return [
        {"dataset": dataset, "convention": convention, **names}
        | {"difference": test.difference, "p_value": test.p_value, "p_adjusted": value, "n": test.n}
        for (names, test), value in zip(tests, adjusted, strict=True)
    ]


def compare_items(rows: Iterable[Row], pairs: PromptPairs, *, clustered: bool, seed: int) -> list[dict[str, Any]]:
    """Return the rows of the table `comparisons` for prompts of one model: tests of accuracy over labelled items.

    `rows` are those of the table `coverage`. The items of a sample, or of a query with `clustered`, flip together. A
    sample counts if both judged equally many of its items.
    """
    given: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        if row["judged"]:
            given[row["metric"], row["model"]][row["sample_id"]] = row
    tests = []
    for metric in dict.fromkeys(metric for metric, _ in given):
        for one, other in pairs:
            sums: dict[str, int] = defaultdict(int)
            sizes: dict[str, int] = defaultdict(int)
            both = given[metric, one.model], given[metric, other.model]
            for sample in sorted(both[0].keys() & both[1].keys()):
                first, second = (side[sample] for side in both)
                if first["judged"] == second["judged"]:
                    unit = first["query_id"] if clustered else sample
                    sums[unit] += sum(first[name] - second[name] for name in ("true_positives", "true_negatives"))
                    sizes[unit] += first["judged"]
            test = clustered_permutation_test(list(sums.values()), list(sizes.values()), seed=seed)
            tests.append((_names(metric, one, other), test))
    return comparison_rows(tests, "coverage", None)


def _names(metric: str, one: StudyEndpoint, other: StudyEndpoint) -> dict[str, Any]:
    return {"metric": metric, "model": one.name, "first": one.prompt_set, "second": other.prompt_set}


def confusion_cells(tables: Mapping[Owner, IntArray]) -> list[dict[str, Any]]:
    """Return the confusion tables as rows of the manifest: model, metric, label, predicted, count."""
    return [
        {"model": model, "metric": metric, "label": label, "predicted": predicted, "count": int(table[row, column])}
        for (model, metric), table in sorted(tables.items())
        for row, label in enumerate(confusion.LABELS)
        for column, predicted in enumerate(confusion.PREDICTIONS)
    ]


def average_rows(counts: Iterable[Row], *, seed: int) -> list[dict[str, Any]]:
    """Return the rows of `meta_evaluation` with the average LMR of each metric and model, then its spread over models.

    `counts` are rows of `match_counts`. Averages only metrics and models that all data sets have. Every data set has
    the same weight, and the interval is joint over all of them. Dejl et al. 2025; methods, section 6.
    """
    by_owner = _by_owner(counts)
    datasets = sorted({dataset for found in by_owner.values() for dataset in found})
    whole = {owner: found for owner, found in by_owner.items() if len(found) == len(datasets)}
    averages = [_average(owner, [found[name] for name in datasets], seed) for owner, found in sorted(whole.items())]
    return with_published([*averages, *_spreads(averages)])


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
    by_owner: dict[tuple[str, str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in counts:
        if row["measure"] == LMR:
            by_owner[row["metric"], row["model"], row["convention"]][row["dataset"]].append(row)
    return by_owner


def _average(owner: tuple[str, str, str], sets: Sequence[Sequence[Row]], seed: int) -> dict[str, Any]:
    """Return a row with the mean of the means of the data sets. n and excluded are sums over the data sets.

    The interval resamples every data set independently.
    """
    interval = joint_bca_interval([unit_counts(rows, rows[0]["scale"]) for rows in sets], seed=seed)
    return {
        "dataset": AVERAGE,
        **dict(zip(("metric", "model", "convention"), owner, strict=True)),
        "measure": LMR,
        **interval.columns(),
        "n": sum(row["size"] * row["count"] for rows in sets for row in rows),
        "excluded": sum(row["excluded"] for rows in sets for row in rows),
    }


def _spreads(averages: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the population standard deviation of the averages over at least two models, by metric and convention.

    n counts models. The published figure covers five models under the convention `published`.
    """
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in averages:
        if row["value"] is not None:
            values[row["metric"], row["convention"]].append(row["value"])
    names = ("model", "ci_low", "ci_high", "excluded")
    return [
        {"dataset": AVERAGE, "metric": metric, "convention": convention, "measure": SPREAD, **dict.fromkeys(names)}
        | {"value": statistics.pstdev(found), "n": len(found)}
        for (metric, convention), found in sorted(values.items())
        if len(found) > 1
    ]
