"""The files of an input: found, listed and inspected, their columns checked and typed. None is read to its end here."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import PurePosixPath
from typing import cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from untold.udfs.errors import UserError
from untold.udfs.hints import aside, near_misses
from untold.udfs.samples.conversion import KNOWN, REQUIRED
from untold.udfs.samples.files import is_gzip, is_remote, split_uri
from untold.udfs.samples.records import (
    MAX_COLUMNS,
    READ_ERRORS,
    WIDTH_ADVICE,
    Unit,
    UnreadableFileError,
    column_names,
    csv_header,
    json_kind,
    open_parquet,
)
from untold.udfs.samples.shapes import Shape, merge_columns

# A screen or two; a folder of thousands of files that are all wrong is wrong in one way
SHOWN_PROBLEMS = 50
# Of a file with thousands of columns the message stays a line or two
SHOWN_COLUMNS = 20
JSON_EXTENSIONS = (".jsonl", ".ndjson", ".json")
EXTENSIONS = {".parquet": "parquet", ".csv": "csv", ".csv.gz": "csv"} | {
    extension + suffix: "json" for extension in JSON_EXTENSIONS for suffix in ("", ".gz")
}
# What data sets call these columns; spelling alone does not bring one near the other
OTHER_NAMES = {
    "query": ("question", "prompt", "input", "instruction"),
    "response": ("answer", "output", "completion", "prediction"),
    "contexts": ("context", "documents", "passages", "sources"),
}
INTEGRAL = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
# What Spark writes to Parquet and reads back as it was; other types are carried as text
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
# Text in gzip or zstd, about
COMPRESSED = 10
# Of a decimal in Spark; Arrow has some of 76
MOST_DIGITS = 38
UNIT_TYPE = "file int, path string, kind string, start long, length long, group int"


class SampleError(UserError):
    """Input that no run can start from. The message has one line a file, says what to do, and holds no row's text."""


@dataclass(frozen=True)
class InputFile:
    """A file: its size in bytes, its kind, and what a header or footer says: columns, types, rows by row group.

    `kind`: parquet, csv, lines or array (both JSON); empty before `inspect_files`. `columns`: None where only reading
    all of it would tell, as with JSON.
    """

    path: str
    size: int
    kind: str = ""
    columns: tuple[str, ...] | None = None
    types: Mapping[str, T.DataType] = field(default_factory=dict)
    row_groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What reading a file to its end has found: columns, the shapes of those carried along, rows, and what is wrong."""

    columns: frozenset[str] = frozenset()
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    rows: int = 0
    problem: str | None = None

    def merge(self, other: Facts) -> Facts:
        """The facts of both, which are parts of one file; of two problems the first."""
        shapes = merge_columns(self.shapes, other.shapes)
        columns, rows = self.columns | other.columns, self.rows + other.rows
        return Facts(columns, shapes, rows, self.problem or other.problem)


def find_files(path: str) -> list[InputFile]:
    """The files that a path, a glob or a URI stands for, by path. What exists literally wins over a glob.

    Raises SampleError where there are none.
    """
    try:
        found = _find_remote(path) if is_remote(path) else _find_local(local_path(path))
    except (OSError, pa.ArrowException, ValueError) as error:
        raise SampleError(
            f"{path}: cannot be listed ({type(error).__name__}); check the path and its rights"
        ) from error
    if not found:
        raise SampleError(f"{path}: no such file, or no files in it; check the path")
    return sorted(found, key=lambda file: file.path)


def count_bytes(*paths: str) -> int:
    """The bytes of all files of these paths as they are read: what is compressed as ten times its size.

    A path with nothing to be found at has none: whoever reads it says what is wrong.
    """
    total = 0
    for path in paths:
        with suppress(SampleError):
            total += sum(file.size * (COMPRESSED if is_compressed(file.path) else 1) for file in find_files(path))
    return total


def is_compressed(path: str) -> bool:
    """Whether a file's name says that it holds more than its size."""
    return is_gzip(path) or path.lower().endswith(".parquet")


