"""The order of hits: how lists of several shards become one, and two retrievers' lists one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Of reciprocal rank fusion as published (Cormack, Clarke, Buettcher 2009): it keeps the first ranks from deciding alone
FUSION_RANKS = 60
# What each ranking gives to the fusion. Chosen on the facts of REALSumm: at 180 to 250 as many of 1,056 find their own
# document among the first ten as by words alone, at 10 to 150 one or two fewer
FUSION_DEPTH = 200
# Decimals by which cosines are compared: beyond them it depends on the kernel that summed the products, and texts whose
# cosines are equal by arithmetic would be ranked by rounding errors
COSINE_DECIMALS = 6


class Hit(NamedTuple):
    """A chunk as a query found it."""

    chunk_id: str
    similarity: float


def decimals_of(retriever: str) -> int | None:
    """The decimals that similarities of a retriever are compared by; None: all. What is fused is no cosine."""
    return COSINE_DECIMALS if retriever == "dense" else None


def rank_hits(hits: Iterable[Hit], k: int, decimals: int | None = None) -> list[Hit]:
    """The k best hits: similarity descending, as far as `decimals` tell, then chunk_id ascending by code points.

    The order is total, so that the best of all shards' best are those of one index over everything.

    >>> [hit.chunk_id for hit in rank_hits([Hit("b#0", 0.5), Hit("a#1", 0.5), Hit("a#0", 0.7)], 2)]
    ['a#0', 'a#1']
    """

    def place(hit: Hit) -> tuple[float, str]:
        return -(hit.similarity if decimals is None else round(hit.similarity, decimals)), hit.chunk_id

    return sorted(hits, key=place)[:k]


def depth_of(k: int, *, fused: bool) -> int:
    """How many hits of a ranking are wanted, for k hits in the end.

    >>> depth_of(10, fused=False), depth_of(10, fused=True), depth_of(500, fused=True)
    (10, 200, 500)
    """
    return max(k, FUSION_DEPTH) if fused else k


def fuse_rankings(rankings: Iterable[Sequence[Hit]], k: int) -> list[Hit]:
    """The k best hits of several ranked lists by reciprocal rank fusion: the sum of 1 / (60 + rank), ranks from 1.

    >>> fuse_rankings([[Hit("a#0", 9.0)], [Hit("b#0", 0.3), Hit("a#0", 0.2)]], 1)[0].chunk_id
    'a#0'
    """
    sums: dict[str, float] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, start=1):
            sums[hit.chunk_id] = sums.get(hit.chunk_id, 0.0) + 1 / (FUSION_RANKS + rank)
    return rank_hits((Hit(*item) for item in sums.items()), k)
