"""Compute the rows of a study of coverage from what Spark has counted; methods, sections 6 and 7.

A study holds every labelled sample on the driver, a few numbers of each (Samarinas et al. 2025): a correlation of ranks
needs them all, and people have labelled them one by one. Measures of single items need no verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.run.session import spark_schema
from untold.jobs.study.coverage_items import ITEM, ItemVerdicts, read_rows
from untold.jobs.tables import META_EVALUATION
from untold.udfs.samples.data_sets import MUST_HAVE, NICE_TO_HAVE
from untold.udfs.samples.labelled import OVERLAPS, overlap_batches
from untold.udfs.statistics.confusion import accuracy, kappa, macro_f1
from untold.udfs.statistics.correlation import correlate
from untold.udfs.statistics.intervals import FloatArray, IntArray
from untold.udfs.statistics.item_agreement import fleiss_kappa, item_averages, krippendorff_alpha
from untold.udfs.statistics.question_resampling import auc, score_counts, total_interval

DATASET = "coverage"
BY_SAMPLE, BY_QUERY, BY_ITEM = "sample", "query", "item"
KAPPA, ALPHA = "fleiss_kappa", "krippendorff_alpha"
COUNTS = ("true_positives", "false_positives", "false_negatives", "true_negatives")
# Of all labelled items together: covered and not covered are the two labels
AGREEMENTS = {"kappa": kappa, "macro_f1": macro_f1, "accuracy": accuracy}
# Means that are equal as fractions are tied as numbers too: their last bits are dropped
DIGITS = 12
Row = dict[str, Any]
Owner = tuple[str, str | None]  # metric or baseline, and model


@dataclass(frozen=True)
class ItemLabels:
    """What annotators did: items, those with a majority, those split evenly; kappa and alpha over items of two labels.

    An item that is neither labelled nor tied has no label at all.
    """

    items: int
    labelled: int
    ties: int
    kappa: float | None
    alpha: float | None
    compared: int


def count_labels(votes: Iterable[Mapping[str, Any]]) -> ItemLabels:
    """Labels of all items, from rows of yes, no and count: how many items have so many of each."""
    table, items, labelled, ties = [], 0, 0, 0
    for row in votes:
        items += row["count"]
        labelled += row["count"] * (row["yes"] != row["no"])
        ties += row["count"] * (row["yes"] == row["no"] > 0)
        if row["yes"] + row["no"] >= 2:
            table += [(row["yes"], row["no"])] * row["count"]
    return ItemLabels(items, labelled, ties, fleiss_kappa(table), krippendorff_alpha(table), len(table))


def sample_rows(
    people: Sequence[Mapping[str, Any]],
    judged: Iterable[Mapping[str, Any]],
    baselines: Iterable[Mapping[str, Any]],
    owners: Sequence[Owner],
) -> list[Row]:
    """The rows of the table `coverage`: each sample under each metric of a model, then under each baseline.

    people: rows of `jobs.study.coverage_items.human_coverage`; judged: of `metric_coverage`; baselines: of
    `similarity_baselines`. value and counts are null where the metric gave nothing of a sample.
    """
    given = {((row["metric"], row["model"]), row["sample_id"]): row for row in judged}
    by_sample = {row["sample_id"]: row for row in baselines}
    names = [name for name in next(iter(by_sample.values()), {}) if name != "sample_id"]
    rows = [_row(one, owner, given.get((owner, one["sample_id"]), {})) for owner in owners for one in people]
    for name in names:
        rows += [_row(one, (name, None), {"value": by_sample.get(one["sample_id"], {}).get(name)}) for one in people]
    return rows


def _row(person: Mapping[str, Any], owner: Owner, found: Mapping[str, Any]) -> Row:
    named = {"sample_id": person["sample_id"], "query_id": person["cluster"], "metric": owner[0], "model": owner[1]}
    people = {name: person[name] for name in ("human", "labelled", "ties")}
    return named | people | {name: found.get(name) for name in ("value", *COUNTS, "judged")}


def evaluation_rows(
    rows: Sequence[Row], labels: ItemLabels, more: Sequence[Row] = (), *, clustered: bool, seed: int
) -> list[Row]:
    """The rows of the table `meta_evaluation`: by metric and model correlations and covered items, baselines, kappa.

    rows: of the table `coverage`; more: rows of single items and of models, which come last.
    With `clustered`, intervals resample queries, and correlations stand by query too:
    of the means of each query's samples.
    """
    by_owner: dict[Owner, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: str(row["sample_id"])):
        by_owner[row["metric"], row["model"]].append(row)
    found: list[Row] = []
    for metric, model in dict.fromkeys((row["metric"], row["model"]) for row in rows):
        own = by_owner[metric, model]
        found += [{"metric": metric, "model": model} | row for row in _correlations(own, clustered, seed)]
        if model is not None:
            found += [{"metric": metric, "model": model} | row for row in _items(own, clustered, seed)]
    sizes = {"level": BY_ITEM, "n": labels.compared, "excluded": labels.items - labels.compared}
    found.append({"measure": KAPPA, "value": labels.kappa, **sizes})
    found.append({"measure": ALPHA, "value": labels.alpha, **sizes})
    found += [{"level": BY_ITEM} | row for row in more]
    return [{name: ({"dataset": DATASET} | row).get(name) for name in META_EVALUATION.names} for row in found]


def _correlations(rows: Sequence[Row], clustered: bool, seed: int) -> list[Row]:
    """Of samples that people and metric both judged; the others are left out and counted."""
    known = [row for row in rows if row["human"] is not None and row["value"] is not None]
    clusters = [row["query_id"] for row in known] if clustered else None
    pairs = [row["human"] for row in known], [row["value"] for row in known]
    found = _correlation_rows(BY_SAMPLE, pairs, clusters, len(rows) - len(known), seed)
    if clustered:
        queries = {row["query_id"] for row in rows}
        means = _query_means(known)
        found += _correlation_rows(BY_QUERY, means, None, len(queries) - len(means[0]), seed)
    return found


def _correlation_rows(
    level: str, pairs: tuple[list[float], list[float]], clusters: list[str] | None, excluded: int, seed: int
) -> list[Row]:
    return [
        {
            "measure": name,
            "level": level,
            "value": one.value,
            "p_value": one.p_value,
            "ci_low": one.low,
            "ci_high": one.high,
            "n": one.n,
            "excluded": excluded,
        }
        for name, one in correlate(*pairs, clusters, seed=seed).items()
    ]


def _query_means(known: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Mean human coverage and mean value of the samples of each query, by the queries' names."""
    by_query: dict[str, list[Row]] = defaultdict(list)
    for row in known:
        by_query[row["query_id"]].append(row)
    human, value = (
        [round(fsum(row[name] for row in own) / len(own), DIGITS) for _, own in sorted(by_query.items())]
        for name in ("human", "value")
    )
    return human, value


