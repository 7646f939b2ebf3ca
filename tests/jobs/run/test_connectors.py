"""Test the packages and options of Spark for object stores."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pyspark
import pytest

from untold.jobs.inference.stage import engines
from untold.jobs.run import connectors
from untold.jobs.run.connectors import (
    NEWEST_SPARK,
    InstalledSpark,
    connector_options,
    find_spark,
    hadoop_version,
    package_jars,
    with_packages,
)
from untold.jobs.run.session import open_session, session_options
from untold.jobs.run.terminal import Display
from untold.jobs.settings.model import Settings, SparkSettings
from untold.jobs.settings.sections import StorageSettings
from untold.udfs.errors import UserError
from untold.udfs.schemes import STORES

S3A = "spark.hadoop.fs.s3a."
AWS = "software.amazon.awssdk"


def test_a_run_on_local_disks_loads_no_packages() -> None:
    settings = with_packages(Settings(completion_store="/data/store"), ["/data/in", "out", "e2e"])
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
    settings = Settings(completion_store="gs://bucket/store")
    assert [name.split(":")[1] for name in package_jars(settings)] == ["hadoop-gcp"]
    assert connector_options(settings)["spark.hadoop.fs.gs.auth.type"] == "APPLICATION_DEFAULT"
    azure = Settings(completion_store="abfss://box@account.dfs.core.windows.net/store")
    assert [name.split(":")[1] for name in package_jars(azure)] == ["hadoop-azure"]


@pytest.mark.parametrize("hadoop", ["3.4.1", "3.5.0"])
def test_spark_takes_every_coordinate_apart(hadoop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connectors, "hadoop_version", lambda: hadoop)
    named = package_jars(Settings(storage=StorageSettings(packages=[*STORES])))
    assert len(named) > len(STORES)
    # The MavenUtils of Spark do not support classifiers
    assert {coordinate.count(":") for coordinate in named} == {2}


@pytest.mark.slow
def test_spark_finds_the_classes_of_every_store_among_its_packages() -> None:
    classes = ["s3a.S3AFileSystem", "gs.GoogleHadoopFileSystem", "azurebfs.SecureAzureBlobFileSystem"]
    program = (
        "from untold.jobs.run.session import open_session\n"
        "from untold.jobs.settings.model import Settings, SparkSettings\n"
        "from untold.jobs.settings.sections import StorageSettings\n"
        f"storage = StorageSettings(packages={[*STORES]})\n"
        "jvm = open_session(Settings(storage=storage, spark=SparkSettings(master='local[1]')))._jvm\n"
        "loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()\n"
        f"for name in {classes}:\n"
        "    print(jvm.java.lang.Class.forName('org.apache.hadoop.fs.' + name, True, loader).getName())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert [line.removeprefix("org.apache.hadoop.fs.") for line in ended.stdout.splitlines()] == classes, ended.stderr


def test_the_user_selects_the_packages() -> None:
    own = Settings(storage=StorageSettings(packages=["com.example:connector:1", "s3"]))
    assert package_jars(own)[0] == "com.example:connector:1"
    assert package_jars(own)[1].startswith("org.apache.hadoop:hadoop-aws:")
    assert package_jars(with_packages(Settings(storage=StorageSettings(packages=[])), ["s3://bucket/in"])) == []
    brought = Settings(spark=SparkSettings(conf={"spark.jars": "/jars/hadoop-aws.jar"}))
    assert package_jars(with_packages(brought, ["s3://bucket/in"])) == []


def test_spark_gets_the_same_options_of_the_store_as_arrow() -> None:
    storage = StorageSettings(endpoint="http://127.0.0.1:9000", region="eu-west-1")
    said = connector_options(Settings(storage=storage))
    assert said[f"{S3A}endpoint"] == "http://127.0.0.1:9000"
    assert (said[f"{S3A}endpoint.region"], said[f"{S3A}path.style.access"]) == ("eu-west-1", "true")
    anonymous = connector_options(Settings(storage=StorageSettings(anonymous=True, path_style=False)))
    assert anonymous[f"{S3A}path.style.access"] == "false"
    assert "Anonymous" in anonymous[f"{S3A}aws.credentials.provider"]


def test_spark_options_of_the_user_have_priority() -> None:
    storage = StorageSettings(endpoint="http://127.0.0.1:9000")
    settings = Settings(storage=storage, spark=SparkSettings(conf={f"{S3A}endpoint": "http://other"}))
    assert session_options(settings, small=False)[f"{S3A}endpoint"] == "http://other"


def test_the_hadoop_of_pyspark_is_found() -> None:
    assert str(hadoop_version()).count(".") == 2


def test_the_hadoop_of_a_platform_may_be_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert hadoop_version() is None
    assert package_jars(with_packages(Settings(), ["s3://bucket/in"])) == []
    with pytest.raises(UserError, match=r"^storage\.packages: [^\n]*\[\]"):
        package_jars(Settings(storage=StorageSettings(packages=["s3"])))


def test_the_spark_of_this_environment_is_found_and_tested() -> None:
    spark = find_spark()
    assert (spark.version, spark.folder) == (pyspark.__version__, str(Path(pyspark.__file__).parent))
    assert (spark.of_pip, spark.is_newer) == (True, False)
    # The newest tested version is the version of the tests
    assert pyspark.__version__.startswith(f"{NEWEST_SPARK}.")


@pytest.mark.parametrize(
    ("version", "of_pip", "shown"),
    [
        ("4.0.0", True, "Spark 4.0.0 of this environment (/spark), within the tested range 4.0 to 4.3"),
        ("4.3.0+x.1", False, "Spark 4.3.0+x.1 of the platform (/spark), within the tested range 4.0 to 4.3"),
        ("4.4.0.dev1", True, "Spark 4.4.0.dev1 of this environment (/spark), newer than the tested range 4.0 to 4.3"),
        ("5.0.0", False, "Spark 5.0.0 of the platform (/spark), newer than the tested range 4.0 to 4.3"),
    ],
)
def test_a_spark_is_shown_with_its_origin_and_the_tested_range(version: str, of_pip: bool, shown: str) -> None:
    spark = InstalledSpark(version, "/spark", of_pip)
    assert str(spark) == shown
    assert spark.is_newer is ("newer" in shown)


def test_a_session_refuses_an_old_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.6")
    with pytest.raises(UserError, match=r"^Spark 3\.5\.6 [^\n]* is too old\. Untold needs Spark 4\.0 or newer$"):
        open_session(Settings())


@pytest.mark.parametrize(
    ("version", "noted"), [("4.0.7", "Spark 4.0.7 of the platform"), ("4.9.0", "warning: Spark 4.9")]
)
def test_a_start_prints_the_spark_of_a_platform(monkeypatch: pytest.MonkeyPatch, version: str, noted: str) -> None:
    shown = StringIO()
    monkeypatch.setattr(engines, "find_spark", lambda: InstalledSpark(version, "/spark", of_pip=False))
    engines._announce_spark(Display(shown), "")
    assert shown.getvalue().startswith(noted)
