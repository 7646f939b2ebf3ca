"""What was lost and what was not asked, in the results of a stage: what that means, in one place."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.udfs.stages.arrow import UNASKED


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
    """The rows of samples that a stage left nothing of unanswered; the others' would be paid for in vain."""
    incomplete = asked.where(F.col("error_type").isNotNull()).select("sample_id").distinct()
    return rows.join(incomplete, on="sample_id", how="left_anti")
