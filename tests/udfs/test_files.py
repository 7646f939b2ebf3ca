from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

import pyarrow.parquet as pq
import pytest

from untold.udfs.files import make_folder, write_bytes
from untold.udfs.llm.segments import read_ids


class Calls:
    """What of the disk's calls came in which order: a power cut is no test, its order is what decides one."""

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
    write_bytes(f"{tmp_path}/manifest.json", b"content")
    (content, renamed, folder) = calls.seen
    assert content[0] == "sync"
    assert (Path(content[1]).parent, content[2]) == (tmp_path, 7)
    assert content[1] != str(tmp_path / "manifest.json")
    assert renamed == ("rename", str(tmp_path / "manifest.json"), 7)
    assert folder[:2] == ("sync", str(tmp_path))
    assert (tmp_path / "manifest.json").read_bytes() == b"content"


def test_the_names_of_new_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    make_folder(str(tmp_path / "v1" / "stage"))
    make_folder(str(tmp_path / "v1"))
    assert [where for _, where, _ in calls.seen] == [str(tmp_path), str(tmp_path / "v1")]
    assert (tmp_path / "v1" / "stage").is_dir()


def test_what_could_not_be_written_takes_no_room(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_bytes(f"{tmp_path}/a", b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"before"


_WRITER = """
import sys
import pyarrow as pa
from untold.udfs.llm.segments import write_file
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
