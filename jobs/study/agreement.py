"""How far scores agree with people, from counts of points: means, intervals, and metrics compared; methods, 6 and 7.

Averages over data sets, and their spread over models, are rows of several meta-evaluations in, rows out.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from untold.jobs.study.label_points import (
    DATASETS,
    LABEL_BASELINES,
    LAX,
    LMR,
    STRICT,
    Dataset,
    baseline_points,
    predicted_label,
)
from untold.jobs.study.meta_evaluation import PromptPairs, StudyEndpoint
from untold.jobs.study.report import AVERAGE, PUBLISHED_CONVENTION, PUBLISHED_SPREADS, with_published
from untold.udfs.statistics import confusion, intervals
from untold.udfs.statistics.permutation import adjust_p_values, clustered_permutation_test
from untold.udfs.statistics.question_resampling import (
    SHAPE,
    SUMS_FIELDS,
    Resampled,
    join_sums,
    resample_questions,
    sum_batches,
    total_interval,
)

__all__ = ["DATASETS", "LMR"]

# The order of rows in the table `meta_evaluation`
ALL_MEASURES = (LMR, STRICT, LAX, *confusion.MEASURES, *LABEL_BASELINES)
GROUP = ("model", "metric", "convention", "measure")
COMPARED_UNDER = "mismatch"  # the convention of the table `comparisons`
# Distinct tables of a question that the driver resamples itself; five answers to a question have at most 4,368
MAX_TABLES = 20_000
PARTS = 16  # of the questions that Spark resamples: fixed, so that the number of cores changes no bit
Key = tuple[str | None, str | None, str, str]


@dataclass(frozen=True)
class AgreementRows:
    """A measure with its interval, over how many units, and how many comparisons it leaves out."""

    interval: intervals.Interval
    n: int
    excluded: int = 0


def cell_intervals(
    cells: intervals.IntArray,
    measures: Mapping[str, confusion.Measure],
    clusters: Sequence[str] | None = None,
    *,
    seed: int,
) -> dict[str, intervals.Interval]:
    """Return the intervals of measures of the sum of confusion tables.

    `cells`: int64[samples, labels, predictions], the table of each sample. Resamples samples, or whole clusters if
    their names are given. Methods, section 7.
    """
    shape = cells.shape[1:]
    flat = cells.reshape(len(cells), shape[0] * shape[1])
    found = {}
    for name, measure in measures.items():

        def of_totals(totals: intervals.IntArray, measure: confusion.Measure = measure) -> intervals.FloatArray:
            return measure(totals.reshape(*totals.shape[:-1], *shape))

        found[name] = total_interval(of_totals, flat, clusters, seed=seed)
    return found


def count_units(points: DataFrame, *, clustered: bool) -> DataFrame:
    """How often units, or with `clustered` questions, earn the same: the columns of the table `match_counts`.

    model, metric, convention, measure strings, points (their sum), size (units with points), count, excluded long.
    Points are whole numbers, so that sums are exact and equal ones meet; `points` as `jobs.study.label_points`
    describes them.
    """
    if clustered:
        earned = [F.sum("points").alias("points"), F.count("points").alias("size"), F.sum("excluded").alias("excluded")]
        units = points.groupBy(*GROUP, "cluster").agg(*earned)
    else:
        size = F.col("points").isNotNull().cast("long")
        units = points.select(*GROUP, "points", size.alias("size"), "excluded")
    # A unit that earns nothing because nothing of it counts has the size 0 and so no weight, but is counted as left out
    units = units.withColumn("points", F.coalesce("points", F.lit(0)))
    together = [F.count("*").alias("count"), F.sum("excluded").alias("excluded")]
    return units.groupBy(*GROUP, "points", "size").agg(*together)


def count_differences(points: DataFrame, metrics: Sequence[str], *, clustered: bool) -> DataFrame:
    """How often two metrics of a model differ so on a unit, or on a question.

    Columns model, first, second, difference, size, count.

    LMR points of units under `COMPARED_UNDER`, `first` before `second` in `metrics`.

    points: as `jobs.study.label_points` describes them. A unit counts where both metrics have points of it, so that a
    pair is of the same units. With `clustered` the difference is the sum over a question's units and `size` their
    number.
    """
    place = F.array_position(F.array(*map(F.lit, metrics)), F.col("metric"))
    lmr = (F.col("measure") == LMR) & (F.col("convention") == COMPARED_UNDER)
    earned = points.where(lmr & F.col("points").isNotNull())
    side = earned.select("model", "unit", "cluster", "metric", "points", place.alias("place"))
    first = side.select("model", "unit", "cluster", *_renamed("first"))
    second = side.select("model", "unit", *_renamed("second"))
    pairs = first.join(second, on=["model", "unit"], how="inner").where("first_place < second_place")
    difference = F.col("first_points") - F.col("second_points")
    sides = ["model", "first", "second"]
    if clustered:
        sums = [F.sum(difference).alias("difference"), F.count("*").alias("size")]
        units = pairs.groupBy(*sides, "cluster").agg(*sums)
    else:
        units = pairs.select(*sides, difference.alias("difference"), F.lit(1).cast("long").alias("size"))
    return units.groupBy("model", "first", "second", "difference", "size").agg(F.count("*").alias("count"))


def _renamed(name: str) -> list[Column]:
    """The columns of one side of a pair; two frames of the same origin cannot be joined on names that are ambiguous."""
    return [F.col("metric").alias(name), F.col("points").alias(f"{name}_points"), F.col("place").alias(f"{name}_place")]


def count_tables(scores: DataFrame, samples: DataFrame, *, clustered: bool) -> DataFrame:
    """How many questions have the same confusion table: model, metric, cells list<int64>, labels by `OUTCOMES`, count.

    Without `clustered` every sample is a question of its own. scores: model, metric, sample_id, score, failed; samples:
    sample_id, query, label.

    A cell counts the answers to the question of a label and an outcome; `cells` are the 3 rows of 5 one after the
    other.
    """
    judged = scores.join(samples.select("sample_id", "query", "label"), on="sample_id", how="inner")
    outcome = F.when(F.col("failed"), confusion.FAILED).otherwise(predicted_label())
    unit = F.coalesce("query", "sample_id") if clustered else F.col("sample_id")
    cells = [
        F.count_if((F.col("label") == label) & (F.col("outcome") == name))
        for label, name in product(confusion.LABELS, confusion.OUTCOMES)
    ]
    tables = judged.withColumn("outcome", outcome).groupBy("model", "metric", unit.alias("unit"))
    return (
        tables.agg(F.array(*cells).alias("cells")).groupBy("model", "metric", "cells").agg(F.count("*").alias("count"))
    )


def resample_tables(counted: DataFrame, *, seed: int, max_tables: int = MAX_TABLES) -> dict[tuple[str, str], Resampled]:
    """By model and metric the confusion table and its resamples, from `count_tables`.

    Where a metric of a model has more than `max_tables` distinct tables, Spark resamples, and the driver holds 10,000
    tables a partition at a time.
    """
    found = {}
    for row in (
        counted.groupBy("model", "metric").agg(F.count("*").alias("tables")).orderBy("model", "metric").collect()
    ):
        own = counted.where((F.col("model") == row["model"]) & (F.col("metric") == row["metric"]))
        resample = _resample_here if row["tables"] <= max_tables else _resample_in_spark
        found[row["model"], row["metric"]] = resample(own.select("cells", "count"), seed)
    return found


def _resample_here(counted: DataFrame, seed: int) -> Resampled:
    """On the driver, exactly: a multinomial resample of the counts of distinct tables."""
    rows = counted.toArrow().to_pylist()
    tables = np.array([row["cells"] for row in rows]).reshape(-1, *SHAPE)
    return resample_questions(tables, [row["count"] for row in rows], seed=seed)


def _resample_in_spark(counted: DataFrame, seed: int) -> Resampled:
    """By Poisson weights in `PARTS` partitions, whose sums the driver adds one partition at a time (`sum_batches`)."""
    cells = range(SHAPE[0] * SHAPE[1])
    sums = counted.agg(F.sum("count"), *[F.sum(F.col("cells")[place] * F.col("count")) for place in cells]).collect()[0]
    questions, table = int(sums[0]), [int(value) for value in sums[1:]]
    fields = T.StructType(
        [T.StructField("drawn", T.BinaryType()), T.StructField("powers", T.ArrayType(T.DoubleType()))]
    )
    # By content, hashed and sorted: floats of a partition are summed in one order on any cluster
    ordered = counted.repartition(PARTS, "cells").sortWithinPartitions("cells")
    parts = ordered.mapInArrow(partial(sum_batches, table=table, seed=seed), fields).toLocalIterator()
    # mapInArrow matches columns by place, and would swap two in silence
    assert [name for name, _ in SUMS_FIELDS] == fields.names
    return join_sums((row.asDict() for row in parts), np.array(table).reshape(SHAPE), questions)


def confusion_table(resampled: Resampled) -> intervals.IntArray:
    """int64[3, 4], labels by predictions; failed scores are undefined.

    Under `mismatch`, the first convention, which neither drops a row nor makes a label of an undefined score.
    """
    return confusion.under_convention(resampled.table, confusion.CONVENTIONS[0])


def point_intervals(
    counted: Iterable[Mapping[str, Any]], scales: Mapping[str, int], *, seed: int
) -> dict[Key, AgreementRows]:
    """By model, metric, convention and measure: the mean and its BCa interval, from rows of `count_units`.

    scales: by measure the points of a unit that earns all. Methods, section 7.
    """
    found: dict[Key, list[Mapping[str, Any]]] = defaultdict(list)
    for row in counted:
        found[row["model"], row["metric"], row["convention"], row["measure"]].append(row)
    return {key: _interval(rows, scales[key[3]], seed) for key, rows in found.items()}


def _interval(rows: Sequence[Mapping[str, Any]], scale: int, seed: int) -> AgreementRows:
    """The mean share of the points and its interval; by cluster where any cluster has more than one unit."""
    sums, sizes, counts = unit_counts(rows, scale)
    excluded = sum(row["excluded"] for row in rows)
    if max(sizes) > 1:
        interval = intervals.clustered_bca_interval(sums, sizes, counts, seed=seed)
    else:
        # sizes are 0 or 1 here: a unit without points has no weight
        interval = intervals.bca_interval(sums, np.multiply(sizes, counts), seed=seed)
    return AgreementRows(interval, int(np.dot(sizes, counts)), excluded)


def unit_counts(rows: Sequence[Mapping[str, Any]], scale: int) -> tuple[list[float], list[int], list[int]]:
    """Sums, sizes and counts of clusters, as `clustered_bca_interval` takes them, from rows of `count_units`.

    Sums are shares: points over `scale`, from 0 to the cluster's size.
    """
    sums = [row["points"] / scale for row in rows]
    return sums, [row["size"] for row in rows], [row["count"] for row in rows]


def match_counts(dataset: str, counted: Iterable[Mapping[str, Any]], scales: Mapping[str, int]) -> list[dict[str, Any]]:
    """The rows of the table `match_counts`, from which averages over data sets are made: `count_units`, in order."""
    rows = [{"dataset": dataset, **row, "scale": scales[row["measure"]]} for row in counted]
    names = ("metric", "model", "convention", "measure", "points", "size")
    # None sorts before names, which it cannot be compared with: baselines are of no model and no metric
    return sorted(rows, key=lambda row: [(row[name] is not None, row[name]) for name in names])


def table_intervals(tables: Mapping[tuple[str, str], Resampled]) -> dict[Key, AgreementRows]:
    """By model, metric, convention and measure of a confusion table: the measure and its BCa interval, and the rows.

    excluded: rows that the convention leaves out; only `zero` does, the failed ones.
    """
    found: dict[Key, AgreementRows] = {}
    for (model, metric), resampled in tables.items():
        rows = int(resampled.table.sum())
        for convention, name in product(confusion.CONVENTIONS, confusion.MEASURES):
            n = int(confusion.under_convention(resampled.table, convention).sum())
            found[model, metric, convention, name] = AgreementRows(resampled.interval(convention, name), n, rows - n)
    return found


def agreement_rows(
    dataset: str, metrics: Sequence[str], models: Sequence[str], found: Mapping[Key, AgreementRows]
) -> list[dict[str, Any]]:
    """The rows of the table `meta_evaluation`, in the order given; the baselines, of no model and metric, beside each.

    What a model has no scores of has no row. value and limits are None where the measure is undefined.
    """
    rows = []
    for metric, model, convention, measure in product(metrics, models, confusion.CONVENTIONS, ALL_MEASURES):
        owner = (None, None) if measure in LABEL_BASELINES else (model, metric)
        if (model, metric, convention, LMR) in found and (*owner, convention, measure) in found:
            names = {"dataset": dataset, "metric": metric, "model": model, "convention": convention, "measure": measure}
            rows.append(names | _values(found[*owner, convention, measure]))
    return rows


def _values(found: AgreementRows) -> dict[str, Any]:
    """The columns value, ci_low, ci_high, n and excluded of a row."""
    return {**found.interval.columns(), "n": found.n, "excluded": found.excluded}


def compare_metrics(
    counted: Iterable[Mapping[str, Any]], dataset: str, scale: int, *, seed: int
) -> list[dict[str, Any]]:
    """The rows of the table `comparisons`, from the rows of `count_differences`: a family of all within-model pairs.

    Paired permutation tests under `COMPARED_UNDER`, adjusted after Benjamini and Hochberg over all rows given
    (published: three pairs of metrics times five models). Sorted by model and pair, so that the family has one order.
    Methods, section 7.
    """
    differences: dict[tuple[str, str, str], Counter[tuple[float, int]]] = defaultdict(Counter)
    for row in counted:
        differences[row["model"], row["first"], row["second"]][row["difference"] / scale, row["size"]] += row["count"]
    tests = {
        key: clustered_permutation_test(
            [total for total, _ in counts], [size for _, size in counts], list(counts.values()), seed=seed
        )
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
            "convention": COMPARED_UNDER,
            "metric": None,
        }
        for (key, test), p_adjusted in zip(tests.items(), adjusted, strict=True)
    ]


def confusion_cells(tables: Mapping[tuple[str, str], intervals.IntArray]) -> list[dict[str, Any]]:
    """The confusion tables as rows, for readers of the manifest: model, metric, label, predicted, count."""
    return [
        {"model": model, "metric": metric, "label": label, "predicted": predicted, "count": int(table[row, column])}
        for (model, metric), table in sorted(tables.items())
        for row, label in enumerate(confusion.LABELS)
        for column, predicted in enumerate(confusion.PREDICTIONS)
    ]


def read_rows(counted: DataFrame) -> list[dict[str, Any]]:
    """The rows of a small table, as dictionaries on the driver; numbers are Python's own."""
    table: pa.Table = counted.toArrow()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def add_overlap(samples: DataFrame) -> DataFrame:
    """sample_id, query, label string, overlap double: what the words of the response cover, `overlap_score`."""
    fields = samples.sparkSession.createDataFrame(pa.schema(confusion.OVERLAP_FIELDS).empty_table()).schema
    columns = samples.select("sample_id", "query", "response", "contexts", "label")
    return columns.mapInArrow(confusion.overlap_batches, fields)


