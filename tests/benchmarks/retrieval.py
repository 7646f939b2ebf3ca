"""Compare an index with its parts: search and add against bare FAISS, words against bm25s, memory and growth."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import bm25s
import faiss
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tests.benchmarks.figures import Figure, Options
from untold.udfs.retrieval.catalog import CHUNKS, chunk_text
from untold.udfs.retrieval.dense import (
    Dense,
    Probing,
    count_lists,
    open_index,
    train_lists,
    use_one_thread,
    write_index,
)
from untold.udfs.retrieval.embedding import find_model, open_embedder
from untold.udfs.retrieval.shards import Shard, ShardWriter
from untold.udfs.retrieval.terms import Bm25, Statistics, Terms, TermsBuilder

DIMENSION = 384
VECTORS = 100_000
QUERIES = 200
DOCUMENTS = 20_000
WORDS_OF_A_CHUNK = 120
VOCABULARY = 50_000
TURNS = 3
GOAL_FAISS, GOAL_BM25 = 0.7, 0.5
# The limit for constant memory: a search in ten times the chunks over a search in the chunks
GOAL_FLAT = 1.2
# The corpus of the plan, extrapolated from the measured corpus
PLANNED = 100_000_000
BYTES_OF_A_NUMBER = 4
MEGABYTE = 2.0**20

Vectors = npt.NDArray[np.float32]


def measure(options: Options) -> list[Figure]:
    """Measure every figure once. `--vectors` sets the number of vectors."""
    count = options.vectors or VECTORS
    use_one_thread()
    with TemporaryDirectory(prefix="untold-") as name:
        folder = Path(name)
        vectors, queries = clustered(count), clustered(QUERIES, seed=1)
        coarse = folder / "coarse.faiss"
        write_index(train_lists(vectors[: 40 * count_lists(count)], count_lists(count), "flat"), str(coarse))
        return [
            *_add(coarse, vectors),
            *_search(coarse, vectors, queries, folder),
            *_words(),
            *_memory(coarse, vectors, folder),
            *_plan(count),
        ]


def clustered(count: int, seed: int = 0) -> Vectors:
    """Return vectors of length 1 around a thousand centres, like texts around their subjects."""
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((1_000, DIMENSION), dtype=np.float32)
    vectors: Vectors = centres[draw.integers(0, 1_000, count)] + draw.standard_normal((count, DIMENSION), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def _seconds(work: Callable[[], Any]) -> float:
    """Return the processor time of a function, which excludes other load."""
    began = process_time()
    work()
    return process_time() - began


def _ratios(ours: Callable[[], Any], bare: Callable[[], Any]) -> tuple[float, ...]:
    """Return the speed relative to the bare function in each turn. 1 is equal."""
    return tuple(_seconds(bare) / _seconds(ours) for _ in range(TURNS))


def _add(coarse: Path, vectors: Vectors) -> list[Figure]:
    """Measure adding vectors in batches, as a shard's writer does, against one call."""
    few = vectors[: min(len(vectors), 50_000)]

    def ours() -> None:
        index = open_index(str(coarse), mapped=False)
        for start in range(0, len(few), 1_000):
            index.add(few[start : start + 1_000])

    return [Figure("add, against bare FAISS", _ratios(ours, lambda: _filled(coarse, few)), at_least=GOAL_FAISS)]


def _filled(coarse: Path, vectors: Vectors) -> faiss.Index:
    index = faiss.read_index(str(coarse))
    index.add(vectors)
    return index


def _search(coarse: Path, vectors: Vectors, queries: Vectors, folder: Path) -> list[Figure]:
    """Measure ten ordered hits per query from a mapped file, with ties resolved, against FAISS in memory."""
    probing = Probing()
    index = _filled(coarse, vectors)
    write_index(index, str(folder / "dense.faiss"))
    mapped = open_index(str(folder / "dense.faiss"))
    shard = Dense(mapped, np.arange(len(vectors), dtype=np.int32), np.empty(0, np.int32))
    parameters = faiss.SearchParametersIVF(
        nprobe=probing.lists, quantizer_params=faiss.SearchParametersHNSW(efSearch=2 * probing.lists)
    )

    def ours() -> None:
        for found in shard.search(queries, 10, probing):
            assert len(found.positions) == 10

    def bare() -> None:
        index.search(queries, 10, params=parameters)

    # Once before the measurement, so that the pages are loaded for both
    ours(), bare()
    ratios = _ratios(ours, bare)
    exact, found = (list(shard.search(queries, 10, way)) for way in (Probing(exact=True), probing))
    recall = [np.isin(one.positions, all_of.positions).mean() for one, all_of in zip(found, exact, strict=True)]
    return [
        Figure(f"search of {len(vectors):,} vectors, against bare FAISS", ratios, at_least=GOAL_FAISS),
        Figure("recall@10 of lists", (float(np.mean(recall)),)),
    ]


