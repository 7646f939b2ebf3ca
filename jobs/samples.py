"""Readers and adapters: files of samples -> the samples table. This plans and checks; `jobs.formats` reads, on workers.

Two passes over the input: the first keeps of each row its place, id, hash and error; the second, run by whoever writes
`Samples.samples`, makes the rows.
"""

from __future__ import annotations

import difflib
import fnmatch
import glob
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any, cast

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from jobs import formats
from jobs.formats import KNOWN, REQUIRED, Adapter, Record, Unit, UnreadableFileError

SHOWN_INVALID = 20
SHOWN_PROBLEMS = 50
SHOWN_CONFLICTS = 5
SHOWN_COLUMNS = 20
JSON_EXTENSIONS = (".jsonl", ".ndjson", ".json")
EXTENSIONS = {".parquet": "parquet", ".csv": "csv", ".csv.gz": "csv"} | {
    extension + suffix: "json" for extension in JSON_EXTENSIONS for suffix in ("", ".gz")
}
OTHER_NAMES = {
    "query": ("question", "prompt", "input", "instruction"),
    "response": ("answer", "output", "completion", "prediction"),
    "contexts": ("context", "documents", "passages", "sources"),
}
CONTEXTS = T.ArrayType(T.StructType([T.StructField("id", T.StringType()), T.StructField("text", T.StringType())]))
INTEGRAL = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
CARRIED = (
    T.StringType,
    T.BooleanType,
    *INTEGRAL,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.BinaryType,
)
INDEX_TYPE = "file int, block long, n long, part int, sample_id string, content string, error string, facts string"
INDEX_SCHEMA = pa.schema(
    [("file", pa.int32()), ("block", pa.int64()), ("n", pa.int64()), ("part", pa.int32())]
    + [(name, pa.string()) for name in ("sample_id", "content", "error", "facts")]
)
PLACE_TYPES = (T.IntegerType(), T.LongType(), T.LongType(), T.IntegerType())
PLACE = ["file", "block", "n", "part"]
PLACE_FIELDS = [T.StructField(name, kind) for name, kind in zip(PLACE, PLACE_TYPES, strict=True)]
FINGERPRINT_PARTS = 4
FINGERPRINT_DIGITS = 15


class SampleError(ValueError):
    """Input that no run can start from. The message has one line a file, says what to do, and holds no row's text."""


@dataclass(frozen=True)
class Samples:
    """What `read_samples` found.

    `samples`: sample_id, query, response, contexts array<struct<id, text>>, system, label, then the rest by name; a row
    a distinct input row, invalid ones included, null where unusable. Evaluating it reads the files: write it once.
    `invalid`: sample_id, error (file, 1-based row and what is wrong). `duplicates` counts exact duplicates dropped.
    """

    samples: DataFrame
    invalid: DataFrame
    row_count: int
    invalid_count: int
    duplicates: int
    first_invalid: list[str]


@dataclass(frozen=True)
class _File:
    path: str
    size: int
    kind: str = ""
    columns: tuple[str, ...] | None = None
    types: Mapping[str, T.DataType] = field(default_factory=dict)
    row_groups: tuple[int, ...] = ()


def _wikicontradict(record: Record, row: int) -> list[Record]:
    """The five answers of a row of the human evaluation, labelled as published (methods, section 6)."""
    if record.problem:
        return [record]
    values = record.values
    contexts = [
        {"id": name, "text": values.get(name)} for name in ("context1_self_contained", "context2_self_contained")
    ]
    return [
        Record(
            {
                "sample_id": f"{row}-answer{answer}",
                "query": values.get("question"),
                "response": values.get(f"answer{answer}"),
                "contexts": contexts,
                "system": values.get("model"),
                "label": _wikicontradict_label(values.get(f"label{answer}"), answer),
                "row": row,
                "prompt_index": answer,
            }
        )
        for answer in range(5)
    ]


def _wikicontradict_label(label: Any, answer: int) -> Any:
    saw_one_context = answer in (1, 2)
    return "Partially correct" if saw_one_context and label == "Correct" else label


