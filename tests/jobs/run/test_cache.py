"""The archive of Spark's classes: who writes it, who reads it, and what is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import psutil
import pytest

from untold.jobs.run.cache import (
    CLAIM,
    CLAIM_SECONDS,
    JVM_OPTIONS,
    NEW,
    READS,
    UNUSED_SECONDS,
    WRITES,
    archive_path,
    drop_archive,
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
    """Where an archive lies, in a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    return archive_path()


def test_one_run_at_a_time_writes_the_archive_and_all_read_it_once_that_was_whole(archive: Path) -> None:
    given, new = {JVM_OPTIONS: "-Xss8m", "spark.driver.memory": "1g"}, archive.with_suffix(NEW)
    assert with_archive(given, writes=False) == given

    first = with_archive(given, writes=True)
    assert first[JVM_OPTIONS].startswith("-Xss8m ")
    assert f'"{WRITES}{new}"' in first[JVM_OPTIONS]
    assert first["spark.driver.memory"] == "1g"
    assert with_archive(given, writes=True) == given

    # Of a run that was killed, whose JVM has written what it had loaded
    new.write_bytes(b"\xf0\x0b" + bytes(4096))
    assert with_archive(given, writes=True) == given
    # Of a whole run, whose JVM is still at it
    keep_archive()
    new.write_bytes(bytes(4096))
    assert with_archive(given, writes=True) == given

    new.write_bytes(b"\xf0\x0b" + bytes(4096))
    for writes in (True, False):
        assert f'"{READS}{archive}"' in with_archive(given, writes=writes)[JVM_OPTIONS]


def test_what_one_run_began_another_ends_and_what_nobody_uses_goes(archive: Path) -> None:
    assert WRITES in with_archive({}, writes=True)[JVM_OPTIONS]
    drop_archive()
    assert WRITES in with_archive({}, writes=True)[JVM_OPTIONS]
    claim, old, used = archive.with_suffix(CLAIM), archive.with_name("old.jsa"), archive.with_name("used.jsa")
    for path, seconds in ((claim, CLAIM_SECONDS), (old, UNUSED_SECONDS), (used, UNUSED_SECONDS - 3600)):
        path.touch()
        os.utime(path, (time() - seconds - 60,) * 2)

    assert WRITES in with_archive({}, writes=True)[JVM_OPTIONS]
    assert not old.exists()
    assert used.exists()


@pytest.mark.parametrize("own", ["-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=mine.jsa", "-Xshare:off"])
def test_what_a_user_says_of_archives_stays(own: str) -> None:
    assert with_archive({JVM_OPTIONS: own}, writes=True) == {JVM_OPTIONS: own}


def test_without_a_cache_or_java_nothing_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a cache").write_text("no folder")
    assert with_archive({}, writes=True) == {}
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert with_archive({}, writes=True) == {}


def test_another_spark_or_java_has_an_archive_of_its_own(
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
def test_the_next_jvm_maps_what_that_of_a_whole_run_wrote_and_a_broken_one_ends_at_once(archive: Path) -> None:
    rows, broken, options = _run_job("broken")
    assert rows == 7
    assert f"{WRITES}{archive.with_suffix(NEW)}" in options
    assert not psutil.pid_exists(broken)
    assert list(archive.parent.iterdir()) == []

    _, writing, _ = _run_job("whole")
    end = monotonic() + WRITE_SECONDS
    while psutil.pid_exists(writing):
        assert monotonic() < end
        sleep(0.5)
    # It would end where it cannot map the archive that it is given
    rows, _, options = _run_job("whole", JAVA_TOOL_OPTIONS="-Xshare:on")
    assert rows == 7
    assert f"{READS}{archive}" in options


def _run_job(how: str, **variables: str) -> list[Any]:
    """What the job printed: how many rows it counted, the JVM's process, and its options."""
    job = [sys.executable, "-c", JOB, how]
    done = subprocess.run(job, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))
