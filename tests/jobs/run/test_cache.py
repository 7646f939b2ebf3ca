"""Test the archive of Spark classes: the runs that write it and read it, and the files that are not touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, BinaryIO

import psutil
import pytest

from untold.jobs.run.cache import (
    JVM_OPTIONS,
    LOCK,
    NEW,
    READS,
    UNUSED_SECONDS,
    WRITES,
    archive_path,
    keep_archive,
    with_archive,
)

WRITE_SECONDS = 120
JOB = """
import json, sys
from untold.jobs.run.session import begin_session, end_archive, open_session
from untold.jobs.settings.model import Settings, SparkSettings
settings = Settings(spark=SparkSettings(master="local[1]"))
begin_session(settings, small=True, archives=True)
spark = open_session(settings, small=True)
bean = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
print(json.dumps([spark.range(7).count(), bean.getPid(), list(bean.getInputArguments())]))
end_archive(whole=sys.argv[1] == "whole")
"""


@pytest.fixture(autouse=True)
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of an archive in a cache folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    return archive_path()


def test_one_run_at_a_time_writes_the_archive(archive: Path) -> None:
    given, new = {JVM_OPTIONS: "-Xss8m", "spark.driver.memory": "1g"}, archive.with_suffix(NEW)
    assert with_archive(given, writes=False) == (given, None)

    first, lock = with_archive(given, writes=True)
    assert first[JVM_OPTIONS].startswith("-Xss8m ")
    assert f'"{WRITES}{new}"' in first[JVM_OPTIONS]
    assert first["spark.driver.memory"] == "1g"
    assert with_archive(given, writes=True) == (given, None)

    # The run was killed, and its JVM wrote only the classes that it had loaded
    new.write_bytes(b"\xf0\x0b" + bytes(4096))
    _end(lock)
    second, lock = with_archive(given, writes=True)
    assert second == first
    # The run is complete, but the JVM is still writing
    assert lock is not None
    keep_archive(lock)
    assert with_archive(given, writes=True) == (given, None)
    lock.close()


def test_a_complete_archive_of_a_complete_run_is_read(archive: Path) -> None:
    new = archive.with_suffix(NEW)
    _, lock = with_archive({}, writes=True)
    new.write_bytes(bytes(4096))
    _end(lock, whole=True)
    # The archive is cut off: the beginning of the file is missing
    again, lock = with_archive({}, writes=True)
    assert WRITES in again[JVM_OPTIONS]

    new.write_bytes(b"\xf0\x0b" + bytes(4096))
    _end(lock, whole=True)
    for writes in (False, True):
        options, lock = with_archive({}, writes=writes)
        assert f'"{READS}{archive}"' in options[JVM_OPTIONS]
        assert lock is None


def test_unused_archives_are_removed(archive: Path) -> None:
    archive.parent.mkdir(parents=True)
    old, used = archive.with_name("old.jsa"), archive.with_name("used.jsa")
    for path, seconds in ((old, UNUSED_SECONDS + 60), (used, UNUSED_SECONDS - 3600)):
        path.touch()
        os.utime(path, (time() - seconds,) * 2)

    assert WRITES in with_archive({}, writes=True)[0][JVM_OPTIONS]
    assert not old.exists()
    assert used.exists()


@pytest.mark.parametrize("own", ["-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=mine.jsa", "-Xshare:off"])
def test_archive_options_of_the_user_are_kept(own: str) -> None:
    assert with_archive({JVM_OPTIONS: own}, writes=True) == ({JVM_OPTIONS: own}, None)


def test_without_a_cache_or_java_nothing_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a cache").write_text("no folder")
    assert with_archive({}, writes=True) == ({}, None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert with_archive({}, writes=True) == ({}, None)


def test_another_spark_or_java_has_its_own_archive(
    archive: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "one.jar"
    jar.touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    one = archive_path()
    jar.write_bytes(b"another")
    assert len({archive, one, archive_path()}) == 3


@pytest.mark.slow
def test_the_next_jvm_maps_the_archive_of_a_complete_run_and_a_broken_jvm_ends_at_once(archive: Path) -> None:
    rows, broken, options = _run_job("broken")
    assert rows == 7
    assert f"{WRITES}{archive.with_suffix(NEW)}" in options
    assert not psutil.pid_exists(broken)
    assert list(archive.parent.iterdir()) == [archive.with_suffix(LOCK)]

    _, writing, _ = _run_job("whole")
    end = monotonic() + WRITE_SECONDS
    while psutil.pid_exists(writing):
        assert monotonic() < end
        sleep(0.5)
    # With this option, the JVM stops if it cannot map the archive
    rows, _, options = _run_job("whole", JAVA_TOOL_OPTIONS="-Xshare:on")
    assert rows == 7
    assert f"{READS}{archive}" in options


def _end(lock: BinaryIO | None, *, whole: bool = False) -> None:
    """Change the lock like a run that ends, with or without a complete archive."""
    assert lock is not None
    if whole:
        keep_archive(lock)
    lock.close()


def _run_job(how: str, **variables: str) -> list[Any]:
    """Return the output of the job: the number of rows, the process of the JVM and the options."""
    job = [sys.executable, "-c", JOB, how]
    done = subprocess.run(job, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))