FORMATS: dict[str, Adapter] = {
    "wikicontradict": Adapter(
        required=(
            *("question", "context1_self_contained", "context2_self_contained", "model"),
            *(f"{name}{answer}" for name in ("answer", "label") for answer in range(5)),
        ),
        expand=_wikicontradict,
    )
}


def read_samples(spark: SparkSession, path: str, *, format: str | None = None, limit: int | None = None) -> Samples:
    """The samples of a file, a directory or a glob, read and checked.

    `format` names an adapter of `FORMATS`; `limit` keeps the first samples by sample_id. Raises SampleError for what
    cannot be read, a missing column, no samples at all, and one sample_id with two contents.
    """
    adapter = _adapter(format)
    if limit is not None and limit < 1:
        raise SampleError(f"limit is {limit}; it must be at least 1")
    files = _inspect(spark, _find(path))
    units = _units(spark, files, whole_files=adapter is not None)
    index = units.mapInArrow(partial(_index, adapter_name=format), INDEX_TYPE).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        facts = _facts(index)
        _check_files(files, facts, adapter.required if adapter else REQUIRED)
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
    return Samples(
        samples=_rows(units, _rest_types(files, facts, adapter), format, dropped, last_id),
        invalid=invalid.select("sample_id", "error"),
        row_count=distinct if last_id is None else cast(int, limit),
        invalid_count=invalid_count,
        duplicates=total - distinct,
        first_invalid=first,
    )


def fingerprint(samples: DataFrame) -> str:
    """32 hex characters of the content of a samples table, the same for any order and partitioning of its rows."""
    digest = F.sha2(F.to_json(F.struct(*[_column(name) for name in samples.columns])), 256)
    starts = [1 + part * FINGERPRINT_DIGITS for part in range(FINGERPRINT_PARTS)]
    parts = [F.conv(F.substring("digest", start, FINGERPRINT_DIGITS), 16, 10).cast("decimal(38,0)") for start in starts]
    sums = samples.select(digest.alias("digest")).agg(F.count("*"), *[F.sum(part) for part in parts]).first()
    return hashlib.blake2b(json.dumps([str(value) for value in sums or ()]).encode(), digest_size=16).hexdigest()


def _column(name: str) -> Any:
    return F.col("`" + name.replace("`", "``") + "`")


def _adapter(name: str | None) -> Adapter | None:
    if name is None:
        return None
    if name not in FORMATS:
        near = difflib.get_close_matches(name, FORMATS, n=1)
        hint = f"did you mean `{near[0]}`? " if near else ""
        raise SampleError(
            f"unknown format `{name}`; {hint}formats: {', '.join(sorted(FORMATS))}, or none to go by extension"
        )
    return FORMATS[name]


def _find(path: str) -> list[_File]:
    """The files that a path stands for, by path. What exists literally wins over a glob."""
    try:
        found = _find_remote(path) if formats.is_remote(path) else _find_local(formats.local_path(path))
    except (OSError, pa.ArrowException, ValueError) as error:
        raise SampleError(
            f"{path}: cannot be listed ({type(error).__name__}); check the path and its rights"
        ) from error
    if not found:
        raise SampleError(f"{path}: no such file, or no files in it; check the path")
    return sorted(found, key=lambda file: file.path)


def _find_local(path: str) -> list[_File]:
    if os.path.exists(path):
        matches = [path]
    else:
        matches = [match for match in glob.glob(path, recursive=True) if _is_shown(os.path.basename(match))]
    paths = {file for match in matches for file in ([match] if os.path.isfile(match) else _walk(match))}
    return [_File(file, os.path.getsize(file)) for file in paths]


def _walk(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if _is_shown(name)]
        yield from (os.path.join(parent, name) for name in names if _is_shown(name))


def _is_shown(name: str) -> bool:
    return not name.startswith((".", "_"))


