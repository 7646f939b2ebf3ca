"""Read and check the inputs of a meta-evaluation: labelled samples, and tables of scores of exactly these samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.inputs.files import find_files, inspect_files
from untold.jobs.run.manifest import NAME
from untold.jobs.run.session import read_parquet
from untold.jobs.run_tables import find_table, open_run
from untold.jobs.study.judgements import MetaEvaluationError as MetaEvaluationError
from untold.jobs.tables import MEASURES_SUMMARY
from untold.udfs.errors import aside, near_misses
from untold.udfs.storage import StoragePath


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


# Values that a message shows: enough to see the pattern, and still one line
SHOWN = 3


def read_columns(spark: SparkSession, where: str, place: str, name: str, required: Sequence[str]) -> DataFrame:
    """All columns of a table, place and name as `table_files`; `where` is what messages call it.

    Raises MetaEvaluationError for unreadable files and for missing columns, with near misses.
    """
    try:
        # Files of different writers may lack columns that are not required
        rows = read_parquet(spark, *table_files(place, name), mergeSchema=True)
    except PySparkException as error:
        condition = error.getCondition() or type(error).__name__
        raise MetaEvaluationError(
            f"{where}: a file of it cannot be read ({condition}); give one table of {name}"
        ) from error
    missing = [column for column in required if column not in rows.columns]
    if missing:
        parts = [f"no column `{column}`{aside(near_misses(column, rows.columns))}" for column in missing]
        raise MetaEvaluationError(f"{where}: {'; '.join(parts)}; it has {', '.join(sorted(rows.columns))}")
    return rows


def table_files(place: str, name: str) -> list[str]:
    """The Parquet files of a table of an output (scores, statements), or of the folder itself.

    An output whose run has not ended is refused by `open_run`: its tables may be of an earlier start.
    """
    table = find_table(place, name)
    # A folder of that name without a manifest is somebody's own, and has no run to ask
    if table is not None and (StoragePath(place) / NAME).entry().kind == "file":
        open_run(place)
    files = inspect_files(find_files(place if table is None else str(table)))
    found = [StoragePath(file.path).spark for file in files if file.kind == "parquet"]
    if not found:
        raise MetaEvaluationError(f"{place}: no Parquet in it; give an output of untold score, or a folder of Parquet")
    return found


def raise_all(problems: Sequence[str]) -> None:
    """Raises MetaEvaluationError with a line a problem, where there are any."""
    if problems:
        raise MetaEvaluationError("\n".join(problems))
