"""Compare near-duplicates with brute force: complete linkage, medoids and near pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.facts.claim_verdicts import distinct_texts
from untold.udfs.facts.reference_facts import (
    APART,
    Class,
    Vectors,
    cluster,
    medoid,
    merge_by_distance,
    merge_by_words,
    near_pairs,
    pair_distances,
)
from untold.udfs.texts import say_same_words


def random_vectors(seed: int, size: int, dimension: int = 4) -> Vectors:
    """Return rows of length 1 in a few groups, so that some rows are near other rows."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(3, dimension))
    found = centres[random.integers(0, 3, size)] + random.normal(scale=0.25, size=(size, dimension))
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def brute_force(distances: np.ndarray, threshold: float) -> list[Class]:
    """Merge the two nearest classes until no two classes are near enough, which is the definition of complete
    linkage.
    """
    classes = [[place] for place in range(len(distances))]

    def between(first: Class, second: Class) -> float:
        return max(float(distances[one, other]) for one in first for other in second)

    while len(classes) > 1:
        first, second = min(combinations(classes, 2), key=lambda pair: between(*pair))
        if between(first, second) > threshold:
            break
        classes = [one for one in classes if one not in (first, second)] + [sorted(first + second)]
    return sorted(classes)


def square(vectors: Vectors) -> np.ndarray:
    return np.round(1.0 - vectors @ vectors.T, 6)


@given(st.integers(0, 10_000), st.integers(0, 14), st.sampled_from([0.01, 0.05, 0.1, 0.3, 1.0]))
def test_classes_equal_complete_linkage(seed: int, size: int, threshold: float) -> None:
    vectors = random_vectors(seed, size)
    found = merge_by_distance([""] * size, vectors, threshold)
    assert found == brute_force(square(vectors), threshold)


def test_blocks_of_rows_are_one_matrix() -> None:
    vectors = random_vectors(1, 1100)
    wanted = square(vectors)[np.triu_indices(1100, 1)]
    assert np.array_equal(pair_distances(vectors), wanted)


@given(st.integers(0, 10_000), st.integers(0, 12), st.sampled_from([0.05, 0.25]))
def test_near_pairs_are_all_pairs_within_the_distance(seed: int, size: int, threshold: float) -> None:
    vectors = random_vectors(seed, size)
    far = square(vectors)
    wanted = [(one, other) for one, other in combinations(range(size), 2) if far[one, other] <= threshold]
    assert near_pairs(pair_distances(vectors), size, threshold) == wanted


TEXTS = ("a boat", "boats", "The boat", "no boat", "a ship", "ships")


@given(st.integers(0, 10_000), st.lists(st.sampled_from(TEXTS), max_size=9))
def test_only_texts_of_the_same_words_are_merged(seed: int, texts: list[str]) -> None:
    vectors = random_vectors(seed, len(texts))
    apart = square(vectors)
    for one, other in combinations(range(len(texts)), 2):
        if not say_same_words(texts[one], texts[other]):
            apart[one, other] = apart[other, one] = APART
    assert merge_by_words(texts, vectors, 0.3) == brute_force(apart, 0.3)


@given(st.integers(0, 10_000), st.integers(1, 8))
def test_the_medoid_is_nearest_to_the_others(seed: int, size: int) -> None:
    vectors = random_vectors(seed, size)
    sums = [
        round(sum(float(vectors[one] @ vectors[other]) for other in range(size) if other != one), 6)
        for one in range(size)
    ]
    # The medoid is the first of the largest sums
    assert medoid(vectors, range(size)) == sums.index(max(sums))


def test_of_two_the_first_is_the_medoid() -> None:
    vectors = random_vectors(3, 6)
    assert [medoid(vectors, pair) for pair in ([0, 4], [2, 5])] == [0, 2]


def test_a_distance_of_just_the_threshold_is_near_enough() -> None:
    vectors = np.array([[1.0, 0.0], [0.9, np.sqrt(1 - 0.81)]])
    assert merge_by_distance(["", ""], vectors, 0.1) == [[0, 1]]
    assert cluster(np.array([0.100001]), 2, 0.1) == [[0], [1]]


@pytest.fixture(scope="module")
def k_qa(data: Path) -> tuple[list[list[str]], dict[str, Any]]:
    """Return the distinct statements of each question in K-QA and their vectors from the embedded model."""
    from untold.udfs.retrieval.embedding import Embedder, find_model, normalised
    from untold.udfs.retrieval.local_models import LocalModelFileError

    path = data / "k_qa" / "questions_w_answers.jsonl"
    if not path.is_file():
        pytest.skip(f"no K-QA at {path}")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    questions = [distinct_texts(filter(str.strip, row["Must_have"] + row["Nice_to_have"])) for row in rows]
    texts = distinct_texts(text for question in questions for text in question)
    try:
        embedder = Embedder(find_model("minilm"))
    except LocalModelFileError as error:
        pytest.skip(str(error))
    return questions, dict(zip(texts, normalised(embedder.embed(texts)).astype(np.float64), strict=True))


def vectors_of(texts: Sequence[str], known: Mapping[str, Any]) -> Vectors:
    return np.array([known[text] for text in texts])


@pytest.mark.slow
def test_no_two_statements_of_a_question_in_k_qa_have_the_same_words(
    k_qa: tuple[list[list[str]], dict[str, Any]],
) -> None:
    questions, known = k_qa
    by_distance = 0
    for question in questions:
        texts = [text for text in question if text in known]
        vectors = vectors_of(texts, known)
        assert len(merge_by_words(texts, vectors, 0.1)) == len(texts)
        by_distance += len(texts) - len(merge_by_distance(texts, vectors, 0.1))
    # Most pairs are wrong, such as `side effects include sleepiness` and `side effects include insomnia`
    assert by_distance > 50


@pytest.mark.slow
def test_in_k_qa_one_statement_occurs_in_another_order(
    k_qa: tuple[list[list[str]], dict[str, Any]],
) -> None:
    texts = list(k_qa[1])
    classes = merge_by_words(texts, vectors_of(texts, k_qa[1]), 0.1)
    assert [[texts[place].split()[0] for place in one] for one in classes if len(one) > 1] == [["For", "Surgery"]]