def find_points(scores: DataFrame, samples: DataFrame, shares: DataFrame | None, dataset: Dataset) -> DataFrame:
    """Points of the scores, and with labels those of the baselines; the constant is the most frequent label.

    samples: label and overlap of each where the data set has labels; shares: of `read_source_shares`, where its points
    are by source.
    """
    points = dataset.find_points(scores, samples, shares)
    if not dataset.has_labels:
        return points
    counts = {row["label"]: row["count"] for row in samples.groupBy("label").count().collect()}
    # Ties go to the first label
    constant = max(confusion.LABELS, key=lambda label: counts.get(label, 0))
    return points.unionByName(baseline_points(samples, constant))


def resample_labels(
    scores: DataFrame, samples: DataFrame, dataset: Dataset, *, clustered: bool, seed: int
) -> dict[tuple[str, str], Resampled]:
    """By (model, metric) the confusion table with its resamples; none for a data set without labels.

    They are drawn from counts of questions that look alike, not from samples, so that memory does not grow with these.
    """
    if not dataset.has_labels:
        return {}
    return resample_tables(count_tables(scores, samples, clustered=clustered), seed=seed)


SPREAD = "lmr_spread"
Row = Mapping[str, Any]
Owner = tuple[str, str, str]  # metric, model, convention


