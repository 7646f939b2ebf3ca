"""Cut documents and contexts into chunks (methods, section 10)."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from untold.udfs.arrow import TEXT, Row, columns, over_rows
from untold.udfs.texts import split_words

# Two of 10^18 texts do not share a hash of this length
TEXT_ID_BYTES = 16
# `content` is the hash of the document of the chunk
CHUNKS = columns(chunk_id=TEXT, document_id=TEXT, title=TEXT, url=TEXT, content=TEXT, text_id=TEXT, text=TEXT)
# The document of a context is the context, by its id
CONTEXT_CHUNKS = columns(sample_id=TEXT, document_id=TEXT, chunk_id=TEXT, text_id=TEXT, text=TEXT)


def chunk_text(text: str, words: int, overlap: int) -> Iterator[str]:
    """Yield the chunks of a text: `words` words each, with single spaces. The last `overlap` words begin the next one.

    `split_words` defines a word. The last chunk is the first that reaches the end of the text, so no chunk lies
    completely in another. A text without a word has no chunk. `overlap` is less than `words`.

    >>> list(chunk_text("a b c d e", 3, 1)), list(chunk_text("北京很大", 3, 1))
    (['a b c', 'c d e'], ['北京很', '很大'])
    """
    found = split_words(text)
    for start in range(0, max(len(found) - overlap, min(len(found), 1)), words - overlap):
        yield "".join(found[start : start + words]).rstrip(" ")


def chunk_id(document_id: str, number: int) -> str:
    """Return `<document_id>#<n>`, n from 0. The last `#` separates both, so ids are unique.

    >>> chunk_id("everest", 2)
    'everest#2'
    """
    return f"{document_id}#{number}"


def text_id(text: str) -> str:
    """Return a hash of a text, 32 hex characters. Equal texts share a vector."""
    return blake2b(text.encode(), digest_size=TEXT_ID_BYTES).hexdigest()


@over_rows(CHUNKS)
def chunk_documents(row: Row, words: int, overlap: int) -> Iterator[Row]:
    """Yield columns of `CHUNKS`, one row per chunk, from document_id, title, url, content and text."""
    return _chunk_rows(row, words, overlap)


@over_rows(CONTEXT_CHUNKS)
def chunk_contexts(row: Row, words: int, overlap: int) -> Iterator[Row]:
    """Yield columns of `CONTEXT_CHUNKS`, one row per chunk, from sample_id, document_id and text."""
    return _chunk_rows(row, words, overlap)


def _chunk_rows(row: Row, words: int, overlap: int) -> Iterator[Row]:
    """Yield the row once per chunk of its text, with the id and the text of the chunk."""
    for number, text in enumerate(chunk_text(row["text"], words, overlap)):
        yield {**row, "chunk_id": chunk_id(row["document_id"], number), "text_id": text_id(text), "text": text}


def without_overlap(text: str, number: int, overlap: int) -> str:
    """Return the text of a chunk without the words that it shares with the chunk before it. `number` is from 0.

    >>> without_overlap("c d e", 1, 1)
    'd e'
    """
    return "".join(split_words(text)[overlap:]) if number else text
