"""The forms of a fact's text: what prompts and tables show of it, and what it is matched by (methods, section 13)."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

from untold.udfs.texts import compatible, tokens_in

_MAPPED = {"'": "‘’‚‛′`´", '"': "“”„‟″«»", "-": "‐‑‒–—―−", "[": "【", "]": "】"}
_MARKS = {ord(mark): plain for plain, marks in _MAPPED.items() for mark in marks}
_UNSEEN = ("Cc", "Cf")
_FINAL = ".;:,!?。।؟۔"
_QUOTES = "'\""
# `don't` is the tokens `don` and `t`, so that negations are looked for in the text. One that is found in excess keeps a
# fact that might have gone, so that signs of Chinese, Japanese, Thai and Hindi need not be words of their own
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|neither|nor|without|cannot|не|нет|لا|لم|لن|ليس|ليست)\b|n't\b"
    r"|[不没沒無无未非]|ない|なかっ|ません|ไม่|नहीं"
)


def shown_form(text: str) -> str:
    """N(text), what prompts and tables show: canonical signs, single spaces, nothing unseen.

    Quotes, dashes and brackets go before NFKC, which would make a space and an accent of ´.

    >>> shown_form("“Café” —  10⁵")
    '"Café" - 10^5'
    """
    plain = compatible(text.translate(_MARKS))
    # Quicker by far than looking at each character, and hardly a text has one to remove
    if not plain.isprintable():
        plain = "".join(sign for sign in plain if sign.isspace() or unicodedata.category(sign) not in _UNSEEN)
    return " ".join(plain.split())


def match_form(shown: str) -> str:
    """M of a text that is in its shown form: case folded, without outer quotes and final signs, however many.

    >>> match_form('"The Harbor.".')
    'the harbor'
    """
    folded = shown.casefold()
    start, end = 0, len(folded)
    # Two places that move inwards: slices of slices would take a long row of quotes quadratic time
    while start < end:
        if folded[start].isspace():
            start += 1
        elif folded[end - 1].isspace() or folded[end - 1] in _FINAL:
            end -= 1
        elif end - start > 1 and folded[start] == folded[end - 1] and folded[start] in _QUOTES:
            start, end = start + 1, end - 1
        else:
            break
    return folded[start:end]


def tokens_of(match: str) -> frozenset[str]:
    """The tokens of a text in its form for matching, each once."""
    return frozenset(tokens_in(match))


def numbers_of(match: str) -> frozenset[str]:
    """The tokens that hold a digit.

    >>> sorted(numbers_of("from 1962 to b52"))
    ['1962', 'b52']
    """
    return frozenset(token for token in tokens_of(match) if any(map(str.isdigit, token)))


def negations_of(match: str) -> Counter[str]:
    """How often each negation stands in a text in its form for matching.

    >>> negations_of("it isn't old, and never was; no")
    Counter({"n't": 1, 'never': 1, 'no': 1})
    """
    return Counter(_NEGATION.findall(match))
