"""The archive of Spark's classes: who writes it, who reads it, and what is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep, time

import pytest

from untold.jobs.run.cache import CLAIM_SECONDS, JVM_OPTIONS, UNUSED_SECONDS, archive_path, cache_dir, with_archive

READS, WRITES = "-XX:SharedArchiveFile=", "-XX:ArchiveClassesAtExit="
DUMP_SECONDS = 120
JOB = """
from untold.jobs.run.session import open_session
from untold.jobs.settings.model import Settings, SparkSettings
spark = open_session(Settings(spark=SparkSettings(master="local[1]")), small=True)
print(spark.range(7).count(), *spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
"""


@pytest.fixture(autouse=True)
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an archive lies, in a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    return archive_path()


def test_one_small_job_at_a_time_writes_the_archive_and_all_read_it(archive: Path) -> None:
    given = {JVM_OPTIONS: "-Xss8m", "spark.driver.memory": "1g"}
    assert with_archive(given, makes=False) == given

    writes = with_archive(given, makes=True)
    assert writes[JVM_OPTIONS].startswith("-Xss8m ")
    assert f'"{WRITES}{archive}"' in writes[JVM_OPTIONS]
    assert writes["spark.driver.memory"] == "1g"
    assert with_archive(given, makes=True) == given

    # A JVM that is at it, or was killed at it, has written no beginning
    archive.write_bytes(bytes(4096))
    assert with_archive(given, makes=True) == given

    archive.write_bytes(b"\xf0\x0b" + bytes(4096))
    for makes in (True, False):
        assert f'"{READS}{archive}"' in with_archive(given, makes=makes)[JVM_OPTIONS]


def test_what_a_killed_job_began_another_writes_later_and_what_nobody_uses_goes(archive: Path) -> None:
    assert WRITES in with_archive({}, makes=True)[JVM_OPTIONS]
    claim, old, used = archive.with_suffix(".claim"), archive.with_name("old.jsa"), archive.with_name("used.jsa")
    for path, seconds in ((claim, CLAIM_SECONDS), (old, UNUSED_SECONDS), (used, UNUSED_SECONDS - 3600)):
        path.touch()
        os.utime(path, (time() - seconds - 60,) * 2)

    assert WRITES in with_archive({}, makes=True)[JVM_OPTIONS]
    assert not old.exists()
    assert used.exists()


@pytest.mark.parametrize("own", ["-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=mine.jsa", "-Xshare:off"])
def test_what_a_user_says_of_archives_stays(own: str) -> None:
    assert with_archive({JVM_OPTIONS: own}, makes=True) == {JVM_OPTIONS: own}


def test_without_a_cache_or_java_nothing_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a cache").write_text("no folder")
    assert with_archive({}, makes=True) == {}
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert with_archive({}, makes=True) == {}


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
def test_the_next_jvm_maps_what_the_first_one_wrote(archive: Path) -> None:
    assert _run_job().startswith("7 ")
    end = monotonic() + DUMP_SECONDS
    while not (archive.exists() and archive.read_bytes()[:1] != b"\0"):
        assert monotonic() < end, f"no archive in {cache_dir()}"
        sleep(0.5)
    # It ends where it cannot map the archive that it is given
    assert f"{READS}{archive}" in _run_job(JAVA_TOOL_OPTIONS="-Xshare:on")


def _run_job(**variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", JOB], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
