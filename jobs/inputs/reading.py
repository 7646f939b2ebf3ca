"""Read files once: each row has its position, its id and its error. Rows are samples, documents, queries or texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from untold.jobs.inputs.checking import check_columns, input_files, with_names
from untold.jobs.inputs.files import AS_THEY_ARE, FileFacts, InputFile, NoInputError, ReadOptions, SampleError
from untold.jobs.inputs.frames import plan_units
from untold.jobs.run.session import read_parquet
from untold.udfs.samples.adapters import needed
from untold.udfs.samples.batches import ColumnSelection, read_batches
from untold.udfs.samples.file_records import undecodable
from untold.udfs.samples.tool_files import Names
from untold.udfs.storage import StoragePath

# A screen. The table `failures` has all of them
SHOWN_INVALID = 20
SHOWN_CONFLICTS = 5
DOCUMENT = {
    "document_id": ("document_id", "id"),
    "text": ("text", "contents"),
    "title": ("title",),
    "url": ("url",),
}
DOCUMENT_NEEDS = ("document_id", "text")
QUERY = {"query_id": ("query_id",), "query": ("query",)}
QUERY_NEEDS = ("query",)
# Half of a sha2-256: short enough to read, and unique among a billion texts
CONTENT_CHARACTERS = 32
STARTS = "file int, block long, path string, rows_before long, numbers_before long"
PLACE_TYPES = {"file": T.IntegerType(), "block": T.LongType(), "n": T.LongType(), "part": T.IntegerType()}
PLACE = list(PLACE_TYPES)


def read_fields(known: Sequence[T.StructField]) -> T.StructType:
    """Return the schema of the pass for rows with these known columns."""
    return T.StructType(
        [
            *(T.StructField(name, kind) for name, kind in PLACE_TYPES.items()),
            *(T.StructField(name, T.StringType()) for name in ("content", "error")),
            *known,
            T.StructField("rest", T.BinaryType()),
            T.StructField("facts", T.StringType()),
        ]
    )


def read_parts(found: Sequence[str]) -> tuple[dict[int, FileFacts], list[tuple[int, int, int, int]]]:
    """Return the facts of an input by file, and the start of each part (`STARTS` without the path).

    found: the facts of parts (`untold.udfs.samples.batches.UnitProgress.facts`). `rows_before`: rows of its file before
    the part, including blank lines. `numbers_before`: records of all files before it.
    """
    merged: dict[int, FileFacts] = {}
    starts: list[tuple[int, int, int, int]] = []
    lines: dict[int, int] = {}
    records = 0
    # Sorted, so that the reported problem does not depend on the order of tasks
    for plain in sorted(map(json.loads, found), key=lambda each: (each["file"], each["block"])):
        file, problem = plain["file"], plain["problem"]
        before = lines.get(file, 0)
        starts.append((file, plain["block"], before, records))
        lines[file], records = before + plain["lines"], records + plain["rows"]
        if plain["undecodable"] is not None:
            line, encoding = plain["undecodable"]
            problem = undecodable(before + line, encoding)
        facts = FileFacts(frozenset(plain["columns"]), plain["shapes"], plain["rows"], problem)
        merged[file] = merged.get(file, FileFacts()).merge(facts)
    return merged, starts


@dataclass(frozen=True)
class ReadRows:
    """The stored result of the pass over the files of an input.

    `stored`: a row per row of the files, with the position (`PLACE`), content, error, the known columns, and rest (the
    other columns, packed); and a row per part of a file, with facts. `by_id`: a row per id with n, low and high (least
    and greatest content), and broken (rows with an error). `facts` and `starts` are the result of `read_parts`. The
    numbers are of all rows, of ids, of ids with a usable row, of ids with two contents, and of rows with an error.
    """

    stored: DataFrame
    by_id: DataFrame
    key: str
    files: Sequence[InputFile]
    left_out: Sequence[str]
    facts: Mapping[int, FileFacts]
    starts: Sequence[tuple[int, int, int, int]]
    total: int
    distinct: int
    usable: int
    conflicts: int
    broken: int

    @property
    def rows(self) -> DataFrame:
        """The rows of the files, without the facts."""
        return self.stored.where(F.col("facts").isNull()).drop("facts")

    @property
    def columns(self) -> frozenset[str]:
        """The columns of all rows, with our names."""
        return frozenset[str]().union(*(facts.columns for facts in self.facts.values()))

    def placed(self, rows: DataFrame) -> DataFrame:
        """Add the columns of `STARTS` to rows with a position, and `row`, the 1-based row in the file."""
        starts = [(file, block, self.files[file].path, *before) for file, block, *before in self.starts]
        known = F.broadcast(rows.sparkSession.createDataFrame(starts, STARTS))
        return rows.join(known, on=["file", "block"], how="left").withColumn("row", F.col("rows_before") + F.col("n"))

    def invalid(self, kept: DataFrame) -> DataFrame:
        """Return file, row, part, the id, and error (with file and row) of broken rows. Without any, no query runs."""
        if not self.broken:
            types = f"file int, row long, part int, {self.key} string, error string"
            return kept.sparkSession.createDataFrame([], types)
        broken = kept.where(F.col("error").isNotNull()).select(self.key, *PLACE, "error")
        message = F.format_string("%s row %d: %s", F.col("path"), F.col("row"), F.col("error"))
        named = self.placed(broken).select("file", "row", "part", self.key, message.alias("error"))
        return named.persist(StorageLevel.DISK_ONLY)

    def check_ids(self, advice: str) -> None:
        """Raise SampleError if an id has two contents. It has a line for each of the first ids, with two positions."""
        if not self.conflicts:
            return
        several = self.by_id.where(F.col("low") != F.col("high")).select(self.key)
        shown = F.broadcast(several.orderBy(self.key).limit(SHOWN_CONFLICTS))
        rows = self.rows.select(self.key, "content", *PLACE).where(F.col("content").isNotNull())
        firsts = (
            rows.join(shown, on=self.key, how="left_semi")
            .groupBy(self.key, "content")
            .agg(F.min(F.struct(*PLACE)).alias("at"))
        )
        by_id: dict[str, list[tuple[int, int, str]]] = {}
        for row in self.placed(firsts.select(self.key, "at.*")).collect():
            by_id.setdefault(row[self.key], []).append((row["file"], row["row"], row["path"]))
        lines = []
        for name, places in sorted(by_id.items()):
            at = " and ".join(f"{path} row {row}" for _, row, path in sorted(places)[:2])
            lines.append(f"{self.key} `{name}` has two contents: {at}")
        more = f"{self.conflicts - len(lines)} more such ids. " if self.conflicts > len(lines) else ""
        raise SampleError("\n".join([*lines, f"{more}{advice}"]))


def read_files(
    spark: SparkSession, path: str, wanted: ColumnSelection, options: ReadOptions, known: Sequence[T.StructField]
) -> ReadRows:
    """Read all files of a path once, with one execution, and check their columns.

    `known` are the fields of the known columns. Raises SampleError for unreadable files and missing columns, and
    NoInputError for files without rows.
    """
    files, left_out = input_files(path, wanted.adapter, options)
    units = plan_units(spark, files, whole_files=wanted.adapter is not None and wanted.adapter.whole_files)
    schema = read_fields(known)
    read = partial(read_batches, wanted=wanted, schema=arrow_schema(spark, schema))
    # On disk, because an input may be larger than the memory of all workers
    found = count_rows(units.mapInArrow(read, schema).persist(StorageLevel.DISK_ONLY), wanted.key, files, left_out)
    facts = with_names(found.facts, files, wanted.names)
    check_columns(path, files, facts, needed(wanted.adapter, wanted.required), options.columns)
    if not found.total:
        raise NoInputError(f"{path} has no {'rows' if wanted.names else 'samples'}. Give a file with at least one row")
    return found


def count_rows(stored: DataFrame, key: str, files: Sequence[InputFile], left_out: Sequence[str]) -> ReadRows:
    """Count the stored rows of a pass by id, and read the facts of their files. It runs one execution."""
    # Rows of facts have no id. Equal facts of two units are redundant
    by_id = stored.groupBy(key, "facts").agg(
        F.count("*").alias("n"),
        F.min("content").alias("low"),
        F.max("content").alias("high"),
        F.count("error").alias("broken"),
    )
    is_row = F.col("facts").isNull()
    counts = (
        by_id.agg(
            F.collect_list("facts").alias("facts"),
            F.coalesce(F.sum(F.when(is_row, F.col("n"))), F.lit(0)).alias("total"),
            F.count_if(is_row).alias("distinct"),
            F.count_if(is_row & (F.col("n") > F.col("broken"))).alias("usable"),
            F.count_if(is_row & (F.col("low") != F.col("high"))).alias("conflicts"),
            F.coalesce(F.sum("broken"), F.lit(0)).alias("broken"),
        )
        .collect()[0]
        .asDict()
    )
    facts, starts = read_parts(counts.pop("facts"))
    return ReadRows(stored, by_id.where(is_row), key, files, left_out, facts, starts, **counts)


def arrow_schema(spark: SparkSession, schema: T.StructType) -> pa.Schema:
    """Return a Spark schema for Arrow batches, with timestamps in the session's time zone, as Spark checks them."""
    return to_arrow_schema(schema, timezone=spark.conf.get("spark.sql.session.timeZone"))


