"""Test that data frames of pandas, polars and pyarrow are written as files for a run."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from untold.jobs.inputs.files import SampleError
from untold.jobs.inputs.frames import write_frame
from untold.jobs.run.session import read_parquet

BASE = {"query": ["q", "p"], "response": ["r", "s"], "contexts": [["c"], ["d"]]}
ID = uuid.UUID("d67c5028-049e-499d-8ab4-1d39abf4ea57")


def column(folder: Path, frame: Any, name: str) -> list[Any]:
    """Return a column of a frame after it was written to a file."""
    return list(pq.read_table(write_frame(frame, str(folder)))[name].to_pylist())


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b"])])
def test_categories_of_polars_are_text(tmp_path: Path, kind: Any) -> None:
    systems, lists = pl.Series(["a", "b"], dtype=kind), pl.Series([["a"], ["b"]], dtype=pl.List(kind))
    structs = pl.Series([{"x": "a"}, {"x": "b"}], dtype=pl.Struct({"x": kind}))
    frame = pl.DataFrame({**BASE, "contexts": lists, "system": systems, "more": structs})

    assert column(tmp_path, frame, "system") == ["a", "b"]
    assert column(tmp_path, frame, "contexts") == [["a"], ["b"]]
    assert column(tmp_path, frame, "more") == [{"x": "a"}, {"x": "b"}]


@pytest.mark.parametrize(
    ("name", "values", "written"),
    [
        ("sample_id", [1, "x"], ["1", "x"]),
        ("sample_id", [ID, "x"], [str(ID), "x"]),
        ("sample_id", [np.str_("a"), np.int64(3)], ["a", "3"]),
        ("system", pd.Categorical(["a", None]), ["a", None]),
        ("contexts", [["c"], "text"], ['["c"]', "text"]),
        ("contexts", [["c"], {"text": ["a"]}], ['["c"]', '{"text":["a"]}']),
        ("contexts", [np.array(["a", "b"]), np.array(["c"])], [["a", "b"], ["c"]]),
        ("contexts", [["c"], float("nan")], [["c"], None]),
        ("response", ["r", float("nan")], ["r", None]),
        ("response", [pd.NA, 2.5], [None, 2.5]),
        ("response", [pd.NaT, "s"], [None, "s"]),
        ("response", [2, float("inf")], [2.0, float("inf")]),
        ("response", ["\ud800", "s"], ["\ufffd", "s"]),
        ("system", [float("nan")] * 2, [None, None]),
        ("n", [10**30, 1], [str(10**30), "1"]),
    ],
)
def test_columns_of_pandas_with_mixed_types_are_written(
    tmp_path: Path, name: str, values: Any, written: list[Any]
) -> None:
    assert column(tmp_path, pd.DataFrame({**BASE, name: values}), name) == written


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            pd.DataFrame({**BASE, "o": [1, object()]}),
            "samples: column `o` row 2 has the type object. Convert it to text",
        ),
        (pd.DataFrame({**BASE, "o": [1j, 2j]}), "samples: column `o` row 1 has the type complex. Convert it to text"),
        (pd.DataFrame([["a", "b"]], columns=["q", "q"]), "samples has two columns `q`; rename one"),
    ],
)
def test_a_column_that_cannot_be_written_is_named(tmp_path: Path, frame: Any, message: str) -> None:
    with pytest.raises(SampleError) as error:
        write_frame(frame, str(tmp_path))
    assert str(error.value) == message


def test_types_of_arrow_that_parquet_lacks_are_written(tmp_path: Path) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"]))
    assert column(tmp_path, pa.table({"query": ["q", "p"], "system": runs}), "system") == ["a", "a"]
    fixed = pa.array([["a"], ["b"]], pa.list_(pa.string(), 1))
    assert column(tmp_path, pa.table({"query": ["q", "p"], "contexts": fixed}), "contexts") == [["a"], ["b"]]


@pytest.mark.parametrize("name", ["gpt-4 [v2]", "run{1}", "a*b?", "50% +#x,y", "b\\c", "é"])
def test_spark_reads_files_that_it_wrote_with_any_name(tmp_path: Path, spark: SparkSession, name: str) -> None:
    path = str(tmp_path / name / "samples")
    spark.range(3).write.parquet(path)
    spark.range(9).write.parquet(str(tmp_path / "a-b!" / "samples"))

    assert read_parquet(spark, path).count() == 3
    assert read_parquet(spark, path, path, schema=pa.schema([("id", pa.int64())])).count() == 6
