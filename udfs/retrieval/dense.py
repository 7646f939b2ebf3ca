"""Vectors of a shard: exact where they are few, else an inverted file whose lists are the same in every shard.

FAISS (Douze et al. 2024). All vectors are of length 1, so that an inner product is a cosine. A search runs on one
thread: tasks are what is parallel, and the kernels used here give a pair of vectors the same bits in whatever shard and
among however many queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import floor, log2, sqrt
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from untold.udfs.retrieval.terms import COSINE_DECIMALS, best_first

CODECS = {"flat": "Flat", "fp16": "SQfp16", "sq8": "SQ8"}
# Of a list's training: FAISS warns below 39 vectors a centroid
TRAINED_ON = 40
# Links of a node of the graph that finds the lists
LINKS = 32
# Queries searched at once: their heaps of hits stay small, whatever their number
QUERIES_AT_ONCE = 256
# No batch is as large: for 20 queries and more FAISS would multiply matrices, whose last bits depend on the batch
NEVER_BLAS = 2**31 - 1

Vectors = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Probing:
    """How far a search looks: lists visited, or all of them (`exact`)."""

    lists: int = 256
    exact: bool = False


def count_lists(chunks: int) -> int:
    """The lists of an index of so many chunks: 8 * floor(sqrt(2^floor(log2 N))).

    >>> count_lists(50_001), count_lists(1_000_000), count_lists(100_000_000)
    (1448, 5792, 65536)
    """
    return int(8 * floor(sqrt(2 ** floor(log2(chunks)))))


def make_exact(dimension: int) -> faiss.Index:
    """An empty index that is searched from end to end."""
    return faiss.IndexFlatIP(dimension)


def train_lists(vectors: Vectors, lists: int, codec: str) -> faiss.Index:
    """An empty index of so many lists, their centres found by k-means over the vectors (n x d, float32).

    The same vectors in the same order give the same bytes, on however many threads.
    """
    spec = f"IVF{lists}_HNSW{LINKS},{CODECS[codec]}"
    index = faiss.index_factory(vectors.shape[1], spec, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    return index


def open_index(path: str, *, mapped: bool = True) -> faiss.Index:
    """An index as a file has it. `mapped`: its vectors stay on the disk, and what is looked at is the system's cache.

    Raises RuntimeError, FAISS's own, for a file that is none.
    """
    return faiss.read_index(path, faiss.IO_FLAG_MMAP_IFC if mapped else 0)


def write_index(index: faiss.Index, path: str) -> None:
    """Writes an index into a local file; the same index is the same bytes."""
    faiss.write_index(index, path)


def bytes_of(index: faiss.Index) -> bytes:
    """An index as a file has it."""
    return bytes(faiss.serialize_index(index).tobytes())


def use_one_thread() -> None:
    """Searches and adds on one thread from here on: a Spark task has one core."""
    faiss.omp_set_num_threads(1)
    faiss.cvar.distance_compute_blas_threshold = NEVER_BLAS


@dataclass(frozen=True)
class NearestVectors:
    """The hits of one query: positions of chunks and similarities (float32), the best first."""

    positions: Integers
    similarities: Vectors


class Dense:
    """The vectors of a shard, one a distinct text, and the chunks that each text stands in.

    `texts`: for each chunk the number of its text, numbered by first appearance; `dead`: positions of chunks that count
    no more. A text is passed over once all its chunks are dead.
    """

    def __init__(self, index: faiss.Index, texts: Integers, dead: Integers) -> None:
        self._index, self._texts, self._dead = index, texts, dead
        # One chunk a text, as in most corpora: then the number of a text is the position of its chunk
        self._distinct = index.ntotal == len(texts)
        self._selector = self._living_texts() if len(dead) else None

    def search(self, queries: Vectors, k: int, probing: Probing) -> Iterator[NearestVectors]:
        """For each query (n x d) its k best living chunks: similarity descending, then position ascending.

        Similarities are compared by `COSINE_DECIMALS`. Equal ones at the end of a list are settled by looking further,
        so that the order holds there too.
        """
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            yield from self._search(queries[start : start + QUERIES_AT_ONCE], k, probing)

    def _search(self, queries: Vectors, k: int, probing: Probing) -> Iterable[NearestVectors]:
        found: dict[int, tuple[Vectors, npt.NDArray[np.int64]]] = {}
        # One text more than wanted tells whether others are as near as the last
        waiting, depth = np.arange(len(queries)), k + 1
        while len(waiting):
            depth = min(depth, max(self._index.ntotal, 1))
            similarities, numbers = self._look(queries[waiting], depth, probing)
            settled = (numbers[:, -1] < 0) | (depth >= self._index.ntotal)
            if depth > k:
                settled |= _compared(similarities[:, -1]) < _compared(similarities[:, k - 1])
            for row in np.flatnonzero(settled):
                has = numbers[row] >= 0
                found[int(waiting[row])] = similarities[row][has], numbers[row][has]
            waiting, depth = waiting[~settled], depth * 4
        chunks = self._chunks_of(np.concatenate([numbers for _, numbers in found.values()]))
        return [self._expand(*found[row], chunks, k) for row in range(len(queries))]

    def _look(self, queries: Vectors, depth: int, probing: Probing) -> tuple[Vectors, npt.NDArray[np.int64]]:
        """The nearest texts: similarities and numbers, -1 where there are no more."""
        if not hasattr(self._index, "nlist"):
            similarities, numbers = self._index.search(
                queries, depth, params=faiss.SearchParameters(sel=self._selector)
            )
            return similarities, numbers
        lists = self._index.nlist
        if probing.exact or probing.lists >= lists:
            return self._look_everywhere(queries, depth)
        parameters = faiss.SearchParametersIVF(
            sel=self._selector,
            nprobe=probing.lists,
            quantizer_params=faiss.SearchParametersHNSW(efSearch=2 * probing.lists),
        )
        similarities, numbers = self._index.search(queries, depth, params=parameters)
        return similarities, numbers

    def _look_everywhere(self, queries: Vectors, depth: int) -> tuple[Vectors, npt.NDArray[np.int64]]:
        """As `_look`, through every list: not by way of the graph, which may miss one."""
        rows, lists, pointer = len(queries), self._index.nlist, faiss.swig_ptr
        queries = np.ascontiguousarray(queries)
        centres = faiss.downcast_index(faiss.downcast_index(self._index.quantizer).storage)
        # fp16 and sq8 keep what a vector has beyond its centre: its product is the rest of the similarity
        to_centres, every = centres.search(queries, lists)
        similarities, numbers = np.empty((rows, depth), np.float32), np.empty((rows, depth), np.int64)
        parameters = faiss.SearchParametersIVF(sel=self._selector, nprobe=lists)
        given = (pointer(every), pointer(to_centres), pointer(similarities), pointer(numbers))
        self._index.search_preassigned_c(rows, pointer(queries), depth, *given, False, parameters)
        return similarities, numbers

    def _chunks_of(self, numbers: npt.NDArray[np.int64]) -> dict[int, list[int]] | None:
        """The living chunks of these texts, positions ascending; None where a text is its chunk."""
        if self._distinct:
            return None
        positions = np.flatnonzero(np.isin(self._texts, numbers))
        chunks: dict[int, list[int]] = {}
        for position in np.setdiff1d(positions, self._dead).tolist():
            chunks.setdefault(int(self._texts[position]), []).append(position)
        return chunks

    def _expand(
        self, similarities: Vectors, numbers: npt.NDArray[np.int64], chunks: dict[int, list[int]] | None, k: int
    ) -> NearestVectors:
        """Texts as their chunks, in order, the k best of them."""
        if chunks is None:
            positions, scores = numbers, similarities
        else:
            lists = [chunks[int(number)] for number in numbers]
            positions = np.array([position for found in lists for position in found], np.int64)
            scores = np.repeat(similarities, [len(found) for found in lists])
        by_position = np.argsort(positions, kind="stable")
        best = by_position[best_first(_compared(scores[by_position]), k)]
        return NearestVectors(positions[best].astype(np.int32), scores[best])

    def _living_texts(self) -> faiss.IDSelector:
        """What lets a search pass over texts without a living chunk."""
        living = np.ones(len(self._texts), bool)
        living[self._dead] = False
        gone = np.setdiff1d(np.arange(self._index.ntotal), self._texts[living])
        # The inner one is kept by the outer
        return faiss.IDSelectorNot(faiss.IDSelectorBatch(gone.astype(np.int64)))


def _compared(similarities: Vectors) -> npt.NDArray[np.float64]:
    """Similarities as they are compared; as doubles, since single ones have no six decimals of their own."""
    return similarities.astype(np.float64).round(COSINE_DECIMALS)


def plain_search(vectors: Vectors, queries: Vectors, k: int) -> Iterator[NearestVectors]:
    """The k best of a few vectors for each query, as `Dense.search` gives them of a shard."""
    index = make_exact(vectors.shape[1])
    index.add(vectors)
    everything: Any = np.arange(len(vectors), dtype=np.int32)
    return Dense(index, everything, everything[:0]).search(queries, k, Probing(exact=True))
