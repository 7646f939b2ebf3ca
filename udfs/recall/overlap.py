"""Fuzzy Jaccard of token sets, of one pair or of all pairs of a sample's facts at once (methods, section 13).

J = m / (|A| + |B| - m), where m is the number of common tokens and the size of a maximum matching of the others; two of
these may pair where `Indel.normalized_similarity` reaches a threshold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Indel
from rapidfuzz.process import cdist
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


Tokens = frozenset[str]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Values = NDArray[np.float64]
# Cells of a working array, at a byte each: a task's memory does not grow with its facts
_CELLS = 1 << 24
# Tokens compared with all others in one call
_ROWS = 256
# rapidfuzz now and then drops a value that equals its cutoff, as that of 7 and 8 signs that are 0.8 alike
SLACK = 0.01
_NONE = np.empty(0, dtype=np.int64)


def jaccard(first: Tokens, second: Tokens, similarity: float) -> float:
    """J of two token sets, 0 where both are empty. `similarity`: from which on two tokens may pair.

    >>> jaccard(frozenset({"ryszard", "boleslawski"}), frozenset({"richard", "boleslavsky"}), 0.8)
    0.3333333333333333
    """
    common, left, right = first & second, sorted(first - second), sorted(second - first)
    near = [np.flatnonzero(row).tolist() for row in _similar(left, right, similarity)] if left and right else []
    matched = len(common) + size_of_matching(near)
    return matched / (len(first) + len(second) - matched) if matched else 0.0


def _similar(left: Sequence[str], right: Sequence[str], similarity: float) -> Flags:
    """bool[left, right], which may pair."""
    cutoff = max(similarity - SLACK, 0.0)
    values = cdist(left, right, scorer=Indel.normalized_similarity, score_cutoff=cutoff, dtype=np.float64)
    return np.asarray(values >= similarity)


@dataclass(frozen=True)
class TokenSets:
    """Token sets over one vocabulary.

    sets: of each set its tokens' numbers; near: of each token the others that it may pair with.
    """

    sets: tuple[Numbers, ...]
    near: tuple[Numbers, ...]

    def jaccard(self, rows: Sequence[int], columns: Sequence[int], at_least: float) -> Values:
        """J of each set of `rows` with each of `columns`, exact where it is at least `at_least`, else anything below.

        Sizes bound J before anything is matched; then what may pair with what bounds the matching from both sides, and
        in most pairs that is its size.
        """
        values = np.zeros((len(rows), len(columns)))
        width = max(1, _CELLS // max(1, len(self.near)))
        for start in range(0, len(columns), width):
            part = columns[start : start + width]
            present, sizes = self._presence(part)
            for place, row in enumerate(rows):
                values[place, start : start + width] = self._row(self.sets[row], present, sizes, at_least)
        return values

    def _presence(self, chosen: Sequence[int]) -> tuple[Flags, Numbers]:
        """bool[tokens, chosen], whether a set has a token; and the sizes of the sets."""
        present = np.zeros((len(self.near), len(chosen)), dtype=np.bool_)
        for place, one in enumerate(chosen):
            present[self.sets[one], place] = True
        return present, np.array([len(self.sets[one]) for one in chosen], dtype=np.int64)

    def _row(self, own: Numbers, present: Flags, sizes: Numbers, at_least: float) -> Values:
        """J of one set with each of those that are `present`."""
        values = np.zeros(len(sizes))
        low, high = np.minimum(sizes, len(own)), np.maximum(sizes, len(own))
        possible = np.flatnonzero((low > 0) & (low / np.maximum(high, 1) >= at_least))
        own_edges = self._edges(own)
        # As many columns at once as a working array of all edges has cells for
        width = max(1, _CELLS // max(1, len(own_edges[0])))
        for start in range(0, len(possible), width):
            some = possible[start : start + width]
            totals = len(own) + sizes[some]
            matched = self._matched(own, own_edges, present[:, some], totals, at_least)
            values[some] = matched / (totals - matched)
        return values

    def _edges(self, own: Numbers) -> tuple[Numbers, Numbers]:
        """The pairs of an own token and one that is not, which may pair; by the own one."""
        others = [self.near[token] for token in own]
        left, right = np.repeat(own, list(map(len, others))), np.concatenate(others or [_NONE])
        is_own = np.zeros(len(self.near), dtype=np.bool_)
        is_own[own] = True
        return left[~is_own[right]], right[~is_own[right]]

    def _matched(
        self, own: Numbers, edges: tuple[Numbers, Numbers], present: Flags, totals: Numbers, at_least: float
    ) -> Numbers:
        """m of one set with each of the others, exact where J is at least `at_least`."""
        common = present[own].sum(axis=0)
        left, right = edges
        if not len(left):
            return np.asarray(common)
        # An edge is there where the other set has its right end and lacks its left one, which would be common
        there = present[right] & ~present[left]
        count = there.sum(axis=0)
        lefts, rights = _ends(there, left), _ends(there, right)
        # Where no two edges share a left end, all right ends are matched, and the other way round
        matched = common + np.where(count == lefts, rights, np.where(count == rights, lefts, -1))
        open_ = np.flatnonzero(matched < common)
        most = common[open_] + np.minimum(lefts[open_], rights[open_])
        matched[open_] = common[open_]
        for column in open_[most / (totals[open_] - most) >= at_least]:
            matched[column] += _match(left[there[:, column]], right[there[:, column]])
        return np.asarray(matched)


def _ends(there: Flags, ends: Numbers) -> Numbers:
    """In each column how many different ends the edges have that are there."""
    order = np.argsort(ends, kind="stable")
    starts = np.flatnonzero(np.diff(ends[order], prepend=-1))
    return np.asarray(np.logical_or.reduceat(there[order], starts, axis=0).sum(axis=0))


def _match(left: Numbers, right: Numbers) -> int:
    """The size of a maximum matching of these edges."""
    places: dict[int, list[int]] = {}
    rights = {number: place for place, number in enumerate(np.unique(right).tolist())}
    for one, other in zip(left.tolist(), right.tolist(), strict=True):
        places.setdefault(one, []).append(rights[other])
    return size_of_matching(list(places.values()))


def number_tokens(sets: Iterable[Tokens], similarity: float) -> TokenSets:
    """The sets over their vocabulary. Two tokens are compared once at most, and only where their lengths allow it."""
    given = list(sets)
    tokens = sorted(set().union(*given), key=lambda token: (len(token), token))
    numbers = {token: number for number, token in enumerate(tokens)}
    numbered = (np.array(sorted(map(numbers.__getitem__, one)), dtype=np.int64) for one in given)
    return TokenSets(tuple(numbered), tuple(_near(tokens, similarity)))


def _near(tokens: Sequence[str], similarity: float) -> list[Numbers]:
    """For each token the others that it may pair with. tokens: by length, so that a block is even."""
    pairs: list[tuple[Numbers, Numbers]] = []
    for start in range(0, len(tokens), _ROWS):
        block = tokens[start : start + _ROWS]
        # 2 lcs / (a + b) >= s and lcs <= a make b <= a (2 - s) / s; one more, for what is rounded
        longest = len(block[-1]) * (2 - similarity) / similarity + 1 if similarity else len(tokens[-1])
        end = bisect_right(tokens, longest, key=len)
        rows, columns = np.nonzero(_similar(block, tokens[start:end], similarity))
        later = rows < columns
        pairs.append((rows[later] + start, columns[later] + start))
    firsts, seconds = (np.concatenate([pair[side] for pair in pairs] or [_NONE]) for side in (0, 1))
    both, others = np.concatenate([firsts, seconds]), np.concatenate([seconds, firsts])
    order = np.lexsort((others, both))
    ends = np.searchsorted(both[order], np.arange(1, len(tokens)))
    return np.split(others[order], ends) if tokens else []
