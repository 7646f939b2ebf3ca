"""Test the order of hits, and rank the chunks of a sample by vectors and by words."""

from __future__ import annotations

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.retrieval.ranking import RANKERS, Hit, decimals_of, fuse_rankings, rank_hits, tokenise

HITS = st.dictionaries(st.text("a\u00e9\U0001f600#0", min_size=1, max_size=3), st.sampled_from([0.0, 0.5, 1.0]))


@given(HITS, st.lists(st.integers(0, 6), min_size=30, max_size=30), st.integers(1, 5))
def test_the_best_hits_of_parts_are_the_best_hits_of_all(
    similarities: dict[str, float], parts: list[int], k: int
) -> None:
    hits = [Hit(*item) for item in similarities.items()]
    by_part: dict[int, list[Hit]] = {}
    for hit, part in zip(hits, parts, strict=False):
        by_part.setdefault(part, []).append(hit)
    rest = hits[len(parts) :]
    merged = rank_hits([*rest, *(hit for found in by_part.values() for hit in rank_hits(found, k))], k)
    assert merged == rank_hits(hits, k)


def test_equal_hits_are_in_the_order_of_their_ids_by_code_point() -> None:
    ids = ["b#0", "\U0001f600#0", "\ufb01#0", "a#10", "a#2"]
    assert [hit.chunk_id for hit in rank_hits([Hit(name, 1.0) for name in ids], 9)] == [
        "a#10",
        "a#2",
        "b#0",
        "\ufb01#0",
        "\U0001f600#0",
    ]


def test_cosines_are_compared_by_six_decimals() -> None:
    hits = [Hit("b", 0.7071068286895752), Hit("a", 0.7071067690849304), Hit("c", 0.7071079)]
    assert [hit.chunk_id for hit in rank_hits(hits, 9, decimals_of("dense"))] == ["c", "a", "b"]
    assert [hit.chunk_id for hit in rank_hits(hits, 9, decimals_of("bm25"))] == ["c", "b", "a"]


def test_fusion_sums_the_reciprocals_of_ranks() -> None:
    dense = [Hit("a", 0.9), Hit("b", 0.8), Hit("c", 0.7)]
    words = [Hit("c", 5.0), Hit("d", 4.0)]
    assert fuse_rankings([dense, words], 3) == [Hit("c", 1 / 63 + 1 / 61), Hit("a", 1 / 61), Hit("b", 1 / 62)]


def test_fusion_prefers_the_lower_id_of_two_equal_sums() -> None:
    assert [hit.chunk_id for hit in fuse_rankings([[Hit("b", 1.0)], [Hit("a", 1.0)]], 2)] == ["a", "b"]


WORDS = st.lists(st.sampled_from(["a", "b", "c", "dd", "\u00e9", "ß"]), max_size=8)
CORPUS = st.lists(WORDS, min_size=1, max_size=12).filter(any)


def rank(name: str, texts: list[list[str]], query: list[str]) -> dict[str, float]:
    chunks = [{"chunk_id": str(number), "text": " ".join(text)} for number, text in enumerate(texts)]
    (hits,) = RANKERS[name](chunks, [{"text": " ".join(query)}], 99)
    assert hits == rank_hits(hits, 99)
    return dict(hits)


@given(CORPUS, WORDS.filter(bool))
def test_scores_of_words_equal_those_of_bm25s(corpus: list[list[str]], query: list[str]) -> None:
    tokens = [tokenise(" ".join(text)) for text in corpus]
    known = [word for word in tokenise(" ".join(query)) if any(word in one for one in tokens)]
    expected = {}
    if known:
        index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
        index.index(tokens, show_progress=False)
        scores = index.get_scores(known)
        expected = {str(place): float(score) for place, score in enumerate(scores) if score > 0}
    assert rank("bm25", corpus, query) == pytest.approx(expected, rel=1e-5)


def test_a_query_without_a_known_word_has_no_hit() -> None:
    assert rank("bm25", [["a"], []], ["b"]) == {}
    assert rank("bm25", [["a"], []], []) == {}


@given(st.integers(1, 30), st.integers(0, 99))
def test_similarities_are_cosines(count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    vectors = draw.standard_normal((count, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    chunks = [{"chunk_id": f"{number:02d}", "vector": vector.tolist()} for number, vector in enumerate(vectors)]
    (hits,) = RANKERS["dense"](chunks, [{"vector": vectors[0].tolist()}], count)
    expected = sorted(enumerate(vectors @ vectors[0]), key=lambda one: (-round(one[1], 6), one[0]))
    assert [hit.chunk_id for hit in hits] == [f"{number:02d}" for number, _ in expected]
    assert [hit.similarity for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-6)


def test_tokens_are_words_without_case_in_any_script() -> None:
    assert tokenise("Ｆｕｌｌ-width, naïve STRASSE/Straße don't 12.5 中文") == [
        *("full", "width", "naïve", "strasse", "strasse", "don", "t", "12", "5", "中文")
    ]
