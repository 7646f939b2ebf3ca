"""The Spark session: set up before its JVM starts, and the same everywhere."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.resources import files
from ipaddress import ip_address
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from typing import Any, BinaryIO, ParamSpec

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from untold.jobs.run.cache import JVM_OPTIONS, find_java, keep_archive, with_archive
from untold.jobs.run.connectors import connector_options, find_spark
from untold.jobs.run.error_messages import check_open_files, check_writable, work_folders
from untold.jobs.settings.model import Settings
from untold.udfs.arrow import BatchFunction
from untold.udfs.errors import UserError
from untold.udfs.python_path import python_environment, usable_cores
from untold.udfs.storage import literal_pattern

# Spark 4 does not run on an older one
OLDEST_JAVA = 17
SHOW_JVM = Event()
# These options speed up a JVM that ends within a minute: one compiler, one thread for garbage collection, no generated
# code for queries and expressions, one task per core, no adaptive plans, and no shuffle for small joins. Ten samples
# took 64 s without them and 40 s with them, on two slow cores. 20,000 samples with stored completions, 7 MB with the
# store, took 43 s and 29 s.
SMALL_BYTES = 2**23
# More tasks for a small input would only take time to start
MOST_SMALL_TASKS = 4
# With one compiler the JVM keeps 48 MB of code. Many nights fill it, and the JVM then drops methods and compiles them
# again (8 % of a month). Below 256 MB of classes it would scan the heap each time that their size has doubled.
SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m"
SMALL = {
    JVM_OPTIONS: SMALL_JVM,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "10m",
}
DAEMON = "untold.jobs.run.daemon"
# More than any cluster has, and quickly counted
MOST_SLOTS = 2**20
# The options of the JVM that only builds the command line of Spark's JVM
LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
_UNRESOLVED = (
    "Spark did not start with the packages {}. Check that this machine reaches Maven Central, or add the jars with "
    "`untold package --jars`. --debug shows the output of Spark"
)
_BEGINNING = Lock()
_begun: _Jvm | None = None
# Kept because it owns the folder of its Python workers
_running: _Jvm | None = None


class JavaError(UserError):
    """Java is missing or too old. The message has the remedy."""


class PackagesError(UserError):
    """Spark did not start with the packages that it needs. The message has the packages and the remedy."""


class _Jvm(Thread):
    """Spark's JVM while it starts. Its output is only shown with `--debug`."""

    def __init__(self, options: dict[str, str], *, archives: bool, writes: bool = False) -> None:
        super().__init__(name="untold-jvm", daemon=True)
        self.options = options
        # The lock of the archive of classes, which the JVM writes at its end within some seconds
        self.lock: BinaryIO | None = None
        self._archives, self._writes = archives, writes
        self._folder: Any = None
        self._gateway: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Start the JVM. `gateway` raises the error of a failed start in the thread that needs the JVM."""
        # Python workers import from the working directory of their JVM, which must not have modules of other people
        self._folder = TemporaryDirectory(prefix="untold-jvm-", ignore_cleanup_errors=True)
        options = self.options
        if self._archives:
            options, self.lock = with_archive(options, writes=self._writes)
        conf = SparkConf(loadDefaults=False).setAll(list(options.items()))
        try:
            # A reader of this command's output does not wait for the output of the JVM
            quiet = {} if SHOW_JVM.is_set() else dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
            held = () if self.lock is None else (self.lock.fileno(),)
            popen = {"cwd": self._folder.name, "pass_fds": held, **quiet}
            self._gateway = launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
        except Exception as error:
            self._error = error

    def gateway(self) -> Any:
        """Wait for the JVM, and return the gateway to it. Raises JavaError without a usable Java."""
        self.join()
        if self._error is not None:
            # Java needs half a second for its version, which only a failed start needs
            check_java()
            if packages := self.options.get("spark.jars.packages"):
                raise PackagesError(_UNRESOLVED.format(packages)) from self._error
            raise self._error
        return self._gateway

    def abandon(self) -> None:
        """End the JVM, because the session has other options."""
        self.join()
        if self._gateway is not None:
            self._gateway.shutdown()
            self._gateway.proc.kill()
            self._gateway.proc.wait()


def begin_session(settings: Settings, *, small: bool = False, archives: bool = False) -> None:
    """Start Spark's JVM in the background. `open_session` with the same arguments waits for it.

    If a JVM has started, nothing happens. The JVM and the imports of a command take some seconds each, and in parallel
    they take as long as one (docs/architecture.md, "A start"). `archives`: allow a small JVM to write the archive of
    classes at its end. `end_archive` decides before its end if it does.
    """
    global _begun
    with _BEGINNING:
        if _begun is None and SparkContext._gateway is None:
            _check_work_folders(settings)
            set_environment(settings)
            _begun = _jvm(settings, small, writes=archives and small)
            _begun.start()


def open_session(settings: Settings, name: str = "untold", *, small: bool = False) -> SparkSession:
    """Return the Spark session of a command. Raises JavaError without a usable Java, and UserError for an old Spark.

    Workers run this interpreter, and never import from the working directory of the command. `small`: use the options
    `SMALL` for an input that is so small that the start takes most of the time. The plans are the same.
    """
    jvm = _jvm(settings, small)
    if SparkContext._gateway is None:
        begin_session(settings, small=small)
        SparkContext._ensure_initialized(gateway=_take(jvm).gateway())
    builder = SparkSession.builder.appName(name)
    for key, value in jvm.options.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # Spark's warnings would hide the lines of the command
    session.sparkContext.setLogLevel("ERROR")
    return session


def end_archive(*, whole: bool) -> None:
    """Let a JVM write the archive of classes after the end of this process, if the run is `whole`.

    Otherwise end the JVM, because no process of a failed or interrupted command may continue.
    """
    for jvm in (_begun, _running):
        if jvm is None or jvm.lock is None:
            continue
        with jvm.lock:
            if whole:
                keep_archive(jvm.lock)
            else:
                # Spark removes its folders when it stops. The JVM may have ended before
                if SparkContext._active_spark_context is not None:
                    with suppress(Py4JError, OSError):
                        SparkContext._active_spark_context.stop()
                jvm.abandon()
        jvm.lock = None


def is_connect(spark: SparkSession) -> bool:
    """Return True for a session of Spark Connect, whose JVM belongs to another machine or another process."""
    return not hasattr(spark, "sparkContext")


def is_local(spark: SparkSession) -> bool:
    """Return True if all of Spark runs on this machine."""
    return not is_connect(spark) and (spark.sparkContext.master or "").startswith("local")


def task_slots(spark: SparkSession) -> int:
    """Return the number of parallel tasks. A session of Spark Connect needs a small execution to count them."""
    if is_connect(spark):
        return spark.range(MOST_SLOTS).select(F.spark_partition_id()).distinct().count()
    return int(spark.sparkContext.defaultParallelism)


def active_session() -> SparkSession:
    """Return the active Spark session, or a new one on this machine."""
    return SparkSession.getActiveSession() or open_session(Settings())


def _jvm(settings: Settings, small: bool, *, writes: bool = False) -> _Jvm:
    """Return a JVM by the settings that has not started. Raises UserError for an old Spark."""
    find_spark()
    return _Jvm(session_options(settings, small), archives=settings.spark.class_archive, writes=writes)


def _take(wanted: _Jvm) -> _Jvm:
    """Return the JVM that has started, or start the wanted one if the options differ."""
    global _begun, _running
    with _BEGINNING:
        begun, _begun = _begun, None
        if begun is not None and begun.options == wanted.options:
            _running = begun
            return begun
        if begun is not None:
            begun.abandon()
        _running = wanted
        _running.start()
        return _running


def session_options(settings: Settings, small: bool) -> dict[str, str]:
    """Return the options of Spark: the defaults, the options for the size, and the settings of the user, which win."""
    environment = settings.storage.environment
    options = spark_defaults() | {f"spark.executorEnv.{name}": value for name, value in environment.items()}
    if _is_local(settings):
        # The error of a worker without our package is clearer than the error of a daemon
        options["spark.python.daemon.module"] = DAEMON
    if small:
        # The JVM of a cluster's driver also runs on this machine. The number of the workers' cores is unknown
        tasks = min(usable_cores(), MOST_SMALL_TASKS) if _is_local(settings) else MOST_SMALL_TASKS
        options |= {**SMALL, "spark.sql.shuffle.partitions": str(tasks)}
    options |= {**connector_options(settings), **settings.spark.conf, **_extra_jars(settings)}
    return {**options, "spark.master": settings.spark.master} if settings.spark.master else options


def _check_work_folders(settings: Settings) -> None:
    """Raise UnwritableError for a full or read-only folder of Spark, because the JVM would end without an error."""
    check_open_files()
    if _is_local(settings):
        for folder in work_folders(settings.spark.conf.get("spark.local.dir")):
            check_writable(
                folder, "the work folder", "make room, or set TMPDIR and spark.conf.spark.local.dir to another"
            )


def set_environment(settings: Settings) -> None:
    """Set the environment variables for the JVM and its Python workers."""
    # Python reads any name under it, Java only ASCII
    if os.environ.get("LC_ALL") in ("C", "POSIX"):
        os.environ["LC_ALL"] = "C.UTF-8"
    if "spark.pyspark.python" in settings.spark.conf:
        # PySpark only reads the variable
        os.environ["PYSPARK_PYTHON"] = settings.spark.conf["spark.pyspark.python"]
    # The default is `python3` of PATH, which may be another Python without our packages
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", LAUNCHER_OPTIONS)
    os.environ.update(python_environment())
    if _is_local(settings):
        # Spark would look up the address of the host, which takes seconds with a slow name server
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def graphframes_jar(settings: Settings) -> str | None:
    """Return the GraphFrames jar of the settings or of the environment, or None."""
    return settings.graph.jar or os.environ.get("UNTOLD_GRAPHFRAMES_JAR") or None


def _extra_jars(settings: Settings) -> dict[str, str]:
    """Return the option of the jars, with absolute paths because the JVM runs in another folder."""
    jars = [*(settings.spark.conf.get("spark.jars") or "").split(","), graphframes_jar(settings)]
    named = ",".join(jar if "://" in jar else os.path.abspath(jar) for jar in jars if jar)
    return {"spark.jars": named} if named else {}


def check_java() -> str:
    """Return the version of the Java for Spark. Raises JavaError if it is missing or older than 17."""
    java = find_java()
    where = "JAVA_HOME" if os.environ.get("JAVA_HOME") else "PATH"
    if java is None:
        raise JavaError(
            f"no Java found by {where}. Spark needs Java {OLDEST_JAVA} or newer. Install it and set JAVA_HOME"
        )
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', shown)
    if version is None or int(version.group(1)) < OLDEST_JAVA:
        found = version.group(0) if version else "an unknown version"
        raise JavaError(f"Java of {where} is {found}. Spark needs Java {OLDEST_JAVA} or newer. Set JAVA_HOME to one")
    return version.group(0).removeprefix("version ").strip('"')


def loopback_of_driver(settings: Settings) -> str | None:
    """Return the address of the driver for workers if only this machine can reach it, or None."""
    host = settings.spark.conf.get("spark.driver.host") or os.environ.get("SPARK_LOCAL_IP") or socket.gethostname()
    with suppress(OSError):
        return host if ip_address(socket.gethostbyname(host)).is_loopback else None
    return None


def _is_local(settings: Settings) -> bool:
    """Return True if Spark runs on this machine: `local`, `local[4]`, `local-cluster`."""
    return (settings.spark.master or "").startswith("local")


P = ParamSpec("P")


def spark_schema(schema: pa.Schema) -> T.StructType:
    """Return the Spark schema of a table."""
    return from_arrow_schema(schema)


def map_rows(frame: DataFrame, function: BatchFunction[P], *args: P.args, **options: P.kwargs) -> DataFrame:
    """Return the rows that a function of `untold.udfs.arrow` returns for the rows of a frame."""
    # Not `partial`, whose positional arguments would precede the batches
    return frame.mapInArrow(lambda batches: function(batches, *args, **options), spark_schema(function.schema))


def read_parquet(
    spark: SparkSession, *paths: str, schema: T.StructType | pa.Schema | None = None, **options: Any
) -> DataFrame:
    """Return the rows of Parquet files or folders. Brackets and wildcards in a path are literal.

    schema: the columns to read; None reads all columns of the files.
    """
    reader = spark.read.options(**options)
    if schema is not None:
        reader = reader.schema(spark_schema(schema) if isinstance(schema, pa.Schema) else schema)
    return reader.parquet(*map(literal_pattern, paths))


def fields_of(frame: DataFrame, columns: Iterable[str]) -> list[T.StructField]:
    """Return fields of a frame by their names, with nullable parts at all levels, as in batches from Python.

    Spark compares the schema of `mapInArrow` with the schema of the batches.
    """
    return T.StructType([frame.schema[name] for name in columns]).toNullable().fields


def spark_defaults() -> dict[str, str]:
    """Return the Spark configuration of `conf/spark-defaults.conf`, by Spark's names.

    White space separates a name and its value, as in Spark's own file of this name.
    """
    lines = files("untold.conf").joinpath("spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return {name: value.strip() for name, value in pairs}
