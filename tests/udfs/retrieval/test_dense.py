"""Search by vectors against numpy: exact, through lists, in several shards, with equal texts, ties and dead chunks."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from untold.udfs.retrieval.dense import (
    Dense,
    Probing,
    count_lists,
    make_exact,
    open_index,
    plain_search,
    train_lists,
    use_one_thread,
)

NONE = np.empty(0, np.int32)
EXACT = Probing(exact=True)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    use_one_thread()


def unit(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def draw(count: int, dimension: int = 16, seed: int = 0) -> npt.NDArray[np.float32]:
    return unit(np.random.default_rng(seed).standard_normal((count, dimension)))


def flat(vectors: npt.NDArray[np.float32]) -> faiss.Index:
    index = make_exact(vectors.shape[1])
    index.add(vectors)
    return index


def shard(index: faiss.Index, dead: tuple[int, ...] = ()) -> Dense:
    return Dense(index, np.arange(index.ntotal, dtype=np.int32), np.array(dead, np.int32))


# Few values, so that many vectors are equally near
STEPS = st.lists(st.tuples(*[st.integers(-1, 1)] * 3), min_size=1, max_size=20)


@given(STEPS, st.lists(st.integers(0, 19), min_size=1, max_size=30), st.sets(st.integers(0, 29)), st.integers(1, 6))
@examples(60)
def test_chunks_are_those_of_numpy(
    steps: list[tuple[int, ...]], given_texts: list[int], given_dead: set[int], k: int
) -> None:
    """Whole numbers, so that products are exact and ties are ties: equal texts, equal vectors and dead chunks."""
    vectors, numbers = np.array(steps, np.float32), dict[int, int]()
    texts = [numbers.setdefault(text % len(steps), len(numbers)) for text in given_texts]
    index = flat(vectors[list(numbers)])
    dead = np.array(sorted(at for at in given_dead if at < len(texts)), np.int32)
    query = np.array([[1, 1, 0], [0, 0, 0]], np.float32)
    found = list(Dense(index, np.array(texts, np.int32), dead).search(query, k, EXACT))
    for row, one in enumerate(found):
        scores = vectors[list(numbers)][texts] @ query[row]
        living = [at for at in range(len(texts)) if at not in dead]
        expected = sorted(living, key=lambda at: (-scores[at], at))[:k]
        assert one.positions.tolist() == expected
        assert one.similarities.tolist() == scores[expected].tolist()


@pytest.mark.parametrize("codec", ["flat", "fp16", "sq8"])
def test_several_shards_of_one_training_are_one_index(codec: str, tmp_path: Path) -> None:
    """The same chunks and the same bits, read from mapped files."""
    vectors, queries = draw(3_000), draw(20, seed=1)
    faiss.write_index(train_lists(vectors, 32, codec), str(tmp_path / "coarse.faiss"))

    def search(parts: list[npt.NDArray[np.int64]], probing: Probing) -> list[list[tuple[float, int]]]:
        merged: list[list[tuple[float, int]]] = [[] for _ in queries]
        for number, part in enumerate(parts):
            index = open_index(str(tmp_path / "coarse.faiss"), mapped=False)
            index.add(vectors[part])
            path = str(tmp_path / f"{len(parts)}-{number}.faiss")
            faiss.write_index(index, path)
            for row, found in enumerate(shard(open_index(path)).search(queries, 10, probing)):
                merged[row] += zip((-found.similarities).tolist(), part[found.positions].tolist(), strict=True)
        return [sorted(row)[:10] for row in merged]

    for probing in (Probing(lists=4), EXACT):
        one, *others = (search(np.array_split(np.arange(3_000), count), probing) for count in (1, 3, 7))
        assert others == [one, one]
    if codec == "flat":
        # Last of the loop: every list was visited, so that it is what numpy finds
        products = vectors @ queries.T
        nearest = [sorted(range(3_000), key=lambda at: (-products[at, row], at))[:10] for row in range(20)]
        assert [[at for _, at in row] for row in one] == nearest


# A half has 11 bits; 8 bits of a residual are a 256th of its range in each of 16 dimensions
@pytest.mark.parametrize(("codec", "precision"), [("flat", 1e-6), ("fp16", 1e-3), ("sq8", 2e-2)])
def test_all_lists_are_searched_as_numpy_does_within_a_codecs_precision(codec: str, precision: float) -> None:
    vectors, queries = draw(3_000), draw(20, seed=1)
    index = train_lists(vectors, 32, codec)
    index.add(vectors)
    # What the codec made of them: the search has to find the best of these
    index.make_direct_map()
    stored = index.reconstruct_n(0, len(vectors))
    for query, found in zip(queries, shard(index).search(queries, 10, EXACT), strict=True):
        best = np.sort(stored @ query)[::-1][:10]
        assert found.similarities == pytest.approx(best, abs=1e-5)
        assert found.similarities == pytest.approx(vectors[found.positions] @ query, abs=precision)


def test_training_gives_the_same_bytes_on_one_thread_and_on_two() -> None:
    made = []
    for threads in (1, 2):
        faiss.omp_set_num_threads(threads)
        made.append(faiss.serialize_index(train_lists(draw(2_000), 32, "sq8")).tobytes())
    assert made[0] == made[1]


@pytest.mark.parametrize("codec", ["flat", "fp16", "sq8"])
def test_one_list_can_be_trained_on_two_vectors_or_one(codec: str) -> None:
    for count in (1, 2):
        vectors = draw(count)
        index = train_lists(vectors, 1, codec)
        index.add(vectors)
        (found,) = shard(index).search(vectors[:1], 1, Probing())
        assert found.positions.tolist() == [0]
        assert found.similarities == pytest.approx([1.0], abs=2e-2)


def test_dead_chunks_are_passed_over_in_lists_as_well() -> None:
    vectors = draw(2_000)
    index = train_lists(vectors, 32, "flat")
    index.add(vectors)
    dead = tuple(range(0, 2_000, 2))
    for probing in (Probing(lists=8), EXACT):
        (found,) = shard(index, dead).search(vectors[:1], 10, probing)
        assert len(found.positions) == 10
        assert all(found.positions % 2)
    (alive,) = shard(index).search(vectors[:1], 1, EXACT)
    assert alive.positions.tolist() == [0]


def test_an_index_without_a_living_chunk_finds_nothing() -> None:
    index = flat(draw(3))
    (found,) = shard(index, (0, 1, 2)).search(draw(1), 2, EXACT)
    assert found.positions.tolist() == []


def test_a_batch_of_queries_gives_the_bits_of_single_ones() -> None:
    vectors, queries = draw(500, 384), draw(60, 384, seed=1)
    together = list(shard(flat(vectors)).search(queries, 5, EXACT))
    alone = [next(iter(shard(flat(vectors)).search(query[None], 5, EXACT))) for query in queries]
    assert [found.similarities.tolist() for found in together] == [found.similarities.tolist() for found in alone]


def test_lists_grow_with_the_root_of_the_chunks() -> None:
    assert [count_lists(2**power) for power in (16, 20, 26)] == [8 * 256, 8 * 1024, 8 * 8192]


def test_texts_whose_cosines_differ_by_rounding_alone_are_in_the_order_of_their_positions() -> None:
    query = np.array([1.0, 0.0], np.float32)
    cosines = [0.5 + step * 2e-8 for step in range(8)]
    vectors = np.array([[cosine, (1 - cosine**2) ** 0.5] for cosine in cosines], np.float32)
    (found,) = plain_search(vectors, query[None], 3)
    assert len(set(found.similarities.tolist())) > 1 or len(set(vectors[:, 0].tolist())) > 1
    assert found.positions.tolist() == [0, 1, 2]


def test_no_vector_at_all_is_no_hit() -> None:
    (found,) = Dense(make_exact(4), NONE, NONE).search(draw(1, 4), 3, EXACT)
    assert found.positions.tolist() == []
