"""Scores against what people said, counted by Spark: matches, confusion tables, paired differences; methods, section 6.

Tables of *points* have the columns model, metric, undefined, measure, unit, cluster strings and points long: a row is
what a unit (a sample; for ConflictBank a claim of an instance) earns of a measure's full scale; its cluster is its
question.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from udfs.samples.adapters import CONFLICTBANK_CONTEXTS, CONFLICTBANK_SETS
from udfs.statistics.confusion import (
    CONVENTIONS,
    LABELS,
    MEASURES,
    PREDICTIONS,
    UNDEFINED,
    table_interval,
    under_convention,
)
from udfs.statistics.intervals import IntArray, Interval, bca_interval, clustered_bca_interval
from udfs.statistics.permutation import adjust_p_values, paired_permutation_test

LMR, STRICT, LAX = "lmr", "lmr_strict", "lmr_lax"
FLOORS = ("floor_constant", "floor_overlap")
ALL_MEASURES = (LMR, STRICT, LAX, *MEASURES, *FLOORS)
STRICT_POINTS = 1 + len(CONFLICTBANK_CONTEXTS)
COUNTERFACTUALS = tuple(name for name in CONFLICTBANK_CONTEXTS if name != "D")
LAX_POINTS = len(COUNTERFACTUALS)
GROUP = ("model", "metric", "undefined", "measure")
Key = tuple[str | None, str | None, str, str]
Found = tuple[Interval, int]


@dataclass(frozen=True)
class Dataset:
    """How a data set is matched: `find_points(scores, samples)`, and the points of a unit that matches in full.

    scores: model, metric, sample_id, score. `has_labels`: confusion tables and floors are made of samples' labels.
    """

    find_points: Callable[[DataFrame, DataFrame], DataFrame]
    scales: Mapping[str, int]
    has_labels: bool


def predicted_label() -> Column:
    """`udfs.statistics.confusion.predict_label` of the column score."""
    score = F.col("score")
    between = F.when(score == 0, LABELS[0]).when(score == 1, LABELS[2]).otherwise(LABELS[1])
    return F.when(score.isNull(), UNDEFINED).otherwise(between)


def label_points(scores: DataFrame, samples: DataFrame) -> DataFrame:
    """Points of LMR_WC: whether scores match the labels (samples: sample_id, query, label)."""
    judged = scores.join(samples.select("sample_id", "query", "label"), on="sample_id", how="inner")
    matched = F.col("label") == predicted_label()
    lenient = matched | (F.isnull("score") & (F.col("label") == LABELS[0]))
    found = {(LMR, "mismatch"): matched, (LMR, "zero"): lenient}
    return _points(judged, F.col("sample_id"), F.coalesce("query", "sample_id"), found)


def floor_points(samples: DataFrame, constant: str) -> DataFrame:
    """Points of the floors: of a judge that always says `constant`, and of the column overlap as a score.

    samples: sample_id, query, label string, overlap double. Model and metric are null.
    """
    nobody = [F.lit(None).cast("string").alias(name) for name in ("model", "metric")]
    overlap = label_points(samples.select(*nobody, "sample_id", F.col("overlap").alias("score")), samples)
    always = samples.select("*", *nobody)
    found = {(FLOORS[0], name): F.col("label") == constant for name in CONVENTIONS}
    constants = _points(always, F.col("sample_id"), F.coalesce("query", "sample_id"), found)
    return constants.unionByName(overlap.withColumn("measure", F.lit(FLOORS[1])))


def conflictbank_points(scores: DataFrame, samples: DataFrame) -> DataFrame:
    """Points of LMR_CB, its strict and its lax part, of a claim of an instance (methods, section 6).

    samples: sample_id string, row long, claim string (`default`, `counterfactual`), context_set string (`all` or the
    one context). A comparison with an undefined score is false under `mismatch`; under `zero` the score is 0.
    """
    placed = scores.join(samples.select("sample_id", "row", "claim", "context_set"), on="sample_id", how="inner")
    by_set = [F.max(F.when(F.col("context_set") == name, F.col("score"))).alias(name) for name in CONFLICTBANK_SETS]
    wide = placed.groupBy("model", "metric", "row", "claim").agg(*by_set)
    found: dict[tuple[str, str], Column] = {}
    for convention in CONVENTIONS:
        strict, lax = _strict_points(convention), _lax_points(convention)
        both = strict * LAX_POINTS + lax * STRICT_POINTS
        found |= {(LMR, convention): both, (STRICT, convention): strict, (LAX, convention): lax}
    return _points(wide, F.concat_ws("-", "row", "claim"), F.col("row").cast("string"), found)


def _strict_points(convention: str) -> Column:
    default = F.col("claim") == "default"
    everything = _score("all", convention)
    points = _as_points((everything > 0) & (everything < 1))
    for name in CONFLICTBANK_CONTEXTS:
        stated = default if name == "D" else ~default
        points += _as_points(_score(name, convention) == stated.cast("double"))
    return points


def _lax_points(convention: str) -> Column:
    default, of_default = F.col("claim") == "default", _score("D", convention)
    points = F.lit(0).cast("long")
    for name in COUNTERFACTUALS:
        score = _score(name, convention)
        points += _as_points(F.when(default, score < of_default).otherwise(score > of_default))
    return points


def _score(context_set: str, convention: str) -> Column:
    return F.coalesce(context_set, F.lit(0.0)) if convention == "zero" else F.col(context_set)


def _as_points(holds: Column) -> Column:
    return F.coalesce(holds, F.lit(False)).cast("long")


def _points(frame: DataFrame, unit: Column, cluster: Column, found: Mapping[tuple[str, str], Column]) -> DataFrame:
    """The columns of points, from what is earned of (measure, convention)."""
    earned = [
        F.struct(
            F.lit(undefined).alias("undefined"), F.lit(measure).alias("measure"), points.cast("long").alias("points")
        )
        for (measure, undefined), points in found.items()
    ]
    names = [unit.alias("unit"), cluster.alias("cluster")]
    exploded = frame.select("model", "metric", *names, F.explode(F.array(*earned)).alias("earned"))
    return exploded.select("model", "metric", "earned.undefined", "earned.measure", "unit", "cluster", "earned.points")


DATASETS = {
    "wikicontradict": Dataset(label_points, {LMR: 1, **dict.fromkeys(FLOORS, 1)}, has_labels=True),
    "conflictbank": Dataset(
        conflictbank_points,
        {LMR: 2 * STRICT_POINTS * LAX_POINTS, STRICT: STRICT_POINTS, LAX: LAX_POINTS},
        has_labels=False,
    ),
}


def count_points(points: DataFrame) -> DataFrame:
    """How often units earn the same: model, metric, undefined, measure, points, count."""
    return points.groupBy(*GROUP, "points").agg(F.count("*").alias("count"))


def count_clusters(points: DataFrame) -> DataFrame:
    """How often clusters earn the same with as many units: model, metric, undefined, measure, points, size, count."""
    clusters = points.groupBy(*GROUP, "cluster").agg(F.sum("points").alias("points"), F.count("*").alias("size"))
    return clusters.groupBy(*GROUP, "points", "size").agg(F.count("*").alias("count"))


def count_differences(points: DataFrame, metrics: Sequence[str]) -> DataFrame:
    """How often two metrics of a model differ so on a unit: model, first, second, difference, count.

    LMR points of units under `mismatch`, `first` before `second` in `metrics`.
    """
    place = F.array_position(F.array(*map(F.lit, metrics)), F.col("metric"))
    earned = points.where((F.col("measure") == LMR) & (F.col("undefined") == "mismatch"))
    side = earned.select("model", "unit", "metric", "points", place.alias("place"))
    first, second = (side.select("model", "unit", *_renamed(name)) for name in ("first", "second"))
    pairs = first.join(second, on=["model", "unit"], how="inner").where("first_place < second_place")
    difference = (F.col("first_points") - F.col("second_points")).alias("difference")
    return pairs.groupBy("model", "first", "second", difference).agg(F.count("*").alias("count"))


def _renamed(name: str) -> list[Column]:
    return [F.col("metric").alias(name), F.col("points").alias(f"{name}_points"), F.col("place").alias(f"{name}_place")]


def count_predictions(scores: DataFrame, samples: DataFrame) -> DataFrame:
    """The cells of the confusion tables: model, metric, label, predicted, count."""
    judged = scores.join(samples.select("sample_id", "label"), on="sample_id", how="inner")
    return judged.groupBy("model", "metric", "label", predicted_label().alias("predicted")).agg(
        F.count("*").alias("count")
    )


def confusion_tables(counted: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], IntArray]:
    """By (model, metric) the confusion table of the rows of `count_predictions`: int64[3, 4]."""
    tables: dict[tuple[str, str], IntArray] = defaultdict(
        lambda: np.zeros((len(LABELS), len(PREDICTIONS)), dtype=np.int64)
    )
    for row in counted:
        cell = LABELS.index(row["label"]), PREDICTIONS.index(row["predicted"])
        tables[row["model"], row["metric"]][cell] += row["count"]
    return dict(tables)


def point_intervals(counted: Iterable[Mapping[str, Any]], scales: Mapping[str, int], *, seed: int) -> dict[Key, Found]:
    """By model, metric, undefined and measure: the mean and its BCa interval, and how many units there are.

    counted: rows of `count_points` or, where whole clusters are to be resampled, of `count_clusters`.
    """
    found: dict[Key, list[Mapping[str, Any]]] = defaultdict(list)
    for row in counted:
        found[row["model"], row["metric"], row["undefined"], row["measure"]].append(row)
    return {key: _interval(rows, scales[key[3]], seed) for key, rows in found.items()}


def _interval(rows: Sequence[Mapping[str, Any]], scale: int, seed: int) -> Found:
    values, counts = [row["points"] / scale for row in rows], [row["count"] for row in rows]
    if "size" not in rows[0]:
        return bca_interval(values, counts, seed=seed), sum(counts)
    sizes = [row["size"] for row in rows]
    return clustered_bca_interval(values, sizes, counts, seed=seed), int(np.dot(sizes, counts))


def table_intervals(confusions: Mapping[tuple[str, str], IntArray], *, seed: int, clustered: bool) -> dict[Key, Found]:
    """By model, metric, undefined and measure of a confusion table: the measure and its BCa interval, and the rows.

    There are no intervals where they are to be `clustered`: tables do not say which rows share a question.
    """
    found: dict[Key, Found] = {}
    for (model, metric), table in confusions.items():
        for undefined in CONVENTIONS:
            counted = under_convention(table, undefined)
            for name, measure in MEASURES.items():
                interval = table_interval(measure, counted, seed=seed)
                kept = Interval(interval.mean, None, None) if clustered else interval
                found[model, metric, undefined, name] = kept, int(counted.sum())
    return found


def agreement_rows(
    dataset: str, metrics: Sequence[str], models: Sequence[str], found: Mapping[Key, Found]
) -> list[dict[str, Any]]:
    """The rows of the table `meta_evaluation`, in the order given; the floors, of no model and metric, beside each."""
    rows = []
    for metric, model, undefined, measure in product(metrics, models, CONVENTIONS, ALL_MEASURES):
        owner = (None, None) if measure in FLOORS else (model, metric)
        if (model, metric, undefined, LMR) in found and (*owner, undefined, measure) in found:
            interval, n = found[*owner, undefined, measure]
            names = {"dataset": dataset, "metric": metric, "model": model, "undefined": undefined, "measure": measure}
            rows.append({**names, "value": interval.mean, "ci_low": interval.low, "ci_high": interval.high, "n": n})
    return rows


def compare_metrics(
    counted: Iterable[Mapping[str, Any]], dataset: str, scale: int, *, seed: int
) -> list[dict[str, Any]]:
    """The rows of the table `comparisons`, from the rows of `count_differences`: a family of all within-model pairs."""
    differences: dict[tuple[str, str, str], Counter[float]] = defaultdict(Counter)
    for row in counted:
        differences[row["model"], row["first"], row["second"]][row["difference"] / scale] += row["count"]
    tests = {
        key: paired_permutation_test(list(counts), list(counts.values()), seed=seed)
        for key, counts in sorted(differences.items())
    }
    adjusted = adjust_p_values([test.p_value for test in tests.values()])
    return [
        {
            "dataset": dataset,
            **dict(zip(("model", "first", "second"), key, strict=True)),
            "difference": test.difference,
            "p_value": test.p_value,
            "p_adjusted": p_adjusted,
            "n": test.n,
        }
        for (key, test), p_adjusted in zip(tests.items(), adjusted, strict=True)
    ]
