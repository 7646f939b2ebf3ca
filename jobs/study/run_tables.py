"""Tables of outputs of `untold score` that a study reads beside verdicts, where there are any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.results import find_table
from untold.jobs.run.session import read_parquet
from untold.jobs.tables import MEASURES_SUMMARY


def read_table(spark: SparkSession, place: str, name: str, schema: pa.Schema | None) -> DataFrame | None:
    """A table of an output; None where the folder has none, as one that holds verdicts alone.

    schema: that of the table, None for that of its files. Whoever reads it has opened the output before.
    """
    found = find_table(place, name)
    if found is None:
        return None
    return read_parquet(spark, found.spark, schema=schema)


def read_means(spark: SparkSession, places: Mapping[str, str], metric: str) -> dict[str, dict[str, float | None]]:
    """By model, the means of a metric's measures over all samples of its output; none of a folder without them."""
    found: dict[str, dict[str, float | None]] = {}
    for model, place in places.items():
        table = read_table(spark, place, "measures_summary", MEASURES_SUMMARY)
        if table is not None:
            own = table.where((F.col("metric") == metric) & (F.col("level") == "overall"))
            rows: list[Any] = own.select("measure", "mean").collect()
            found[model] = {row["measure"]: row["mean"] for row in rows}
    return found
