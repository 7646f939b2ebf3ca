"""End-to-end comprehensiveness (Dejl et al. 2025; docs/methods.md, section 4): one judgement a sample, no graph."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.results import failure_rows, has_failed, is_unasked
from untold.jobs.metrics.base import Assumptions, Metric, Tables, Tools
from untold.jobs.metrics.contexts import STAGE as SUMMARISE
from untold.jobs.metrics.contexts import assumed_summaries, gather_contexts, is_ready, stages_with_contexts
from untold.jobs.metrics.likely import likely_summaries
from untold.jobs.metrics.scores import score_columns, status_of
from untold.jobs.settings.model import Settings

NAME = "e2e"
STAGE = "evaluate_coverage"


def stages(settings: Settings) -> tuple[str, ...]:
    """The stages that the metric asks, in order."""
    return stages_with_contexts(settings, STAGE)


def assume(settings: Settings) -> Assumptions:
    """A plan ends with the judgement, which nothing follows: no statement need be made up."""
    judgement = {STAGE: {"statements": F.array(), "dropped": F.lit(0)}}
    return Assumptions(
        settings,
        {**assumed_summaries(), **judgement},
        likely=lambda figures: {**likely_summaries(figures), **judgement},
    )


def score(samples: DataFrame, tools: Tools, settings: Settings) -> Tables:
    """Scores valid samples (columns of the table `samples`): tables statements, scores and failures.

    A sample is judged in one request once its contexts are summarised. Where one of them failed it is not asked for:
    its list would be of other contexts than the response was written from, and paid for in vain. Dejl et al. 2025;
    methods, section 4.
    """
    contexts = tools.contexts()
    prepared = gather_contexts(contexts)
    judged = tools.ask(STAGE, rows_to_judge(samples, prepared), carry=("sample_id", "context_ids"))
    statements = read_statements(judged)
    failures = failure_rows(NAME, SUMMARISE, contexts).unionByName(failure_rows(NAME, STAGE, judged))
    scores = _score_samples(samples, prepared, judged, statements)
    return {"statements": statements, "scores": scores, "failures": failures}


def rows_to_judge(samples: DataFrame, prepared: DataFrame) -> DataFrame:
    """Columns sample_id, context_ids, query, contexts list of texts, response: the samples that can be judged."""
    return (
        samples.select("sample_id", "query", "response")
        .join(prepared.where(is_ready()), on="sample_id", how="inner")
        .select(
            "sample_id",
            F.col("kept.context_id").alias("context_ids"),
            "query",
            F.col("kept.summary").alias("contexts"),
            "response",
        )
    )


def read_statements(judged: DataFrame) -> DataFrame:
    """The table `statements`: the numbers of the contexts shown become context ids.

    judged: sample_id, context_ids array<string>, statements array<struct<text, covered, sources array<int>>>, the
    sources counted from 1 as the prompt numbers the contexts. Ids read `<sample_id>:e2e:<n>`, n from 1 in the order of
    the lists; in_basis and members are null, since there is no graph (docs/contract.md, "Tables").
    """
    exploded = judged.select("sample_id", "context_ids", F.posexplode("statements").alias("position", "statement"))
    sources = F.transform("statement.sources", lambda number: F.get("context_ids", number - 1))
    return exploded.select(
        "sample_id",
        F.lit(NAME).alias("metric"),
        F.concat_ws(":", "sample_id", F.lit(NAME), (F.col("position") + 1).cast("string")).alias("statement_id"),
        F.col("statement.text").alias("text"),
        F.col("statement.covered").alias("covered"),
        F.lit(None).cast("boolean").alias("in_basis"),
        sources.alias("sources"),
        F.lit(None).cast("array<string>").alias("members"),
    )


def _score_samples(samples: DataFrame, prepared: DataFrame, judged: DataFrame, statements: DataFrame) -> DataFrame:
    """The table `scores`: one row a sample, from its statements and from what failed or was not asked.

    All joins are left: a sample without contexts has no row in `prepared`, one that was not asked none in `judged`, and
    one whose lists are empty none in `counts`. low, high and unjudged are null, as no part of a single judgement can be
    missing.
    """
    counts = statements.groupBy("sample_id").agg(
        F.count_if("covered").alias("covered"), F.count_if(~F.col("covered")).alias("uncovered")
    )
    flags = has_failed().alias("lost_later"), is_unasked().alias("waiting_later")
    verdicts = judged.select("sample_id", "dropped", *flags)
    joined = (
        samples.select("sample_id", "system")
        .join(prepared.select("sample_id", "lost", "waiting"), on="sample_id", how="left")
        .join(verdicts, on="sample_id", how="left")
        .join(counts, on="sample_id", how="left")
    )
    total = F.coalesce("covered", F.lit(0)) + F.coalesce("uncovered", F.lit(0))
    # A sample lacks one judgement or none, so that it is never partial
    status = status_of(
        lost=F.col("lost") | F.col("lost_later"),
        waiting=F.col("waiting") | F.col("waiting_later"),
        empty=total == 0,
        partial=F.lit(False),
    )
    nothing = [F.lit(None).cast("double").alias(name) for name in ("unjudged", "low", "high")]
    return joined.select("*", *nothing).withColumn("status", status).select(*score_columns(NAME, F.col("dropped")))


METRIC = Metric(name=NAME, stages=stages, score=score, assume=assume, settings=("summarise_contexts",))
