"""Test the candidates of a reference by words and by vectors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import LCSseq

from tests.examples import examples
from untold.udfs.recall.candidates import (
    Candidate,
    Thresholds,
    form_of,
    lexical_candidates,
    likeness,
    semantic_candidates,
    without_near_duplicates,
)
from untold.udfs.recall.fact_texts import Fact, shown_form

THRESHOLDS = Thresholds()
WORDS = ["harbour", "harbor", "harbours", "bridge", "bridges", "old", "gold", "not", "1962", "1963", "in"]
PHRASES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
FACTS = st.lists(st.builds(Fact, PHRASES, st.none() | PHRASES), max_size=8)


def facts(*texts: str) -> list[Fact]:
    return [Fact(shown_form(text)) for text in texts]


@pytest.mark.parametrize(
    ("first", "second", "words", "letters"),
    [
        ("Ryszard Boleslawski", "Richard Boleslavsky", 1 / 3, 0.7368),
        ("The colour of the harbour", "the color of the harbor", 1, 0.92),
        ("“Café” — 1963.", '"Cafe\u0301" - 1963', 1, 1),
        ("Federico Fellini", "Il Maestro", 0, 0.1875),
    ],
)
def test_known_pairs_have_the_published_similarity(first: str, second: str, words: float, letters: float) -> None:
    one, other = (form_of(fact) for fact in facts(first, second))
    assert likeness(one, other, 0.8) == (words, pytest.approx(letters, abs=5e-5))
    assert likeness(other, one, 0.8) == likeness(one, other, 0.8)


def test_anchors_count_if_both_facts_have_one() -> None:
    reference, same, alone = (
        form_of(fact)
        for fact in (
            Fact("He made films", "Ann Lee"),
            Fact("Born in Oslo", "Ann Lee"),
            Fact("Ann Lee was born in Oslo"),
        )
    )
    assert likeness(reference, same, 0.8) == (1.0, 1.0)
    assert likeness(reference, alone, 0.8)[0] < 0.3


def brute_force(references: list[Fact], generated: list[Fact], thresholds: Thresholds) -> list[list[Candidate]]:
    """Compare each pair of texts separately, without any index."""
    found = []
    for reference in references:
        near = []
        for place, fact in enumerate(generated):
            words, letters = likeness(form_of(reference), form_of(fact), thresholds.token_similarity)
            if words >= thresholds.jaccard or letters >= thresholds.lcs:
                near.append(Candidate(place, words, letters))
        near.sort(key=lambda one: (-one.jaccard, -one.lcs, one.place))
        found.append(near[: thresholds.top_k])
    return found


@examples(200)
@given(FACTS, FACTS, st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 0.7, 1.0]), st.integers(1, 4))
def test_candidates_of_all_equal_the_candidates_of_each_pair(
    references: list[Fact], generated: list[Fact], jaccard: float, lcs: float, top: int
) -> None:
    thresholds = Thresholds(jaccard=jaccard, lcs=lcs, top_k=top)
    found = lexical_candidates([*map(form_of, references)], [*map(form_of, generated)], thresholds)
    assert found == brute_force(references, generated, thresholds)


@settings(deadline=None)
@given(FACTS, FACTS, st.randoms(use_true_random=False))
def test_the_order_of_generated_facts_changes_only_ties(references: list[Fact], generated: list[Fact], random) -> None:
    shuffled = random.sample(generated, len(generated))
    values = [
        [
            [(one.jaccard, one.lcs) for one in row]
            for row in lexical_candidates([*map(form_of, references)], [*map(form_of, order)], THRESHOLDS)
        ]
        for order in (generated, shuffled)
    ]
    assert values[0] == values[1]


@settings(deadline=None)
@given(FACTS, FACTS, FACTS)
def test_an_additional_generated_fact_removes_no_candidate(
    references: list[Fact], generated: list[Fact], further: list[Fact]
) -> None:
    wide = Thresholds(top_k=100)
    before, after = (
        lexical_candidates([*map(form_of, references)], [*map(form_of, some)], wide)
        for some in (generated, [*generated, *further])
    )
    assert all(set(one) <= set(other) for one, other in zip(before, after, strict=True))


def test_words_or_letters_make_a_candidate() -> None:
    reference = facts("Ryszard Boleslawski was born in Warsaw")
    generated = facts("Il Maestro", "Richard Boleslavsky was born in Warschau", "Warsaw")
    (found,) = lexical_candidates([*map(form_of, reference)], [*map(form_of, generated)], THRESHOLDS)
    assert [one.place for one in found] == [1]
    strict = Thresholds(jaccard=1.0, lcs=0.8)
    (found,) = lexical_candidates([*map(form_of, reference)], [*map(form_of, generated)], strict)
    assert [one.lcs for one in found] == [
        LCSseq.normalized_similarity(
            "ryszard boleslawski was born in warsaw", "richard boleslavsky was born in warschau"
        )
    ]


def test_vectors_find_only_new_candidates() -> None:
    reference, *generated = map(form_of, facts("a", "b", "a", "c", "d", "e"))
    cosines = np.array([0.7, 0.9, 0.6, 0.7, np.nan])
    found = semantic_candidates(reference, generated, cosines, {1}, THRESHOLDS, 0.6)
    assert [(one.place, one.cosine) for one in found] == [(0, 0.7), (3, 0.7), (2, 0.6)]
    assert [one.place for one in semantic_candidates(reference, generated, cosines, (), Thresholds(top_k=1), 0.6)] == [
        1
    ]
    assert semantic_candidates(reference, generated, cosines, {1}, THRESHOLDS, 0.71) == []


@pytest.mark.parametrize(
    ("second", "kept"),
    [
        ("the harbor opened in 1962 beside the old mills of the town with nine gates", False),
        ("The harbour opened in 1963 beside the old mills of the town with nine gates.", True),
        ("The harbour never opened in 1962 beside the old mills of the town with nine gates.", True),
        ("The harbour didn't open in 1962 beside the old mills of the town with nine gates.", True),
        ("The harbour opened in 1962.", True),
    ],
)
def test_near_duplicates_have_the_same_numbers_and_negations(second: str, kept: bool) -> None:
    given = facts("The harbour opened in 1962 beside the old mills of the town with nine gates.", second)
    assert without_near_duplicates(given, 0.9, 0.8) == given[: 1 + kept]


def test_facts_of_one_anchor_stay_apart() -> None:
    given = [Fact("La Strada", "Federico Fellini"), Fact("Amarcord", "Federico Fellini")]
    assert without_near_duplicates(given, 0.9, 0.8) == given


def test_a_fact_is_compared_with_the_kept_facts() -> None:
    # Each fact has a similarity of 8/9 or 9/10 with its neighbors: only the fact in the middle is removed
    first, middle, last = "a b c d e f g h i", "a b c d e f g h i j", "b c d e f g h i j"
    assert without_near_duplicates(facts(first, middle, last), 0.9, 1.0) == facts(first, last)


TEXTS = st.lists(st.text(max_size=40) | st.text(alphabet="aA\u0301'\". 1½", max_size=40), max_size=5)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_any_text_is_compared(first: list[str], second: list[str]) -> None:
    references, generated = facts(*first), without_near_duplicates(facts(*second), 0.9, 0.8)
    found = lexical_candidates([*map(form_of, references)], [*map(form_of, generated)], THRESHOLDS)
    assert found == brute_force(references, generated, THRESHOLDS)
