"""The size of a maximum matching in a bipartite graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

Edges = Sequence[Sequence[int]]
# Up to here paths in plain Python are quicker: 4 against 34 us at 10 nodes, as quick at 50, 800 against 190 us at 200
_PLAIN_NODES = 50


def size_of_matching(edges: Edges) -> int:
    """The size of a maximum matching. edges: for each left node its right nodes, from 0.

    >>> size_of_matching([[0, 1], [0], [0]])
    2
    """
    if len(edges) > _PLAIN_NODES:
        return _by_hopcroft_karp(edges)
    partners: dict[int, int] = {}
    return sum(_finds_path(edges, left, partners, set()) for left in range(len(edges)))


def _finds_path(edges: Edges, left: int, partners: dict[int, int], seen: set[int]) -> bool:
    """Matches a left node, others moving to other partners where need be. partners: left nodes by right ones."""
    for right in edges[left]:
        if right in seen:
            continue
        seen.add(right)
        if right not in partners or _finds_path(edges, partners[right], partners, seen):
            partners[right] = left
            return True
    return False


def _by_hopcroft_karp(edges: Edges) -> int:
    ends = np.cumsum([0, *map(len, edges)])
    columns = np.fromiter((right for rights in edges for right in rights), np.int64, ends[-1])
    shape = len(edges), int(columns.max(initial=0)) + 1
    graph = csr_array((np.ones(len(columns), np.int8), columns, ends), shape=shape)
    return int((maximum_bipartite_matching(graph, perm_type="column") >= 0).sum())
