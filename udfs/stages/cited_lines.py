"""Read lines that cite their sources, as `evaluate_coverage` lists them (methods, sections 4 and 9)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.lists import is_heading
from untold.udfs.stages.reading import Line, is_fence, is_none, is_rule, split_marker, without_emphasis, without_ticks

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


NOTHING = r"[\W_]{0,9}(?:none|nothing|n\s?/\s?a|n\.a\.|not applicable|no (?:\w+ ){0,2}statements?)(?![^\W_])"
BEGINS_NONE = re.compile(NOTHING, re.IGNORECASE)
_NOTE = re.compile(
    r"[\W_]{0,10}(?:notes?|nb|n\.b\.|p\.s\.|explanation|reasoning|rationale)[*_ ]{0,5}[:.：]", re.IGNORECASE
)
# What speaks of the lists below them, or of an item below it: no statement, whatever bracket ends it
_REMARK = re.compile(
    r"[\W_]{0,9}(?:overall|in (?:summary|conclusion|short|total|sum)|to (?:sum up|summari[sz]e|conclude)"
    r"|(?:final )?summary"
    r"|conclusion|altogether|total|therefore|thus|hence|assessment|verdict|coverage|i hope|hope|let me know"
    r"|(?:so|as you can see|as shown|this (?:means|shows|indicates)),? [^.\n]{0,20}response|(?:all|these|the above|the)"
    r" (?:(?:un)?covered )?statements|contexts? (?:used|cited)|i (?:have|used|listed|did)|(?:the|this) response"
    r" (?:covers?|says?|mentions?|leaves?|omits?|does|is|states?|therefore|thus|has|includes?|captures?|conveys?"
    r"|misses|fails"
    r"|addresses|only|also|correctly|fully|partially|never))\b(?!['’])",
    re.IGNORECASE,
)
_OF_LISTS = re.compile(r"\b(?:response|statements?|contexts?|(?:un)?covered)\b", re.IGNORECASE)
_REASON = re.compile(
    r"[\W_]{0,9}(?:(?:reason(?:ing)?|explanation|rationale|justification|quot(?:e|ation)|evidence|comment|remark|note"
    r"|status|match"
    r"|response|in (?:the )?response|(?:not )?covered|why)[*_]{0,2}\s?[:：–—-]|because\b|(?:stated|said|covered"
    r"|mentioned|found|left out|omitted|missing) (?:in|by|from|as)\b"
    r"|(?:as )?(?:the|this) response\b(?!['’]))|\s*(?:→|->|[\"“(])",
    re.IGNORECASE,
)
# `(Partially covered) The tower ...`, `The tower ... (partly covered)`
_PARTLY = re.compile(
    r"(?:^[\W_]{0,9}|[(\[]\s{0,2}|[–—-]\s)(?:partial(?:ly)?|partly"
    r"|half)(?:[\s-](?:un)?covered)?[*_]{0,3}\s?(?:[)\]:：]|\*\*|[–—-]\s)"
    r"|[–—(-]\s?(?:partially|partly) (?:un)?covered\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Sourced:
    """A line and the sources of its last bracket: null where it gives none; `at_end` where that ends the line."""

    line: Line
    text: str
    sources: frozenset[int] | None
    at_end: bool

    @property
    def closed(self) -> bool:
        """Whether its sources end it, so that no further line belongs to it."""
        return self.sources is not None and self.at_end


def sourced_lines(lines: Sequence[str], contexts: int) -> list[Sourced]:
    """The lines but for quotations; sources that stand below an item without any belong to it."""
    return _with_sources_below([_sourced(line, contexts) for line in _without_quotations(lines)])


def statement_lines(rows: Sequence[Sourced]) -> list[Sourced]:
    """The rows without reasons and remarks. Raises `Unparsable` for a statement that is partially covered."""
    if any(is_partly(row.line.text) for row in rows):
        raise Unparsable("a statement that is partially covered")
    return _without_asides(_without_remarks(rows))


def is_partly(text: str) -> bool:
    """Whether a statement is said to be covered in part."""
    return _PARTLY.search(text) is not None


def _sourced(line: str, contexts: int) -> Sourced:
    """A line with its marker and its sources told apart."""
    if not line.strip():
        return Sourced(Line("", False, len(line)), "", None, at_end=False)
    parts = split_marker(line)
    text, sources, at_end = split_sources(without_ticks(parts.text), contexts)
    return Sourced(parts, text, sources, at_end)


def _with_sources_below(rows: Iterable[Sourced]) -> list[Sourced]:
    """The rows where sources that stand alone, `  - Sources: [1]`, belong to the item without any right above."""
    joined: list[Sourced] = []
    for row in rows:
        above = joined[-1] if joined else None
        if row.sources and not row.text and above and above.line.marked and above.text and above.sources is None:
            joined[-1] = replace(above, sources=row.sources, at_end=True)
        else:
            joined.append(row)
    return joined


def _without_quotations(lines: Iterable[str]) -> list[str]:
    """The lines without those that quote, unless all do."""
    kept = [line for line in lines if not line.lstrip().startswith(">")]
    return kept if any(line.strip() for line in kept) else list(lines)


def _without_remarks(rows: Sequence[Sourced]) -> list[Sourced]:
    """The rows without reasons below an item that is closed, and without remarks in a paragraph below the items.

    Raises `Unparsable` for another unmarked line with sources that stands apart from items with markers.
    """
    kept: list[Sourced] = []
    item: Sourced | None = None
    apart = False
    for row in rows:
        below = item is not None and item.closed and row.line.indent > item.line.indent
        reason = below and row.sources and _REASON.match(row.line.text)
        if reason or (item is not None and (apart or not row.line.marked) and _is_remark(row.line.text)):
            continue
        bare = row.sources and not row.line.marked and not is_nothing(row)
        if apart and bare and item is not None and item.line.marked:
            raise Unparsable("a line with sources that may be a statement or a remark")
        apart = not row.line.text
        item = row if row.sources and not below else item
        kept.append(row)
    return kept


def _is_remark(text: str) -> bool:
    """Whether a line sums the lists up: `Overall, the response ...`, but not `Overall, prices rose.`"""
    return _REMARK.match(text) is not None and _OF_LISTS.search(text) is not None


def _without_asides(rows: list[Sourced]) -> list[Sourced]:
    """The rows where an unmarked line of a list with markers gives sources at its end only.

    `Overall, the response follows context [1] alone.` below the items is prose.
    """
    if not next((row.line.marked for row in rows if row.sources), False):
        return rows
    return [row if row.line.marked or row.closed else replace(row, text=row.line.text, sources=None) for row in rows]


def is_nothing(row: Sourced) -> bool:
    """Blank lines, fences, rules and notes."""
    line = row.line
    if not line.text:
        return True
    if line.marked:
        return row.sources is None and is_rule(line.text * 3)
    if is_fence(line.text) or is_rule(line.text) or _NOTE.match(line.text) is not None:
        return True
    return not row.sources and (BEGINS_NONE.match(line.text) is None and is_heading([line], 0))
