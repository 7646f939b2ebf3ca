"""Find the installed Spark, and give it the jars and options that it needs for object stores."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from untold.jobs.settings.model import AUTO, Settings
from untold.udfs.errors import UserError
from untold.udfs.schemes import STORES, scheme_of

# The AWS SDK that a version of hadoop-aws was built with, by its pom
_AWS_SDK = {"3.4.0": "2.23.19", "3.4.1": "2.24.6", "3.4.2": "2.29.52"}
_NEWEST_AWS_SDK = "2.35.4"
# The parts of the SDK that hadoop-aws uses. The whole bundle has 670 MB
_AWS_PARTS = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
# Spark has its own jars of the last five
_EXCLUDED = (
    *("software.amazon.awssdk:bundle", "org.wildfly.openssl:*"),
    *("io.netty:*", "org.slf4j:*", "org.apache.httpcomponents:*", "commons-logging:*", "commons-codec:*"),
)
# The first version of Hadoop's connector, which is one jar. It also works with an older Hadoop, which lacks its class
_FIRST_GCP = "3.5.0"
_GS = {
    "spark.hadoop.fs.gs.impl": "org.apache.hadoop.fs.gs.GoogleHadoopFileSystem",
    # Arrow and obstore find credentials in this way. The default only works on Google's machines
    "spark.hadoop.fs.gs.auth.type": "APPLICATION_DEFAULT",
}
_ANY_STORE = {
    # A rename is a copy in a store, so tasks commit into the table itself. Readers wait for the manifest
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.streaming.fileStreamSink.ignoreMetadata": "true",
    # Hadoop does not retry ranges of one request after a broken response
    "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
}
_S3A = {
    # An unreachable store is an error within half a minute. A busy store (503) gets twenty requests
    "attempts.maximum": "3",
    "retry.limit": "3",
    "connection.establish.timeout": "5s",
    "connection.timeout": "30s",
    # The default of Hadoop 3.5 fails a task after a broken response. This stream retries
    "input.stream.type": "classic",
    # One task writes a file once, and no reader lists a folder for its marker
    "change.detection.mode": "none",
    "create.performance": "true",
    "performance.flags": "create,mkdir",
    "directory.marker.retention": "keep",
    "bucket.probe": "0",
}


# The tests run with the lowest version of setup.py and with the newest one
OLDEST_SPARK, NEWEST_SPARK = "4.0", "4.3"


@dataclass(frozen=True)
class InstalledSpark:
    """The PySpark that Python imports: its version, its folder, and True if pip installed it."""

    version: str
    folder: str
    of_pip: bool

    @property
    def is_newer(self) -> bool:
        """True if no test has used a version as new as this."""
        return _minor(self.version) > _numbers(NEWEST_SPARK)

    def __str__(self) -> str:
        owner = "this environment" if self.of_pip else "the platform"
        tested = f"{'newer than' if self.is_newer else 'within'} the tested range {OLDEST_SPARK} to {NEWEST_SPARK}"
        return f"Spark {self.version} of {owner} ({self.folder}), {tested}"


def find_spark() -> InstalledSpark:
    """Return the PySpark that Python imports. Raises UserError if it is too old.

    A platform puts its own PySpark on Python's path, without metadata of pip.
    """
    import pyspark

    version, folder = pyspark.__version__, Path(pyspark.__file__).parent
    if _minor(version) < _numbers(OLDEST_SPARK):
        raise UserError(f"Spark {version} ({folder}) is too old. Untold needs Spark {OLDEST_SPARK} or newer")
    try:
        own = Path(str(distribution("pyspark").locate_file("pyspark")))
    except PackageNotFoundError:
        return InstalledSpark(version, str(folder), of_pip=False)
    return InstalledSpark(version, str(folder), of_pip=own.resolve() == folder.resolve())


def _minor(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def with_packages(settings: Settings, paths: Iterable[str]) -> Settings:
    """Add the packages of the object stores of paths to the settings, if `storage.packages` is auto."""
    stores = sorted({scheme for path in paths if (scheme := scheme_of(path)) in STORES})
    if not stores or settings.storage.packages != AUTO:
        return settings
    storage = settings.storage.model_copy(update={"packages": [*package_jars(settings, stores)]})
    return settings.model_copy(update={"storage": storage})


def package_jars(settings: Settings, stores: Iterable[str] = ()) -> list[str]:
    """Return the Maven coordinates of the jars for the object stores of the settings and for these schemes.

    There are none if `storage.packages` is empty. With auto, there are none next to other jars of the user, or if the
    version of Spark's Hadoop is unknown.
    """
    said = settings.storage.packages
    if said == AUTO:
        own = {"spark.jars", "spark.jars.packages"} & settings.spark.conf.keys() or hadoop_version() is None
        paths = (settings.completion_store, settings.knowledge.index, settings.llm.spool, settings.lakehouse.path)
        said = [] if own else sorted({scheme_of(path) or "" for path in paths if path} | {*stores})
    known = _known_packages() if said else {}
    return [one for name in said for one in (known.get(name, []) if ":" not in name else [name])]


def _known_packages() -> dict[str, list[str]]:
    """Return the coordinates by scheme for the Hadoop of Spark. Raises UserError if it is not known."""
    hadoop = hadoop_version()
    if hadoop is None:
        raise UserError(
            "storage.packages: the jars of Hadoop are not in the folder of Spark. Set storage.packages to Maven "
            "coordinates, or to [] if the platform has its own connectors"
        )
    sdk = _AWS_SDK.get(hadoop, _NEWEST_AWS_SDK)
    parts = [f"software.amazon.awssdk:{part}:{sdk}" for part in _AWS_PARTS]
    return {
        "s3": [f"org.apache.hadoop:hadoop-aws:{hadoop}", *parts],
        "gs": [f"org.apache.hadoop:hadoop-gcp:{max(hadoop, _FIRST_GCP, key=_numbers)}"],
        "abfss": [f"org.apache.hadoop:hadoop-azure:{hadoop}"],
    }


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def hadoop_version() -> str | None:
    """Return the version of the Hadoop that Spark brings, such as 3.5.0, or None if its jars are elsewhere."""
    package = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or (package and package.origin and Path(package.origin).parent)
    jars = Path(home or ".", "jars")
    names = (re.fullmatch(r"hadoop-client-api-([\d.]+)\.jar", path.name) for path in sorted(jars.glob("hadoop-*")))
    return next((name[1] for name in names if name), None)


def connector_options(settings: Settings) -> dict[str, str]:
    """Return the options of Spark for object stores: packages, and for S3 the settings `storage.*`.

    The settings `spark.conf.*` can replace them.
    """
    jars = package_jars(settings)
    packages = {"spark.jars.packages": ",".join(jars), "spark.jars.excludes": ",".join(_EXCLUDED)}
    options = {**packages, **_ANY_STORE} if jars else {}
    if any(":hadoop-gcp:" in jar for jar in jars):
        options |= _GS
    return options | {f"spark.hadoop.fs.s3a.{name}": value for name, value in {**_S3A, **_access(settings)}.items()}


def _access(settings: Settings) -> dict[str, str]:
    """Return the options of s3a for the settings `storage.*`."""
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
