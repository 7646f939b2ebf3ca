"""Which generated facts may entail a reference, before a model is asked: by words, then by vectors (section 13)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import LCSseq
from rapidfuzz.process import cdist

from untold.udfs.recall.forms import match_form, negations_of, numbers_of, tokens_of
from untold.udfs.recall.list_facts import Fact
from untold.udfs.recall.overlap import SLACK, Tokens, jaccard, number_tokens

Values = NDArray[np.float64]
# References that are held against all generated facts at once
_ROWS = 256


@dataclass(frozen=True)
class Thresholds:
    """The settings of `longrecall.*` that say what is a candidate: from `jaccard` or from `lcs` on, `top_k` at most."""

    token_similarity: float = 0.8
    jaccard: float = 0.3
    lcs: float = 0.7
    top_k: int = 3


@dataclass(frozen=True)
class Form:
    """What a fact is matched by: the text and the tokens of it all, and of its anchor; None without one."""

    text: str
    tokens: Tokens
    anchor: str | None
    anchor_tokens: Tokens


@dataclass(frozen=True)
class Candidate:
    """A generated fact that may entail a reference, by its place from 0; `cosine` is None where words found it."""

    place: int
    jaccard: float
    lcs: float
    cosine: float | None = None


def form_of(fact: Fact) -> Form:
    """What a fact is matched by."""
    return form_of_texts(fact.text, fact.anchor)


def form_of_texts(whole: str, anchor: str | None) -> Form:
    """What a fact of this full text is matched by, in their shown form both."""
    text, name = match_form(whole), match_form(anchor or "")
    return Form(text, tokens_of(text), name or None, tokens_of(name))


def likeness(reference: Form, generated: Form, token_similarity: float) -> tuple[float, float]:
    """J and L of two facts: where both have anchors, the larger of the anchors' and the full texts'.

    >>> first, second = (form_of(Fact(text)) for text in ("The colour of the harbour", "the color of the harbor"))
    >>> likeness(first, second, 0.8)
    (1.0, 0.92)
    """
    return _words(reference, generated, token_similarity), _letters(reference, generated)


def _words(reference: Form, generated: Form, token_similarity: float) -> float:
    whole = jaccard(reference.tokens, generated.tokens, token_similarity)
    if not (reference.anchor and generated.anchor):
        return whole
    return max(whole, jaccard(reference.anchor_tokens, generated.anchor_tokens, token_similarity))


def _letters(reference: Form, generated: Form) -> float:
    whole = LCSseq.normalized_similarity(reference.text, generated.text)
    if not (reference.anchor and generated.anchor):
        return whole
    return max(whole, LCSseq.normalized_similarity(reference.anchor, generated.anchor))


def lexical_candidates(
    references: Sequence[Form], generated: Sequence[Form], thresholds: Thresholds
) -> list[list[Candidate]]:
    """For each reference its candidates by rank: J, then L, descending, then the place; `top_k` of them at most."""
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


def _signs(references: Sequence[Form], generated: Sequence[Form], least: float) -> Values:
    """L of each pair, exact where it is at least `least`, else anything below."""
    cutoff = max(0.0, least - SLACK)

    def compare(first: Sequence[str], second: Sequence[str]) -> Values:
        values = cdist(first, second, scorer=LCSseq.normalized_similarity, score_cutoff=cutoff, dtype=np.float64)
        return np.asarray(values, dtype=np.float64)

    values = compare([one.text for one in references], [one.text for one in generated])
    rows, columns = ([place for place, one in enumerate(side) if one.anchor] for side in (references, generated))
    if rows and columns:
        # Those that have one alone: a cell of None is left as memory was
        own = compare([str(references[row].anchor) for row in rows], [str(generated[one].anchor) for one in columns])
        values[np.ix_(rows, columns)] = np.maximum(values[np.ix_(rows, columns)], own)
    return values


def _ranked(
    reference: Form, generated: Sequence[Form], places: Sequence[int], words: Values, thresholds: Thresholds
) -> list[Candidate]:
    """The first `top_k` of the candidates at these places. words: J of each, where it makes a candidate."""
    candidates = []
    for place in places:
        known = float(words[place])
        # Where J alone would make none it is not exact
        exact = known >= thresholds.jaccard
        j = known if exact else _words(reference, generated[place], thresholds.token_similarity)
        candidates.append(Candidate(place, j, _letters(reference, generated[place])))
    return sorted(candidates, key=lambda one: (-one.jaccard, -one.lcs, one.place))[: thresholds.top_k]


def semantic_candidates(
    reference: Form,
    generated: Sequence[Form],
    cosines: Values,
    blocked: Collection[int],
    thresholds: Thresholds,
    least: float,
) -> list[Candidate]:
    """The candidates of a reference by vectors: cosine descending, then the place; `top_k` of them at most.

    cosines: float[generated], NaN where one could not be had; `blocked`: the places of those that were shown before;
    `least`: the cosine from which on a fact is a candidate.
    """
    order = np.argsort(-cosines, kind="stable").tolist()
    places = [place for place in order if cosines[place] >= least and place not in blocked][: thresholds.top_k]
    return [
        Candidate(place, *likeness(reference, generated[place], thresholds.token_similarity), float(cosines[place]))
        for place in places
    ]


def without_near_duplicates(facts: Sequence[Fact], least: float, token_similarity: float) -> list[Fact]:
    """The generated facts in their order, without those that nearly repeat one that is kept.

    Such have a fuzzy Jaccard of `least` and more by their full texts, the same numbers and the same negations: anchors
    alone would make one fact of all that is said of somebody.
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
