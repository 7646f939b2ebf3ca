"""Find, list and inspect the files of an input, and determine the types of its columns. Reads no file to its end."""

from __future__ import annotations

import fnmatch
import glob
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any, cast
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from untold.jobs.inputs.options import ReadOptions as ReadOptions
from untold.jobs.lakehouse.base import LakehouseError, NoTableError
from untold.jobs.lakehouse.inputs import TableName, read_table, table_named
from untold.jobs.run.session import task_slots
from untold.udfs.errors import UserError
from untold.udfs.samples.conversion import KNOWN, QUESTION_ID
from untold.udfs.samples.file_records import (
    READ_ERRORS,
    Unit,
    UnreadableFileError,
    column_names,
    csv_header,
    json_kind,
    open_parquet,
    renamed,
)
from untold.udfs.samples.files import (
    COMPRESSIONS,
    UTF_8,
    compression_of,
    cuts_lines,
    encoding_of,
    is_remote,
)
from untold.udfs.samples.values import Shape, merge_columns
from untold.udfs.storage import FOOTERS_AT_ONCE, StoragePath, local_path

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
# Of a decimal in Spark; Arrow has some of 76
MOST_DIGITS = 38


def spark_type(arrow: pa.DataType) -> T.DataType:
    """The Spark type of a Parquet column; text where Spark has none that it can write."""
    # Spark has no unsigned types; those of 64 bits may not fit a long, and become text
    if pa.types.is_unsigned_integer(arrow) and arrow.bit_width < 64:
        return T.LongType()
    # A timestamp without a zone stays one where it is a column; within lists and structs Spark takes it for UTC
    bare = pa.types.is_timestamp(arrow)
    try:
        kind = from_arrow_type(arrow, prefer_timestamp_ntz=bare)
    except (TypeError, ValueError, pa.ArrowException):
        return T.StringType()
    return kind if _is_writable(kind) else T.StringType()


def _is_writable(kind: T.DataType) -> bool:
    """Whether Spark can write a type to Parquet and read it back. Names in a struct may not differ by case alone."""
    if isinstance(kind, T.StructType):
        names = {name.lower() for name in kind.names}
        return 0 < len(names) == len(kind.names) and all(_is_writable(field.dataType) for field in kind)
    if isinstance(kind, T.ArrayType):
        return _is_writable(kind.elementType)
    if isinstance(kind, T.MapType):
        return isinstance(kind.keyType, T.StringType) and _is_writable(kind.valueType)
    if isinstance(kind, T.DecimalType):
        return 0 <= kind.scale <= kind.precision <= MOST_DIGITS
    return isinstance(kind, CARRIED)


def carried_types(
    headers: Iterable[Mapping[str, T.DataType | None]], shapes: Iterable[Mapping[str, Shape]]
) -> dict[str, T.DataType]:
    """The type of every column beside the known, over all files. `headers`: of each file, types None in CSV.

    `shapes`: what the values of columns without a type are. Where files differ in a column's type it is one that holds
    all of them, text at last.
    """
    types: dict[str, T.DataType] = {}
    for header in headers:
        for name, kind in header.items():
            known = types.get(name, kind or T.StringType())
            types[name] = known if kind is None else _common_type(known, kind)
    merged: Mapping[str, Shape] = {}
    for found in shapes:
        merged = merge_columns(merged, found)
    for name, shape in merged.items():
        if shape != "null" or name not in types:
            of_values = _type_of_shape(shape)
            types[name] = _common_type(types.get(name, of_values), of_values)
    return {name: kind for name, kind in types.items() if name not in KNOWN}


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


