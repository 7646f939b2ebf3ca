"""Convert errors of disks, memory, locales and Spark into one line with the problem, the place and the remedy."""

from __future__ import annotations

import errno
import os
import re
import resource
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress

from untold.udfs.errors import UserError, require

# A write of this size fails on a full disk, in spite of its reserved blocks
PROBE_BYTES = 2**16
OPEN_FILES = 1024
# The longest path of a socket, and the length that Ray adds: ray/session_<time>_<pid>/sockets/plasma_store
SOCKET_PATH_BYTES, RAY_SOCKET_BYTES = 107, 68
_ROOM = "make room there"
_PERMISSION = "see to its permissions, or choose another path"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOTDIR: "choose a path below a folder",
    errno.EEXIST: "choose a path below a folder",
    errno.ENOENT: "create the folder, or choose another path",
}
# Texts of Spark and its workers contain these for other reasons
_ONLY_OF_PYTHON = (errno.EEXIST, errno.ENOENT)
# The path in error messages of Spark, Arrow and Python
_PATHS = (
    r"writing rows to (?:file:)?(/.+?)\. SQLSTATE",
    r"Mkdirs failed to create (?:file:)?(/.+?) \(exists=",
    r"unmappable characters: (/.+)",
    r"(?:file|directory|path) '(/.+?)'",
    r"\[Errno \d+\] [^:\n]+: '(/.+?)'",
    r"Exception: (?:file:)?(/.+?)(?: \(|: |$)",
)
_CAUSE = re.compile(r"^(?:Caused by|): ([\w.$]+)(?:: (.+))?$", re.MULTILINE)
_WORKER = "An exception was thrown from the Python worker"
# Maven packages for file systems, by the prefix of a missing class
_PACKAGES = {
    "org.apache.hadoop.fs.s3a": "org.apache.hadoop:hadoop-aws in the version of Spark's Hadoop",
    "software.amazon.awssdk": "software.amazon.awssdk:s3 and the other packages that hadoop-aws needs",
    "org.apache.hadoop.fs.gs": "org.apache.hadoop:hadoop-gcp",
    "com.google.cloud.hadoop": "com.google.cloud.bigdataoss:gcs-connector",
    "org.apache.hadoop.fs.azurebfs": "org.apache.hadoop:hadoop-azure in the version of Spark's Hadoop",
}
_MISSING_CLASS = re.compile(
    r"(?:ClassNotFoundException: (?:Class )?|NoClassDefFoundError: )([\w$]+(?:[./][\w$]+)+)(?: not found)?"
)
# Messages for a full heap of the JVM, and for a hash table that exceeds the memory of Spark
_NO_MEMORY = re.compile(
    r"java\.lang\.OutOfMemoryError(?!: unable to create)|SparkOutOfMemoryError|Could not allocate memory to grow"
)
_INSTALL = "install the same version of untold on the workers, or use `untold package`"
# Messages of Spark and its workers for an incomplete machine, and the remedies
_UNPREPARED = (
    (
        re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'"),
        f"a worker of Spark has no Python module {{0}}: {_INSTALL}",
    ),
    (
        re.compile(r"Python in worker has different version:? \(?'?([\w., ]+?)'?\)? than that in driver:? ([\d.]+)"),
        "Python is {0} on a worker of Spark, {1} here; set spark.conf.spark.pyspark.python to one of this version, or "
        "use `untold package`",
    ),
    (
        re.compile(r'Cannot run program "(.+?)"[^:]*: error=\d+, (.+)'),
        "a worker of Spark cannot start {0}: {1}. Install Python there, or set spark.conf.spark.pyspark.python",
    ),
    (
        re.compile(
            r"(?:FILE_NOT_EXIST\] Encountered error while reading file (\S+?)\.? File does not exist"
            r"|FileNotFoundError: .*'(.+?)')"
        ),
        "a worker of Spark cannot find {0}. Use a path that all machines share, and do not move the file while the "
        "command runs",
    ),
    (
        re.compile(r"Error from python worker:\n(?:(?!PYTHONPATH was).*\n)*?\s*((?:\w+Error|Fatal Python error): .+)"),
        "Python does not start on a worker of Spark ({0}); check PYTHONPATH and spark.conf.spark.pyspark.python",
    ),
)


