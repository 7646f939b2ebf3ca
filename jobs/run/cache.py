"""The user's cache on this machine, and in it Spark's classes as a JVM has them, so that the next JVM starts sooner.

As it ends, the JVM of a small run writes the classes that it loaded (application class-data sharing). Later ones map
that file, and need not find 20,000 classes in 400 jars, check and link them: half of what a small job takes of it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import time

JVM_OPTIONS = "spark.driver.extraJavaOptions"
READS, WRITES = "-XX:SharedArchiveFile=", "-XX:ArchiveClassesAtExit="
# Where whoever was to write an archive was killed, another does
CLAIM_SECONDS = 3600
# Of another Spark or Java, which may be in use too
UNUSED_SECONDS = 30 * 24 * 3600
# Beside an archive: the claim of the run that writes it, what its JVM writes, and that the run was a whole one
CLAIM, NEW, WHOLE = ".claim", ".new", ".whole"
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


def with_archive(options: dict[str, str], *, writes: bool) -> dict[str, str]:
    """Options of Spark by which its JVM reads the archive of classes, or writes it where there is none and it `writes`.

    One JVM at a time writes it, at its end; `keep_archive` or `drop_archive` says what becomes of it. Options that name
    an archive of their own stay as they are, as do all where the cache cannot be written.
    """
    given = options.get(JVM_OPTIONS, "")
    if any(word in given for word in ("SharedArchive", "ArchiveClasses", "-Xshare")):
        return options
    with suppress(OSError):
        archive = archive_path()
        _adopt(archive)
        if archive.exists():
            # Tells those in use from those that may go
            os.utime(archive)
            return {**options, JVM_OPTIONS: f'{given} {_QUIET} "{READS}{archive}"'.strip()}
        if writes and _claims(archive):
            return {**options, JVM_OPTIONS: f'{given} {_QUIET} "{WRITES}{archive.with_suffix(NEW)}"'.strip()}
    return options


def keep_archive() -> None:
    """What the JVM of this process writes at its end is of use: it has loaded what a run needs."""
    with suppress(OSError):
        archive_path().with_suffix(WHOLE).touch()


def drop_archive() -> None:
    """Leaves the archive to another JVM: the one that was to write it has ended."""
    with suppress(OSError):
        archive_path().with_suffix(CLAIM).unlink()


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


def _adopt(archive: Path) -> None:
    """Takes what the JVM of a whole run has written to its end: the beginning comes last of all."""
    new, whole = archive.with_suffix(NEW), archive.with_suffix(WHOLE)
    with suppress(FileNotFoundError):
        with new.open("rb") as file:
            written = any(file.read(4))
        if written and whole.exists():
            new.replace(archive)
            for left in (whole, archive.with_suffix(CLAIM)):
                left.unlink()


def _claims(archive: Path) -> bool:
    """Whether the JVM that is about to start is the one that writes the archive. Removes what nobody uses."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    for old in archive.parent.iterdir():
        most = UNUSED_SECONDS if old.suffix == archive.suffix else CLAIM_SECONDS
        if time() - old.stat().st_mtime > most:
            old.unlink(missing_ok=True)
    with suppress(FileExistsError):
        archive.with_suffix(CLAIM).touch(exist_ok=False)
        return True
    return False
