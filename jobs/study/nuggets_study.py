"""A study of nuggets: assignments against people's, and the ranking of systems under both; methods, section 17."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import fsum
from operator import itemgetter
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from scipy.stats import kendalltau

from untold.jobs.study.coverage_rows import BY_ITEM, BY_QUERY, DIGITS
from untold.jobs.study.report import by_owner, interval, section
from untold.jobs.study.study_inputs import MetaEvaluationError, read_columns
from untold.jobs.tables import META_EVALUATION
from untold.udfs.errors import shorten
from untold.udfs.facts.nugget_measures import SUPPORTS, Nugget, measures_of
from untold.udfs.statistics.confusion import accuracy, kappa
from untold.udfs.statistics.correlation import correlate
from untold.udfs.statistics.intervals import FloatArray, IntArray, bca_interval
from untold.udfs.statistics.question_resampling import total_interval

DATASET = METRIC = "nuggets"
READS = ("query_id", "references")
ASSIGNED = ("metric", "sample_id", "reference_id", "importance", "weight", "support")
KAPPA, ACCURACY, SYSTEMS, WITHIN = MEASURES = ("kappa", "accuracy", "kendall", "kendall_within_query")
PEOPLE, JUDGE = "people", "support"
Row = dict[str, Any]
# By sample and reference_id
Labels = Mapping[tuple[str, str], Row]


def label_nuggets(about: str, samples: DataFrame) -> Labels:
    """topic, system and people (the label that most annotators gave, None on a tie) of each labelled nugget.

    Raises MetaEvaluationError for labels that are no assignments, and where there are none.
    """
    if "references" not in samples.columns:
        raise MetaEvaluationError(f"{about}: no column `references`; give each nugget {{id, text, importance, labels}}")
    topic = F.col("query_id") if "query_id" in samples.columns else F.col("query")
    one = F.explode("references").alias("one")
    rows = samples.select("sample_id", F.coalesce(topic, "query").alias("topic"), "system", one)
    named = rows.select("sample_id", "topic", "system", F.col("one.id").alias("reference_id"), "one.labels")
    found = {}
    for row in named.where(F.size(F.array_compact("labels")) > 0).collect():
        labels = [label for label in row["labels"] if label is not None]
        unknown = next((label for label in labels if label not in SUPPORTS), None)
        if unknown is not None:
            raise MetaEvaluationError(
                f"{about}: sample `{shorten(row['sample_id'])}` has the label `{shorten(unknown)}`; "
                f"an assignment is one of {', '.join(SUPPORTS)}"
            )
        known = {"topic": row["topic"], "system": row["system"], PEOPLE: _majority(labels)}
        found[row["sample_id"], row["reference_id"]] = known
    if not found:
        raise MetaEvaluationError(f"{about}: no nugget has a label; give each {{text, importance, assignment}}")
    return found


def _majority(labels: Iterable[str]) -> str | None:
    (first, most), *others = Counter(labels).most_common(2)
    return None if others and others[0][1] == most else first


def read_assignments(spark: SparkSession, places: Mapping[str, str], labels: Labels) -> dict[str, list[Row]]:
    """By model the labelled nuggets that its run kept: sample_id, importance, weight, support and what labels say."""
    found = {}
    for model, place in places.items():
        table = read_columns(spark, f"{model} ({place})", place, "statements", ASSIGNED)
        rows = table.where((F.col("metric") == METRIC) & F.col("importance").isNotNull()).select(*ASSIGNED[1:])
        own = [row.asDict() for row in rows.collect() if (row["sample_id"], row["reference_id"]) in labels]
        if not own:
            raise MetaEvaluationError(f"{model} ({place}): no nugget of it is labelled; give a run of the same input")
        found[model] = [row | labels[row["sample_id"], row["reference_id"]] for row in own]
    return found


def evaluation_rows(assigned: Mapping[str, Sequence[Row]], score: str, *, clustered: bool, seed: int) -> list[Row]:
    """The rows of the table `meta_evaluation`. Intervals resample samples, or with `clustered` whole queries."""
    found = [
        {"metric": METRIC, "model": model} | row
        for model, rows in assigned.items()
        for row in (*_agreements(rows, clustered, seed), *_rankings(rows, score, seed))
    ]
    return [{name: ({"dataset": DATASET} | row).get(name) for name in META_EVALUATION.names} for row in found]


def _agreements(rows: Sequence[Row], clustered: bool, seed: int) -> Iterator[Row]:
    """Of the three labels, over the nuggets that both have labelled."""
    known = _known(rows)
    by_sample = _grouped(known, "sample_id")
    clusters = [own[0]["topic"] for own in by_sample] if clustered else None
    cells = np.zeros((len(by_sample), len(SUPPORTS), len(SUPPORTS)), np.int64)
    for table, own in zip(cells, by_sample, strict=True):
        for row in own:
            table[SUPPORTS.index(row[PEOPLE]), SUPPORTS.index(row[JUDGE])] += 1
    for measure, of_table in ((KAPPA, kappa), (ACCURACY, accuracy)):

        def of_totals(totals: IntArray, of_table: Any = of_table) -> FloatArray:
            found: FloatArray = of_table(totals.reshape(*totals.shape[:-1], len(SUPPORTS), len(SUPPORTS)))
            return found

        one = total_interval(of_totals, cells.reshape(len(by_sample), len(SUPPORTS) ** 2), clusters, seed=seed)
        sizes = {"n": len(known), "excluded": len(rows) - len(known)}
        yield {"measure": measure, "level": BY_ITEM, **one.columns(), **sizes}


def _known(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row[PEOPLE] is not None and row[JUDGE] is not None]


def _rankings(rows: Sequence[Row], score: str, seed: int) -> Iterator[Row]:
    """Kendall's tau-b of the systems' means, and the mean of that within each query."""
    scores = _scores(rows, score)
    by_system = _means(scores)
    people, judge = zip(*by_system, strict=True) if by_system else ((), ())
    overall = correlate(people, judge, seed=seed)["kendall"]
    ends = {"value": overall.value, "ci_low": overall.low, "ci_high": overall.high, "p_value": overall.p_value}
    yield {"measure": SYSTEMS, "level": "system", **ends, "n": len(by_system), "excluded": 0}
    by_topic = _grouped(scores, "topic")
    taus = [tau for own in by_topic if (tau := _tau(_means(own))) is not None]
    within = bca_interval(taus, [1] * len(taus), seed=seed)
    sizes = {"n": len(taus), "excluded": len(by_topic) - len(taus)}
    yield {"measure": WITHIN, "level": BY_QUERY, **within.columns(), **sizes}


def _scores(rows: Sequence[Row], score: str) -> list[Row]:
    """topic, system, people and support: the score of each sample by both, where both are defined."""
    found = []
    for own in _grouped(_known(rows), "sample_id"):
        values = {
            who: measures_of(Nugget(row["importance"], row[who], row["weight"]) for row in own)[score].value
            for who in (PEOPLE, JUDGE)
        }
        if own[0]["system"] is not None and None not in values.values():
            found.append({"topic": own[0]["topic"], "system": own[0]["system"], **values})
    return found


def _grouped(rows: Iterable[Row], name: str) -> list[list[Row]]:
    """The rows by the value of a column, in the order of the values."""
    key = itemgetter(name)
    return [list(own) for _, own in groupby(sorted(rows, key=key), key=key)]


def _means(scores: Iterable[Row]) -> list[tuple[float, float]]:
    """The means of both scores of each system, ties as fractions made ties as numbers."""

    def mean(own: Sequence[Row], who: str) -> float:
        return round(fsum(row[who] for row in own) / len(own), DIGITS)

    return [(mean(own, PEOPLE), mean(own, JUDGE)) for own in _grouped(scores, "system")]


def _tau(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Kendall's tau-b; None where one of both tells no system from another."""
    people, judge = zip(*pairs, strict=True)
    if len(set(people)) < 2 or len(set(judge)) < 2:
        return None
    return float(kendalltau(people, judge).statistic)


def render(rows: Sequence[Row], score: str, *, clustered: bool) -> str:
    """The report as Markdown. rows: of the table `meta_evaluation`, of one study."""
    lines = [
        [model or "-", f"{own[KAPPA]['n']:,}", *(interval(own[name]) for name in MEASURES)]
        for (_, model), own in by_owner(rows, MEASURES).items()
    ]
    units = "whole queries" if clustered else "single samples"
    note = (
        f"kappa and accuracy are of single assignments; intervals resample {units}. kendall is tau-b of the systems' "
        f"mean `{score}` by people's assignments and the model's, kendall_within_query the mean of tau-b in each query."
    )
    parts = ["# Meta-evaluation on nuggets", section("Assignments", note, ["model", "n", *MEASURES], lines)]
    return "\n\n".join(parts) + "\n"
