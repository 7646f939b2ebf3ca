from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.llm.segments import (
    SUFFIX,
    Completion,
    Journal,
    SegmentWriter,
    completions_table,
    journal_folder,
    read_journal,
    replay,
    write_file,
)

ROW = Completion(
    "r1",
    text="Zürich \ud800",
    alternatives=[{"offset": 1, "top": [{"token": "4", "logprob": -0.1}]}],
    prompt_tokens=3,
    tokens_estimated=False,
    seconds=0.1,
    answered_at=datetime(2026, 11, 23, 12, 0, 0, 123456, tzinfo=UTC),
    vector=np.array([0.1, -2.5], dtype=np.float32),
)


def written(folder: Path, *rows: Completion) -> Path:
    """The file of a journal whose writer died with these rows in it."""
    (folder / "store").mkdir()
    journal = Journal(folder, "store", "actor")
    for row in rows:
        journal.append(row)
    journal.sync()
    journal.close(keep=True)
    (path,) = folder.glob(f"*{SUFFIX}")
    return path


def ids_in(folder: Path) -> list[str]:
    return [one for path in sorted(folder.glob("*.parquet")) for one in pq.read_table(path)["request_id"].to_pylist()]


def test_rows_come_back_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = replace(ROW, text="Zürich")
    written(tmp_path, row, Completion("r2", error_type="http_500", error="no"))
    (uri,) = replay(tmp_path, "store", write_file)
    expected = completions_table([row, Completion("r2", error_type="http_500", error="no")])
    assert pq.read_table(uri).equals(expected)
    assert list(tmp_path.glob(f"*{SUFFIX}")) == replay(tmp_path, "store", write_file) == []


@given(data=st.data())
def test_a_journal_that_ends_anywhere_gives_the_records_before(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    texts = data.draw(st.lists(st.text(max_size=20), min_size=1, max_size=4))
    rows = [Completion(f"r{number}", text=text) for number, text in enumerate(texts)]
    content = written(tmp_path_factory.mktemp("journal"), *rows).read_bytes()
    end = data.draw(st.integers(0, len(content)))
    whole, torn = [*read_journal(content)], [*read_journal(content[:end])]
    assert [record.get("text") for record in whole[1:]] == texts
    assert torn == whole[: len(torn)]
    assert (len(torn) == len(whole)) == (end == len(content))
    # What a disk gives back in the place of a record ends the reading there too
    if end < len(content):
        spoilt = content[:end] + bytes([content[end] ^ 1]) + content[end + 1 :]
        assert [*read_journal(spoilt)] == torn


def test_a_journal_of_a_living_writer_or_of_another_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    living = Journal(tmp_path, str(tmp_path / "store"), "living")
    living.append(Completion("r1"))
    assert replay(tmp_path, str(tmp_path / "store"), write_file) == []
    living.close(keep=True)
    assert replay(tmp_path, str(tmp_path / "other"), write_file) == []
    assert len(replay(tmp_path, str(tmp_path / "store"), write_file)) == 1


def test_a_writer_removes_what_its_segments_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    store.mkdir()
    writer = SegmentWriter(str(store), "actor", 1.0, Journal(tmp_path, str(store), "actor"))

    async def write() -> None:
        writer.add(Completion("r1"), 10)
        monkeypatch.setattr(pq, "write_table", lambda *_, **__: (_ for _ in ()).throw(OSError("away")))
        with pytest.raises(OSError, match="away"):
            await writer.flush()
        writer.add(Completion("r2"), 10)
        monkeypatch.undo()
        await writer.flush()
        writer.add(Completion("r3"), 10)

    asyncio.run(write())
    writer.close()
    replay(tmp_path, str(store), write_file)
    assert ids_in(store) == ["r1", "r2", "r3"]
    assert list(tmp_path.glob("*.*")) == []


def test_a_full_disk_ends_the_journal_and_not_the_writer(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    journal = Journal(tmp_path, str(store), "actor")
    journal._file.close()
    journal._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    writer = SegmentWriter(str(store), "actor", 1.0, journal)
    writer.add(Completion("r1"), 10)
    assert not writer.journaled
    asyncio.run(writer.flush())
    assert ids_in(store) == ["r1"]


def test_the_folder_of_the_node_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert journal_folder("").stat().st_mode & 0o777 == 0o700
    assert journal_folder(str(tmp_path / "named")) == tmp_path / "named"
