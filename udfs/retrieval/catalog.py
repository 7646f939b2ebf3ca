"""The parameters of an index in its manifest, and the cutting of texts into chunks (methods, section 10)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from untold.udfs.samples.batches import in_batches
from untold.udfs.texts import split_words

SHARDS, DEAD, COARSE, MAKING = "shards", "tombstones", "coarse.faiss", "coarse.json"


@dataclass(frozen=True)
class ShardEntry:
    """A shard and what of it counts no more: `tombstones` is the name of the file that says which chunks these are."""

    name: str
    chunks: int
    texts: int
    tokens: int
    size: int
    dead: int = 0
    dead_tokens: int = 0
    tombstones: str | None = None


@dataclass(frozen=True)
class IndexParameters:
    """How the chunks of an index became what it is: any other value makes another shard of the same chunks.

    `model` is the identity of the embedding, `lists` 0 for an exact index, `training` a hash of what its lists were
    trained on; `dimension` that of its vectors.
    """

    words: int
    overlap: int
    model: str
    codec: str
    lists: int
    training: str
    dimension: int

    def __str__(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Catalog:
    """An index: how it was made, and its shards by name."""

    making: IndexParameters
    documents: int
    shards: tuple[ShardEntry, ...]

    @property
    def chunks(self) -> int:
        """The living chunks."""
        return sum(shard.chunks - shard.dead for shard in self.shards)

    @property
    def mean_length(self) -> float:
        """The mean length of the living chunks, in tokens."""
        return sum(shard.tokens - shard.dead_tokens for shard in self.shards) / max(self.chunks, 1)

    @property
    def digest(self) -> str:
        """A hash of all that a search can find: two indexes of one digest give the same hits."""
        living = sorted((shard.name, shard.tombstones or "") for shard in self.shards)
        return blake2b(json.dumps([str(self.making), living]).encode(), digest_size=16).hexdigest()

    def plain(self) -> dict[str, Any]:
        """The catalog as JSON."""
        return {"digest": self.digest, "chunks": self.chunks, **asdict(self)}


def read_catalog(plain: Mapping[str, Any]) -> Catalog:
    """A catalog from what `plain` gave. Raises KeyError or TypeError for anything else."""
    shards = tuple(ShardEntry(**shard) for shard in plain["shards"])
    return Catalog(IndexParameters(**plain["making"]), plain["documents"], shards)


def with_dead(shard: ShardEntry, tombstones: str, dead: int, dead_tokens: int) -> ShardEntry:
    """The shard with other tombstones."""
    return replace(shard, tombstones=tombstones, dead=dead, dead_tokens=dead_tokens)


# No two texts of 10^18 have one
TEXT_ID_BYTES = 16


def chunk_text(text: str, words: int, overlap: int) -> Iterator[str]:
    """The chunks of a text: `words` words each, of which `overlap` are also the next one's, in single spaces.

    Words are as `split_words` has them. The last chunk is the first that reaches the end, so that no chunk
    lies wholly in another; a text without a word has none. `overlap` is less than `words`.

    >>> list(chunk_text("a b c d e", 3, 1)), list(chunk_text("北京很大", 3, 1))
    (['a b c', 'c d e'], ['北京很', '很大'])
    """
    found = split_words(text)
    for start in range(0, max(len(found) - overlap, min(len(found), 1)), words - overlap):
        yield "".join(found[start : start + words]).rstrip(" ")


def chunk_id(document_id: str, number: int) -> str:
    """`<document_id>#<n>`, n from 0: the last `#` parts them, so that no two chunks have one id.

    >>> chunk_id("everest", 2)
    'everest#2'
    """
    return f"{document_id}#{number}"


def text_id(text: str) -> str:
    """A hash of a text, 32 hex characters: equal texts have one vector."""
    return blake2b(text.encode(), digest_size=TEXT_ID_BYTES).hexdigest()


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
