"""Files of documents to index and of queries to search with: some columns of the sample formats, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from untold.jobs.inputs.files import InputFile, SampleError, check_columns, find_files, inspect_files, plan_units
from untold.jobs.inputs.places import facts_by_file, with_row
from untold.jobs.run.workspace import Workspace
from untold.udfs.samples.plain import Names, given, read_plain

DOCUMENT = {
    "document_id": ("document_id", "id"),
    "text": ("text", "contents"),
    "title": ("title",),
    "url": ("url",),
}
QUERY = {"query_id": ("query_id",), "query": ("query",)}
PLACE = ("file", "block", "n")
SHOWN_CONFLICTS = 5
SHOWN_INVALID = 20
# Half of a sha2-256: short enough to be read, long enough that no two texts of a billion have one
CONTENT_CHARACTERS = 32


@dataclass(frozen=True)
class Texts:
    """What was read: `rows`, a row a distinct id, and `invalid`: id (may be null), error, with file and row.

    `rows` of a corpus: document_id, title, url, text, content (a hash of the other three); of queries: query_id, query.
    `duplicates` counts rows that repeat another word for word.
    """

    rows: DataFrame
    invalid: DataFrame
    row_count: int
    invalid_count: int
    duplicates: int
    first_invalid: list[str]


def read_corpus(steps: Workspace, path: str, limit: int | None = None) -> Texts:
    """The documents of a file, a folder or a glob. `limit`: the first so many by document_id.

    Raises SampleError for what cannot be read, a missing column, no document at all, and one id with two contents.
    """
    read = _read(steps, path, DOCUMENT, ("document_id", "text"))
    content = F.sha2(F.to_json(F.struct("title", "url", "text")), 256)
    named = read.rows.withColumn("content", F.substring(content, 1, CONTENT_CHARACTERS))
    problem = F.coalesce("problem", _missing("document_id"), F.when(F.col("text").isNull(), "text is null"))
    return _checked(steps, path, replace(read, rows=named), "document_id", problem, limit)


def read_queries(steps: Workspace, path: str) -> Texts:
    """The queries of a file, a folder or a glob; one without an id has its number, from 1 over all files.

    Raises SampleError as `read_corpus`.
    """
    read = _read(steps, path, QUERY, ("query",))
    before = Window.orderBy("file").rowsBetween(Window.unboundedPreceding, -1)
    counts = read.rows.groupBy("file").count()
    starts = counts.select("file", F.coalesce(F.sum("count").over(before), F.lit(0)).alias("first"))
    numbered = with_row(read.rows, read.rows).join(F.broadcast(starts), on="file", how="left")
    number = (F.col("first") + F.col("row")).cast("string")
    named = numbered.withColumn("query_id", F.coalesce(F.nullif("query_id", F.lit("")), number))
    rows = named.withColumn("content", F.col("query")).drop("first", "row", "before")
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
    """The rows of all files with their places, and the files."""

    rows: DataFrame
    files: Sequence[InputFile]


def _read(steps: Workspace, path: str, names: Names, required: Sequence[str]) -> _Read:
    """Reads the files once. Raises SampleError for what cannot be read and for columns that are not there."""
    files = inspect_files(find_files(path))
    types: Mapping[str, T.DataType] = {"file": T.IntegerType(), "block": T.LongType(), "n": T.LongType()}
    fields = [*types.items(), *((name, T.StringType()) for name in (*names, "problem", "facts"))]
    schema = T.StructType([T.StructField(name, kind) for name, kind in fields])
    read = partial(read_plain, names=names, schema=to_arrow_schema(schema))
    kept = steps.keep(plan_units(steps.spark, files, whole_files=False).mapInArrow(read, schema), "read")
    facts = facts_by_file([row["facts"] for row in kept.where(F.col("facts").isNotNull()).select("facts").collect()])
    check_columns(path, [_renamed(file, names) for file in files], facts, required)
    return _Read(kept.where(F.col("facts").isNull()).drop("facts"), files)


def _renamed(file: InputFile, names: Names) -> InputFile:
    """A file with our columns beside those that its header names."""
    if file.columns is None:
        return file
    return replace(file, columns=tuple(sorted({*file.columns, *given(names, file.columns)})))


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
    invalid = _invalid(steps, rows.where(~good), read, key) if broken else None
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
    )


def _nothing(steps: Workspace) -> DataFrame:
    return steps.spark.createDataFrame([], "id string, error string")


def _invalid(steps: Workspace, broken: DataFrame, read: _Read, key: str) -> DataFrame:
    """file, row, the id, error with file and row in it."""
    paths = steps.spark.createDataFrame([(n, file.path) for n, file in enumerate(read.files)], "file int, path string")
    placed = with_row(broken, read.rows).join(F.broadcast(paths), on="file", how="left")
    where = F.concat(F.col("path"), F.lit(":"), F.col("row").cast("string"), F.lit(": "), F.col("problem"))
    return placed.select("file", "row", key, where.alias("error"))


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
    for place in with_row(firsts, read.rows).collect():
        by_id.setdefault(place[key], []).append((place["file"], place["row"]))
    lines = []
    for name in sorted(by_id):
        first, second, *_ = sorted(by_id[name])
        at = " and ".join(f"{read.files[file].path}:{row}" for file, row in (first, second))
        lines.append(f"{key} `{name}` has two contents: {at}")
    more = f"{conflicts - len(lines)} more such ids; " if conflicts > len(lines) else ""
    return "\n".join([*lines, f"{more}give every distinct row an id of its own"])
