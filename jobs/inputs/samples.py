"""Readers and adapters: files of samples -> the samples table. `udfs.samples` reads, on workers.

Two passes over the input: the first keeps of each row its place, id, hash and error; the second, run by whoever writes
`Samples.samples`, makes the rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from jobs.inputs.files import (
    Facts,
    InputFile,
    SampleError,
    carried_types,
    check_columns,
    find_files,
    inspect_files,
    plan_units,
)
from jobs.run.progress import Display
from udfs.hints import aside, near_misses
from udfs.samples.adapters import FORMATS, Adapter
from udfs.samples.batches import index_batches, sample_batches
from udfs.samples.conversion import KNOWN, QUESTION_ID, REQUIRED, is_question

__all__ = ["FORMATS", "SampleError", "Samples", "fingerprint", "read_samples", "show_invalid"]

SHOWN_INVALID = 20
SHOWN_CONFLICTS = 5
CONTEXTS = T.ArrayType(T.StructType([T.StructField("id", T.StringType()), T.StructField("text", T.StringType())]))
PLACE_TYPES = {"file": T.IntegerType(), "block": T.LongType(), "n": T.LongType(), "part": T.IntegerType()}
PLACE = list(PLACE_TYPES)
PLACE_FIELDS = [T.StructField(name, kind) for name, kind in PLACE_TYPES.items()]
FOUND_FIELDS = [T.StructField(name, T.StringType()) for name in ("sample_id", "content", "error", "facts")]
FINGERPRINT_PARTS = 4
FINGERPRINT_DIGITS = 15


@dataclass(frozen=True)
class Samples:
    """What `read_samples` found.

    `samples`: sample_id, query, response, contexts array<struct<id, text>>, system, label, then the rest by name; a row
    a distinct input row, invalid ones included, null where unusable. Evaluating it reads the files: write it once.
    `invalid`: sample_id, error (file, 1-based row and what is wrong). `duplicates` counts exact duplicates dropped.
    `columns` are those of the files.
    """

    samples: DataFrame
    invalid: DataFrame
    row_count: int
    invalid_count: int
    duplicates: int
    first_invalid: list[str]
    columns: frozenset[str]


def read_samples(
    spark: SparkSession,
    path: str,
    *,
    format: str | None = None,
    limit: int | None = None,
    required: Sequence[str] = REQUIRED,
) -> Samples:
    """The samples of a file, a directory or a glob, read and checked.

    `format` names an adapter of `FORMATS`; `limit` keeps the first samples by sample_id; `required` are the columns
    that whoever scores them reads. Raises SampleError for what
    cannot be read, a missing column, too many columns, no samples at all, and one sample_id with two contents.
    """
    return read_rows(spark, path, _adapter(format), limit, required)


def read_rows(
    spark: SparkSession,
    path: str,
    adapter: Adapter | None,
    limit: int | None = None,
    required: Sequence[str] = REQUIRED,
) -> Samples:
    """As `read_samples`, by an adapter or none, and for rows that need have only some of `REQUIRED`.

    Rows without `response` are questions: `udfs.samples.conversion.to_sample` says what becomes of them.
    """
    if limit is not None and limit < 1:
        raise SampleError(f"limit is {limit}; it must be at least 1")
    files = inspect_files(spark, find_files(path))
    units = plan_units(spark, files, whole_files=adapter is not None)
    index = _index(units, adapter, required).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        facts = _facts(index)
        check_columns(path, files, facts, adapter.required if adapter else required)
        rows = index.where(F.col("facts").isNull()).drop("facts")
        by_id = _check_ids(rows, files)
        total, distinct = (int(n or 0) for n in by_id.agg(F.sum("n"), F.count("*")).first() or (0, 0))
        if not total:
            raise SampleError(f"{path}: no samples in it; give a file with at least one row")
        last_id = _last_id(by_id, limit) if limit is not None and limit < distinct else None
        dropped = _dropped(rows, by_id).persist(StorageLevel.MEMORY_AND_DISK) if total > distinct else None
        invalid = _invalid(rows, dropped, last_id, files).persist(StorageLevel.MEMORY_AND_DISK)
        # Counting fills what is kept, so that the index can go.
        if dropped is not None:
            dropped.count()
        invalid_count = invalid.count()
        first = [row["error"] for row in invalid.orderBy("file", "row", "part").limit(SHOWN_INVALID).collect()]
    finally:
        index.unpersist()
    samples = _samples(units, adapter, required, carried_types(files, facts, adapted=adapter is not None))
    return Samples(
        samples=_kept(samples, dropped, last_id).select("sample.*"),
        invalid=invalid.select("sample_id", "error"),
        row_count=distinct if last_id is None else cast(int, limit),
        invalid_count=invalid_count,
        duplicates=total - distinct,
        first_invalid=first,
        columns=frozenset[str]().union(*(found.columns for found in facts.values())),
    )


def show_invalid(found: Samples, display: Display, done: str = "scored") -> None:
    """Says how many rows cannot be scored, or what else was to be done with them, and why the first of them."""
    if found.invalid_count:
        display.note(f"{found.invalid_count:,} rows cannot be {done} and are in the table failures; the first:")
        for line in found.first_invalid:
            display.note(f"  {line}")


def fingerprint(samples: DataFrame) -> str:
    """32 hex characters of the content of a samples table, the same for any order and partitioning of its rows."""
    digest = F.sha2(F.to_json(F.struct(*[column_named(name) for name in samples.columns])), 256)
    starts = [1 + part * FINGERPRINT_DIGITS for part in range(FINGERPRINT_PARTS)]
    parts = [F.conv(F.substring("digest", start, FINGERPRINT_DIGITS), 16, 10).cast("decimal(38,0)") for start in starts]
    sums = samples.select(digest.alias("digest")).agg(F.count("*"), *[F.sum(part) for part in parts]).first()
    return hashlib.blake2b(json.dumps([str(value) for value in sums or ()]).encode(), digest_size=16).hexdigest()


def column_named(name: str) -> Column:
    """The column of that name, whatever characters it has."""
    return F.col("`" + name.replace("`", "``") + "`")


def _adapter(name: str | None) -> Adapter | None:
    if name is None:
        return None
    if name not in FORMATS:
        raise SampleError(
            f"unknown format `{name}`{aside(near_misses(name, FORMATS))}; formats: {', '.join(sorted(FORMATS))}, "
            "or none to go by extension"
        )
    return FORMATS[name]


def _index(units: DataFrame, adapter: Adapter | None, required: Sequence[str]) -> DataFrame:
    """First pass: the place of each row, sample_id, content, error; facts in a row of its own for each unit."""
    read = partial(index_batches, adapter=adapter, required=tuple(required))
    return _read(units, read, T.StructType([*PLACE_FIELDS, *FOUND_FIELDS]))


def _facts(index: DataFrame) -> dict[int, Facts]:
    """By file: what its units found. Evaluates the first pass."""
    merged: dict[int, Facts] = {}
    for row in index.where(F.col("facts").isNotNull()).select("file", "facts").collect():
        found = json.loads(row["facts"])
        facts = Facts(frozenset(found["columns"]), found["shapes"], found["rows"], found["problem"])
        merged[row["file"]] = merged.get(row["file"], Facts()).merge(facts)
    return merged


def _check_ids(rows: DataFrame, files: list[InputFile]) -> DataFrame:
    """By sample_id: n rows and two hashes. Raises SampleError where one id has two contents."""
    by_id = rows.groupBy("sample_id").agg(
        F.count("*").alias("n"), F.min("content").alias("low"), F.max("content").alias("high")
    )
    several = by_id.where(F.col("low") != F.col("high"))
    shown = several.select("sample_id").orderBy("sample_id").limit(SHOWN_CONFLICTS)
    names = [row["sample_id"] for row in shown.collect()]
    if names:
        both = (
            rows.where(F.col("sample_id").isin(names))
            .groupBy("sample_id", "content")
            .agg(F.min(F.struct(*PLACE)).alias("at"))
        )
        places = _with_row(both.select("sample_id", "at.*"), rows).select("sample_id", "file", "row").collect()
        raise SampleError(_describe_conflicts(places, files, several.count()))
    return by_id


def _describe_conflicts(places: Sequence[Any], files: list[InputFile], count: int) -> str:
    by_id: dict[str, list[tuple[int, int]]] = {}
    for place in places:
        by_id.setdefault(place["sample_id"], []).append((place["file"], place["row"]))
    lines = []
    for name in sorted(by_id):
        first, second, *_ = sorted(by_id[name])
        at = " and ".join(f"{files[file].path}:{row}" for file, row in (first, second))
        lines.append(f"sample_id `{name}` has two contents: {at}")
    more = f"{count - len(lines)} more such ids; " if count > len(lines) else ""
    return "\n".join([*lines, f"{more}give every distinct row an id of its own, or none"])


def _starts(rows: DataFrame) -> DataFrame:
    """file, block, before: the rows of the file before each of its blocks."""
    earlier = Window.partitionBy("file").orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    blocks = rows.groupBy("file", "block").agg(F.max("n").alias("count"))
    return blocks.select("file", "block", F.coalesce(F.sum("count").over(earlier), F.lit(0)).alias("before"))


def _with_row(places: DataFrame, rows: DataFrame) -> DataFrame:
    """The places with `row`, 1-based in its file; `rows` are all there are."""
    starts = F.broadcast(_starts(rows))
    return places.join(starts, on=["file", "block"], how="left").withColumn("row", F.col("before") + F.col("n"))


def _last_id(by_id: DataFrame, limit: int) -> str:
    first = by_id.select("sample_id").orderBy("sample_id").limit(limit).agg(F.max("sample_id")).first()
    return str(first[0]) if first else ""


def _dropped(rows: DataFrame, by_id: DataFrame) -> DataFrame:
    """The places of exact duplicates, all but the first of each."""
    repeated = by_id.where(F.col("n") > 1).select("sample_id")
    order = Window.partitionBy("sample_id").orderBy(*PLACE)
    ranked = rows.join(repeated, on="sample_id", how="left_semi").withColumn("rank", F.row_number().over(order))
    return ranked.where(F.col("rank") > 1).select(*PLACE)


def _kept(rows: DataFrame, dropped: DataFrame | None, last_id: str | None) -> DataFrame:
    kept = rows if last_id is None else rows.where(F.col("sample_id") <= F.lit(last_id))
    return kept if dropped is None else kept.join(dropped, on=PLACE, how="left_anti")


def _invalid(rows: DataFrame, dropped: DataFrame | None, last_id: str | None, files: list[InputFile]) -> DataFrame:
    """file, row, part, sample_id, error with file and row in it."""
    broken = _kept(rows.where(F.col("error").isNotNull()), dropped, last_id)
    paths = rows.sparkSession.createDataFrame([(n, file.path) for n, file in enumerate(files)], "file int, path string")
    message = F.format_string("%s row %d: %s", F.col("path"), F.col("row"), F.col("error"))
    return (
        _with_row(broken, rows)
        .join(F.broadcast(paths), on="file", how="left")
        .select("file", "row", "part", "sample_id", message.alias("error"))
    )


def _samples(
    units: DataFrame, adapter: Adapter | None, required: Sequence[str], carried: Mapping[str, T.DataType]
) -> DataFrame:
    """Second pass: the samples themselves. sample struct, the place, sample_id."""
    taken = (*KNOWN, QUESTION_ID) if is_question(required) else KNOWN
    sources = _output_names([name for name in carried if name not in taken], taken)
    known = [T.StructField(name, CONTEXTS if name == "contexts" else T.StringType()) for name in KNOWN]
    others = [T.StructField(name, carried[sources[name]]) for name in sorted(sources)]
    schema = T.StructType([T.StructField("sample", T.StructType([*known, *others])), *PLACE_FIELDS])
    read = partial(sample_batches, adapter=adapter, required=tuple(required), sources=sources)
    rows = _read(units, read, schema)
    return rows.withColumn("sample_id", F.col("sample.sample_id"))


def _read(units: DataFrame, read: Callable[..., Iterator[pa.RecordBatch]], schema: T.StructType) -> DataFrame:
    arrow = units.sparkSession.createDataFrame([], schema).toArrow().schema
    return units.mapInArrow(partial(read, schema=arrow), schema)


def _output_names(carried: Collection[str], known: Iterable[str]) -> dict[str, str]:
    """Column -> name in the file. Names equal but for case get a number: Spark takes them for one."""
    names: dict[str, str] = {}
    taken = {name.lower() for name in known}
    for name in sorted(carried):
        number, column = 1, name
        while column.lower() in taken or (number > 1 and column in carried):
            number += 1
            column = f"{name}_{number}"
        taken.add(column.lower())
        names[column] = name
    return names
