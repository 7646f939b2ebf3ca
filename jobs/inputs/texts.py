"""Read files of documents and queries, and files as plain tables of text columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from untold.jobs.inputs.checking import check_columns, describe_left_out, input_files, with_names
from untold.jobs.inputs.files import (
    AS_THEY_ARE,
    InputFile,
    ReadOptions,
    SampleError,
    data_files,
    inspect_files,
)
from untold.jobs.inputs.frames import plan_units
from untold.jobs.inputs.samples import Parts, column_named, read_parts, with_row
from untold.jobs.run.folders import Workspace
from untold.jobs.run.session import read_parquet
from untold.udfs.samples.batches import Names, read_plain
from untold.udfs.samples.files import UTF_8, compression_of, cuts_lines
from untold.udfs.storage import StoragePath, literal_pattern

DOCUMENT = {
    "document_id": ("document_id", "id"),
    "text": ("text", "contents"),
    "title": ("title",),
    "url": ("url",),
}
DOCUMENT_NEEDS = ("document_id", "text")
QUERY = {"query_id": ("query_id",), "query": ("query",)}
QUERY_NEEDS = ("query",)
PLACE = ("file", "block", "n", "number")
SHOWN_CONFLICTS = 5
SHOWN_INVALID = 20
# Half of a sha2-256: short enough to read, and unique among a billion texts
CONTENT_CHARACTERS = 32


@dataclass(frozen=True)
class TextRows:
    """The result of a read: `rows`, one per distinct id, and `invalid`: id (may be null), error, with file and row.

    `rows` of a corpus: document_id, title, url, text, content (a hash of the other three); of queries: query_id, query.
    `duplicates` counts exact duplicates. `notes` are lines about skipped parts of the input.
    """

    rows: DataFrame
    invalid: DataFrame
    row_count: int
    invalid_count: int
    duplicates: int
    first_invalid: list[str]
    notes: Sequence[str] = ()


def read_corpus(steps: Workspace, path: str, limit: int | None = None, options: ReadOptions = AS_THEY_ARE) -> TextRows:
    """Return the documents of a file, a folder or a glob. `limit`: only the first ones by document_id.

    Raises SampleError for unreadable files, a missing column, no documents, and one id with two contents.
    """
    read = _read(steps, path, DOCUMENT, DOCUMENT_NEEDS, options)
    content = F.sha2(F.to_json(F.struct("title", "url", "text")), 256)
    named = read.rows.withColumn("content", F.substring(content, 1, CONTENT_CHARACTERS))
    problem = F.coalesce("problem", _missing("document_id"), F.when(F.col("text").isNull(), "text is null"))
    return _checked(steps, path, replace(read, rows=named), "document_id", problem, limit)


def read_queries(steps: Workspace, path: str, options: ReadOptions = AS_THEY_ARE) -> TextRows:
    """Return the queries of a file, a folder or a glob. A missing id becomes the number, from 1 over all files.

    Raises SampleError as `read_corpus`.
    """
    read = _read(steps, path, QUERY, QUERY_NEEDS, options)
    number = (F.col("numbers_before") + F.col("number")).cast("string")
    placed = with_row(read.rows, read.parts, read.files)
    named = placed.withColumn("query_id", F.coalesce(F.nullif("query_id", F.lit("")), number))
    rows = named.withColumn("content", F.col("query")).select(*read.rows.columns, "content")
    return _checked(steps, path, replace(read, rows=steps.keep(rows, "numbered")), "query_id", _wrong_query(), None)


def _wrong_query() -> Column:
    """Return the problem of a row of queries, or null."""
    blank = F.when(F.trim("query") == "", "query is empty")
    return F.coalesce("problem", F.when(F.col("query").isNull(), "query is null"), blank)


def _missing(name: str) -> Column:
    """Return the problem of a row without an id."""
    return F.when(F.coalesce(name, F.lit("")) == "", F.lit(f"{name} is null or empty"))


@dataclass(frozen=True)
class _Read:
    """The rows of all files with their positions, the files, the starts of their parts, and the skipped files."""

    rows: DataFrame
    files: Sequence[InputFile]
    parts: Parts
    left_out: Sequence[str]


def _read(steps: Workspace, path: str, names: Names, required: Sequence[str], options: ReadOptions) -> _Read:
    """Read the files once. Raises SampleError for unreadable files and missing columns."""
    files, left_out = input_files(path, None, options)
    types: Mapping[str, T.DataType] = {"file": T.IntegerType(), **dict.fromkeys(("block", "n", "number"), T.LongType())}
    fields = [*types.items(), *((name, T.StringType()) for name in (*names, "problem", "facts"))]
    schema = T.StructType([T.StructField(name, kind) for name, kind in fields])
    read = partial(read_plain, names=names, columns=dict(options.columns), schema=to_arrow_schema(schema))
    kept = steps.keep(plan_units(steps.spark, files, whole_files=False).mapInArrow(read, schema), "read")
    told = kept.where(F.col("facts").isNotNull()).select("facts").collect()
    parts = read_parts([row["facts"] for row in told])
    check_columns(path, files, with_names(parts.facts, files, names), required, options.columns)
    return _Read(kept.where(F.col("facts").isNull()).drop("facts"), files, parts, left_out)


def _checked(steps: Workspace, path: str, read: _Read, key: str, problem: Column, limit: int | None) -> TextRows:
    """Separate the rows from invalid rows. Raises SampleError for ids with two contents, and for no rows."""
    rows = read.rows.withColumn("problem", problem)
    sums = rows.groupBy(key, "problem").agg(
        F.count("*").alias("n"), F.min("content").alias("low"), F.max("content").alias("high")
    )
    good = F.col("problem").isNull()
    counts = sums.agg(
        F.coalesce(F.sum("n"), F.lit(0)).alias("all"),
        F.coalesce(F.sum(F.when(good, F.col("n"))), F.lit(0)).alias("good"),
        F.count_if(good).alias("distinct"),
        F.count_if(good & (F.col("low") != F.col("high"))).alias("conflicts"),
    ).collect()[0]
    if counts["conflicts"]:
        raise SampleError(_describe_conflicts(rows.where(good), read, key, counts["conflicts"]))
    if not counts["all"]:
        raise SampleError(f"{path} has no rows. Give a file with at least one row")
    broken = counts["all"] - counts["good"]
    invalid = _invalid(rows.where(~good), read, key) if broken else None
    first = invalid.orderBy("file", "row").limit(SHOWN_INVALID).collect() if invalid is not None else []
    wanted = [name for name in rows.columns if name not in (*PLACE, "problem")]
    distinct = rows.where(good).select(*wanted)
    if counts["good"] > counts["distinct"]:
        distinct = distinct.dropDuplicates([key])
    return TextRows(
        rows=distinct if limit is None else distinct.orderBy(key).limit(limit),
        invalid=_nothing(steps) if invalid is None else invalid.select(F.col(key).alias("id"), "error"),
        row_count=counts["distinct"] if limit is None else min(limit, counts["distinct"]),
        invalid_count=broken,
        duplicates=counts["good"] - counts["distinct"],
        first_invalid=[row["error"] for row in first],
        notes=[describe_left_out(read.left_out)] if read.left_out else [],
    )


def _nothing(steps: Workspace) -> DataFrame:
    return steps.spark.createDataFrame([], "id string, error string")


def _invalid(broken: DataFrame, read: _Read, key: str) -> DataFrame:
    """Return file, row, the id, and the error with file and row."""
    placed = with_row(broken, read.parts, read.files)
    return placed.select("file", "row", key, F.format_string("%s row %d: %s", "path", "row", "problem").alias("error"))


def _describe_conflicts(rows: DataFrame, read: _Read, key: str, conflicts: int) -> str:
    """Return a line for each of the first ids with two contents, with two positions."""
    several = rows.groupBy(key).agg(F.count_distinct("content").alias("contents")).where("contents > 1")
    shown = several.select(key).orderBy(key).limit(SHOWN_CONFLICTS)
    firsts = (
        rows.join(F.broadcast(shown), on=key, how="left_semi")
        .groupBy(key, "content")
        .agg(F.min(F.struct(*PLACE)).alias("at"))
        .select(key, "at.*")
    )
    by_id: dict[str, list[tuple[int, int]]] = {}
    for place in with_row(firsts, read.parts, read.files).collect():
        by_id.setdefault(place[key], []).append((place["file"], place["row"]))
    lines = []
    for name in sorted(by_id):
        first, second, *_ = sorted(by_id[name])
        at = " and ".join(f"{read.files[file].path} row {row}" for file, row in (first, second))
        lines.append(f"{key} `{name}` has two contents: {at}")
    more = f"{conflicts - len(lines)} more such ids. " if conflicts > len(lines) else ""
    return "\n".join([*lines, f"{more}Give every distinct row a unique id"])


class UnreadableTableError(ValueError):
    """Files that Spark cannot read as a table. The message is one line with the path."""


def read_table(spark: SparkSession, path: str, options: ReadOptions = AS_THEY_ARE) -> DataFrame:
    """Return all columns of the files of a path, by extension. A column that some files lack is null there.

    Raises SampleError if there are no files, and UnreadableTableError for an unreadable schema. The rows are read
    later, and a failure then raises an error of Spark (`describe_unreadable`).
    """
    files = sorted(inspect_files(data_files(path)[0], options), key=_form)
    _check_forms(files)
    if any(file.encoding != UTF_8 for file in files):
        # Otherwise Spark only supports seven encodings
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
    """Raise UnreadableTableError for files that only our own readers support."""
    for file in files:
        if compression_of(file.path) == "zstd":
            raise UnreadableTableError(f"{file.path}: .zst is not supported here. Decompress the file, or give Parquet")
        if file.kind == "objects":
            raise UnreadableTableError(
                f"{file.path}: objects that span several lines are not read here. Write one per line"
            )
        if file.kind == "lines" and not cuts_lines(file.encoding):
            raise UnreadableTableError(
                f"{file.path}: JSON Lines in {file.encoding.upper()} are not supported here. Save them as UTF-8"
            )


def rename_columns(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Rename columns to our names; `columns` maps ours to theirs. A replaced column is dropped."""
    theirs = {other: ours for ours, other in columns.items() if other in rows.columns}
    replaced = {*theirs.values()} - {*theirs}
    kept = [name for name in rows.columns if name not in replaced]
    return rows.select(*[column_named(name).alias(theirs.get(name, name)) for name in kept])


def describe_unreadable(path: str, error: PySparkException) -> str:
    """Return one line for a file that Spark cannot read, without its content."""
    condition = error.getCondition() or type(error).__name__
    return f"{path}: cannot read one of its files ({condition}). Check that its extension fits its content"


def as_text(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the existing ones of these columns, without duplicates, as text.

    Missing names are skipped silently. The caller reports them.
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
    """Read files of one form with Spark's types, and JSON and CSV as text. A broken row is an error."""
    kind, encoding, delimiter, _ = _form(files[0])
    if kind == "parquet":
        return read_parquet(spark, *(StoragePath(file.path).spark for file in files), mergeSchema=True)
    paths = [literal_pattern(StoragePath(file.path).spark) for file in files]
    charset = None if encoding == UTF_8 else encoding
    if kind == "csv":
        return spark.read.csv(
            paths, header=True, multiLine=True, escape='"', mode="FAILFAST", encoding=charset, sep=delimiter
        )
    # Spark needs a line separator for encodings other than UTF-8
    ends = "\n" if kind == "lines" and charset else None
    return spark.read.json(
        paths, primitivesAsString=True, multiLine=kind == "array", mode="FAILFAST", encoding=charset, lineSep=ends
    )
