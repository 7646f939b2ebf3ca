"""What all metrics share: the tools they work with, what they give, and how statuses become scores and bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from graph.distributed import Condensed
from udfs.stages.arrow import UNASKED


@dataclass(frozen=True)
class Tools:
    """What a metric may call; everything that materialises happens behind these.

    `ask(stage, rows, bound=None)` answers a stage for rows; where these would be too many to plan with, a plan takes
    the columns requests and bytes of `bound`: how many there can be, and how long their variables. `ask_pairs(stage,
    owners, choose)` answers it for pairs of the texts of `owners`, as `udfs.facts.pairs.generate_pairs` makes them.
    `keep(name, frame)` writes a frame that is read more than once. `condense(nodes, edges)` condenses fact graphs.
    """

    ask: Callable[..., DataFrame]
    ask_pairs: Callable[[str, DataFrame, Callable[..., Any]], DataFrame]
    keep: Callable[[str, DataFrame], DataFrame]
    condense: Callable[[DataFrame, DataFrame], Condensed]


@dataclass(frozen=True)
class MetricResult:
    """What a metric gives: its rows of the tables of these names; without a graph there are no atoms and relations."""

    statements: DataFrame
    scores: DataFrame
    failures: DataFrame
    atoms: DataFrame | None = None
    relations: DataFrame | None = None


def has_failed() -> Column:
    """Whether a row of a stage's results was asked for and not got."""
    return F.col("error_type").isNotNull() & (F.col("error_type") != UNASKED)


def is_unasked() -> Column:
    """Whether a row of a stage's results was never asked for, because the run ended first."""
    return F.col("error_type").eqNullSafe(UNASKED)


def failure_rows(metric: str, stage: str, asked: DataFrame) -> DataFrame:
    """The rows of the table `failures` from a stage's results, which have the column sample_id."""
    return (
        asked.where(has_failed())
        .select(
            "sample_id", F.lit(metric).alias("metric"), F.lit(stage).alias("stage"), "request_id", "error_type", "error"
        )
        .distinct()
    )


def incomplete_samples(*asked: DataFrame) -> DataFrame:
    """Columns sample_id, lost, waiting: the samples that a stage failed, or was not asked, for."""
    flags = [
        rows.where(F.col("error_type").isNotNull()).select("sample_id", has_failed().alias("lost")) for rows in asked
    ]
    together = flags[0]
    for more in flags[1:]:
        together = together.unionByName(more)
    return together.groupBy("sample_id").agg(F.max("lost").alias("lost"), F.max(~F.col("lost")).alias("waiting"))


def score_columns(metric: str) -> list[Column]:
    """The columns of the table `scores` from sample_id, system, status, covered, uncovered, unjudged, low and high.

    S = covered / (covered + uncovered), null without statements (methods, section 1). The bounds are `low` and `high`
    where some of the sample was not judged, 0 and 1 where nothing was.
    """
    judged = F.col("status").isin("ok", "partial", "no_statements")
    covered = F.when(judged, F.coalesce("covered", F.lit(0))).cast("long")
    uncovered = F.when(judged, F.coalesce("uncovered", F.lit(0))).cast("long")
    value = F.try_divide(covered.cast("double"), (covered + uncovered).cast("double"))
    unknown = F.col("status").isin("failed", "budget")
    partial = F.col("status") == "partial"
    return [
        F.col("sample_id"),
        F.lit(metric).alias("metric"),
        F.col("system"),
        value.alias("score"),
        F.when(unknown, F.lit(0.0)).when(partial, F.col("low")).otherwise(value).alias("score_low"),
        F.when(unknown, F.lit(1.0)).when(partial, F.col("high")).otherwise(value).alias("score_high"),
        covered.alias("covered"),
        uncovered.alias("uncovered"),
        F.when(judged, F.coalesce("unjudged", F.lit(0))).cast("long").alias("unjudged"),
        F.col("status"),
    ]
