"""How far a metric's coverage follows people's: the rows of a study of coverage, from what Spark has counted.

Samarinas et al. 2025; methods, sections 6 and 7. A study holds every labelled sample on the driver, a few numbers of
each: a correlation of ranks needs them all, and people have labelled them one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from untold.jobs.tables import META_EVALUATION
from untold.udfs.statistics.confusion import accuracy, kappa, macro_f1
from untold.udfs.statistics.correlation import correlate
from untold.udfs.statistics.intervals import FloatArray, IntArray
from untold.udfs.statistics.item_agreement import fleiss_kappa, item_averages, krippendorff_alpha
from untold.udfs.statistics.totals import total_interval

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

    rows: of the table `coverage`; more: rows of single items (`jobs.study.itemwise`) and of models, which come last.
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
    sizes = {"level": BY_ITEM, "n": labels.compared, "left_out": labels.items - labels.compared}
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
    level: str, pairs: tuple[list[float], list[float]], clusters: list[str] | None, left_out: int, seed: int
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
            "left_out": left_out,
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
            "left_out": one.left_out + unjudged[average],
        }
        for (measure, average), one in item_averages(hits, wrong, missed, clusters, seed=seed).items()
    ]
    return averages + _agreements(judged, clusters, unjudged["micro"], seed)


def _agreements(rows: Sequence[Row], clusters: list[str] | None, left_out: int, seed: int) -> list[Row]:
    """Cohen's kappa of metric and majority, macro-F1 and accuracy, over all labelled items; samples are resampled."""
    counts = [[row[name] for name in COUNTS] for row in rows] or [[0] * len(COUNTS)]
    found = []
    for name, measure in AGREEMENTS.items():

        def of_counts(totals: IntArray, measure: Callable[[IntArray], FloatArray] = measure) -> FloatArray:
            return measure(totals.reshape(*totals.shape[:-1], 2, 2))

        one = total_interval(of_counts, counts, clusters, seed=seed)
        sizes = {"n": sum(map(sum, counts)), "left_out": left_out}
        found.append({"measure": name, "level": BY_ITEM} | one.columns() | sizes)
    return found
