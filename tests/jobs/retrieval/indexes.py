"""Indexes of documents in memory with known vectors, and the expected hits of searches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.fakes.lookups import vector_of
from untold.jobs.retrieval.index_build import IndexBuild, IndexBuilder
from untold.jobs.retrieval.sources import distinct_queries, search_index
from untold.jobs.run.folders import Workspace
from untold.jobs.settings.sections import IndexSettings
from untold.udfs.retrieval.chunks import chunk_id, chunk_text
from untold.udfs.retrieval.index_table import Catalog, SearchTask
from untold.udfs.retrieval.ranking import retrievers_of, tokenise

WORDS = 12
OVERLAP = 3
SETTINGS = IndexSettings(chunk_words=WORDS, chunk_overlap=OVERLAP)
POISON = "poison"
SCHEMA = "document_id string, title string, url string, text string, content string"


def make_corpus(count: int, seed: int = 0) -> dict[str, str]:
    """Return documents with one to four chunks and few distinct words. Many texts are similar, and some are equal."""
    draw = np.random.default_rng(seed)
    words = [f"{first}{second}" for first in ("bee", "sea", "ice", "Öl") for second in ("", "s", "way", "42")]
    texts = [" ".join(draw.choice(words, size=draw.integers(1, 36))) for _ in range(count)]
    # Several documents have the same text
    return {f"doc-{number:03d}": texts[number if number % 5 else number % 10] for number in range(count)}


def _embed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            vector = np.array(vector_of(row["text"]), np.float32)
            failed = POISON in row["text"]
            given = None if failed else (vector / np.linalg.norm(vector)).tolist()
            error = ("http_400", "HTTP 400") if failed else (None, None)
            yield pa.RecordBatch.from_pydict(
                {
                    "key": [row["key"]],
                    "vector": pa.array([given], pa.list_(pa.float32())),
                    "request_id": [f"{row['kind']} {row['text']}"],
                    "error_type": pa.array([error[0]], pa.string()),
                    "error": pa.array([error[1]], pa.string()),
                }
            )


def ask(stage: str, rows: DataFrame, carry: tuple[str, ...]) -> DataFrame:
    """Return the vectors of the model server, of length 1, and an error for a text with the word poison."""
    assert stage == "embed_text"
    (key,) = carry
    schema = "key string, vector array<float>, request_id string, error_type string, error string"
    return rows.withColumnRenamed(key, "key").mapInArrow(_embed, schema).withColumnRenamed("key", key)


@dataclass
class Indexes:
    """Build, update and search an index in a folder."""

    spark: SparkSession
    folder: Path
    settings: IndexSettings = SETTINGS
    parts: int = 2
    catalog: Catalog | None = None
    asked: list[str] = field(default_factory=list)
    steps: int = 0

    def workspace(self) -> Workspace:
        self.steps += 1
        return Workspace(self.spark, str(self.folder / f"steps-{self.steps}"))

    def make(self, documents: Mapping[str, str], **changed: Any) -> IndexBuild:
        """Build the index or update it, and record the texts in the requests for vectors."""
        rows = [(name, None, f"http://{name}", text, text) for name, text in documents.items()]
        frame = self.spark.createDataFrame(rows, SCHEMA).repartition(self.parts)
        settings = self.settings.model_copy(update=changed)
        builder = IndexBuilder(self.workspace(), str(self.folder), settings, "model", self._ask)
        made = builder.build(frame, self.catalog)
        self.catalog = made.catalog
        return made

    def _ask(self, stage: str, rows: DataFrame, carry: tuple[str, ...]) -> DataFrame:
        self.asked = sorted(row["text"] for row in rows.select("text").collect())
        return ask(stage, rows, carry)

    def search(
        self, queries: Sequence[str], k: int = 5, retriever: str = "dense", *, nprobe: int = 256, exact: bool = False
    ) -> dict[str, list[tuple[str, float]]]:
        """Return the hits of each query in order."""
        assert self.catalog is not None
        task = SearchTask(str(self.folder), self.catalog.version, retrievers_of(retriever), k, nprobe, exact)
        frame = self.spark.createDataFrame([(query,) for query in queries], "text string")
        asked = distinct_queries(frame, "text")
        hits, _ = search_index(self.workspace(), ask, task, asked)
        texts = asked.select("query", F.col("text").alias("asked"))
        found: dict[str, list[tuple[str, float]]] = {query: [] for query in queries}
        for row in hits.join(texts, on="query", how="inner").orderBy("asked", "rank").collect():
            document, _, _ = row["chunk_id"].rpartition("#")
            assert (row["document_id"], row["url"]) == (document, f"http://{document}")
            found[row["asked"]].append((row["chunk_id"], row["similarity"]))
            assert row["rank"] == len(found[row["asked"]])
        return found


def chunks_of(documents: Mapping[str, str]) -> dict[str, str]:
    """Return the chunks of the documents by id."""
    return {
        chunk_id(name, number): chunk
        for name, text in documents.items()
        for number, chunk in enumerate(chunk_text(text, WORDS, OVERLAP))
    }


def nearest(documents: Mapping[str, str], query: str, k: int) -> list[tuple[str, float]]:
    """Return the nearest chunks, computed with numpy. They are sorted by descending similarity and then by id."""
    chunks = chunks_of(documents)
    vectors = np.array([vector_of(text) for text in chunks.values()], np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    asked = np.array(vector_of(query), np.float32)
    scores = vectors.astype(np.float64) @ (asked / np.linalg.norm(asked)).astype(np.float64)
    ranked = sorted(zip(chunks, scores.tolist(), strict=True), key=lambda hit: (-round(hit[1], 6), hit[0]))
    return ranked[:k]


def best_words(documents: Mapping[str, str], query: str) -> dict[str, float]:
    """Return the positive scores of the chunks, computed with bm25s over all of the chunks."""
    chunks = chunks_of(documents)
    index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    index.index([tokenise(text) for text in chunks.values()], show_progress=False)
    known = {token for text in chunks.values() for token in tokenise(text)}
    tokens = [token for token in tokenise(query) if token in known]
    scores = index.get_scores(tokens) if tokens else []
    return {name: float(score) for name, score in zip(chunks, scores, strict=False) if score > 0}


def names_of(hits: Iterable[tuple[str, float]]) -> list[str]:
    return [name for name, _ in hits]
