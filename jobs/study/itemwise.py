"""Measures of single items that no verdict is needed for: what words alone tell, how far each annotator is with most.

Rows of the table `meta_evaluation`; methods, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.run.session import spark_schema
from untold.jobs.study.agreement import read_rows
from untold.jobs.study.coverage_items import ITEM, ItemVerdicts
from untold.udfs.samples.k_qa import MUST_HAVE, NICE_TO_HAVE
from untold.udfs.samples.labelled_items import OVERLAPS, overlap_batches
from untold.udfs.statistics.totals import auc, score_counts, total_interval

OVERLAP, CONSTANT, ANNOTATOR = "word_overlap", "constant", "annotator"
AUC, WEIGHT_AUC, ACCURACY = "auc", "auc_weight", "accuracy"
# With two annotators a majority is both of them
LEAST_ANNOTATORS = 3
Row = dict[str, Any]


def overlap_rows(samples: DataFrame, judged: DataFrame, *, clustered: bool, seed: int) -> list[Row]:
    """How well the share of an item's words in the response tells what people found covered: the AUC of a baseline.

    Beside it how many labels a constant would match. samples: of `read_items`; judged: of `judge_items`. Items without
    a majority, a word or a response are left out.
    """
    told = samples.select("sample_id", "response", "items").mapInArrow(overlap_batches, spark_schema(OVERLAPS))
    unit = F.col("cluster") if clustered else F.col("sample_id")
    both = (
        judged.select(*ITEM, "said")
        .join(told, on=ITEM, how="left")
        .join(samples.select("sample_id", unit.alias("unit")), on="sample_id", how="inner")
    )
    rows = read_rows(both.groupBy("unit", "overlap", "said").agg(F.count("*").alias("count")))
    labelled = [row for row in rows if row["said"] is not None]
    size, covered = sum(row["count"] for row in labelled), sum(row["count"] for row in labelled if row["said"])
    everything = sum(row["count"] for row in rows)
    known = [row for row in labelled if row["overlap"] is not None]
    share = {"value": max(covered, size - covered) / size if size else None, "n": size, "left_out": everything - size}
    return [
        {"metric": OVERLAP, "measure": AUC} | _auc(known, "overlap", "said", everything, seed),
        {"metric": CONSTANT, "measure": ACCURACY} | share,
    ]


def weight_rows(
    verdicts: ItemVerdicts, samples: DataFrame, judged: DataFrame, *, clustered: bool, seed: int
) -> list[Row]:
    """For each metric that weighs references, the AUC of its weights for must-have against nice-to-have ones.

    Arguments as `overlap_rows`. A metric that was given the weights tells nothing of ratings by this: its AUC is that
    of the weights given.
    """
    unit = F.col("cluster") if clustered else F.col("sample_id")
    typed = judged.where(F.col("type").isin(MUST_HAVE, NICE_TO_HAVE)).select(*ITEM, "type")
    weighed = verdicts.rows.where("weight IS NOT NULL").select("metric", "model", *ITEM, "weight")
    both = weighed.join(typed, on=ITEM, how="inner").join(
        samples.select("sample_id", unit.alias("unit")), on="sample_id", how="inner"
    )
    must = (F.col("type") == MUST_HAVE).alias("must")
    rows = read_rows(both.groupBy("metric", "model", "unit", "weight", must).agg(F.count("*").alias("count")))
    if not rows:
        return []
    items = typed.count()
    owners = sorted({(row["metric"], row["model"]) for row in rows})
    found = []
    for metric, model in owners:
        own = [row for row in rows if (row["metric"], row["model"]) == (metric, model)]
        named = {"metric": metric, "model": model, "measure": WEIGHT_AUC}
        found.append(named | _auc(own, "weight", "must", items, seed))
    return found


def _auc(rows: Sequence[Row], score: str, positive: str, everything: int, seed: int) -> Row:
    """An AUC with its interval, of rows of unit, score, whether positive, and count."""
    each = [row for row in rows for _ in range(row["count"])]
    counts, _ = score_counts(
        [row[score] for row in each], [row[positive] for row in each], [row["unit"] for row in each]
    )
    found = total_interval(auc, counts, seed=seed)
    sizes = {"n": len(each), "left_out": everything - len(each)}
    return {**found.columns(), **sizes}


def annotator_rows(judged: DataFrame) -> list[Row]:
    """How often each annotator is with the majority, by the place of the label, where there are three or more.

    It is the ceiling of any metric. judged: of `judge_items`. An item that an annotator said nothing of, or without a
    majority, is left out.
    """
    several = judged.where(F.col("yes") + F.col("no") >= LEAST_ANNOTATORS)
    each = several.select(F.posexplode("agreed").alias("place", "with"))
    told = each.groupBy("place").agg(
        F.count("*").alias("all"), F.count("with").alias("n"), F.count_if("with").alias("hits")
    )
    return [
        {
            "metric": f"{ANNOTATOR}_{row['place'] + 1}",
            "measure": ACCURACY,
            "value": row["hits"] / row["n"] if row["n"] else None,
            "n": row["n"],
            "left_out": row["all"] - row["n"],
        }
        for row in sorted(read_rows(told), key=lambda row: int(row["place"]))
    ]
