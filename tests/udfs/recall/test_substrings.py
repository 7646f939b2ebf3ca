"""Compare the baselines that need no model with the search of Python and with difflib."""

from __future__ import annotations

from difflib import SequenceMatcher

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from untold.udfs.recall.concluding import contained, share_common

TEXTS = st.lists(st.text(alphabet="ab ", max_size=25) | st.text(max_size=12), max_size=4)


def defined(reference: str, generated: list[str], least: float) -> bool:
    sizes = [
        SequenceMatcher(None, reference, text, autojunk=False).find_longest_match().size / len(reference)
        for text in generated
        if reference
    ]
    return max(sizes, default=0.0) >= least > 0


@examples(400)
@given(TEXTS, TEXTS, st.sampled_from([0.1, 0.4, 0.5, 0.9, 1.0]))
def test_a_reference_is_recalled_by_its_longest_common_substring(
    references: list[str], generated: list[str], least: float
) -> None:
    references, generated = ([text.replace("\0", "") for text in texts] for texts in (references, generated))
    found = share_common(references, generated, least)
    assert found == [defined(reference, generated, least) for reference in references]


def test_a_substring_is_inside_one_text() -> None:
    assert share_common(["abcdefghij"], ["xxabc", "defxx"]) == [False]
    assert share_common(["abcdefghij"], ["xxabcdxx"]) == [True]
    assert share_common(["abcde", "ab"], []) == [False, False]


@pytest.mark.parametrize("part", ["ab", "a", "\U0001f600\u0301", "abcdefghijklmnop "])
def test_every_text_takes_linear_time(part: str) -> None:
    long = part * (200_000 // len(part))
    assert share_common([long, "zz" + long[:2] + "zzzz"], [long[1:], long[: len(part) * 9]]) == [True, False]


def test_a_text_is_contained_in_one_generated() -> None:
    assert contained(["ann lee", "lee b", "", "ann"], ["said ann lee", "bob"]) == [True, False, False, True]
    assert contained(["ann"], []) == [False]
