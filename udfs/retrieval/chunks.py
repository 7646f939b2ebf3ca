"""Documents cut into overlapping chunks of words (methods, section 10)."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from untold.udfs.texts import split_words

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
