"""Write frames of samples to files: from Spark, or from any library with Arrow's C stream (pandas, polars, DuckDB)."""

from __future__ import annotations

import os
import re
from datetime import date, time
from decimal import Decimal
from pathlib import PurePath
from types import NoneType
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from untold.jobs.inputs.files import SampleError
from untold.jobs.run.folders import LostRowsError, write_parquet
from untold.udfs.samples.values import text_of, without_surrogates

FRAME_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError)
LISTS = (
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    *(pa.types.is_list_view, pa.types.is_large_list_view),
)
# Types with a readable text
VALUES = (NoneType, str, bytes, int, float, Decimal, list, tuple, dict, date, time, UUID, PurePath)
# Columns with these names are the index of pandas
_INDEX = re.compile(r"__index_level_\d+__")


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
