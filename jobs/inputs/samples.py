"""Read files of samples into the table `samples`."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from typing import Any, cast

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from untold.jobs.inputs.checking import adapter_of, check_names, describe_left_out
from untold.jobs.inputs.files import AS_THEY_ARE, ReadOptions, SampleError, listing_of
from untold.jobs.inputs.frames import carried_types
from untold.jobs.inputs.reading import PLACE, SHOWN_INVALID, ReadRows, Samples, arrow_schema, column_named, read_files
from untold.jobs.inputs.sampling import Draw, shown_draw
from untold.jobs.run.session import read_parquet
from untold.jobs.run.terminal import Display, amount
from untold.udfs.samples.adapters import FORMATS, Adapter
from untold.udfs.samples.batches import ColumnSelection, type_batches
from untold.udfs.samples.conversion import CITATIONS, KNOWN, QUESTION_ID, REQUIRED, is_question
from untold.udfs.samples.items import ASPECT_FIELDS, FIELDS, REFERENCE_FIELDS
from untold.udfs.texts import TESTED_SCRIPTS

__all__ = ["FORMATS", "SampleError", "Samples", "fingerprint", "read_samples", "show_invalid"]

TEXT, NUMBER = T.StringType(), T.DoubleType()
TEXTS = T.ArrayType(TEXT)


def struct_of(**fields: T.DataType) -> T.StructType:
    """Return the type of an object with these fields."""
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


ITEM_TYPES: Mapping[str, T.DataType] = {
    **dict.fromkeys(("id", "text", "anchor", "importance"), TEXT),
    "weight": NUMBER,
    **dict.fromkeys(("labels", "covered_by"), TEXTS),
}
LEVELS = T.ArrayType(struct_of(label=TEXT, text=TEXT, share=NUMBER))
# The types of columns of `OPTIONAL` that are parsed, for any type in a file
OPTIONAL_TYPES: Mapping[str, T.DataType] = {
    "query_id": TEXT,
    "aspects": T.ArrayType(struct_of(**{name: ITEM_TYPES[name] for name in ASPECT_FIELDS})),
    "references": T.ArrayType(struct_of(**{name: ITEM_TYPES[name] for name in REFERENCE_FIELDS})),
    "ground_truth": struct_of(text=TEXT, claims=TEXTS),
    "claim_checks": struct_of(
        **{name: T.ArrayType(TEXTS) if name.startswith("retrieved") else TEXTS for name in chain(*FIELDS.values())}
    ),
    "rubric": T.ArrayType(
        struct_of(id=TEXT, text=TEXT, points=NUMBER, dimension=TEXT, tags=TEXTS, levels=LEVELS, labels=TEXTS)
    ),
    CITATIONS: T.ArrayType(struct_of(start=T.LongType(), end=T.LongType(), sources=TEXTS)),
    **dict.fromkeys(("reference_sources", "blocked_sources"), TEXTS),
}
CONTEXTS = T.ArrayType(struct_of(id=TEXT, text=TEXT, kind=TEXT))
KNOWN_FIELDS = [T.StructField(name, CONTEXTS if name == "contexts" else TEXT) for name in KNOWN]
# Four sums of 60 bits of each row's hash: 15 hexadecimal digits fit a long, and a decimal of 38 digits fits 10^20 of
# them
FINGERPRINT_PARTS = 4
FINGERPRINT_DIGITS = 15
# One task sorts this number of samples. More samples are sorted by ranges, which reads them twice
ROWS_OF_A_TASK = 10_000


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
    wanted = ColumnSelection(adapter, tuple(required), tuple(optional), dict(options.columns))
    found = read_files(spark, path, wanted, options, KNOWN_FIELDS)
    found.check_ids("Give every distinct row a unique id, or no id")
    files, facts = found.files, found.facts
    headers = [file.types for file in files] if adapter is None else []
    carried = carried_types(headers, [one.shapes for one in facts.values()])
    # A response in parts has citations without a column for them
    carried |= {name: OPTIONAL_TYPES[name] for name in optional if name in carried or name == CITATIONS}
    keep, shown = _choose(draw, found, partial(_samples, required=required, carried=carried), adapter)
    by_id = keep(found.by_id)
    distinct = found.distinct if draw is None else by_id.count()
    last_id = _last_id(by_id, limit) if limit is not None and limit < distinct else None
    kept = keep(_kept(found, last_id))
    invalid = found.invalid(kept)
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
        columns=found.columns,
        left_out=found.left_out,
        listing=listing_of(files),
        draw=shown,
    )


def _choose(
    draw: Draw | None, found: ReadRows, typed: Callable[[DataFrame], DataFrame], adapter: Adapter | None
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
    ids, strata = draw.by_stratum(kept if set(draw.stratify) <= set(KNOWN) else typed(kept))
    return lambda rows: rows.join(ids, on="sample_id", how="left_semi"), {**shown, "strata": strata}


def show_invalid(
    found: Samples, display: Display, one: str = "row cannot be scored", many: str = "rows cannot be scored"
) -> None:
    """Print the number of invalid rows with the reasons of the first ones, and the skipped files.

    It prints nothing if there are none. Lines have file, row and reason, never the text of a row.
    """
    if found.left_out:
        display.note(describe_left_out(found.left_out))
    if found.invalid_count:
        rows = amount(found.invalid_count, f"{one} and is", f"{many} and are")
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


def _last_id(by_id: DataFrame, limit: int) -> str:
    """Return the sample_id of the last of the first `limit` samples."""
    first = by_id.select("sample_id").orderBy("sample_id").limit(limit).agg(F.max("sample_id")).first()
    return str(first[0]) if first else ""


def _kept(found: ReadRows, last_id: str | None) -> DataFrame:
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


def _samples(rows: DataFrame, required: Sequence[str], carried: Mapping[str, T.DataType]) -> DataFrame:
    """Return the samples: the known columns, and the other columns with their types over all files."""
    taken = (*KNOWN, QUESTION_ID) if is_question(required) else KNOWN
    sources = _output_names([name for name in carried if name not in taken], taken)
    if not sources:
        return rows.select(*KNOWN)
    schema = T.StructType([*KNOWN_FIELDS, *(T.StructField(name, carried[sources[name]]) for name in sorted(sources))])
    make = partial(type_batches, schema=arrow_schema(rows.sparkSession, schema), sources=sources)
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
