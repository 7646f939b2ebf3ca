"""The texts of facts for prompts and for matching, and the facts in list items (methods, section 13)."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from untold.udfs.texts import UNSPACED, compatible, count_words, split_words, tokens_in

_MAPPED = {"'": "‘’‚‛′`´", '"': "“”„‟″«»", "-": "‐‑‒–—―−", "[": "【", "]": "】"}
_MARKS = {ord(mark): plain for plain, marks in _MAPPED.items() for mark in marks}
_UNSEEN = ("Cc", "Cf")
_FINAL = ".;:,!?。।؟۔"
_QUOTES = "'\""
# `don't` has the tokens `don` and `t`, so negations are searched in the text. A false match only keeps a fact that
# could be dropped, so signs of Chinese, Japanese, Thai and Hindi need not be separate words
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|neither|nor|without|cannot|не|нет|لا|لم|لن|ليس|ليست)\b|n't\b"
    r"|[不没沒無无未非]|ない|なかっ|ません|ไม่|नहीं"
)


def shown_form(text: str) -> str:
    """Return N(text), the form in prompts and tables: canonical signs, single spaces, no invisible characters.

    Quotes, dashes and brackets are replaced before NFKC, which would convert ´ to a space and an accent.

    >>> shown_form("“Café” —  10⁵")
    '"Café" - 10^5'
    """
    plain = compatible(text.translate(_MARKS))
    # Much faster than a test of each character, and few texts have one to remove
    if not plain.isprintable():
        plain = "".join(sign for sign in plain if sign.isspace() or unicodedata.category(sign) not in _UNSEEN)
    return " ".join(plain.split())


def match_form(shown: str) -> str:
    """Return M of a text in its shown form: case folded, without outer quotes and any number of final signs.

    >>> match_form('"The Harbor.".')
    'the harbor'
    """
    folded = shown.casefold()
    start, end = 0, len(folded)
    # Two indices that move inwards, because repeated slices of a long row of quotes would need quadratic time
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
    """Return the distinct tokens of a text in its match form."""
    return frozenset(tokens_in(match))


def numbers_of(match: str) -> frozenset[str]:
    """Return the tokens with a digit.

    >>> sorted(numbers_of("from 1962 to b52"))
    ['1962', 'b52']
    """
    return frozenset(token for token in tokens_of(match) if any(map(str.isdigit, token)))


def negations_of(match: str) -> Counter[str]:
    """Return the counts of negations in a text in its match form.

    >>> negations_of("it isn't old, and never was; no")
    Counter({"n't": 1, 'never': 1, 'no': 1})
    """
    return Counter(_NEGATION.findall(match))


# Characters. A longer parent has no name
_LONGEST_NAME = 200
_SPAN = re.compile(r"\*{2,3}(?P<bold>[^*]+)\*{2,3}|__(?P<underlined>.+?)__|\[(?P<bracketed>[^\[\]]+)\]")
# All dashes are `-` in the shown form of a text. `3 - 2` is a score
_SPACED = r": |(?<!\d) - | - (?!\d)| \("
_BEHIND_NAME = re.compile(r"\s*(?:$|[,;:]|- )")
_BEFORE_END = re.compile(r"[.!?。।؟۔][)\]\"']*$")
_REFERS = re.compile(r"(?:He|She|It|They|This|These|Those|His|Her|Its|Their) [a-z]")
_BRACKETS = {")": "(", "]": "["}
# The text between a span and its evidence
_BEHIND_SPAN = re.compile(r"^\s*(?:[:,;(]|-(?=\s))?\s*")


@dataclass(frozen=True)
class Fact:
    """A fact in its shown form: an anchor with evidence, only an anchor (`evidence` empty), or a statement.

    `free`: the fact is a sentence, so it may refer to other sentences. `under`: the names of its parent items. `id`:
    its given id.
    """

    evidence: str
    anchor: str | None = None
    free: bool = False
    under: str = ""
    id: str | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        """Return the text for matching, prompts and embeddings.

        >>> Fact("He directed 8 films", "Federico Fellini").text, Fact("", "Federico Fellini").text
        ('Federico Fellini: He directed 8 films', 'Federico Fellini')
        """
        return ": ".join(part for part in (self.under, self.anchor, self.evidence) if part)


def fact_of(item: str, anchor_words: int, names: Sequence[str] = ()) -> Fact:
    """Return the fact of an item in its shown form. `names`: its parents. The last is the anchor if it has none.

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
    """Return the name of an item for its sub-items: its anchor, or its text without final mark, "" if long.

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
    # A span without evidence is an ordinary text, which may be long
    alone = anchor or item
    is_name = count_words(alone) <= anchor_words and not _is_sentence(alone)
    return Fact("", alone) if is_name else Fact(alone, free=True)


def _is_sentence(text: str) -> bool:
    """Return True if a text begins like a sentence that refers to others, or ends like one and has more than names.

    >>> [_is_sentence(text) for text in ("It was built in 1889", "He died.", "Warner Bros.", "上海很大。")]
    [True, True, False, True]
    """
    if _REFERS.match(text):
        return True
    return _BEFORE_END.search(text) is not None and _has_words(text)


def _has_words(text: str) -> bool:
    """Return True if a text has a word without a capital after its first word."""
    return any(word[0].isalpha() and not word[0].isupper() for word in split_words(text)[1:])


def _parted(item: str, anchor_words: int) -> tuple[str, str]:
    """Return the text before and after the first separator. The anchor is empty if it has too many words."""
    found = _separator(item)
    if found is None or not 0 < count_words(item[: found[0]]) <= anchor_words:
        return "", item
    return item[: found[0]], item[found[1] :]


@cache
def _separators() -> re.Pattern[str]:
    # Imported here because the import is slow
    import regex

    pattern: re.Pattern[str] = regex.compile(rf"{_SPACED}|(?<=[{UNSPACED}])(?::|--|\()")
    return pattern


def _separator(item: str) -> tuple[int, int] | None:
    """Return the span of the first separator. A bracket separates only at the end of the item or of its name."""
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
    """Return the position after the bracket that closes the one before `start`, or the end of the text."""
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place + 1
    return len(text)


def _without_unmatched(text: str) -> str:
    """Return the text without unmatched closing brackets.

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
