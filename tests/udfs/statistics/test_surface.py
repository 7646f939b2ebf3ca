"""Compare surface scores with the libraries, called with the arguments of a coverage study."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.stem import PorterStemmer
from nltk.translate.meteor_score import exact_match, single_meteor_score, stem_match
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu import sentence_bleu

from tests.examples import examples
from untold.udfs.samples.labelled import ROUGE, SURFACE, surface_scores

WORDS = st.sampled_from(["the", "bees", "make", "making", "honey", "Honey,", "in", "Straße", "hives.", "12", "\n"])
TEXTS = st.lists(WORDS, max_size=14).map(" ".join)


class EmptyWordNet:
    def synsets(self, word: str) -> list[object]:
        return []


@examples(60)
@given(TEXTS, TEXTS)
def test_scores_equal_the_libraries(response: str, reference: str) -> None:
    found = surface_scores(response, reference)
    assert tuple(found) == SURFACE
    tokens = [re.findall(r"\w+", text.casefold()) for text in (reference, response)]
    if not all(tokens):
        assert set(found.values()) == {0.0}
        return
    rouge = RougeScorer(list(ROUGE), use_stemmer=False).score(reference, response)
    expected = {name: rouge[name].fmeasure for name in ROUGE}
    expected |= {"bleu": sentence_bleu(response, [reference]).score}
    expected |= {"meteor": single_meteor_score(*tokens, wordnet=EmptyWordNet())}
    assert found == pytest.approx(expected)


def test_meteor_matches_words_and_stems_and_no_synonyms() -> None:
    same, stems, synonyms = ("bees make honey", "bee making honey", "bees produce honey")
    scores = [surface_scores(text, same)["meteor"] for text in (same, stems, synonyms)]
    assert scores[0] == scores[1] > scores[2] > 0
    assert len(exact_match(["making"], ["make"])[0]) == 0
    assert len(stem_match(["making"], ["make"], PorterStemmer())[0]) == 1


def test_only_rouge_lsum_treats_lines_as_sentences() -> None:
    scores = surface_scores("honey is sweet\nbees are small", "bees are small\nhoney is sweet")
    assert scores["rougeLsum"] == 1.0 > scores["rougeL"]


@pytest.mark.parametrize("text", ["", " \n", "...", "?!"])
def test_a_text_without_a_word_is_like_nothing(text: str) -> None:
    assert set(surface_scores(text, "bees make honey").values()) == {0.0}
    assert set(surface_scores("bees make honey", text).values()) == {0.0}
