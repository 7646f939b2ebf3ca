"""Labels for nuggets, ten a request; what a completion leaves open is asked again as relations of lists are."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.results import has_failed
from untold.jobs.asking.store import is_transient
from untold.jobs.metrics.base import Tools
from untold.jobs.retrieval.vectors import OUTCOME

LISTED = 10


def ask_labels(tools: Tools, stage: str, rows: DataFrame, key: str) -> DataFrame:
    """Columns `key`, number, label, and those of `OUTCOME`: a row for each listed nugget.

    A nugget without a clear label is asked about again, in a list with the others of its key, then alone, as each of a
    list is that failed for a lasting reason. What fails alone has no label.

    rows: `key`, listed array<struct<number, text, ...>>, and the other variables of the stage.
    """
    first = _ask(tools, stage, rows, key, LISTED)
    is_open = F.col("label").isNull() & F.col("error_type").isNull()
    second = _ask(tools, stage, _again(tools, rows, first.where(is_open), key), key, LISTED)
    both = first.where(~is_open).unionByName(second)
    has_lasted = F.col("error_type").isNull() | (has_failed() & ~is_transient())
    is_alone = F.col("label").isNull() & (F.col("size") > 1) & has_lasted
    third = _ask(tools, stage, _again(tools, rows, both.where(is_alone), key), key, 1)
    return both.where(~is_alone).unionByName(third).drop("size")


def _ask(tools: Tools, stage: str, rows: DataFrame, key: str, size: int) -> DataFrame:
    """The labels, and `size`: of how many nuggets the list was."""
    starts = F.filter(F.sequence(F.lit(1), F.size("listed") + 1, F.lit(size)), lambda start: start <= F.size("listed"))
    lists = rows.withColumn("start", F.explode(starts)).withColumn("listed", F.slice("listed", F.col("start"), size))
    named = lists.withColumns({"numbers": F.col("listed.number"), "nuggets": F.col("listed.text")})
    answered = tools.ask(stage, named.drop("listed", "start"), carry=(key, "numbers"))
    placed = answered.select(
        key, "labels", *OUTCOME, F.size("numbers").alias("size"), F.posexplode("numbers").alias("place", "number")
    )
    return placed.select(key, "number", F.get("labels", F.col("place")).alias("label"), "size", *OUTCOME)


def _again(tools: Tools, rows: DataFrame, wanted: DataFrame, key: str) -> DataFrame:
    """The rows with those of their nuggets alone that are wanted; none of the others."""
    by_key = wanted.groupBy(key).agg(F.collect_set("number").alias("wanted"))
    again = F.filter("listed", lambda one: F.array_contains("wanted", one["number"]))
    joined = rows.join(by_key, on=key, how="inner")
    return tools.keep(joined.withColumn("listed", again).drop("wanted"), "labels-to-ask-again")
