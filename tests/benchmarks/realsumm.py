"""Measure how often the facts of REALSumm find their document (Bhandari et al. 2020, CC-BY-4.0)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Figure, Options
from untold.udfs.retrieval.chunks import chunk_id, chunk_text
from untold.udfs.retrieval.embedding import find_model, normalised, open_embedder
from untold.udfs.retrieval.ranking import FUSION_DEPTH, RANKERS, Hit, fuse_rankings

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("UNTOLD_DATA", ROOT.parent / "shared" / "data")) / "realsumm"
WORDS, OVERLAP = 128, 32
DEPTH = 10
# The expected shares of facts with their document among the first chunk, and the first ten chunks
EXPECTED = {("bm25", 1): 0.942, ("bm25", 10): 0.990, ("dense", 1): 0.872, ("dense", 10): 0.957}
NEAR = 0.005


def measure(options: Options) -> list[Figure]:
    """Measure the shares by retriever and depth, and their distance from the expected shares."""
    if not DATA.is_dir():
        raise LookupError(f"no REALSumm at {DATA}; set UNTOLD_DATA")
    documents = read_lines(DATA / "documents.txt")
    facts = [(number, fact) for number, line in enumerate(read_lines(DATA / "SCUs.txt")) for fact in line.split("\t")]
    chunks: list[dict[str, Any]] = [
        {"chunk_id": chunk_id(str(number), n), "text": text}
        for number, document in enumerate(documents)
        for n, text in enumerate(chunk_text(document, WORDS, OVERLAP))
    ]
    chunks.sort(key=itemgetter("chunk_id"))
    queries: list[dict[str, Any]] = [{"text": fact} for _, fact in facts]
    for rows in (chunks, queries):
        vectors = embed([row["text"] for row in rows])
        rows[:] = [{**row, "vector": vector} for row, vector in zip(rows, vectors, strict=True)]
    found = {name: list(rank(chunks, queries, FUSION_DEPTH)) for name, rank in RANKERS.items()}
    found["hybrid"] = [fuse_rankings(lists, DEPTH) for lists in zip(*found.values(), strict=True)]
    own = [str(number) for number, _ in facts]
    shares = {(name, k): share(hits, own, k) for name, hits in found.items() for k in (1, DEPTH)}
    sizes = [Figure("chunks", (float(len(chunks)),)), Figure("facts", (float(len(facts)),))]
    figures = [Figure(f"{name}, among the first {k}", (value,)) for (name, k), value in shares.items()]
    far = [
        Figure(f"{name}, first {k}: off {value}", (abs(shares[name, k] - value),), at_most=NEAR)
        for (name, k), value in EXPECTED.items()
    ]
    least = max(shares["bm25", DEPTH], shares["dense", DEPTH])
    return [*sizes, *figures, *far, Figure("hybrid, first 10", (shares["hybrid", DEPTH],), at_least=least)]


def read_lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line]


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Return vectors of the embedded model."""
    vectors = normalised(open_embedder(find_model("minilm"), "mean", 256).embed(texts))
    return [list(map(float, vector)) for vector in vectors]


def share(found: Sequence[Sequence[Hit]], own: Sequence[str], k: int) -> float:
    """Return the share of queries with a chunk of their document among the first k."""
    documents = [{hit.chunk_id.rpartition("#")[0] for hit in one[:k]} for one in found]
    return sum(name in those for name, those in zip(own, documents, strict=True)) / len(own)
