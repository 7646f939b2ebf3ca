"""What tasks do to make and search an index, one after the other in this process: no Spark between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.fakes.lookups import vector_of
from untold.udfs.retrieval import building, catalog, searching
from untold.udfs.retrieval.catalog import IndexParameters
from untold.udfs.retrieval.dense import Probing
from untold.udfs.retrieval.searching import SearchTask

MAKING = IndexParameters(words=6, overlap=2, model="m", codec="flat", lists=0, training="", dimension=64)
DOCUMENTS = {"a": "bees make honey and wax in spring and summer", "b": "the sea is salt", "c#0": "bees sea", "d": ""}
ROW = pa.schema([(name, pa.string()) for name in ("document_id", "title", "url", "content", "text")])


def table_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def with_vectors(chunks: Iterable[Mapping[str, Any]], shards: int) -> pa.RecordBatch:
    """The chunks as a task gets them: spread by remainder here, in order, with vectors of length 1."""
    rows = [{**chunk, "shard": number % shards} for number, chunk in enumerate(chunks)]
    for row in rows:
        vector = np.array(vector_of(row["text"]), np.float32)
        row["vector"] = (vector / np.linalg.norm(vector)).tolist()
    rows.sort(key=lambda row: (row["shard"], row["chunk_id"]))
    schema = pa.schema([("shard", pa.int32()), *catalog.CHUNKS, ("vector", pa.list_(pa.float32()))])
    return pa.RecordBatch.from_pylist(rows, schema)


def make(
    index: Path, documents: Mapping[str, str], shards: int, making: IndexParameters = MAKING
) -> list[dict[str, Any]]:
    """Writes an index; gives the rows of its shards."""
    rows = [{"document_id": name, "content": text, "text": text} for name, text in documents.items()]
    given = [pa.RecordBatch.from_pylist(rows, ROW)] if rows else []
    batch = with_vectors(table_of(catalog.chunk_documents(given, making.words, making.overlap)), shards)
    list(building.write_coarse([batch], str(index), making, batch.num_rows))
    halves = [batch.slice(0, batch.num_rows // 2), batch.slice(batch.num_rows // 2)]
    names = {row["shard"]: row["name"] for row in table_of(building.name_shards(halves, str(making)))}
    return table_of(building.build_shards(halves, str(index), names))


def search(
    index: Path, built: Sequence[Mapping[str, Any]], queries: Sequence[str], k: int = 3, **given: Any
) -> list[list[dict[str, Any]]]:
    """The hits of each query, read and in order."""
    rows = [{"query": str(number), "text": text, "vector": unit(text)} for number, text in enumerate(queries)]
    (index / "queries").mkdir(parents=True, exist_ok=True)
    schema = pa.schema([("query", pa.string()), ("text", pa.string()), ("vector", pa.list_(pa.float32()))])
    pq.write_table(pa.Table.from_pylist(rows, schema), index / "queries" / "part.parquet")
    ways = {"retrievers": ("dense",), "probing": Probing(), **given}
    tombstones = {shard["name"]: shard.get("tombstones") for shard in built}
    asked = SearchTask(str(index), str(index / "cache"), str(index / "queries"), k=k, tombstones=tombstones, **ways)
    shards = [pa.RecordBatch.from_pylist([{"name": shard["name"]}]) for shard in built]
    if "bm25" in asked.retrievers:
        asked = with_statistics(index, asked, shards, rows, built)
    found = table_of(searching.search_shards(shards, asked))
    assert [row["error"] for row in found if row["error"]] == []
    found.sort(key=lambda row: row["query"])
    lists = [{"query": query, "hits": list(hits)} for query, hits in groupby(found, key=lambda row: row["query"])]
    merged = table_of(searching.merge_hits([pa.RecordBatch.from_pylist(lists)] if lists else [], k, fused=asked.fused))
    by_shard = sorted(merged, key=lambda row: row["shard"])
    batches = [pa.RecordBatch.from_pylist(by_shard, searching.MERGED)] if by_shard else []
    read = sorted(table_of(searching.read_hits(batches, asked)), key=lambda row: (row["query"], row["rank"]))
    return [[row for row in read if row["query"] == str(number)] for number in range(len(queries))]


def with_statistics(
    index: Path,
    asked: SearchTask,
    shards: Sequence[pa.RecordBatch],
    rows: Sequence[Mapping[str, Any]],
    built: Sequence[Mapping[str, Any]],
) -> SearchTask:
    terms = table_of(searching.terms_of([pa.RecordBatch.from_pylist([{"text": row["text"]} for row in rows])]))
    (index / "terms").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(terms, pa.schema([("term", pa.string())])), index / "terms" / "part.parquet")
    sums: dict[str, int] = {}
    for row in table_of(searching.count_terms(shards, asked, str(index / "terms"))):
        sums[row["term"]] = sums.get(row["term"], 0) + row["frequency"]
    (index / "frequencies").mkdir(exist_ok=True)
    counted = pa.table({"term": list(sums), "frequency": pa.array(sums.values(), pa.int64())})
    pq.write_table(counted, index / "frequencies" / "part.parquet")
    chunks = sum(shard["chunks"] - shard.get("dead", 0) for shard in built)
    tokens = sum(shard["tokens"] - shard.get("dead_tokens", 0) for shard in built)
    return replace(asked, chunks=chunks, mean_length=tokens / chunks, frequencies=str(index / "frequencies"))


def unit(text: str) -> list[float]:
    vector = np.array(vector_of(text), np.float32)
    length = np.linalg.norm(vector)
    return [float(value) for value in (vector / length if length else vector)]


def brief(hits: Iterable[Mapping[str, Any]]) -> list[tuple[str, float]]:
    return [(hit["chunk_id"], hit["similarity"]) for hit in hits]


def test_hits_say_where_they_are_from_and_what_they_say(tmp_path: Path) -> None:
    built = make(tmp_path, DOCUMENTS, 2)
    (hits,) = search(tmp_path, built, ["the sea is salt"], k=9)
    assert hits[0] == {
        "query": "0",
        "rank": 1,
        "chunk_id": "b#0",
        "similarity": pytest.approx(1.0),
        "document_id": "b",
        "title": None,
        "url": None,
        "text": "the sea is salt",
        "error": None,
    }
    assert {hit["chunk_id"] for hit in hits} == {"a#0", "a#1", "b#0", "c#0#0"}


WORDS = st.lists(st.sampled_from(["bee", "sea", "ice", "wax", "oil"]), max_size=20).map(" ".join)


@examples(25)
@given(st.dictionaries(st.sampled_from("abcdefghijkl"), WORDS, min_size=1).filter(lambda d: any(d.values())), WORDS)
def test_shards_do_not_change_what_is_found(
    tmp_path_factory: pytest.TempPathFactory, documents: dict[str, str], query: str
) -> None:
    found = []
    for shards in (1, 3):
        index = tmp_path_factory.mktemp("index")
        built = make(index, documents, shards)
        ways = [("dense",), ("bm25",), ("dense", "bm25")]
        found.append([[brief(hits) for hits in search(index, built, [query, "bee"], retrievers=way)] for way in ways])
    assert found[0] == found[1]


def test_a_query_without_a_word_finds_nothing_by_words(tmp_path: Path) -> None:
    built = make(tmp_path, DOCUMENTS, 2)
    assert search(tmp_path, built, ["?!", "unheard"], retrievers=("bm25",)) == [[], []]


def test_what_was_buried_is_found_no_more_and_counts_no_more(tmp_path: Path) -> None:
    built = {shard["name"]: shard for shard in make(tmp_path, DOCUMENTS, 2)}
    shards = [pa.RecordBatch.from_pylist([{"name": name, "tombstones": None}]) for name in built]
    living = table_of(building.list_living(shards, str(tmp_path), str(tmp_path / "cache")))
    gone: dict[str, list[int]] = {}
    for row in living:
        if row["document_id"] == "a":
            gone.setdefault(row["name"], []).append(row["position"])
    given = [{"name": name, "tombstones": None, "positions": places} for name, places in gone.items()]
    for row in table_of(
        building.write_tombstones([pa.RecordBatch.from_pylist(given)], str(tmp_path), str(tmp_path / "cache"))
    ):
        built[row["name"]] |= row
    left = {name: text for name, text in DOCUMENTS.items() if name != "a"}
    fresh = make(tmp_path / "fresh", left, 1)
    for way in (("dense",), ("bm25",)):
        found = search(tmp_path, list(built.values()), ["bees in spring"], 9, retrievers=way)
        again = search(tmp_path / "fresh", fresh, ["bees in spring"], 9, retrievers=way)
        assert [brief(hits) for hits in found] == [brief(hits) for hits in again]
    marked = [
        pa.RecordBatch.from_pylist([{"name": n, "tombstones": one.get("tombstones")}]) for n, one in built.items()
    ]
    still = table_of(building.list_living(marked, str(tmp_path), str(tmp_path / "cache")))
    assert {row["document_id"] for row in still} == {"b", "c#0"}


def test_a_damaged_shard_is_a_row_that_says_so(tmp_path: Path) -> None:
    (shard,) = make(tmp_path, DOCUMENTS, 1)
    (tmp_path / "shards" / shard["name"] / "places.arrow").unlink()
    with pytest.raises(AssertionError, match="is damaged"):
        search(tmp_path, [shard], ["bees"])
    rows = [pa.RecordBatch.from_pylist([{"name": shard["name"], "tombstones": None}])]
    (told,) = table_of(building.list_living(rows, str(tmp_path), str(tmp_path / "cache")))
    assert "start untold index again" in told["error"]


def test_a_shard_that_is_there_is_described_as_it_was_built(tmp_path: Path) -> None:
    (shard,) = make(tmp_path, DOCUMENTS, 1)
    assert building.describe_shard(str(tmp_path), shard["name"]) == shard
    assert building.describe_shard(str(tmp_path), "other") is None
    assert building.is_begun(str(tmp_path), MAKING)
    assert not building.is_begun(str(tmp_path), replace(MAKING, words=7))


@given(st.integers(1, 200), st.integers(1, 50))
def test_no_shard_has_more_than_it_may(chunks: int, most: int) -> None:
    spread = building.Spread(chunks, most)
    sizes = np.bincount([rank // spread.size for rank in range(chunks)])
    assert sizes.max() <= most
    assert len(sizes) == spread.shards == -(-chunks // most)
