"""Documents and contexts as their chunks, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from untold.udfs.retrieval.chunks import chunk_id, chunk_text, text_id
from untold.udfs.samples.batches import in_batches

# A chunk as it lies in a shard; `content` is the hash of the document that it is of,
# `chunks` how many that has: it may lie in several shards
CHUNKS = pa.schema(
    [
        *((name, pa.string()) for name in ("chunk_id", "document_id", "title", "url", "content", "text_id", "text")),
        ("chunks", pa.int32()),
    ]
)
# And one of a sample's context, whose id is the document's
CONTEXT_CHUNKS = pa.schema(
    [(name, pa.string()) for name in ("sample_id", "document_id", "chunk_id", "text_id", "text")]
)


def chunk_documents(batches: Iterable[pa.RecordBatch], words: int, overlap: int) -> Iterator[pa.RecordBatch]:
    """Columns of `CHUNKS`, a row a chunk, from document_id, title, url, content and text."""
    for batch in batches:
        yield from in_batches(_of_documents(batch.to_pylist(), words, overlap), CHUNKS)


def _of_documents(documents: Iterable[Mapping[str, Any]], words: int, overlap: int) -> Iterator[dict[str, Any]]:
    for document in documents:
        texts = list(chunk_text(document["text"], words, overlap))
        for number, text in enumerate(texts):
            named = {"chunk_id": chunk_id(document["document_id"], number), "text_id": text_id(text), "text": text}
            yield {**document, **named, "chunks": len(texts)}


def chunk_contexts(batches: Iterable[pa.RecordBatch], words: int, overlap: int) -> Iterator[pa.RecordBatch]:
    """Columns of `CONTEXT_CHUNKS`, a row a chunk, from sample_id, document_id (a context's id) and text."""
    for batch in batches:
        yield from in_batches(_of_contexts(batch.to_pylist(), words, overlap), CONTEXT_CHUNKS)


def _of_contexts(contexts: Iterable[Mapping[str, Any]], words: int, overlap: int) -> Iterator[dict[str, Any]]:
    for context in contexts:
        for number, text in enumerate(chunk_text(context["text"], words, overlap)):
            yield {
                "sample_id": context["sample_id"],
                "document_id": context["document_id"],
                "chunk_id": chunk_id(context["document_id"], number),
                "text_id": text_id(text),
                "text": text,
            }
