"""Shards as files: whole or not there, the same bytes for the same chunks, told of when they are damaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from untold.udfs.retrieval import shards
from untold.udfs.retrieval.dense import Probing, make_exact, use_one_thread, write_index
from untold.udfs.retrieval.shards import DamagedShardError, Shard, ShardName, ShardWriter, groups_by, is_whole
from untold.udfs.retrieval.terms import Bm25, Statistics, tokenise

TEXTS = ["the first chunk", "another one", "the first chunk", "last of all"]


def rows(texts: Sequence[str]) -> pa.RecordBatch:
    names = ("chunk_id", "document_id", "title", "url", "content", "text_id", "text")
    columns = [
        [{"chunk_id": f"d#{at}", "document_id": "d", "text_id": text, "text": text}.get(name) for name in names]
        for at, text in enumerate(texts)
    ]
    by_name = [pa.array([row[number] for row in columns], pa.string()) for number in range(len(names))]
    names, by_name = (*names, "chunks"), [*by_name, pa.array([len(texts)] * len(texts), pa.int32())]
    vectors = [np.eye(4, dtype=np.float32)[len(text) % 4].tolist() for text in texts]
    return pa.RecordBatch.from_arrays([*by_name, pa.array(vectors, pa.list_(pa.float32()))], [*names, "vector"])


@pytest.fixture
def coarse(tmp_path: Path) -> str:
    path = str(tmp_path / "coarse.faiss")
    write_index(make_exact(4), path)
    use_one_thread()
    return path


def write(folder: Path, coarse: str, batches: Sequence[pa.RecordBatch]) -> Shard:
    with ShardWriter(str(folder), coarse) as writer:
        for batch in batches:
            writer.add(batch)
        writer.finish()
    return Shard(str(folder))


def content_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_shard_is_read_as_it_was_written(tmp_path: Path, coarse: str) -> None:
    shard = write(tmp_path / "shard", coarse, [rows(TEXTS)])
    assert (shard.facts.chunks, shard.facts.texts, shard.facts.tokens) == (4, 3, 11)
    assert shard.names([3, 0]) == ["d#3", "d#0"]
    assert shard.read([3, 1], ["text"])["text"].to_pylist() == ["another one", "last of all"]
    assert [at for at, _ in shard.chunks(["text"])] == [0]
    query = np.eye(4, dtype=np.float32)[[len(TEXTS[0]) % 4]]
    (found,) = shard.dense().search(query, 3, Probing())
    assert found.positions.tolist() == [0, 1, 2] if len(TEXTS[1]) % 4 == len(TEXTS[0]) % 4 else [0, 2, 1]
    assert shard.terms().frequency("first") == 2


def test_the_same_chunks_are_the_same_bytes_in_whatever_batches(
    tmp_path: Path, coarse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "ROWS_OF_A_GROUP", 3)
    monkeypatch.setattr(shards, "ROWS_WAITING", 5)
    texts = [f"chunk {number % 11} of many" for number in range(40)]
    everything = rows(texts)
    write(tmp_path / "one", coarse, [everything])
    write(tmp_path / "many", coarse, [everything.slice(start, 7) for start in range(0, 40, 7)])
    assert content_of(tmp_path / "one") == content_of(tmp_path / "many")
    assert Shard(str(tmp_path / "one")).read([39, 4, 2], ["text"])["text"].to_pylist() == [
        texts[2],
        texts[4],
        texts[39],
    ]


@pytest.mark.parametrize("file", ["dense.faiss", "shard.json"])
def test_a_damaged_shard_is_replaced_by_writing_it_again(tmp_path: Path, coarse: str, file: str) -> None:
    write(tmp_path / "shard", coarse, [rows(TEXTS)])
    whole = content_of(tmp_path / "shard")
    (tmp_path / "shard" / file).write_bytes(b"")
    write(tmp_path / "shard", coarse, [rows(TEXTS)])
    assert content_of(tmp_path / "shard") == whole


def test_a_shard_that_was_not_finished_leaves_nothing(tmp_path: Path, coarse: str) -> None:
    with suppress(RuntimeError), ShardWriter(str(tmp_path / "shards" / "one"), coarse) as writer:
        writer.add(rows(TEXTS))
        raise RuntimeError
    assert list((tmp_path / "shards").iterdir()) == []


def test_one_that_is_there_already_stays(tmp_path: Path, coarse: str) -> None:
    write(tmp_path / "shard", coarse, [rows(TEXTS)])
    before = {file.name: file.stat().st_ino for file in (tmp_path / "shard").iterdir()}
    write(tmp_path / "shard", coarse, [rows(TEXTS)])
    assert {file.name: file.stat().st_ino for file in (tmp_path / "shard").iterdir()} == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["coarse.faiss", "shard"]


def test_dead_chunks_are_found_no_more(tmp_path: Path, coarse: str) -> None:
    write(tmp_path / "shard", coarse, [rows(TEXTS)])
    name = shards.write_dead(str(tmp_path), "shard", np.array([3, 0], np.int32))
    shard = Shard(str(tmp_path / "shard"), shards.read_dead(str(tmp_path / name)))
    (found,) = shard.dense().search(np.eye(4, dtype=np.float32)[:1], 9, Probing())
    assert sorted(found.positions.tolist()) == [1, 2]
    terms = shard.terms()
    statistics = Statistics(2, 2.5, {"the": terms.frequency("the")})
    assert Bm25(terms, statistics).search(tokenise("the"), 9)[0].tolist() == [2]
    assert shard.living() == (2, 5)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def read_all(folder: Path) -> None:
    shard = Shard(str(folder))
    shard.dense(), shard.terms(), shard.read([0], ["text"])


@pytest.mark.parametrize("harm", [cut, flip, os.unlink])
@pytest.mark.parametrize("name", ["chunks.parquet", "places.arrow", "dense.faiss", "terms.arrow", "shard.json"])
def test_a_damaged_shard_is_one_clear_line(
    tmp_path: Path, coarse: str, name: str, harm: Callable[[Path], None]
) -> None:
    write(tmp_path / "shard", coarse, [rows(TEXTS)])
    assert is_whole(str(tmp_path / "shard"))
    harm(tmp_path / "shard" / name)
    with pytest.raises(
        DamagedShardError, match=r"^the shard \S+/shard is damaged \(\w+\)\. Remove this folder"
    ) as told:
        read_all(tmp_path / "shard")
    assert "\n" not in str(told.value)
    assert not is_whole(str(tmp_path / "shard"))


@pytest.mark.parametrize("name", ["chunks.parquet", "places.arrow", "dense.faiss", "terms.arrow"])
def test_one_too_large_to_be_read_whole_is_told_of_as_well(
    tmp_path: Path, coarse: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "shard", coarse, [rows(TEXTS)])
    monkeypatch.setattr(shards, "CHECKED_BYTES", 0)
    size = (tmp_path / "shard" / name).stat().st_size
    (tmp_path / "shard" / name).write_bytes(b"\xff" * size)
    with pytest.raises(DamagedShardError):
        read_all(tmp_path / "shard")


def test_a_damaged_list_of_dead_chunks_is_told_of(tmp_path: Path) -> None:
    name = shards.write_dead(str(tmp_path), "shard", np.array([1, 2], np.int32))
    flip(tmp_path / name)
    with pytest.raises(DamagedShardError, match="the list of removed documents"):
        shards.read_dead(str(tmp_path / name))


def test_the_name_is_of_the_chunks_and_of_the_settings() -> None:
    def name(settings: str, *chunks: tuple[str | None, ...]) -> str:
        made = ShardName(settings)
        for chunk in chunks:
            made.add(chunk)
        return str(made)

    one = name("s", ("a", "b"), ("c", None))
    assert one == name("s", ("a", "b"), ("c", None))
    others = {name("t", ("a", "b"), ("c", None)), name("s", ("a", "b"), ("c", "")), name("s", ("a", "b", "c", None))}
    assert len({one, *others}) == 4


def test_rows_are_grouped_as_they_come() -> None:
    def batch(values: Sequence[int]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"shard": list(values)})

    found = groups_by([batch([1, 1, 2]), batch([]), batch([2, 3])], "shard")
    assert [(value, sum(part.num_rows for part in parts)) for value, parts in found] == [(1, 2), (2, 2), (3, 1)]
