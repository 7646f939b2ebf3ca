"""Test that a missed reference has the right cause: no covering fact was a candidate, or entailment rejected it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.recall.concluding import was_shown

TEXTS = st.lists(st.sampled_from(["Bees fly.", "bees fly", "Bees sting", "“Bees sting”", "Honey"]), max_size=4)
FACTS = {"Bees fly.": 1, "bees fly": 1, "Bees sting": 2, "“Bees sting”": 2, "Honey": 3}


@given(TEXTS, st.none() | TEXTS)
def test_facts_that_differ_only_in_punctuation_are_merged(shown: list[str], covered_by: list[str] | None) -> None:
    seen = {FACTS[text] for text in shown}
    wanted = seen if covered_by is None else {FACTS[text] for text in covered_by}
    assert was_shown(shown, covered_by) == bool(seen & wanted)


def test_without_shown_texts_nothing_was_shown() -> None:
    cases: list[tuple[list[str], list[str] | None]] = [
        ([], None),
        ([], ["a"]),
        (["A."], ["a"]),
        (["b"], None),
        (["b"], []),
    ]
    assert [was_shown(shown, covered_by) for shown, covered_by in cases] == [False, False, True, True, False]
