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
from typing import Any, BinaryIO

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from untold.jobs.run.cache import JVM_OPTIONS, find_java, keep_archive, with_archive
from untold.jobs.run.connectors import connector_options
from untold.jobs.run.error_messages import check_open_files, check_writable, work_folders
from untold.jobs.settings.model import Settings
from untold.udfs.errors import UserError
from untold.udfs.python_path import python_environment, usable_cores
from untold.udfs.storage import literal_pattern

# Spark 4 does not run on an older one
OLDEST_JAVA = 17
SHOW_JVM = Event()
# What a JVM that ends within a minute gains from: no second compiler, one thread for garbage, no code of its own for
# every query or expression, one task a core, no new plan after each, and no shuffle to join so little. Ten samples took
# 64 s without and 40 s with it, on two slow cores; 20,000 samples whose answers are stored, 7 MB with the store, 43 s
# and 29 s.
SMALL_BYTES = 2**23
# Of so little a fifth task does next to nothing but start
MOST_SMALL_TASKS = 4
# With one compiler the JVM keeps 48 MB of code, which many nights fill: it then drops methods and compiles them again
# (8 % of a month). Below its first 256 MB of classes it would look through the heap whenever these have doubled.
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
# The JVM that only puts the command line of the other together
LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
_UNRESOLVED = (
    "Spark did not start with the packages {}. Check that this machine reaches Maven Central, or add the jars with "
    "`untold package --jars`. --debug shows the output of Spark"
)
_BEGINNING = Lock()
_begun: _Jvm | None = None
# Kept, for with it would go the folder that its Python workers start in
_running: _Jvm | None = None


class JavaError(UserError):
    """Java is missing or too old. The message says what to install."""


class PackagesError(UserError):
    """Spark did not start with the packages that it needs. The message names them and says what to do."""


class _Jvm(Thread):
    """Spark's JVM while it starts. What it prints is kept off the terminal; with `--debug` it is shown."""

    def __init__(self, options: dict[str, str], *, archives: bool, writes: bool = False) -> None:
        super().__init__(name="untold-jvm", daemon=True)
        self.options = options
        # Where it writes the archive of classes at its end, which takes it some seconds
        self.lock: BinaryIO | None = None
        self._archives, self._writes = archives, writes
        self._folder: Any = None
        self._gateway: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Starts the JVM. What goes wrong is raised by `gateway`, in the thread of whoever needs it."""
        # Python workers import from where their JVM was started, and what lies there is somebody else's
        self._folder = TemporaryDirectory(prefix="untold-jvm-", ignore_cleanup_errors=True)
        options = self.options
        if self._archives:
            options, self.lock = with_archive(options, writes=self._writes)
        conf = SparkConf(loadDefaults=False).setAll(list(options.items()))
        try:
            # Whoever reads this command's output to its end does not wait for the JVM's
            quiet = {} if SHOW_JVM.is_set() else dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
            held = () if self.lock is None else (self.lock.fileno(),)
            popen = {"cwd": self._folder.name, "pass_fds": held, **quiet}
            self._gateway = launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
        except Exception as error:
            self._error = error

    def gateway(self) -> Any:
        """The way to the JVM, once it is there. Raises JavaError where no usable Java is found."""
        self.join()
        if self._error is not None:
            # Asking Java for its version takes half a second: only who cannot start needs to know
            check_java()
            if packages := self.options.get("spark.jars.packages"):
                raise PackagesError(_UNRESOLVED.format(packages)) from self._error
            raise self._error
        return self._gateway

    def abandon(self) -> None:
        """Ends the JVM, for a session that is to be another's."""
        self.join()
        if self._gateway is not None:
            self._gateway.shutdown()
            self._gateway.proc.kill()
            self._gateway.proc.wait()


def begin_session(settings: Settings, *, small: bool = False, archives: bool = False) -> None:
    """Starts Spark's JVM beside what comes next; `open_session` with the same arguments waits for it and goes on.

    Does nothing where a JVM was begun or runs. It takes some seconds, as importing a command does: side by side they
    take as long as one (docs/architecture.md, "A start"). `archives`: where small, it may write the archive of classes
    at its end; `end_archive` says before whether it is to.
    """
    global _begun
    with _BEGINNING:
        if _begun is None and SparkContext._gateway is None:
            _check_work_folders(settings)
            set_environment(settings)
            _begun = _jvm(settings, small, writes=archives and small)
            _begun.start()


def open_session(settings: Settings, name: str = "untold", *, small: bool = False) -> SparkSession:
    """The Spark session of a command. Raises JavaError where no usable Java is found.

    Workers run this interpreter, and never import from the directory that the command was started in. `small`: there
    is so little to read that the start is what takes time (`SMALL`); the same plans run, only less prepared.
    """
    jvm = _jvm(settings, small)
    if SparkContext._gateway is None:
        begin_session(settings, small=small)
        SparkContext._ensure_initialized(gateway=_take(jvm).gateway())
    builder = SparkSession.builder.appName(name)
    for key, value in jvm.options.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # Spark's warnings would bury the lines that a user should read
    session.sparkContext.setLogLevel("ERROR")
    return session


