"""The packages and options by which Spark reaches object stores."""

from __future__ import annotations

import pytest

from untold.jobs.run.connectors import connector_options, hadoop_version, package_jars, with_packages
from untold.jobs.run.session import session_options
from untold.jobs.settings.model import Settings, SparkSettings
from untold.jobs.settings.storage import StorageSettings

S3A = "spark.hadoop.fs.s3a."
AWS = "software.amazon.awssdk"


def test_a_run_on_local_disks_loads_no_packages() -> None:
    settings = with_packages(Settings(store="/data/store"), ["/data/in", "out", "e2e"])
    assert package_jars(settings) == []
    assert "spark.jars.packages" not in session_options(settings, small=False)


@pytest.mark.parametrize("path", ["s3://bucket/in", "s3a://bucket/in"])
def test_a_path_of_s3_brings_hadoop_aws_without_its_bundle(path: str) -> None:
    settings = with_packages(Settings(), [path, "out"])
    first, *parts = package_jars(settings)
    assert first == f"org.apache.hadoop:hadoop-aws:{hadoop_version()}"
    assert {part.split(":")[1] for part in parts} >= {"s3", "sts", "s3-transfer-manager"}
    assert len({part.split(":")[2] for part in parts}) == 1
    assert f"{AWS}:bundle" in connector_options(settings)["spark.jars.excludes"]


def test_stores_among_the_settings_bring_their_packages_too() -> None:
    settings = Settings(store="gs://bucket/store")
    assert [name.split(":")[1] for name in package_jars(settings)] == ["gcs-connector"]
    azure = Settings(store="abfss://box@account.dfs.core.windows.net/store")
    assert [name.split(":")[1] for name in package_jars(azure)] == ["hadoop-azure"]


def test_the_user_says_which_packages() -> None:
    own = Settings(storage=StorageSettings(packages=["com.example:connector:1", "s3"]))
    assert package_jars(own)[0] == "com.example:connector:1"
    assert package_jars(own)[1].startswith("org.apache.hadoop:hadoop-aws:")
    assert package_jars(with_packages(Settings(storage=StorageSettings(packages=[])), ["s3://bucket/in"])) == []
    brought = Settings(spark=SparkSettings(conf={"spark.jars": "/jars/hadoop-aws.jar"}))
    assert package_jars(with_packages(brought, ["s3://bucket/in"])) == []


def test_spark_hears_of_the_store_what_arrow_hears() -> None:
    storage = StorageSettings(endpoint="http://127.0.0.1:9000", region="eu-west-1")
    said = connector_options(Settings(storage=storage))
    assert said[f"{S3A}endpoint"] == "http://127.0.0.1:9000"
    assert (said[f"{S3A}endpoint.region"], said[f"{S3A}path.style.access"]) == ("eu-west-1", "true")
    anonymous = connector_options(Settings(storage=StorageSettings(anonymous=True, path_style=False)))
    assert anonymous[f"{S3A}path.style.access"] == "false"
    assert "Anonymous" in anonymous[f"{S3A}aws.credentials.provider"]


def test_what_the_user_tells_spark_wins() -> None:
    storage = StorageSettings(endpoint="http://127.0.0.1:9000")
    settings = Settings(storage=storage, spark=SparkSettings(conf={f"{S3A}endpoint": "http://other"}))
    assert session_options(settings, small=False)[f"{S3A}endpoint"] == "http://other"


def test_the_hadoop_of_pyspark_is_found() -> None:
    assert hadoop_version().count(".") == 2
