"""BM25 against bm25s (method lucene), in one shard and in several, with and without dead chunks."""

from __future__ import annotations

from collections.abc import Sequence

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.retrieval.terms import Bm25, Statistics, Terms, TermsBuilder, tokenise

Chunk = list[str]
WORDS = st.lists(st.sampled_from(["a", "b", "c", "dd", "\u00e9", "ß"]), max_size=8)
CORPUS = st.lists(WORDS, min_size=1, max_size=12)


def build(chunks: Sequence[Chunk], dead: Sequence[int] = ()) -> Terms:
    builder = TermsBuilder()
    for tokens in chunks:
        builder.add(tokens)
    lengths = np.array([len(tokens) for tokens in chunks], np.int32)
    return Terms(builder.postings(), lengths, np.array(dead, np.int32))


def statistics_of(shards: Sequence[Terms], living: Sequence[Chunk]) -> Statistics:
    terms = {term for tokens in living for term in tokens} | {"unknown"}
    mean = sum(map(len, living)) / len(living)
    return Statistics(len(living), mean, {term: sum(shard.frequency(term) for shard in shards) for term in terms})


def expected(corpus: Sequence[Chunk], query: Chunk) -> dict[int, float]:
    index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    index.index([list(tokens) for tokens in corpus], show_progress=False)
    scores = index.get_scores(query)
    return {position: float(score) for position, score in enumerate(scores) if score > 0}


def search(shards: Sequence[Terms], query: Chunk, statistics: Statistics, k: int = 99) -> dict[tuple[int, int], float]:
    found = {}
    for number, shard in enumerate(shards):
        positions, scores = Bm25(shard, statistics).search(query, k)
        found.update({(number, int(at)): float(score) for at, score in zip(positions, scores, strict=True)})
    return found


@given(CORPUS.filter(lambda corpus: any(corpus)), WORDS.filter(bool), st.integers(1, 4))
def test_scores_are_those_of_bm25s_however_many_shards(corpus: list[Chunk], query: Chunk, count: int) -> None:
    known = [word for word in query if any(word in tokens for tokens in corpus)] or ["unknown"]
    parts = [corpus[number::count] for number in range(count) if corpus[number::count]]
    shards = [build(part) for part in parts]
    found = search(shards, query, statistics_of(shards, corpus))
    scores = {shard + position * count: score for (shard, position), score in found.items()}
    oracle = {} if known == ["unknown"] else expected(corpus, known)
    assert scores == pytest.approx(oracle, rel=1e-5)


def test_three_shards_give_the_bits_of_one() -> None:
    draw = np.random.default_rng(0)
    corpus = [[f"w{word}" for word in draw.integers(0, 50, draw.integers(1, 40))] for _ in range(90)]
    query = ["w1", "w2", "w2", "w3", "w40"]
    one, three = [build(corpus)], [build(corpus[number::3]) for number in range(3)]
    whole = search(one, query, statistics_of(one, corpus))
    parts = search(three, query, statistics_of(three, corpus))
    assert {at: score for (_, at), score in whole.items()} == {
        shard + at * 3: score for (shard, at), score in parts.items()
    }


def test_dead_chunks_count_no_more() -> None:
    corpus = [["a", "b"], ["a", "a"], ["b", "c"], ["a", "c", "c"]]
    living = [corpus[0], corpus[2], corpus[3]]
    shard = build(corpus, dead=[1])
    fresh = build(living)
    found = search([shard], ["a", "c"], statistics_of([shard], living))
    again = search([fresh], ["a", "c"], statistics_of([fresh], living))
    assert {(0, {0: 0, 2: 1, 3: 2}[at]): score for (_, at), score in found.items()} == again
    assert shard.frequency("a") == 2


def test_the_best_are_in_the_order_of_positions_where_scores_are_equal() -> None:
    shard = build([["b"], ["a", "x"], ["a", "y"], ["a", "z"]])
    statistics = statistics_of([shard], [["b"], ["a", "x"], ["a", "y"], ["a", "z"]])
    positions, _ = Bm25(shard, statistics).search(["a"], 2)
    assert positions.tolist() == [1, 2]


def test_a_query_of_no_known_word_has_no_hit() -> None:
    shard = build([["a"], []])
    assert search([shard], ["b"], statistics_of([shard], [["a"], []])) == {}
    assert search([shard], [], statistics_of([shard], [["a"], []])) == {}


def test_tokens_are_words_without_case_in_any_script() -> None:
    assert tokenise("Ｆｕｌｌ-width, naïve STRASSE/Straße don't 12.5 中文") == [
        *("full", "width", "naïve", "strasse", "strasse", "don", "t", "12", "5", "中文")
    ]