def end_archive(*, whole: bool) -> None:
    """Has a JVM that is to write the archive of classes do so once this process has ended, after a `whole` run.

    Else it ends here: whoever interrupts a command or sees it fail expects nothing of it to go on.
    """
    for jvm in (_begun, _running):
        if jvm is None or jvm.lock is None:
            continue
        with jvm.lock:
            if whole:
                keep_archive(jvm.lock)
            else:
                # What it would remove at its own end; it may be gone
                if SparkContext._active_spark_context is not None:
                    with suppress(Py4JError, OSError):
                        SparkContext._active_spark_context.stop()
                jvm.abandon()
        jvm.lock = None


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is of Spark Connect: its JVM is another machine's, or at least another process's."""
    return not hasattr(spark, "sparkContext")


def is_local(spark: SparkSession) -> bool:
    """Whether all of Spark runs on this machine."""
    return not is_connect(spark) and (spark.sparkContext.master or "").startswith("local")


def task_slots(spark: SparkSession) -> int:
    """How many tasks run at once. Over Spark Connect one small execution counts them, for the session does not say."""
    if is_connect(spark):
        return spark.range(MOST_SLOTS).select(F.spark_partition_id()).distinct().count()
    return int(spark.sparkContext.defaultParallelism)


def active_session() -> SparkSession:
    """The Spark session that is active, else one on this machine."""
    return SparkSession.getActiveSession() or open_session(Settings())


def _jvm(settings: Settings, small: bool, *, writes: bool = False) -> _Jvm:
    """A JVM by the settings, which has not started."""
    return _Jvm(session_options(settings, small), archives=settings.spark.class_archive, writes=writes)


def _take(wanted: _Jvm) -> _Jvm:
    """The JVM that was begun, or the wanted one where that was begun for other options."""
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
    """What Spark is told: our defaults, what suits the size, then what the user says, which wins."""
    environment = settings.storage.environment
    options = spark_defaults() | {f"spark.executorEnv.{name}": value for name, value in environment.items()}
    if _is_local(settings):
        # Of several machines some may lack our package, which workers tell better than their daemon
        options["spark.python.daemon.module"] = DAEMON
    if small:
        # On a cluster the driver's JVM is of this machine too, and workers have cores that this one does not know
        tasks = min(usable_cores(), MOST_SMALL_TASKS) if _is_local(settings) else MOST_SMALL_TASKS
        options |= {**SMALL, "spark.sql.shuffle.partitions": str(tasks)}
    options |= {**connector_options(settings), **settings.spark.conf, **_extra_jars(settings)}
    return {**options, "spark.master": settings.spark.master} if settings.spark.master else options


def _check_work_folders(settings: Settings) -> None:
    """Raises UnwritableError for a full or read-only folder of Spark's: the JVM would end without a word of it."""
    check_open_files()
    if _is_local(settings):
        for folder in work_folders(settings.spark.conf.get("spark.local.dir")):
            check_writable(
                folder, "the work folder", "make room, or set TMPDIR and spark.conf.spark.local.dir to another"
            )


def set_environment(settings: Settings) -> None:
    """What the JVM and its Python workers inherit."""
    # Python reads any name under it, Java only ASCII
    if os.environ.get("LC_ALL") in ("C", "POSIX"):
        os.environ["LC_ALL"] = "C.UTF-8"
    if "spark.pyspark.python" in settings.spark.conf:
        # PySpark itself goes by the variable alone
        os.environ["PYSPARK_PYTHON"] = settings.spark.conf["spark.pyspark.python"]
    # Else workers take `python3` from PATH, which may be another Python without our packages
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", LAUNCHER_OPTIONS)
    os.environ.update(python_environment())
    if _is_local(settings):
        # Else Spark asks for the host's own address, which takes seconds where a name server is slow
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def graphframes_jar(settings: Settings) -> str | None:
    """The GraphFrames jar that the settings or the environment name; None where neither does."""
    return settings.graph.jar or os.environ.get("UNTOLD_GRAPHFRAMES_JAR") or None


def _extra_jars(settings: Settings) -> dict[str, str]:
    """A jar is on the class path of a session that starts with it, and of no other. The JVM runs in another folder."""
    jars = [*(settings.spark.conf.get("spark.jars") or "").split(","), graphframes_jar(settings)]
    named = ",".join(jar if "://" in jar else os.path.abspath(jar) for jar in jars if jar)
    return {"spark.jars": named} if named else {}


def check_java() -> str:
    """The version of the Java that Spark will use. Raises JavaError where it is missing or older than 17."""
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
    """The address at which workers look for the driver, where that is of this machine alone."""
    host = settings.spark.conf.get("spark.driver.host") or os.environ.get("SPARK_LOCAL_IP") or socket.gethostname()
    with suppress(OSError):
        return host if ip_address(socket.gethostbyname(host)).is_loopback else None
    return None


def _is_local(settings: Settings) -> bool:
    """Whether Spark runs within this process's machine: `local`, `local[4]`, `local-cluster`."""
    return (settings.spark.master or "").startswith("local")


def spark_schema(schema: pa.Schema) -> T.StructType:
    """The Spark form of a table's schema."""
    return from_arrow_schema(schema)


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


def nullable(kind: T.DataType) -> T.DataType:
    """The type with everything in it nullable, as batches that come back from Python are.

    Schemas of `mapInArrow` are compared with what comes back, nested nullability included.
    """
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


def spark_defaults() -> dict[str, str]:
    """The Spark configuration of `conf/spark-defaults.conf`, by Spark's names.

    A name and its value are parted by white space, as in the file of that name that Spark reads itself.
    """
    lines = files("untold.conf").joinpath("spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return {name: value.strip() for name, value in pairs}
