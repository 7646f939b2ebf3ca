"""Scores beside labels of whole responses: points of metrics and baselines, confusion tables; methods, 6."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame

from untold.jobs.study.agreement import count_tables, resample_tables
from untold.jobs.study.label_points import Dataset, baseline_points
from untold.udfs.statistics.confusion import LABELS, OVERLAP_FIELDS, overlap_batches
from untold.udfs.statistics.question_resampling import Resampled


def add_overlap(samples: DataFrame) -> DataFrame:
    """sample_id, query, label string, overlap double: what the words of the response cover, `overlap_score`."""
    fields = samples.sparkSession.createDataFrame(pa.schema(OVERLAP_FIELDS).empty_table()).schema
    columns = samples.select("sample_id", "query", "response", "contexts", "label")
    return columns.mapInArrow(overlap_batches, fields)


def find_points(scores: DataFrame, samples: DataFrame, shares: DataFrame | None, dataset: Dataset) -> DataFrame:
    """Points of the scores, and with labels those of the baselines; the constant is the most frequent label.

    samples: label and overlap of each where the data set has labels; shares: of `read_source_shares`, where its points
    are by source.
    """
    points = dataset.find_points(scores, samples, shares)
    if not dataset.has_labels:
        return points
    counts = {row["label"]: row["count"] for row in samples.groupBy("label").count().collect()}
    # Ties go to the first label
    constant = max(LABELS, key=lambda label: counts.get(label, 0))
    return points.unionByName(baseline_points(samples, constant))


def resample_labels(
    scores: DataFrame, samples: DataFrame, dataset: Dataset, *, clustered: bool, seed: int
) -> dict[tuple[str, str], Resampled]:
    """By (model, metric) the confusion table with its resamples; none for a data set without labels.

    They are drawn from counts of questions that look alike, not from samples, so that memory does not grow with these.
    """
    if not dataset.has_labels:
        return {}
    return resample_tables(count_tables(scores, samples, clustered=clustered), seed=seed)
