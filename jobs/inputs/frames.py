"""Frames of samples as files: of Spark, or of whatever speaks Arrow's C stream (pyarrow, pandas, polars, DuckDB)."""

from __future__ import annotations

import os
import re
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from untold.jobs.inputs.files import SampleError
from untold.jobs.run.workspace import LostRowsError, write_parquet

# pandas hands its index on as columns of these names
_INDEX = re.compile(r"__index_level_\d+__")


def write_frame(samples: Any, folder: str) -> str:
    """Writes a frame as Parquet below `folder`, batch by batch, and gives the path. Raises SampleError for no frame."""
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
    reader = pa.RecordBatchReader.from_stream(samples)
    names = [name for name in reader.schema.names if not _INDEX.fullmatch(name)]
    schema = pa.schema([_plain(reader.schema.field(name)) for name in names])
    # Without Arrow's own schema in it, a text is a text to every reader, whatever kind of text the frame had
    with pq.ParquetWriter(f"{path}/part-0.parquet", schema, store_schema=False) as writer:
        for batch in reader:
            writer.write_table(pa.Table.from_batches([batch.select(names)]).cast(schema))
    return path


def _plain(field: pa.Field) -> pa.Field:
    """The field with the one type of its kind that every reader of Parquet knows."""
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Texts and lists of one kind each: polars has views, pandas large texts and dictionaries."""
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([_plain(field) for field in kind.fields])
    return kind