def local_path(path: str) -> str:
    """A path without its `file:` scheme, percent signs decoded where there is no such file otherwise."""
    if not path.startswith("file:/"):
        return path
    bare = re.sub("^file:(//)?(?=/)", "", path)
    return bare if os.path.exists(bare) else unquote(bare)


def _find_local(path: str) -> list[InputFile]:
    """The files of a path or glob with their sizes, in no order; hidden ones below a folder are left out."""
    if os.path.exists(path):
        matches = [path]
    else:
        matches = [match for match in glob.glob(path, recursive=True) if _is_shown(os.path.basename(match))]
    paths = {file for match in matches for file in ([match] if os.path.isfile(match) else _walk(match))}
    return [InputFile(file, os.path.getsize(file)) for file in paths]


def _walk(folder: str) -> Iterator[str]:
    """The files below a folder, without those and without folders that begin with `.` or `_`."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if _is_shown(name)]
        yield from (os.path.join(parent, name) for name in names if _is_shown(name))


def _is_shown(name: str) -> bool:
    """Whether a name is no hidden one, as Spark's readers see it: `_SUCCESS`, `_temporary`, `.crc` files."""
    return not name.startswith((".", "_"))


def _find_remote(uri: str) -> list[InputFile]:
    """The files of a URI or a glob in it, as URIs of the same scheme; what it names literally wins here too."""
    system, inner = split_uri(uri)
    prefix = uri[: len(uri.rstrip("/")) - len(inner.rstrip("/"))]
    info = system.get_file_info(inner)
    if info.type == pafs.FileType.File:
        return [InputFile(prefix + info.path, info.size)]
    base = inner if info.type == pafs.FileType.Directory else _before_wildcard(inner)
    listed = system.get_file_info(pafs.FileSelector(base, recursive=True, allow_not_found=True))
    return [
        InputFile(prefix + item.path, item.size)
        for item in listed
        if item.type == pafs.FileType.File
        and all(_is_shown(part) for part in PurePosixPath(item.path).relative_to(base).parts)
        and (base == inner or _matches(item.path, inner))
    ]


def _before_wildcard(path: str) -> str:
    """The folder to list for a glob: `a/b` of `a/b/*.json`."""
    head = path[: min((path.index(mark) for mark in "*?[" if mark in path), default=len(path))]
    return head.rpartition("/")[0]


def _matches(path: str, pattern: str) -> bool:
    """Whether a path, or a folder above it, is of the pattern; `*` stops at a slash."""
    parts, patterns = path.split("/"), pattern.split("/")
    return len(parts) >= len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def inspect_files(found: list[InputFile]) -> list[InputFile]:
    """The files with their kind, and what headers and footers say. Raises SampleError with a line a useless file."""
    files, problems = [], []
    for file in found:
        try:
            files.append(_inspect(file))
        except UnreadableFileError as problem:
            problems.append(f"{file.path}: {problem}")
        except READ_ERRORS as error:
            problems.append(
                f"{file.path}: cannot be read ({type(error).__name__}); replace the file or check its rights"
            )
    _raise(problems)
    return files


def _inspect(file: InputFile) -> InputFile:
    """A file with its kind, by extension and for JSON by its first bytes, and what its header or footer says.

    Raises UnreadableFileError for an extension that is not known, or a file that is not what it is called.
    """
    name = file.path.lower()
    kind = next((kind for extension, kind in EXTENSIONS.items() if name.endswith(extension)), None)
    if kind is None:
        raise UnreadableFileError(f"unknown extension; known are {', '.join(EXTENSIONS)}")
    if kind == "json":
        return replace(file, kind=json_kind(file.path))
    if kind == "csv":
        return replace(file, kind=kind, columns=tuple(csv_header(file.path)) or None)
    with open_parquet(file.path) as parquet:
        schema = parquet.schema_arrow
        groups = tuple(parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups))
    named = zip(column_names(schema.names), schema.types, strict=True)
    types = {name: _spark_type(arrow) for name, arrow in named}
    return replace(file, kind=kind, columns=tuple(types), types=types, row_groups=groups)


