"""The user's cache on this machine, and in it Spark's classes as a JVM has them, so that the next JVM starts sooner.

As it ends, the JVM of a small run writes the classes that it loaded (application class-data sharing). Later ones map
that file, and need not find 20,000 classes in 400 jars, check and link them: half of what a small job takes of it.
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
# Of another Spark or Java, which may be in use too
UNUSED_SECONDS = 30 * 24 * 3600
# Beside an archive: the lock of the run that writes it, which says once that this was a whole one; what its JVM writes
LOCK, NEW = ".lock", ".new"
WHOLE = b"whole"
# What the JVM has to say of an archive goes to standard output, which is the command's
_QUIET = "-XX:+IgnoreUnrecognizedVMOptions -Xlog:disable -Xlog:all=error:stderr"


def cache_dir() -> Path:
    """The user's cache folder for this project: `$XDG_CACHE_HOME/untold`, or `~/.cache/untold`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "untold"


def find_java() -> Path | None:
    """The Java that Spark starts: that of JAVA_HOME where it is set, else of PATH; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return Path(found) if found and Path(found).exists() else None


def with_archive(options: dict[str, str], *, writes: bool) -> tuple[dict[str, str], BinaryIO | None]:
    """Options of Spark by which its JVM reads the archive of classes, or writes it where there is none and it `writes`.

    One JVM at a time writes it, at its end: it inherits the lock that comes with its options, which ends with it, and
    `keep_archive` says before that its archive is to be kept. Options that name an archive of their own stay as they
    are, as do all where the cache cannot be written.
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
            # Tells those in use from those that may go
            os.utime(archive)
            return _with_option(options, f"{READS}{archive}"), None
    return options, None


def keep_archive(lock: BinaryIO) -> None:
    """What the JVM that has the lock writes at its end is of use: it has loaded what a run needs."""
    with suppress(OSError):
        lock.write(WHOLE)
        lock.flush()


def archive_path() -> Path:
    """Where the archive of this Java and this Spark lies, or will lie. Raises OSError where one of both is missing."""
    java = find_java()
    if java is None:
        raise FileNotFoundError("java")
    digest = hashlib.sha256()
    for file in _read_by_jvm(java.resolve()):
        status = file.stat()
        digest.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return cache_dir() / "classes" / f"{digest.hexdigest()[:16]}.jsa"


def _read_by_jvm(java: Path) -> Iterator[Path]:
    """The files that an archive is bound to: the JVM takes none that was written beside others."""
    modules = java.parent.parent / "lib" / "modules"
    yield modules if modules.exists() else java
    package = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or (package and package.origin and Path(package.origin).parent)
    yield from sorted(Path(home or ".", "jars").iterdir())


def _with_option(options: dict[str, str], option: str) -> dict[str, str]:
    return {**options, JVM_OPTIONS: f'{options.get(JVM_OPTIONS, "")} {_QUIET} "{option}"'.strip()}


def _lock(archive: Path) -> BinaryIO | None:
    """The lock of the archive; None while a run has it, or its JVM. Removes what nobody uses."""
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
    """Takes what the JVM of a whole run has written to its end: the beginning comes last of all."""
    lock.seek(0)
    if lock.read() == WHOLE and not archive.exists():
        new = archive.with_suffix(NEW)
        with suppress(FileNotFoundError):
            with new.open("rb") as file:
                written = any(file.read(4))
            if written:
                new.replace(archive)
    lock.truncate(0)
