"""Compare indexes on Spark with numpy and bm25s, for different partitions and histories of the corpus."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.jobs.retrieval.indexes import POISON, Indexes, best_words, chunks_of, make_corpus, names_of, nearest
from tests.udfs.retrieval.test_index_table import damage
from untold.jobs.retrieval import index_build
from untold.jobs.retrieval.index_build import CorpusError
from untold.jobs.retrieval.sources import SearchError, UnusableIndexError, catalog_in
from untold.udfs.retrieval.index_table import list_count
from untold.udfs.retrieval.ranking import Hit, fuse_rankings

QUERIES = ["bee seaway ice42", "Öl", "sees nothing of it", "ices bees bees"]
CORPUS = make_corpus(60)


@pytest.fixture
def indexes(spark: SparkSession, tmp_path: Path) -> Indexes:
    return Indexes(spark, tmp_path / "index")


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Indexes:
    """Build an index in one file."""
    made = Indexes(spark, tmp_path_factory.mktemp("whole"))
    made.make(CORPUS)
    return made


def test_hits_by_vectors_equal_numpy(whole: Indexes) -> None:
    for query, hits in whole.search(QUERIES).items():
        expected = nearest(CORPUS, query, 5)
        assert [score for _, score in hits] == pytest.approx([score for _, score in expected], abs=1e-5)
        assert names_of(hits) == names_of(expected)


def test_hits_by_words_equal_bm25s(whole: Indexes) -> None:
    for query, hits in whole.search(QUERIES, k=200, retriever="bm25").items():
        assert dict(hits) == pytest.approx(best_words(CORPUS, query), rel=1e-5)
        assert hits == sorted(hits, key=lambda hit: (-hit[1], hit[0]))


@pytest.mark.gate
def test_both_are_fused_by_their_ranks(whole: Indexes) -> None:
    rankings = [whole.search(QUERIES[:1], k=200, retriever=name)[QUERIES[0]] for name in ("dense", "bm25")]
    expected = fuse_rankings([[Hit(*hit) for hit in ranking] for ranking in rankings], 5)
    assert whole.search(QUERIES[:1], retriever="hybrid")[QUERIES[0]] == [tuple(hit) for hit in expected]


@pytest.mark.gate
def test_files_and_partitions_change_no_hit(whole: Indexes, spark: SparkSession, tmp_path: Path) -> None:
    index = Indexes(spark, tmp_path / "index", parts=5)
    index.make(dict(reversed(CORPUS.items())), chunks_per_shard=17)
    assert len(list((tmp_path / "index").glob("chunks.lance/data/*"))) > 5
    for retriever in ("dense", "bm25"):
        for query, hits in index.search(QUERIES, retriever=retriever).items():
            expected = whole.search([query], retriever=retriever)[query]
            assert names_of(hits) == names_of(expected)
            assert dict(hits) == pytest.approx(dict(expected), rel=1e-6)
    assert index.catalog is not None
    assert whole.catalog is not None
    assert index.catalog.digest == whole.catalog.digest


@pytest.mark.gate
def test_lists_are_searched_exactly_with_the_option_exact(indexes: Indexes) -> None:
    made = indexes.make(CORPUS, exact_chunks=20, chunks_per_shard=50)
    assert made.catalog is not None
    assert made.catalog.lists == list_count(len(chunks_of(CORPUS)))
    for query, hits in indexes.search(QUERIES, exact=True).items():
        assert names_of(hits) == names_of(nearest(CORPUS, query, 5))
    some = indexes.search(QUERIES[:1], nprobe=4)[QUERIES[0]]
    assert set(some) <= set(indexes.search(QUERIES[:1], k=999, exact=True)[QUERIES[0]])


def test_a_changed_corpus_embeds_only_new_texts(indexes: Indexes, spark: SparkSession) -> None:
    before = indexes.make(CORPUS).catalog
    assert before is not None
    changed = {**CORPUS, "doc-001": "bee something else", "new": "a new one"}
    del changed["doc-002"]
    made = indexes.make(changed)
    assert indexes.asked == ["a new one", "bee something else"]
    assert made.catalog is not None
    assert (made.new, made.catalog.documents) == (2, len(changed))
    fresh = Indexes(spark, indexes.folder.parent / "fresh")
    fresh.make(changed)
    assert fresh.catalog is not None
    assert fresh.catalog.digest == made.catalog.digest != before.digest
    for retriever in ("dense", "bm25", "hybrid"):
        found, expected = (one.search(QUERIES, retriever=retriever) for one in (indexes, fresh))
        for query in QUERIES:
            assert names_of(found[query]) == names_of(expected[query])
            assert dict(found[query]) == pytest.approx(dict(expected[query]), rel=1e-6)
    again = indexes.make(changed)
    assert (again.new, indexes.asked) == (0, [])
    assert again.catalog is not None
    assert again.catalog.digest == made.catalog.digest
    # A search can continue with the previous version of the index
    indexes.catalog = before
    assert names_of(indexes.search(QUERIES[:1])[QUERIES[0]]) == names_of(nearest(CORPUS, QUERIES[0], 5))


@pytest.mark.gate
@pytest.mark.parametrize("most", [0, 100])
def test_removed_documents_are_found_no_more(indexes: Indexes, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(index_build, "MOST_REMOVED", most)
    indexes.make(CORPUS)
    left = {name: text for name, text in CORPUS.items() if name[-1] not in "347"}
    made = indexes.make(left)
    assert made.catalog is not None
    assert made.catalog.chunks == len(chunks_of(left))
    for query, hits in indexes.search(QUERIES).items():
        assert names_of(hits) == names_of(nearest(left, query, 5))
    other = {"other": "a wholly new one"}
    indexes.make(other)
    assert names_of(indexes.search(QUERIES[:1])[QUERIES[0]]) == ["other#0"]


@pytest.mark.gate
def test_many_documents_of_few_texts_have_fewer_lists_than_texts(indexes: Indexes) -> None:
    documents = {f"doc-{number:03d}": ("bee sea", "ice way")[number % 2] for number in range(30)}
    for _ in range(2):
        made = indexes.make(documents, exact_chunks=20)
        assert made.catalog is not None
        assert made.catalog.chunks == 30
    assert names_of(indexes.search(["bee sea"])["bee sea"]) == names_of(nearest(documents, "bee sea", 5))


@pytest.mark.gate
def test_a_document_with_a_failed_text_is_left_out_and_named(indexes: Indexes) -> None:
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
def test_a_damaged_index_is_one_line_and_the_next_build_replaces_it(indexes: Indexes) -> None:
    indexes.make(CORPUS)
    expected = indexes.search(QUERIES)
    damage(indexes.folder)
    for retriever in ("dense", "bm25"):
        with pytest.raises(SearchError, match=rf"^{indexes.folder}/chunks.lance cannot be read") as told:
            indexes.search(QUERIES, retriever=retriever)
        assert "\n" not in str(told.value)
    made = indexes.make(CORPUS)
    assert made.damage is not None
    assert "cannot be read" in made.damage
    assert indexes.search(QUERIES) == expected


def test_an_index_of_an_earlier_version_is_refused() -> None:
    earlier = {"index": {"digest": "d", "chunks": 1, "making": {"lists": 0}, "documents": 1, "shards": []}}
    with pytest.raises(UnusableIndexError, match=r"was built by an earlier version of Untold.*--overwrite"):
        catalog_in(earlier, "place")
    assert catalog_in({"status": "running"}, "place") is None


def test_a_corpus_without_words_is_reported(indexes: Indexes) -> None:
    with pytest.raises(CorpusError, match="no document of the corpus has a word"):
        indexes.make({"a": " ", "b": ""})