class UnwritableError(UserError):
    """A folder of a command is not writable. The message has the folder, the reason and the remedy."""


def check_writable(folder: str, use: str, remedy: str) -> None:
    """Raise UnwritableError if a local folder, or the nearest parent that exists, is not writable."""
    number = _probe(folder)
    if number is not None:
        raise UnwritableError(f"{use} {folder} cannot be written ({os.strerror(number)}); {remedy}, then start again")


class EnvironmentVariableError(UserError):
    """A variable or a limit of the environment is unusable. The message has its name and the remedy."""


def check_open_files() -> None:
    """Raise the soft limit of open files to `OPEN_FILES`, for Spark and Ray.

    Raises EnvironmentVariableError if the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, max(hard, OPEN_FILES)))
        except (ValueError, OSError):
            raise EnvironmentVariableError(
                f"the limit of open files is {hard:,} (ulimit -n), and Spark and Ray need {OPEN_FILES:,}; raise it "
                f"with ulimit -n {OPEN_FILES}, or in the limits of the system or container"
            ) from None


def check_socket_folder(temporary: str) -> None:
    """Raise EnvironmentVariableError if the paths of Ray's sockets below a temporary folder are too long."""
    if len(os.fsencode(temporary)) + RAY_SOCKET_BYTES > SOCKET_PATH_BYTES:
        variable = "RAY_TMPDIR" if "RAY_TMPDIR" in os.environ else "TMPDIR"
        raise EnvironmentVariableError(
            f"{variable} is too long for the sockets of Ray: {temporary} has {len(os.fsencode(temporary))} bytes, at "
            f"most {SOCKET_PATH_BYTES - RAY_SOCKET_BYTES} fit. Set RAY_TMPDIR to a short folder, such as /tmp"
        )


def check_address(ray_address: str) -> None:
    """Raise UserError if an address needs Ray's client, and the client is not installed."""
    if ray_address.startswith("ray://"):
        require("a ray:// address", "cluster", "grpc")


def explain(error: BaseException) -> str | None:
    """Return the line for an error of a disk, memory, a locale or an incomplete machine, None for other errors."""
    text = text_of(error)
    unprepared = _unprepared(text)
    if unprepared is not None:
        return unprepared
    if _NO_MEMORY.search(text):
        return (
            "Spark's memory is full. Raise spark.conf.spark.driver.memory (on a cluster "
            "spark.conf.spark.executor.memory), then start again. The completions are kept"
        )
    name = _unencodable(error, text)
    if name is not None:
        return f"{name} cannot be encoded in this locale; set LC_ALL=C.UTF-8, or rename it, then start again"
    if "No usable temporary directory" in text:
        return "cannot write to a temporary folder. Make room, or set TMPDIR to a writable folder, then start again"
    path = _named(error) or _path_in(text)
    number = _number_of(error, text, path)
    if path is not None and number in (errno.ENOENT, errno.ENOTDIR):
        path = os.path.dirname(path)
    # Only a full disk is reported without a path. Other permission errors are not about files
    if number is None or (path is None and _REMEDIES[number] != _ROOM):
        return None
    folders = work_folders()
    where = path or ", ".join(one for one in folders if _probe(one) is not None) or " or ".join(folders)
    return f"{where}: {os.strerror(number)}; {_REMEDIES[number]}, then start again. The written files are kept"


