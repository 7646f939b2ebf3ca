"""Probabilities of the judge: windows, batches, and the pairs that it does not judge."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.judge import model
from untold.udfs.judge.model import SHORT_TOKENS, WINDOW_TOKENS, Judge, Judgement, cut_windows, shipped_judge
from untold.udfs.retrieval.classifying import JUDGE, find_classifier
from untold.udfs.retrieval.local_models import LocalModelFileError, open_tokenizer

BEES = "Bees make honey from nectar. They dance to show others the way to flowers."
PAIRS = [
    (BEES, "Bees make honey."),
    (BEES, "Bees dance."),
    (BEES, "Bees never make honey."),
    (BEES, "The Danube flows through Vienna."),
    ("- Vienna lies on the Danube.\n- It has two million inhabitants.", "The Danube flows through Vienna."),
    ("Water boils at 100 degrees.", "Water boils at 100 degrees."),
]
FILLER = " ".join(f"In {1500 + year} the council met {year} times in the old town hall." for year in range(60))


@pytest.fixture(scope="module")
def judge() -> Judge:
    return shipped_judge()


def entailments(found: list[Judgement]) -> list[float]:
    return [one.entailment for one in found if one.entailment is not None]


def test_stated_facts_are_more_probable_than_others(judge: Judge) -> None:
    honey, dance, never, danube, vienna, water = entailments(judge.assess(*zip(*PAIRS, strict=True)))
    assert min(honey, dance, water) > 0.5 > max(never, danube)
    assert vienna > danube


@pytest.mark.parametrize("seed", range(3))
def test_a_pair_has_one_probability_in_every_batch_and_order(judge: Judge, seed: int) -> None:
    whole = judge.assess(*zip(*PAIRS, strict=True))
    assert [judge.assess([text], [fact])[0] for text, fact in PAIRS] == whole
    order = random.Random(seed).sample(range(len(PAIRS)), len(PAIRS))
    shuffled = judge.assess(*zip(*(PAIRS[number] for number in order), strict=True))
    assert shuffled == [whole[number] for number in order]


def test_a_second_judge_has_the_same_probabilities(judge: Judge) -> None:
    again = Judge(find_classifier(JUDGE)).assess(*zip(*PAIRS, strict=True))
    assert again == judge.assess(*zip(*PAIRS, strict=True))


def test_probabilities_add_up_to_at_most_one(judge: Judge) -> None:
    long = f"{BEES} {FILLER}"
    for one in judge.assess([long] * 3, ["Bees make honey.", "Bees never dance.", "Snow is black."]):
        assert one.windows > 1
        assert one.entailment is not None
        assert one.contradiction is not None
        assert one.entailment + one.contradiction <= 1


@pytest.mark.parametrize("text", [f"{BEES} {FILLER}", f"{FILLER} {BEES}", f"{FILLER} {BEES} {FILLER}"])
def test_a_fact_is_found_in_each_part_of_a_long_text(judge: Judge, text: str) -> None:
    stated, other = judge.assess([text, FILLER], ["Bees dance to show the way."] * 2)
    assert stated.windows >= other.windows > 1
    assert stated.entailment is not None
    assert other.entailment is not None
    assert stated.entailment > 0.5 > other.entailment


def test_windows_of_a_text_without_sentences_overlap(judge: Judge) -> None:
    (found,) = judge.assess([" ".join(f"w{number:04}" for number in range(500))], ["A word occurs."])
    tokens = 1874
    least = tokens / (WINDOW_TOKENS - 3 - 4) + tokens / SHORT_TOKENS
    assert least < found.windows <= 2 * least + 4


def test_a_query_names_the_subject_of_a_text(judge: Judge) -> None:
    texts, facts = (
        ["It is 8,849 metres high."] * 2,
        ["Mount Everest is 8,849 metres high.", "Vienna lies on the Danube."],
    )
    stated, other = entailments(judge.assess(texts, facts, ["How high is Mount Everest?"] * 2))
    assert stated > 0.5 > other
    assert stated > entailments(judge.assess(texts, facts))[0]
    assert judge.assess(texts, facts, ["", ""]) == judge.assess(texts, facts)


def test_a_query_is_before_each_window_of_a_long_text(judge: Judge) -> None:
    query, text = "How high is Mount Everest?", f"{FILLER} It is 8,849 metres high."
    (found,) = judge.assess([text], ["Mount Everest is 8,849 metres high."], [query])
    assert found.windows > 1
    assert found.entailment is not None
    assert found.entailment > 0.5


def test_a_long_query_is_left_out(judge: Judge) -> None:
    query = "Why do bees, which live in hives, dance? " * 6
    assert judge.assess([BEES], ["Bees live in hives."], [query]) == judge.assess([BEES], ["Bees live in hives."])


@pytest.mark.parametrize(
    ("text", "fact", "reason"),
    [
        ("", "Bees dance.", model.EMPTY_TEXT),
        (" \n", "Bees dance.", model.EMPTY_TEXT),
        (BEES, " ", model.EMPTY_FACT),
        ("Пчёлы делают мёд.", "Bees make honey.", model.FOREIGN_TEXT),
        ("蜜蜂酿蜜。", "Bees make honey.", model.FOREIGN_TEXT),
        ("Die Bienen und die Hummeln sammeln den Nektar auf der Wiese.", "Bees fly.", model.FOREIGN_TEXT),
        (BEES, "Les abeilles et les bourdons sont dans les prés avec des fleurs.", model.FOREIGN_FACT),
        (BEES, "honey " * 250, model.LONG_FACT),
        ("\u200b", "Bees dance.", model.EMPTY_TEXT),
    ],
)
def test_a_pair_that_cannot_be_judged_has_a_reason(judge: Judge, text: str, fact: str, reason: str) -> None:
    unjudged, judged = judge.assess([text, BEES], [fact, "Bees dance."])
    assert unjudged == Judgement(None, None, 0, reason)
    assert judged.reason is None


def test_lists_of_different_length_are_an_error(judge: Judge) -> None:
    with pytest.raises(ValueError, match="2 texts, 1 facts and 2 queries"):
        judge.assess([BEES, BEES], ["Bees dance."])
    assert judge.assess([], []) == []


@given(st.lists(st.integers(0, 10), max_size=40))
def test_windows_contain_every_segment_and_overlap(sizes: list[int]) -> None:
    windows = list(cut_windows(sizes, 10))
    assert {number for first, last in windows for number in range(first, last)} == set(range(len(sizes)))
    assert all(sum(sizes[first:last]) <= 10 for first, last in windows)
    for (first, last), (after, end) in pairwise(windows):
        assert first < after <= last < end


def test_a_missing_model_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr("untold.udfs.retrieval.classifying.resources.files", lambda _: tmp_path)
    with pytest.raises(LocalModelFileError, match=r"model of the judge is missing: no file .*judge.model\.onnx"):
        find_classifier(JUDGE)


def test_the_tokenizer_neither_cuts_nor_pads() -> None:
    tokenizer = open_tokenizer(find_classifier(JUDGE).files.tokenizer)
    assert len(tokenizer.encode("word " * 3000).ids) == 3002
    assert len(tokenizer.encode("word").ids) == 3
