"""Test filters of pairs: the removed pairs, the audited pairs, and the coverage of the interval of the audit."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.udfs.facts.test_pairs import STAGE, owner
from untold.udfs.facts.pairs import (
    LISTS,
    PAIRS,
    PairFilter,
    ask_again,
    ask_all,
    content_words,
    generate_lists,
    generate_pairs,
    is_audited,
)
from untold.udfs.llm.keys import Stage

LISTED = Stage("classify_relations", ("premise", "hypotheses"), "m", "{{ premise }} {{ hypotheses }}")
WORDS = ("tower", "harbour", "1874", "steel", "ferry", "the", "of", "was")
texts_of_words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)


def owned(texts: list[str], contexts: int, **more: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{**owner("o", contexts, len(texts) - contexts), "texts": texts, **more}])


def taken(pair_filter: PairFilter, texts: list[str], **more: Any) -> set[tuple[int, int]]:
    """Return the pairs of all texts that the filter removes."""
    source, target = (np.array(side) for side in zip(*permutations(range(len(texts)), 2), strict=True))
    found = pair_filter.of({"texts": texts, **more})(source, target)[0]
    return set(zip(source[found].tolist(), target[found].tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Tower of Osk", {"tower", "osk"}),
        ("It was not there, and nothing is.", {"nothing"}),
        ("In 2 of the 5 km", {"2", "5", "km"}),
        ("Ｆｕｌｌ width", {"full", "width"}),
        ("東京は", {"東京", "京は"}),
        ("of the", set()),
    ],
)
def test_content_words_are_tokens_less_stop_words_and_numbers_always(text: str, words: set[str]) -> None:
    assert content_words(text) == words


@given(st.lists(texts_of_words, min_size=2, max_size=6, unique=True))
def test_words_take_pairs_without_a_common_content_word(texts: list[str]) -> None:
    expected = {
        (one, other)
        for one, other in permutations(range(len(texts)), 2)
        if not set(texts[one].split()) & set(texts[other].split()) - {"the", "of", "was"}
    }
    assert taken(PairFilter("words"), texts) == expected
    assert taken(PairFilter("none"), texts) == set()


def test_vectors_filter_pairs_below_the_cosine_and_either_filters_the_union() -> None:
    texts = ["tower a", "tower b", "ferry c", "ferry d"]
    vectors = [[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], None]
    far = {(0, 1), (1, 0)}
    assert taken(PairFilter("vectors", 0.6), texts, vectors=vectors) == far
    assert taken(PairFilter("vectors", 0.61), texts, vectors=vectors) == far | {(1, 2), (2, 1)}
    apart = {(one, other) for one, other in permutations(range(4), 2) if (one < 2) != (other < 2)}
    assert taken(PairFilter("either", 0.6), texts, vectors=vectors) == far | apart


@given(st.lists(texts_of_words, min_size=2, max_size=7, unique=True), st.integers(1, 3), st.floats(0, 1))
def test_pairs_and_lists_send_the_remaining_and_the_audited_pairs(texts: list[str], size: int, share: float) -> None:
    contexts = max(1, len(texts) - 2)
    pair_filter, batch = PairFilter("words", audit_share=share), owned(texts, contexts)
    pairs = pa.Table.from_batches(generate_pairs(iter([batch]), STAGE, ask_all, pair_filter), PAIRS).to_pylist()
    apart = taken(pair_filter, texts)
    for row in pairs:
        pair = row["source"], row["target"]
        audited = is_audited(texts[pair[0]], texts[pair[1]], share)
        told = ("audit" if audited else "filtered") if pair in apart else "model"
        assert (row["judged_by"], row["request_id"] is None) == (told, told == "filtered")
    lists = pa.Table.from_batches(generate_lists(iter([batch]), LISTED, ask_all, size, pair_filter), LISTS).to_pylist()
    listed = {
        (row["source"], target): (teller, row["request_id"] is None)
        for row in lists
        for target, teller in zip(row["targets"], row["judged_by"], strict=True)
    }
    assert listed == {(r["source"], r["target"]): (r["judged_by"], r["request_id"] is None) for r in pairs}
    assert sum(len(row["targets"]) for row in lists) == len(pairs)
    assert all(len(row["targets"]) <= size for row in lists if row["request_id"])


def test_repeated_pairs_have_the_same_judge() -> None:
    texts = ["tower a", "ferry b", "tower c"]
    again = [{"source": 0, "target": 1}, {"source": 0, "target": 2}]
    batch = owned(texts, 3, again=again)
    rows = pa.Table.from_batches(
        generate_lists(iter([batch]), LISTED, ask_again, 9, PairFilter("words", audit_share=1.0)), LISTS
    )
    assert rows.select(["source", "targets", "judged_by"]).to_pylist() == [
        {"source": 0, "targets": [1, 2], "judged_by": ["audit", "model"]}
    ]


def test_an_audit_is_a_share_by_hash() -> None:
    pairs = [(f"premise {number}", f"hypothesis {number}") for number in range(20_000)]
    drawn = [is_audited(*pair, 0.05) for pair in pairs]
    assert sum(drawn) == pytest.approx(1_000, rel=0.1)
    assert drawn == [is_audited(*pair, 0.05) for pair in pairs]
    assert all(is_audited(*pair, 0.2) for pair, one in zip(pairs, drawn, strict=True) if one)
    assert not any(is_audited(*pair, 0.0) for pair in pairs)
    assert all(is_audited(*pair, 1.0) for pair in pairs)
