"""Read files of samples into the samples table, and locate rows in their files."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, cast

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from untold.jobs.inputs.checking import adapter_of, check_columns, check_names, describe_left_out, input_files
from untold.jobs.inputs.files import (
    AS_THEY_ARE,
    FileFacts,
    InputFile,
    NoInputError,
    ReadOptions,
    SampleError,
    listing_of,
)
from untold.jobs.inputs.frames import carried_types, plan_units
from untold.jobs.inputs.sampling import Draw, shown_draw
from untold.jobs.run.session import read_parquet
from untold.jobs.run.terminal import Display, amount
from untold.udfs.samples.adapters import FORMATS, Adapter, needed
from untold.udfs.samples.batches import ColumnSelection, read_batches, type_batches
from untold.udfs.samples.conversion import CITATIONS, KNOWN, QUESTION_ID, REQUIRED, is_question
from untold.udfs.samples.file_records import undecodable
from untold.udfs.samples.items import ASPECT_FIELDS, FIELDS, REFERENCE_FIELDS
from untold.udfs.texts import TESTED_SCRIPTS

STARTS = "file int, block long, path string, rows_before long, numbers_before long"


@dataclass(frozen=True)
class Parts:
    """The facts of an input by file, and the start of each part (`STARTS` without the path).

    `rows_before`: rows of its file before it, including blank lines. `numbers_before`: records of all files before it.
    """

    facts: Mapping[int, FileFacts]
    starts: Sequence[tuple[int, int, int, int]]


def read_parts(found: Sequence[str]) -> Parts:
    """Merge the facts of all parts (`untold.udfs.samples.batches.UnitProgress.facts`) by file."""
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
    return Parts(merged, starts)


def with_row(places: DataFrame, parts: Parts, files: Sequence[InputFile]) -> DataFrame:
    """Return the positions (file, block, n) with the columns of `STARTS`, and `row`, the 1-based row in the file."""
    starts = [(file, block, files[file].path, *before) for file, block, *before in parts.starts]
    known = F.broadcast(places.sparkSession.createDataFrame(starts, STARTS))
    return places.join(known, on=["file", "block"], how="left").withColumn("row", F.col("rows_before") + F.col("n"))


__all__ = ["FORMATS", "SampleError", "Samples", "fingerprint", "read_samples", "show_invalid"]

# A screen. The table `failures` has all of them
SHOWN_INVALID = 20
SHOWN_CONFLICTS = 5
# The types of item fields, and of columns of `OPTIONAL` that are parsed, for any type in a file
TEXTS = T.ArrayType(T.StringType())
ITEM_TYPES: Mapping[str, T.DataType] = {
    **dict.fromkeys(("id", "text", "anchor", "importance"), T.StringType()),
    "weight": T.DoubleType(),
    **dict.fromkeys(("labels", "covered_by"), TEXTS),
}
LEVELS = T.ArrayType(
    T.StructType(
        [
            *(T.StructField(name, T.StringType()) for name in ("label", "text")),
            T.StructField("share", T.DoubleType()),
        ]
    )
)
OPTIONAL_TYPES: Mapping[str, T.DataType] = {
    "query_id": T.StringType(),
    **{
        column: T.ArrayType(T.StructType([T.StructField(name, ITEM_TYPES[name]) for name in fields]))
        for column, fields in (("aspects", ASPECT_FIELDS), ("references", REFERENCE_FIELDS))
    },
    "ground_truth": T.StructType([T.StructField("text", T.StringType()), T.StructField("claims", TEXTS)]),
    "claim_checks": T.StructType(
        [
            T.StructField(name, kind)
            for fields in FIELDS.values()
            for name, kind in zip(fields, (TEXTS, TEXTS, T.ArrayType(TEXTS)), strict=True)
        ]
    ),
    "rubric": T.ArrayType(
        T.StructType(
            [
                *(T.StructField(name, T.StringType()) for name in ("id", "text")),
                T.StructField("points", T.DoubleType()),
                T.StructField("dimension", T.StringType()),
                T.StructField("tags", TEXTS),
                T.StructField("levels", LEVELS),
                T.StructField("labels", TEXTS),
            ]
        )
    ),
    CITATIONS: T.ArrayType(
        T.StructType(
            [
                *(T.StructField(name, T.LongType()) for name in ("start", "end")),
                T.StructField("sources", TEXTS),
            ]
        )
    ),
    "reference_sources": TEXTS,
}
CONTEXTS = T.ArrayType(T.StructType([T.StructField(name, T.StringType()) for name in ("id", "text", "kind")]))
PLACE_TYPES = {"file": T.IntegerType(), "block": T.LongType(), "n": T.LongType(), "part": T.IntegerType()}
PLACE = list(PLACE_TYPES)
KNOWN_FIELDS = [T.StructField(name, CONTEXTS if name == "contexts" else T.StringType()) for name in KNOWN]
READ_FIELDS = [
    *(T.StructField(name, kind) for name, kind in PLACE_TYPES.items()),
    *(T.StructField(name, T.StringType()) for name in ("content", "error")),
    *KNOWN_FIELDS,
    T.StructField("rest", T.BinaryType()),
    T.StructField("facts", T.StringType()),
]
# Four sums of 60 bits of each row's hash: 15 hexadecimal digits fit a long, and a decimal of 38 digits fits 10^20 of
# them
FINGERPRINT_PARTS = 4
FINGERPRINT_DIGITS = 15
# One task sorts this number of samples. More samples are sorted by ranges, which reads them twice
ROWS_OF_A_TASK = 10_000


@dataclass(frozen=True)
class Samples:
    """The result of `read_samples`.

    `samples`: sample_id, query, response, contexts array<struct<id, text, kind>>, system, label, then the rest by name.
    It has a row per distinct input row, including invalid rows, with null for unusable values, and reads the stored
    result of the single pass over the files. `invalid`: sample_id, error (file, 1-based row and problem). `duplicates`
    counts dropped exact duplicates. `columns` are the columns of the files, under our names. `left_out` are files with
    unknown extensions.
    """

    samples: DataFrame
    invalid: DataFrame
    row_count: int
    invalid_count: int
    duplicates: int
    first_invalid: list[str]
    columns: frozenset[str]
    left_out: tuple[str, ...] = ()
    # The listing of the files before they were read (`listing_of`)
    listing: Mapping[str, Any] = field(default_factory=dict)
    # The draw for the manifest, None if all rows are used
    draw: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class _Pass:
    """The result of the pass over the files: rows, with counts of all, distinct, conflicting and broken rows."""

    rows: DataFrame
    by_id: DataFrame
    parts: Parts
    total: int
    distinct: int
    conflicts: int
    broken: int


def read_samples(
    spark: SparkSession,
    path: str,
    *,
    format: str | None = None,
    limit: int | None = None,
    required: Sequence[str] = REQUIRED,
    optional: Sequence[str] = (),
    draw: Draw | None = None,
    options: ReadOptions = AS_THEY_ARE,
) -> Samples:
    """Read and check the samples of a file, a directory or a glob.

    `options` has the names of our columns in the files, and the format of their text. `format` names an adapter of
    `FORMATS`. `draw` keeps random rows, and `limit` the first of these samples by sample_id. `required` are the columns
    that the metrics read, and `optional` columns are read if they exist, with the types of `OPTIONAL_TYPES`. Raises
    SampleError for unreadable files, a missing column, too many columns, no samples, and one sample_id with two
    contents.
    """
    return read_rows(spark, path, adapter_of(format), limit, required, draw, optional, options)


def read_rows(
    spark: SparkSession,
    path: str,
    adapter: Adapter | None,
    limit: int | None = None,
    required: Sequence[str] = REQUIRED,
    draw: Draw | None = None,
    optional: Sequence[str] = (),
    options: ReadOptions = AS_THEY_ARE,
) -> Samples:
    """Read samples as `read_samples` does, with an adapter or none, and with only some columns of `REQUIRED`.

    Rows without `response` are questions (`untold.udfs.samples.conversion.to_sample`).
    """
    if limit is not None and limit < 1:
        raise SampleError(f"limit is {limit}; it must be at least 1")
    check_names(options.columns, adapter)
    files, left_out = input_files(path, adapter, options)
    units = plan_units(spark, files, whole_files=adapter is not None and adapter.whole_files)
    found = _read(units, ColumnSelection(adapter, tuple(required), tuple(optional), dict(options.columns)))
    facts = found.parts.facts
    check_columns(path, files, facts, needed(adapter, required), options.columns)
    if found.conflicts:
        raise SampleError(_describe_conflicts(found, files))
    if not found.total:
        raise NoInputError(f"{path} has no samples. Give a file with at least one row")
    headers = [file.types for file in files] if adapter is None else []
    carried = carried_types(headers, [one.shapes for one in facts.values()])
    # A response in parts has citations without a column for them
    carried |= {name: OPTIONAL_TYPES[name] for name in optional if name in carried or name == CITATIONS}
    keep, shown = _choose(draw, found, partial(_samples, required=required, carried=carried), adapter)
    by_id = keep(found.by_id)
    distinct = found.distinct if draw is None else by_id.count()
    last_id = _last_id(by_id, limit) if limit is not None and limit < distinct else None
    kept = keep(_kept(found, last_id))
    invalid = _invalid(found, kept, files)
    most = invalid.orderBy("file", "row", "part").limit(SHOWN_INVALID)
    first = [row["error"] for row in most.collect()] if found.broken else []
    return Samples(
        samples=_samples(kept, required, carried),
        invalid=invalid.select("sample_id", "error"),
        row_count=distinct if last_id is None else cast(int, limit),
        # The number is known if it is 0, or if all invalid rows are shown
        invalid_count=invalid.count() if len(first) == SHOWN_INVALID else len(first),
        duplicates=found.total - found.distinct,
        first_invalid=first,
        columns=frozenset[str]().union(*(one.columns for one in facts.values())),
        left_out=left_out,
        listing=listing_of(files),
        draw=shown,
    )


def _choose(
    draw: Draw | None, found: _Pass, typed: Callable[[DataFrame], DataFrame], adapter: Adapter | None
) -> tuple[Callable[[DataFrame], DataFrame], dict[str, Any] | None]:
    """Return a function that keeps the drawn rows of a frame with sample_id, and the draw for the manifest.

    typed: adds the other columns, which strata may use. Raises SampleError for strata that the input cannot have.
    """
    if draw is None:
        return lambda rows: rows, None
    whole_rows = adapter is not None and adapter.by_row
    shown = {**(shown_draw(draw) or {}), "of": found.distinct}
    if not draw.stratify:
        chosen = draw.among(found.by_id, whole_rows=whole_rows)
        return lambda rows: rows.where(chosen), shown
    if whole_rows:
        raise SampleError("a row of this format can belong to several strata. Remove stratify")
    kept = _kept(found, None)
    drawn = draw.by_stratum(kept if set(draw.stratify) <= set(KNOWN) else typed(kept))
    return lambda rows: rows.join(drawn.ids, on="sample_id", how="left_semi"), {**shown, "strata": drawn.strata}


def show_invalid(found: Samples, display: Display, done: str = "scored") -> None:
    """Print the number of invalid rows with the reasons of the first ones, and the skipped files.

    It prints nothing if there are none. Lines have file, row and reason, never the text of a row.
    """
    if found.left_out:
        display.note(describe_left_out(found.left_out))
    if found.invalid_count:
        rows = amount(found.invalid_count, f"row cannot be {done} and is", f"rows cannot be {done} and are")
        display.note(f"{rows} in the table failures; the first:")
        for line in found.first_invalid:
            display.note(f"  {line}")


def fingerprint(samples: DataFrame) -> str:
    """Return 32 hex characters of the content of a samples table, for any order and partitioning of its rows.

    It runs one action. Names and order of the columns count.
    """
    sums = samples.agg(*_fingerprint_sums(samples.columns)).first()
    return _digest(list(sums or ()))


def changes_between(before: DataFrame, now: DataFrame) -> dict[str, int]:
    """Return the numbers of new samples, of changed samples (same sample_id), and of missing samples. One action.

    A sample without a given id is identified by its contents, so a changed sample is a missing and a new one.
    """

    types = [{one.name: one.dataType.simpleString() for one in frame.schema} for frame in (before, now)]
    shared = [column_named(name) for name, kind in types[0].items() if types[1].get(name) == kind]

    def hashed(frame: DataFrame, name: str) -> DataFrame:
        return frame.select("sample_id", F.xxhash64(*shared).alias(name))

    both = hashed(before, "before").join(hashed(now, "now"), on="sample_id", how="full")
    was, is_now = F.col("before"), F.col("now")
    counts = both.agg(
        F.count_if(was.isNull()).alias("late"),
        F.count_if(was != is_now).alias("changed"),
        F.count_if(is_now.isNull()).alias("gone"),
    )
    return counts.collect()[0].asDict()


@dataclass(frozen=True)
class WrittenSamples:
    """The written samples with figures that were computed during the write."""

    samples: DataFrame
    fingerprint: str
    # The number of samples with a text that has no letter of `TESTED_SCRIPTS`
    untested: int


def write_samples(found: Samples, path: str) -> WrittenSamples:
    """Write the samples sorted by id, so that the same input creates the same files."""
    seen, samples = Observation(), found.samples
    few = found.row_count <= ROWS_OF_A_TASK
    ordered = samples.coalesce(1).sortWithinPartitions("sample_id") if few else samples.orderBy("sample_id")
    # Above the sort, because Spark also evaluates the plan below it for its ranges, and would count twice
    sums = _fingerprint_sums(samples.columns)
    observed = ordered.observe(seen, *sums, F.count_if(_has_untested_text()).alias("untested"))
    observed.write.mode("overwrite").parquet(path)
    written = read_parquet(samples.sparkSession, path, schema=samples.schema)
    *parts, untested = seen.get.values()
    return WrittenSamples(written, _digest(parts), untested)


def _has_untested_text() -> Column:
    """Return True if the query, the response or a context has letters, but none of `TESTED_SCRIPTS`."""
    tested = "".join(rf"\p{{Is{script}}}" for script in TESTED_SCRIPTS)

    def is_untested(text: Column) -> Column:
        return text.rlike(r"\p{L}") & ~text.rlike(f"[{tested}]")

    contexts = F.exists("contexts", lambda context: is_untested(context["text"]))
    texts = (is_untested(F.col("query")), is_untested(F.col("response")), contexts)
    return reduce(operator.or_, (F.coalesce(text, F.lit(False)) for text in texts))


def show_untested(written: WrittenSamples, display: Display) -> None:
    """Print the number of samples with a text in a script that the tests do not cover, if there are any."""
    if written.untested:
        display.note(
            f"{amount(written.untested, 'sample has', 'samples have')} a text in a script that Untold is not tested "
            "with. Their scores may be wrong (docs/methods.md, section 14)"
        )


def _fingerprint_sums(columns: Sequence[str]) -> list[Column]:
    """Return columns of one row: the number of rows, and sums of the parts of each row's hash.

    Sums do not depend on order and partitioning, and equal rows count as often as they occur.
    """
    digest = F.sha2(F.to_json(F.struct(*[column_named(name) for name in columns])), 256)
    starts = [1 + part * FINGERPRINT_DIGITS for part in range(FINGERPRINT_PARTS)]
    parts = [F.conv(F.substring(digest, start, FINGERPRINT_DIGITS), 16, 10).cast("decimal(38,0)") for start in starts]
    sums = [F.count(F.lit(1)), *(F.sum(part) for part in parts)]
    return [value.alias(f"part{number}") for number, value in enumerate(sums)]


def _digest(sums: Sequence[Any]) -> str:
    """Return the fingerprint of these sums, 32 hex characters. Never change its input, because manifests store it."""
    return hashlib.blake2b(json.dumps([str(value) for value in sums]).encode(), digest_size=16).hexdigest()


def column_named(name: str) -> Column:
    """Return the column with this name, which may have any characters."""
    return F.col("`" + name.replace("`", "``") + "`")


def _read(units: DataFrame, wanted: ColumnSelection) -> _Pass:
    """Read the files once and store the result. Its counts are one row of sums."""
    schema = T.StructType(READ_FIELDS)
    read = partial(read_batches, wanted=wanted, schema=_arrow(units.sparkSession, schema))
    # On disk, because an input may be larger than the memory of all workers
    everything = units.mapInArrow(read, schema).persist(StorageLevel.DISK_ONLY)
    # Rows of facts have no id. Equal facts of two units are redundant
    by_id = everything.groupBy("sample_id", "facts").agg(
        F.count("*").alias("n"),
        F.min("content").alias("low"),
        F.max("content").alias("high"),
        F.count("error").alias("broken"),
    )
    is_sample = F.col("facts").isNull()
    sums = by_id.agg(
        F.collect_list("facts").alias("facts"),
        F.coalesce(F.sum(F.when(is_sample, F.col("n"))), F.lit(0)).alias("total"),
        F.count_if(is_sample).alias("distinct"),
        F.count_if(is_sample & (F.col("low") != F.col("high"))).alias("conflicts"),
        F.coalesce(F.sum("broken"), F.lit(0)).alias("broken"),
    ).collect()[0]
    counts = sums.asDict()
    parts = read_parts(counts.pop("facts"))
    return _Pass(everything.where(is_sample).drop("facts"), by_id.where(is_sample), parts, **counts)


def _arrow(spark: SparkSession, schema: T.StructType) -> pa.Schema:
    """Return a Spark schema for Arrow batches, with timestamps in the session's time zone, as Spark checks them."""
    return to_arrow_schema(schema, timezone=spark.conf.get("spark.sql.session.timeZone"))