# A screen or two; a folder of thousands of files that are all wrong is wrong in one way
SHOWN_PROBLEMS = 50
JSON_EXTENSIONS = (".jsonl", ".ndjson", ".json")
TAB_EXTENSIONS = tuple(f".tsv{ending}" for ending in ("", *COMPRESSIONS))
TEXT_KINDS = dict.fromkeys(JSON_EXTENSIONS, "json") | {".csv": "csv", ".tsv": "csv"}
KINDS = {".parquet": "parquet"} | {
    extension + ending: kind for extension, kind in TEXT_KINDS.items() for ending in ("", *COMPRESSIONS)
}
KNOWN_EXTENSIONS = f".parquet, {', '.join(TEXT_KINDS)}; all but the first also with {' or '.join(COMPRESSIONS)}"
# Columns that the folders of a file may name, and Hive's word for null
FOLDER_COLUMNS = ("sample_id", "query_id", QUESTION_ID, "query", "system", "label")
EMPTY_PARTITION = "__HIVE_DEFAULT_PARTITION__"
# Text in gzip or zstd, about
COMPRESSED = 10
UNIT_TYPE = (
    "file int, path string, kind string, start long, length long, group int, encoding string, delimiter string, "
    "constants binary"
)


class SampleError(UserError):
    """Input that no run can start from. The message has one line a file, says what to do, and holds no row's text."""


class NoInputError(SampleError):
    """An input without a file, or without a row: there is nothing to read yet."""


class BrokenLinkError(OSError):
    """A link to a file that is not there; its text is the link's path."""


AS_THEY_ARE = ReadOptions()


@dataclass(frozen=True)
class InputFile:
    """A file: its size in bytes, its kind, and what a header or footer says: columns with types, rows by row group.

    `kind`: parquet, csv, lines or array (both JSON); empty before `inspect_files`. `types`: by column, under our names,
    None in CSV, which has no types; empty where only reading all of it would tell, as with JSON.
    """

    path: str
    size: int
    kind: str = ""
    types: Mapping[str, T.DataType | None] = field(default_factory=dict)
    row_groups: tuple[int, ...] = ()
    encoding: str = UTF_8
    delimiter: str = ","
    # Seconds since 1970; 0 where the file system says none
    modified: float = 0.0
    # Values of columns that the file lacks, of its table or of its folders; and a table's columns by field id
    constants: Mapping[str, pa.Scalar[Any]] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)

    @property
    def packed(self) -> bytes:
        """Its constants as units have them."""
        return pickle.dumps({name: value.as_py() for name, value in self.constants.items()}) if self.constants else b""


@dataclass(frozen=True)
class FileFacts:
    """What reading a file to its end has found: columns, the shapes of those carried along, rows, and what is wrong."""

    columns: frozenset[str] = frozenset()
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    rows: int = 0
    problem: str | None = None

    def merge(self, other: FileFacts) -> FileFacts:
        """The facts of both, which are parts of one file; of two problems the first."""
        shapes = merge_columns(self.shapes, other.shapes)
        columns, rows = self.columns | other.columns, self.rows + other.rows
        return FileFacts(columns, shapes, rows, self.problem or other.problem)


def find_files(path: str) -> list[InputFile]:
    """The files that a path, a glob, a URI or a table stands for, by path. What exists literally wins over a glob.

    Raises NoInputError where there are none, SampleError where they cannot be listed.
    """
    if (table := table_named(path)) is not None:
        return _find_of_table(path, table)
    try:
        found = _find_remote(path) if is_remote(path) else _find_local(local_path(path))
    except BrokenLinkError as error:
        raise SampleError(f"{error} is a link to a missing file. Remove or fix it") from error
    except (OSError, pa.ArrowException, ValueError) as error:
        raise SampleError(f"{path} cannot be listed ({type(error).__name__}). Check its permissions") from error
    if not found:
        raise NoInputError(f"{path} does not exist, or has no files. Check the path")
    return [replace(file, constants=_of_folders(file.path)) for file in sorted(found, key=lambda file: file.path)]


