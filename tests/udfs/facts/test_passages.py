"""Test that texts are cut at the ends of sentences without any loss."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.facts.claim_verdicts import cut_passages

SENTENCES = st.lists(
    st.builds(
        lambda words, end: f"Then {' '.join(words)}{end}",
        st.lists(st.sampled_from(["Ada", "sails", "a", "boat", "3.5", "e.g.", "north"]), min_size=1, max_size=9),
        st.sampled_from([".", "!", "?", ".\n", ".\n\n", "\n\n"]),
    ),
    max_size=12,
)


@given(SENTENCES, st.integers(1, 20))
def test_passages_are_the_text_in_pieces(sentences: list[str], words: int) -> None:
    text = " ".join(sentences)
    passages = list(cut_passages(text, words))
    assert " ".join(passages).split() == text.split()
    assert all(passage and passage in text for passage in passages)


@given(SENTENCES, st.integers(1, 20))
def test_no_passage_is_longer_than_wanted_but_for_a_whole_sentence(sentences: list[str], words: int) -> None:
    for passage in cut_passages(" ".join(sentences), words):
        assert len(passage.split()) <= words or list(cut_passages(passage, 1)) == [passage]


@given(SENTENCES, st.integers(1, 20))
def test_each_passage_is_as_long_as_possible(sentences: list[str], words: int) -> None:
    text = " ".join(sentences)
    passages = list(cut_passages(text, words))
    for passage, following in pairwise(passages):
        first = next(cut_passages(following, 1))
        assert len(passage.split()) + len(first.split()) > words


def test_a_short_text_is_one_unchanged_passage() -> None:
    assert list(cut_passages(" One line\n\nand  another. ", 4)) == ["One line\n\nand  another."]


@pytest.mark.parametrize("text", ["", " \n\u00a0"])
def test_a_text_without_a_word_has_none(text: str) -> None:
    assert list(cut_passages(text, 5)) == []


def test_abbreviations_and_numbers_end_no_sentence() -> None:
    text = "Dr. Mill of Lyon owns 3.5 boats. She lives in France."
    assert list(cut_passages(text, 7)) == ["Dr. Mill of Lyon owns 3.5 boats.", "She lives in France."]


def test_sentences_of_other_scripts_are_cut_and_counted() -> None:
    assert list(cut_passages("北京是首都。上海很大！दिल्ली बड़ी है। हाँ।", 9)) == [
        "北京是首都。上海很大！",
        "दिल्ली बड़ी है। हाँ।",
    ]


def test_blank_lines_end_a_sentence() -> None:
    assert list(cut_passages("Of boats\n \nAda has three of them", 3)) == ["Of boats", "Ada has three of them"]


def test_a_very_long_word_of_punctuation_is_tokenized_fast() -> None:
    """As one piece, the 300,000 characters would take minutes."""
    text = ".!?" * 100_000 + " a" * 600
    assert "".join("".join(cut_passages(text, 512)).split()) == "".join(text.split())
