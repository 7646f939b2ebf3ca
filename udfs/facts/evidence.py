"""What a sample's facts are taken from and its claims verified against: chunks of its contexts, or what was found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from untold.udfs.retrieval.chunks import chunk_id, chunk_text

CHUNK = pa.struct([(name, pa.string()) for name in ("chunk_id", "document_id", "url", "text")])
EVIDENCE = pa.schema([("owner", pa.string()), ("chunks", pa.list_(CHUNK))])
Hit = Mapping[str, Any]


def chunk_evidence(batches: Iterable[pa.RecordBatch], words: int, overlap: int) -> Iterator[pa.RecordBatch]:
    """Columns of `EVIDENCE`: the chunks of an owner's contexts in order; from owner, contexts list<struct<id, text>>.

    They are cut as those of an index: `words` words each, of which `overlap` are also the next one's.
    """
    for batch in batches:
        rows = [
            {
                "owner": row["owner"],
                "chunks": [
                    {"chunk_id": chunk_id(context["id"], number), "document_id": context["id"], "text": text}
                    for context in row["contexts"] or ()
                    for number, text in enumerate(chunk_text(context["text"], words, overlap))
                ],
            }
            for row in batch.to_pylist()
        ]
        yield pa.RecordBatch.from_pylist(rows, EVIDENCE)


def choose_evidence(
    batches: Iterable[pa.RecordBatch], documents: int | None, decimals: int | None
) -> Iterator[pa.RecordBatch]:
    """Columns of `EVIDENCE`: what was found for an owner's query.

    batches: owner, hits list<struct<rank, chunk_id, document_id, url, text, similarity>>. `documents`: the hits are
    grouped, those of the best so many documents stay; None: all, by rank.
    """
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            hits = sorted(row["hits"] or (), key=lambda hit: (hit["rank"], hit["chunk_id"]))
            chosen = hits if documents is None else of_best_documents(hits, documents, decimals)
            chunks = [{name: hit[name] for name in ("chunk_id", "document_id", "url", "text")} for hit in chosen]
            rows.append({"owner": row["owner"], "chunks": chunks})
        yield pa.RecordBatch.from_pylist(rows, EVIDENCE)


def of_best_documents(hits: Sequence[Hit], most: int, decimals: int | None = None) -> list[Hit]:
    """The hits of the best documents, document by document: each is as good as its best hit; ties by document_id.

    hits: chunk_id, document_id, similarity, best first; similarities are compared to so many decimals (None: all).

    >>> found = [("b#1", "b", 0.9), ("a#0", "a", 0.9), ("b#0", "b", 0.2), ("c#0", "c", 0.1)]
    >>> hits = [dict(zip(("chunk_id", "document_id", "similarity"), one)) for one in found]
    >>> [hit["chunk_id"] for hit in of_best_documents(hits, 2)]
    ['a#0', 'b#1', 'b#0']
    """
    by_document: dict[str, list[Hit]] = {}
    for hit in hits:
        by_document.setdefault(hit["document_id"], []).append(hit)

    def place(document: str) -> tuple[float, str]:
        best = max(hit["similarity"] or 0.0 for hit in by_document[document])
        return -(best if decimals is None else round(best, decimals)), document

    return [hit for document in sorted(by_document, key=place)[:most] for hit in by_document[document]]
