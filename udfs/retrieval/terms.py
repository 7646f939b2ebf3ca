"""BM25 over the chunks of a shard: postings on disk, statistics of the whole corpus given at search.

Robertson and Zaragoza 2009 in the form of Lucene (Kamphuis et al. 2020): a term weighs
ln(1 + (N - df + .5) / (df + .5)) * tf / (tf + k1 * (1 - b + b * length / mean length)), summed over the query's tokens.
Tokens are words without case, no stop words, no stems. Hits of several shards, or of two retrievers, become one list.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.sparse import csr_array

from untold.udfs.texts import compatible, tokens_in

# Of reciprocal rank fusion as published (Cormack, Clarke, Buettcher 2009): it keeps the first ranks from deciding alone
FUSION_RANKS = 60
# What each ranking gives to the fusion. Chosen on the facts of REALSumm: at 180 to 250 as many of 1,056 find their own
# document among the first ten as by words alone, at 10 to 150 one or two fewer
FUSION_DEPTH = 200
# Decimals by which cosines are compared: beyond them it depends on the kernel that summed the products, and texts whose
# cosines are equal by arithmetic would be ranked by rounding errors
COSINE_DECIMALS = 6


class Hit(NamedTuple):
    """A chunk as a query found it."""

    chunk_id: str
    similarity: float


def decimals_of(retriever: str) -> int | None:
    """The decimals that similarities of a retriever are compared by; None: all. What is fused is no cosine."""
    return COSINE_DECIMALS if retriever == "dense" else None


def rank_hits(hits: Iterable[Hit], k: int, decimals: int | None = None) -> list[Hit]:
    """The k best hits: similarity descending, as far as `decimals` tell, then chunk_id ascending by code points.

    The order is total, so that the best of all shards' best are those of one index over everything.

    >>> [hit.chunk_id for hit in rank_hits([Hit("b#0", 0.5), Hit("a#1", 0.5), Hit("a#0", 0.7)], 2)]
    ['a#0', 'a#1']
    """

    def place(hit: Hit) -> tuple[float, str]:
        return -(hit.similarity if decimals is None else round(hit.similarity, decimals)), hit.chunk_id

    return sorted(hits, key=place)[:k]


def depth_of(k: int, *, fused: bool) -> int:
    """How many hits of a ranking are wanted, for k hits in the end.

    >>> depth_of(10, fused=False), depth_of(10, fused=True), depth_of(500, fused=True)
    (10, 200, 500)
    """
    return max(k, FUSION_DEPTH) if fused else k


def fuse_rankings(rankings: Iterable[Sequence[Hit]], k: int) -> list[Hit]:
    """The k best hits of several ranked lists by reciprocal rank fusion: the sum of 1 / (60 + rank), ranks from 1.

    >>> fuse_rankings([[Hit("a#0", 9.0)], [Hit("b#0", 0.3), Hit("a#0", 0.2)]], 1)[0].chunk_id
    'a#0'
    """
    sums: dict[str, float] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, start=1):
            sums[hit.chunk_id] = sums.get(hit.chunk_id, 0.0) + 1 / (FUSION_RANKS + rank)
    return rank_hits((Hit(*item) for item in sums.items()), k)


def tokenise(text: str) -> list[str]:
    """The tokens of a text in its compatible form, case folded; in scripts without spaces each two neighbours.

    >>> tokenise("The \ufb01rst Stra\u00dfe")
    ['the', 'first', 'strasse']
    """
    return tokens_in(compatible(text).casefold())


# As Lucene has them
K1, B = 1.2, 0.75
# Where a query's postings are fewer than this share of the chunks, they are summed without a number for every chunk
SPARSE = 0.1
# 32 MB of positions and weights
CACHED_POSTINGS = 2_000_000
# A term and where it is found: chunks by their position in the shard, and how often each has it
POSTINGS = pa.schema(
    [("term", pa.string()), ("chunks", pa.large_list(pa.int32())), ("counts", pa.large_list(pa.int32()))]
)

Integers = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class TermsBuilder:
    """Counts the terms of chunks, which are added in the order of their positions."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._terms, self._counts, self._ends = array("i"), array("i"), array("q", [0])

    def add(self, tokens: Sequence[str]) -> None:
        """Adds the next chunk."""
        counted = Counter(tokens)
        numbers = self._numbers
        self._terms.extend([numbers.setdefault(term, len(numbers)) for term in counted])
        self._counts.extend(counted.values())
        self._ends.append(len(self._terms))

    def postings(self) -> pa.RecordBatch:
        """The columns of `POSTINGS`, terms in the order of their code points, chunks ascending."""
        vocabulary = sorted(self._numbers)
        ranks = np.empty(len(vocabulary), np.int32)
        ranks[[self._numbers[term] for term in vocabulary]] = np.arange(len(vocabulary), dtype=np.int32)
        columns = ranks[np.frombuffer(self._terms, np.int32)] if self._terms else np.empty(0, np.int32)
        counts, ends = np.frombuffer(self._counts, np.int32), np.frombuffer(self._ends, np.int64)
        # Linear in the postings, where sorting them would not be; within a term the chunks keep their order
        by_term = csr_array((counts, columns, ends), shape=(len(ends) - 1, len(vocabulary))).tocsc()
        lists = [
            pa.LargeListArray.from_arrays(by_term.indptr.astype(np.int64), pa.array(values, pa.int32()))
            for values in (by_term.indices.astype(np.int32), by_term.data.astype(np.int32))
        ]
        return pa.RecordBatch.from_arrays([pa.array(vocabulary, pa.string()), *lists], schema=POSTINGS)


