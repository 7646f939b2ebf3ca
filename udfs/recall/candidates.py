"""Find the generated facts that may entail a reference, by words and by vectors (methods, section 13)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Indel, LCSseq
from rapidfuzz.process import cdist
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from untold.udfs.recall.fact_texts import Fact, match_form, negations_of, numbers_of, tokens_of

Edges = Sequence[Sequence[int]]
# A search for paths in plain Python is faster up to 50 nodes. It takes 4 us instead of 34 us for 10 nodes, and 800 us
# instead of 190 us for 200 nodes
_PLAIN_NODES = 50


def size_of_matching(edges: Edges) -> int:
    """Return the size of a maximum matching. edges: for each left node its right nodes, from 0.

    >>> size_of_matching([[0, 1], [0], [0]])
    2
    """
    if len(edges) > _PLAIN_NODES:
        return _by_hopcroft_karp(edges)
    partners: dict[int, int] = {}
    return sum(_finds_path(edges, left, partners, set()) for left in range(len(edges)))


def _finds_path(edges: Edges, left: int, partners: dict[int, int], seen: set[int]) -> bool:
    """Match a left node in `partners` (right to left), and move other nodes to a new partner if necessary."""
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
# Cells of a working array, one byte each. The memory of a task does not grow with its facts
_CELLS = 1 << 24
# The number of tokens in a call of `cdist`
_ROWS = 256
# rapidfuzz sometimes drops a value that equals its cutoff, such as 7 and 8 signs with a similarity of 0.8
SLACK = 0.01
_NONE = np.empty(0, dtype=np.int64)


def jaccard(first: Tokens, second: Tokens, similarity: float) -> float:
    """Return J of two token sets, 0 if both are empty. Tokens may pair from `similarity` on.

    >>> jaccard(frozenset({"ryszard", "boleslawski"}), frozenset({"richard", "boleslavsky"}), 0.8)
    0.3333333333333333
    """
    common, left, right = first & second, sorted(first - second), sorted(second - first)
    near = [np.flatnonzero(row).tolist() for row in _similar(left, right, similarity)] if left and right else []
    matched = len(common) + size_of_matching(near)
    return matched / (len(first) + len(second) - matched) if matched else 0.0


def _similar(left: Sequence[str], right: Sequence[str], similarity: float) -> Flags:
    """Return bool[left, right]: True if the tokens may pair."""
    cutoff = max(similarity - SLACK, 0.0)
    values = cdist(left, right, scorer=Indel.normalized_similarity, score_cutoff=cutoff, dtype=np.float64)
    return np.asarray(values >= similarity)


@dataclass(frozen=True)
class TokenSets:
    """The token sets of a vocabulary.

    sets: the numbers of the tokens in each set. near: the numbers of the tokens that a token may pair with.
    """

    sets: tuple[Numbers, ...]
    near: tuple[Numbers, ...]

    def jaccard(self, rows: Sequence[int], columns: Sequence[int], at_least: float) -> Values:
        """Compute the similarity J for each pair of a row and a column. Values below `at_least` are not exact.

        Sizes bound J before the matching. Possible pairs then bound the matching from both sides, and usually both
        bounds are equal.
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
        """Return bool[tokens, chosen], True if a set has a token, and the sizes of the sets."""
        present = np.zeros((len(self.near), len(chosen)), dtype=np.bool_)
        for place, one in enumerate(chosen):
            present[self.sets[one], place] = True
        return present, np.array([len(self.sets[one]) for one in chosen], dtype=np.int64)

    def _row(self, own: Numbers, present: Flags, sizes: Numbers, at_least: float) -> Values:
        """Compute the similarity J of a set with the sets in `present`."""
        values = np.zeros(len(sizes))
        low, high = np.minimum(sizes, len(own)), np.maximum(sizes, len(own))
        possible = np.flatnonzero((low > 0) & (low / np.maximum(high, 1) >= at_least))
        own_edges = self._edges(own)
        # The number of columns for which a working array of all edges fits the cells
        width = max(1, _CELLS // max(1, len(own_edges[0])))
        for start in range(0, len(possible), width):
            some = possible[start : start + width]
            totals = len(own) + sizes[some]
            matched = self._matched(own, own_edges, present[:, some], totals, at_least)
            values[some] = matched / (totals - matched)
        return values

    def _edges(self, own: Numbers) -> tuple[Numbers, Numbers]:
        """Return the pairs of a token in the set and a token that is not in the set, if the tokens may pair."""
        others = [self.near[token] for token in own]
        left, right = np.repeat(own, list(map(len, others))), np.concatenate(others or [_NONE])
        is_own = np.zeros(len(self.near), dtype=np.bool_)
        is_own[own] = True
        return left[~is_own[right]], right[~is_own[right]]

    def _matched(
        self, own: Numbers, edges: tuple[Numbers, Numbers], present: Flags, totals: Numbers, at_least: float
    ) -> Numbers:
        """Compute the number of matched tokens for each set. The number is only exact if J is at least `at_least`."""
        common = present[own].sum(axis=0)
        left, right = edges
        if not len(left):
            return np.asarray(common)
        # An edge is valid if the other set contains the right token and does not contain the left token
        there = present[right] & ~present[left]
        count = there.sum(axis=0)
        lefts, rights = _ends(there, left), _ends(there, right)
        # If no two edges share a left end, all right ends are matched, and vice versa
        matched = common + np.where(count == lefts, rights, np.where(count == rights, lefts, -1))
        open_ = np.flatnonzero(matched < common)
        most = common[open_] + np.minimum(lefts[open_], rights[open_])
        matched[open_] = common[open_]
        for column in open_[most / (totals[open_] - most) >= at_least]:
            matched[column] += _match(left[there[:, column]], right[there[:, column]])
        return np.asarray(matched)


def _ends(there: Flags, ends: Numbers) -> Numbers:
    """Return the number of distinct ends of the existing edges in each column."""
    order = np.argsort(ends, kind="stable")
    starts = np.flatnonzero(np.diff(ends[order], prepend=-1))
    return np.asarray(np.logical_or.reduceat(there[order], starts, axis=0).sum(axis=0))


def _match(left: Numbers, right: Numbers) -> int:
    """Return the size of a maximum matching of these edges."""
    places: dict[int, list[int]] = {}
    rights = {number: place for place, number in enumerate(np.unique(right).tolist())}
    for one, other in zip(left.tolist(), right.tolist(), strict=True):
        places.setdefault(one, []).append(rights[other])
    return size_of_matching(list(places.values()))


def number_tokens(sets: Iterable[Tokens], similarity: float) -> TokenSets:
    """Create the token sets. Two tokens are compared at most once, and only if their lengths allow a match."""
    given = list(sets)
    tokens = sorted(set().union(*given), key=lambda token: (len(token), token))
    numbers = {token: number for number, token in enumerate(tokens)}
    numbered = (np.array(sorted(map(numbers.__getitem__, one)), dtype=np.int64) for one in given)
    return TokenSets(tuple(numbered), tuple(_near(tokens, similarity)))


def _near(tokens: Sequence[str], similarity: float) -> list[Numbers]:
    """Return for each token the others that it may pair with. tokens: sorted by length, for uniform blocks."""
    pairs: list[tuple[Numbers, Numbers]] = []
    for start in range(0, len(tokens), _ROWS):
        block = tokens[start : start + _ROWS]
        # 2 lcs / (a + b) >= s and lcs <= a imply b <= a (2 - s) / s. One is added for rounding
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


# References that are compared with all generated facts at once


@dataclass(frozen=True)
class Thresholds:
    """The settings of `longrecall.*` for candidates. A fact needs the minimum `jaccard` or `lcs`."""

    token_similarity: float = 0.8
    jaccard: float = 0.3
    lcs: float = 0.7
    top_k: int = 3


@dataclass(frozen=True)
class MatchText:
    """The forms of a fact for matching: text and tokens, of the fact and of its anchor (None without one)."""

    text: str
    tokens: Tokens
    anchor: str | None
    anchor_tokens: Tokens


@dataclass(frozen=True)
class Candidate:
    """A generated fact that may entail a reference. `place` counts from 0, `cosine` is None for candidates by words."""

    place: int
    jaccard: float
    lcs: float
    cosine: float | None = None


def form_of(fact: Fact) -> MatchText:
    """Return the forms of a fact for matching."""
    return form_of_texts(fact.text, fact.anchor)


def form_of_texts(whole: str, anchor: str | None) -> MatchText:
    """Return the forms for matching of a fact with this full text. Both texts are in their shown form."""
    text, name = match_form(whole), match_form(anchor or "")
    return MatchText(text, tokens_of(text), name or None, tokens_of(name))


def likeness(reference: MatchText, generated: MatchText, token_similarity: float) -> tuple[float, float]:
    """Return J and L of two facts. If both have anchors, each is the larger one of anchors and full texts.

    >>> first, second = (form_of(Fact(text)) for text in ("The colour of the harbour", "the color of the harbor"))
    >>> likeness(first, second, 0.8)
    (1.0, 0.92)
    """
    return _words(reference, generated, token_similarity), _letters(reference, generated)


def _words(reference: MatchText, generated: MatchText, token_similarity: float) -> float:
    whole = jaccard(reference.tokens, generated.tokens, token_similarity)
    if not (reference.anchor and generated.anchor):
        return whole
    return max(whole, jaccard(reference.anchor_tokens, generated.anchor_tokens, token_similarity))


def _letters(reference: MatchText, generated: MatchText) -> float:
    whole = LCSseq.normalized_similarity(reference.text, generated.text)
    if not (reference.anchor and generated.anchor):
        return whole
    return max(whole, LCSseq.normalized_similarity(reference.anchor, generated.anchor))


def lexical_candidates(
    references: Sequence[MatchText], generated: Sequence[MatchText], thresholds: Thresholds
) -> list[list[Candidate]]:
    """Return at most `top_k` candidates of each reference, by J, then L, descending, then by position."""
    if not generated:
        return [[] for _ in references]
    split = len(references)
    facts = (*references, *generated)
    similarity = thresholds.token_similarity
    whole = number_tokens([one.tokens for one in facts], similarity)
    anchors = number_tokens([one.anchor_tokens for one in facts], similarity)
    columns = range(split, len(facts))
    found: list[list[Candidate]] = []
    for start in range(0, split, _ROWS):
        rows = range(start, min(start + _ROWS, split))
        words = np.maximum(*(sets.jaccard(rows, columns, thresholds.jaccard) for sets in (whole, anchors)))
        signs = _signs([references[row] for row in rows], generated, thresholds.lcs)
        near = (words >= thresholds.jaccard) | (signs >= thresholds.lcs)
        for row in rows:
            places = np.flatnonzero(near[row - start]).tolist()
            known = words[row - start]
            found.append(_ranked(references[row], generated, places, known, thresholds))
    return found


def _signs(references: Sequence[MatchText], generated: Sequence[MatchText], least: float) -> Values:
    """Return L of each pair, exact from `least` on, otherwise any smaller value."""
    cutoff = max(0.0, least - SLACK)

    def compare(first: Sequence[str], second: Sequence[str]) -> Values:
        values = cdist(first, second, scorer=LCSseq.normalized_similarity, score_cutoff=cutoff, dtype=np.float64)
        return np.asarray(values, dtype=np.float64)

    values = compare([one.text for one in references], [one.text for one in generated])
    rows, columns = ([place for place, one in enumerate(side) if one.anchor] for side in (references, generated))
    if rows and columns:
        # Only facts with an anchor, because a cell of None is not initialised
        own = compare([str(references[row].anchor) for row in rows], [str(generated[one].anchor) for one in columns])
        values[np.ix_(rows, columns)] = np.maximum(values[np.ix_(rows, columns)], own)
    return values


def _ranked(
    reference: MatchText, generated: Sequence[MatchText], places: Sequence[int], words: Values, thresholds: Thresholds
) -> list[Candidate]:
    """Return the first `top_k` candidates at these positions. words: J of each, exact if it makes a candidate."""
    candidates = []
    for place in places:
        known = float(words[place])
        # J is not exact if it does not make a candidate
        exact = known >= thresholds.jaccard
        j = known if exact else _words(reference, generated[place], thresholds.token_similarity)
        candidates.append(Candidate(place, j, _letters(reference, generated[place])))
    return sorted(candidates, key=lambda one: (-one.jaccard, -one.lcs, one.place))[: thresholds.top_k]


def semantic_candidates(
    reference: MatchText,
    generated: Sequence[MatchText],
    cosines: Values,
    blocked: Collection[int],
    thresholds: Thresholds,
    least: float,
) -> list[Candidate]:
    """Return at most `top_k` candidates of a reference by vectors: by cosine, descending, then by position.

    cosines: float[generated], NaN if missing. `blocked`: the positions of candidates that were shown before. `least`:
    the minimum cosine of a candidate.
    """
    order = np.argsort(-cosines, kind="stable").tolist()
    places = [place for place in order if cosines[place] >= least and place not in blocked][: thresholds.top_k]
    return [
        Candidate(place, *likeness(reference, generated[place], thresholds.token_similarity), float(cosines[place]))
        for place in places
    ]


def without_near_duplicates(facts: Sequence[Fact], least: float, token_similarity: float) -> list[Fact]:
    """Return the generated facts in order, without near-duplicates of earlier facts.

    Near-duplicates have a fuzzy Jaccard of at least `least` by their full texts, the same numbers and the same
    negations. The anchors are not sufficient, because all facts about a person have the same anchor.
    """
    forms = [match_form(fact.text) for fact in facts]
    sets = number_tokens(map(tokens_of, forms), token_similarity)
    marks = [(numbers_of(form), negations_of(form)) for form in forms]
    kept: list[int] = []
    everything = range(len(facts))
    for start in range(0, len(facts), _ROWS):
        rows = everything[start : start + _ROWS]
        near = sets.jaccard(rows, everything, least) >= least
        for row in rows:
            if not any(near[row - start, one] and marks[one] == marks[row] for one in kept):
                kept.append(row)
    return [facts[row] for row in kept]
