"""Indexes over Spark against numpy and bm25s: whatever the shards, the partitioning and the history of the corpus."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.jobs.retrieval.indexes import POISON, Indexes, ask, best_words, chunks_of, make_corpus, names_of, nearest
from untold.jobs.retrieval.index_build import CorpusError
from untold.jobs.retrieval.sources import Searcher, SearchError
from untold.jobs.run.folders import Workspace
from untold.udfs.retrieval.catalog import Catalog, IndexParameters, ShardEntry
from untold.udfs.retrieval.dense import count_lists
from untold.udfs.retrieval.terms import Hit, fuse_rankings

QUERIES = ["bee seaway ice42", "Öl", "sees nothing of it", "ices bees bees"]
CORPUS = make_corpus(60)


@pytest.fixture
def indexes(spark: SparkSession, tmp_path: Path) -> Indexes:
    return Indexes(spark, tmp_path / "index")


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Indexes:
    """An index of one shard."""
    made = Indexes(spark, tmp_path_factory.mktemp("whole"))
    made.make(CORPUS)
    return made


def test_hits_by_vectors_are_those_of_numpy(whole: Indexes) -> None:
    for query, hits in whole.search(QUERIES).items():
        expected = nearest(CORPUS, query, 5)
        assert [score for _, score in hits] == pytest.approx([score for _, score in expected], abs=1e-5)
        assert names_of(hits) == names_of(expected)


def test_hits_by_words_are_those_of_bm25s(whole: Indexes) -> None:
    for query, hits in whole.search(QUERIES, k=200, retriever="bm25").items():
        assert dict(hits) == pytest.approx(best_words(CORPUS, query), rel=1e-5)
        assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))


@pytest.mark.gate
def test_both_are_fused_by_their_ranks(whole: Indexes) -> None:
    rankings = [whole.search(QUERIES[:1], k=200, retriever=name)[QUERIES[0]] for name in ("dense", "bm25")]
    expected = fuse_rankings([[Hit(*hit) for hit in ranking] for ranking in rankings], 5)
    assert whole.search(QUERIES[:1], retriever="hybrid")[QUERIES[0]] == [tuple(hit) for hit in expected]


@pytest.mark.gate
@pytest.mark.parametrize("shards", [pytest.param(3, marks=pytest.mark.slow), 7])
def test_several_shards_give_the_hits_and_the_bits_of_one(whole: Indexes, indexes: Indexes, shards: int) -> None:
    count = len(chunks_of(CORPUS))
    made = indexes.make(dict(reversed(CORPUS.items())), chunks_per_shard=-(-count // shards))
    assert made.catalog is not None
    assert [shard.chunks <= -(-count // shards) for shard in made.catalog.shards] == [True] * shards
    for retriever in ("dense", "bm25"):
        assert indexes.search(QUERIES, retriever=retriever) == whole.search(QUERIES, retriever=retriever)


@pytest.mark.gate
def test_one_build_gives_the_same_files_whatever_the_partitioning(spark: SparkSession, tmp_path: Path) -> None:
    made = []
    for name, parts in (("a", 1), ("b", 5)):
        index = Indexes(spark, tmp_path / name, parts=parts)
        documents = CORPUS if parts == 1 else dict(reversed(CORPUS.items()))
        index.make(documents, chunks_per_shard=40, exact_chunks=20)
        made.append((index.files(), index.catalog and index.catalog.digest))
    assert made[0] == made[1]


@pytest.mark.gate
def test_lists_are_searched_exactly_when_asked_to(indexes: Indexes) -> None:
    made = indexes.make(CORPUS, exact_chunks=20, chunks_per_shard=50)
    assert made.catalog is not None
    assert made.catalog.making.lists == count_lists(len(chunks_of(CORPUS)))
    for query, hits in indexes.search(QUERIES, exact=True).items():
        assert names_of(hits) == names_of(nearest(CORPUS, query, 5))
    some = indexes.search(QUERIES[:1], lists=4)[QUERIES[0]]
    assert set(some) <= set(indexes.search(QUERIES[:1], k=999, exact=True)[QUERIES[0]])


@pytest.mark.gate
def test_every_shard_is_searched_in_a_task_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    shards = tuple(ShardEntry(str(number), 1, 1, 1, 1) for number in range(7))
    catalog = Catalog(IndexParameters(12, 3, "model", "flat", 0, "", 4), 7, shards)
    searcher = Searcher(Workspace(spark, str(tmp_path)), str(tmp_path), catalog, ask, str(tmp_path), 5)
    schema = pa.schema([("name", pa.string()), ("task", pa.int32()), ("error", pa.string())])
    tasks = searcher._task_a_shard(say_task, schema, "tasks").collect()
    assert sorted(row["name"] for row in tasks) == [shard.name for shard in shards]
    assert len({row["task"] for row in tasks}) == 7


def say_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The name of each shard, and the task that it is in."""
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        for name in batch.column("name").to_pylist():
            row = {"name": [name], "task": [context.partitionId()], "error": [None]}
            types = {"name": pa.string(), "task": pa.int32(), "error": pa.string()}
            yield pa.RecordBatch.from_pydict({key: pa.array(row[key], types[key]) for key in row})


