"""Find the user's cache on this machine, and use its archive of Spark's classes for a faster start of the JVM.

The JVM of a small run writes the classes that it loaded at its end (application class-data sharing). Later JVMs map
that file, and do not search 400 jars for 20,000 classes. This halves their CPU time in a small job.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import time
from typing import BinaryIO

JVM_OPTIONS = "spark.driver.extraJavaOptions"
READS, WRITES = "-XX:SharedArchiveFile=", "-XX:ArchiveClassesAtExit="
# Archives of another Spark or Java may still be in use
UNUSED_SECONDS = 30 * 24 * 3600
# Next to an archive: the lock of the run that writes it, and the file that the JVM of this run writes
LOCK, NEW = ".lock", ".new"
# The content of the lock after a complete run
WHOLE = b"whole"
# By default the JVM logs messages about an archive to the standard output of the command
_QUIET = "-XX:+IgnoreUnrecognizedVMOptions -Xlog:disable -Xlog:all=error:stderr"


def cache_dir() -> Path:
    """Return the user's cache folder for this project: `$XDG_CACHE_HOME/untold`, or `~/.cache/untold`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "untold"


def find_java() -> Path | None:
    """Return the Java that Spark starts, from JAVA_HOME if it is set, otherwise from PATH, None if it is missing."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return Path(found) if found and Path(found).exists() else None


def with_archive(options: dict[str, str], *, writes: bool) -> tuple[dict[str, str], BinaryIO | None]:
    """Return Spark options that make the JVM read the archive, or with `writes` create a missing archive, and the lock.

    The JVM writes the archive at its end. It inherits the lock, so only one JVM writes at a time, and `keep_archive`
    approves the archive before. The options stay unchanged if they have another archive, or if the cache is read-only.
    """
    given = options.get(JVM_OPTIONS, "")
    if any(word in given for word in ("SharedArchive", "ArchiveClasses", "-Xshare")):
        return options, None
    with suppress(OSError):
        archive = archive_path()
        lock = None if archive.exists() else _lock(archive)
        if lock is not None:
            _adopt(archive, lock)
            if writes and not archive.exists():
                return _with_option(options, f"{WRITES}{archive.with_suffix(NEW)}"), lock
            lock.close()
        if archive.exists():
            # Unused archives are removed by this time
            os.utime(archive)
            return _with_option(options, f"{READS}{archive}"), None
    return options, None


def keep_archive(lock: BinaryIO) -> None:
    """Approve the archive that the JVM writes at its end. Call this after a complete run, which loads all classes."""
    with suppress(OSError):
        lock.write(WHOLE)
        lock.flush()


def archive_path() -> Path:
    """Return the path of the archive for this Java and this Spark. Raises OSError if one of them is missing."""
    java = find_java()
    if java is None:
        raise FileNotFoundError("java")
    digest = hashlib.sha256()
    for file in _read_by_jvm(java.resolve()):
        status = file.stat()
        digest.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return cache_dir() / "classes" / f"{digest.hexdigest()[:16]}.jsa"


def _read_by_jvm(java: Path) -> Iterator[Path]:
    """Yield the files of Java and Spark. The JVM rejects an archive that was written with other files."""
    modules = java.parent.parent / "lib" / "modules"
    yield modules if modules.exists() else java
    package = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or (package and package.origin and Path(package.origin).parent)
    yield from sorted(Path(home or ".", "jars").iterdir())


def _with_option(options: dict[str, str], option: str) -> dict[str, str]:
    return {**options, JVM_OPTIONS: f'{options.get(JVM_OPTIONS, "")} {_QUIET} "{option}"'.strip()}


def _lock(archive: Path) -> BinaryIO | None:
    """Return the lock of the archive, None if a run or its JVM has it. Unused archives are removed."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    for old in archive.parent.iterdir():
        if time() - old.stat().st_mtime > UNUSED_SECONDS:
            old.unlink(missing_ok=True)
    lock = archive.with_suffix(LOCK).open("a+b")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _adopt(archive: Path, lock: BinaryIO) -> None:
    """Rename the new archive of a complete run. A JVM writes the first bytes last, so they are 0 in a partial file."""
    lock.seek(0)
    if lock.read() == WHOLE and not archive.exists():
        new = archive.with_suffix(NEW)
        with suppress(FileNotFoundError):
            with new.open("rb") as file:
                written = any(file.read(4))
            if written:
                new.replace(archive)
    lock.truncate(0)
