"""Test the options of the Spark session: the defaults, the options for the input size, and the options of the user."""

from __future__ import annotations

import gzip
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.fakes.object_store import BUCKET, KEYS, ObjectStore
from untold.jobs.inputs.files import COMPRESSED, count_bytes
from untold.jobs.run import session
from untold.jobs.run.session import SMALL, loopback_of_driver, session_options, set_environment
from untold.jobs.settings.model import Settings, SparkSettings
from untold.jobs.settings.sections import StorageSettings
from untold.udfs.python_path import python_environment, standard_library
from untold.udfs.storage import StoragePath

WORKERS = "spark.executorEnv."
JVM = "spark.driver.extraJavaOptions"
PARTITIONS = "spark.sql.shuffle.partitions"


def test_a_small_input_on_one_machine_starts_quickly() -> None:
    options = session_options(Settings(spark=SparkSettings(master="local[2]")), small=True)

    assert SMALL.items() <= options.items()
    assert 1 <= int(options[PARTITIONS]) <= 4


def test_a_large_input_keeps_the_defaults_of_spark() -> None:
    for master in ("local[*]", "spark://host:7077", None):
        options = session_options(Settings(spark=SparkSettings(master=master)), small=False)
        # The size of a broadcast is limited for all inputs
        assert {*SMALL, PARTITIONS}.intersection(options) == {"spark.sql.autoBroadcastJoinThreshold"}
        assert not SMALL.items() & options.items()


def test_tables_with_small_files_but_many_rows_are_not_broadcast(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "ids")
    spark.range(300_000).select(F.format_string("s%07d", "id").alias("sample_id")).write.parquet(path)
    bounds = ("spark.sql.autoBroadcastJoinThreshold", "spark.sql.sources.fileCompressionFactor")
    ours = session_options(Settings(), small=False)

    def joins(values: Iterable[str]) -> set[str]:
        before = {name: spark.conf.get(name) for name in bounds}
        try:
            for name, value in zip(bounds, values, strict=True):
                spark.conf.set(name, value)
            ids = spark.read.parquet(path)
            plan = ids.join(ids, on="sample_id", how="left_semi")._jdf.queryExecution().executedPlan().toString()
        finally:
            for name, value in before.items():
                spark.conf.set(name, value or "")
        return set(re.findall(r"\w+Join", plan))

    assert joins(["10m", "1"]) == {"BroadcastHashJoin"}
    assert joins(ours[name] for name in bounds) == {"SortMergeJoin"}


def test_little_to_read_on_a_cluster_starts_as_quickly() -> None:
    options = session_options(Settings(spark=SparkSettings(master="spark://host:7077")), small=True)
    assert SMALL.items() <= options.items()
    assert options[PARTITIONS] == "4"


def test_workers_of_this_machine_preload_the_modules_of_most_tasks(spark: SparkSession) -> None:
    def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = sorted({"pandas", "untold.udfs.stages.arrow", "openai"}.intersection(sys.modules))
        for _ in batches:
            yield pa.record_batch([pa.array([names])], ["names"])

    (row,) = spark.range(1).mapInArrow(loaded, "names array<string>").collect()
    # A task does not need the modules that make calls
    assert row["names"] == ["pandas", "untold.udfs.stages.arrow"]
    elsewhere = session_options(Settings(spark=SparkSettings(master="spark://host:7077")), small=False)
    assert "spark.python.daemon.module" not in elsewhere


def test_a_driver_that_workers_cannot_reach_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"spark.driver.host": "10.1.2.3"}
    assert loopback_of_driver(Settings(spark=SparkSettings(conf=conf))) is None
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert loopback_of_driver(Settings()) == "127.0.0.1"


def test_options_of_the_user_have_priority() -> None:
    said = {JVM: "-Xss8m", PARTITIONS: "7", "spark.driver.memory": "3g", "spark.sql.adaptive.enabled": "true"}

    options = session_options(Settings(spark=SparkSettings(conf=said)), small=True)

    assert said.items() <= options.items()


@pytest.mark.gate
def test_workers_open_file_systems_with_the_settings(
    spark: SparkSession, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    object_store.put("place/one", b"content")
    options = session_options(Settings(storage=StorageSettings(**object_store.settings)), small=False)
    set_for_workers = {name.removeprefix(WORKERS): text for name, text in options.items() if WORKERS in name}
    for name, text in {**set_for_workers, **KEYS}.items():
        monkeypatch.setitem(spark.sparkContext.environment, name, text)
    read = spark.sparkContext.parallelize([f"s3://{BUCKET}/place/one"], 1).map(
        lambda uri: StoragePath(uri).read_bytes()
    )
    assert read.collect() == [b"content"]


def test_bytes_cover_all_files_in_their_decompressed_size(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"x" * 100)
    packed = gzip.compress(b"x" * 1000)
    (tmp_path / "b.jsonl.gz").write_bytes(packed)

    assert count_bytes(str(tmp_path), str(tmp_path / "absent")) == 100 + COMPRESSED * len(packed)


def test_packages_that_cannot_be_loaded_are_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Java gateway process exited before sending its port number")

    monkeypatch.setattr(session, "launch_gateway", fail)
    jvm = session._Jvm({"spark.jars.packages": "com.example:connector:1"}, archives=False)
    jvm.start()
    with pytest.raises(session.PackagesError, match=r"com\.example:connector:1.*Maven Central.*untold package --jars"):
        jvm.gateway()


def test_the_python_of_workers_is_that_of_the_settings() -> None:
    with patch.dict(os.environ, {"PYSPARK_PYTHON": "/usr/bin/python3"}):
        set_environment(Settings())
        assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/python3"
        set_environment(Settings(spark=SparkSettings(conf={"spark.pyspark.python": "./environment/bin/python"})))
        assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"


def test_a_relative_folder_of_pythonpath_is_that_of_this_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["own", str(tmp_path)]))
    named = python_environment()["PYTHONPATH"].split(os.pathsep)
    assert named == [*standard_library(), str(tmp_path / "own"), str(tmp_path)]
