from __future__ import annotations

import json
import resource
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.jobs.inference.completions import break_pages, names_in, read_rows, row, segments_of, write
from untold.jobs.inference.store.compaction import (
    compact_folder,
    find_damaged,
    find_whole,
    live_names,
    plan_merges,
    read_completions,
)
from untold.jobs.tables import COMPLETIONS
from untold.udfs.llm.store_files import count_rows, merge_files
from untold.udfs.storage import FileInfo, StoragePath


def snapshot(folder: Path, number: int, files: Sequence[str], replaced: Mapping[str, Sequence[str]]) -> Path:
    """Write a snapshot in the format of an earlier version."""
    named = [{"name": name, "rows": 1, "size": 1, "digest": "d"} for name in files]
    gone = [{"name": name, "at": 0.0, "into": list(into)} for name, into in replaced.items()]
    path = folder / f"_snapshot-{number:08d}.json"
    path.write_text(json.dumps({"number": number, "files": named, "replaced": gone}))
    return path


def merge(folder: Path, *paths: Path) -> Path:
    """Merge the files into one file, and keep the source files."""
    names = tuple(path.name for path in paths)
    (one,) = plan_merges(str(folder), find_whole(str(folder), move=False), names, 2**30)
    merge_files(one)
    return folder / one.target


def names_of(folder: Path) -> list[str]:
    return list(live_names(str(folder)))


def test_without_merged_files_every_file_is_live(tmp_path: Path) -> None:
    assert names_of(tmp_path / "nowhere") == []
    paths = segments_of(tmp_path, "run1", 2)
    for name in (".b.parquet.tmp", "_probe-run-a", "_lock", "_compacted-run.json", "._c.parquet"):
        (tmp_path / name).write_bytes(b"aside")
    (tmp_path / "folder.parquet").mkdir()
    assert names_of(tmp_path) == [path.name for path in paths]


def test_the_sources_of_a_merged_file_are_dead_and_live_again_if_it_is_damaged(tmp_path: Path) -> None:
    """The sources are `a` and `b` of one merged file, and this file and `n` of another."""
    a, b, n = (write(tmp_path, f"{name}.parquet", [row(name)]) for name in ("a", "b", "n"))
    first = merge(tmp_path, a, b)
    assert names_of(tmp_path) == [first.name, n.name]
    a.unlink()
    b.unlink()
    second = merge(tmp_path, first, n)
    whole = find_whole(str(tmp_path), move=False)
    assert (whole.names, whole.dead, whole.rows) == ((second.name,), (first.name, n.name), 3)
    second.write_bytes(b"")
    whole = find_whole(str(tmp_path), move=True)
    assert (whole.names, whole.damaged) == ((first.name, n.name), (second.name,))


def test_completions_are_read_from_live_files_by_a_filter(tmp_path: Path) -> None:
    paths = [write(tmp_path, f"{name}.parquet", [row(name, text=name.upper())]) for name in ("a", "b", "n")]
    merge(tmp_path, *paths[:2])
    wanted = pc.field("request_id").isin(["b", "n", "other"])
    found = read_completions(StoragePath(str(tmp_path)), ["text"], wanted)
    assert sorted(found["text"].to_pylist()) == ["B", "N"]
    assert read_completions(StoragePath(str(tmp_path / "nowhere")), ["text"], wanted).num_rows == 0


@pytest.mark.parametrize("name", ["../victim.parquet", "/victim.parquet", "a/../../victim.parquet", "..", ""])
def test_sources_outside_the_folder_are_never_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / "victim.parquet").write_bytes(b"precious")
    folder = tmp_path / "stage"
    segments_of(folder, "run1", 8)
    with pq.ParquetWriter(folder / "merged-x.parquet", COMPLETIONS) as writer:
        writer.write_table(COMPLETIONS.empty_table())
        writer.add_key_value_metadata({"untold.sources": json.dumps([name])})
    compact_folder(str(folder))
    assert (tmp_path / "victim.parquet").read_bytes() == b"precious"
    assert len(read_rows(folder)) == 8


@pytest.mark.parametrize("value", ["{", '{"a": 1}', "[1]", "null"])
def test_a_file_with_invalid_sources_is_damaged(tmp_path: Path, value: str) -> None:
    with pq.ParquetWriter(tmp_path / "merged-x.parquet", COMPLETIONS) as writer:
        writer.write_table(COMPLETIONS.empty_table())
        writer.add_key_value_metadata({"untold.sources": value})
    assert find_whole(str(tmp_path), move=False).damaged == ("merged-x.parquet",)


