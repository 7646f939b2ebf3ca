"""The tables of the metric longrecall, made of what it has found out about its samples (docs/contract.md, "Tables")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.results import failure_rows
from untold.jobs.metrics.base import Bounds, Tables
from untold.jobs.metrics.grounded_claims import claim_id, covered_statements
from untold.jobs.metrics.scores import JUDGED, measure_rows, measured_scores, status_of
from untold.jobs.settings.model import Settings
from untold.udfs.recall.concluding import BASELINES, GENERATED, RECALL, REFERENCES

NAME = "longrecall"
TABLES = ("statements", "scores", "measures", "claims", "candidates", "failures")


@dataclass(frozen=True)
class RecallFindings:
    """What the metric has found out about its samples, before tables are made of it.

    incomplete: what `incomplete_samples` gives; prepared: the columns of `udfs.recall.candidate_pairs.PREPARED`;
    concluded: those of `CONCLUDED`; asked: by stage its results, each with the column sample_id.
    """

    incomplete: DataFrame
    prepared: DataFrame
    concluded: DataFrame
    asked: Mapping[str, Sequence[DataFrame]]


def unknown_bounds(settings: Settings) -> Bounds:
    """Of a sample of which nothing is known: shares may be anything, and counts have no upper end."""
    shares = dict.fromkeys((RECALL, *settings.longrecall.baselines), (0.0, 1.0))
    return {**shares, **dict.fromkeys((REFERENCES, GENERATED), (None, None))}


def make_tables(samples: DataFrame, found: RecallFindings, settings: Settings) -> Tables:
    """The tables of `TABLES`, from samples (columns of the table `samples`)."""
    judged = _with_status(samples, found)
    known = judged.where(F.col("status").isin(*JUDGED))
    lost = [failure_rows(NAME, stage, rows) for stage, asked in found.asked.items() for rows in asked]
    return {
        "statements": covered_statements(known, NAME, "anchor", "found_by", *BASELINES),
        # Dropped are the facts beyond `longrecall.max_facts`
        "scores": measured_scores(judged, NAME, RECALL, F.col("dropped")),
        "measures": measure_rows(judged, NAME, unknown_bounds(settings)),
        "claims": _claim_rows(found.prepared),
        "candidates": _candidate_rows(known),
        # A stage that is asked twice may need one request for two references
        "failures": reduce(DataFrame.unionByName, lost).distinct(),
    }


def _with_status(samples: DataFrame, found: RecallFindings) -> DataFrame:
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
