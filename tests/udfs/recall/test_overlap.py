"""Compare the fuzzy Jaccard index with its definition.

The test uses networkx for the matching and rapidfuzz for the words.
"""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Indel

from tests.examples import examples
from untold.udfs.recall.candidates import jaccard, number_tokens, size_of_matching

Sets = list[frozenset[str]]
WORDS = st.text(alphabet="abc", min_size=1, max_size=7)
# The sets use a small vocabulary, so that they have equal and similar tokens
SETS = st.lists(WORDS, min_size=1, max_size=12).flatmap(
    lambda words: st.lists(st.frozensets(st.sampled_from(words), max_size=9), min_size=1, max_size=6)
)
# Two words with 7 and 8 characters can have a similarity of exactly 0.8, and the other values also occur
SIMILARITIES = st.sampled_from([0.0, 0.5, 0.6, 2 / 3, 0.75, 0.8, 0.9, 1.0])


def defined(first: frozenset[str], second: frozenset[str], similarity: float) -> float:
    common = first & second
    graph = nx.Graph(
        [
            (("first", one), ("second", other))
            for one in first - common
            for other in second - common
            if Indel.normalized_similarity(one, other) >= similarity
        ]
    )
    m = len(common) + len(nx.max_weight_matching(graph, maxcardinality=True))
    return m / (len(first) + len(second) - m) if m else 0.0


@given(SETS, SIMILARITIES)
def test_a_pair_has_the_defined_overlap_both_ways_round(sets: Sets, similarity: float) -> None:
    for one in sets:
        for other in sets:
            assert jaccard(one, other, similarity) == defined(one, other, similarity)
            assert jaccard(one, other, similarity) == jaccard(other, one, similarity)


@given(SETS, SETS, SIMILARITIES, st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]))
def test_all_pairs_have_the_overlap_above_the_threshold(
    first: Sets, second: Sets, similarity: float, least: float
) -> None:
    rows, columns = range(len(first)), range(len(first), len(first) + len(second))
    found = number_tokens([*first, *second], similarity).jaccard(rows, columns, least)
    for row, one in enumerate(first):
        for column, other in enumerate(second):
            wanted = defined(one, other, similarity)
            assert found[row, column] == wanted if wanted >= least else found[row, column] < least


def test_working_arrays_of_any_size_have_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(6)
    words = ["".join(generator.choice(list("abc"), 5)) for _ in range(300)]
    sets = [frozenset(generator.choice(words, 12)) for _ in range(20)]
    whole = number_tokens(sets, 0.8).jaccard(range(8), range(8, 20), 0.1)
    monkeypatch.setattr("untold.udfs.recall.candidates._CELLS", 40)
    monkeypatch.setattr("untold.udfs.recall.candidates._ROWS", 7)
    assert np.array_equal(number_tokens(sets, 0.8).jaccard(range(8), range(8, 20), 0.1), whole)
    assert (whole > 0.1).any()


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ("ryszard boleslawski", "richard boleslavsky", 1 / 3),
        ("the colour of the harbour", "the color of the harbor", 1.0),
        ("federico fellini", "il maestro", 0.0),
        ("", "", 0.0),
        ("", "word", 0.0),
    ],
)
def test_known_pairs(first: str, second: str, wanted: float) -> None:
    assert jaccard(frozenset(first.split()), frozenset(second.split()), 0.8) == wanted


def test_a_token_pairs_once() -> None:
    # There are three forms of a word in one set and two in the other, and all forms match
    assert jaccard(frozenset({"harbour", "harbours"}), frozenset({"harbor", "harbors", "harboring"}), 0.7) == 2 / 3


def test_no_sets_and_no_tokens() -> None:
    assert number_tokens([], 0.8).jaccard([], [], 0.3).shape == (0, 0)
    empty = frozenset[str]()
    assert number_tokens([empty, empty], 0.8).jaccard([0], [1], 0.0).tolist() == [[0.0]]


EDGES = st.lists(st.lists(st.integers(0, 7), max_size=5, unique=True), max_size=8)


@examples(200)
@given(EDGES, st.integers(0, 8))
def test_a_matching_is_maximum_in_both_implementations(edges: list[list[int]], plain: int) -> None:
    graph = nx.Graph([(("left", left), ("right", right)) for left, rights in enumerate(edges) for right in rights])
    wanted = len(nx.max_weight_matching(graph, maxcardinality=True))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("untold.udfs.recall.candidates._PLAIN_NODES", plain)
        assert size_of_matching(edges) == wanted


def test_a_matching_of_thousands_of_nodes() -> None:
    # A path that moves each node except one to match the last node
    assert size_of_matching([*([n, n + 1] for n in range(5_000)), [0]]) == 5_001
