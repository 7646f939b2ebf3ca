from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs.inference.completions import (
    KilledError,
    break_pages,
    killed_after,
    names_in,
    read_rows,
    row,
    segments_of,
    write,
)
from untold.jobs.inference.store import compaction
from untold.jobs.inference.store.compaction import compact_folder, find_whole
from untold.jobs.tables import COMPLETIONS
from untold.udfs.llm.store_files import write_file


def live_names(folder: Path) -> list[str]:
    return list(compaction.live_names(str(folder)))


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_small_files_of_all_runs_become_one(tmp_path: Path, form: str) -> None:
    segments_of(tmp_path, "run1", 6)
    segments_of(tmp_path, "killed", 6)
    before = read_rows(tmp_path)
    compact_folder(form.format(tmp_path))
    (merged,) = live_names(tmp_path)
    assert read_rows(tmp_path) == before
    assert pq.read_schema(tmp_path / merged).equals(COMPLETIONS)
    assert names_in(tmp_path) == [merged]


def test_few_files_do_not_change(tmp_path: Path) -> None:
    segments_of(tmp_path, "run1", 7)
    compact_folder(str(tmp_path))
    assert names_in(tmp_path, "merged-*") == []


def test_compacting_twice_changes_nothing(tmp_path: Path) -> None:
    segments_of(tmp_path, "run1", 12)
    compact_folder(str(tmp_path))
    after = names_in(tmp_path)
    compact_folder(str(tmp_path))
    assert names_in(tmp_path) == after


def test_files_are_merged_up_to_a_size_and_large_files_do_not_change(tmp_path: Path) -> None:
    size = segments_of(tmp_path, "run1", 20)[0].stat().st_size
    compact_folder(str(tmp_path), file_bytes=5 * size + 100)
    first = live_names(tmp_path)
    assert len(first) == 4
    segments_of(tmp_path, "run2", 10)
    large = {name for name in first if (tmp_path / name).stat().st_size >= compaction.SMALL * 5 * size}
    compact_folder(str(tmp_path), file_bytes=5 * size)
    assert large <= set(live_names(tmp_path))


def test_a_night_rewrites_its_new_rows_and_one_unfinished_file(tmp_path: Path) -> None:
    """The size of a file bounds the bytes that a compaction writes, for any number of nights."""
    night_bytes, file_bytes, written, known = 8 * 6_000, 200_000, [], set()
    for night in range(15):
        for number in range(8):
            text = os.urandom(2_000).hex()
            write(tmp_path, f"run{night}-{number}.parquet", [row(f"{night}-{number}", text=text)])
        compact_folder(str(tmp_path), file_bytes=file_bytes)
        new = set(names_in(tmp_path, "merged-*")) - known
        written.append(sum((tmp_path / name).stat().st_size for name in new))
        known |= new
    assert len(read_rows(tmp_path)) == 120
    assert max(written) <= file_bytes / 2 + night_bytes
    live = [(tmp_path / name).stat().st_size for name in live_names(tmp_path)]
    assert sum(live) > 2 * max(written)
    assert sum(size < file_bytes / 2 for size in live) < compaction.COMPACT_FROM_FILES


def test_a_damaged_file_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    paths = segments_of(tmp_path, "run1", 12)
    break_pages(paths[3])
    before = names_in(tmp_path)
    with pytest.raises((OSError, ValueError)):
        compact_folder(str(tmp_path))
    assert (names_in(tmp_path, "*.parquet"), live_names(tmp_path)) == (before, before)


def test_columns_and_types_of_other_versions_are_kept(tmp_path: Path) -> None:
    segments_of(tmp_path, "run1", 8)
    columns = [*COMPLETIONS, pa.field("added", pa.int64())]
    newer = pa.Table.from_pylist([{"request_id": "s", "added": 7}], pa.schema(columns))
    write_file(f"{tmp_path}/newer.parquet", newer)
    older = pa.table({"request_id": ["t"], "text": ["text"]})
    write_file(f"{tmp_path}/older.parquet", older)
    compact_folder(str(tmp_path))
    (merged,) = live_names(tmp_path)
    found = {one["request_id"]: one for one in pq.read_table(tmp_path / merged).to_pylist()}
    assert (found["s"]["added"], found["t"]["text"], found["t"]["added"]) == (7, "text", None)


