"""The stages of end-to-end comprehensiveness (Dejl et al. 2025; methods, section 4) and how they are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from udfs.stages.definitions import StageDefinition, Unparsable
from udfs.stages.reading import (
    Line,
    collapsed,
    is_fence,
    is_none,
    is_rule,
    letters,
    split_marker,
    strip_thinking,
    unfenced,
    without_emphasis,
)

SUMMARY_SCHEMA = pa.schema([pa.field("summary", pa.string())])
STATEMENT_TYPE = pa.struct(
    [pa.field("text", pa.string()), pa.field("covered", pa.bool_()), pa.field("sources", pa.list_(pa.int32()))]
)
COVERAGE_SCHEMA = pa.schema([pa.field("statements", pa.list_(STATEMENT_TYPE))])

_SUMMARY_NAMES = r"(?:summary|relevant summary|condensed (?:text|context))"
_SUMMARY_PREFIX = re.compile(
    rf"(?:\*\*{_SUMMARY_NAMES}(?::\*\*|\*\* ?:)|(?:#{{1,6}} ?)?{_SUMMARY_NAMES} ?:)", re.IGNORECASE
)
_SUMMARY_HEADING = re.compile(rf"(?:#{{1,6}} *|\*\*){_SUMMARY_NAMES}(?:\*\*)?", re.IGNORECASE)
_SUMMARY_PREAMBLE = re.compile(
    r"(?:sure[,.!] *)?here(?:['’]s| is) (?:a|an|the|my)\b[^.:]{0,60}\bsummary\b[^.:]{0,120}:", re.IGNORECASE
)

_COVERED, _UNCOVERED = "covered", "uncovered"
_HEADINGS = {
    f"{kind} {words}": kind
    for kind in (_COVERED, _UNCOVERED)
    for words in ("statements", "statement", "atomic statements")
}
_BRACKETED_HEADING = re.compile(r"[\[【［][\s*_]*(uncovered|covered)\s+statements[\s*_:]*[\]】］]", re.IGNORECASE)
_NO_STATEMENTS = re.compile(
    r"(?:there (?:are|were) )?no (?:(?:un)?covered )?(?:atomic )?statements(?: (?:were )?(?:found|identified))?"
    r"|(?:all|every) (?:of )?(?:the )?(?:atomic )?statements?(?: of the contexts)? (?:are|is|were|was) (?:un)?covered"
    r"|no statements? (?:is|are|was|were) (?:left out|missing|(?:un)?covered)"
)
_NOTE = re.compile(
    r"[\W_]{0,10}(?:notes?|nb|n\.b\.|p\.s\.|explanation|reasoning|rationale)[*_ ]{0,5}[:.：]", re.IGNORECASE
)
_AFTERWORDS = {"note", "notes", "explanation", "explanations", "reasoning", "rationale", "justification", "comments"}

_OPENERS, _CLOSERS = "[【［", "]】］"
_AFTER_SOURCES = " \t\r.,;:。"
_EMPHASIS = "*_`"
_SOURCE_WORDS = re.compile(
    r"\b(?:and|contexts?|ctx|c|sources?|passages?|documents?|docs?|texts?)(?![^\W\d_])[:_]?", re.IGNORECASE
)
_SOURCE_SEPARATORS = re.compile(r"[,;&/\s#、，]+")
_RANGE_SPACES = re.compile(r"(?<=\d)\s*[-–—]\s*(?=\d)")
_NUMBER = re.compile(r"-?\d+(?:-\d+)?")
_WORDED_SOURCES = re.compile(r"\(\s*contexts?\b([^()]{1,200})\)\Z", re.IGNORECASE)
_MOST_DIGITS = 9


@dataclass(frozen=True)
class _Item:
    """A statement as one list gives it."""

    text: str
    sources: frozenset[int]


@dataclass(frozen=True)
class _Sourced:
    """A line and the sources of its last bracket: null where it gives none; `at_end` where that ends the line."""

    line: Line
    text: str
    sources: frozenset[int] | None
    at_end: bool

    @property
    def closed(self) -> bool:
        return self.sources is not None and self.at_end


def parse_summary(completion: str, variables: Mapping[str, Any]) -> dict[str, str | None]:
    """`summary`: the condensed context, null for a lone `None`. Raises `Unparsable` where nothing was answered."""
    text = unfenced(_without_label(unfenced(strip_thinking(completion))))
    if not text:
        raise Unparsable("no summary: the completion is empty after thinking and labels are removed")
    return {"summary": None if is_none(text) else text}


def _without_label(text: str) -> str:
    first, _, rest = text.partition("\n")
    label = first.strip()
    if _SUMMARY_HEADING.fullmatch(label) or _SUMMARY_PREAMBLE.fullmatch(label):
        return rest.strip()
    prefix = _SUMMARY_PREFIX.match(text)
    return text[prefix.end() :].strip() if prefix else text


def parse_coverage(completion: str, variables: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """`statements`: each distinct text once, covered ones first, in order of appearance; `sources` count from 1.

    Raises `Unparsable` where a heading is missing, or where text stands under the headings in which no item and no
    `None` can be told.
    """
    sections = _sections(strip_thinking(completion).split("\n"))
    contexts = len(variables["contexts"])
    covered, covered_readable = _read_list(sections[_COVERED], contexts)
    uncovered, uncovered_readable = _read_list(sections[_UNCOVERED], contexts)
    if not (covered_readable and uncovered_readable):
        raise Unparsable("the text under the headings is neither a list nor None")
    return {"statements": _distinct(covered, uncovered)}


def _sections(lines: list[str]) -> dict[str, list[str]]:
    """The lines under the last heading of each kind, each up to the next heading of any kind."""
    headings = [(number, *found) for number, line in enumerate(lines) if (found := _heading(line))]
    ends = [number for number, *_ in headings[1:]] + [len(lines)]
    sections = {
        kind: [rest, *lines[number + 1 : end]] for (number, kind, rest), end in zip(headings, ends, strict=False)
    }
    missing = [kind for kind in (_COVERED, _UNCOVERED) if kind not in sections]
    if missing:
        raise Unparsable("missing heading: " + ", ".join(f"[{kind.capitalize()} statements]" for kind in missing))
    return sections


def _heading(line: str) -> tuple[str, str] | None:
    """The kind of list that a line opens and what else it holds, or null.

    A heading stands alone but for decoration. Only after a bracketed one may `None`, a remark in brackets or a first
    item follow: a sentence that speaks of covered statements opens nothing.
    """
    if _COVERED not in line.lower():
        return None
    words = letters(line)
    if words in _HEADINGS:
        return _HEADINGS[words], ""
    if words.removesuffix(" none") in _HEADINGS:
        return _HEADINGS[words.removesuffix(" none")], "None"
    bracket = _first_of(line, _OPENERS)
    found = _BRACKETED_HEADING.match(line, bracket) if bracket >= 0 and not letters(line[:bracket]) else None
    if found is None:
        return None
    rest = line[found.end() :].strip(" \t\r:*_`")
    if rest.startswith("(") and rest.endswith(")"):
        return found[1].lower(), ""
    follows = split_marker(rest).marked or _last_bracket(rest) is not None
    return (found[1].lower(), rest) if follows else None


def _first_of(text: str, characters: str) -> int:
    return min((place for place in map(text.find, characters) if place >= 0), default=-1)


def _read_list(lines: Iterable[str], contexts: int) -> tuple[list[_Item], bool]:
    """The items of one list, and whether it is readable: has items, or nothing but blanks, notes and `None`.

    An item is a line with a bullet or number, or one that ends in sources. An item without sources goes on over the
    unmarked lines that directly follow it: up to the first that ends in sources, else as long as they are indented
    further; one without a marker only while they are indented. Every other unmarked line is a note.
    """
    rows = [_sourced(line, contexts) for line in lines]
    items: list[_Item] = []
    said_none, prose, place = False, False, 0
    while place < len(rows):
        row = rows[place]
        if (items or said_none) and not row.line.marked and letters(row.line.text) in _AFTERWORDS:
            break
        if _is_nothing(row) or _is_group_label(rows, place):
            place += 1
        elif not row.sources and _says_none(row.text):
            said_none, place = True, place + 1
        else:
            end = _end_of_item(rows, place)
            if row.line.marked or rows[end - 1].closed:
                items.append(_joined(rows[place:end], contexts))
            else:
                prose = True
            place = end
    items = [item for item in items if item.text]
    return items, bool(items) or said_none or not prose


def _sourced(line: str, contexts: int) -> _Sourced:
    parts = split_marker(line)
    text, sources, at_end = _split_sources(parts.text, contexts)
    return _Sourced(parts, text, sources, at_end)


def _is_nothing(row: _Sourced) -> bool:
    """Blank lines, fences, rules and notes."""
    line = row.line
    if not line.text:
        return True
    if line.marked:
        return row.sources is None and is_rule(line.text * 3)
    return is_fence(line.text) or is_rule(line.text) or _NOTE.match(line.text) is not None


def _says_none(text: str) -> bool:
    return is_none(text) or _NO_STATEMENTS.fullmatch(letters(text)) is not None


def _is_group_label(rows: list[_Sourced], place: int) -> bool:
    """`- Context 1:` above items that are indented further."""
    row = rows[place]
    if not row.line.marked or row.sources is not None or not row.text.rstrip(_EMPHASIS).endswith(":"):
        return False
    below = rows[place + 1].line if place + 1 < len(rows) else row.line
    return below.marked and below.indent > row.line.indent


def _end_of_item(rows: list[_Sourced], place: int) -> int:
    """The place after the last line of the item, or note, that begins at `place`."""
    head = rows[place]
    end = place + 1
    if head.closed:
        return end
    indented = end
    while end < len(rows) and not rows[end].line.marked and not _is_nothing(rows[end]):
        deeper = rows[end].line.indent > head.line.indent
        if not deeper and not head.line.marked:
            break
        end += 1
        if rows[end - 1].closed:
            return end
        if deeper and indented == end - 1:
            indented = end
    return indented if head.line.marked else place + 1


def _joined(rows: list[_Sourced], contexts: int) -> _Item:
    if len(rows) == 1:
        text, sources = rows[0].text, rows[0].sources
    else:
        text, sources, _ = _split_sources(" ".join(row.line.text for row in rows), contexts)
    bare = without_emphasis(text)
    if not rows[0].line.marked and bare != text:
        bare = split_marker(bare).text
    return _Item(bare, sources or frozenset())


def _split_sources(text: str, contexts: int) -> tuple[str, frozenset[int] | None, bool]:
    """The text without its last bracket, the contexts that names, and whether it ends the text.

    A bracket that is no list of numbers belongs to the text. One with more text behind it counts only where it stands
    apart and names a context that was shown. `(Context 1)` at the end counts where the text has no square bracket.
    """
    place = _last_bracket(text)
    if place is None:
        return _split_worded(text, contexts)
    start, end = place
    before, behind = text[:start], text[end + 1 :]
    sources = _numbers(text[start + 1 : end], contexts)
    at_end = not behind.strip(_AFTER_SOURCES + _EMPHASIS)
    apart = not before or before[-1].isspace()
    if sources is None or not (at_end or (apart and sources)):
        return text, None, False
    return _rejoined(before, behind.strip(_AFTER_SOURCES) if at_end else behind), sources, at_end


def _rejoined(before: str, behind: str) -> str:
    return without_emphasis((before.rstrip() + behind).strip())


def _split_worded(text: str, contexts: int) -> tuple[str, frozenset[int] | None, bool]:
    trimmed = text.rstrip(_AFTER_SOURCES)
    opening = trimmed.rfind("(")
    found = _WORDED_SOURCES.match(trimmed, opening) if opening >= 0 else None
    sources = _numbers(found[1], contexts) if found else None
    return (trimmed[:opening].rstrip(), sources, True) if sources else (text, None, False)


def _last_bracket(text: str) -> tuple[int, int] | None:
    end = max(map(text.rfind, _CLOSERS))
    start = max(text.rfind(opener, 0, end) for opener in _OPENERS) if end > 0 else -1
    return (start, end) if start >= 0 else None


def _numbers(inside: str, contexts: int) -> frozenset[int] | None:
    """The numbers 1..contexts that a bracket lists, ranges included; null where it is no list of numbers.

    An empty bracket and `[None]` list nothing. Beside other words (`[Response, 1]`) a number counts that stands alone
    between commas and is one of a context.
    """
    if not inside.strip() or is_none(inside):
        return frozenset()
    plain = _RANGE_SPACES.sub("-", _SOURCE_WORDS.sub(" ", inside.strip()))
    parts = [part for part in _SOURCE_SEPARATORS.split(plain) if part]
    if parts and all(map(_NUMBER.fullmatch, parts)):
        return frozenset(number for part in parts for number in _range(part, contexts))
    listed = [part.strip() for part in plain.split(",")]
    known = frozenset(n for part in listed if _NUMBER.fullmatch(part) for n in _range(part, contexts))
    return known or None


def _range(part: str, contexts: int) -> Iterator[int]:
    if part.startswith("-"):
        return iter(())
    ends = sorted(_bounded(digits, contexts) for digits in part.split("-"))
    return iter(range(max(ends[0], 1), min(ends[-1], contexts) + 1))


def _bounded(digits: str, contexts: int) -> int:
    """The number, or one more than there are contexts where it is too long to be one of theirs."""
    return int(digits) if len(digits) <= _MOST_DIGITS else contexts + 1


def _distinct(covered: Iterable[_Item], uncovered: Iterable[_Item]) -> list[dict[str, Any]]:
    """Each text once, equals by collapsed white space; the first appearance keeps place and wording, covered wins."""
    found: dict[str, tuple[str, bool, set[int]]] = {}
    for is_covered, items in ((True, covered), (False, uncovered)):
        for item in items:
            _, _, sources = found.setdefault(collapsed(item.text), (item.text, is_covered, set()))
            sources.update(item.sources)
    return [{"text": text, "covered": kind, "sources": sorted(sources)} for text, kind, sources in found.values()]


SUMMARISE_CONTEXT = StageDefinition("summarise_context", ("query", "text"), parse_summary, SUMMARY_SCHEMA)
EVALUATE_COVERAGE = StageDefinition(
    "evaluate_coverage", ("query", "contexts", "response"), parse_coverage, COVERAGE_SCHEMA
)
