"""Test the error messages for disks, locales and workers: one line with the path, for every error of Spark."""

from __future__ import annotations

import errno
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from tests.fakes.disks import SmallDisk
from untold.jobs.run.error_messages import (
    OPEN_FILES,
    RAY_SOCKET_BYTES,
    SOCKET_PATH_BYTES,
    EnvironmentVariableError,
    UnwritableError,
    check_socket_folder,
    check_writable,
    explain,
    root_cause,
)
from untold.udfs.storage import StoragePath


def error_of(act: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        act()
    return raised.value


def refuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        raise OSError(errno.EDQUOT, "Disk quota exceeded", "/cache/shard")
    yield from ()


def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError(f"{batch.num_rows} rows are wrong\nand more of it") from None
    yield from ()


def test_a_full_disk_is_found_in_the_error_of_spark(spark: SparkSession, disk: SmallDisk) -> None:
    disk.fill()
    error = error_of(lambda: spark.range(100_000).write.parquet(f"{disk.folder}/a b/scores"))
    assert "o" in str(error).partition("calling ")[2]
    told = f"{disk.folder}/a b/scores: No space left on device; make room there, then start again"
    assert str(explain(error)).startswith(told)
    assert root_cause(error) == "No space left on device"


def test_a_read_only_disk_is_found_in_the_error_of_spark(spark: SparkSession, disk: SmallDisk) -> None:
    disk.protect()
    error = error_of(lambda: spark.range(9).write.parquet(f"{disk.folder}/scores"))
    assert str(explain(error)).startswith(f"{disk.folder}/scores: Read-only file system; choose a folder")


def test_a_worker_s_refusal_is_named_and_its_error_is_its_last_line(spark: SparkSession) -> None:
    error = error_of(lambda: spark.range(1).mapInArrow(refuse, "id long").collect())
    assert str(explain(error)).startswith("/cache/shard: Disk quota exceeded; make room there")
    error = error_of(lambda: spark.range(1).mapInArrow(fail, "id long").collect())
    assert (explain(error), root_cause(error)) == (None, "ValueError: 1 rows are wrong")


def test_a_cause_without_words_is_passed_over() -> None:
    text = (
        "An error occurred while calling o555.parquet.\n: org.apache.spark.SparkException: Job aborted.\n\tat a.b\n"
        "Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat a.b\n"
        "\tSuppressed: java.io.IOException: closed\nCaused by: java.io.EOFException\n\t... 9 more\n"
    )
    assert root_cause(RuntimeError(text)) == "Python worker exited unexpectedly (crashed)"
    assert explain(RuntimeError(text)) is None


@pytest.mark.parametrize(
    "said",
    [
        "java.lang.OutOfMemoryError: Java heap space",
        "org.apache.spark.memory.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 65536 bytes",
        "java.io.IOException: org.apache.spark.SparkException: Could not allocate memory to grow BytesToBytesMap.",
    ],
)
def test_a_memory_that_is_full_is_named_with_its_setting(said: str) -> None:
    text = (
        f"An error occurred while calling o9.parquet.\n: org.apache.spark.SparkException: Failed.\nCaused by: {said}\n"
    )
    assert str(explain(RuntimeError(text))).startswith("Spark's memory is full. Raise spark.conf.spark.driver")


def test_a_missing_thread_is_not_a_full_memory() -> None:
    assert explain(RuntimeError("java.lang.OutOfMemoryError: unable to create native thread")) is None


def test_a_name_that_the_locale_cannot_encode_is_shown_in_ascii() -> None:
    malformed = "Malformed input or input contains unmappable characters: /data/größe/t/_temporary"
    told = r"/data/gr\xf6\xdfe/t cannot be encoded in this locale; set LC_ALL=C.UTF-8, or rename it, then start again"
    assert explain(IllegalArgumentException(malformed)) == told
    assert "/data/\\udcff cannot" in str(explain(error_of(lambda: "/data/\udcff".encode())))


def test_a_text_that_cannot_be_encoded_is_not_shown() -> None:
    assert explain(error_of(lambda: "an answer \udcff".encode())) is None
    assert "answer" not in root_cause(error_of(lambda: "an answer \udcff".encode()))


def test_a_write_of_ours_names_its_file(disk: SmallDisk) -> None:
    disk.fill()
    error = error_of(lambda: StoragePath(f"{disk.folder}/manifest.json").write_bytes(bytes(10_000)))
    assert str(explain(error)).startswith(f"{disk.folder}/manifest.json: No space left on device")


def test_a_path_without_its_folders_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = error_of(lambda: (tmp_path / "missing" / "a.csv").write_bytes(b"a"))
    told = f"{tmp_path}/missing: No such file or directory; create the folder, or choose another path, then start again"
    assert str(explain(error)).startswith(told)
    error = error_of(lambda: (tmp_path / "file" / "a.csv").write_bytes(b"a"))
    assert str(explain(error)).partition("; ")[2].startswith("choose a path below a folder, then start again")
    error = error_of(lambda: (tmp_path / "file").mkdir())
    assert str(explain(error)).startswith(f"{tmp_path}/file: File exists; choose a path below a folder")


def test_a_work_folder_without_room_is_named(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(disk.folder))
    disk.fill()
    lost = "Lost task 1.0 in stage 10.0: java.io.IOException: No space left on device\n\nDriver stacktrace:\n"
    assert str(explain(RuntimeError(lost))).startswith(f"{disk.folder}: No space left on device")


def test_a_permission_error_without_a_file_is_not_an_error_of_a_disk() -> None:
    assert explain(PermissionError(errno.EACCES, "Permission denied")) is None
    assert explain(ZeroDivisionError("division by zero")) is None


def test_folders_are_checked_before_they_are_needed(disk: SmallDisk, tmp_path: Path) -> None:
    check_writable(str(tmp_path / "not" / "there"), "the work folder", "set TMPDIR")
    assert list(tmp_path.iterdir()) == [disk.folder]
    disk.fill()
    refusal = r"^the work folder .* cannot be written \(No space left on device\); set TMPDIR, then start"
    with pytest.raises(UnwritableError, match=refusal):
        check_writable(f"{disk.folder}/deep/down", "the work folder", "set TMPDIR")


def test_a_class_that_spark_lacks_is_named_with_the_package_that_brings_it(spark: SparkSession) -> None:
    error = error_of(lambda: spark.range(1).write.parquet("abfss://files@account.dfs.core.windows.net/out"))
    told = "Spark has no class org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem: add "
    package = "org.apache.hadoop:hadoop-azure in the version of Spark's Hadoop"
    assert explain(error) == f"{told}{package} by storage.packages"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class "
            "org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            "Spark has no class org.apache.hadoop.fs.s3a.S3AFileSystem: add org.apache.hadoop:hadoop-aws",
        ),
        (
            "java.lang.NoClassDefFoundError: software/amazon/awssdk/transfer/s3/progress/TransferListener",
            "Spark has no class software.amazon.awssdk.transfer.s3.progress.TransferListener: add software.amazon",
        ),
        (
            "org.apache.spark.SparkException: Job aborted.\n[PYTHON_VERSION_MISMATCH] Python in worker has "
            "different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.",
            "Python is 3.12 on a worker of Spark, 3.11 here; set spark.conf.spark.pyspark.python",
        ),
        (
            "org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file "
            "file:///data/out/_work/a.parquet. File does not exist. It is possible",
            "a worker of Spark cannot find file:///data/out/_work/a.parquet. Use a path that all",
        ),
        (
            "org.apache.spark.SparkException: \nError from python worker:\n  Exception ignored error evaluating path:\n"
            "  Traceback (most recent call last):\n  OSError: failed to make path absolute\n"
            "  Fatal Python error: error evaluating path\nPYTHONPATH was:\n  .",
            "Python does not start on a worker of Spark (OSError: failed to make path absolute); check PYTHONPATH",
        ),
    ],
)
def test_an_error_of_spark_about_a_machine_has_a_remedy(said: str, told: str) -> None:
    error = RuntimeError(f"An error occurred while calling o304.parquet.\n: {said}\n\tat a.b\n")
    assert str(explain(error)).startswith(told)