@pytest.mark.slow
def test_a_grown_corpus_adds_shards_and_embeds_what_is_new_alone(indexes: Indexes, spark: SparkSession) -> None:
    indexes.make(CORPUS, chunks_per_shard=60)
    before = indexes.files()
    changed = {**CORPUS, "doc-001": "bee something else", "new": "a new one"}
    del changed["doc-002"]
    made = indexes.make(changed, chunks_per_shard=60)
    assert indexes.asked == ["a new one", "bee something else"]
    assert made.catalog is not None
    assert made.built == 1
    after = indexes.files()
    assert {name: after.get(name) for name in before} == before
    fresh = Indexes(spark, indexes.folder.parent / "fresh")
    fresh.make(changed)
    for retriever in ("dense", "bm25", "hybrid"):
        assert indexes.search(QUERIES, retriever=retriever) == fresh.search(QUERIES, retriever=retriever)
    again = indexes.make(changed, chunks_per_shard=60)
    assert (again.new, again.built, indexes.asked, indexes.files()) == (0, 0, [], after)


@pytest.mark.gate
def test_a_shard_of_which_a_tenth_is_dead_is_made_anew(indexes: Indexes, spark: SparkSession) -> None:
    indexes.make(CORPUS)
    left = {name: text for name, text in CORPUS.items() if name[-1] not in "347"}
    made = indexes.make(left)
    assert made.catalog is not None
    assert [shard.tombstones for shard in made.catalog.shards] == [None]
    assert made.catalog.chunks == made.new == len(chunks_of(left))
    fresh = Indexes(spark, indexes.folder.parent / "fresh")
    assert made.catalog == fresh.make(left).catalog


@pytest.mark.gate
def test_a_small_index_that_outgrows_the_exact_kind_is_made_of_lists(indexes: Indexes) -> None:
    few = dict(list(CORPUS.items())[:10])
    indexes.make(few, exact_chunks=60)
    made = indexes.make(CORPUS, exact_chunks=60)
    assert made.catalog is not None
    assert made.catalog.making.lists
    assert made.catalog.chunks == len(chunks_of(CORPUS))


@pytest.mark.gate
def test_many_documents_of_few_texts_have_fewer_lists_than_texts(indexes: Indexes) -> None:
    documents = {f"doc-{number:03d}": ("bee sea", "ice way")[number % 2] for number in range(30)}
    for _ in range(2):
        made = indexes.make(documents, exact_chunks=20)
        assert made.catalog is not None
        assert (made.catalog.making.lists, made.catalog.chunks) == (1, 30)
    assert names_of(indexes.search(["bee sea"])["bee sea"]) == names_of(nearest(documents, "bee sea", 5))


@pytest.mark.gate
def test_a_document_with_a_text_that_fails_is_left_out_whole_and_named(indexes: Indexes) -> None:
    documents = {**CORPUS, "bad": "bee " * 20 + POISON, "good": "sea of bees"}
    made = indexes.make(documents)
    failures = made.failures.collect()
    assert {(row["sample_id"], row["stage"], row["error_type"]) for row in failures} == {
        ("bad", "embed_text", "http_400")
    }
    assert made.failed == 1
    assert made.catalog is not None
    assert made.catalog.documents == len(documents) - 1
    assert made.catalog.chunks == len(chunks_of({**CORPUS, "good": "sea of bees"}))


@pytest.mark.gate
def test_a_damaged_shard_is_one_line_and_the_next_build_mends_it(indexes: Indexes) -> None:
    indexes.make(CORPUS, chunks_per_shard=60)
    assert indexes.catalog is not None
    expected = indexes.search(QUERIES)
    folder = indexes.folder / "shards" / indexes.catalog.shards[1].name
    (folder / "dense.faiss").write_bytes(b"")
    for retriever in ("dense", "bm25"):
        with pytest.raises(SearchError, match=rf"^the shard {folder} is damaged") as told:
            indexes.search(QUERIES, retriever=retriever)
        assert "\n" not in str(told.value)
    made = indexes.make(CORPUS, chunks_per_shard=60)
    assert made.built == 1
    assert len(made.damaged) == 1
    assert indexes.search(QUERIES) == expected


@pytest.mark.gate
def test_a_build_that_was_killed_goes_on_behind_its_last_shard(indexes: Indexes) -> None:
    indexes.make(CORPUS, chunks_per_shard=30)
    whole = indexes.files()
    assert indexes.catalog is not None
    shutil.rmtree(indexes.folder / "shards" / indexes.catalog.shards[0].name)
    kept = {file: file.stat().st_mtime_ns for file in indexes.folder.rglob("shards/*/*")}
    indexes.catalog = None
    indexes.make(CORPUS, chunks_per_shard=30)
    assert indexes.files() == whole
    assert {file: file.stat().st_mtime_ns for file in kept} == kept


def test_a_corpus_without_a_word_is_told_of(indexes: Indexes) -> None:
    with pytest.raises(CorpusError, match="no document of the corpus has a word"):
        indexes.make({"a": " ", "b": ""})
