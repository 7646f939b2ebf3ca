"""The Spark session: set up before its JVM starts, and the same everywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.settings.model import Settings, spark_defaults
from udfs.errors import UserError

OLDEST_JAVA = 17
SHOW_JVM = Event()


class JavaError(UserError):
    """Java is missing or too old. The message says what to install."""


def open_session(settings: Settings, name: str = "untold") -> SparkSession:
    """The Spark session of a command. Raises JavaError where no usable Java is found.

    Workers run this interpreter, and never import from the directory that the command was started in.
    """
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1" if _is_local(settings) else "")
    if not os.environ["SPARK_LOCAL_IP"]:
        del os.environ["SPARK_LOCAL_IP"]
    builder = SparkSession.builder.appName(name).config("spark.executorEnv.PYTHONSAFEPATH", "1")
    for key, value in {**spark_defaults(), **settings.spark.conf, **_extra_jars(settings)}.items():
        builder = builder.config(key, value)
    if settings.spark.master:
        builder = builder.master(settings.spark.master)
    with _quiet_start():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def graphframes_jar(settings: Settings) -> str | None:
    """The GraphFrames jar that the settings or the environment name; None where neither does."""
    return settings.graph.jar or os.environ.get("UNTOLD_GRAPHFRAMES_JAR") or None


def _extra_jars(settings: Settings) -> dict[str, str]:
    """A jar is on the class path of a session that starts with it, and of no other."""
    jars = [settings.spark.conf.get("spark.jars"), graphframes_jar(settings)]
    named = ",".join(jar for jar in jars if jar)
    return {"spark.jars": named} if named else {}


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Keeps what the JVM and its workers print off the terminal; with `--debug` it is shown."""
    if SHOW_JVM.is_set():
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    silent = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(silent, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(silent)


def check_java() -> str:
    """The version of the Java that Spark will use. Raises JavaError where it is missing or older than 17."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    where = "JAVA_HOME" if home else "PATH"
    if java is None or not Path(java).exists():
        raise JavaError(
            f"no Java found by {where}; Spark needs Java {OLDEST_JAVA} or newer: install one, set JAVA_HOME"
        )
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', shown)
    if version is None or int(version.group(1)) < OLDEST_JAVA:
        found = version.group(0) if version else "an unknown version"
        raise JavaError(f"Java of {where} is {found}; Spark needs Java {OLDEST_JAVA} or newer: set JAVA_HOME to one")
    return version.group(0).removeprefix("version ").strip('"')


def _is_local(settings: Settings) -> bool:
    return (settings.spark.master or "").startswith("local")


def spark_schema(schema: pa.Schema) -> T.StructType:
    """The Spark form of a table's schema."""
    return from_arrow_schema(schema)


def nullable(kind: T.DataType) -> T.DataType:
    """The type with everything in it nullable, as batches that come back from Python are."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(field.name, nullable(field.dataType)) for field in kind.fields])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(nullable(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind


def fields_of(frame: DataFrame, columns: Iterable[str]) -> list[T.StructField]:
    """The nullable fields of some of a frame's columns."""
    return [T.StructField(name, nullable(frame.schema[name].dataType)) for name in columns]