@dataclass(frozen=True)
class Statistics:
    """What BM25 knows of the whole living corpus: its chunks, their mean length in tokens, in how many each term is."""

    chunks: int
    mean_length: float
    frequencies: Mapping[str, int]

    def weigh(self, term: str) -> float:
        """The term's inverse document frequency; more than 0 for every term that some chunk has."""
        found = self.frequencies.get(term, 0)
        return log(1 + (self.chunks - found + 0.5) / (found + 0.5))


class Terms:
    """The postings of a shard, read where they lie: what is mapped into memory is the disk's and not the process's.

    `lengths`: the tokens of each chunk; `dead`: positions of chunks that count no more.
    """

    def __init__(self, postings: pa.RecordBatch, lengths: Integers, dead: Integers) -> None:
        self._vocabulary = postings.column("term")
        self._chunks, self._counts = (_flat(postings.column(name)) for name in ("chunks", "counts"))
        self._starts = _view(postings.column("chunks").offsets)
        self._lengths = lengths
        self._living = None if not len(dead) else np.ones(len(lengths), bool)
        if self._living is not None:
            self._living[dead] = False

    def frequency(self, term: str) -> int:
        """In how many living chunks a term is."""
        chunks, _ = self.postings(term)
        return len(chunks) if self._living is None else int(np.count_nonzero(self._living[chunks]))

    def postings(self, term: str) -> tuple[Integers, Integers]:
        """The chunks that have a term, the dead ones too, and how often; both empty for a term that no chunk has."""
        row = bisect_left(_TextColumn(self._vocabulary), term)
        if row == len(self._vocabulary) or self._vocabulary[row].as_py() != term:
            return self._chunks[:0], self._counts[:0]
        here = slice(self._starts[row], self._starts[row + 1])
        return self._chunks[here], self._counts[here]

    @property
    def lengths(self) -> Integers:
        """The tokens of each chunk."""
        return self._lengths

    @property
    def living(self) -> npt.NDArray[np.bool_] | None:
        """Whether each chunk counts; None where all do."""
        return self._living


class Bm25:
    """Ranks the chunks of a shard under the statistics of its whole corpus, for as many queries as there are.

    What a term adds to each chunk is kept for the next query that has it, up to `CACHED_POSTINGS` of them: queries
    share their frequent words, whose postings are long.
    """

    def __init__(self, terms: Terms, statistics: Statistics) -> None:
        self._terms, self._statistics = terms, statistics
        shares: Floats = terms.lengths / max(statistics.mean_length, 1e-9)
        # What lengths make of counts: k1 * (1 - b + b * length / mean length)
        self._norms = K1 * (1 - B + B * shares)
        self._everywhere = np.arange(len(self._norms))
        self._weights: dict[str, tuple[Positions, Floats]] = {}
        self._cached = 0

    def search(self, tokens: Iterable[str], k: int) -> tuple[Integers, Floats]:
        """Positions and scores of the k best living chunks: score descending, then position; those above 0 alone.

        A chunk's score is summed in the order of the query's tokens, so that it is the same bits in whatever shard.
        """
        chunks, weights = self._weigh(Counter(tokens))
        if not len(chunks):
            return chunks.astype(np.int32), weights
        if len(chunks) < SPARSE * len(self._norms):
            positions, numbers = np.unique(chunks, return_inverse=True)
            scores: npt.NDArray[Any] = np.bincount(numbers, weights)
        else:
            scores = np.bincount(chunks, weights, minlength=len(self._norms))
            positions = self._everywhere
        living = self._terms.living
        if living is not None:
            scores = np.where(living[positions], scores, 0.0)
        best = best_first(scores, k)
        best = best[scores[best] > 0]
        return positions[best].astype(np.int32), scores[best]

    def _weigh(self, counted: Counter[str]) -> tuple[Positions, Floats]:
        """Every posting of the query's terms: the chunk, and what the term adds to its score."""
        parts = [(self._weights_of(term), repeats) for term, repeats in counted.items()]
        if not parts:
            return np.empty(0, np.int64), np.empty(0)
        weights = [one if repeats == 1 else repeats * one for (_, one), repeats in parts]
        return np.concatenate([chunks for (chunks, _), _ in parts]), np.concatenate(weights)

    def _weights_of(self, term: str) -> tuple[Positions, Floats]:
        """The chunks that have a term, and what it adds to the score of each where it is in a query once."""
        found = self._weights.get(term)
        if found is None:
            chunks, counts = self._terms.postings(term)
            # As numpy counts by them, so that it need not turn them over for every query
            found = chunks.astype(np.int64), self._statistics.weigh(term) * counts / (counts + self._norms[chunks])
            if self._cached + len(chunks) <= CACHED_POSTINGS:
                self._weights[term] = found
                self._cached += len(chunks) + 1
        return found


class _TextColumn(Sequence[str]):
    """A column of texts as a sequence: each is taken out when it is looked at, and none is kept."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, row: Any) -> Any:
        return self._column[row].as_py()


def best_first(scores: npt.NDArray[Any], k: int) -> npt.NDArray[np.int64]:
    """Where the k greatest scores are, the greatest first, of equal ones the first first.

    >>> best_first(np.array([1.0, 3.0, 2.0, 3.0, 3.0]), 2).tolist()
    [1, 3]
    """
    found = np.arange(len(scores))
    if len(scores) > k:
        # Without sorting them all: what is as great as the k-th greatest is kept, ties included
        found = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
    return found[np.argsort(-scores[found], kind="stable")][:k]


def _flat(column: pa.Array) -> Integers:
    """All values of a column of lists, one list after the other."""
    values: Integers = _view(column.values)
    return values


def _view(values: pa.Array) -> Any:
    """Numbers of Arrow as numpy sees them, without a copy."""
    return values.to_numpy(zero_copy_only=True)
