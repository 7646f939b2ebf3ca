"""Texts as BM25 counts them: words without case, no stop words, no stems."""

from __future__ import annotations

from untold.udfs.texts import compatible, tokens_in


def tokenise(text: str) -> list[str]:
    """The tokens of a text in its compatible form, case folded; in scripts without spaces each two neighbours.

    >>> tokenise("The \ufb01rst Stra\u00dfe")
    ['the', 'first', 'strasse']
    """
    return tokens_in(compatible(text).casefold())
