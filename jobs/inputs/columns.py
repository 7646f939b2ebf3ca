"""Files as plain tables: some columns of Parquet, JSON Lines, JSON and CSV, each as text, by Spark's own readers.

Beside `jobs.inputs.samples`, where a row that cannot be read costs that row: here it ends the command. A table of
relations has millions of narrow rows, one of which says nothing without the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.inputs.files import AS_THEY_ARE, InputFile, ReadOptions, data_files, inspect_files
from untold.jobs.inputs.samples import column_named
from untold.jobs.run.session import read_parquet
from untold.udfs.samples.files import UTF_8, compression_of, cuts_lines
from untold.udfs.storage import Place, literal_pattern


class UnreadableTableError(ValueError):
    """Files that Spark cannot read as a table. The message is one line that names the path."""


def read_table(spark: SparkSession, path: str, options: ReadOptions = AS_THEY_ARE) -> DataFrame:
    """All columns of the files of a path, by extension; a column that some files lack is null there.

    Raises SampleError where there are no files, UnreadableTableError for a schema that cannot be read; the rows are
    read when they are asked for, and then Spark's error says so (`describe_unreadable`).
    """
    files = sorted(inspect_files(data_files(path)[0], options), key=_form)
    _check_forms(files)
    if any(file.encoding != UTF_8 for file in files):
        # Else Spark knows but seven encodings
        spark.conf.set("spark.sql.legacy.javaCharsets", True)
    try:
        groups = [list(alike) for _, alike in groupby(files, _form)]
        frames = [_with_folders(_read_kind(spark, alike), alike[0]) for alike in groups]
    except PySparkException as error:
        raise UnreadableTableError(describe_unreadable(path, error)) from error
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionByName(frame, allowMissingColumns=True)
    return rename_columns(rows, options.columns)


def _check_forms(files: Sequence[InputFile]) -> None:
    """Raises UnreadableTableError for what our own readers can read, and Spark's cannot."""
    for file in files:
        if compression_of(file.path) == "zstd":
            raise UnreadableTableError(f"{file.path}: .zst is not read here; decompress it, or give Parquet")
        if file.kind == "objects":
            raise UnreadableTableError(
                f"{file.path}: objects that span several lines are not read here. Write one per line"
            )
        if file.kind == "lines" and not cuts_lines(file.encoding):
            raise UnreadableTableError(
                f"{file.path}: JSON Lines in {file.encoding.upper()} are not read here; save them as UTF-8"
            )


def rename_columns(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """The rows with our names for columns, by ours those that they have; what one of these replaces is left out."""
    theirs = {other: ours for ours, other in columns.items() if other in rows.columns}
    replaced = {*theirs.values()} - {*theirs}
    kept = [name for name in rows.columns if name not in replaced]
    return rows.select(*[column_named(name).alias(theirs.get(name, name)) for name in kept])


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


def _form(file: InputFile) -> tuple[str, str, str, tuple[tuple[str, str], ...]]:
    """Return the properties that files share if one reader can read them; the last are the values of their folders."""
    folders = tuple((name, str(value)) for name, value in file.constants.items())
    return file.kind, file.encoding, file.delimiter, folders


def _with_folders(rows: DataFrame, file: InputFile) -> DataFrame:
    """Add the values that the folders of a file name, in columns that the file itself does not have."""
    missing = {name: F.lit(value.as_py()) for name, value in file.constants.items() if name not in rows.columns}
    return rows.withColumns(missing) if missing else rows


def _read_kind(spark: SparkSession, files: Sequence[InputFile]) -> DataFrame:
    """Files of one form, each value as Spark reads it; JSON's and CSV's as text. A broken row fails the reading."""
    kind, encoding, delimiter, _ = _form(files[0])
    if kind == "parquet":
        return read_parquet(spark, *(Place(file.path).spark for file in files), mergeSchema=True)
    paths = [literal_pattern(Place(file.path).spark) for file in files]
    charset = None if encoding == UTF_8 else encoding
    if kind == "csv":
        return spark.read.csv(
            paths, header=True, multiLine=True, escape='"', mode="FAILFAST", encoding=charset, sep=delimiter
        )
    # Of other encodings than UTF-8 Spark has to be told
    ends = "\n" if kind == "lines" and charset else None
    return spark.read.json(
        paths, primitivesAsString=True, multiLine=kind == "array", mode="FAILFAST", encoding=charset, lineSep=ends
    )
