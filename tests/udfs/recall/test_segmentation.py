"""Test the segmentation of texts into facts, and the removal of equal facts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.recall.fact_texts import Fact
from untold.udfs.recall.segmentation import choose_segmentation, cut, distinct_facts, sentences

LIST = "They are:\n- Agnès Varda\n- Jean-Luc Godard (Breathless)"
PROSE = "Dr. Varda filmed it. It rained."


@pytest.mark.parametrize(
    ("response", "references", "chosen"),
    [
        (LIST, None, "list"),
        (LIST, LIST, "list"),
        (LIST, PROSE, "atomic"),
        (PROSE, None, "sentences"),
        (PROSE, LIST, "atomic"),
        (PROSE, PROSE, "atomic"),
        ("", None, "sentences"),
        ("", PROSE, "atomic"),
    ],
)
def test_auto_mirrors_the_references(response: str, references: str | None, chosen: str) -> None:
    assert choose_segmentation("auto", response, references) == chosen


def test_the_set_segmentation_is_used() -> None:
    assert choose_segmentation("sentences", LIST, LIST) == "sentences"


def test_a_list_has_its_items_and_its_introduction() -> None:
    assert cut(LIST, "list", 10) == [Fact("", "Agnès Varda"), Fact("Breathless", "Jean-Luc Godard")]
    assert cut(f"{PROSE}\n- one\n- two", "list", 10)[:2] == [
        Fact("Dr. Varda filmed it.", free=True),
        Fact("It rained.", free=True),
    ]


def test_no_list_is_cut_by_sentences() -> None:
    assert cut(PROSE, "list", 10) == cut(PROSE, "sentences", 10)
    assert cut("- one item", "list", 10) == [Fact("", "one item")]


def test_sentences_end_with_their_lines() -> None:
    assert list(sentences("# A title\nOne “sentence”. Another\n\n - a line")) == [
        *("# A title", "One “sentence”.", "Another", "- a line")
    ]


def test_a_model_cuts_atomic_facts() -> None:
    assert cut(LIST, "atomic", 10) == []


def test_facts_of_one_form_are_merged_and_punctuation_is_not_a_fact() -> None:
    facts = [
        Fact("It rained."),
        Fact("..."),
        Fact('"it rained"'),
        Fact("rained", "It"),
        Fact(""),
        Fact("", "it rained!"),
    ]
    assert distinct_facts(facts) == [Fact("It rained."), Fact("rained", "It")]


@pytest.mark.parametrize("part", ['".', "!?", "word ", "a. ", "\u0301.", "長い文。"])
def test_every_text_takes_linear_time(part: str) -> None:
    text = part * 50_000
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@given(st.text(), st.sampled_from(["list", "sentences"]))
def test_any_text_has_facts_with_content(text: str, segmentation: str) -> None:
    assert all(fact.text for fact in distinct_facts(cut(text, segmentation, 5)))  # type: ignore[arg-type]
