"""Where rows of an input stand in its files, and what its parts tell of each file."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from untold.jobs.inputs.files import Facts


def facts_by_file(found: Sequence[str]) -> dict[int, Facts]:
    """By file: what its units found."""
    merged: dict[int, Facts] = {}
    # Sorted, so that which of two problems is shown does not depend on which task was first
    for plain in sorted(map(json.loads, found), key=lambda each: (each["file"], each["block"])):
        facts = Facts(frozenset(plain["columns"]), plain["shapes"], plain["rows"], plain["problem"])
        merged[plain["file"]] = merged.get(plain["file"], Facts()).merge(facts)
    return merged


def _starts(rows: DataFrame) -> DataFrame:
    """file, block, before: the rows of the file before each of its blocks."""
    earlier = Window.partitionBy("file").orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    blocks = rows.groupBy("file", "block").agg(F.max("n").alias("count"))
    return blocks.select("file", "block", F.coalesce(F.sum("count").over(earlier), F.lit(0)).alias("before"))


def with_row(places: DataFrame, rows: DataFrame) -> DataFrame:
    """The places with `row`, 1-based in its file; `rows` are all there are."""
    starts = F.broadcast(_starts(rows))
    return places.join(starts, on=["file", "block"], how="left").withColumn("row", F.col("before") + F.col("n"))
