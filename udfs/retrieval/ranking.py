"""Rank chunks for queries: by vectors, by words (BM25), and by both. The few chunks of a sample are ranked in memory.

The chunks of an index are ranked by LanceDB (`index_table`) with the same scores and the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np

from untold.udfs.arrow import FLOAT, NUMBER, TEXT, Row, columns, over_rows
from untold.udfs.texts import compatible, tokens_in

# The constant of reciprocal rank fusion as published: Cormack, Clarke and Buettcher 2009
FUSION_RANKS = 60
# Hits of each ranking in the fusion. With 180 to 250, the first ten hits of 1,056 facts of REALSumm contain their
# document as often as with bm25. With 10 to 150, one or two facts fewer
FUSION_DEPTH = 200
# The number of compared decimals of cosines. The next decimals have rounding errors
COSINE_DECIMALS = 6
# The values of Lucene
K1, B = 1.2, 0.75
RANKED = columns(sample_id=TEXT, query=TEXT, rank=NUMBER, chunk_id=TEXT, similarity=FLOAT, document_id=TEXT, text=TEXT)
Rows = Sequence[Row]


class Hit(NamedTuple):
    """A chunk with its similarity to a query."""

    chunk_id: str
    similarity: float


def retrievers_of(retriever: str) -> tuple[str, ...]:
    """Return the rankings of a retriever.

    >>> retrievers_of("bm25"), retrievers_of("hybrid")
    (('bm25',), ('dense', 'bm25'))
    """
    return ("dense", "bm25") if retriever == "hybrid" else (retriever,)


def decimals_of(retriever: str) -> int | None:
    """Return the number of compared decimals of similarities of a retriever, None for all."""
    return COSINE_DECIMALS if retriever == "dense" else None


def rank_hits(hits: Iterable[Hit], k: int, decimals: int | None = None) -> list[Hit]:
    """Return the k best hits: similarity descending, rounded to `decimals`, then chunk_id ascending by code points.

    >>> [hit.chunk_id for hit in rank_hits([Hit("b#0", 0.5), Hit("a#1", 0.5), Hit("a#0", 0.7)], 2)]
    ['a#0', 'a#1']
    """
    return sorted(hits, key=lambda hit: (-compared(hit.similarity, decimals), hit.chunk_id))[:k]


def compared(similarity: float, decimals: int | None) -> float:
    """Return a similarity rounded to `decimals`, unchanged for None."""
    return similarity if decimals is None else round(similarity, decimals)


def cosines(vectors: Any, others: Any) -> list[float]:
    """Return the products of rows of length 1 (n x d, float64) and others (n x d, or d).

    A product does not depend on the other rows, unlike those of a matrix product.
    """
    return list(map(float, np.einsum("ij,ij->i", vectors, np.broadcast_to(others, vectors.shape))))


def depth_of(k: int, *, fused: bool) -> int:
    """Return the number of hits of each ranking for k hits in the result.

    >>> depth_of(10, fused=False), depth_of(10, fused=True), depth_of(500, fused=True)
    (10, 200, 500)
    """
    return max(k, FUSION_DEPTH) if fused else k


def fuse_rankings(rankings: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
    """Return the k best hits by reciprocal rank fusion: the sum of 1 / (60 + rank), ranks from 1.

    A single ranking is returned without a change.

    >>> fuse_rankings([[Hit("a#0", 9.0)], [Hit("b#0", 0.3), Hit("a#0", 0.2)]], 1)[0].chunk_id
    'a#0'
    """
    if len(rankings) == 1:
        return list(rankings[0][:k])
    sums: dict[str, float] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, start=1):
            sums[hit.chunk_id] = sums.get(hit.chunk_id, 0.0) + 1 / (FUSION_RANKS + rank)
    return rank_hits((Hit(*item) for item in sums.items()), k)


def tokenise(text: str) -> list[str]:
    """Return the tokens of a text, in compatible form and without case.

    Scripts without spaces have pairs of characters.

    >>> tokenise("The \ufb01rst Stra\u00dfe")
    ['the', 'first', 'strasse']
    """
    return tokens_in(compatible(text).casefold())


@over_rows(RANKED)
def rank_contexts(sample: Row, k: int, retrievers: Sequence[str]) -> Iterator[Row]:
    """Yield columns of `RANKED`: for each query of a sample the k best of the sample's own chunks.

    sample: sample_id, chunks list<struct<chunk_id, document_id, text, vector>>, queries list<struct<query, text,
    vector>>. Vectors are null if no retriever compares them. BM25 uses the frequencies of the sample's own chunks.
    """
    chunks = sorted(sample["chunks"], key=lambda chunk: chunk["chunk_id"])
    by_id = {chunk["chunk_id"]: chunk for chunk in chunks}
    for query, hits in _rank(chunks, sample["queries"], k, retrievers):
        for rank, hit in enumerate(hits, start=1):
            found = {**by_id[hit.chunk_id], **hit._asdict(), "rank": rank}
            yield {"sample_id": sample["sample_id"], "query": query, **found}


def _rank(chunks: Rows, queries: Rows, k: int, retrievers: Sequence[str]) -> Iterator[tuple[str, list[Hit]]]:
    """Yield the key of each query with its hits in order."""
    depth = depth_of(k, fused=len(retrievers) > 1)
    rankings = [RANKERS[name](chunks, queries, depth) for name in retrievers]
    for query, *lists in zip(queries, *rankings, strict=True):
        yield query["query"], fuse_rankings(lists, k)


def _rank_by_vectors(chunks: Rows, queries: Rows, depth: int) -> Iterator[list[Hit]]:
    vectors, wanted = (np.array([row["vector"] for row in rows], np.float64) for rows in (chunks, queries))
    for query in wanted:
        yield rank_hits(_named(chunks, cosines(vectors, query)), depth, decimals_of("dense"))


def _rank_by_words(chunks: Rows, queries: Rows, depth: int) -> Iterator[list[Hit]]:
    """Yield the hits of each query by BM25 in the form of Lucene (Kamphuis et al. 2020), without scores of 0."""
    counted = [Counter(tokenise(chunk["text"])) for chunk in chunks]
    lengths = [sum(counts.values()) for counts in counted]
    mean = max(sum(lengths) / len(lengths), 1e-9)
    norms = [K1 * (1 - B + B * (length / mean)) for length in lengths]
    frequencies = Counter(term for counts in counted for term in counts)
    for query in queries:
        scores = [0.0] * len(chunks)
        for term, repeats in Counter(tokenise(query["text"])).items():
            weight = log(1 + (len(chunks) - frequencies[term] + 0.5) / (frequencies[term] + 0.5))
            for place, counts in enumerate(counted):
                if count := counts[term]:
                    scores[place] += repeats * (weight * count / (count + norms[place]))
        yield rank_hits((hit for hit in _named(chunks, scores) if hit.similarity > 0), depth)


def _named(chunks: Rows, similarities: Sequence[float]) -> Iterator[Hit]:
    for chunk, similarity in zip(chunks, similarities, strict=True):
        yield Hit(chunk["chunk_id"], similarity)


# Functions by the name of a retriever. They yield the hits of each query, from chunks, queries and a number of hits
RANKERS = {"dense": _rank_by_vectors, "bm25": _rank_by_words}