def _find_remote(uri: str) -> list[_File]:
    system, inner = formats.filesystem(uri)
    prefix = uri[: len(uri.rstrip("/")) - len(inner.rstrip("/"))]
    info = system.get_file_info(inner)
    if info.type == pafs.FileType.File:
        return [_File(prefix + info.path, info.size)]
    base = inner if info.type == pafs.FileType.Directory else _before_wildcard(inner)
    listed = system.get_file_info(pafs.FileSelector(base, recursive=True, allow_not_found=True))
    return [
        _File(prefix + item.path, item.size)
        for item in listed
        if item.type == pafs.FileType.File
        and all(_is_shown(part) for part in PurePosixPath(item.path).relative_to(base).parts)
        and (base == inner or _matches(item.path, inner))
    ]


def _before_wildcard(path: str) -> str:
    head = path[: min((path.index(mark) for mark in "*?[" if mark in path), default=len(path))]
    return head.rpartition("/")[0]


def _matches(path: str, pattern: str) -> bool:
    parts, patterns = path.split("/"), pattern.split("/")
    return len(parts) >= len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _inspect(spark: SparkSession, found: list[_File]) -> list[_File]:
    """The files with kind, and the columns that a header or footer names. Raises SampleError for all that have none."""
    files, problems = [], []
    for file in found:
        try:
            files.append(_inspect_file(spark, file))
        except UnreadableFileError as problem:
            problems.append(f"{file.path}: {problem}")
        except formats.READ_ERRORS as error:
            problems.append(
                f"{file.path}: cannot be read ({type(error).__name__}); replace the file or check its rights"
            )
    _raise(problems)
    return files


def _inspect_file(spark: SparkSession, file: _File) -> _File:
    name = file.path.lower()
    kind = next((kind for extension, kind in EXTENSIONS.items() if name.endswith(extension)), None)
    if kind is None:
        raise UnreadableFileError(f"unknown extension; known are {', '.join(EXTENSIONS)}")
    if kind == "json":
        return _File(file.path, file.size, formats.json_kind(file.path))
    if kind == "csv":
        header = formats.csv_header(file.path)
        return _File(file.path, file.size, kind, tuple(header) or None)
    with formats.open_parquet(file.path) as parquet:
        types = {name or f"_c{n}": _spark_type(spark, t) for n, (name, t) in enumerate(_arrow_fields(parquet))}
        groups = tuple(parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups))
    return _File(file.path, file.size, kind, tuple(types), types, groups)


def _arrow_fields(parquet: Any) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in parquet.schema_arrow]


def _spark_type(spark: SparkSession, arrow: pa.DataType) -> T.DataType:
    """The Spark type of a Parquet column; text where Spark has none that it can write."""
    if pa.types.is_timestamp(arrow) and arrow.tz is None:
        return T.TimestampNTZType()
    if pa.types.is_unsigned_integer(arrow) and arrow.bit_width < 64:
        return T.LongType()
    try:
        spark_type = spark.createDataFrame(pa.table([pa.array([], arrow)], names=["column"])).schema[0].dataType
    except (TypeError, ValueError, pa.ArrowException):
        return T.StringType()
    return spark_type if _is_writable(spark_type) else T.StringType()


def _is_writable(spark_type: T.DataType) -> bool:
    if isinstance(spark_type, T.StructType):
        names = {name.lower() for name in spark_type.names}
        return 0 < len(names) == len(spark_type.names) and all(_is_writable(field.dataType) for field in spark_type)
    if isinstance(spark_type, T.ArrayType):
        return _is_writable(spark_type.elementType)
    if isinstance(spark_type, T.MapType):
        return isinstance(spark_type.keyType, T.StringType) and _is_writable(spark_type.valueType)
    return isinstance(spark_type, CARRIED)


def _raise(problems: Sequence[str]) -> None:
    if problems:
        more = [f"and {len(problems) - SHOWN_PROBLEMS} more files"] if len(problems) > SHOWN_PROBLEMS else []
        raise SampleError("\n".join([*problems[:SHOWN_PROBLEMS], *more]))


