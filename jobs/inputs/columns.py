"""Files as plain tables: some columns of Parquet, JSON Lines, JSON and CSV, each as text, by Spark's own readers.

Beside `jobs.inputs.samples`, where a row that cannot be read costs that row: here it ends the command. A table of
relations has millions of narrow rows, one of which says nothing without the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.inputs.files import find_files, inspect_files


class UnreadableTableError(ValueError):
    """Files that Spark cannot read as a table. The message is one line that names the path."""


def read_table(spark: SparkSession, path: str) -> DataFrame:
    """All columns of the files of a path, by extension; a column that some files lack is null there.

    Raises SampleError where there are no files, UnreadableTableError for a schema that cannot be read; the rows are
    read when they are asked for, and then Spark's error says so (`describe_unreadable`).
    """
    by_kind: dict[str, list[str]] = {}
    for file in inspect_files(find_files(path)):
        by_kind.setdefault(file.kind, []).append(file.path)
    try:
        frames = [_read_kind(spark, kind, files) for kind, files in sorted(by_kind.items())]
    except PySparkException as error:
        raise UnreadableTableError(describe_unreadable(path, error)) from error
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionByName(frame, allowMissingColumns=True)
    return rows


def describe_unreadable(path: str, error: PySparkException) -> str:
    """One line for a file that Spark breaks at, without what stands in it."""
    condition = error.getCondition() or type(error).__name__
    return f"{path}: a file of it cannot be read ({condition}); check that extension and content agree"


def as_text(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Those of the columns that the rows have, each once, as text.

    A name that the rows do not have is left out without a word: whoever needs the column says so.
    """
    known = [name for name in dict.fromkeys(names) if name in rows.columns]
    return rows.select(*[F.col(name).cast("string").alias(name) for name in known])


def _read_kind(spark: SparkSession, kind: str, files: list[str]) -> DataFrame:
    """One kind of file, each value as Spark reads it; JSON's and CSV's as text. A broken row fails the reading."""
    if kind == "parquet":
        return spark.read.option("mergeSchema", "true").parquet(*files)
    if kind == "csv":
        return spark.read.csv(files, header=True, multiLine=True, escape='"', mode="FAILFAST")
    return spark.read.json(files, primitivesAsString=True, multiLine=kind == "array", mode="FAILFAST")
