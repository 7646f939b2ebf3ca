"""Files of documents to index and of queries to search with: some columns of the sample formats, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from untold.jobs.inputs.checking import check_columns, describe_left_out, input_files, with_names
from untold.jobs.inputs.files import AS_THEY_ARE, InputFile, ReadOptions, SampleError, plan_units
from untold.jobs.inputs.row_positions import Parts, read_parts, with_row
from untold.jobs.run.workspace import Workspace
from untold.udfs.samples.plain import Names, read_plain

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
# Half of a sha2-256: short enough to be read, long enough that no two texts of a billion have one
CONTENT_CHARACTERS = 32


@dataclass(frozen=True)
class Texts:
    """What was read: `rows`, a row a distinct id, and `invalid`: id (may be null), error, with file and row.

    `rows` of a corpus: document_id, title, url, text, content (a hash of the other three); of queries: query_id, query.
    `duplicates` counts rows that repeat another word for word; `notes` say what of the input is left out.
    """

    rows: DataFrame
    invalid: DataFrame
    row_count: int
    invalid_count: int
    duplicates: int
    first_invalid: list[str]
    notes: Sequence[str] = ()


def read_corpus(steps: Workspace, path: str, limit: int | None = None, options: ReadOptions = AS_THEY_ARE) -> Texts:
    """The documents of a file, a folder or a glob. `limit`: the first so many by document_id.

    Raises SampleError for what cannot be read, a missing column, no document at all, and one id with two contents.
    """
    read = _read(steps, path, DOCUMENT, DOCUMENT_NEEDS, options)
    content = F.sha2(F.to_json(F.struct("title", "url", "text")), 256)
    named = read.rows.withColumn("content", F.substring(content, 1, CONTENT_CHARACTERS))
    problem = F.coalesce("problem", _missing("document_id"), F.when(F.col("text").isNull(), "text is null"))
    return _checked(steps, path, replace(read, rows=named), "document_id", problem, limit)


def read_queries(steps: Workspace, path: str, options: ReadOptions = AS_THEY_ARE) -> Texts:
    """The queries of a file, a folder or a glob; one without an id has its number, from 1 over all files.

    Raises SampleError as `read_corpus`.
    """
    read = _read(steps, path, QUERY, QUERY_NEEDS, options)
    number = (F.col("numbers_before") + F.col("number")).cast("string")
    placed = with_row(read.rows, read.parts, read.files)
    named = placed.withColumn("query_id", F.coalesce(F.nullif("query_id", F.lit("")), number))
    rows = named.withColumn("content", F.col("query")).select(*read.rows.columns, "content")
    return _checked(steps, path, replace(read, rows=steps.keep(rows, "numbered")), "query_id", _wrong_query(), None)


def _wrong_query() -> Column:
    """What is wrong with a row of queries; null where nothing is."""
    blank = F.when(F.trim("query") == "", "query is empty")
    return F.coalesce("problem", F.when(F.col("query").isNull(), "query is null"), blank)


def _missing(name: str) -> Column:
    """What is wrong with a row without an id."""
    return F.when(F.coalesce(name, F.lit("")) == "", F.lit(f"{name} is null or empty"))


@dataclass(frozen=True)
class _Read:
    """The rows of all files with their places, the files, where their parts begin, and which files are left out."""

    rows: DataFrame
    files: Sequence[InputFile]
    parts: Parts
    left_out: Sequence[str]


def _read(steps: Workspace, path: str, names: Names, required: Sequence[str], options: ReadOptions) -> _Read:
    """Reads the files once. Raises SampleError for what cannot be read and for columns that are not there."""
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


def _checked(steps: Workspace, path: str, read: _Read, key: str, problem: Column, limit: int | None) -> Texts:
    """The rows apart from those that are of no use. Raises SampleError for ids with two contents, and for no rows."""
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
        raise SampleError(f"{path}: no rows in it; give a file with at least one row")
    broken = counts["all"] - counts["good"]
    invalid = _invalid(rows.where(~good), read, key) if broken else None
    first = invalid.orderBy("file", "row").limit(SHOWN_INVALID).collect() if invalid is not None else []
    wanted = [name for name in rows.columns if name not in (*PLACE, "problem")]
    distinct = rows.where(good).select(*wanted)
    if counts["good"] > counts["distinct"]:
        distinct = distinct.dropDuplicates([key])
    return Texts(
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
    """file, row, the id, error with file and row in it."""
    placed = with_row(broken, read.parts, read.files)
    return placed.select("file", "row", key, F.format_string("%s row %d: %s", "path", "row", "problem").alias("error"))


def _describe_conflicts(rows: DataFrame, read: _Read, key: str, conflicts: int) -> str:
    """The first ids with two contents, in a line each, with two places."""
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
    more = f"{conflicts - len(lines)} more such ids; " if conflicts > len(lines) else ""
    return "\n".join([*lines, f"{more}give every distinct row an id of its own"])
