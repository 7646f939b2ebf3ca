"""The contexts of the samples, summarised to what bears on the query: what comprehensiveness metrics begin with.

Methods, sections 1 and 9: the stage `summarise_context`, asked once for a query and a text, however many responses and
metrics read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.results import has_failed, is_unasked
from untold.jobs.settings.model import Settings

STAGE = "summarise_context"
# Keeps what stands in for an answer from being taken for a text that the store knows
# (a noncharacter of Unicode, which texts do not have)
MARK = "\uffff"


def stages_with_contexts(settings: Settings, *own: str) -> tuple[str, ...]:
    """The stages of a metric that reads contexts: its own, after summarising where that is on."""
    return (STAGE, *own) if settings.summarise_contexts else own


def assumed_summaries() -> dict[str, Mapping[str, Column]]:
    """What a plan takes a summary to be: the whole text, since hardly one is longer.

    It is marked, so that no request made of it is one that the store knows.
    """
    return {STAGE: {"summary": F.concat("text", F.lit(MARK))}}


def summarise_contexts(samples: DataFrame, ask: Callable[..., DataFrame], *, summarise: bool) -> DataFrame:
    """Columns sample_id, position, context_id, request_id, summary, error_type, error: one row a context.

    `summary` is null where the context has nothing that bears on the query; without `summarise` it is the text itself.

    samples: sample_id, query, contexts array<struct<id, text>>. position int counts from 0 in the order of the sample's
    contexts; request_id is null where nothing was asked. A sample without contexts has no row. `ask` is `Tools.ask`.
    """
    contexts = samples.select("sample_id", "query", F.posexplode("contexts").alias("position", "context")).select(
        "sample_id", "position", F.col("context.id").alias("context_id"), "query", F.col("context.text").alias("text")
    )
    place = ("sample_id", "position", "context_id")
    if summarise:
        return ask(STAGE, contexts, carry=place)
    null = F.lit(None).cast("string")
    return contexts.select(
        *place,
        null.alias("request_id"),
        F.col("text").alias("summary"),
        null.alias("error_type"),
        null.alias("error"),
    )


def gather_contexts(contexts: DataFrame) -> DataFrame:
    """Columns sample_id, kept array<struct<position, context_id, summary>>, lost, waiting: one row a sample.

    `kept` is in the order of the contexts and without those that say nothing of the query; `lost` says that the
    summary of one failed, `waiting` that it was never asked. Samples without contexts have no row.
    """
    # collect_list passes over the nulls of contexts that say nothing
    kept = F.when(F.col("summary").isNotNull(), F.struct("position", "context_id", "summary"))
    return contexts.groupBy("sample_id").agg(
        F.array_sort(F.collect_list(kept)).alias("kept"),
        F.max(has_failed()).alias("lost"),
        F.max(is_unasked()).alias("waiting"),
    )


def is_ready() -> Column:
    """Whether all contexts of a gathered sample are known, and some are left."""
    return ~F.col("lost") & ~F.col("waiting") & (F.size("kept") > 0)
