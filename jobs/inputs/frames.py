"""Plan the parts and the Spark types of files for tasks, and write frames of samples to files.

A frame is from Spark, or from any library with Arrow's C stream (pandas, polars, DuckDB).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, replace
from datetime import date, time
from decimal import Decimal
from pathlib import PurePath
from types import NoneType
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from untold.jobs.inputs.files import InputFile, SampleError
from untold.jobs.run.folders import LostRowsError, write_parquet
from untold.jobs.run.session import task_slots
from untold.udfs.samples.conversion import KNOWN
from untold.udfs.samples.file_records import Unit
from untold.udfs.samples.files import compression_of, cuts_lines
from untold.udfs.samples.values import Shape, merge_columns, text_of, without_surrogates
from untold.udfs.storage import StoragePath

FRAME_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError)
LISTS = (
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    *(pa.types.is_list_view, pa.types.is_large_list_view),
)
# Types with a readable text
VALUES = (NoneType, str, bytes, int, float, Decimal, list, tuple, dict, date, time, UUID, PurePath)
# Columns with these names are the index of pandas
_INDEX = re.compile(r"__index_level_\d+__")


INTEGRAL = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
# Types that Spark writes to Parquet and reads back unchanged. Other types are carried as text
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
# The limit of decimals in Spark. Arrow supports 76
MOST_DIGITS = 38


def spark_type(arrow: pa.DataType) -> T.DataType:
    """Return the Spark type of a Parquet column, or text if Spark cannot write the type."""
    # Spark has no unsigned types. 64 bits may not fit a long, and become text
    if pa.types.is_unsigned_integer(arrow) and arrow.bit_width < 64:
        return T.LongType()
    # A timestamp without a zone keeps its type as a column. In lists and structs Spark treats it as UTC
    bare = pa.types.is_timestamp(arrow)
    try:
        kind = from_arrow_type(arrow, prefer_timestamp_ntz=bare)
    except (TypeError, ValueError, pa.ArrowException):
        return T.StringType()
    return kind if _is_writable(kind) else T.StringType()


def _is_writable(kind: T.DataType) -> bool:
    """Return True if Spark can write and read a type in Parquet. Names of a struct must differ by more than case."""
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
    headers: Iterable[Mapping[str, pa.DataType | None]], shapes: Iterable[Mapping[str, Shape]]
) -> dict[str, T.DataType]:
    """Return the types of all columns except the known columns, over all files.

    `headers`: Arrow types by file, None in CSV; `shapes`: the types of values in columns without a type. If files have
    different types for a column, the type holds all values, at last as text.
    """
    types: dict[str, T.DataType] = {}
    for header in headers:
        for name, arrow in header.items():
            kind = None if arrow is None else spark_type(arrow)
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
    """Return a shape as a Spark type. It is text if all values are null, types differ, or a struct has no fields."""
    if isinstance(shape, str):
        simple = {"boolean": T.BooleanType(), "long": T.LongType(), "double": T.DoubleType()}
        return cast(T.DataType, simple.get(shape, T.StringType()))
    if "list" in shape:
        return T.ArrayType(_type_of_shape(shape["list"]))
    fields = [T.StructField(name, _type_of_shape(shape["struct"][name])) for name in sorted(shape["struct"])]
    return T.StructType(fields) if fields else T.StringType()


def _common_type(left: T.DataType, right: T.DataType) -> T.DataType:
    """Return the type that holds values of both: long for integers, double for other numbers, otherwise text."""
    if left == right:
        return left
    if isinstance(left, INTEGRAL) and isinstance(right, INTEGRAL):
        return T.LongType()
    numeric = (*INTEGRAL, T.FloatType, T.DoubleType)
    return T.DoubleType() if isinstance(left, numeric) and isinstance(right, numeric) else T.StringType()


UNIT_TYPE = (
    "file int, path string, kind string, start long, length long, group int, encoding string, delimiter string, "
    "constants binary"
)


def plan_units(spark: SparkSession, files: list[InputFile], whole_files: bool) -> DataFrame:
    """Return the parts of the files for tasks, as columns of `Unit`.

    `whole_files`: only Parquet is divided. Otherwise a part has at most `spark.sql.files.maxPartitionBytes`, as in
    Spark's readers, if the file can be divided.
    """
    split = _bytes(str(spark.conf.get("spark.sql.files.maxPartitionBytes", "128m")))
    # Tasks run in another folder than the command
    placed = [replace(file, path=StoragePath(file.path).spark) for file in files]
    units = [
        astuple(unit) for number, file in enumerate(placed) for unit in _units_of(number, file, split, whole_files)
    ]
    slots = task_slots(spark)
    tasks = max(slots, sum(file.size for file in files) // split + 1)
    # Spark divides local rows into one task per core. Only more tasks need a shuffle
    spread = spark.createDataFrame(units, UNIT_TYPE)
    return spread.repartition(min(len(units), tasks)) if tasks > slots else spread


def _bytes(size: str) -> int:
    """Return a size of Spark's settings in bytes.

    >>> [_bytes(size) for size in ("134217728b", "128MB", "1g")]
    [134217728, 134217728, 1073741824]
    """
    number = size.lower().rstrip("b")
    power = "kmgt".find(number[-1]) + 1
    return max(1, int(number.rstrip("kmgt")) << (10 * power))


def _units_of(number: int, file: InputFile, split: int, whole_files: bool) -> Iterator[Unit]:
    """Yield the units of a file: a row group of Parquet, a range of bytes of JSON Lines, or the whole file.

    `number` is its position in the list of files. Reading cannot start in the middle of a compressed file.
    `whole_files`: an adapter reads each file from its start.
    """
    if file.kind == "parquet":
        start = 0
        for group, count in enumerate(file.row_groups):
            yield file.unit(number, start, count, group)
            start += count
        return
    if file.kind != "lines" or whole_files or compression_of(file.path) or not cuts_lines(file.encoding):
        yield file.unit(number)
        return
    for start in range(0, max(file.size, 1), split):
        yield file.unit(number, start, min(split, max(file.size - start, 1)))


def write_frame(samples: Any, folder: str) -> str:
    """Write a frame as Parquet below `folder`, in batches, and return the path. Raises SampleError for other types."""
    path = f"{folder}/samples"
    if isinstance(samples, DataFrame):
        try:
            write_parquet(samples, path)
        except LostRowsError as error:
            raise SampleError(
                f"Spark wrote the samples to {path} of another machine; write them to a path that all machines share, "
                "and give that path"
            ) from error
        return path
    if not hasattr(samples, "__arrow_c_stream__"):
        raise SampleError(
            f"samples is a {type(samples).__name__}; give a path, a Spark DataFrame, or a table of pyarrow, pandas, "
            "polars or DuckDB"
        )
    os.makedirs(path, exist_ok=True)
    reader = _reader_of(samples)
    names = [name for name in reader.schema.names if not _INDEX.fullmatch(name)]
    schema = pa.schema([_plain(reader.schema.field(name)) for name in names])
    # Without Arrow's schema in the file, every reader sees plain texts, for any text type of the frame
    with pq.ParquetWriter(f"{path}/part-0.parquet", schema, store_schema=False) as writer:
        for batch in reader:
            columns = [_as_plain(batch.column(field.name), field) for field in schema]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return path


def _reader_of(samples: Any) -> pa.RecordBatchReader:
    """Return the batches of a frame. Mixed columns of pandas become text, and their lists become JSON.

    Raises SampleError for a column that Arrow cannot have.
    """
    try:
        return pa.RecordBatchReader.from_stream(samples)
    except FRAME_ERRORS as error:
        # Only frames of pandas have `iloc`
        if not hasattr(samples, "iloc"):
            raise SampleError(f"samples cannot be read as Arrow ({error}); convert its columns to text") from error
    if not samples.columns.is_unique:
        raise SampleError(f"samples has two columns `{samples.columns[samples.columns.duplicated()][0]}`; rename one")
    return pa.table({str(name): _array_of(samples[name]) for name in samples.columns}).to_reader()


def _array_of(column: Any) -> pa.Array:
    """Return a column of pandas. Values of several types become text. Raises SampleError for other objects."""
    try:
        return pa.array(column, from_pandas=True)
    except FRAME_ERRORS:
        values: list[Any] = [
            None if is_missing else value for value, is_missing in zip(column, column.isna(), strict=True)
        ]
    values = [value.tolist() if hasattr(value, "tolist") else value for value in values]
    for row, value in enumerate(values, start=1):
        if not isinstance(value, VALUES):
            kind = type(value).__name__
            raise SampleError(f"samples: column `{column.name}` row {row} has the type {kind}. Convert it to text")
    return pa.array([without_surrogates(text_of(value)) for value in values], pa.string())


def _as_plain(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column as the type of its field. Arrow has no cast of some types of polars, such as Categorical."""
    try:
        return column.cast(field.type)
    except pa.ArrowNotImplementedError:
        return pa.array(column.to_pylist(), field.type)


def _plain(field: pa.Field) -> pa.Field:
    """Return the field with the type of its kind that every Parquet reader supports."""
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return one type for all texts and one for all lists. polars has views, pandas large texts and dictionaries."""
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    if any(is_list(kind) for is_list in LISTS):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([_plain(field) for field in kind.fields])
    return kind
