from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from time import sleep
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.jobs.tables import COMPLETIONS
from untold.udfs.llm.store_files import (
    FLUSH_BYTES,
    FLUSH_ROWS,
    MOST_BYTES,
    MOST_ROWS,
    Completion,
    SegmentWriter,
    completions_table,
    read_ids,
    write_file,
)


def table(count: int = 1) -> pa.Table:
    return completions_table([Completion(f"r{number}", prompt_tokens=number) for number in range(count)])


def writer_of(folder: Path, seconds: float = 1.0) -> SegmentWriter:
    return SegmentWriter(str(folder), "run-a", seconds)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(_: pa.Table, where: Any, **__: Any) -> None:
        where.write(b"PAR1 and no more")
        raise OSError("no space left")

    monkeypatch.setattr(pq, "write_table", break_off)
    with pytest.raises(OSError, match="no space left"):
        write_file(f"{tmp_path}/a.parquet", table())
    assert not (tmp_path / "a.parquet").exists()
    assert [name for name in names_in(tmp_path) if not name.startswith((".", "_"))] == []


def test_no_reader_ever_sees_a_part_of_a_file(tmp_path: Path) -> None:
    ended, broken = threading.Event(), []

    def read() -> None:
        while not ended.is_set():
            for path in tmp_path.glob("*.parquet"):
                if not path.name.startswith("."):
                    try:
                        assert pq.read_metadata(path).num_rows == 2000
                    except Exception as error:
                        broken.append(error)
            sleep(0.001)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(30):
        write_file(f"{tmp_path}/{number % 5}.parquet", table(2000))
    ended.set()
    reader.join()
    assert broken == []
    assert len(names_in(tmp_path)) == 5


def test_columns_without_a_value_keep_their_types(tmp_path: Path) -> None:
    write_file(f"{tmp_path}/a.parquet", completions_table([Completion("r")]))
    assert pq.read_schema(tmp_path / "a.parquet").equals(COMPLETIONS)


def test_a_writer_is_due_after_its_seconds(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, 0.05)
    assert not writer.due
    writer.add(Completion("r"), 10)
    sleep(0.06)
    assert writer.due


def test_a_writer_is_due_at_its_size(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, 1000)
    writer.add(Completion("r"), FLUSH_BYTES - 1)
    assert not writer.due
    writer.add(Completion("s"), 1)
    assert writer.due


def test_a_writer_writes_numbered_segments(tmp_path: Path) -> None:
    async def write() -> None:
        writer = writer_of(tmp_path, 1)
        for number in range(3):
            writer.add(Completion(f"r{number}"), 10)
            await writer.flush()
        await writer.flush()

    asyncio.run(write())
    assert names_in(tmp_path) == [f"run-a-{number:06d}.parquet" for number in (1, 2, 3)]
    assert read_ids(str(tmp_path), "run-a") == {"r0", "r1", "r2"}


def test_rows_added_during_a_flush_are_in_the_next(tmp_path: Path) -> None:
    async def write() -> None:
        writer = writer_of(tmp_path, 1)
        writer.add(Completion("r1"), 10)
        flush = asyncio.create_task(writer.flush())
        await asyncio.sleep(0)
        writer.add(Completion("r2"), 10)
        await flush
        await writer.flush()

    asyncio.run(write())
    assert read_ids(str(tmp_path), "run-a") == {"r1", "r2"}


def test_only_the_ids_of_one_writer_are_read(tmp_path: Path) -> None:
    write_file(f"{tmp_path}/run-a-000001.parquet", completions_table([Completion("mine")]))
    write_file(f"{tmp_path}/run-b-000001.parquet", completions_table([Completion("theirs")]))
    (tmp_path / ".run-a-000002.parquet.tmp").write_bytes(b"cut")
    assert read_ids(str(tmp_path), "run-a") == {"mine"}
    assert read_ids(str(tmp_path / "nowhere"), "run-a") == set()


def test_a_damaged_segment_has_no_ids(tmp_path: Path) -> None:
    write_file(f"{tmp_path}/run-a-000001.parquet", pa.table({"request_id": ["mine"]}))
    (tmp_path / "run-a-000002.parquet").write_bytes(b"")
    assert read_ids(str(tmp_path), "run-a") == {"mine"}


def test_rows_are_due_before_the_limit_of_requests(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, 1000)
    for _ in range(FLUSH_ROWS):
        assert not writer.due
        writer.add(Completion("r"), 10)
    assert writer.due
    assert not writer.full


@pytest.mark.parametrize(("rows", "size"), [(MOST_ROWS, 10), (64, MOST_BYTES // 64)])
def test_a_writer_is_full_by_rows_and_by_bytes(tmp_path: Path, rows: int, size: int) -> None:
    writer = writer_of(tmp_path)
    for _ in range(rows):
        assert not writer.full
        writer.add(Completion("r"), size)
    assert writer.full


def test_rows_of_a_write_that_failed_are_written_with_later_ones(tmp_path: Path) -> None:
    folder = tmp_path / "store"

    async def write() -> SegmentWriter:
        writer = writer_of(folder)
        writer.add(Completion("r1"), 10)
        with pytest.raises(OSError, match="No such file"):
            await writer.flush()
        assert (writer.unwritten, writer.trouble) == (1, "No such file or directory")
        assert writer.failing_for > 0
        assert not writer.may_write
        folder.mkdir()
        writer.add(Completion("r2"), 10)
        await writer.flush()
        return writer

    writer = asyncio.run(write())
    assert (writer.unwritten, writer.trouble, writer.failing_for) == (0, None, 0.0)
    assert read_ids(str(folder), "run-a") == {"r1", "r2"}
    assert names_in(folder) == ["run-a-000001.parquet"]


def test_a_write_continues_if_its_caller_is_cancelled(tmp_path: Path) -> None:
    async def write() -> None:
        writer = writer_of(tmp_path)
        writer.add(Completion("r1"), 10)
        flush = asyncio.create_task(writer.flush())
        await asyncio.sleep(0)
        flush.cancel()
        await asyncio.wait([flush])
        await writer.flush()
        assert writer.unwritten == 0

    asyncio.run(write())
    assert read_ids(str(tmp_path), "run-a") == {"r1"}