def _spark_type(arrow: pa.DataType) -> T.DataType:
    """The Spark type of a Parquet column; text where Spark has none that it can write."""
    # Spark has no unsigned types; those of 64 bits may not fit a long, and become text
    if pa.types.is_unsigned_integer(arrow) and arrow.bit_width < 64:
        return T.LongType()
    # A timestamp without a zone stays one where it is a column; within lists and structs Spark takes it for UTC
    bare = pa.types.is_timestamp(arrow)
    try:
        spark_type = from_arrow_type(arrow, prefer_timestamp_ntz=bare)
    except (TypeError, ValueError, pa.ArrowException):
        return T.StringType()
    return spark_type if _is_writable(spark_type) else T.StringType()


def _is_writable(spark_type: T.DataType) -> bool:
    """Whether Spark can write a type to Parquet and read it back. Names in a struct may not differ by case alone."""
    if isinstance(spark_type, T.StructType):
        names = {name.lower() for name in spark_type.names}
        return 0 < len(names) == len(spark_type.names) and all(_is_writable(field.dataType) for field in spark_type)
    if isinstance(spark_type, T.ArrayType):
        return _is_writable(spark_type.elementType)
    if isinstance(spark_type, T.MapType):
        return isinstance(spark_type.keyType, T.StringType) and _is_writable(spark_type.valueType)
    if isinstance(spark_type, T.DecimalType):
        return 0 <= spark_type.scale <= spark_type.precision <= MOST_DIGITS
    return isinstance(spark_type, CARRIED)


def _raise(problems: Sequence[str]) -> None:
    """Raises SampleError with a line a problem, the first `SHOWN_PROBLEMS` of them, where there are any."""
    if problems:
        more = [f"and {len(problems) - SHOWN_PROBLEMS} more files"] if len(problems) > SHOWN_PROBLEMS else []
        raise SampleError("\n".join([*problems[:SHOWN_PROBLEMS], *more]))