def _of_folders(path: str) -> dict[str, pa.Scalar[Any]]:
    """Return the columns that the folders of a file name, as Hive and Spark write partitions.

    >>> _of_folders("runs/system=gpt-4%2Fmini/n=5/part-0.jsonl")
    {'system': <pyarrow.StringScalar: 'gpt-4/mini'>}
    """
    parts = [part.partition("=") for part in path.split("/")[:-1]]
    found = {name: unquote(value) for name, _, value in parts if name in FOLDER_COLUMNS and value}
    return {name: pa.scalar(value) for name, value in found.items() if value != EMPTY_PARTITION}


def _find_of_table(path: str, table: TableName) -> list[InputFile]:
    try:
        found = read_table(table).files
    except NoTableError as error:
        # A partition may come yet; that a table is not there is a mistake
        raise (SampleError if table.partition else NoInputError)(str(error)) from error
    except LakehouseError as error:
        raise SampleError(str(error)) from error
    if not found:
        raise NoInputError(f"{path} has no rows")
    return sorted((InputFile(**vars(file)) for file in found), key=lambda file: file.path)


def listing_of(files: Sequence[InputFile]) -> dict[str, Any]:
    """What a listing says of an input's files: how many, their bytes, and a digest that changes with any of them.

    Of names, sizes and times: an input whose digest is the same is taken to hold the same rows.
    """
    known = sorted((os.path.basename(file.path), file.size, file.modified) for file in files)
    digest = blake2b(repr(known).encode(), digest_size=16).hexdigest()
    return {"files": len(files), "bytes": sum(file.size for file in files), "digest": digest}


def data_files(path: str) -> tuple[list[InputFile], list[InputFile]]:
    """The files of a path that hold data by their extension, and those beside them that do not, such as a README.

    Where no file has a known extension, all are data: `inspect_files` says what is wrong with each. Raises SampleError
    as `find_files`.
    """
    found = find_files(path)
    known = [file for file in found if _kind(file.path)]
    return (known, [file for file in found if not _kind(file.path)]) if known else (found, [])


def _kind(path: str) -> str | None:
    return next((kind for extension, kind in KINDS.items() if path.lower().endswith(extension)), None)


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
    return compression_of(path) is not None or path.lower().endswith(".parquet")


def _find_local(path: str) -> list[InputFile]:
    """The files of a path or glob with their sizes, in no order; hidden ones below a folder are left out."""
    if os.path.exists(path):
        matches = [path]
    else:
        # The folders above the first wildcard exist, and may have brackets in their names
        above = path
        while above and above != os.sep and not os.path.exists(above):
            above = os.path.dirname(above)
        pattern = f"{glob.escape(above)}{path[len(above) :]}"
        matches = [match for match in glob.glob(pattern, recursive=True) if _is_shown(os.path.basename(match))]
    if not matches and os.path.islink(path):
        raise BrokenLinkError(path)
    paths = {file for match in matches for file in (_walk(match) if os.path.isdir(match) else [match])}
    return list(map(_local_file, paths))


def _local_file(path: str) -> InputFile:
    """A file as it is listed. Raises BrokenLinkError for a link to nothing."""
    if os.path.islink(path) and not os.path.exists(path):
        raise BrokenLinkError(path)
    found = os.stat(path)
    return InputFile(path, found.st_size, modified=found.st_mtime)


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
    found = StoragePath(uri).entry()
    if found.kind == "file":
        return [InputFile(uri, found.size, modified=found.modified)]
    base = uri if found.kind == "folder" else _before_wildcard(uri)
    return [
        InputFile(str(item.place), item.size, modified=item.modified)
        for item in StoragePath(base).entries(recursive=True)
        if item.kind == "file"
        and all(_is_shown(part) for part in PurePosixPath(str(item.place)).relative_to(base).parts)
        and (base == uri or _matches(str(item.place), uri))
    ]


def _before_wildcard(path: str) -> str:
    """The folder to list for a glob: `a/b` of `a/b/*.json`."""
    head = path[: min((path.index(mark) for mark in "*?[" if mark in path), default=len(path))]
    return head.rpartition("/")[0]


