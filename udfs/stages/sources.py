"""Reading the sources of a statement: the numbers in the last bracket of a line (methods, section 9)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.reading import is_none, without_emphasis

OPENERS = "[【［"
_CLOSERS = "]】］"
_AFTER_SOURCES = " \t\r.,;:。"
EMPHASIS = "*_`"
_MARKS = ("**", "__", "*", "_", "`")
_ENDS_OF_SENTENCE = (".", "!", "?", "。", "…")
# Behind a whole sentence and its bracket: `It rose. [1] (left out by the response)`
_ASIDE = re.compile(r"\s{0,9}(?:\([^()]{1,300}\)|(?:[-–—]|→|->)\s.{1,300})[\s.]{0,9}")
# What stands beside the numbers in a bracket: `[Context 1 and Context 3]`, `[ctx_2]`, `[1†L3]`
_SOURCE_WORDS = re.compile(
    r"\b(?:and|contexts?|ctx|c|sources?|passages?|documents?|docs?|texts?|ids?)(?![^\W\d_])[:_]?|†\w{0,20}",
    re.IGNORECASE,
)
_SOURCE_SEPARATORS = re.compile(r"[,;&/\s#^、，\[\]【】［］()]+")
_RANGE_WORD = r"(?:[-–—~]|\.{2,3}|…|to|through|until|bis|à|hasta|fino a|a)"
_RANGE_SPACES = re.compile(rf"(?<=\d)\s{{0,9}}{_RANGE_WORD}\s{{0,9}}(?=\d)", re.IGNORECASE)
# A bracket directly before another one, `[1] and [3]`, and the text between them
_BRACKET_BEFORE = re.compile(
    r"(?:[\[【［]{1,2}([^\[\]【】［］]{1,60})[\]】］]{1,2}|\(\s?contexts?\b([^()]{1,60})\))"
    rf"[\s*_`]{{0,6}}(?:(?P<range>{_RANGE_WORD})|[,;&+/|、，]?\s?(?:and|or|und|oder|et|ou|y|o|e|en|och|og|i|и|和|及|と)?)"
    r"[\s*_`]{0,6}\Z",
    re.IGNORECASE,
)
_LONGEST_BEFORE = 90
_NUMBER = re.compile(r"-?\d+(?:-\d+)?")
# As prompts ask for them
_PLAIN = re.compile(r"[1-9][0-9]{0,8}(?:, ?[1-9][0-9]{0,8})*")
_WORDED_SOURCES = re.compile(r"\(\s*contexts?\b([^()]{1,200})\)\Z", re.IGNORECASE)
_MOST_DIGITS = 9  # of a context's number; `int` refuses a text of more than 4,300
# `It rose. Sources: [1]` and `It rose - [1]`: belongs to the bracket
_LEADS_TO_SOURCES = re.compile(
    r"(?:(?:(?<=[.!?\s])|\A)[*_]{0,2}(?:contexts?|sources?)[*_]{0,2}\s?[:：][*_]{0,2}|(?<=\s)[-–—|→])\Z", re.IGNORECASE
)
_LONGEST_LEAD = 20


def split_sources(text: str, contexts: int) -> tuple[str, frozenset[int] | None, bool]:
    """The text without its last bracket, the contexts that names, and whether it ends the text.

    Brackets that directly precede it belong to it: `[1][2]`, `[1] and [3]`, `[1] to [3]`.

    A bracket that is no list of numbers belongs to the text. One with more text behind it counts only where it stands
    apart and names a context that was shown, unless it is an aside behind a whole sentence: `It rose. [1] (left out)`.
    `(Context 1)` at the end counts where the text has no square bracket.
    """
    place = last_bracket(text)
    if place is None:
        return _split_worded(text, contexts)
    start, end = place
    inside = text[start + 1 : end]
    start -= inside.endswith(tuple(_CLOSERS)) and text[:start].endswith(tuple(OPENERS))  # `[[1]]`
    start, sources = _with_brackets_before(text, start, inside, contexts)
    before, behind = _without_marks(text[:start], text[end + 1 :])
    if sources and before.rstrip().endswith(_ENDS_OF_SENTENCE) and _ASIDE.fullmatch(behind):
        behind = ""
    at_end = not behind.strip(_AFTER_SOURCES + EMPHASIS)
    apart = not before or before[-1].isspace()
    if sources is None or not (at_end or (apart and sources)):
        return text, None, False
    return _rejoined(before, behind.strip(_AFTER_SOURCES) if at_end else behind), sources, at_end


def _without_marks(before: str, behind: str) -> tuple[str, str]:
    """What stands before and behind a bracket, without emphasis of the bracket alone."""
    for mark in _MARKS:
        if before.endswith(mark) and behind.startswith(mark) and before[: -len(mark)][-1:] in ("", " ", "\t"):
            return before[: -len(mark)], behind[len(mark) :]
    return before, behind


def _rejoined(before: str, behind: str) -> str:
    """The text around its bracket, without what leads to it alone."""
    before = before.rstrip()
    lead = None if behind else _LEADS_TO_SOURCES.search(before, max(0, len(before) - _LONGEST_LEAD))
    before = before[: lead.start()].rstrip() if lead else before
    return without_emphasis((before + behind).strip())


def _split_worded(text: str, contexts: int) -> tuple[str, frozenset[int] | None, bool]:
    """The same for `(Context 1)` at the end of a text without square brackets."""
    trimmed = text.rstrip(_AFTER_SOURCES)
    opening = trimmed.rfind("(")
    found = _WORDED_SOURCES.match(trimmed, opening) if opening >= 0 else None
    opening, sources = _with_brackets_before(text, opening, found[1], contexts) if found else (opening, None)
    return (trimmed[:opening].rstrip(), sources, True) if sources else (text, None, False)


def _with_brackets_before(text: str, start: int, inside: str, contexts: int) -> tuple[int, frozenset[int] | None]:
    """Return the start of the first of several adjacent brackets, and the numbers of all of them."""
    sources = numbers_of(inside, contexts)
    while sources is not None and (found := _BRACKET_BEFORE.search(text, max(0, start - _LONGEST_BEFORE), start)):
        left = found[1] or found[2]
        more = numbers_of(f"{left.strip()}-{inside.strip()}" if found["range"] else left, contexts)
        if more is None or not any(map(str.isdigit, left)):
            break
        start, inside, sources = found.start(), left, sources | more
    return start, sources


def last_bracket(text: str) -> tuple[int, int] | None:
    """Where the last square bracket opens and closes; None where there is none."""
    end = max(map(text.rfind, _CLOSERS))
    start = max(text.rfind(opener, 0, end) for opener in OPENERS) if end > 0 else -1
    return (start, end) if start >= 0 else None


def numbers_of(inside: str, contexts: int) -> frozenset[int] | None:
    """The numbers 1..contexts that a bracket lists, ranges included; null where it is no list of numbers.

    An empty bracket and `[None]` list nothing. Beside other words (`[Response, 1]`) a number counts that stands alone
    between commas and is one of a context.
    """
    if _PLAIN.fullmatch(inside):
        return frozenset(number for part in inside.split(",") if (number := int(part)) <= contexts)
    if not inside.strip() or is_none(inside):
        return frozenset()
    plain = _RANGE_SPACES.sub("-", _SOURCE_WORDS.sub(" ", inside.strip()))
    parts = [part for part in _SOURCE_SEPARATORS.split(plain) if part]
    if "0" in parts:
        raise Unparsable("numbers that count from 0")
    if parts and all(map(_NUMBER.fullmatch, parts)):
        return frozenset(number for part in parts for number in _range(part, contexts))
    listed = [part.strip() for part in plain.split(",")]
    known = frozenset(n for part in listed if _NUMBER.fullmatch(part) for n in _range(part, contexts))
    return known or None


def _range(part: str, contexts: int) -> Iterator[int]:
    """The numbers of `2` or `1-3` that are contexts'; a number below zero is none."""
    if part.startswith("-"):
        return iter(())
    ends = sorted(_bounded(digits, contexts) for digits in part.split("-"))
    return iter(range(max(ends[0], 1), min(ends[-1], contexts) + 1))


def _bounded(digits: str, contexts: int) -> int:
    """The number, or one more than there are contexts where it is too long to be one of theirs."""
    return int(digits) if len(digits) <= _MOST_DIGITS else contexts + 1