def column_named(name: str) -> Column:
    """Return the column with this name, which may have any characters."""
    return F.col("`" + name.replace("`", "``") + "`")


@dataclass(frozen=True)
class Samples:
    """The rows of an input: samples, documents or queries.

    `samples`: sample_id, query, response, contexts array<struct<id, text, kind>>, system, label, then the rest by name.
    It has a row per distinct input row, including invalid rows, with null for unusable values, and reads the stored
    result of the single pass over the files. `invalid`: sample_id, error (file, 1-based row and problem). `duplicates`
    counts dropped exact duplicates. `columns` are the columns of the files, under our names. `left_out` are files with
    unknown extensions.

    Documents are document_id, title, url, text and content (a hash of the other three), and queries are query_id and
    query. Both have no invalid rows, and the sample_id of `invalid` is their id, which may be null.
    """

    samples: DataFrame
    invalid: DataFrame
    row_count: int
    invalid_count: int
    duplicates: int
    first_invalid: list[str]
    columns: frozenset[str]
    left_out: Sequence[str] = ()
    # The listing of the files before they were read (`listing_of`)
    listing: Mapping[str, Any] = field(default_factory=dict)
    # The draw for the manifest, None if all rows are used
    draw: Mapping[str, Any] | None = None


def read_corpus(
    spark: SparkSession, path: str, limit: int | None = None, options: ReadOptions = AS_THEY_ARE
) -> Samples:
    """Return the documents of a file, a folder or a glob. `limit`: only the first ones by document_id.

    Raises SampleError for unreadable files, a missing column, no documents, and one id with two contents.
    """
    found = read_texts(spark, path, DOCUMENT, DOCUMENT_NEEDS, options, key="document_id")
    found.check_ids("Give every distinct row a unique id")
    content = F.sha2(F.to_json(F.struct("title", "url", "text")), 256)
    named = found.rows.withColumn("content", F.substring(content, 1, CONTENT_CHARACTERS))
    return _usable_rows(found, named.select(*DOCUMENT, "content", "error"), limit)


