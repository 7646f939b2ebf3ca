"""Conflicts: two statements that contradict each other, and which of them a response conveys (methods, section 5)."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.graph.views import CONTRADICTIONS
from untold.jobs.metrics.base import Bounds
from untold.jobs.metrics.scores import measure_rows

NUMBER, COVERAGE, ONE_SIDED = "conflicts", "conflict_coverage", "one_sided"
MEASURES: Bounds = {NUMBER: (None, None), COVERAGE: (0.0, 1.0), ONE_SIDED: (0.0, 1.0)}
SIDES = ("first", "second")


def contradicting_statements(relations: DataFrame, members: DataFrame) -> DataFrame:
    """Columns sample_id, first, second: different statements with members that contradict each other, each pair once.

    relations: sample_id, source, target, relation; members: sample_id, node, statement, null for no statement. A
    statement is named by its number, and `first` is the smaller one.
    """
    found = relations.where(F.col("relation").isin(*CONTRADICTIONS)).select("sample_id", "source", "target")
    places = members.where(F.col("statement").isNotNull()).select("sample_id", "node", "statement")
    for end in ("source", "target"):
        of_end = places.select("sample_id", F.col("node").alias(end), F.col("statement").alias(f"of_{end}"))
        found = found.join(of_end, on=["sample_id", end], how="inner")
    pairs = found.where(F.col("of_source") != F.col("of_target"))
    ends = "of_source", "of_target"
    return pairs.select("sample_id", F.least(*ends).alias("first"), F.greatest(*ends).alias("second")).distinct()


def conflict_rows(metric: str, pairs: DataFrame, statements: DataFrame) -> DataFrame:
    """The table `conflicts` (docs/contract.md, "Tables").

    pairs: sample_id, first, second, which name statements; statements: sample_id, statement, statement_id, text,
    covered, sources.
    """
    both = reduce(lambda rows, side: _with_side(rows, side, statements), SIDES, pairs)
    coverage = (
        F.when(F.col("first_covered").isNull() | F.col("second_covered").isNull(), F.lit(None))
        .when(F.col("first_covered") & F.col("second_covered"), "both")
        .when(F.col("first_covered"), "first")
        .when(F.col("second_covered"), "second")
        .otherwise("neither")
    )
    columns = ("first_id", "second_id", "first", "second", "first_sources", "second_sources")
    return both.select("sample_id", F.lit(metric).alias("metric"), *columns, coverage.alias("coverage"))


def _with_side(pairs: DataFrame, side: str, statements: DataFrame) -> DataFrame:
    """The pairs with id, text, sources and coverage of the statement that a side names."""
    told = statements.select(
        "sample_id",
        F.col("statement").alias(f"{side}_statement"),
        F.col("statement_id").alias(f"{side}_id"),
        F.col("text").alias(side),
        F.col("sources").alias(f"{side}_sources"),
        F.col("covered").alias(f"{side}_covered"),
    )
    named = pairs.withColumnRenamed(side, f"{side}_statement")
    return named.join(told, on=["sample_id", f"{side}_statement"], how="inner")


def conflict_measures(metric: str, scores: DataFrame, conflicts: DataFrame) -> DataFrame:
    """Rows of the table `measures`: `MEASURES` of each sample, from the tables `scores` and `conflicts`.

    A relation that is missing may be any, so that the shares of a partial sample lie between 0 and 1.
    """
    counts = conflicts.groupBy("sample_id").agg(
        F.count("*").alias(NUMBER),
        F.count("coverage").alias("judged"),
        F.count_if(F.col("coverage") == "both").alias(COVERAGE),
        F.count_if(F.col("coverage").isin(*SIDES)).alias(ONE_SIDED),
    )
    rows = scores.select("sample_id", "status").join(counts, on="sample_id", how="left")
    number, null = F.coalesce(NUMBER, F.lit(0)).cast("double"), F.lit(None).cast("double")
    measures = [_measure(NUMBER, number, null, null)]
    for name in (COVERAGE, ONE_SIDED):
        share = F.try_divide(F.col(name), F.col("judged"))
        ends = (F.when(F.col("status") == "partial", F.lit(end)).otherwise(share) for end in MEASURES[name])
        measures.append(_measure(name, share, *ends))
    return measure_rows(rows.withColumn("measures", F.array(*measures)), metric, MEASURES)


def _measure(name: str, value: Column, low: Column, high: Column) -> Column:
    columns = {"value": value, "value_low": low, "value_high": high}
    return F.struct(F.lit(name).alias("measure"), *(value.alias(column) for column, value in columns.items()))