def _describe_conflicts(found: _Pass, files: list[InputFile]) -> str:
    """Return a line for each of the first ids with two contents, with two positions."""
    several = found.by_id.where(F.col("low") != F.col("high")).select("sample_id")
    shown = several.orderBy("sample_id").limit(SHOWN_CONFLICTS)
    rows = found.rows.select("sample_id", "content", *PLACE).join(F.broadcast(shown), on="sample_id", how="left_semi")
    firsts = rows.groupBy("sample_id", "content").agg(F.min(F.struct(*PLACE)).alias("at"))
    by_id: dict[str, list[tuple[int, int]]] = {}
    for place in with_row(firsts.select("sample_id", "at.*"), found.parts, files).collect():
        by_id.setdefault(place["sample_id"], []).append((place["file"], place["row"]))
    lines = []
    for name in sorted(by_id):
        first, second, *_ = sorted(by_id[name])
        at = " and ".join(f"{files[file].path} row {row}" for file, row in (first, second))
        lines.append(f"sample_id `{name}` has two contents: {at}")
    more = f"{found.conflicts - len(lines)} more such ids. " if found.conflicts > len(lines) else ""
    return "\n".join([*lines, f"{more}Give every distinct row a unique id, or no id"])


def _last_id(by_id: DataFrame, limit: int) -> str:
    """Return the sample_id of the last of the first `limit` samples."""
    first = by_id.select("sample_id").orderBy("sample_id").limit(limit).agg(F.max("sample_id")).first()
    return str(first[0]) if first else ""