def plan_units(spark: SparkSession, files: list[InputFile], whole_files: bool) -> DataFrame:
    """The parts of the files, spread over tasks: the columns of `Unit`.

    `whole_files`: none but Parquet is cut up. A part has at most `spark.sql.files.maxPartitionBytes` where the file can
    be cut, as Spark's own readers do.
    """
    split = _bytes(str(spark.conf.get("spark.sql.files.maxPartitionBytes", "128m")))
    units = [astuple(unit) for number, file in enumerate(files) for unit in _units_of(number, file, split, whole_files)]
    tasks = max(spark.sparkContext.defaultParallelism, sum(file.size for file in files) // split + 1)
    # Local rows are cut into as many tasks as there are cores by themselves; only more cost a shuffle
    spread = spark.createDataFrame(units, UNIT_TYPE)
    return spread.repartition(min(len(units), tasks)) if tasks > spark.sparkContext.defaultParallelism else spread


def _bytes(size: str) -> int:
    """A size as Spark's settings write it, in bytes.

    >>> [_bytes(size) for size in ("134217728b", "128MB", "1g")]
    [134217728, 134217728, 1073741824]
    """
    number = size.lower().rstrip("b")
    power = "kmgt".find(number[-1]) + 1
    return max(1, int(number.rstrip("kmgt")) << (10 * power))


def _units_of(number: int, file: InputFile, split: int, whole_files: bool) -> Iterator[Unit]:
    """The units of a file: a row group of Parquet, a range of bytes of JSON Lines, else all of it.

    `number`: its place in the list of files. Compressed files cannot be entered in their middle; `whole_files`: an
    adapter reads each from its start.
    """
    if file.kind == "parquet":
        start = 0
        for group, count in enumerate(file.row_groups):
            yield Unit(number, file.path, file.kind, start, count, group)
            start += count
    elif file.kind == "lines" and not whole_files and not is_gzip(file.path):
        for start in range(0, max(file.size, 1), split):
            yield Unit(number, file.path, file.kind, start, min(split, max(file.size - start, 1)))
    else:
        yield Unit(number, file.path, file.kind)


def check_columns(path: str, files: list[InputFile], facts: Mapping[int, Facts], required: Sequence[str]) -> None:
    """Raises SampleError with a line a file that broke off or lacks columns, and for too many columns in all."""
    problems = []
    union: set[str] = set()
    for number, file in enumerate(files):
        found = facts.get(number, Facts())
        columns = set(file.columns or found.columns)
        missing = [name for name in required if not columns.intersection(name.split(" or "))]
        union |= columns
        if found.problem:
            problems.append(f"{file.path}: {found.problem}")
        elif missing and (file.columns or found.rows):
            problems.append(f"{file.path}: {_describe_missing(missing, columns)}")
    _raise(problems)
    if len(union) > MAX_COLUMNS:
        raise SampleError(f"{path}: {len(union):,} columns over all files, at most {MAX_COLUMNS:,}; {WIDTH_ADVICE}")


def _describe_missing(missing: Sequence[str], columns: set[str]) -> str:
    if not columns:
        return "no row of it is a JSON object; give JSON Lines, a JSON array, CSV or Parquet"
    parts = [f"no column `{name}`{_near(name, columns)}" for name in missing]
    shown = ", ".join(f"`{name}`" for name in sorted(columns)[:SHOWN_COLUMNS])
    more = f" and {len(columns) - SHOWN_COLUMNS} more" if len(columns) > SHOWN_COLUMNS else ""
    return f"{'; '.join(parts)}; it has {shown}{more}; rename or add columns"


def _near(name: str, columns: set[str]) -> str:
    """Columns that a missing one may be called in this file, as the end of a message; empty where none is near."""
    known = sorted(columns - set(REQUIRED))
    words = [name, *OTHER_NAMES.get(name, ())]
    near = [match for word in words for match in near_misses(word, known, most=2, cutoff=0.7)]
    return aside(list(dict.fromkeys(near))[:3])


def carried_types(files: list[InputFile], facts: Mapping[int, Facts], adapted: bool) -> dict[str, T.DataType]:
    """The type of every column beside the known, over all files. `adapted`: an adapter makes the columns.

    Where files differ in a column's type it is one that holds all of them, text at last. CSV says nothing of types:
    text.
    """
    types: dict[str, T.DataType] = {}
    for file in () if adapted else files:
        for name, spark_type in file.types.items():
            types[name] = _common_type(types.get(name, spark_type), spark_type)
        types |= {name: types.get(name, T.StringType()) for name in file.columns or () if file.kind == "csv"}
    shapes: Mapping[str, Shape] = {}
    for found in facts.values():
        shapes = merge_columns(shapes, found.shapes)
    for name, shape in shapes.items():
        if shape != "null" or name not in types:
            spark_type = _type_of_shape(shape)
            types[name] = _common_type(types.get(name, spark_type), spark_type)
    return {name: spark_type for name, spark_type in types.items() if name not in KNOWN}


def _type_of_shape(shape: Shape) -> T.DataType:
    """A shape as Spark type: text where all is null or types do not agree. A struct without fields is text too."""
    if isinstance(shape, str):
        simple = {"boolean": T.BooleanType(), "long": T.LongType(), "double": T.DoubleType()}
        return cast(T.DataType, simple.get(shape, T.StringType()))
    if "list" in shape:
        return T.ArrayType(_type_of_shape(shape["list"]))
    fields = [T.StructField(name, _type_of_shape(shape["struct"][name])) for name in sorted(shape["struct"])]
    return T.StructType(fields) if fields else T.StringType()


def _common_type(left: T.DataType, right: T.DataType) -> T.DataType:
    """The type that holds values of both: long for integers, double for other numbers, else text."""
    if left == right:
        return left
    if isinstance(left, INTEGRAL) and isinstance(right, INTEGRAL):
        return T.LongType()
    numeric = (*INTEGRAL, T.FloatType, T.DoubleType)
    return T.DoubleType() if isinstance(left, numeric) and isinstance(right, numeric) else T.StringType()