def _items(rows: Sequence[Row], clustered: bool, seed: int) -> list[Row]:
    """Covered items: macro over the samples with a judged label, micro over their items."""
    judged = [row for row in rows if row["judged"]]
    clusters = [row["query_id"] for row in judged] if clustered else None
    hits, wrong, missed = ([row[name] for row in judged] for name in COUNTS[:3])
    unjudged = {"macro": len(rows) - len(judged), "micro": sum(row["labelled"] - (row["judged"] or 0) for row in rows)}
    averages = [
        {
            "measure": f"{measure}_{average}",
            "level": BY_SAMPLE if average == "macro" else BY_ITEM,
            **one.interval.columns(),
            "n": one.n,
            "excluded": one.excluded + unjudged[average],
        }
        for (measure, average), one in item_averages(hits, wrong, missed, clusters, seed=seed).items()
    ]
    return averages + _agreements(judged, clusters, unjudged["micro"], seed)


def _agreements(rows: Sequence[Row], clusters: list[str] | None, excluded: int, seed: int) -> list[Row]:
    """Cohen's kappa of metric and majority, macro-F1 and accuracy, over all labelled items; samples are resampled."""
    counts = [[row[name] for name in COUNTS] for row in rows] or [[0] * len(COUNTS)]
    found = []
    for name, measure in AGREEMENTS.items():

        def of_counts(totals: IntArray, measure: Callable[[IntArray], FloatArray] = measure) -> FloatArray:
            return measure(totals.reshape(*totals.shape[:-1], 2, 2))

        one = total_interval(of_counts, counts, clusters, seed=seed)
        sizes = {"n": sum(map(sum, counts)), "excluded": excluded}
        found.append({"measure": name, "level": BY_ITEM} | one.columns() | sizes)
    return found


OVERLAP, CONSTANT, ANNOTATOR = "word_overlap", "constant", "annotator"
AUC, WEIGHT_AUC, ACCURACY = "auc", "auc_weight", "accuracy"
# With two annotators a majority is both of them
LEAST_ANNOTATORS = 3