def read_queries(spark: SparkSession, path: str, options: ReadOptions = AS_THEY_ARE) -> Samples:
    """Return the queries of a file, a folder or a glob. A missing id becomes the number, from 1 over all files.

    Raises SampleError as `read_corpus`.
    """
    read = read_texts(spark, path, QUERY, QUERY_NEEDS, options, key="query_id")
    number = (F.col("numbers_before") + F.col("number")).cast("string")
    placed = read.placed(read.stored).withColumn("query_id", F.coalesce(F.nullif("query_id", F.lit("")), number))
    found = count_rows(placed.select(*read.stored.columns), "query_id", read.files, read.left_out)
    found.check_ids("Give every distinct row a unique id, or no id")
    return _usable_rows(found, found.rows.select(*QUERY, "error"), None)


def read_texts(
    spark: SparkSession, path: str, names: Names, required: Sequence[str], options: ReadOptions, key: str
) -> ReadRows:
    """Read files as rows of text columns, under any of their names. A broken row is a row with an error.

    `required` are the columns that every file needs. Raises SampleError as `read_files`.
    """
    wanted = ColumnSelection(required=tuple(required), columns=dict(options.columns), names=names, key=key)
    fields = [*(T.StructField(name, T.StringType()) for name in names), T.StructField("number", T.LongType())]
    return read_files(spark, path, wanted, options, fields)


def _usable_rows(found: ReadRows, rows: DataFrame, limit: int | None) -> Samples:
    """Separate the usable rows, one per id, from the invalid rows."""
    invalid = found.invalid(found.rows)
    first = invalid.orderBy("file", "row").limit(SHOWN_INVALID).collect() if found.broken else []
    good = rows.where(F.col("error").isNull()).drop("error")
    duplicates = found.total - found.broken - found.usable
    distinct = good.dropDuplicates([found.key]) if duplicates else good
    return Samples(
        samples=distinct if limit is None else distinct.orderBy(found.key).limit(limit),
        invalid=invalid.select(F.col(found.key).alias("sample_id"), "error"),
        row_count=found.usable if limit is None else min(limit, found.usable),
        invalid_count=found.broken,
        duplicates=duplicates,
        first_invalid=[row["error"] for row in first],
        columns=found.columns,
        left_out=found.left_out,
    )


def read_table(
    spark: SparkSession, path: str, columns: Sequence[str], options: ReadOptions = AS_THEY_ARE
) -> tuple[DataFrame, list[str]]:
    """Return the rows of files with these columns as text, if they exist, and the names of all columns.

    Spark reads Parquet, ten times as fast as rows are read here. Raises SampleError as `read_texts`, and for the first
    broken row.
    """
    names = dict.fromkeys(columns)
    files, _ = input_files(path, None, options)
    if all(file.kind == "parquet" and not file.constants for file in files):
        table = read_parquet(spark, *(StoragePath(file.path).spark for file in files), mergeSchema=True)
        theirs = {name: other for name in names if (other := options.columns.get(name, name)) in table.columns}
        rows = table.select(*(column_named(other).cast("string").alias(name) for name, other in theirs.items()))
        return rows, sorted({*theirs, *table.columns})
    found = read_texts(spark, path, {name: (name,) for name in names}, (), options, key=columns[0])
    if found.broken:
        first = found.invalid(found.rows).orderBy("file", "row").collect()[0]
        raise SampleError(f"{first['error']}. Correct or remove this row")
    return found.rows.select(*(name for name in names if name in found.columns)), sorted(found.columns)
