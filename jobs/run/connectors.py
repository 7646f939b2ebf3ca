"""What Spark needs to reach object stores: jars that PySpark does not bring, and options that fit ours."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pyspark

from untold.jobs.settings.model import AUTO, Settings
from untold.udfs.schemes import STORES, scheme_of

# The AWS SDK that a version of hadoop-aws was built with, by its pom
_AWS_SDK = {"3.4.0": "2.23.19", "3.4.1": "2.24.6", "3.4.2": "2.29.52"}
_NEWEST_AWS_SDK = "2.35.4"
# What hadoop-aws uses of it; the whole bundle has 670 MB
_AWS_PARTS = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
# Spark brings its own of the last ones
_EXCLUDED = (
    *("software.amazon.awssdk:bundle", "org.wildfly.openssl:*"),
    *("io.netty:*", "org.slf4j:*", "org.apache.httpcomponents:*", "commons-logging:*", "commons-codec:*"),
)
# Hadoop's own connector, in one jar; it works with older ones too, which do not know its class
_FIRST_GCP = "3.5.0"
_GS = {
    "spark.hadoop.fs.gs.impl": "org.apache.hadoop.fs.gs.GoogleHadoopFileSystem",
    # As Arrow and obstore look for credentials; the default asks Google's own machines alone
    "spark.hadoop.fs.gs.auth.type": "APPLICATION_DEFAULT",
}
_ANY_STORE = {
    # A rename is a copy there: tasks commit into the table itself, which nobody reads before the manifest says so
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.streaming.fileStreamSink.ignoreMetadata": "true",
    # Ranges that are asked for together are not asked for again where an answer breaks off
    "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
}
_S3A = {
    # A store that is gone is an error within half a minute; one that is busy (503) is asked twenty times
    "attempts.maximum": "3",
    "retry.limit": "3",
    "connection.establish.timeout": "5s",
    "connection.timeout": "30s",
    # The default of Hadoop 3.5 fails a task whose answer breaks off; this one asks again
    "input.stream.type": "classic",
    # Files are written once, by one task, and nobody lists a folder for its marker
    "change.detection.mode": "none",
    "create.performance": "true",
    "performance.flags": "create,mkdir",
    "directory.marker.retention": "keep",
    "bucket.probe": "0",
}


def with_packages(settings: Settings, paths: Iterable[str]) -> Settings:
    """The settings with the packages of these paths' object stores too, where nobody says which."""
    stores = sorted({scheme for path in paths if (scheme := scheme_of(path)) in STORES})
    if not stores or settings.storage.packages != AUTO:
        return settings
    storage = settings.storage.model_copy(update={"packages": [*package_jars(settings, stores)]})
    return settings.model_copy(update={"storage": storage})


def package_jars(settings: Settings, stores: Iterable[str] = ()) -> list[str]:
    """The Maven coordinates of what Spark needs for the object stores of the settings, and for more of these schemes.

    None where the setting `storage.packages` says so, or where the user gives Spark jars of his own.
    """
    said = settings.storage.packages
    if said == AUTO:
        own = {"spark.jars", "spark.jars.packages"} & settings.spark.conf.keys()
        paths = (settings.completion_store, settings.knowledge.index, settings.llm.spool, settings.lakehouse.path)
        said = [] if own else sorted({scheme_of(path) or "" for path in paths if path} | {*stores})
    known = _known_packages()
    return [one for name in said for one in (known.get(name, []) if ":" not in name else [name])]


def _known_packages() -> dict[str, list[str]]:
    """The coordinates by scheme, of the Hadoop that PySpark brings."""
    hadoop = hadoop_version()
    sdk = _AWS_SDK.get(hadoop, _NEWEST_AWS_SDK)
    parts = [f"software.amazon.awssdk:{part}:{sdk}" for part in _AWS_PARTS]
    return {
        "s3": [f"org.apache.hadoop:hadoop-aws:{hadoop}", *parts],
        "gs": [f"org.apache.hadoop:hadoop-gcp:{max(hadoop, _FIRST_GCP, key=_numbers)}"],
        "abfss": [f"org.apache.hadoop:hadoop-azure:{hadoop}"],
    }


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def hadoop_version() -> str:
    """The version of Hadoop that the PySpark in use brings, such as 3.5.0."""
    jars = Path(pyspark.__file__).parent / "jars"
    names = (re.fullmatch(r"hadoop-client-api-([\d.]+)\.jar", path.name) for path in jars.iterdir())
    return next(name[1] for name in names if name)


def connector_options(settings: Settings) -> dict[str, str]:
    """What Spark is told of object stores: packages, and for S3 what `storage.*` says. `spark.conf` may change it."""
    jars = package_jars(settings)
    packages = {"spark.jars.packages": ",".join(jars), "spark.jars.excludes": ",".join(_EXCLUDED)}
    options = {**packages, **_ANY_STORE} if jars else {}
    if any(":hadoop-gcp:" in jar for jar in jars):
        options |= _GS
    return options | {f"spark.hadoop.fs.s3a.{name}": value for name, value in {**_S3A, **_access(settings)}.items()}


def _access(settings: Settings) -> dict[str, str]:
    """The options of s3a that the settings `storage.*` stand for."""
    storage = settings.storage
    said = {
        "endpoint": storage.endpoint,
        "endpoint.region": storage.region or (storage.endpoint and "us-east-1"),
        "path.style.access": storage.endpoint and "true",
        "aws.credentials.provider": storage.anonymous and "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider",
    }
    if storage.path_style is not None:
        said["path.style.access"] = str(storage.path_style).lower()
    return {name: value for name, value in said.items() if value}