def _units(spark: SparkSession, files: list[_File], whole_files: bool) -> DataFrame:
    """The parts of the files, spread over tasks: file int, path string, kind string, start, length long, group int."""
    split = _bytes(str(spark.conf.get("spark.sql.files.maxPartitionBytes", "128m")))
    units = [unit for number, file in enumerate(files) for unit in _units_of(number, file, split, whole_files)]
    tasks = max(spark.sparkContext.defaultParallelism, sum(file.size for file in files) // split + 1)
    schema = "file int, path string, kind string, start long, length long, group int"
    rows = [(unit.file, unit.path, unit.kind, unit.start, unit.length, unit.group) for unit in units]
    return spark.createDataFrame(rows, schema).repartition(max(1, min(len(rows), tasks)))


def _bytes(size: str) -> int:
    """A size as Spark's settings write it (`134217728b`, `128MB`, `1g`), in bytes."""
    number = size.lower().rstrip("b")
    power = "kmgt".find(number[-1]) + 1
    return max(1, int(number.rstrip("kmgt")) << (10 * power))


def _units_of(number: int, file: _File, split: int, whole_files: bool) -> Iterator[Unit]:
    if file.kind == "parquet":
        start = 0
        for group, count in enumerate(file.row_groups):
            yield Unit(number, file.path, file.kind, start, count, group)
            start += count
    elif file.kind == "lines" and not whole_files and not file.path.lower().endswith(".gz"):
        for start in range(0, max(file.size, 1), split):
            yield Unit(number, file.path, file.kind, start, min(split, max(file.size - start, 1)))
    else:
        yield Unit(number, file.path, file.kind)


def _units_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Unit]:
    for batch in batches:
        yield from (Unit(**row) for row in batch.to_pylist())


def _records(unit: Unit, adapter_name: str | None) -> Iterator[tuple[int, int, Record, Record]]:
    """(1-based row of the unit, part of the row, record as read, record to be a sample)."""
    adapter = FORMATS[adapter_name] if adapter_name else None
    for n, record in enumerate(formats.READERS[unit.kind](unit), start=1):
        parts = adapter.expand(record, unit.start + n - 1) if adapter else [record]
        yield from ((n, part, record, expanded) for part, expanded in enumerate(parts))


def _index(batches: Iterable[pa.RecordBatch], adapter_name: str | None) -> Iterator[pa.RecordBatch]:
    """First pass: a row a sample, and a row of facts a unit. What cannot be read on is a fact, not an exception."""
    for unit in _units_in(batches):
        yield from _chunks(_index_rows(unit, adapter_name), INDEX_SCHEMA)


def _index_rows(unit: Unit, adapter_name: str | None) -> Iterator[dict[str, Any]]:
    place = {"file": unit.file, "block": unit.start}
    columns: set[str] = set()
    shapes: dict[str, formats.Shape] = {}
    problem, n = None, 0
    try:
        for n, part, record, expanded in _records(unit, adapter_name):
            columns.update(record.values)
            sample = formats.to_sample(expanded, contexts_as_text=unit.kind in ("csv", "parquet"))
            if unit.kind != "parquet" or adapter_name:
                for name, value in sample.rest.items():
                    shapes[name] = formats.merge_shapes(shapes.get(name, "null"), formats.shape_of(value))
            identity = {"sample_id": sample.known["sample_id"], "content": sample.content, "error": sample.error}
            yield place | {"n": n, "part": part} | identity
    except UnreadableFileError as error:
        problem = str(error)
    except formats.READ_ERRORS as error:
        problem = f"cannot be read to its end ({type(error).__name__}); replace the file or check its rights"
    facts = {"columns": sorted(columns), "shapes": shapes, "rows": n, "problem": problem}
    yield place | {"n": n, "facts": json.dumps(facts)}


