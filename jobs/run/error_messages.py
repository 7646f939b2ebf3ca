"""What disks, memory and locales refuse, and what Spark has wrapped: one line of what, where, and how to go on."""

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

# What a new folder and its first file take, and more than what a full disk may keep back
PROBE_BYTES = 2**16
OPEN_FILES = 1024
# The longest path of a socket, and the part of it that Ray adds: ray/session_<time>_<pid>/sockets/plasma_store
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
}
# Where Spark, Arrow and Python write the path of what failed
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
# Maven's names of what Spark lacks for a file system, by the package of its classes
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
# What the JVM says where its heap is full, and Spark where a table of hashes does not fit into its part of that
_NO_MEMORY = re.compile(
    r"java\.lang\.OutOfMemoryError(?!: unable to create)|SparkOutOfMemoryError|Could not allocate memory to grow"
)
_INSTALL = "install the same version of untold on the workers, or use `untold package`"
# What Spark and its workers say of a machine that is not set up, and what to do there
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
    """A folder that a command needs and cannot write into. The message says which, why, and what to do."""


def check_writable(folder: str, use: str, remedy: str) -> None:
    """Raises UnwritableError where nothing can be written into a local folder, or into what it is to be made in."""
    number = _probe(folder)
    if number is not None:
        raise UnwritableError(f"{use} {folder} cannot be written ({os.strerror(number)}); {remedy}, then start again")


class EnvironmentVariableError(UserError):
    """A variable or a limit of the environment that a run cannot use. The message names it and the remedy."""


def check_open_files() -> None:
    """Raise the soft limit of open files to what Spark and Ray need.

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
    """Raises UserError where an address is for Ray's client and that is not installed."""
    if ray_address.startswith("ray://"):
        require("a ray:// address", "cluster", "grpc")


def explain(error: BaseException) -> str | None:
    """The line for what a disk, a memory, a locale or a machine without its parts refused; None for another error."""
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
    # Only room is refused without a path; a permission without one is none of a file's
    if number is None or (path is None and _REMEDIES[number] != _ROOM):
        return None
    folders = work_folders()
    where = path or ", ".join(one for one in folders if _probe(one) is not None) or " or ".join(folders)
    return f"{where}: {os.strerror(number)}; {_REMEDIES[number]}, then start again. The written files are kept"


def root_cause(error: BaseException) -> str:
    """What an error says in one line: the innermost cause of Spark's that has words, the worker's own exception."""
    text = text_of(error)
    if _WORKER in text:
        return _worker_line(text[text.index(_WORKER) :])
    causes: list[str] = [words for _, words in _CAUSE.findall(text) if words]
    if causes:
        return causes[-1]
    first = next((line for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"


def _unprepared(text: str) -> str | None:
    """The line for a class that Spark's JVM lacks, or for what a worker lacks; None for anything else."""
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
    """An error's text; an error of the JVM asks it for that, and the JVM may be gone."""
    try:
        return str(error)
    except Exception:
        return "Spark's JVM is gone; start again"


def work_folders(spark_conf: str | None = None) -> Sequence[str]:
    """The folders of this machine in which Spark and Python keep what they work on."""
    # In this order Spark goes by them
    sparks = os.environ.get("SPARK_LOCAL_DIRS") or spark_conf or _local_dir_of_session() or "/tmp"
    return list(dict.fromkeys([*sparks.split(","), os.environ.get("TMPDIR") or "/tmp"]))


def _local_dir_of_session() -> str | None:
    """The setting of the Spark session that runs, if one does: a command that needs no Spark has not imported it."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    active = getattr(context, "_active_spark_context", None)
    # The JVM holds it, and may be gone
    with suppress(Exception):
        return active and str(active.getConf().get("spark.local.dir", ""))
    return None


def _worker_line(text: str) -> str:
    """The last exception of a worker's traceback: what follows its last frame, whose lines are indented."""
    lines = text.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
    after = lines[frames[-1] + 1 :] if frames else lines[1:]
    return next((line for line in after if line.strip()), _WORKER)


def _unencodable(error: BaseException, text: str) -> str | None:
    """The file name that could not be encoded, in ASCII; None where it is another text, which may be an answer."""
    path = error.object if isinstance(error, UnicodeEncodeError) else None
    if "unmappable characters" in text:
        path = _path_in(text)
    is_path = path is not None and os.path.isabs(path) and "\n" not in path
    return path.encode("ascii", "backslashreplace").decode() if path is not None and is_path else None


def _number_of(error: BaseException, text: str, path: str | None) -> int | None:
    """The number of the refusal: the error's own, or that of the system's words for it in the text."""
    own = error.errno if isinstance(error, OSError) else None
    if own in _REMEDIES:
        return own
    spoken = next((number for number in _REMEDIES if os.strerror(number) in text), None)
    # Hadoop does not say why it could not make a folder
    return spoken or (_probe(path) if path is not None and "Mkdirs failed" in text else None)


def _named(error: BaseException) -> str | None:
    return os.fsdecode(error.filename) if isinstance(error, OSError) and error.filename else None


def _path_in(text: str) -> str | None:
    """The path that an error's text names, less what Spark adds to it while it writes."""
    found = next((match[1] for pattern in _PATHS if (match := re.search(pattern, text, re.MULTILINE))), None)
    return found and found.partition("/_temporary")[0]


def _probe(folder: str) -> int | None:
    """The number of the system's refusal of a file in a folder, or in the nearest that there is; None where it fits."""
    path = os.path.abspath(folder)
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    try:
        with tempfile.TemporaryFile(dir=path, buffering=0) as file:
            return None if file.write(bytes(PROBE_BYTES)) == PROBE_BYTES else errno.ENOSPC
    except OSError as error:
        return error.errno if error.errno in _REMEDIES else None