def texts(count: int, seed: int = 0) -> Iterator[list[str]]:
    """Yield token lists of chunks. The frequency of the n-th word is 1/n, as in texts."""
    draw = np.random.default_rng(seed)
    weights = 1 / np.arange(1, VOCABULARY + 1)
    numbers = draw.choice(VOCABULARY, (count, WORDS_OF_A_CHUNK), p=weights / weights.sum())
    for row in numbers:
        yield [f"w{number}" for number in row]


def _words() -> list[Figure]:
    """Measure BM25 over our postings against bm25s, which has computed every score in advance."""
    corpus = list(texts(DOCUMENTS))
    builder = TermsBuilder()
    for tokens in corpus:
        builder.add(tokens)
    terms = Terms(builder.postings(), np.array(list(map(len, corpus)), np.int32), np.empty(0, np.int32))
    queries = [tokens[:12] for tokens in texts(QUERIES, seed=1)]
    known = {token for query in queries for token in query}
    statistics = Statistics(len(corpus), float(WORDS_OF_A_CHUNK), {term: terms.frequency(term) for term in known})
    bare_index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    bare_index.index(corpus, show_progress=False)

    def ours() -> None:
        ranking = Bm25(terms, statistics)
        for query in queries:
            ranking.search(query, 10)

    def bare() -> None:
        bare_index.retrieve(queries, k=10, show_progress=False, n_threads=0)

    return [Figure(f"BM25 over {DOCUMENTS:,} chunks, against bm25s", _ratios(ours, bare), at_least=GOAL_BM25)]


def _memory(coarse: Path, vectors: Vectors, folder: Path) -> list[Figure]:
    """Measure the additional anonymous memory of a search in a tenth of the chunks and in all chunks."""
    sizes = (len(vectors) // 10, len(vectors))
    taken = [_look(_write_shard(folder / f"shard-{size}", coarse, vectors[:size]), size) for size in sizes]
    figures = [
        Figure(f"anonymous memory of a search in {size:,} chunks", (value,), "MB")
        for size, value in zip(sizes, taken, strict=True)
    ]
    return [*figures, Figure(f"{sizes[1]:,} / {sizes[0]:,} chunks", (taken[1] / taken[0],), at_most=GOAL_FLAT)]


def _write_shard(folder: Path, coarse: Path, vectors: Vectors) -> Path:
    with ShardWriter(str(folder), str(coarse)) as writer:
        for start in range(0, len(vectors), 1_000):
            part = vectors[start : start + 1_000]
            ids = [f"{number:08d}" for number in range(start, start + len(part))]
            named = {"chunk_id": ids, "document_id": ids, "text_id": ids, "text": [f"of {one}" for one in ids]}
            columns = [pa.array(named.get(field.name, [None] * len(part)), field.type) for field in CHUNKS]
            lists = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), DIMENSION)
            columns.append(lists.cast(pa.list_(pa.float32())))
            writer.add(pa.RecordBatch.from_arrays(columns, [*CHUNKS.names, "vector"]))
        writer.finish()
    return folder


def _look(folder: Path, size: int) -> float:
    """Return the megabytes of anonymous memory in a separate process, at the end of a search."""
    line = [sys.executable, "-m", "tests.benchmarks.retrieval", str(folder), str(size)]
    return float(subprocess.run(line, capture_output=True, text=True, check=True).stdout)


def _plan(count: int) -> list[Figure]:
    """Return the needs of 100 million chunks: bytes by arithmetic, hours by the rate measured here."""
    embedder = open_embedder(find_model("minilm"), "mean", 256)
    chunks = list(chunk_text(" ".join(f"word{number}" for number in range(128 * 24)), 128, 0))
    embedder.embed(chunks[:2])
    rate = len(chunks) / _seconds(lambda: embedder.embed(chunks))
    flat = PLANNED * DIMENSION * BYTES_OF_A_NUMBER
    return [
        Figure("chunks embedded a second and core", (rate,), "chunks/s"),
        Figure(f"{PLANNED:,} chunks: vectors, flat", (flat / 1e9,), "GB"),
        Figure(f"{PLANNED:,} chunks: embedding, cores x hours", (PLANNED / rate / 3600,), "h"),
    ]


def _anonymous() -> float:
    """Return the megabytes of this process without a file."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Anonymous:")) * 1024 / MEGABYTE


def search_alone(folder: str, size: int) -> float:
    """Print the anonymous memory of a search in a shard, without the libraries and the queries."""
    use_one_thread()
    queries = clustered(32, seed=1)
    before = _anonymous()
    shard = Shard(folder)
    list(shard.dense().search(queries, 10, Probing()))
    terms = shard.terms()
    statistics = Statistics(size, 2.0, {"of": size})
    Bm25(terms, statistics).search(["of", "00000001"], 10)
    return _anonymous() - before


if __name__ == "__main__":
    print(search_alone(sys.argv[1], int(sys.argv[2])))