def _matches(path: str, pattern: str) -> bool:
    """Whether a path, or a folder above it, is of the pattern; `*` stops at a slash."""
    parts, patterns = path.split("/"), pattern.split("/")
    return len(parts) >= len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def inspect_files(found: Sequence[InputFile], options: ReadOptions = AS_THEY_ARE) -> list[InputFile]:
    """The files with their kind, and what headers and footers say, several read at a time.

    Raises SampleError with a line a useless file.
    """
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        inspected = list(pool.map(partial(_try_inspect, options=options), found))
    raise_problems([one for one in inspected if isinstance(one, str)])
    return [one for one in inspected if isinstance(one, InputFile)]


def _try_inspect(file: InputFile, options: ReadOptions) -> InputFile | str:
    """As `_inspect`, or the line that says what is wrong with the file."""
    try:
        return _inspect(file, options)
    except UnreadableFileError as problem:
        return f"{file.path}: {problem}"
    except READ_ERRORS as error:
        return f"{file.path} cannot be read ({type(error).__name__}). Replace the file or check its permissions"


def _inspect(file: InputFile, options: ReadOptions) -> InputFile:
    """A file with its kind, by extension and for JSON by its first bytes, and what its header or footer says.

    Raises UnreadableFileError for an extension that is not known, or a file that is not what it is called.
    """
    kind = _kind(file.path)
    if kind is None:
        raise UnreadableFileError(f"unknown extension. Known extensions are {KNOWN_EXTENSIONS}")
    if kind == "parquet":
        return _inspect_parquet(file, options)
    encoding = encoding_of(file.path, options.encoding)
    if kind == "json":
        return replace(file, kind=json_kind(file.path, encoding), encoding=encoding)
    delimiter = options.delimiter or ("\t" if file.path.lower().endswith(TAB_EXTENSIONS) else None)
    header, delimiter = csv_header(file.path, encoding, delimiter)
    names = renamed(dict.fromkeys(header), options.columns)
    return replace(file, kind=kind, types=names, encoding=encoding, delimiter=delimiter)


def _inspect_parquet(file: InputFile, options: ReadOptions) -> InputFile:
    with open_parquet(file.path) as parquet:
        schema = parquet.schema_arrow
        groups = tuple(parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups))
    _check_names(schema, file.names)
    named = [*zip(column_names(schema.names), schema.types, strict=True)]
    named += [(name, value.type) for name, value in file.constants.items()]
    types = renamed({name: spark_type(arrow) for name, arrow in named}, options.columns)
    return replace(file, kind="parquet", types=types, row_groups=groups)


def _check_names(schema: pa.Schema, names: Mapping[int, str]) -> None:
    """Raises UnreadableFileError for a file of a table that has a column under another name, or no more."""
    if names:
        from untold.jobs.lakehouse.iceberg import differing_column

        if column := differing_column(schema, names):
            raise UnreadableFileError(f"`{column}` was renamed or dropped in its table; rewrite the table's files")


def raise_problems(problems: Sequence[str]) -> None:
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
    # Tasks run in another folder than the command
    placed = [replace(file, path=StoragePath(file.path).spark) for file in files]
    units = [
        astuple(unit) for number, file in enumerate(placed) for unit in _units_of(number, file, split, whole_files)
    ]
    slots = task_slots(spark)
    tasks = max(slots, sum(file.size for file in files) // split + 1)
    # Local rows are cut into as many tasks as there are cores by themselves; only more cost a shuffle
    spread = spark.createDataFrame(units, UNIT_TYPE)
    return spread.repartition(min(len(units), tasks)) if tasks > slots else spread


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
            yield Unit(number, file.path, file.kind, start, count, group, constants=file.packed)
            start += count
        return
    whole = Unit(number, file.path, file.kind, encoding=file.encoding, delimiter=file.delimiter)
    if file.kind != "lines" or whole_files or compression_of(file.path) or not cuts_lines(file.encoding):
        yield whole
        return
    for start in range(0, max(file.size, 1), split):
        yield replace(whole, start=start, length=min(split, max(file.size - start, 1)))
