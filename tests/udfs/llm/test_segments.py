from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from time import sleep
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from jobs.tables import COMPLETIONS
from udfs.llm.segments import SegmentWriter, is_local, open_filesystem, read_ids, rows_to_table, write_file

SCHEMA = pa.schema([("request_id", pa.string()), ("text", pa.string()), ("tokens", pa.int64())])


def table(count: int = 1) -> pa.Table:
    return rows_to_table([(f"r{number}", None, number) for number in range(count)], SCHEMA)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_path_is_local(tmp_path: Path) -> None:
    system, path = open_filesystem(str(tmp_path))
    assert isinstance(system, fs.LocalFileSystem)
    assert path == str(tmp_path)
    assert is_local(str(tmp_path))


def test_a_file_uri_is_the_same_place(tmp_path: Path) -> None:
    write_file(f"file://{tmp_path}/a.parquet", table(3))
    assert pq.read_table(tmp_path / "a.parquet").num_rows == 3
    assert is_local(f"file://{tmp_path}")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_both_engines_names_of_an_object_store_are_one(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-west-1"}.items():
        monkeypatch.setenv(name, value)
    uri = f"{scheme}://bucket/store/v1?region=eu-west-1&endpoint_override=127.0.0.1:9&scheme=http"
    system, path = open_filesystem(uri)
    assert isinstance(system, fs.S3FileSystem)
    assert path == "bucket/store/v1"


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
    row = ("r", *[None] * (len(COMPLETIONS) - 1))
    write_file(f"{tmp_path}/a.parquet", rows_to_table([row], COMPLETIONS))
    assert pq.read_schema(tmp_path / "a.parquet").equals(COMPLETIONS)


def test_rows_of_another_width_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        rows_to_table([("r", "text")], SCHEMA)


def test_a_writer_is_due_after_its_seconds(tmp_path: Path) -> None:
    writer = SegmentWriter(str(tmp_path), "run-a", SCHEMA, 0.05)
    assert not writer.due
    writer.add(("r", "t", 1), 10)
    sleep(0.06)
    assert writer.due


def test_a_writer_is_due_at_eight_megabytes(tmp_path: Path) -> None:
    writer = SegmentWriter(str(tmp_path), "run-a", SCHEMA, 1000)
    writer.add(("r", "t", 1), 8 * 2**20 - 1)
    assert not writer.due
    writer.add(("s", "t", 1), 1)
    assert writer.due


def test_a_writer_writes_numbered_segments(tmp_path: Path) -> None:
    async def write() -> None:
        writer = SegmentWriter(str(tmp_path), "run-a", SCHEMA, 1)
        for number in range(3):
            writer.add((f"r{number}", None, number), 10)
            await writer.flush()
        await writer.flush()

    asyncio.run(write())
    assert names_in(tmp_path) == [f"run-a-{number:06d}.parquet" for number in (1, 2, 3)]
    assert read_ids(str(tmp_path), "run-a") == {"r0", "r1", "r2"}


def test_rows_added_during_a_flush_are_in_the_next(tmp_path: Path) -> None:
    async def write() -> None:
        writer = SegmentWriter(str(tmp_path), "run-a", SCHEMA, 1)
        writer.add(("r1", None, 1), 10)
        flush = asyncio.create_task(writer.flush())
        await asyncio.sleep(0)
        writer.add(("r2", None, 2), 10)
        await flush
        await writer.flush()

    asyncio.run(write())
    assert read_ids(str(tmp_path), "run-a") == {"r1", "r2"}


def test_ids_are_read_of_one_writer_alone(tmp_path: Path) -> None:
    write_file(f"{tmp_path}/run-a-000001.parquet", rows_to_table([("mine", None, 1)], SCHEMA))
    write_file(f"{tmp_path}/run-b-000001.parquet", rows_to_table([("theirs", None, 1)], SCHEMA))
    (tmp_path / ".run-a-000002.parquet.tmp").write_bytes(b"cut")
    assert read_ids(str(tmp_path), "run-a") == {"mine"}
    assert read_ids(str(tmp_path / "nowhere"), "run-a") == set()


def test_a_damaged_segment_holds_no_ids(tmp_path: Path) -> None:
    write_file(f"{tmp_path}/run-a-000001.parquet", rows_to_table([("mine", None, 1)], SCHEMA))
    (tmp_path / "run-a-000002.parquet").write_bytes(b"")
    assert read_ids(str(tmp_path), "run-a") == {"mine"}