def _kept(found: _Pass, last_id: str | None) -> DataFrame:
    """Return the rows up to the last id, with only the first of exact duplicates."""
    # By id and not by position, so that the first samples do not depend on the division of files
    kept = found.rows if last_id is None else found.rows.where(F.col("sample_id") <= F.lit(last_id))
    if found.total == found.distinct:
        return kept
    repeated = found.by_id.where(F.col("n") > 1).select("sample_id")
    order = Window.partitionBy("sample_id").orderBy(*PLACE)
    places = found.rows.select("sample_id", *PLACE).join(repeated, on="sample_id", how="left_semi")
    later = places.withColumn("rank", F.row_number().over(order)).where(F.col("rank") > 1).select(*PLACE)
    return kept.join(later, on=PLACE, how="left_anti")


def _invalid(found: _Pass, kept: DataFrame, files: list[InputFile]) -> DataFrame:
    """Return file, row, part, sample_id, and error with file and row. Without broken rows, no query runs."""
    spark = kept.sparkSession
    if not found.broken:
        return spark.createDataFrame([], "file int, row long, part int, sample_id string, error string")
    broken = kept.where(F.col("error").isNotNull()).select("sample_id", *PLACE, "error")
    message = F.format_string("%s row %d: %s", F.col("path"), F.col("row"), F.col("error"))
    named = with_row(broken, found.parts, files)
    return named.select("file", "row", "part", "sample_id", message.alias("error")).persist(StorageLevel.DISK_ONLY)


def _samples(rows: DataFrame, required: Sequence[str], carried: Mapping[str, T.DataType]) -> DataFrame:
    """Return the samples: the known columns, and the other columns with their types over all files."""
    taken = (*KNOWN, QUESTION_ID) if is_question(required) else KNOWN
    sources = _output_names([name for name in carried if name not in taken], taken)
    if not sources:
        return rows.select(*KNOWN)
    schema = T.StructType([*KNOWN_FIELDS, *(T.StructField(name, carried[sources[name]]) for name in sorted(sources))])
    make = partial(type_batches, schema=_arrow(rows.sparkSession, schema), sources=sources)
    # The fingerprint and the write both read it
    return rows.select(*KNOWN, "rest").mapInArrow(make, schema).persist(StorageLevel.DISK_ONLY)


def _output_names(carried: Collection[str], known: Iterable[str]) -> dict[str, str]:
    """Map columns to names in the file. Names that differ only by case get a number, because Spark ignores case."""
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
