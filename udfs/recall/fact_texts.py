"""The text of a fact for prompts and for matching, and the facts that list items state (methods, section 13)."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from untold.udfs.texts import UNSPACED, compatible, count_words, split_words, tokens_in

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


# Characters; a parent that says more has no name
_LONGEST_NAME = 200
_SPAN = re.compile(r"\*{2,3}(?P<bold>[^*]+)\*{2,3}|__(?P<underlined>.+?)__|\[(?P<bracketed>[^\[\]]+)\]")
# In a text in its shown form every dash is `-`; `3 - 2` is a score
_SPACED = r": |(?<!\d) - | - (?!\d)| \("
_BEHIND_NAME = re.compile(r"\s*(?:$|[,;:]|- )")
_BEFORE_END = re.compile(r"[.!?。।؟۔][)\]\"']*$")
_REFERS = re.compile(r"(?:He|She|It|They|This|These|Those|His|Her|Its|Their) [a-z]")
_BRACKETS = {")": "(", "]": "["}
# What stands between a span and what is said of it
_BEHIND_SPAN = re.compile(r"^\s*(?:[:,;(]|-(?=\s))?\s*")


@dataclass(frozen=True)
class Fact:
    """A fact in its shown form: an anchor with evidence, an anchor alone (`evidence` empty), or a statement.

    `free`: it is a sentence, so that what it refers to may stand elsewhere. `under`: the names that it stands below.
    """

    evidence: str
    anchor: str | None = None
    free: bool = False
    under: str = ""

    @property
    def text(self) -> str:
        """What it is matched, shown and embedded by.

        >>> Fact("He directed 8 films", "Federico Fellini").text, Fact("", "Federico Fellini").text
        ('Federico Fellini: He directed 8 films', 'Federico Fellini')
        """
        return ": ".join(part for part in (self.under, self.anchor, self.evidence) if part)


def fact_of(item: str, anchor_words: int, names: Sequence[str] = ()) -> Fact:
    """The fact of an item in its shown form. `names`: those of what it stands below; without an anchor it has the last.

    >>> fact_of("Jean-Luc Godard (Breathless, 1960)", 10)
    Fact(evidence='Breathless, 1960', anchor='Jean-Luc Godard', free=False, under='')
    >>> fact_of("He directed Breathless.", 10, ["Directors", "Godard"]).text
    'Directors: Godard: He directed Breathless.'
    """
    fact = _fact_alone(item, anchor_words)
    if not names:
        return fact
    if fact.anchor is None:
        return Fact(fact.evidence, names[-1], under=": ".join(names[:-1]))
    return replace(fact, under=": ".join(names))


def name_of(item: str, anchor_words: int) -> str:
    """What items below this one carry: its anchor, or all of it without a colon or a full stop; "" where it is long.

    >>> name_of("Paris: the capital of France", 10), name_of("**He made films:**", 10)
    ('Paris', 'He made films')
    """
    fact = _fact_alone(item.rstrip("*_ ").rstrip(":.") if item[:1] not in "*_" else item, anchor_words)
    name = (fact.anchor or fact.evidence).rstrip(":. ")
    return name if len(name) <= _LONGEST_NAME else ""


def _fact_alone(item: str, anchor_words: int) -> Fact:
    span = _SPAN.match(item)
    if span:
        anchor, evidence = next(filter(None, span.groups())), _BEHIND_SPAN.sub("", item[span.end() :], count=1)
    else:
        anchor, evidence = _parted(item, anchor_words)
    anchor, evidence = anchor.strip().rstrip(":").rstrip(), _without_unmatched(evidence)
    if anchor and evidence:
        return Fact(evidence, anchor)
    # Without evidence even a span is no more than a text, which may be long
    alone = anchor or item
    is_name = count_words(alone) <= anchor_words and not _is_sentence(alone)
    return Fact("", alone) if is_name else Fact(alone, free=True)


def _is_sentence(text: str) -> bool:
    """Whether a text begins as a sentence that refers to something, or ends as one and has more than names in it.

    >>> [_is_sentence(text) for text in ("It was built in 1889", "He died.", "Warner Bros.", "上海很大。")]
    [True, True, False, True]
    """
    if _REFERS.match(text):
        return True
    return _BEFORE_END.search(text) is not None and _has_words(text)


def _has_words(text: str) -> bool:
    """Whether a text has a word behind its first that is no name: one without a capital."""
    return any(word[0].isalpha() and not word[0].isupper() for word in split_words(text)[1:])


def _parted(item: str, anchor_words: int) -> tuple[str, str]:
    """What stands before the first separator and what behind it; no anchor where that has too many words or none."""
    found = _separator(item)
    if found is None or not 0 < count_words(item[: found[0]]) <= anchor_words:
        return "", item
    return item[: found[0]], item[found[1] :]


@cache
def _separators() -> re.Pattern[str]:
    # Here, as it takes a while to load
    import regex

    pattern: re.Pattern[str] = regex.compile(rf"{_SPACED}|(?<=[{UNSPACED}])(?::|--|\()")
    return pattern


def _separator(item: str) -> tuple[int, int] | None:
    """Where the first separator begins and ends. A bracket is one where it ends the item or its name."""
    start = 0
    while found := _separators().search(item, start):
        if not found[0].endswith("("):
            return found.span()
        start = _closing(item, found.end())
        named = item[start:] == "." and not _has_words(item[: found.start()])
        if named or _BEHIND_NAME.match(item, start):
            return found.span()
    return None


def _closing(text: str, start: int) -> int:
    """Behind the bracket that closes the one before `start`; the end of the text where none does."""
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place + 1
    return len(text)


def _without_unmatched(text: str) -> str:
    """The text without closing brackets that nothing opens.

    >>> _without_unmatched("Breathless (1960), and others)")
    'Breathless (1960), and others'
    """
    kept: list[str] = []
    opened: dict[str, int] = {"(": 0, "[": 0}
    for sign in text:
        if sign in opened:
            opened[sign] += 1
        elif sign in _BRACKETS:
            if not opened[_BRACKETS[sign]]:
                continue
            opened[_BRACKETS[sign]] -= 1
        kept.append(sign)
    return "".join(kept).strip()