def average_rows(counts: Iterable[Row], *, seed: int) -> list[dict[str, Any]]:
    """Rows of `meta_evaluation`: the average LMR of each metric and model, then its spread over models.

    counts: rows of `match_counts`. A metric of a model is averaged where every data set has it: every data set counts
    the same, and the interval is joint over all of them. The spread is the standard deviation over at least two models,
    of no model. Dejl et al. 2025; methods, section 6.
    """
    by_owner = _by_owner(counts)
    datasets = sorted({dataset for found in by_owner.values() for dataset in found})
    whole = {owner: found for owner, found in by_owner.items() if len(found) == len(datasets)}
    averages = [_average(owner, [found[name] for name in datasets], seed) for owner, found in sorted(whole.items())]
    return with_published(averages) + _spreads(averages)


def has_answered(rows: Iterable[Row]) -> bool:
    """Whether rows of `meta_evaluation` are of scores that did not all fail: only `zero` leaves failed ones out."""
    return any(row["value"] is not None for row in rows if (row["measure"], row["convention"]) == (LMR, "zero"))


def missing_averages(counts: Iterable[Row]) -> list[tuple[str, str, list[str]]]:
    """Metric, model and the data sets that lack it, of what cannot be averaged.

    An average over fewer data sets would be of another measure, and stand beside the others as if it were not.
    """
    found = {(metric, model): set(sets) for (metric, model, _), sets in _by_owner(counts).items()}
    datasets = set[str]().union(*found.values())
    return [(*owner, sorted(datasets - sets)) for owner, sets in sorted(found.items()) if sets != datasets]


