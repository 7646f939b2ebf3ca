from __future__ import annotations

import json
import resource
import threading
from pathlib import Path
from time import sleep
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.fakes.object_store import BUCKET, ObjectStore
from tests.jobs.inference.completions import break_pages, names_in, row, segments_of, write
from untold.jobs.inference.store.compaction import (
    LiveFile,
    ReplacedFile,
    Snapshot,
    find_damaged,
    find_whole,
    list_folder,
    set_aside,
    write_snapshot,
)
from untold.udfs.llm.store_files import count_rows, digest_of
from untold.udfs.storage import StoragePath


def live(path: Path, **changes: Any) -> LiveFile:
    digest = digest_of(StoragePath(str(path)))
    values = {"name": path.name, "rows": pq.read_metadata(path).num_rows, "size": path.stat().st_size, "digest": digest}
    return LiveFile(**{**values, **changes})


def live_names(folder: Path) -> list[str]:
    return list_folder(str(folder)).live()


def test_without_a_snapshot_every_file_is_live(tmp_path: Path) -> None:
    assert live_names(tmp_path / "nowhere") == []
    paths = segments_of(tmp_path, "run1", 2)
    for name in (".b.parquet.tmp", "_probe-run-a", "_lock", "_compacted-run.json", "._c.parquet"):
        (tmp_path / name).write_bytes(b"aside")
    (tmp_path / "folder.parquet").mkdir()
    assert live_names(tmp_path) == [path.name for path in paths]


def test_a_snapshot_says_what_is_live_and_newer_files_are_too(tmp_path: Path) -> None:
    named, replaced = write(tmp_path, "base-1.parquet", [row()]), write(tmp_path, "a.parquet", [row()])
    into = ReplacedFile(name=replaced.name, at=0, into=(named.name,))
    write_snapshot(str(tmp_path), Snapshot(number=1, files=(live(named),), replaced=(into,)))
    write(tmp_path, "newer.parquet", [row("s")])
    write(tmp_path, "base-of-a-killed-compaction.parquet", [row()])
    assert live_names(tmp_path) == ["base-1.parquet", "newer.parquet"]


def test_the_newest_snapshot_counts_and_is_the_only_one(tmp_path: Path) -> None:
    first, second = (write(tmp_path, f"base-{number}.parquet", [row()]) for number in (1, 2))
    for number, path in ((9, first), (10, second)):
        write_snapshot(str(tmp_path), Snapshot(number=number, files=(live(path),)))
    assert live_names(tmp_path) == ["base-2.parquet"]
    assert names_in(tmp_path, "_snapshot-*") == ["_snapshot-00000010.json"]


def test_what_a_damaged_merged_file_replaced_is_live_again(tmp_path: Path) -> None:
    """Over two merges: c of b and a newer file, b of a1 and a2."""
    a1, a2, b, n, c = (
        write(tmp_path, f"{name}.parquet", [row(name)]) for name in ("a1", "a2", "base-b", "n", "base-c")
    )
    replaced = [ReplacedFile(name=path.name, at=0, into=(b.name,)) for path in (a1, a2)]
    replaced += [ReplacedFile(name=path.name, at=0, into=(c.name,)) for path in (b, n)]
    write_snapshot(str(tmp_path), Snapshot(number=1, files=(live(c),), replaced=tuple(replaced)))
    assert live_names(tmp_path) == ["base-c.parquet"]
    c.write_bytes(b"")
    whole = find_whole(str(tmp_path), move=True)
    assert (whole.names, whole.damaged) == (("base-b.parquet", "n.parquet"), ("base-c.parquet",))
    b.unlink()
    assert live_names(tmp_path) == ["a1.parquet", "a2.parquet", "n.parquet"]


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
def test_a_snapshot_with_a_name_that_is_not_bare_is_refused_whole(tmp_path: Path, name: str) -> None:
    (tmp_path / "victim.parquet").write_bytes(b"precious")
    folder = tmp_path / "stage"
    path = write(folder, "a.parquet", [row()])
    other = {"name": "a.parquet", "at": 0, "into": [name]}
    for content in ({"files": [{"name": name, "rows": 1, "size": 1, "digest": ""}]}, {"replaced": [other]}):
        (folder / "_snapshot-00000007.json").write_text(json.dumps({"number": 7, **content}))
        whole = find_whole(str(folder), move=True)
        assert (whole.names, whole.damaged) == ((path.name,), ("_snapshot-00000007.json",))
    assert (tmp_path / "victim.parquet").read_bytes() == b"precious"


