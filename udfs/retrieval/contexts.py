"""A sample's own contexts as its knowledge: a few chunks, all compared, a sample at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from untold.udfs.retrieval.dense import plain_search, use_one_thread
from untold.udfs.retrieval.ranking import Hit, decimals_of, depth_of, fuse_rankings, rank_hits
from untold.udfs.retrieval.terms import Bm25, Statistics, Terms, TermsBuilder, tokenise

RANKED = pa.schema(
    [
        ("sample_id", pa.string()),
        ("query", pa.string()),
        ("rank", pa.int64()),
        ("chunk_id", pa.string()),
        ("similarity", pa.float64()),
        ("document_id", pa.string()),
        ("text", pa.string()),
    ]
)
Rows = Sequence[Mapping[str, Any]]


def rank_contexts(batches: Iterable[pa.RecordBatch], k: int, retrievers: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Columns of `RANKED`: for each query of a sample its k best chunks.

    batches: sample_id, chunks list<struct<chunk_id, document_id, text, vector>>, queries list<struct<query, text,
    vector>>; vectors are null where no retriever compares them. Statistics of words are of the sample's own chunks.
    """
    use_one_thread()
    for batch in batches:
        rows = []
        for sample in batch.to_pylist():
            chunks = sorted(sample["chunks"], key=lambda chunk: chunk["chunk_id"])
            by_id = {chunk["chunk_id"]: chunk for chunk in chunks}
            for query, hits in _rank(chunks, sample["queries"], k, retrievers):
                for rank, hit in enumerate(hits, start=1):
                    chunk = {name: by_id[hit.chunk_id][name] for name in ("document_id", "text")}
                    rows.append(
                        {"sample_id": sample["sample_id"], "query": query, "rank": rank, **hit._asdict(), **chunk}
                    )
        yield pa.RecordBatch.from_pylist(rows, RANKED)


def _rank(chunks: Rows, queries: Rows, k: int, retrievers: Sequence[str]) -> Iterator[tuple[str, list[Hit]]]:
    """Each query's key, and its hits in order."""
    depth = depth_of(k, fused=len(retrievers) > 1)
    rankings = [RANKERS[name](chunks, queries, depth) for name in retrievers]
    for query, *lists in zip(queries, *rankings, strict=True):
        yield query["query"], fuse_rankings(lists, k) if len(lists) > 1 else lists[0]


def _by_vectors(chunks: Rows, queries: Rows, depth: int) -> Iterator[list[Hit]]:
    vectors, asked = (np.array([row["vector"] for row in rows], np.float32) for rows in (chunks, queries))
    for found in plain_search(vectors, asked, depth):
        hits = zip(found.positions, found.similarities.tolist(), strict=True)
        named = (Hit(chunks[at]["chunk_id"], similarity) for at, similarity in hits)
        yield rank_hits(named, depth, decimals_of("dense"))


def _by_words(chunks: Rows, queries: Rows, depth: int) -> Iterator[list[Hit]]:
    builder = TermsBuilder()
    tokens = [tokenise(chunk["text"]) for chunk in chunks]
    for one in tokens:
        builder.add(one)
    lengths = np.array(list(map(len, tokens)), np.int32)
    terms = Terms(builder.postings(), lengths, np.empty(0, np.int32))
    frequencies = {term: terms.frequency(term) for term in {token for one in tokens for token in one}}
    statistics = Statistics(len(chunks), float(lengths.mean()), frequencies)
    ranking = Bm25(terms, statistics)
    for query in queries:
        positions, scores = ranking.search(tokenise(query["text"]), depth)
        hits = zip(positions, scores.tolist(), strict=True)
        yield [Hit(chunks[at]["chunk_id"], score) for at, score in hits]


# By the name of a retriever: from chunks and queries, and how many hits are wanted, each query's hits in order
RANKERS = {"dense": _by_vectors, "bm25": _by_words}
