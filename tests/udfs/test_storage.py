from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fakes.object_store import BUCKET
from untold.udfs.llm.store_files import count_rows, read_ids, write_file
from untold.udfs.storage import PlaceError, StoragePath

OPTIONS = "UNTOLD_STORAGE__OPTIONS"


class Calls:
    """The order of the calls to the disk.

    A test cannot cut the power, but the order determines the result of a power cut.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str, int]] = []
        fsync, replace = os.fsync, os.replace

        def recorded_fsync(descriptor: int) -> None:
            self.seen.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_size))
            fsync(descriptor)

        def recorded_replace(source: str, target: str) -> None:
            self.seen.append(("rename", target, os.stat(source).st_size))
            replace(source, target)

        monkeypatch.setattr(os, "fsync", recorded_fsync)
        monkeypatch.setattr(os, "replace", recorded_replace)


def test_content_is_synced_before_its_name_and_the_name_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    (StoragePath(str(tmp_path)) / "manifest.json").write_bytes(b"content")
    (content, renamed, folder) = calls.seen
    assert content[0] == "sync"
    assert (Path(content[1]).parent, content[2]) == (tmp_path, 7)
    assert content[1] != str(tmp_path / "manifest.json")
    assert renamed == ("rename", str(tmp_path / "manifest.json"), 7)
    assert folder[:2] == ("sync", str(tmp_path))
    assert (tmp_path / "manifest.json").read_bytes() == b"content"


def test_the_names_of_new_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    StoragePath(str(tmp_path / "v1" / "stage")).make_folder()
    StoragePath(str(tmp_path / "v1")).make_folder()
    assert [where for _, where, _ in calls.seen] == [str(tmp_path), str(tmp_path / "v1")]
    assert (tmp_path / "v1" / "stage").is_dir()


def test_a_failed_write_uses_no_space(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            (StoragePath(str(tmp_path)) / "a").write_bytes(b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"before"


@pytest.mark.parametrize(
    ("uri", "local", "spark"),
    [
        ("/data/out", "/data/out", "/data/out"),
        ("file:///data/a%20b", "/data/a b", "/data/a b"),
        ("file:/data/out/", "/data/out/", "/data/out"),
        ("s3://bucket/a b%20[x]/", None, "s3a://bucket/a b%20[x]"),
        ("s3n://bucket/out", None, "s3a://bucket/out"),
        ("gs://bucket/out", None, "gs://bucket/out"),
        ("abfss://box@account.dfs.core.windows.net/out", None, "abfss://box@account.dfs.core.windows.net/out"),
        ("hdfs:///out", None, "hdfs:///out"),
    ],
)
def test_a_place_is_local_or_a_uri_and_spark_has_its_own_word_for_it(uri: str, local: str | None, spark: str) -> None:
    assert (StoragePath(uri).local, StoragePath(uri).spark) == (local, spark)
    assert (StoragePath(uri) / "scores").name == "scores"
    assert (StoragePath(uri) / "scores").spark == f"{spark}/scores"


def test_a_relative_place_is_the_same_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert (StoragePath("out").spark, StoragePath("~/out").spark) == (f"{tmp_path}/out", f"{tmp_path}/home/out")


def test_an_unknown_scheme_is_named() -> None:
    with pytest.raises(PlaceError, match=r"nope://bucket has the unknown scheme nope. Give a local path"):
        StoragePath("nope://bucket/out").entries()


def test_a_key_that_is_not_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS, '{"s3": {"region": "eu-west-1", "secret_key_env": "NOT_THERE"}}')
    with pytest.raises(PlaceError, match=r"storage\.options: the variable NOT_THERE is not set"):
        StoragePath("s3://bucket/out").entry()


def test_an_option_unknown_to_arrow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS, '{"s3": {"regoin": "eu-west-1"}}')
    with pytest.raises(PlaceError, match="regoin"):
        StoragePath("s3://bucket/out").entry()


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    """Return a folder that does not exist yet, on a disk and on an object store."""
    if request.param == "local":
        return StoragePath(str(tmp_path / "out"))
    request.getfixturevalue("object_store")
    return StoragePath(f"s3://{BUCKET}/out")


def test_what_is_written_is_listed_read_and_removed(place: StoragePath) -> None:
    (place / "a b%20[x]" / "one.json").write_bytes(b"one")
    (place / "two.json").write_bytes(b"two")
    below = {str(entry.place): (entry.kind, entry.size) for entry in place.entries(recursive=True)}
    assert below[f"{place}/a b%20[x]/one.json"] == ("file", 3)
    assert below[f"{place}/a b%20[x]"][0] == "folder"
    assert {entry.name for entry in place.entries()} == {"a b%20[x]", "two.json"}
    assert (place / "a b%20[x]" / "one.json").read_bytes() == b"one"
    (place / "two.json").remove()
    place.remove()
    assert place.entry().kind is None


def test_a_missing_path_is_empty_or_an_error(place: StoragePath) -> None:
    assert (place.entry().kind, place.entries()) == (None, [])
    place.remove()
    with pytest.raises(FileNotFoundError):
        place.entries(missing_ok=False)
    with pytest.raises(FileNotFoundError):
        (place / "one.json").read_bytes()


def test_a_large_file_arrives_unchanged(place: StoragePath) -> None:
    content = os.urandom(12 * 2**20)
    (place / "large").write_bytes(content)
    assert (place / "large").entry().size == len(content)
    assert (place / "large").read_bytes() == content


def test_a_write_that_breaks_off_leaves_the_file_as_it_was(place: StoragePath) -> None:
    (place / "one").write_bytes(b"before")

    def break_off(file: IO[bytes]) -> None:
        file.write(b"half of")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        (place / "one").write_whole(break_off)
    assert (place / "one").read_bytes() == b"before"
    assert [entry.name for entry in place.entries()] == ["one"]


def test_a_pipe_accepts_writes_and_a_link_is_followed(tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        StoragePath(str(pipe)).write_whole(lambda file: file.write(b"figures"))
        assert read.result() == b"figures"
    assert pipe.is_fifo()
    target.write_bytes(b"old")
    link.symlink_to(target)
    StoragePath(str(link)).write_whole(lambda file: file.write(b"new"))
    assert (link.is_symlink(), target.read_bytes()) == (True, b"new")


def test_a_conditional_write_does_not_change_an_existing_object(place: StoragePath) -> None:
    assert [(place / "one").put_if_absent(content) for content in (b"first", b"second")] == [True, False]
    assert (place / "one").read_bytes() == b"first"
    assert [entry.name for entry in place.entries()] == ["one"]


def test_one_of_many_parallel_writers_creates_the_file(tmp_path: Path) -> None:
    place = StoragePath(str(tmp_path / "out" / "one"))
    contents = [bytes([65 + number]) * 10_000 for number in range(16)]
    with ThreadPoolExecutor(len(contents)) as pool:
        put = list(pool.map(place.put_if_absent, contents))
    assert put.count(True) == 1
    assert place.read_bytes() == contents[put.index(True)]


def test_a_file_moves_and_is_copied(place: StoragePath, tmp_path: Path) -> None:
    (place / "one").write_bytes(b"content")
    (place / "one").move(place / "two")
    assert [entry.name for entry in place.entries()] == ["two"]
    (place / "two").copy(StoragePath(str(tmp_path / "copy")))
    assert (tmp_path / "copy").read_bytes() == b"content"


def test_segments_and_snapshots_of_an_object_store_are_read_like_files_of_a_disk(place: StoragePath) -> None:
    place.make_folder()
    write_file(str(place / "run-a-000001.parquet"), pa.table({"request_id": ["r1", "r2"]}))
    assert read_ids(str(place), "run-a") == {"r1", "r2"}
    assert count_rows([place / "run-a-000001.parquet"]) == [2]


@pytest.mark.usefixtures("object_store")
def test_a_file_system_is_opened_once() -> None:
    assert StoragePath(f"s3://{BUCKET}/a").arrow[0] is StoragePath(f"s3a://{BUCKET}/b").arrow[0]


_WRITER = """
import sys
import pyarrow as pa
from untold.udfs.llm.store_files import write_file
number = 0
while True:
    ids = [f"{number}-{row}" for row in range(200)]
    write_file(f"{sys.argv[1]}/run-a-{number:06d}.parquet", pa.table({"request_id": ids, "text": ids}))
    print(number, flush=True)
    number += 1
"""


def test_a_writer_that_is_killed_leaves_whole_segments_and_all_it_had_spoken_of(tmp_path: Path) -> None:
    for kill in range(6):
        folder = tmp_path / str(kill)
        folder.mkdir()
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        spoken = [int(writer.stdout.readline()) for _ in range(2 + kill)]
        sleep(0.003 * kill)
        writer.send_signal(signal.SIGKILL)
        spoken += [int(line) for line in writer.stdout if line.endswith("\n")]
        writer.wait()
        whole = [path for path in folder.iterdir() if path.suffix == ".parquet" and not path.name.startswith(".")]
        assert {pq.read_table(path).num_rows for path in whole} == {200}
        assert read_ids(str(folder), "run-a") >= {f"{number}-{row}" for number in spoken for row in range(200)}
