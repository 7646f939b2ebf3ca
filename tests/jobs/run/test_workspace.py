"""Test that rows are counted when they are written and when they are read. A difference is an error."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from untold.jobs.run.folders import FEW, Counted, LostRowsError, Workspace, check_rows, write_parquet
from untold.jobs.run.output import Output


@pytest.fixture
def other_disk(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Return a folder that Spark uses in place of the local disk. The file system of Hadoop is mounted there."""
    (disk := tmp_path / "other").mkdir()
    conf = spark._jsc.hadoopConfiguration()
    before = conf.get("fs.defaultFS")
    table = disk.parent.name
    conf.set(f"fs.viewfs.mounttable.{table}.link./{disk.parts[1]}", disk.as_uri())
    conf.set("fs.defaultFS", f"viewfs://{table}/")
    yield disk
    conf.set("fs.defaultFS", before)


def test_rows_are_counted_by_footers_next_to_other_files(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "rows")
    assert write_parquet(spark.range(0, 10, 1, 3), path) == 10
    (tmp_path / "rows" / "_SUCCESS").write_text("")
    check_rows(path, 10)
    check_rows(str(tmp_path / "none"), 0)
    next((tmp_path / "rows").glob("part-00002*")).unlink()
    with pytest.raises(LostRowsError, match=r"Spark wrote 10 rows, and 6 can be read back\. .*all machines share"):
        check_rows(path, 10)


def test_a_step_that_is_written_to_another_disk_is_an_error(spark: SparkSession, other_disk: Path) -> None:
    folder = other_disk.parent / "work"
    with pytest.raises(LostRowsError, match=f"{folder}/000-atoms: Spark wrote 7 rows, and 0 can be read back"):
        Workspace(spark, str(folder)).keep(spark.range(7), "atoms")
    assert any(other_disk.rglob("*.parquet"))


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_step_is_computed_once_and_counted_on_the_way(spark: SparkSession, tmp_path: Path, in_memory: bool) -> None:
    steps = Workspace(spark, str(tmp_path / "work"), in_memory).within("graphs")
    counted = Counted({"odd": F.count_if(F.col("id") % 2 == 1)})
    # The random number is new each time that it is computed
    kept = steps.keep(spark.range(0, 7, 1, 3).withColumn("drawn", F.rand()), "atoms", counted)
    first, second = ([row.drawn for row in kept.orderBy("id").collect()] for _ in range(2))
    assert first == second
    assert len(set(first)) == 7
    assert (steps.count(kept), counted["odd"]) == (7, 3)
    assert steps.count(kept.where("id < 3")) == 3
    assert sorted(value for part in steps.values(kept, "id") for value in part.to_pylist()) == list(range(7))
    assert any(tmp_path.rglob("*.parquet")) is not in_memory
    steps.remove()
    assert not any(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("rows", [0, 3, FEW, FEW + 1])
def test_values_that_are_requested_beforehand_are_the_same(spark: SparkSession, tmp_path: Path, rows: int) -> None:
    frame = spark.range(0, rows, 1, 3).select(F.when(F.col("id") != 1, F.col("id").cast("string")).alias("key"))
    found = []
    for in_memory, column in product((False, True), (None, "key")):
        steps = Workspace(spark, str(tmp_path / f"{in_memory}-{column}"), in_memory)
        parts = list(steps.values(steps.keep(frame, column=column), "key"))
        found.append(sorted(value for part in parts for value in part.drop_null().to_pylist()))
    assert all(each == sorted(str(number) for number in range(rows) if number != 1) for each in found)


def test_a_table_that_is_written_to_another_disk_is_an_error(spark: SparkSession, other_disk: Path) -> None:
    place = other_disk.parent / "out"
    with Output(str(place), ("scores",)) as output, pytest.raises(LostRowsError, match=f"{place}/scores: .* 7 rows"):
        output.write("scores", spark.range(7), order=("id",), schema=pa.schema([("id", pa.int64())]))