def test_a_module_that_a_worker_lacks_is_named(spark: SparkSession) -> None:
    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        importlib.import_module("a_module.that_nobody_has")
        return batches

    error = error_of(lambda: spark.range(1).mapInArrow(ask, "id long").collect())
    assert root_cause(error) == "ModuleNotFoundError: No module named 'a_module'"
    assert explain(error) == (
        "a worker of Spark has no Python module a_module: install the same version of untold on the workers, "
        "or use `untold package`"
    )
    assert explain(ModuleNotFoundError("No module named 'a_module'")) is None


def test_a_python_that_a_worker_lacks_is_named(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "./environment/bin/python")
    error = error_of(lambda: spark.range(1).mapInArrow(fail, "id long").collect())
    assert str(explain(error)).startswith(
        "a worker of Spark cannot start ./environment/bin/python: No such file or directory. Install Python there"
    )


def test_a_temporary_folder_that_is_too_long_for_sockets_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    fits = "/" + "x" * (SOCKET_PATH_BYTES - RAY_SOCKET_BYTES - 1)
    check_socket_folder(fits)
    with pytest.raises(EnvironmentVariableError, match=r"TMPDIR is too long for the sockets of Ray.* Set RAY_TMPDIR"):
        check_socket_folder(f"{fits}x")


def limited(files: int, hard: int) -> subprocess.CompletedProcess[str]:
    """Check the limit of open files in a process with these limits that cannot raise the hard limit."""
    code = f"""
import os, resource
from untold.jobs.run.error_messages import check_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {hard}))
os.setuid(65534) if os.getuid() == 0 else None
check_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_soft_limit_of_open_files_is_raised() -> None:
    assert limited(256, 4096).stdout.strip() == str(OPEN_FILES)


def test_a_hard_limit_of_open_files_that_is_too_low_is_named() -> None:
    ended = limited(256, 256)
    assert (ended.returncode, "the limit of open files is 256 (ulimit -n)" in ended.stderr) == (1, True)
