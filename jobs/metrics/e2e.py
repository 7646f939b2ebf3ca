"""End-to-end comprehensiveness (Dejl et al. 2025, section on E2E): one judgement a sample, no graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from udfs.stages.arrow import UNASKED

METRIC = "e2e"
STAGES = ("summarise_context", "evaluate_coverage")

Ask = Callable[[str, DataFrame], DataFrame]


@dataclass(frozen=True)
class MetricResult:
    """What a metric gives: the tables statements, scores and failures of its samples."""

    statements: DataFrame
    scores: DataFrame
    failures: DataFrame


def stages(*, summarise_contexts: bool) -> tuple[str, ...]:
    """The stages that the metric asks, in order."""
    return STAGES if summarise_contexts else STAGES[1:]


def score(samples: DataFrame, ask: Ask, *, summarise_contexts: bool) -> MetricResult:
    """Scores valid samples (columns of the table `samples`); `ask` answers a stage for rows and materialises it."""
    contexts = samples.select("sample_id", "query", F.posexplode("contexts").alias("position", "context")).select(
        "sample_id", "position", F.col("context.id").alias("context_id"), "query", F.col("context.text").alias("text")
    )
    condensed = ask("summarise_context", contexts) if summarise_contexts else _as_they_are(contexts)
    prepared = _gather_contexts(condensed)
    judged = ask("evaluate_coverage", rows_to_judge(samples, prepared))
    statements = read_statements(judged)
    failures = _failures(condensed, "summarise_context").unionByName(_failures(judged, "evaluate_coverage"))
    return MetricResult(statements, _score_samples(samples, prepared, judged, statements), failures)


def _as_they_are(contexts: DataFrame) -> DataFrame:
    missing = [F.lit(None).cast("string").alias(name) for name in ("request_id", "error_type", "error")]
    return contexts.select("sample_id", "position", "context_id", F.col("text").alias("summary"), *missing)


def _gather_contexts(condensed: DataFrame) -> DataFrame:
    """Columns sample_id, kept array<struct<position, context_id, summary>>, failed, unasked: one row a sample."""
    kept = F.when(F.col("summary").isNotNull(), F.struct("position", "context_id", "summary"))
    failed = F.col("error_type").isNotNull() & (F.col("error_type") != UNASKED)
    return condensed.groupBy("sample_id").agg(
        F.array_sort(F.collect_list(kept)).alias("kept"),
        F.count_if(failed).alias("failed"),
        F.count_if(F.col("error_type") == UNASKED).alias("unasked"),
    )


def rows_to_judge(samples: DataFrame, prepared: DataFrame) -> DataFrame:
    """Columns sample_id, context_ids, query, contexts list of texts, response: the samples that can be judged."""
    ready = prepared.where((F.col("failed") == 0) & (F.col("unasked") == 0) & (F.size("kept") > 0))
    return (
        samples.select("sample_id", "query", "response")
        .join(ready, on="sample_id", how="inner")
        .select(
            "sample_id",
            F.col("kept.context_id").alias("context_ids"),
            "query",
            F.col("kept.summary").alias("contexts"),
            "response",
        )
    )


def read_statements(judged: DataFrame) -> DataFrame:
    """The table `statements`: the numbers of the contexts shown become context ids."""
    exploded = judged.select("sample_id", "context_ids", F.posexplode("statements").alias("position", "statement"))
    sources = F.transform("statement.sources", lambda number: F.get("context_ids", number - 1))
    return exploded.select(
        "sample_id",
        F.lit(METRIC).alias("metric"),
        F.concat_ws(":", "sample_id", F.lit(METRIC), (F.col("position") + 1).cast("string")).alias("statement_id"),
        F.col("statement.text").alias("text"),
        F.col("statement.covered").alias("covered"),
        F.lit(None).cast("boolean").alias("in_basis"),
        sources.alias("sources"),
        F.lit(None).cast("array<string>").alias("members"),
    )


def _failures(asked: DataFrame, stage: str) -> DataFrame:
    failed = asked.where(F.col("error_type").isNotNull() & (F.col("error_type") != UNASKED))
    return failed.select(
        "sample_id", F.lit(METRIC).alias("metric"), F.lit(stage).alias("stage"), "request_id", "error_type", "error"
    ).distinct()


def _score_samples(samples: DataFrame, prepared: DataFrame, judged: DataFrame, statements: DataFrame) -> DataFrame:
    """The table `scores`: one row a sample, from its statements and from what failed or was not asked."""
    counts = statements.groupBy("sample_id").agg(
        F.count_if("covered").alias("covered"), F.count_if(~F.col("covered")).alias("uncovered")
    )
    verdicts = judged.select("sample_id", F.col("error_type").alias("verdict"))
    joined = (
        samples.select("sample_id", "system")
        .join(prepared.select("sample_id", "failed", "unasked"), on="sample_id", how="left")
        .join(verdicts, on="sample_id", how="left")
        .join(counts, on="sample_id", how="left")
    )
    lost = (F.col("failed") > 0) | (F.col("verdict") != UNASKED)
    waiting = (F.col("unasked") > 0) | (F.col("verdict") == UNASKED)
    total = F.coalesce("covered", F.lit(0)) + F.coalesce("uncovered", F.lit(0))
    status = F.when(lost, "failed").when(waiting, "budget").when(total == 0, "no_statements").otherwise("ok")
    with_status = joined.withColumn("status", status)
    return with_status.select(*score_columns(METRIC))


def score_columns(metric: str) -> list[Column]:
    """The columns of the table `scores` from sample_id, system, covered, uncovered and status of fully judged samples.

    S = covered / (covered + uncovered), null without statements (section 1); the bounds are 0 and 1 where nothing was
    judged.
    """
    judged = F.col("status").isin("ok", "no_statements")
    covered = F.when(judged, F.coalesce("covered", F.lit(0))).cast("long")
    uncovered = F.when(judged, F.coalesce("uncovered", F.lit(0))).cast("long")
    value = F.try_divide(covered.cast("double"), (covered + uncovered).cast("double"))
    unknown = F.col("status").isin("failed", "budget")
    return [
        F.col("sample_id"),
        F.lit(metric).alias("metric"),
        F.col("system"),
        value.alias("score"),
        F.when(unknown, F.lit(0.0)).otherwise(value).alias("score_low"),
        F.when(unknown, F.lit(1.0)).otherwise(value).alias("score_high"),
        covered.alias("covered"),
        uncovered.alias("uncovered"),
        F.when(judged, F.lit(0)).cast("long").alias("unjudged"),
        F.col("status"),
    ]
