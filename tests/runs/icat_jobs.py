"""Compare jobs of the metric icat on symbolic worlds with brute force: the hits of each source and the tables."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tests.fakes.expected_icat import Chunk, ExpectedIcat, Found, cut
from tests.fakes.lookups import search, vector_of
from tests.fakes.model_server import ModelServer
from tests.fakes.world_icat import Annotation
from tests.runs.harness import Row, read_table
from tests.runs.worlds import rows_by_sample, scores_of

ICAT = ("--metric", "icat")
TOP = 10
MEASURES = ("s_fact", "s_coverage", "icat", "claims")
# All tables that do not depend on early stopping
CONCLUSIONS = ("samples", "statements", "scores", "measures", "chunks", "failures", "summary", "measures_summary")
TABLES = (*CONCLUSIONS, "claims", "evidence")
_TOKEN = re.compile(r"\w+|[^\w\s]+")
# The hits for a claim of a sample, with the best hit first
Source = Callable[[Mapping[str, Any]], Found]


def embedder(server: ModelServer) -> dict[str, str]:
    """Return the settings that send requests for vectors to the server."""
    return {"embeddings.base_url": server.base_url, "embeddings.model": "embedder"}


def searcher(server: ModelServer) -> dict[str, str]:
    """Return the settings that send web searches to the server, without a rate limit."""
    place = {"search.base_url": server.search_url, "search.api_key_env": "null"}
    return {"knowledge.source": "web", **place, "search.requests_per_minute": "null"}


class Nearest:
    """Chunks sorted by their cosine with a claim to six decimals, and then by id. All chunks are compared."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks, self._known = list(chunks), dict[str, tuple[list[Chunk], list[float]]]()
        self._vectors = _unit([chunk.text for chunk in self._chunks]) if self._chunks else _unit([""])[:0]

    def __call__(self, claim: str) -> Sequence[Chunk]:
        """Return the best chunks."""
        return self._search(claim)[0]

    def cosines(self, claim: str) -> Sequence[float]:
        """Return the cosines of the best chunks to six decimals."""
        return self._search(claim)[1]

    def _search(self, claim: str) -> tuple[list[Chunk], list[float]]:
        if claim not in self._known:
            cosines = (self._vectors * _unit([claim])[0]).sum(axis=1)
            scored = [
                (-round(float(cosine), 6), chunk.chunk_id, place)
                for place, (cosine, chunk) in enumerate(zip(cosines, self._chunks, strict=True))
            ]
            best = sorted(scored)[:TOP]
            self._known[claim] = [self._chunks[place] for *_, place in best], [-score for score, *_ in best]
        return self._known[claim]


def _unit(texts: Sequence[str]) -> Any:
    """Return the stored vectors, of single precision, for sums of double precision."""
    vectors = np.array([vector_of(text) for text in texts])
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(length, length, 1)).astype(np.float32).astype(np.float64)


def in_contexts(sample: Mapping[str, Any]) -> Found:
    """Return the contexts of a sample as chunks. The id of a chunk contains the id of its text."""
    chunks = []
    for number, context in enumerate(sample["contexts"], start=1):
        named = {"id": str(number), "text": context} if isinstance(context, str) else context
        chunks += cut({"document_id": named["id"], "text": named["text"]})
    nearest = Nearest(chunks)
    return lambda claim: [_named_by_text(chunk) for chunk in nearest(claim)]


def in_index(documents: Iterable[Mapping[str, str]]) -> Source:
    """Return a corpus that is the same for all samples."""
    nearest = Nearest([chunk for one in documents for chunk in cut(dict(one))])
    return lambda _: nearest


def on_the_web(_: Mapping[str, Any]) -> Found:
    """Return the hits of the web search of the server, in its order."""

    def found(claim: str) -> list[Chunk]:
        hits = search(claim, TOP)
        return [_named_by_text(Chunk(one["url"], one["url"], f"{one['title']} {one['text']}")) for one in hits]

    return found


def _named_by_text(chunk: Chunk) -> Chunk:
    return replace(chunk, chunk_id=f"{chunk.chunk_id}@{sha256(chunk.text.encode()).hexdigest()[:16]}")


def words_among(texts: Iterable[str]) -> list[str]:
    """Return the words in the vocabulary of the tiny classifier."""
    return sorted({word for text in texts for word in _TOKEN.findall(text)})