def root_cause(error: BaseException) -> str:
    """Return the message of an error in one line: the exception of a worker, or the innermost cause with a message."""
    text = text_of(error)
    if _WORKER in text:
        return _worker_line(text[text.index(_WORKER) :])
    causes: list[str] = [message for _, message in _CAUSE.findall(text) if message]
    if causes:
        return causes[-1]
    first = next((line for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"


def _unprepared(text: str) -> str | None:
    """Return the line for a class missing in the JVM, or for an incomplete worker, None for other errors."""
    missing = _MISSING_CLASS.search(text)
    if missing is not None:
        name = missing[1].replace("/", ".")
        package = next((package for prefix, package in _PACKAGES.items() if name.startswith(prefix)), None)
        return f"Spark has no class {name}: add {package or 'the package that brings it'} by storage.packages"
    if _WORKER not in text and "SparkException" not in text:
        return None
    found = ((pattern.search(text), line) for pattern, line in _UNPREPARED)
    return next((line.format(*filter(None, match.groups())) for match, line in found if match is not None), None)


def text_of(error: BaseException) -> str:
    """Return the text of an error. An error of the JVM reads it from the JVM, which may have ended."""
    try:
        return str(error)
    except Exception:
        return "Spark's JVM is gone; start again"


def work_folders(spark_conf: str | None = None) -> Sequence[str]:
    """Return the folders of this machine for the temporary files of Spark and Python."""
    # The order in which Spark reads these settings
    sparks = os.environ.get("SPARK_LOCAL_DIRS") or spark_conf or _local_dir_of_session() or "/tmp"
    return list(dict.fromkeys([*sparks.split(","), os.environ.get("TMPDIR") or "/tmp"]))


def _local_dir_of_session() -> str | None:
    """Return `spark.local.dir` of the active Spark session, if there is one. This does not import Spark."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    active = getattr(context, "_active_spark_context", None)
    # The JVM, which has the setting, may have ended
    with suppress(Exception):
        return active and str(active.getConf().get("spark.local.dir", ""))
    return None


def _worker_line(text: str) -> str:
    """Return the exception after the last frame of a worker's traceback. Lines of frames are indented."""
    lines = text.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
    after = lines[frames[-1] + 1 :] if frames else lines[1:]
    return next((line for line in after if line.strip()), _WORKER)


def _unencodable(error: BaseException, text: str) -> str | None:
    """Return the file name with an encoding error, in ASCII. Other texts give None, because they may be of samples."""
    path = error.object if isinstance(error, UnicodeEncodeError) else None
    if "unmappable characters" in text:
        path = _path_in(text)
    is_path = path is not None and os.path.isabs(path) and "\n" not in path
    return path.encode("ascii", "backslashreplace").decode() if path is not None and is_path else None


def _number_of(error: BaseException, text: str, path: str | None) -> int | None:
    """Return the number of the error, or the number whose system message is in the text."""
    own = error.errno if isinstance(error, OSError) else None
    if own in _REMEDIES:
        return own
    in_text = next(
        (number for number in _REMEDIES if number not in _ONLY_OF_PYTHON and os.strerror(number) in text), None
    )
    # Hadoop reports no reason if it cannot create a folder
    return in_text or (_probe(path) if path is not None and "Mkdirs failed" in text else None)


def _named(error: BaseException) -> str | None:
    return os.fsdecode(error.filename) if isinstance(error, OSError) and error.filename else None


def _path_in(text: str) -> str | None:
    """Return the path in the text of an error, without the temporary folder that Spark adds."""
    found = next((match[1] for pattern in _PATHS if (match := re.search(pattern, text, re.MULTILINE))), None)
    return found and found.partition("/_temporary")[0]


def _probe(folder: str) -> int | None:
    """Return the error number of a test write in a folder or its nearest parent that exists, None if it succeeds."""
    path = os.path.abspath(folder)
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    try:
        with tempfile.TemporaryFile(dir=path, buffering=0) as file:
            return None if file.write(bytes(PROBE_BYTES)) == PROBE_BYTES else errno.ENOSPC
    except OSError as error:
        return error.errno if error.errno in _REMEDIES else None
