"""What a filter or a classifier of pairs missed: audited pairs counted, and scores corrected for what they say."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.graph.distributed import Condensed
from untold.jobs.metrics.base import Bounds, Tools
from untold.udfs.facts.pairs import AUDIT
from untold.udfs.statistics.intervals import clopper_pearson_interval

AUDITED, SCORE_AUDITED = "audited", "score_audited"
ENTAILED = "entailment"
MISSED = {relation: f"missed_{relation}" for relation in (ENTAILED, "contradiction", "neutral")}
MISS_RATE = "miss_rate"
MEASURES: Bounds = dict.fromkeys((SCORE_AUDITED, AUDITED, *MISSED.values()), (None, None))


def audit_measures(metric: str, scores: DataFrame, counts: DataFrame, corrections: DataFrame) -> DataFrame:
    """Rows of the table `measures`, a row a sample and measure of `MEASURES`.

    scores: the metric's table `scores`; counts: as `count_audited` gives them; corrections: as `correct` gives them.
    """
    joined = scores.join(counts, on="sample_id", how="left").join(corrections, on="sample_id", how="left")
    values = {
        SCORE_AUDITED: F.col("score") + F.coalesce("correction", F.lit(0.0)),
        **{name: F.coalesce(name, F.lit(0)).cast("double") for name in MEASURES if name != SCORE_AUDITED},
    }
    rows = [F.struct(F.lit(name).alias("measure"), value.alias("value")) for name, value in values.items()]
    null = F.lit(None).cast("double")
    return joined.select("sample_id", F.lit(metric).alias("metric"), F.inline(F.array(*rows))).select(
        "*", null.alias("value_low"), null.alias("value_high")
    )


def count_audited(judged: DataFrame, owners: DataFrame) -> DataFrame:
    """Columns sample_id, audited, and those of `MISSED`: of pairs that a sample is the first to have.

    Missed is a relation that was told as another one. judged: owner, source, target, judged_by, relation, told; owners:
    sample_id, texts, contexts_owner, response_owner. Pairs of the same texts count once, so that sums over samples are
    of different pairs.
    """
    known = judged.where((F.col("judged_by") == AUDIT) & F.col("relation").isNotNull())
    of_samples = owners.select(
        F.explode(F.array("contexts_owner", "response_owner")).alias("owner"), "sample_id", "texts"
    )
    pair = [F.get("texts", F.col(side).cast("int")).alias(side) for side in ("source", "target")]
    pairs = known.join(of_samples, on="owner", how="inner").select("sample_id", "relation", "told", *pair)
    different = pairs.groupBy("source", "target").agg(
        *(F.min(name).alias(name) for name in ("sample_id", "relation", "told"))
    )
    is_missed = F.col("relation") != F.col("told")
    missed = [F.count_if(is_missed & (F.col("relation") == name)).alias(measure) for name, measure in MISSED.items()]
    return different.groupBy("sample_id").agg(F.count(F.lit(1)).alias(AUDITED), *missed)


def correct(
    relations: DataFrame, graphs: tuple[DataFrame, DataFrame], condensed: Condensed, tools: Tools, share: float
) -> DataFrame:
    """Columns sample_id, correction: what the unaudited pairs add to a score by Horvitz and Thompson, to first order.

    An entailment that the audit found is worth what the score loses without its edge, and one that it took back is
    worth what the score loses with it. Each stands for 1 / share pairs, of which 1 / share - 1 were not audited
    (methods, section 2). relations: sample_id, source, target, judged_by, relation, told; graphs: nodes and edges, and
    `condensed` what they come to.
    """
    is_told = F.col("told") == ENTAILED
    wrong = (F.col("judged_by") == AUDIT) & ((F.col("relation") == ENTAILED) != is_told)
    found = relations.where(wrong).select(
        F.col("sample_id").alias("graph"),
        F.concat_ws(":", "sample_id", "source", "target").alias("as_told"),
        F.col("source").alias("missed_source"),
        F.col("target").alias("missed_target"),
        is_told.alias("is_told"),
    )
    missed = tools.keep(found, "missed-pairs")
    is_missed = (F.col("source") == F.col("missed_source")) & (F.col("target") == F.col("missed_target"))
    nodes, edges = (
        _of_missed(frame, missed, kept) for frame, kept in zip(graphs, (F.lit(True), ~is_missed), strict=True)
    )
    ends = F.col("missed_source").alias("source"), F.col("missed_target").alias("target")
    told = missed.where("is_told").select(F.col("as_told").alias("graph"), *ends, F.lit(True).alias("judged"))
    score = F.col("covered") / (F.col("covered") + F.col("uncovered"))
    condensed_as_told = tools.condense(nodes, edges.unionByName(told))
    before = condensed_as_told.counts.select(F.col("graph").alias("as_told"), score.alias("before"))
    scores = condensed.counts.select("graph", score.alias("score"))
    worth = missed.join(scores, on="graph", how="inner").join(before, on="as_told", how="inner")
    change = F.sum(F.col("score") - F.col("before")) * (1 / share - 1 if share else 0.0)
    return worth.groupBy(F.col("graph").alias("sample_id")).agg(change.alias("correction"))


def _of_missed(frame: DataFrame, missed: DataFrame, kept: Column) -> DataFrame:
    """The rows of graphs once for each missed pair, under the name of the graph with it as it was told."""
    joined = frame.join(missed, on="graph", how="inner").where(kept)
    return joined.select(*(F.col("as_told" if name == "graph" else name).alias(name) for name in frame.columns))


def pool_audits(measures: DataFrame, scores: DataFrame, metric: str) -> list[dict[str, Any]]:
    """Rows of `measures_summary`: the miss rate of filter and classifier over all samples, of all and by relation.

    `defined` counts audited pairs, and ci_low and ci_high are of Clopper and Pearson. No row without an audit.
    """
    own = measures.where((F.col("metric") == metric) & (F.col("measure") != SCORE_AUDITED))
    sums = {
        row["measure"]: int(row["total"] or 0)
        for row in own.groupBy("measure").agg(F.sum("value").alias("total")).collect()
    }
    if AUDITED not in sums:
        return []
    missed = {relation: sums[measure] for relation, measure in MISSED.items()}
    samples = scores.where(F.col("metric") == metric).count()
    rates = {MISS_RATE: sum(missed.values()), **{f"{MISS_RATE}_{name}": count for name, count in missed.items()}}
    return [_rate_row(metric, name, count, sums[AUDITED], samples) for name, count in rates.items()]


def _rate_row(metric: str, measure: str, missed: int, audited: int, samples: int) -> dict[str, Any]:
    interval = clopper_pearson_interval(missed, audited)
    key = {"metric": metric, "measure": measure, "level": "overall", "system": None}
    return {**key, "n": samples, "defined": audited, **interval.columns("mean")}
