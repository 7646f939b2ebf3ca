"""Test the lookups of metrics. An index, the web and the contexts of a sample return the same columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.jobs.retrieval.indexes import POISON, SETTINGS, Indexes, ask, make_corpus, names_of, nearest
from untold.jobs.retrieval.sources import (
    FOUND,
    Knowledge,
    UnusableIndexError,
    assumed_hits,
    open_knowledge,
    stages_of_knowledge,
)
from untold.jobs.run.folders import Workspace
from untold.jobs.settings.model import Settings
from untold.jobs.settings.sections import KnowledgeSettings

CONTEXTS = {
    "s1": {"1": "bees make honey in the ice42 of spring", "b": "the sea is salt"},
    "s2": {"1": "Öl seaway " * 8},
    "s3": {"1": f"bees {POISON}", "2": "bees"},
    "s4": {},
    "s5": {"1": f"bees {POISON}", "2": f"{POISON} of the sea", "3": "bees"},
}
QUERIES = {
    "s1": ["honey of bees", "salt sea"],
    "s2": ["seaway"],
    "s3": ["bees"],
    "s4": ["bees"],
    "s5": ["bees", f"{POISON} bees"],
}


def settings_for(**given: Any) -> Settings:
    return Settings(index=SETTINGS, knowledge=KnowledgeSettings(**given))


@pytest.fixture
def samples(spark: SparkSession) -> DataFrame:
    rows = [(name, [{"id": at, "text": text} for at, text in texts.items()]) for name, texts in CONTEXTS.items()]
    return spark.createDataFrame(rows, "sample_id string, contexts array<struct<id: string, text: string>>")


def queries(spark: SparkSession) -> DataFrame:
    rows = [(name, query, len(query)) for name, texts in QUERIES.items() for query in texts]
    return spark.createDataFrame(rows, "sample_id string, query string, size int")


def by_query(found: DataFrame) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Return the rows by sample and query, in the order of their ranks. Each row has the columns of its query."""
    assert found.columns == ["sample_id", "query", "size", *FOUND]
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in found.orderBy("rank").collect():
        assert row["size"] == len(row["query"])
        rows.setdefault((row["sample_id"], row["query"]), []).append(row.asDict())
    return rows


@pytest.mark.gate
@pytest.mark.parametrize("retriever", ["dense", "hybrid"])
def test_contexts_are_the_samples_own_and_all_compared(
    spark: SparkSession, tmp_path: Path, samples: DataFrame, retriever: str
) -> None:
    settings = settings_for(source="contexts", retriever=retriever, top_k=2)
    found = by_query(Knowledge(settings, Workspace(spark, str(tmp_path)), ask, samples).retrieve(queries(spark)))
    assert len(found) == 7
    for sample in ("s1", "s2"):
        for query in QUERIES[sample]:
            hits = found[sample, query]
            expected = nearest(CONTEXTS[sample], query, 2)
            names = [hit["chunk_id"] for hit in hits]
            # With fused ranks, the order of the chunks can differ
            assert names == names_of(expected) if retriever == "dense" else set(names) == set(names_of(expected))
            assert [hit["rank"] for hit in hits] == [1, 2][: len(expected)]
            assert all(hit["text"] in " ".join(CONTEXTS[sample][hit["document_id"]].split()) for hit in hits)
    (failed,) = found["s3", "bees"]
    assert (failed["stage"], failed["error_type"], failed["rank"]) == ("embed_text", "http_400", None)
    # Each failed request is reported for all of its queries
    lost = {query: {hit["request_id"] for hit in found["s5", query]} for query in QUERIES["s5"]}
    assert [len(requests) for requests in lost.values()] == [2, 3]
    (nothing,) = found["s4", "bees"]
    assert [nothing[name] for name in FOUND] == [None] * len(FOUND)


@pytest.mark.gate
def test_an_index_is_searched_once_per_text(spark: SparkSession, tmp_path: Path) -> None:
    corpus = make_corpus(20)
    index = Indexes(spark, tmp_path / "index")
    index.make(corpus)
    settings = settings_for(source="index", index=str(tmp_path / "index"))
    rows = queries(spark)
    found = Knowledge(settings, Workspace(spark, str(tmp_path / "steps")), ask, rows, index.catalog).retrieve(rows, 3)
    for (_, query), hits in by_query(found).items():
        if POISON in query:
            assert [hit["error_type"] for hit in hits] == ["http_400"]
            continue
        assert [hit["chunk_id"] for hit in hits] == names_of(nearest(corpus, query, 3))
        assert all(hit["url"] == f"http://{hit['document_id']}" for hit in hits)


def test_the_web_gives_hits_in_its_own_order(spark: SparkSession, tmp_path: Path) -> None:
    def search(stage: str, rows: DataFrame, carry: tuple[str, ...]) -> DataFrame:
        assert stage == "web_search"
        hit = F.expr("transform(sequence(1, count), n -> struct('http://' || n as id, query || ' ' || n as text))")
        failed = F.col("query").contains("seaway")
        return rows.select(
            *carry,
            F.when(~failed, hit).alias("hits"),
            F.lit("r").alias("request_id"),
            F.when(failed, "unparsable").alias("error_type"),
            F.lit(None).cast("string").alias("error"),
        )

    rows = queries(spark)
    knowledge = Knowledge(settings_for(source="web"), Workspace(spark, str(tmp_path)), search, rows)
    found = by_query(knowledge.retrieve(rows, 2))
    assert [(hit["rank"], hit["url"], hit["text"]) for hit in found["s1", "salt sea"]] == [
        (1, "http://1", "salt sea 1"),
        (2, "http://2", "salt sea 2"),
    ]
    (failed,) = found["s2", "seaway"]
    assert (failed["stage"], failed["error_type"]) == ("web_search", "unparsable")


def test_a_plan_assumes_the_maximum_number_of_hits(spark: SparkSession) -> None:
    rows = queries(spark)
    assumed = by_query(assumed_hits(rows, settings_for(top_k=4), None))
    assert {len(hits) for hits in assumed.values()} == {4}
    assert min(len(hit["text"].split()) for hits in assumed.values() for hit in hits) >= SETTINGS.chunk_words


@pytest.mark.parametrize(
    ("given", "stages"),
    [
        ({"source": "web"}, ("web_search",)),
        ({"source": "index", "retriever": "bm25"}, ()),
        ({"source": "contexts"}, ("embed_text",)),
    ],
)
def test_the_stages_of_a_lookup_depend_on_the_settings(given: dict[str, Any], stages: tuple[str, ...]) -> None:
    assert stages_of_knowledge(settings_for(**given)) == stages


def test_a_missing_index_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnusableIndexError, match=r"^knowledge\.source=index needs an index"):
        open_knowledge(settings_for(source="index"), {})
    with pytest.raises(UnusableIndexError, match=r"has no index\. Build one with untold index"):
        open_knowledge(settings_for(source="index", index=str(tmp_path)), {})
    assert open_knowledge(settings_for(source="web"), {}) is None