def _by_owner(counts: Iterable[Row]) -> dict[Owner, dict[str, list[Row]]]:
    """By metric, model and convention, then by data set: its rows of LMR. Other measures have no average."""
    by_owner: dict[Owner, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in counts:
        if row["measure"] == LMR:
            by_owner[row["metric"], row["model"], row["convention"]][row["dataset"]].append(row)
    return by_owner


def _average(owner: Owner, sets: Sequence[Sequence[Row]], seed: int) -> dict[str, Any]:
    """A row of `meta_evaluation` of the data set `average`: the mean over data sets of their means.

    n and excluded are sums over the data sets. The interval resamples each data set by itself, as they are independent.
    """
    interval = intervals.joint_bca_interval([unit_counts(rows, rows[0]["scale"]) for rows in sets], seed=seed)
    return {
        "dataset": AVERAGE,
        **dict(zip(("metric", "model", "convention"), owner, strict=True)),
        "measure": LMR,
        **interval.columns(),
        "n": sum(row["size"] * row["count"] for rows in sets for row in rows),
        "excluded": sum(row["excluded"] for rows in sets for row in rows),
    }


def _spreads(averages: Iterable[Row]) -> list[dict[str, Any]]:
    """The standard deviation (n - 1) of the averages over models, by metric and convention, without an interval.

    n counts models. The published figure is of five models under the convention `published`, and stands there alone.
    """
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in averages:
        # A model whose average is undefined says nothing of the spread
        if row["value"] is not None:
            values[row["metric"], row["convention"]].append(row["value"])
    return [
        {
            "dataset": AVERAGE,
            "metric": metric,
            "model": None,
            "convention": convention,
            "measure": SPREAD,
            "value": statistics.stdev(found),
            "ci_low": None,
            "ci_high": None,
            "n": len(found),
            "excluded": None,
            "published": PUBLISHED_SPREADS.get(metric) if convention == PUBLISHED_CONVENTION else None,
        }
        for (metric, convention), found in sorted(values.items())
        # One model has no spread; 0 would look like agreement
        if len(found) > 1
    ]


def compare_labels(
    points: DataFrame, pairs: PromptPairs, dataset: str, scale: int, *, clustered: bool, seed: int
) -> list[dict[str, Any]]:
    """The rows of the table `comparisons` for judges of one model: tests of LMR, a family of their own.

    points: as `untold.jobs.study.label_points` describes them.
    """
    if not pairs:
        return []
    judges = list(dict.fromkeys(one.model for pair in pairs for one in pair))
    # A test of two judges under a metric is that of two metrics of a judge, with their names exchanged
    sides = [F.col("metric").alias("model"), F.col("model").alias("metric")]
    turned = points.select(*sides, "convention", "measure", "unit", "cluster", "points")
    compared = {(one.model, other.model): (one, other) for one, other in pairs}
    differences = read_rows(count_differences(turned, judges, clustered=clustered))
    counted = [row for row in differences if (row["first"], row["second"]) in compared]
    rows = compare_metrics(counted, dataset, scale, seed=seed)
    return [row | _names(row["model"], *compared[row["first"], row["second"]]) for row in rows]


def compare_items(
    rows: Iterable[Mapping[str, Any]], pairs: PromptPairs, *, clustered: bool, seed: int
) -> list[dict[str, Any]]:
    """The rows of the table `comparisons` for judges of one model: tests of accuracy over labelled items.

    rows: of the table `coverage`. Items of one sample, or with `clustered` of one query, flip together. A sample counts
    where both judges have judged as many of its items.
    """
    given: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for row in rows:
        if row["judged"]:
            given[row["metric"], row["model"]][row["sample_id"]] = row
    tests = []
    for metric in dict.fromkeys(metric for metric, _ in given):
        for one, other in pairs:
            sums, sizes = _differences(given[metric, one.model], given[metric, other.model], clustered)
            test = clustered_permutation_test(sums, sizes, seed=seed)
            found = {"dataset": "coverage", "difference": test.difference, "p_value": test.p_value, "n": test.n}
            tests.append(found | {"convention": None} | _names(metric, one, other))
    adjusted = adjust_p_values([test["p_value"] for test in tests])
    return [test | {"p_adjusted": value} for test, value in zip(tests, adjusted, strict=True)]


def _names(metric: str, one: StudyEndpoint, other: StudyEndpoint) -> dict[str, Any]:
    return {"metric": metric, "model": one.name, "first": one.prompt_set, "second": other.prompt_set}


def _differences(
    one: Mapping[str, Mapping[str, Any]], other: Mapping[str, Mapping[str, Any]], clustered: bool
) -> tuple[list[int], list[int]]:
    """By sample or query: by how many items more the first agrees with people, and of how many items."""
    sums: dict[str, int] = defaultdict(int)
    sizes: dict[str, int] = defaultdict(int)
    for sample in sorted(one.keys() & other.keys()):
        first, second = one[sample], other[sample]
        if first["judged"] == second["judged"]:
            unit = first["query_id"] if clustered else sample
            sums[unit] += _agreeing(first) - _agreeing(second)
            sizes[unit] += first["judged"]
    return list(sums.values()), list(sizes.values())


def _agreeing(row: Mapping[str, Any]) -> int:
    return int(row["true_positives"] + row["true_negatives"])
