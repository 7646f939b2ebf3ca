"""Compare an index with bare libraries: vectors against a product of NumPy, words against bm25s; growth and memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import bm25s
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tests.benchmarks.figures import Figure, Options
from untold.udfs.retrieval.chunks import CHUNKS, chunk_text
from untold.udfs.retrieval.embedding import find_model, open_embedder
from untold.udfs.retrieval.index_table import Catalog, IndexParameters, SearchTask, search_table, write_table

DIMENSION = 384
VECTORS = 100_000
QUERIES = 200
WORDS_OF_A_CHUNK = 120
VOCABULARY = 50_000
TURNS = 3
GOAL_RECALL = 0.95
# A build of a tenth more chunks over the first build
GOAL_GROWTH = 0.6
# The caches of an index have a limit, and the runtime of LanceDB takes 70 MB
GOAL_MEMORY = 600.0
# The corpus of the plan, extrapolated from the measured corpus
PLANNED = 100_000_000
BYTES_OF_A_NUMBER = 4
MEGABYTE = 2.0**20
EXACT = 10**9
MAKING = IndexParameters(words=128, overlap=32, model="m", codec="flat", dimension=DIMENSION)

Vectors = npt.NDArray[np.float32]


def measure(options: Options) -> list[Figure]:
    """Measure every figure once. `--vectors` sets the number of chunks."""
    count = options.vectors or VECTORS
    with TemporaryDirectory(prefix="untold-") as name:
        folder = Path(name)
        vectors, corpus = clustered(count), list(texts(count))
        began = process_time()
        catalog = build(folder / "exact", vectors, corpus)
        built = process_time() - began
        return [
            Figure(f"build of {count:,} chunks", (built,), "s"),
            *_vectors(folder, vectors, catalog),
            *_words(folder, corpus, catalog),
            *_growth(folder, catalog, built, count),
            *_memory(folder, vectors, corpus),
            *_plan(),
        ]


def clustered(count: int, seed: int = 0) -> Vectors:
    """Return vectors of length 1 around a thousand centres, like texts around their subjects."""
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((1_000, DIMENSION), dtype=np.float32)
    vectors: Vectors = centres[draw.integers(0, 1_000, count)] + draw.standard_normal((count, DIMENSION), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def texts(count: int, seed: int = 0) -> Iterator[list[str]]:
    """Yield token lists of chunks. The frequency of the n-th word is 1/n, as in texts."""
    draw = np.random.default_rng(seed)
    weights = 1 / np.arange(1, VOCABULARY + 1)
    for _ in range(count):
        yield [f"w{number}" for number in draw.choice(VOCABULARY, WORDS_OF_A_CHUNK, p=weights / weights.sum())]


def build(
    folder: Path,
    vectors: Vectors,
    corpus: list[list[str]],
    before: Catalog | None = None,
    first: int = 0,
    exact_chunks: int = EXACT,
) -> Catalog:
    """Write an index of chunks with these vectors and words, or extend one."""
    batches = (
        _batch(first + start, vectors[start : start + 1_000], corpus[start : start + 1_000])
        for start in range(0, len(vectors), 1_000)
    )
    limits = {"exact_chunks": exact_chunks, "chunks_per_shard": 1_000_000}
    return write_table(str(folder), MAKING, batches, before, documents=len(vectors), content="", **limits)


def _batch(first: int, vectors: Vectors, corpus: list[list[str]]) -> pa.RecordBatch:
    ids = [f"{number:08d}" for number in range(first, first + len(vectors))]
    named = {"chunk_id": ids, "document_id": ids, "text_id": ids, "text": list(map(" ".join, corpus))}
    columns = [pa.array(named.get(field.name, [None] * len(ids)), field.type) for field in CHUNKS]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIMENSION)
    return pa.RecordBatch.from_arrays([*columns, lists.cast(pa.list_(pa.float32()))], [*CHUNKS.names, "vector"])


def search(folder: Path, catalog: Catalog, retriever: str, queries: pa.RecordBatch, exact: bool = False) -> list[Any]:
    """Return the ids of ten hits for each query."""
    task = SearchTask(str(folder), catalog.version, (retriever,), 10, 256, exact)
    rows = [row for batch in search_table([queries], task) for row in batch.to_pylist()]
    assert len(rows) == 10 * queries.num_rows
    return [{row["chunk_id"] for row in rows[start : start + 10]} for start in range(0, len(rows), 10)]


def queries_of(vectors: Vectors, corpus: list[list[str]]) -> pa.RecordBatch:
    """Return queries with these vectors and words."""
    names, words = list(map(str, range(len(vectors)))), list(map(" ".join, corpus))
    return pa.RecordBatch.from_pydict({"query": names, "text": words, "vector": pa.array(list(vectors))})


def _seconds(work: Callable[[], Any]) -> float:
    """Return the processor time of a function, which excludes other load."""
    began = process_time()
    work()
    return process_time() - began


def _ratios(ours: Callable[[], Any], bare: Callable[[], Any]) -> tuple[float, ...]:
    """Return the speed relative to the bare function in each turn. 1 is equal."""
    ours(), bare()
    return tuple(_seconds(bare) / _seconds(ours) for _ in range(TURNS))


def _vectors(folder: Path, vectors: Vectors, catalog: Catalog) -> list[Figure]:
    """Measure ten hits per query, exact and by lists, against a product of NumPy in memory."""
    wanted = clustered(QUERIES, seed=1)
    queries = queries_of(wanted, [["w1"]] * QUERIES)

    def bare() -> None:
        similarities = wanted @ vectors.T
        np.argpartition(-similarities, 10, axis=1)

    ratios = _ratios(lambda: search(folder / "exact", catalog, "dense", queries), bare)
    lists = build(folder / "lists", vectors, [["w1"]] * len(vectors), exact_chunks=1)
    nearest, found = (search(folder / "lists", lists, "dense", queries, exact) for exact in (True, False))
    recall = [len(one & every) / 10 for one, every in zip(found, nearest, strict=True)]
    faster = _ratios(
        lambda: search(folder / "lists", lists, "dense", queries),
        lambda: search(folder / "exact", catalog, "dense", queries),
    )
    return [
        Figure(f"exact search of {len(vectors):,} vectors, against NumPy", ratios),
        Figure("search by lists, against the exact search", faster),
        Figure("recall@10 of lists", (float(np.mean(recall)),), at_least=GOAL_RECALL),
    ]


def _words(folder: Path, corpus: list[list[str]], catalog: Catalog) -> list[Figure]:
    """Measure BM25 against bm25s, which has computed every score in advance."""
    wanted = [tokens[:12] for tokens in texts(QUERIES, seed=1)]
    queries = queries_of(clustered(QUERIES), wanted)
    index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    index.index(corpus, show_progress=False)

    def bare() -> None:
        index.retrieve(wanted, k=10, show_progress=False, n_threads=0)

    ratios = _ratios(lambda: search(folder / "exact", catalog, "bm25", queries), bare)
    return [Figure(f"BM25 over {len(corpus):,} chunks, against bm25s", ratios)]


def _growth(folder: Path, catalog: Catalog, built: float, count: int) -> list[Figure]:
    """Measure a build with a tenth more chunks against the first build."""
    more, corpus = clustered(count // 10, seed=2), list(texts(count // 10, seed=2))
    grown = _seconds(lambda: build(folder / "exact", more, corpus, catalog, count))
    return [Figure("a tenth more chunks, over the first build", (grown / built,), at_most=GOAL_GROWTH)]


def _memory(folder: Path, vectors: Vectors, corpus: list[list[str]]) -> list[Figure]:
    """Measure the additional anonymous memory of a search in a tenth of the chunks and in all chunks."""
    sizes, taken = (len(vectors) // 10, len(vectors)), []
    for size in sizes:
        catalog = build(folder / f"index-{size}", vectors[:size], corpus[:size], exact_chunks=1)
        line = [sys.executable, "-m", "tests.benchmarks.retrieval", str(folder / f"index-{size}"), str(catalog.version)]
        taken.append(float(subprocess.run(line, capture_output=True, text=True, check=True).stdout))
    return [
        Figure(f"anonymous memory of a search in {size:,} chunks", (value,), "MB", at_most=GOAL_MEMORY)
        for size, value in zip(sizes, taken, strict=True)
    ]


def _plan() -> list[Figure]:
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


def search_alone(folder: str, version: int) -> float:
    """Return the anonymous memory of a search in an index, without the libraries and the queries."""
    queries = queries_of(clustered(32, seed=1), list(texts(32, seed=1)))
    before = _anonymous()
    task = SearchTask(folder, version, ("dense", "bm25"), 10, 256)
    assert sum(batch.num_rows for batch in search_table([queries], task)) == 320
    return _anonymous() - before


if __name__ == "__main__":
    print(search_alone(sys.argv[1], int(sys.argv[2])))
