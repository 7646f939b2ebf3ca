"""The contexts of the samples, condensed to what bears on the query: what every metric begins with."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.metrics.base import has_failed, is_unasked

STAGE = "summarise_context"


def condense_contexts(samples: DataFrame, ask: Callable[[str, DataFrame], DataFrame], *, summarise: bool) -> DataFrame:
    """Columns sample_id, position, context_id, summary, request_id, error_type, error: one row a context.

    `summary` is null where the context has nothing that bears on the query; without `summarise` it is the text itself.
    """
    contexts = samples.select("sample_id", "query", F.posexplode("contexts").alias("position", "context")).select(
        "sample_id", "position", F.col("context.id").alias("context_id"), "query", F.col("context.text").alias("text")
    )
    if summarise:
        return ask(STAGE, contexts)
    missing = [F.lit(None).cast("string").alias(name) for name in ("request_id", "error_type", "error")]
    return contexts.select("sample_id", "position", "context_id", F.col("text").alias("summary"), *missing)


def gather_contexts(contexts: DataFrame) -> DataFrame:
    """Columns sample_id, kept array<struct<position, context_id, summary>>, lost, waiting: one row a sample."""
    kept = F.when(F.col("summary").isNotNull(), F.struct("position", "context_id", "summary"))
    return contexts.groupBy("sample_id").agg(
        F.array_sort(F.collect_list(kept)).alias("kept"),
        F.max(has_failed()).alias("lost"),
        F.max(is_unasked()).alias("waiting"),
    )


def is_ready() -> Column:
    """Whether all contexts of a gathered sample are known, and some are left."""
    return ~F.col("lost") & ~F.col("waiting") & (F.size("kept") > 0)
