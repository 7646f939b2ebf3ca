"""The stages of end-to-end comprehensiveness and of conflicts (Dejl et al. 2025; methods, section 4)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from untold.udfs.facts.nodes import normalise
from untold.udfs.stages.answers import read_text, reader, unbulleted
from untold.udfs.stages.coverage import parse_coverage
from untold.udfs.stages.definitions import (
    RECORDED,
    TEXT,
    THOUGHTS,
    WRITTEN,
    ExtractedItem,
    Figures,
    LinearSize,
    OutputFormat,
    StageDefinition,
    Unparsable,
    lines_of,
    listed,
    number_of,
    one_of,
    record,
)
from untold.udfs.stages.forms import find_records, get_field, numbers_of_value, says_nothing
from untold.udfs.stages.labels import Vocabulary, read_numbered_labels
from untold.udfs.stages.non_answers import says_absent
from untold.udfs.stages.reading import collapsed

SUMMARY_SCHEMA = pa.schema([pa.field("summary", pa.string())])
STATEMENT_TYPE = pa.struct(
    [pa.field("text", pa.string()), pa.field("covered", pa.bool_()), pa.field("sources", pa.list_(pa.int32()))]
)
COVERAGE_SCHEMA = pa.schema([pa.field("statements", pa.list_(STATEMENT_TYPE)), pa.field("dropped", pa.int64())])
COVERED, UNCOVERED = "covered", "uncovered"
SIDE = [("text", pa.string()), ("sources", pa.list_(pa.int32()))]
CONFLICT_TYPE = pa.struct([(name, pa.struct(SIDE)) for name in ("first", "second")])
CONFLICTS_SCHEMA = pa.schema([pa.field("conflicts", pa.list_(CONFLICT_TYPE)), pa.field("dropped", pa.int64())])
SIDES_SCHEMA = pa.schema([pa.field("covered", pa.list_(pa.bool_()))])

_STATEMENT = record(statement=TEXT, sources=listed(number_of("contexts")))
_LINES = r"(?:- .+ \[\d+(?:, ?\d+)*\]\s*|None\s*)?(?:- .+ \[\d+(?:, ?\d+)*\]\s*)*"
_COVERAGE_FORM = OutputFormat(
    "reasoning, then `[Covered statements]` and `[Uncovered statements]` on lines of their own, below each one line "
    "`- statement [1, 3]` for each of its statements",
    re.compile(rf"(?s:.*?)\[Covered statements\]\n\s*{_LINES}\[Uncovered statements\]\s*{_LINES}"),
)

_SUMMARY_FIELDS = ("summary", "relevantsummary", "condensedtext", "condensed", "relevanttext", "text")
_NOTHING = ("n/a", "null", "nothing relevant", "not applicable")
# A sentence about the query is a remark on the task, unless the source mentions a query
_SOURCE = r"(?:the|this) (?:(?:given|provided|source) )?(?:text|passage|context|source)"
_IRRELEVANT = re.compile(
    rf"(?:none of {_SOURCE}\b|(?:nothing|no sentence) in {_SOURCE}\b|no relevant (?:information|sentences?|text)\b"
    rf"|{_SOURCE} (?:(?:is|are) (?:\w+ )?(?:irrelevant|unrelated|not relevant|not related)"
    r"|(?:does not|doesn['’]t|do not) (?:\w+ )?(?:contain|mention|provide|bear|help|relate|address)"
    r"|(?:contains|provides|has|says) (?:no|nothing)\b))[^.\n]{0,160}\bquery\b[^.\n]{0,80}\.?",
    re.IGNORECASE,
)
_SIDES = Vocabulary(
    {COVERED: (), UNCOVERED: ("not covered",)},
    positive=COVERED,
    flags=(COVERED, UNCOVERED),
    names=("covered",),
    inputs=("statement", "statements"),
)
_NO_CONFLICT = re.compile(r"\W*(?:there are )?no (?:conflicts|contradictions)\W*", re.IGNORECASE)
_SOURCES_OF = {
    side: tuple(
        f"{side}{name}" for name in ("sources", "source", "contexts", "context", "sourceids", "contextids", "ids")
    )
    for side in ("first", "second")
}


@partial(reader, is_text=True)
def parse_summary(text: str, variables: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the `summary` of the context, null for `None` and for a sentence that reports no relevant content.

    Raises `Unparsable` for an empty completion.
    """
    own = str(variables.get("text") or "")
    said = read_text(text, _SUMMARY_FIELDS, own)
    if said is None:
        return {"summary": None}
    summary = unbulleted(str(said))
    if not any(map(str.isalnum, summary)):
        raise Unparsable("no summary")
    is_absent = says_absent(summary) and collapsed(summary).casefold() not in collapsed(own).casefold()
    is_remark = _IRRELEVANT.fullmatch(summary) is not None and "query" not in own.casefold()
    if is_absent or is_remark or says_nothing(summary) or summary.strip(" .*_`").casefold() in _NOTHING:
        return {"summary": None}
    return {"summary": summary}


