"""The lines of the lists of `evaluate_coverage`: their sources told apart, remarks and quotations left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.lists import is_heading
from untold.udfs.stages.reading import Line, is_fence, is_rule, split_marker, without_ticks
from untold.udfs.stages.sources import split_sources

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
