"""Documents cut into overlapping chunks of words (methods, section 10)."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

# No two texts of 10^18 have one
TEXT_ID_BYTES = 16


def chunk_text(text: str, words: int, overlap: int) -> Iterator[str]:
    """The chunks of a text: `words` words each, of which `overlap` are also the next one's; one space between words.

    Words are what white space parts (`str.split`). The last chunk is the first that reaches the end, so that no chunk
    lies wholly in another; a text without a word has none. `overlap` is less than `words`.

    >>> list(chunk_text("a b c d e", 3, 1))
    ['a b c', 'c d e']
    """
    found = text.split()
    for start in range(0, max(len(found) - overlap, min(len(found), 1)), words - overlap):
        yield " ".join(found[start : start + words])


def chunk_id(document_id: str, number: int) -> str:
    """`<document_id>#<n>`, n from 0: the last `#` parts them, so that no two chunks have one id.

    >>> chunk_id("everest", 2)
    'everest#2'
    """
    return f"{document_id}#{number}"


def text_id(text: str) -> str:
    """A hash of a text, 32 hex characters: equal texts have one vector."""
    return blake2b(text.encode(), digest_size=TEXT_ID_BYTES).hexdigest()