def summaries_in(completion: str) -> list[ExtractedItem]:
    """Return the summary as the only item, or no item for `None`. Raises `Unparsable`."""
    summary = parse_summary(completion, {})["summary"]
    return [] if summary is None else [ExtractedItem(summary)]


@reader
def parse_sides(text: str, variables: Mapping[str, Any]) -> dict[str, list[bool]]:
    """Return whether each of `statements` is `covered`. Raises `Unparsable` for one without a clear label."""
    labels = read_numbered_labels(text, variables["statements"], _SIDES)
    if None in labels:
        raise Unparsable("a statement without a clear label")
    return {"covered": [label == COVERED for label in labels]}


@reader
def parse_conflicts(text: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `conflicts`, each pair once, and how many pairs beside them were `dropped`: a side names no context.

    Raises `Unparsable` for a pair without two statements and their sources, and if no pair names shown contexts.
    """
    if says_nothing(text) or _NO_CONFLICT.fullmatch(text):
        return {"conflicts": [], "dropped": 0}
    found = find_records(text, ("first", "second"))
    if found is None:
        raise Unparsable("no object with two statements")
    conflicts: dict[frozenset[str], dict[str, Any]] = {}
    dropped = 0
    for each in found[0]:
        sides = {name: _side(each, name, len(variables["contexts"])) for name in ("first", "second")}
        pair = frozenset(normalise(side["text"]) for side in sides.values())
        if not all(side["sources"] for side in sides.values()):
            dropped += 1
        elif len(pair) > 1:
            conflicts.setdefault(pair, sides)
    if dropped and not conflicts:
        raise Unparsable("no pair with contexts that were shown")
    return {"conflicts": list(conflicts.values()), "dropped": dropped}


def _side(value: Any, name: str, count: int) -> dict[str, Any]:
    text = value.get(name) if isinstance(value, dict) else None
    sources = get_field(value, _SOURCES_OF[name]) if isinstance(value, dict) else None
    if isinstance(text, dict):
        text, sources = get_field(text, ("text", "statement")), get_field(text, ("sources", "contexts"))
    if not isinstance(text, str) or not text.strip() or sources is None:
        raise Unparsable("a pair without two statements and their sources")
    return {"text": text.strip(), "sources": numbers_of_value(sources, count)[0]}


SUMMARISE_CONTEXT = StageDefinition(
    "summarise_context",
    ("query", "text"),
    parse_summary,
    SUMMARY_SCHEMA,
    schema=record(summary={"type": ["string", "null"]}),
    form=OutputFormat("the summary alone, or the single word None"),
    figures=Figures(RECORDED, completion=LinearSize(slope=0.44), things=LinearSize(0.99)),
    things=summaries_in,
    text="summary",
)
EVALUATE_COVERAGE = StageDefinition(
    "evaluate_coverage",
    ("query", "contexts", "response"),
    parse_coverage,
    COVERAGE_SCHEMA,
    schema=record(reasoning=THOUGHTS, covered_statements=listed(_STATEMENT), uncovered_statements=listed(_STATEMENT)),
    form=_COVERAGE_FORM,
    # Recorded lists have 0.64 tokens per token. The reasoning, which was not recorded, repeats each statement once.
    figures=Figures(RECORDED, completion=LinearSize(slope=1.28)),
    max_tokens=16_384,
    items=("statements",),
)
# The requested form. The two parts match no common text, so matching takes linear time.
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
