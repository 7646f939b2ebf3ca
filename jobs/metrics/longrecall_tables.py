"""The tables of the metric longrecall, made of what it has found out about its samples (docs/contract.md, "Tables")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.results import failure_rows
from untold.jobs.metrics.base import Bounds, Tables
from untold.jobs.metrics.claims import claim_id
from untold.jobs.metrics.scores import JUDGED, bounded, counted, status_of, unknown_measures
from untold.jobs.settings.model import Settings
from untold.udfs.recall.concluding import BASELINES, GENERATED, RECALL, REFERENCES

NAME = "longrecall"
TABLES = ("statements", "scores", "measures", "claims", "candidates", "failures")


@dataclass(frozen=True)
class Found:
    """What the metric has found out about its samples, before tables are made of it.

    incomplete: what `incomplete_samples` gives; prepared: the columns of `udfs.recall.showing.PREPARED`; concluded:
    those of `CONCLUDED`; asked: by stage its results, each with the column sample_id.
    """

    incomplete: DataFrame
    prepared: DataFrame
    concluded: DataFrame
    asked: Mapping[str, Sequence[DataFrame]]


def unknown_bounds(settings: Settings) -> Bounds:
    """Of a sample of which nothing is known: shares may be anything, and counts have no upper end."""
    shares = dict.fromkeys((RECALL, *settings.longrecall.baselines), (0.0, 1.0))
    return {**shares, **dict.fromkeys((REFERENCES, GENERATED), (None, None))}


def make_tables(samples: DataFrame, found: Found, settings: Settings) -> Tables:
    """The tables of `TABLES`, from samples (columns of the table `samples`)."""
    judged = _with_status(samples, found)
    known = judged.where(F.col("status").isin(*JUDGED))
    unknown = judged.where(~F.col("status").isin(*JUDGED))
    measures = known.select("sample_id", F.lit(NAME).alias("metric"), F.inline("measures"))
    lost = [failure_rows(NAME, stage, rows) for stage, asked in found.asked.items() for rows in asked]
    return {
        "statements": _statement_rows(known),
        "scores": _score_rows(judged),
        "measures": measures.unionByName(unknown_measures(unknown, NAME, unknown_bounds(settings))),
        "claims": _claim_rows(found.prepared),
        "candidates": _candidate_rows(known),
        # A stage that is asked twice may need one request for two references
        "failures": reduce(DataFrame.unionByName, lost).distinct(),
    }


def _with_status(samples: DataFrame, found: Found) -> DataFrame:
    """sample_id, system, status, dropped, and the columns of `CONCLUDED`: a row a sample (docs/contract.md, "Scores").

    Left joins: a sample that lacks nothing is not in `incomplete`, and one that does was not concluded.
    """
    joined = (
        samples.select("sample_id", "system")
        .join(found.concluded, on="sample_id", how="left")
        .join(found.prepared.select("sample_id", "dropped"), on="sample_id", how="left")
        .join(found.incomplete, on="sample_id", how="left")
    )
    waiting = F.col("waiting") | F.col("unasked")
    status = status_of(lost=F.col("lost"), waiting=waiting, empty=F.col("empty"), partial=F.col("unjudged") > 0)
    return joined.withColumn("status", status)


def _score_rows(judged: DataFrame) -> DataFrame:
    """The table `scores`: the score is recall; dropped are the facts beyond `longrecall.max_facts`."""
    recall = F.filter("measures", lambda one: one["measure"] == RECALL)[0]
    return judged.select(
        "sample_id",
        F.lit(NAME).alias("metric"),
        "system",
        *bounded(recall["value"], recall["value_low"], recall["value_high"]),
        *map(counted, ("covered", "uncovered", "unjudged", "dropped")),
        "status",
    )


def _statement_rows(known: DataFrame) -> DataFrame:
    """The table `statements`: the references, each with the generated facts that cover it."""
    texts = F.lit(None).cast("array<string>")
    return known.select("sample_id", F.inline("statements")).select(
        "sample_id",
        F.lit(NAME).alias("metric"),
        claim_id(NAME, "number").alias("statement_id"),
        "text",
        "covered",
        F.lit(None).cast("boolean").alias("in_basis"),
        texts.alias("sources"),
        texts.alias("members"),
        "reference_id",
        F.transform("claims", _claim_id).alias("claims"),
        "anchor",
        "found_by",
        *BASELINES,
    )


def _claim_rows(prepared: DataFrame) -> DataFrame:
    """The table `claims`: the generated facts, which nobody verifies."""
    return prepared.select("sample_id", F.inline("generated")).select(
        "sample_id",
        F.lit(NAME).alias("metric"),
        claim_id(NAME).alias("claim_id"),
        "position",
        "text",
        "anchor",
        F.lit(None).cast("string").alias("verdict"),
        F.array().cast("array<string>").alias("evidence"),
    )


def _candidate_rows(known: DataFrame) -> DataFrame:
    """The table `candidates`: each pair that a stage of entailment was shown, and whether it was chosen."""
    return known.select("sample_id", F.inline("candidates")).select(
        "sample_id",
        F.lit(NAME).alias("metric"),
        claim_id(NAME, "number").alias("statement_id"),
        claim_id(NAME).alias("claim_id"),
        *("step", "rank", "jaccard", "lcs", "cosine", "chosen"),
    )


def _claim_id(position: Column) -> Column:
    return claim_id(NAME, position)
