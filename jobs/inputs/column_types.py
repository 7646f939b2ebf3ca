"""The Spark types of columns that are carried along: of one Parquet file, and over all files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from untold.udfs.samples.conversion import KNOWN
from untold.udfs.samples.shapes import Shape, merge_columns

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