def verify_by_words(words: Iterable[str]) -> Callable[[str, str], str]:
    """Return a function with the verdict of the tiny classifier. A chunk must contain all known words of the claim."""
    known = frozenset(words)

    def verify(chunk: str, claim: str) -> str:
        missing = known.intersection(_TOKEN.findall(claim)).difference(_TOKEN.findall(chunk))
        return "contradiction" if missing else "entailment"

    return verify


def write_corpus(path: Path, documents: Iterable[Mapping[str, str]]) -> Path:
    """Write the documents as JSON Lines."""
    path.write_text("".join(json.dumps(one) + "\n" for one in documents), encoding="utf-8")
    return path


def write_annotations(path: Path, annotations: Iterable[Annotation]) -> Path:
    """Write the annotations as JSON Lines, because the topics contain spaces."""
    names = ("query_id", "subtopic_id", "doc_id", "relevance")
    rows = (dict(zip(names, one, strict=True)) for one in annotations)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def concluded(expected: ExpectedIcat) -> Row:
    """Return the result of brute force for a sample, in the form of `read_concluded`."""
    return {
        "status": expected.status,
        "measures": {name: tuple(map(_rounded, ends)) for name, ends in expected.measures.items()},
        "aspects": [(one.reference_id, one.text, one.claims) for one in expected.aspects],
        "claims": [(one.text, one.verdict, one.evidence, one.judged) for one in expected.claims],
    }


def failed(claims: Sequence[tuple[Any, ...]] = ()) -> Row:
    """Return the result for a failed sample. Only its claims are known."""
    unknown = (None, 0.0, 1.0)
    measures = {**dict.fromkeys(MEASURES, unknown), "claims": (None, None, None)}
    return {"status": "failed", "measures": measures, "aspects": [], "claims": list(claims)}


def read_concluded(output: Path) -> dict[str, Row]:
    """Return the results of each sample: status, measures, aspects and claims.

    A measure is the value with its bounds, by name. An aspect is the given id, the text and the positions of its
    claims. A claim is the text, the verdict, the evidence and the chunks by rank with their relations.
    """
    measures, statements = rows_by_sample(output, "measures"), rows_by_sample(output, "statements")
    claims, judged = rows_by_sample(output, "claims"), _judged(output)
    found = {}
    for name, row in scores_of(output).items():
        _check_score(row, measures[name], statements[name], claims[name])
        found[name] = {
            "status": row["status"],
            "measures": {
                one["measure"]: tuple(_rounded(one[end]) for end in ("value", "value_low", "value_high"))
                for one in measures[name]
            },
            "aspects": [
                (one["reference_id"], one["text"], tuple(_position(claim) for claim in one["claims"]))
                for one in sorted(statements[name], key=lambda one: _position(one["statement_id"]))
            ],
            "claims": [
                (one["text"], one["verdict"], tuple(one["evidence"]), tuple(judged[one["claim_id"]]))
                for one in sorted(claims[name], key=lambda one: int(one["position"]))
            ],
        }
    return found


def _judged(output: Path) -> dict[str, list[tuple[str, str | None]]]:
    found = defaultdict(list)
    for row in sorted(read_table(output, "evidence"), key=lambda row: int(row["rank"])):
        found[row["claim_id"]].append((row["chunk_id"], row["relation"]))
    return found


def _check_score(row: Row, measures: Sequence[Row], statements: Sequence[Row], claims: Sequence[Row]) -> None:
    """Check a score against the other tables."""
    (icat,) = [one for one in measures if one["measure"] == "icat"]
    assert [row[name] for name in ("score", "score_low", "score_high")] == [
        icat[name] for name in ("value", "value_low", "value_high")
    ]
    if row["status"] in ("ok", "partial", "no_statements"):
        covered = sum(one["covered"] for one in statements)
        unjudged = sum(one["verdict"] is None for one in claims)
        assert (row["covered"], row["uncovered"], row["unjudged"]) == (covered, len(statements) - covered, unjudged)
        assert all(one["covered"] == bool(one["claims"]) for one in statements)


def _position(name: str) -> int:
    return int(name.rpartition(":")[2])


def _rounded(value: float | None) -> float | None:
    """Round the value, because brute force uses fractions."""
    return None if value is None else round(value, 12)


def chunks_of(output: Path) -> dict[str, tuple[str, str]]:
    """Return the document and the text of each chunk by its id."""
    return {row["chunk_id"]: (row["document_id"], row["text"]) for row in read_table(output, "chunks")}
