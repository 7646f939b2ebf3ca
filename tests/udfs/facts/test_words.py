"""Test statements with the same words, and statements that only look the same."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Indel

from untold.udfs.texts import FUNCTION_WORDS, say_same_words, words_of

WORDS = st.lists(
    st.sampled_from(["benefit", "benefits", "occur", "occurs", "weeks", "week", "not", "1912", "1913", "the", "of"]),
    max_size=5,
).map(" ".join)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("The Seine is a river in France.", "the seine: a RIVER of France"),
        ("Ada Mill owned seven boats", "Seven boats are owned by Ada Mill"),
        ("Headaches are a side effect of it", "A headache may be a side effect of it"),
        ("ｗｉｄｅ letters", "wide letters"),
        ("A b", "B, a"),
        ("It has 10⁵ parts", "It has 10^5 parts"),
    ],
)
def test_forms_of_one_statement(first: str, second: str) -> None:
    assert say_same_words(first, second)
    assert say_same_words(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("It does cause harm", "It does not cause harm"),
        ("Take it with food", "Take it without food"),
        ("She moved to Lyon", "She moved from Lyon"),
        ("It has 12 rooms", "It has 13 rooms"),
        ("Founded in 1912a", "Founded in 1912b"),
        ("Side effects include sleepiness", "Side effects include insomnia"),
        ("She owns two boats", "She owns three boats"),
        ("She owns boats", "She owns old boats"),
        ("It isn't safe", "It is safe"),
        ("It has 10⁵ parts", "It has 105 parts"),
        ("他不喜欢猫的原因是过敏症状", "他喜欢猫的原因是过敏症状"),
    ],
)
def test_statements_that_differ(first: str, second: str) -> None:
    assert not say_same_words(first, second)
    assert not say_same_words(second, first)


def test_function_words_are_neither_negations_nor_numbers() -> None:
    assert not FUNCTION_WORDS & {"no", "not", "nor", "never", "none", "without", "one", "two", "first", "half"}
    assert words_of("What is the name of it?") == {"what", "name", "it"}


@given(WORDS, WORDS)
def test_it_is_the_definition_by_brute_force(first: str, second: str) -> None:
    one, other = words_of(first), words_of(second)
    left, right = sorted(one - other), sorted(other - one)
    alike = len(left) == len(right) and any(
        all(Indel.normalized_similarity(a, b) >= 0.8 for a, b in zip(left, order, strict=True))
        for order in permutations(right)
    )
    digits = any(sign.isdigit() for word in (*left, *right) for sign in word)
    assert say_same_words(first, second) == (alike and not digits)


def test_a_word_is_a_form_of_only_one_word() -> None:
    # The word `cats` is similar to `cat`, and `cast` is similar to `cats`. Both words only match the one word `cats`
    assert not say_same_words("cat cast", "cats dogs")
    assert say_same_words("boat weeks", "boats week")
