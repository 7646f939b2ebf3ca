"""The stages that list conflicts of contexts, and say which of their sides a response conveys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from untold.udfs.facts.nodes import normalise
from untold.udfs.stages.definitions import (
    TEXT,
    WRITTEN,
    Figures,
    LinearSize,
    StageDefinition,
    Unparsable,
    lines_of,
    listed,
    number_of,
    one_of,
    record,
)
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.lists import rows_of, says_none
from untold.udfs.stages.numbered import NumberedTexts, cells_of, known_numbers, read_numbered_labels
from untold.udfs.stages.reading import past_echoes, strip_thinking, unfenced
from untold.udfs.stages.records import Record, Value, is_empty_list, json_at_line_starts, read_records, unwrapped

COVERED, UNCOVERED = "covered", "uncovered"
SIDE = [("text", pa.string()), ("sources", pa.list_(pa.int32()))]
CONFLICT_TYPE = pa.struct([(name, pa.struct(SIDE)) for name in ("first", "second")])
CONFLICTS_SCHEMA = pa.schema([pa.field("conflicts", pa.list_(CONFLICT_TYPE)), pa.field("dropped", pa.int64())])
SIDES_SCHEMA = pa.schema([pa.field("covered", pa.list_(pa.bool_()))])

_SOURCES_OF = {
    side: tuple(
        f"{side}{name}" for name in ("sources", "source", "contexts", "context", "sourceids", "contextids", "ids")
    )
    for side in ("first", "second")
}
_CONTEXT_WORDS = re.compile(r"(?<![^\W_])(?:contexts?|and|nos?|numbers?|ids?|c)(?![^\W\d_])", re.IGNORECASE)
_STATEMENT_WORDS = re.compile(r"(?<![^\W_])(?:statements?|nos?|numbers?|ids?|s)(?![^\W\d_])", re.IGNORECASE)
_NO_CONFLICT = re.compile(
    r"[\W_]*(?:there (?:are|is) )?no (?:such )?(?:conflicts?|contradictions?|conflicting statements)\b"
    r"(?:(?!\b(?:but|however|although|though|except|yet|while|whereas|unless|only|apart|aside|besides|beyond|other than"
    r"|differ|disagree)\b)[^\n]){0,80}",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"[\W_]*(?:(?P<covered>covered|true|yes)|uncovered|not[\s_]covered|false|no(?![^\S\n]+\w))(?![^\W_])(?!\s(?:or|and)\b)"
    r"(?![\W_]{1,6}(?:un)?covered(?![^\W_]))",
    re.IGNORECASE,
)
# `covered: no`; never `uncovered (no mention)`, where a reason begins
_DENIAL = re.compile(r"[^\w\n]{1,6}(?:no|false)(?![^\W_])(?![^\S\n]+\w)", re.IGNORECASE)
_DOUBT = re.compile(
    r"[^\w\n]{1,6}(?:but\s)?(?:no|not|none|only|part(?:ly|ial|ially)|in part|somewhat|to some|maybe|unclear)"
    r"(?![^\W_])",
    re.IGNORECASE,
)


@final_answer
@past_echoes
def parse_conflicts(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """`conflicts`: {first, second}, each a text and its sources, the numbers of contexts, from 1, ascending.

    `dropped` counts the pairs of which one side names no context that was shown; of a pair that stands twice one is
    kept. Raises `Unparsable` where there is neither an object nor a lone `None`, where one cannot be read, and where
    every pair is dropped.
    """
    text = strip_thinking(completion)
    records = read_records(json_at_line_starts(text))
    contexts = NumberedTexts(variables["contexts"], _CONTEXT_WORDS)
    if records is None or is_empty_list(records):
        bare = unfenced(text)
        if records is None and not says_none(rows_of(bare)) and not _NO_CONFLICT.fullmatch(bare):
            raise Unparsable("no object with two statements")
        return {"conflicts": [], "dropped": 0}
    if "{" in records.rest:
        raise Unparsable("an object that cannot be read")
    found: dict[frozenset[str], dict[str, Any]] = {}
    dropped = 0
    for conflict in _conflicts(records.values, contexts):
        sides = [conflict[name] for name in ("first", "second")]
        pair = frozenset(normalise(side["text"]) for side in sides)
        if not all(side["sources"] for side in sides):
            dropped += 1
        elif len(pair) > 1:
            found.setdefault(pair, conflict)
    if dropped and not found:
        raise Unparsable("no pair with contexts that were shown")
    return {"conflicts": list(found.values()), "dropped": dropped}


def _conflicts(values: tuple[Value, ...], contexts: NumberedTexts) -> Iterator[dict[str, Any]]:
    for value in unwrapped(values, ("first",)):
        if not isinstance(value, Record):
            raise Unparsable("an element of the list is no object")
        yield {name: _side(value, name, contexts) for name in ("first", "second")}


def _side(value: Record, name: str, contexts: NumberedTexts) -> dict[str, Any]:
    text = value.cell((name, f"{name}statement"))
    if text is None:
        raise Unparsable("an object without two statements")
    given = value.field(_SOURCES_OF[name])
    if given is None:
        raise Unparsable("a statement without sources")
    cells = cells_of(given, ("id", "number", "context"))
    numbers = {number for cell in cells for number in known_numbers(cell.bare, contexts) if number in contexts}
    return {"text": text.bare, "sources": sorted(numbers)}


@final_answer
@past_echoes
def parse_sides(completion: str, variables: Mapping[str, Any]) -> dict[str, list[bool]]:
    """`covered`: whether the response conveys each of `statements`, in their order.

    Raises `Unparsable` where one of them has no label, or several.
    """
    labels = read_numbered_labels(completion, NumberedTexts(variables["statements"], _STATEMENT_WORDS), _read_label)
    if None in labels:
        raise Unparsable("a statement without a clear label")
    return {"covered": [label == COVERED for label in labels]}


def _read_label(text: str, number: int) -> str:
    found = _LABEL.match(text)
    if found is None:
        raise Unparsable("neither covered nor uncovered")
    behind = text[found.end() :]
    is_denied = _DENIAL.match(behind) is not None
    if found["covered"] is None and is_denied:
        raise Unparsable("uncovered, and denied")
    if found["covered"] is None or is_denied:
        return UNCOVERED
    if _DOUBT.match(behind):
        raise Unparsable("covered, and not quite")
    return COVERED


# In the form that is asked for; neither part can match what the other does, so that a long text is read once
_TEXT, _NUMBERS = r'"(?:[^"\\\n]|\\.)+"', r"\[[\d, ]*\]"
_SOURCES = listed(number_of("contexts"))
LIST_CONFLICTS = StageDefinition(
    "list_conflicts",
    ("query", "contexts"),
    parse_conflicts,
    CONFLICTS_SCHEMA,
    schema=record(conflicts=listed(record(first=TEXT, first_sources=_SOURCES, second=TEXT, second_sources=_SOURCES))),
    form=lines_of(
        rf'\{{"first": {_TEXT}, "first_sources": {_NUMBERS}, "second": {_TEXT}, "second_sources": {_NUMBERS}\}}',
        '{"first": "...", "first_sources": [n, ...], "second": "...", "second_sources": [n, ...]}',
        "one object on a line for each conflict:",
    ),
    figures=Figures(WRITTEN, completion=LinearSize(slope=1.03)),
    max_tokens=8_192,
)
COVER_SIDES = StageDefinition(
    "cover_sides",
    ("response", "statements"),
    parse_sides,
    SIDES_SCHEMA,
    schema=record(labels=listed(record(id=number_of("statements"), label=one_of((COVERED, UNCOVERED))))),
    form=lines_of(rf"\d{{1,9}}: (?:{COVERED}|{UNCOVERED})", "n: label", "one line for each statement:"),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.4)),
)