def test_files_that_are_merged_during_a_look_are_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first listing returns no file of the merge."""
    segments_of(tmp_path, "run1", 8)
    before, entries, listed = read_rows(tmp_path), StoragePath.entries, []

    def list_in_a_merge(place: StoragePath, **options: Any) -> list[FileInfo]:
        found = entries(place, **options)
        listed.append(1)
        if len(listed) == 1:
            compact_folder(str(tmp_path))
            return [entry for entry in found if not entry.name.endswith(".parquet")]
        return found

    monkeypatch.setattr(StoragePath, "entries", list_in_a_merge)
    whole = find_whole(str(tmp_path), move=False)
    assert read_rows(tmp_path, whole) == before


def test_a_snapshot_of_an_earlier_version_lists_the_dead_files(tmp_path: Path) -> None:
    for name in ("base-1", "a", "newer", "base-of-a-killed-compaction", "pruned"):
        write(tmp_path, f"{name}.parquet", [row(name)])
    snapshot(tmp_path, 9, ["a.parquet"], {})
    snapshot(tmp_path, 10, ["base-1.parquet"], {"a.parquet": ["base-1.parquet"], "pruned.parquet": []})
    assert names_of(tmp_path) == ["base-1.parquet", "newer.parquet"]
    before = read_rows(tmp_path)
    compact_folder(str(tmp_path))
    assert names_in(tmp_path) == ["base-1.parquet", "newer.parquet"]
    assert read_rows(tmp_path) == before


def test_the_sources_of_a_damaged_file_of_an_earlier_version_are_live_again(tmp_path: Path) -> None:
    """The file b has the rows of a1 and a2, and the file c has the rows of b and n."""
    b, c = (write(tmp_path, f"{name}.parquet", [row(name)]) for name in ("base-b", "base-c"))
    for name in ("a1", "a2", "n"):
        write(tmp_path, f"{name}.parquet", [row(name)])
    replaced = {name: [b.name] for name in ("a1.parquet", "a2.parquet")}
    snapshot(tmp_path, 1, [c.name], replaced | {name: [c.name] for name in (b.name, "n.parquet")})
    assert names_of(tmp_path) == ["base-c.parquet"]
    c.write_bytes(b"")
    whole = find_whole(str(tmp_path), move=True)
    assert (whole.names, whole.damaged) == (("base-b.parquet", "n.parquet"), ("base-c.parquet",))
    b.unlink()
    assert names_of(tmp_path) == ["a1.parquet", "a2.parquet", "n.parquet"]


FOREIGN = [
    "../victim.parquet",
    "/victim.parquet",
    "a/../../victim.parquet",
    ".hidden.parquet",
    "_lock",
    "",
    "..",
    "a\\b.parquet",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_snapshot_with_a_path_as_a_name_is_ignored(tmp_path: Path, name: str) -> None:
    (tmp_path / "victim.parquet").write_bytes(b"precious")
    folder = tmp_path / "stage"
    path = write(folder, "a.parquet", [row()])
    for files, replaced in (([name], {}), ([], {"a.parquet": [name]}), ([], {name: []})):
        snapshot(folder, 7, files, replaced)
        assert names_of(folder) == [path.name]
        compact_folder(str(folder))
        assert names_in(folder) == [path.name]
    assert (tmp_path / "victim.parquet").read_bytes() == b"precious"


def test_an_invalid_newest_snapshot_makes_every_file_live(tmp_path: Path) -> None:
    """The older snapshot does not name the merged file, although it may have all rows."""
    old, merged = write(tmp_path, "a.parquet", [row()]), write(tmp_path, "base-2.parquet", [row()])
    snapshot(tmp_path, 1, [old.name], {})
    (tmp_path / "_snapshot-00000002.json").write_text("{")
    assert names_of(tmp_path) == [old.name, merged.name]


def damage(folder: Path) -> list[str]:
    """Write files that have no footer, and return the names of these files."""
    good = write(folder, "whole.parquet", [row("whole", text="t" * 5000)]).read_bytes()
    damaged = {"cut": good[: len(good) // 2], "empty": b"", "text": b"no parquet"}
    for name, content in damaged.items():
        (folder / f"{name}.parquet").write_bytes(content)
    return [f"{name}.parquet" for name in damaged]


def test_files_without_a_footer_are_named_and_moved_aside(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", [row("r"), row("s")])
    damaged = damage(tmp_path)
    left_out = find_whole(str(tmp_path), move=False)
    assert (left_out.names, left_out.rows, sorted(left_out.damaged)) == (("a.parquet", "whole.parquet"), 3, damaged)
    assert not (tmp_path / "damaged").exists()
    assert sorted(find_whole(str(tmp_path), move=True).damaged) == damaged
    assert names_in(tmp_path / "damaged") == damaged
    assert find_whole(str(tmp_path), move=True).damaged == ()


@examples(60)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_ends_no_run_and_is_found_in_the_rows(tmp_path_factory: Any, where: float, bit: int) -> None:
    """Pages have checksums, but a footer has none."""
    folder = tmp_path_factory.mktemp("bits")
    path = write(folder, "a.parquet", [row(f"r{n}", text=f"Some text {n * n}.") for n in range(20)])
    before, content = pq.read_table(path), bytearray(path.read_bytes())
    pages = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    at = int(where * len(content))
    content[at] ^= 1 << bit
    path.write_bytes(content)
    damaged = find_whole(str(folder), move=False).damaged or find_damaged(str(folder), [path.name])
    assert damaged or at >= pages or pq.read_table(path).equals(before)


def test_damaged_rows_behind_a_good_footer_are_found_by_reading(tmp_path: Path) -> None:
    _, broken = (write(tmp_path, f"{n}.parquet", [row(n, text="t" * 5000)]) for n in "ab")
    break_pages(broken)
    assert find_whole(str(tmp_path), move=False).damaged == ()
    assert find_damaged(str(tmp_path), ["a.parquet", "b.parquet", "gone.parquet"]) == ["b.parquet"]


def test_a_disk_that_recovers_soon_damages_nothing(tmp_path: Path) -> None:
    """The process cannot open a file, because it has too many open files."""
    segments_of(tmp_path, "run1", 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    listed = threading.Event()

    def mend() -> None:
        listed.wait()
        sleep(0.3)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    mending = threading.Thread(target=mend)
    mending.start()
    places = [StoragePath(f"{tmp_path}/run1-a-{number:06d}.parquet") for number in range(3)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(3, open_files), hard))
    listed.set()
    try:
        rows = count_rows(places)
    finally:
        mending.join()
    assert rows == [1, 1, 1]
