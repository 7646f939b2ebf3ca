"""Compare the table of an index with numpy and bm25s for several versions, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.fakes.lookups import vector_of
from tests.fakes.object_store import BUCKET, ObjectStore
from untold.udfs.retrieval.chunks import CHUNKS, chunk_documents
from untold.udfs.retrieval.index_table import (
    Catalog,
    DamagedIndexError,
    IndexParameters,
    SearchTask,
    list_count,
    list_documents,
    open_table,
    read_documents,
    search_table,
    write_table,
)
from untold.udfs.retrieval.ranking import Hit, compared, fuse_rankings, retrievers_of, tokenise
from untold.udfs.storage import PlaceError

MAKING = IndexParameters(words=6, overlap=2, model="m", codec="flat", dimension=len(vector_of("")))
DOCUMENTS = {"a": "bees make honey and wax in spring and summer", "b": "the sea is salt", "c#0": "bees sea", "d": ""}
QUERIES = pa.schema([("query", pa.string()), ("text", pa.string()), ("vector", pa.list_(pa.float32()))])
ROW = pa.schema([(name, pa.string()) for name in ("document_id", "title", "url", "content", "text")])
EXACT = 10**6


def unit(text: str) -> list[float]:
    vector = np.array(vector_of(text), np.float64)
    length = np.linalg.norm(vector)
    return [float(value) for value in (vector / length if length else vector)]


def chunks_of(documents: Mapping[str, str], making: IndexParameters = MAKING) -> list[dict[str, Any]]:
    rows = [{"document_id": name, "content": text, "text": text} for name, text in documents.items()]
    given_rows = [pa.RecordBatch.from_pylist(rows, ROW)] if rows else []
    batches = chunk_documents(given_rows, making.words, making.overlap)
    return [row for batch in batches for row in batch.to_pylist()]


def write(
    index: object,
    documents: Mapping[str, str],
    before: Catalog | None = None,
    removed: Sequence[str] = (),
    making: IndexParameters = MAKING,
    exact_chunks: int = EXACT,
    chunks_per_shard: int = 4,
) -> Catalog:
    rows = [{**chunk, "vector": unit(chunk["text"])} for chunk in chunks_of(documents, making)]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([*CHUNKS, ("vector", pa.list_(pa.float32()))]))
    batches = [batch] if rows else []
    return write_table(
        str(index),
        making,
        batches,
        before,
        removed,
        documents=len(documents),
        content="content",
        exact_chunks=exact_chunks,
        chunks_per_shard=chunks_per_shard,
    )


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def search(
    index: object, catalog: Catalog, queries: Sequence[str], k: int = 3, retriever: str = "dense", **more: Any
) -> list[list[dict[str, Any]]]:
    """Return the hits of each query in order."""
    given_rows = [{"query": str(number), "text": text, "vector": unit(text)} for number, text in enumerate(queries)]
    task = SearchTask(str(index), catalog.version, retrievers_of(retriever), k, **{"nprobe": 256, **more})
    found = rows_of(search_table([pa.RecordBatch.from_pylist(given_rows, QUERIES)], task))
    assert [row["error"] for row in found if row["error"]] == []
    return [[row for row in found if row["query"] == str(number)] for number in range(len(queries))]


def brief(hits: Iterable[Mapping[str, Any]]) -> list[tuple[str, float]]:
    return [(hit["chunk_id"], hit["similarity"]) for hit in hits]


def by_vectors(documents: Mapping[str, str], query: str) -> list[Hit]:
    chunks = chunks_of(documents)
    scores = [float(np.dot(unit(chunk["text"]), unit(query))) for chunk in chunks]
    hits = [Hit(chunk["chunk_id"], score) for chunk, score in zip(chunks, scores, strict=True)]
    return sorted(hits, key=lambda hit: (-compared(hit.similarity, 6), hit.chunk_id))


def by_words(documents: Mapping[str, str], query: str) -> list[Hit]:
    chunks = chunks_of(documents)
    tokens = [tokenise(chunk["text"]) for chunk in chunks]
    known = [token for token in tokenise(query) if any(token in one for one in tokens)]
    if not known:
        return []
    oracle = bm25s.BM25(method="lucene", k1=1.2, b=0.75, dtype="float64")
    oracle.index(tokens, show_progress=False)
    scores = oracle.get_scores(known)
    hits = [Hit(chunk["chunk_id"], float(score)) for chunk, score in zip(chunks, scores, strict=True) if score > 0]
    return sorted(hits, key=lambda hit: (-round(hit.similarity, 5), hit.chunk_id))


def check(index: object, catalog: Catalog, documents: Mapping[str, str], queries: Sequence[str]) -> None:
    """Compare all hits by vectors and by words with brute force."""
    everything = 10 * len(chunks_of(documents)) + 1
    assert catalog.chunks == len(chunks_of(documents))
    for retriever, oracle in (("dense", by_vectors), ("bm25", by_words)):
        found = search(index, catalog, queries, everything, retriever)
        for query, hits in zip(queries, found, strict=True):
            expected = oracle(documents, query)
            assert dict(brief(hits)) == pytest.approx(dict(expected), rel=1e-6, abs=1e-6)
            assert [hit["rank"] for hit in hits] == list(range(1, len(expected) + 1))


WORDS = st.lists(st.sampled_from(["bee", "sea", "ice", "wax", "oil"]), max_size=20).map(" ".join)
CORPUS = st.dictionaries(st.sampled_from("abcdefghijkl"), WORDS, min_size=1).filter(lambda one: any(one.values()))


@examples(10)
@given(CORPUS, CORPUS, WORDS)
def test_hits_equal_brute_force_over_the_history_of_a_corpus(
    tmp_path_factory: pytest.TempPathFactory, first: dict[str, str], second: dict[str, str], query: str
) -> None:
    index = tmp_path_factory.mktemp("index")
    before = write(index, first)
    check(index, before, first, [query, "bee"])
    new = {name: text for name, text in second.items() if first.get(name) != text}
    removed = [name for name, text in first.items() if second.get(name) != text]
    after = write(index, new, before, removed)
    check(index, after, second, [query, "bee"])
    # A search can read the earlier version
    check(index, before, first, [query])


def many(count: int) -> dict[str, str]:
    draw = np.random.default_rng(0)
    return {f"{number}": " ".join(draw.choice(["bee", "sea", "ice", "wax", "oil"], 5)) for number in range(count)}


def test_hits_have_the_texts_of_their_chunks(tmp_path: Path) -> None:
    catalog = write(tmp_path, DOCUMENTS)
    (hits,) = search(tmp_path, catalog, ["the sea is salt"], k=9)
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


@pytest.mark.parametrize("retriever", ["dense", "bm25"])
def test_more_equal_hits_than_wanted_are_ordered_by_their_ids(tmp_path: Path, retriever: str) -> None:
    documents = {f"{number:02d}": "bees sea" for number in reversed(range(40))} | {"best": "bees bees bees"}
    catalog = write(tmp_path, documents)
    (hits,) = search(tmp_path, catalog, ["bees bees"], 3, retriever)
    assert [hit["chunk_id"] for hit in hits] == ["best#0", "00#0", "01#0"]


def test_both_rankings_are_fused_by_rank(tmp_path: Path) -> None:
    catalog = write(tmp_path, DOCUMENTS)
    query = "bees in the sea"
    (found,) = search(tmp_path, catalog, [query], 3, "hybrid")
    assert brief(found) == fuse_rankings([by_vectors(DOCUMENTS, query), by_words(DOCUMENTS, query)], 3)


def test_a_query_without_a_known_word_has_no_hit_by_words(tmp_path: Path) -> None:
    catalog = write(tmp_path, DOCUMENTS)
    assert search(tmp_path, catalog, ["?!", "unheard", ""], retriever="bm25") == [[], [], []]


def test_operators_of_query_languages_are_words(tmp_path: Path) -> None:
    documents = {"x": "bees AND sea", "y": 'not "a" phrase', "z": "bees"}
    catalog = write(tmp_path, documents)
    check(tmp_path, catalog, documents, ['bees AND "sea"', "-bees", "text:bees^2", "NOT phrase*"])


def test_ids_may_have_quotation_marks(tmp_path: Path) -> None:
    documents = {"it's": "bees", 'a"b': "sea", "x' OR '1'='1": "ice"}
    before = write(tmp_path, documents)
    after = write(tmp_path, {}, before, ["it's", "x' OR '1'='1"])
    check(tmp_path, after, {'a"b': "sea"}, ["sea", "bees"])


def test_words_of_a_few_removed_documents_count_no_more(tmp_path: Path) -> None:
    documents = many(60)
    index = write(tmp_path, documents)
    for step in range(3):
        gone, new = str(step), {f"new-{step}": "bee wax " * (step + 1)}
        index = write(tmp_path, new, index, [gone])
        documents = {name: text for name, text in documents.items() if name != gone} | new
        check(tmp_path, index, documents, ["bee sea", "wax oil"])
    index = write(tmp_path, {"last": "oil"}, index)
    check(tmp_path, index, documents | {"last": "oil"}, ["bee sea", "wax oil"])


def test_versions_of_a_killed_build_are_dropped(tmp_path: Path) -> None:
    before = write(tmp_path, DOCUMENTS)
    table = open_table(str(tmp_path), before.version)
    table.restore()
    table.delete("document_id = 'b'")
    table.add(table.search().limit(2).to_arrow().select(table.schema.names))
    check(tmp_path, before, DOCUMENTS, ["bees in the sea"])
    after = write(tmp_path, {"e": "the sea of ice"}, before, ["a"])
    check(tmp_path, after, {"b": DOCUMENTS["b"], "c#0": "bees sea", "e": "the sea of ice"}, ["bees in the sea"])


@pytest.mark.parametrize(("codec", "precision"), [("flat", 1e-6), ("fp16", 1e-3), ("sq8", 2e-2)])
def test_lists_are_searched_within_the_precision_of_a_codec(tmp_path: Path, codec: str, precision: float) -> None:
    documents = many(600)
    catalog = write(tmp_path, documents, making=replace(MAKING, codec=codec), exact_chunks=100)
    assert catalog.lists == list_count(600)
    query = "bee sea ice"
    expected = dict(by_vectors(documents, query))
    (exact,), (all_lists,) = (search(tmp_path, catalog, [query], 20, exact=exact) for exact in (True, False))
    for hits in (exact, all_lists):
        assert [hit["similarity"] for hit in hits] == pytest.approx(
            [expected[hit["chunk_id"]] for hit in hits], abs=precision
        )
    if codec == "flat":
        assert (
            brief(exact)
            == [(name, pytest.approx(score, abs=1e-6)) for name, score in by_vectors(documents, query)][:20]
        )


@pytest.mark.parametrize("codec", ["flat", "sq8"])
def test_few_distinct_texts_have_lists(tmp_path: Path, codec: str) -> None:
    documents = {f"{number:03d}": ("bee sea", "ice wax")[number % 2] for number in range(300)}
    catalog = write(tmp_path, documents, making=replace(MAKING, codec=codec), exact_chunks=20)
    (hits,) = search(tmp_path, catalog, ["bee sea"], 3)
    assert [hit["chunk_id"] for hit in hits] == ["000#0", "002#0", "004#0"]


def test_an_index_that_outgrows_the_exact_search_gets_lists(tmp_path: Path) -> None:
    documents = many(400)
    few = dict(list(documents.items())[:50])
    before = write(tmp_path, few, exact_chunks=100)
    assert before.lists == 0
    rest = {name: text for name, text in documents.items() if name not in few}
    after = write(tmp_path, rest, before, exact_chunks=100)
    assert after.lists == list_count(400)
    grown = write(tmp_path, {"new": "oil oil oil oil"}, after, exact_chunks=100)
    assert grown.lists == after.lists
    (hits,) = search(tmp_path, grown, ["oil oil oil oil"], 1)
    assert hits[0]["chunk_id"] == "new#0"


def test_the_rows_of_a_table_are_read_in_ranges(tmp_path: Path) -> None:
    catalog = write(tmp_path, DOCUMENTS)
    ranges = pa.RecordBatch.from_pylist([{"start": start, "count": 3} for start in (0, 3, 6)])
    listed = rows_of(list_documents([ranges], str(tmp_path), catalog.version))
    assert sorted(row["document_id"] for row in listed) == ["a", "a", "b", "c#0"]
    texts = rows_of(read_documents([ranges], str(tmp_path), catalog.version, MAKING.overlap))
    parts = sorted((row for row in texts if row["document_id"] == "a"), key=lambda row: row["number"])
    assert " ".join(part["text"] for part in parts) == DOCUMENTS["a"]


def damage(index: Path) -> None:
    for file in (index / "chunks.lance" / "data").iterdir():
        file.write_bytes(b"not a table")


def test_a_damaged_table_is_one_line(tmp_path: Path) -> None:
    catalog = write(tmp_path, DOCUMENTS)
    damage(tmp_path)
    told = f"{tmp_path}/chunks.lance cannot be read"
    task = SearchTask(str(tmp_path), catalog.version, ("dense",), 3, 256)
    queries = pa.RecordBatch.from_pylist([{"query": "1", "text": "bees", "vector": unit("bees")}], QUERIES)
    (row,) = rows_of(search_table([queries], task))
    assert row["error"].startswith(told)
    assert "\n" not in row["error"]
    ranges = [pa.RecordBatch.from_pylist([{"start": 0, "count": 9}])]
    (row,) = rows_of(list_documents(ranges, str(tmp_path), catalog.version))
    assert row["error"].startswith(told)
    with pytest.raises(DamagedIndexError, match="cannot be read"):
        rows_of(read_documents(ranges, str(tmp_path), catalog.version, 2))


def test_a_missing_version_is_one_line(tmp_path: Path) -> None:
    write(tmp_path, DOCUMENTS)
    with pytest.raises(DamagedIndexError, match="untold index --overwrite"):
        open_table(str(tmp_path), 99)
    with pytest.raises(PlaceError, match="needs a local disk or an object store"):
        open_table("hdfs://host/index", 1)


def test_an_index_can_be_on_an_object_store(object_store: ObjectStore) -> None:
    index = f"s3://{BUCKET}/index"
    before = write(index, DOCUMENTS)
    after = write(index, {"e": "the sea of ice"}, before, ["a"])
    check(index, after, {"b": DOCUMENTS["b"], "c#0": "bees sea", "e": "the sea of ice"}, ["bees in the sea"])
    assert after.size > 0
    assert any(key.startswith("index/chunks.lance/") for key in (one.key for one in object_store.requests))


def test_the_digest_is_of_the_parameters_and_the_documents(tmp_path: Path) -> None:
    one = write(tmp_path, DOCUMENTS)
    assert replace(one, version=7, size=1).digest == one.digest
    others = [replace(one, content="other"), replace(one, making=replace(MAKING, words=7)), replace(one, lists=8)]
    assert len({one.digest, *(other.digest for other in others)}) == 4


def test_no_shard_has_more_chunks_than_the_setting(tmp_path: Path) -> None:
    rows = [{**chunk, "vector": unit(chunk["text"])} for chunk in chunks_of({"a": "one " * 38})]
    schema = pa.schema([*CHUNKS, ("vector", pa.list_(pa.float32()))])
    batches = [pa.RecordBatch.from_pylist(rows[first : first + 3], schema) for first in range(0, len(rows), 3)]
    limits = {"exact_chunks": EXACT, "chunks_per_shard": 5}
    catalog = write_table(str(tmp_path), MAKING, batches, documents=1, content="", **limits)
    ids = open_table(str(tmp_path), catalog.version).search().with_row_id(True).to_arrow()["_rowid"].to_pylist()
    # The upper half of the id of a row is the number of its file
    assert sorted(Counter(one >> 32 for one in ids).values()) == [4, 5]