def test_leftovers_of_killed_writers_and_merges_are_removed(tmp_path: Path) -> None:
    segments_of(tmp_path, "run1", 8)
    compact_folder(str(tmp_path))
    kept = names_in(tmp_path)
    old, young = tmp_path / ".run1-a-000009.parquet.tmp", tmp_path / ".run2-a-000001.parquet.tmp"
    for path in (tmp_path / ".merged-killed.parquet.tmp", tmp_path / "_compact-run0" / "part-0", old, young):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"part of it")
    for path in (old, tmp_path / "_compact-run0"):
        os.utime(path, (0, 0))
    compact_folder(str(tmp_path))
    assert names_in(tmp_path) == sorted([*kept, young.name])


def test_a_folder_with_thousands_of_files_is_merged_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MOST_SOURCES", 5)
    segments_of(tmp_path, "run1", 13)
    before = read_rows(tmp_path)
    compact_folder(str(tmp_path))
    assert (len(names_in(tmp_path)), read_rows(tmp_path)) == (3, before)


def test_a_folder_with_many_small_files_or_a_killed_compaction_is_due(tmp_path: Path) -> None:
    segments_of(tmp_path, "run1", 7)
    assert not compaction.is_due(str(tmp_path))
    segments_of(tmp_path, "run2", 1)
    assert compaction.is_due(str(tmp_path))
    compact_folder(str(tmp_path))
    assert not compaction.is_due(str(tmp_path))
    (tmp_path / ".merged-killed.parquet.tmp").write_bytes(b"part of it")
    assert compaction.is_due(str(tmp_path))
    assert not compaction.is_due(str(tmp_path / "nowhere"))


def test_a_compaction_that_ends_before_any_change_keeps_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, changes = False, 0
    while not ended:
        folder = tmp_path / str(changes)
        segments_of(folder, "run1", 8)
        before = read_rows(folder)
        with monkeypatch.context() as patched:
            killed_after(patched, changes)
            try:
                compact_folder(str(folder))
                ended = True
            except KilledError:
                pass
        assert read_rows(folder, find_whole(str(folder), move=True)) == before
        compact_folder(str(folder))
        assert read_rows(folder) == before
        changes += 1
    # One merged file, and the removal of eight sources
    assert changes == 10


# If Spark ran in this process before, Python does not add the working folder to its paths
_COMPACTOR = """
import sys
sys.path.insert(0, ".")
from pathlib import Path
from uuid import uuid4
from untold.jobs.inference.store.compaction import compact_folder
from tests.jobs.inference.completions import row, write
folder = Path(sys.argv[1])
while True:
    run = uuid4().hex
    for number in range(8):
        path = write(folder, f"{run}-{number}.parquet", [row(f"{run}-{number}", text="t")])
        print(f"{run}-{number}", flush=True)
    compact_folder(str(folder), file_bytes=60_000)
"""


@pytest.mark.gate
def test_a_compaction_that_is_killed_at_any_time_keeps_each_row_once(tmp_path: Path) -> None:
    moments, spoken = random.Random(0), set()
    for _ in range(6):
        words = [sys.executable, "-c", _COMPACTOR, str(tmp_path)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
        assert process.stdout is not None
        # A compaction starts after each 8 lines
        spoken |= {process.stdout.readline().strip() for _ in range(moments.choice([3, 8, 16, 24]))}
        sleep(moments.uniform(0.0, 0.2))
        process.send_signal(signal.SIGKILL)
        spoken |= {line.strip() for line in process.stdout if line.endswith("\n")}
        process.wait()
        whole = find_whole(str(tmp_path), move=True)
        found = [one["request_id"] for one in read_rows(tmp_path, whole)]
        assert spoken <= set(found)
        assert (len(set(found)), whole.damaged) == (len(found), ())
    segments_of(tmp_path, "last", 8)
    compact_folder(str(tmp_path), file_bytes=60_000)
    assert names_in(tmp_path, "*.parquet") == live_names(tmp_path)
    assert len(spoken) >= 6 * 3