def test_where_the_newest_snapshot_makes_no_sense_none_counts(tmp_path: Path) -> None:
    """An older one would call the merged file, which may be all that is left, a leftover."""
    old, merged = write(tmp_path, "a.parquet", [row()]), write(tmp_path, "base-2.parquet", [row()])
    write_snapshot(str(tmp_path), Snapshot(number=1, files=(live(old),)))
    (tmp_path / "_snapshot-00000002.json").write_text("{")
    assert find_whole(str(tmp_path), move=False).names == (old.name, merged.name)
    whole = find_whole(str(tmp_path), move=True)
    assert whole.names == (old.name, merged.name)
    assert find_whole(str(tmp_path), move=True) == whole.__class__(whole.names, whole.uris, 2)


def damage(folder: Path) -> list[str]:
    """Puts files beside the good ones that have no footer; gives their names."""
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


def test_a_file_that_a_snapshot_names_and_nobody_finds_is_missing(tmp_path: Path) -> None:
    gone, damaged = write(tmp_path, "gone.parquet", [row()]), write(tmp_path, "damaged.parquet", [row()])
    write_snapshot(str(tmp_path), Snapshot(number=1, files=(live(gone), live(damaged))))
    gone.unlink()
    set_aside(str(tmp_path), [damaged.name])
    whole = find_whole(str(tmp_path), move=True)
    assert (whole.names, whole.missing, whole.damaged) == ((), ("gone.parquet",), ())


@examples(60)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_ends_nothing_and_is_found_where_rows_are(tmp_path_factory: Any, where: float, bit: int) -> None:
    """Pages have checksums; a footer has none, and a bit of it is found by the digest alone."""
    folder = tmp_path_factory.mktemp("bits")
    path = write(folder, "a.parquet", [row(f"r{n}", text=f"Some text {n * n}.") for n in range(20)])
    before, content = pq.read_table(path), bytearray(path.read_bytes())
    pages = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    at = int(where * len(content))
    content[at] ^= 1 << bit
    path.write_bytes(content)
    damaged = find_whole(str(folder), move=False).damaged or find_damaged(str(folder), [path.name])
    assert damaged or at >= pages or pq.read_table(path).equals(before)


def test_damaged_rows_behind_a_good_footer_are_found_by_reading_or_by_their_digest(tmp_path: Path) -> None:
    good, broken, swapped = (write(tmp_path, f"{n}.parquet", [row(n, text="t" * 5000)]) for n in "abc")
    write_snapshot(str(tmp_path), Snapshot(number=1, files=(live(good), live(broken), live(swapped, digest="00"))))
    break_pages(broken)
    assert find_whole(str(tmp_path), move=False).damaged == ()
    assert find_damaged(str(tmp_path), ["a.parquet", "b.parquet", "c.parquet", "gone.parquet"]) == [
        "b.parquet",
        "c.parquet",
    ]


def test_a_disk_that_is_well_again_soon_damages_nothing(tmp_path: Path) -> None:
    """A process that has too many files open cannot open one more, for a while."""
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


@pytest.mark.usefixtures("object_store")
def test_of_two_who_write_one_snapshot_the_first_stays() -> None:
    folder = f"s3://{BUCKET}/stage"
    write_snapshot(folder, Snapshot(number=1))
    with pytest.raises(FileExistsError, match="another run has merged files"):
        write_snapshot(folder, Snapshot(number=1, files=(LiveFile(name="a.parquet", rows=1, size=1, digest="d"),)))
    assert list_folder(folder).snapshot == Snapshot(number=1)


def test_no_footer_is_read_of_a_file_that_a_snapshot_names(object_store: ObjectStore, tmp_path: Path) -> None:
    folder = f"s3://{BUCKET}/stage"
    for name in ("a.parquet", "b.parquet"):
        write(tmp_path, name, [row("r")])
        object_store.put(f"stage/{name}", (tmp_path / name).read_bytes())
    write_snapshot(folder, Snapshot(number=1, files=(live(tmp_path / "a.parquet"),)))
    before = len(object_store.requests)
    assert find_whole(folder, move=False).rows == 2
    assert {request.key for request in object_store.requests[before:]} >= {"stage/b.parquet"}
    assert "stage/a.parquet" not in {request.key for request in object_store.requests[before:]}
