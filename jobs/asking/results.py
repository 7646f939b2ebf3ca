"""The results of a stage: their columns, and what failed or was not asked in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from untold.jobs.run.session import fields_of, spark_schema
from untold.jobs.tables import FAILURES
from untold.udfs.llm.keys import Stage
from untold.udfs.stages import definition_of
from untold.udfs.stages.arrow import LEAKED, UNASKED

STRING = T.StringType()


def result_schema(stage: Stage, identified: DataFrame, carry: Sequence[str]) -> T.StructType:
    """What asking a stage gives: the columns of `carry`, and those of `untold.udfs.stages.arrow.reading_of`."""
    definition = definition_of(stage.name)
    output = spark_schema(definition.results)
    errors = [T.StructField(name, STRING) for name in ("error_type", "error")]
    leaked = [T.StructField(LEAKED, T.LongType())] if definition.items else []
    return T.StructType([*fields_of(identified, (*carry, "request_id")), *output.fields, *errors, *leaked])


def without_requests(identified: DataFrame, schema: T.StructType, carry: Sequence[str]) -> DataFrame:
    """The rows that have no request, as results: everything but the columns of `carry` is null."""
    nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields[len(carry) :]]
    return identified.where(F.col("request_id").isNull()).select(*carry, *nulls)


def has_failed() -> Column:
    """Whether a row of a stage's results was asked for and not got: a row of the table `failures`."""
    return F.col("error_type").isNotNull() & (F.col("error_type") != UNASKED)


def is_unasked() -> Column:
    """Whether a row of a stage's results was never asked for, because the run ended first."""
    return F.col("error_type").eqNullSafe(UNASKED)


def failure_rows(metric: str, stage: str, asked: DataFrame) -> DataFrame:
    """The rows of the table `failures` from a stage's results, which have the column sample_id.

    One a sample and request, however many of its rows need that; a request that was never asked is no failure.
    """
    return (
        asked.where(has_failed())
        .select(
            "sample_id", F.lit(metric).alias("metric"), F.lit(stage).alias("stage"), "request_id", "error_type", "error"
        )
        .distinct()
    )


def invalid_rows(invalid: DataFrame, metric: str | None = None) -> DataFrame:
    """The rows of the table `failures` for rows of the input that cannot be used (sample_id, error)."""
    known = {"metric": F.lit(metric), "stage": F.lit("input"), "error_type": F.lit("invalid_input")}
    own = {**known, "request_id": F.lit(None), "sample_id": F.col("sample_id"), "error": F.col("error")}
    return invalid.select(*[own[name].cast("string").alias(name) for name in FAILURES.names])


def incomplete_samples(*asked: DataFrame) -> DataFrame:
    """Columns sample_id, lost, waiting: the samples that a stage failed, or was not asked, for.

    Both may be true of one sample. The frames of `asked` have the columns sample_id and error_type; a sample that is
    not in the result is complete.
    """
    flags = [
        rows.where(F.col("error_type").isNotNull()).select("sample_id", has_failed().alias("lost")) for rows in asked
    ]
    together = reduce(DataFrame.unionByName, flags)
    return together.groupBy("sample_id").agg(F.max("lost").alias("lost"), F.max(~F.col("lost")).alias("waiting"))


def leave_complete(rows: DataFrame, asked: DataFrame) -> DataFrame:
    """Rows whose samples have no unanswered requests; the others' would be paid for in vain."""
    incomplete = asked.where(F.col("error_type").isNotNull()).select("sample_id").distinct()
    return rows.join(incomplete, on="sample_id", how="left_anti")