def overlap_rows(samples: DataFrame, judged: DataFrame, *, clustered: bool, seed: int) -> list[Row]:
    """How well the share of an item's words in the response tells what people found covered: the AUC of a baseline.

    Beside it how many labels a constant would match. samples: of `read_items`; judged: of `judge_items`. Items without
    a majority, a word or a response are left out.
    """
    told = samples.select("sample_id", "response", "items").mapInArrow(overlap_batches, spark_schema(OVERLAPS))
    unit = F.col("cluster") if clustered else F.col("sample_id")
    both = (
        judged.select(*ITEM, "said")
        .join(told, on=ITEM, how="left")
        .join(samples.select("sample_id", unit.alias("unit")), on="sample_id", how="inner")
    )
    rows = read_rows(both.groupBy("unit", "overlap", "said").agg(F.count("*").alias("count")))
    labelled = [row for row in rows if row["said"] is not None]
    size, covered = sum(row["count"] for row in labelled), sum(row["count"] for row in labelled if row["said"])
    everything = sum(row["count"] for row in rows)
    known = [row for row in labelled if row["overlap"] is not None]
    share = {"value": max(covered, size - covered) / size if size else None, "n": size, "excluded": everything - size}
    return [
        {"metric": OVERLAP, "measure": AUC} | _auc(known, "overlap", "said", everything, seed),
        {"metric": CONSTANT, "measure": ACCURACY} | share,
    ]


def weight_rows(
    verdicts: ItemVerdicts, samples: DataFrame, judged: DataFrame, *, clustered: bool, seed: int
) -> list[Row]:
    """For each metric that weighs references, the AUC of its weights for must-have against nice-to-have ones.

    Arguments as `overlap_rows`. A metric that was given the weights tells nothing of ratings by this: its AUC is that
    of the weights given.
    """
    unit = F.col("cluster") if clustered else F.col("sample_id")
    typed = judged.where(F.col("type").isin(MUST_HAVE, NICE_TO_HAVE)).select(*ITEM, "type")
    weighed = verdicts.rows.where("weight IS NOT NULL").select("metric", "model", *ITEM, "weight")
    both = weighed.join(typed, on=ITEM, how="inner").join(
        samples.select("sample_id", unit.alias("unit")), on="sample_id", how="inner"
    )
    must = (F.col("type") == MUST_HAVE).alias("must")
    rows = read_rows(both.groupBy("metric", "model", "unit", "weight", must).agg(F.count("*").alias("count")))
    if not rows:
        return []
    items = typed.count()
    owners = sorted({(row["metric"], row["model"]) for row in rows})
    found = []
    for metric, model in owners:
        own = [row for row in rows if (row["metric"], row["model"]) == (metric, model)]
        named = {"metric": metric, "model": model, "measure": WEIGHT_AUC}
        found.append(named | _auc(own, "weight", "must", items, seed))
    return found


def _auc(rows: Sequence[Row], score: str, positive: str, everything: int, seed: int) -> Row:
    """An AUC with its interval, of rows of unit, score, whether positive, and count."""
    each = [row for row in rows for _ in range(row["count"])]
    counts, _ = score_counts(
        [row[score] for row in each], [row[positive] for row in each], [row["unit"] for row in each]
    )
    found = total_interval(auc, counts, seed=seed)
    sizes = {"n": len(each), "excluded": everything - len(each)}
    return {**found.columns(), **sizes}


def annotator_rows(judged: DataFrame) -> list[Row]:
    """How often each annotator is with the majority, by the place of the label, where there are three or more.

    It is the ceiling of any metric. judged: of `judge_items`. An item that an annotator said nothing of, or without a
    majority, is left out.
    """
    several = judged.where(F.col("yes") + F.col("no") >= LEAST_ANNOTATORS)
    each = several.select(F.posexplode("agreed").alias("place", "with"))
    told = each.groupBy("place").agg(
        F.count("*").alias("all"), F.count("with").alias("n"), F.count_if("with").alias("hits")
    )
    return [
        {
            "metric": f"{ANNOTATOR}_{row['place'] + 1}",
            "measure": ACCURACY,
            "value": row["hits"] / row["n"] if row["n"] else None,
            "n": row["n"],
            "excluded": row["all"] - row["n"],
        }
        for row in sorted(read_rows(told), key=lambda row: int(row["place"]))
    ]
