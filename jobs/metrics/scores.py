"""Scores apart from their formula: what a sample's status is, and what the unjudged part could make of a value.

docs/contract.md, "Scores" and "Bounds". Columns in, columns out: every metric's table `scores` is made of these.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

# Statuses whose counts are numbers, and those of which nothing is known; together all of the contract
JUDGED = ("ok", "partial", "no_statements")
UNKNOWN = ("failed", "budget")


def status_of(*, lost: Column, waiting: Column, empty: Column, partial: Column) -> Column:
    """A sample's status from what befell it; null counts as no.

    lost: something that it needs failed; waiting: something was never asked; empty: nothing to score by; partial: some
    of it was not judged. The worst wins, in this order: what failed would not be mended by asking the rest, and without
    all answers nobody knows whether a sample is empty.
    """
    return (
        F.when(lost, "failed").when(waiting, "budget").when(empty, "no_statements").when(partial, "partial")
    ).otherwise("ok")


def bounded(value: Column, low: Column, high: Column) -> list[Column]:
    """The columns score, score_low, score_high of a sample with the column `status` (docs/contract.md, "Bounds").

    `value` is the formula over what was judged, null where it is undefined; `low` and `high` count where some of the
    sample was not judged, 0 and 1 where nothing was.
    """
    known = F.when(F.col("status").isin(*JUDGED), value)
    unknown, partial = F.col("status").isin(*UNKNOWN), F.col("status") == "partial"
    return [
        known.alias("score"),
        # From 0 to 1, the whole range: an unknown sample narrows no mean's bounds
        F.when(unknown, F.lit(0.0)).when(partial, low).otherwise(known).alias("score_low"),
        F.when(unknown, F.lit(1.0)).when(partial, high).otherwise(known).alias("score_high"),
    ]


def is_blank(name: str) -> Column:
    """Whether a text says nothing, by what Unicode calls white space."""
    return ~F.col(name).rlike(r"(?U)\S")


def counted(name: str) -> Column:
    """A count of a sample: 0 where there is none, null where the sample was not judged."""
    return F.when(F.col("status").isin(*JUDGED), F.coalesce(F.col(name), F.lit(0))).cast("long").alias(name)


def comprehensiveness() -> Column:
    """S = covered / (covered + uncovered), null without statements (docs/methods.md, section 1).

    3 covered and 1 uncovered make 0.75. Reads long columns covered and uncovered, null as 0.
    """
    covered, uncovered = (F.coalesce(F.col(name), F.lit(0)).cast("double") for name in ("covered", "uncovered"))
    return F.try_divide(covered, covered + uncovered)


def measured_scores(judged: DataFrame, metric: str, measure: str, dropped: Column) -> DataFrame:
    """The table `scores` of a metric whose score is one of its measures.

    judged: sample_id, system, status, covered, uncovered, unjudged, and measures array<struct<measure, value,
    value_low, value_high>>; dropped: a count, null as 0.
    """
    one = F.filter("measures", lambda row: row["measure"] == measure)[0]
    return judged.withColumn("dropped", dropped).select(
        "sample_id",
        F.lit(metric).alias("metric"),
        "system",
        *bounded(one["value"], one["value_low"], one["value_high"]),
        *map(counted, ("covered", "uncovered", "unjudged", "dropped")),
        "status",
    )


def measure_rows(judged: DataFrame, metric: str, bounds: Mapping[str, tuple[float | None, float | None]]) -> DataFrame:
    """The table `measures`: of `judged` samples (as `measured_scores`) what is known, of the others the bounds."""
    is_known = F.col("status").isin(*JUDGED)
    known = judged.where(is_known).select("sample_id", F.lit(metric).alias("metric"), F.inline("measures"))
    return known.unionByName(unknown_measures(judged.where(~is_known), metric, bounds))


def unknown_measures(
    samples: DataFrame, metric: str, bounds: Mapping[str, tuple[float | None, float | None]]
) -> DataFrame:
    """Rows of the table `measures` of samples of which nothing is known. `bounds`: of each measure, low and high."""
    null = F.lit(None).cast("double")
    rows = [
        F.struct(
            F.lit(name).alias("measure"),
            null.alias("value"),
            F.lit(low).cast("double").alias("value_low"),
            F.lit(high).cast("double").alias("value_high"),
        )
        for name, (low, high) in bounds.items()
    ]
    exploded = samples.select("sample_id", F.explode(F.array(*rows)).alias("one"))
    return exploded.select("sample_id", F.lit(metric).alias("metric"), "one.*")


def score_columns(metric: str, dropped: Column | None = None) -> list[Column]:
    """The columns of the table `scores` of a comprehensiveness metric.

    From sample_id, system, status, covered, uncovered, unjudged, low and high. `dropped` counts the items that a list
    gave without a source; without it there are none.
    """
    judged = F.col("status").isin("ok", "partial", "no_statements")
    without_source = F.lit(0) if dropped is None else F.coalesce(dropped, F.lit(0))
    return [
        F.col("sample_id"),
        F.lit(metric).alias("metric"),
        F.col("system"),
        *bounded(comprehensiveness(), F.col("low"), F.col("high")),
        *map(counted, ("covered", "uncovered", "unjudged")),
        F.when(judged, without_source).cast("long").alias("dropped"),
        F.col("status"),
    ]
