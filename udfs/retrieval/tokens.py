"""Texts as BM25 counts them: words without case, no stop words, no stems."""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"\w+")


def tokenise(text: str) -> list[str]:
    r"""The tokens of a text: `\w+` of its NFKC form, case folded.

    >>> tokenise("The \ufb01rst Stra\u00dfe")
    ['the', 'first', 'strasse']
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