def _chunks(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == formats.ROWS_PER_BATCH:
            yield pa.RecordBatch.from_pylist(chunk, schema)
            chunk = []
    if chunk:
        yield pa.RecordBatch.from_pylist(chunk, schema)


@dataclass(frozen=True)
class _Facts:
    columns: frozenset[str]
    shapes: Mapping[str, formats.Shape]
    rows: int
    problem: str | None


def _facts(index: DataFrame) -> dict[int, _Facts]:
    """By file: what its units found. Evaluates the first pass."""
    merged: dict[int, _Facts] = {}
    for row in index.where(F.col("facts").isNotNull()).select("file", "facts").collect():
        found = json.loads(row["facts"])
        before = merged.get(row["file"], _Facts(frozenset(), {}, 0, None))
        shapes = _merge(before.shapes, found["shapes"])
        columns, rows = before.columns | set(found["columns"]), before.rows + found["rows"]
        merged[row["file"]] = _Facts(columns, shapes, rows, before.problem or found["problem"])
    return merged


def _merge(left: Mapping[str, formats.Shape], right: Mapping[str, formats.Shape]) -> dict[str, formats.Shape]:
    names = {**left, **right}
    return {name: formats.merge_shapes(left.get(name, "null"), right.get(name, "null")) for name in names}


def _check_files(files: list[_File], facts: Mapping[int, _Facts], required: Sequence[str]) -> None:
    problems = []
    for number, file in enumerate(files):
        found = facts.get(number, _Facts(frozenset(), {}, 0, None))
        columns = set(file.columns) if file.columns else set(found.columns)
        missing = [name for name in required if name not in columns]
        if found.problem:
            problems.append(f"{file.path}: {found.problem}")
        elif missing and (file.columns or found.rows):
            problems.append(f"{file.path}: {_describe_missing(missing, columns)}")
    _raise(problems)


def _describe_missing(missing: Sequence[str], columns: set[str]) -> str:
    if not columns:
        return "no row of it is a JSON object; give JSON Lines, a JSON array, CSV or Parquet"
    parts = [f"no column `{name}`{_near(name, columns)}" for name in missing]
    shown = ", ".join(f"`{name}`" for name in sorted(columns)[:SHOWN_COLUMNS])
    more = f" and {len(columns) - SHOWN_COLUMNS} more" if len(columns) > SHOWN_COLUMNS else ""
    return f"{'; '.join(parts)}; it has {shown}{more}; rename or add columns"


def _near(name: str, columns: set[str]) -> str:
    by_lower = {column.strip().lower(): column for column in sorted(columns) if column not in REQUIRED}
    candidates = [name, *OTHER_NAMES.get(name, ())]
    near = [match for word in candidates for match in difflib.get_close_matches(word, by_lower, n=2, cutoff=0.7)]
    names = [f"`{by_lower[match]}`" for match in dict.fromkeys(near)]
    return f" (did you mean {' or '.join(names[:3])}?)" if names else ""


def _check_ids(rows: DataFrame, files: list[_File]) -> DataFrame:
    """By sample_id: n rows and two hashes. Raises SampleError where one id has two contents."""
    by_id = rows.groupBy("sample_id").agg(
        F.count("*").alias("n"), F.min("content").alias("low"), F.max("content").alias("high")
    )
    several = by_id.where(F.col("low") != F.col("high"))
    shown = several.select("sample_id").orderBy("sample_id").limit(SHOWN_CONFLICTS)
    names = [row["sample_id"] for row in shown.collect()]
    if names:
        both = (
            rows.where(F.col("sample_id").isin(names)).groupBy("sample_id", "content").agg(F.min(_place()).alias("at"))
        )
        places = both.select("sample_id", "at.*").join(F.broadcast(_starts(rows)), on=["file", "block"], how="left")
        raise SampleError(
            _describe_conflicts(places.select("sample_id", "file", _row()).collect(), files, several.count())
        )
    return by_id


def _place() -> Any:
    return F.struct(*PLACE)


def _row() -> Any:
    return (F.col("before") + F.col("n")).alias("row")


def _describe_conflicts(places: Sequence[Any], files: list[_File], count: int) -> str:
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


def _invalid(rows: DataFrame, dropped: DataFrame | None, last_id: str | None, files: list[_File]) -> DataFrame:
    """file, row, part, sample_id, error with file and row in it."""
    broken = _kept(rows.where(F.col("error").isNotNull()), dropped, last_id)
    paths = rows.sparkSession.createDataFrame([(n, file.path) for n, file in enumerate(files)], "file int, path string")
    message = F.format_string("%s row %d: %s", F.col("path"), F.col("row"), F.col("error"))
    return (
        broken.join(F.broadcast(_starts(rows)), on=["file", "block"], how="left")
        .join(F.broadcast(paths), on="file", how="left")
        .withColumn("row", _row())
        .select("file", "row", "part", "sample_id", message.alias("error"))
    )


def _rest_types(files: list[_File], facts: Mapping[int, _Facts], adapter: Adapter | None) -> dict[str, T.DataType]:
    """The type of every column beside the known, over all files."""
    shapes: dict[str, formats.Shape] = {}
    for found in facts.values():
        shapes = _merge(shapes, found.shapes)
    types: dict[str, T.DataType] = {}
    for file in files if adapter is None else ():
        for name, spark_type in file.types.items():
            types[name] = _common_type(types.get(name, spark_type), spark_type)
        types |= {name: types.get(name, T.StringType()) for name in file.columns or () if file.kind == "csv"}
    for name, shape in shapes.items():
        if shape != "null" or name not in types:
            spark_type = _type_of_shape(shape)
            types[name] = _common_type(types.get(name, spark_type), spark_type)
    return {name: spark_type for name, spark_type in types.items() if name not in KNOWN}


def _type_of_shape(shape: formats.Shape) -> T.DataType:
    """A shape as Spark type: text where all is null or types do not agree. A struct without fields is text too."""
    if isinstance(shape, str):
        simple = {"boolean": T.BooleanType(), "long": T.LongType(), "double": T.DoubleType()}
        return cast(T.DataType, simple.get(shape, T.StringType()))
    if "list" in shape:
        return T.ArrayType(_type_of_shape(shape["list"]))
    fields = [T.StructField(name, _type_of_shape(shape["struct"][name])) for name in sorted(shape["struct"])]
    return T.StructType(fields) if fields else T.StringType()


def _common_type(left: T.DataType, right: T.DataType) -> T.DataType:
    if left == right:
        return left
    if isinstance(left, INTEGRAL) and isinstance(right, INTEGRAL):
        return T.LongType()
    numeric = (*INTEGRAL, T.FloatType, T.DoubleType)
    return T.DoubleType() if isinstance(left, numeric) and isinstance(right, numeric) else T.StringType()


def _rows(
    units: DataFrame,
    rest: Mapping[str, T.DataType],
    adapter_name: str | None,
    dropped: DataFrame | None,
    last_id: str | None,
) -> DataFrame:
    """Second pass: the samples themselves."""
    sources = _output_names(rest)
    known = [T.StructField(name, CONTEXTS if name == "contexts" else T.StringType()) for name in KNOWN]
    others = [T.StructField(name, rest[sources[name]]) for name in sorted(sources)]
    schema = T.StructType([T.StructField("sample", T.StructType([*known, *others])), *PLACE_FIELDS])
    arrow = units.sparkSession.createDataFrame([], schema).toArrow().schema
    make = partial(_sample_batches, adapter_name=adapter_name, schema=arrow, sources=sources)
    rows = units.mapInArrow(make, schema).withColumn("sample_id", F.col("sample.sample_id"))
    return _kept(rows, dropped, last_id).select("sample.*")


def _output_names(rest: Iterable[str]) -> dict[str, str]:
    """Column -> name in the file. Names equal but for case get a number: Spark takes them for one."""
    names: dict[str, str] = {}
    taken = {name.lower() for name in KNOWN}
    for name in sorted(rest):
        number, column = 1, name
        while column.lower() in taken or (number > 1 and column in rest):
            number += 1
            column = f"{name}_{number}"
        taken.add(column.lower())
        names[column] = name
    return names


def _sample_batches(
    batches: Iterable[pa.RecordBatch], adapter_name: str | None, schema: pa.Schema, sources: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    for unit in _units_in(batches):
        yield from _chunks(_sample_rows(unit, adapter_name, schema.field("sample").type, sources), schema)


def _sample_rows(
    unit: Unit, adapter_name: str | None, columns: pa.StructType, sources: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    for n, part, _, record in _records(unit, adapter_name):
        sample = formats.to_sample(record, contexts_as_text=unit.kind in ("csv", "parquet"))
        others = {
            name: formats.as_type(sample.rest.get(source), columns.field(name).type) for name, source in sources.items()
        }
        yield {"sample": {**sample.known, **others}, "file": unit.file, "block": unit.start, "n": n, "part": part}
