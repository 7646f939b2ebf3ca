"""The stages of end-to-end comprehensiveness and of conflicts (Dejl et al. 2025; methods, section 4)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from untold.udfs.facts.nodes import normalise
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
from untold.udfs.stages.final_answers import final_answer, final_text, recorded_text, unframed, untagged
from untold.udfs.stages.lists import rows_of, says_none
from untold.udfs.stages.non_answers import says_absent
from untold.udfs.stages.numbered import NumberedTexts, cells_of, known_numbers, read_numbered_labels
from untold.udfs.stages.reading import (
    collapsed,
    is_fence,
    is_none,
    is_rule,
    past_echoes,
    split_marker,
    strip_thinking,
    unfenced,
    without_emphasis,
    without_ticks,
)
from untold.udfs.stages.records import Record, Value, is_empty_list, json_at_line_starts, read_records, unwrapped

SUMMARY_SCHEMA = pa.schema([pa.field("summary", pa.string())])
STATEMENT_TYPE = pa.struct(
    [pa.field("text", pa.string()), pa.field("covered", pa.bool_()), pa.field("sources", pa.list_(pa.int32()))]
)
COVERAGE_SCHEMA = pa.schema([pa.field("statements", pa.list_(STATEMENT_TYPE)), pa.field("dropped", pa.int64())])

_STATEMENT = record(statement=TEXT, sources=listed(number_of("contexts")))
_LINES = r"(?:- .+ \[\d+(?:, ?\d+)*\]\s*|None\s*)?(?:- .+ \[\d+(?:, ?\d+)*\]\s*)*"
_COVERAGE_FORM = OutputFormat(
    "reasoning, then `[Covered statements]` and `[Uncovered statements]` on lines of their own, below each one line "
    "`- statement [1, 3]` for each of its statements",
    re.compile(rf"(?s:.*?)\[Covered statements\]\n\s*{_LINES}\[Uncovered statements\]\s*{_LINES}"),
)

_SUMMARY_NAMES = (
    r"(?:summary|relevant (?:summary|text|sentences|information|parts)|condensed (?:text|context)|answer|output)"
)
# `Summary: text`, and `## Summary` above it
_SUMMARY_PREFIX = re.compile(
    rf"(?:\*\*{_SUMMARY_NAMES}(?::\*\*|\*\* ?:)|(?:#{{1,6}} ?)?{_SUMMARY_NAMES} ?:)", re.IGNORECASE
)
_SUMMARY_HEADING = re.compile(rf"(?:#{{1,6}} *|\*\*)(?:{_SUMMARY_NAMES}|result):?(?:\*\*)?", re.IGNORECASE)
# `None. The text deals with cheese.`, but not `None of the ships sank.`
_NONE_FIRST = re.compile(
    r"[*_`\"'“\[(]{0,3}None[*_`\"'”\])]{0,3}"
    r"(?:[.:;]|\s[-–—]\s|\s?\((?!of\b)|,\s(?:since|as|because|the|it|nothing|there)\b|\s*\n|[^\S\n]*\Z)",
    re.IGNORECASE,
)
_SUMMARY_PREAMBLE = re.compile(
    r"(?:(?:sure|certainly|of course|okay|ok)(?: thing)?[,.!] *)?"
    r"(?:(?:here(?:['’]s| is| are)|below (?:is|are)|this is) (?:a|an|the|my|all|every|what)"
    r"|the following (?:is|are|text|sentences?|parts?|information))\b"
    r"[^.:]{0,60}\b(?:summary|condensed|relevant|bears? on|asked for)\b[^.:]{0,120}:",
    re.IGNORECASE,
)
_NOTHING = {"n/a", "null", "nothing", "nothing relevant", "not applicable"}
_SUMMARY_FIELDS = ("summary", "relevantsummary", "condensedtext", "condensed", "relevanttext", "text")
_GREETING = re.compile(r"(?:sure|certainly|of course|okay|ok)(?: thing)?[,.!]*\s*\n", re.IGNORECASE)
# Tags that models set around a summary, as the template sets some around its texts
_SUMMARY_TAGS = {"summary", "text", "context", "answer", "output"}
_BULLET = re.compile(r"[-*+•>] +(?=\S)")
# A sentence about the query is a remark on the task, unless the source speaks of a query too.
_SOURCE = r"(?:the|this) (?:(?:given|provided|source) )?(?:text|passage|context|source)"
_IRRELEVANT = re.compile(
    rf"(?:none of {_SOURCE}\b|(?:nothing|no sentence) in {_SOURCE}\b|no relevant (?:information|sentences?|text)\b"
    rf"|{_SOURCE} (?:(?:is|are) (?:\w+ )?(?:irrelevant|unrelated|not relevant|not related)"
    r"|(?:does not|doesn['’]t|do not) (?:\w+ )?(?:contain|mention|provide|bear|help|relate|address)"
    r"|(?:contains|provides|has|says) (?:no|nothing)\b))[^.\n]{0,160}\bquery\b[^.\n]{0,80}\.?",
    re.IGNORECASE,
)


@final_text
@past_echoes
def parse_summary(completion: str, variables: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the `summary` of the context, null for a single `None`. Raises `Unparsable` for an empty completion."""
    text = unframed(strip_thinking(completion), str(variables.get("text") or ""))
    text = unfenced(_without_label(unfenced(text)))
    recorded = recorded_text(text, _SUMMARY_FIELDS)
    text = _undecorated(text if recorded is None else recorded)
    if not any(map(str.isalnum, text)):
        raise Unparsable("no summary: the completion is empty after thinking and labels are removed")
    if _is_nothing(text) or (recorded == "null") or _is_irrelevant(text, variables):
        return {"summary": None}
    return {"summary": text}


def _undecorated(text: str) -> str:
    """Return the text without tags, backticks, one bullet and emphasis around the whole text."""
    text = without_emphasis(without_ticks(untagged(text, _SUMMARY_TAGS)))
    bullet = _BULLET.match(text)
    return without_emphasis(text[bullet.end() :].strip()) if bullet and "\n" not in text else text


def _is_nothing(text: str) -> bool:
    """Return True for a single `None`, also before a remark: `None. The text deals with cheese`."""
    first = next((line for line in text.split("\n") if not is_fence(line)), "")
    if text.strip(" .*_`\"'").casefold() in _NOTHING:
        return True
    return is_none(text) or is_none(without_ticks(split_marker(first).text)) or _NONE_FIRST.match(text) is not None


def _is_irrelevant(text: str, variables: Mapping[str, Any]) -> bool:
    """Return True for a sentence that calls the text irrelevant to the query and is not in the source."""
    own = str(variables.get("text") or "").casefold()
    if says_absent(text):
        return collapsed(text).casefold() not in collapsed(own)
    return _IRRELEVANT.fullmatch(text) is not None and "query" not in own


def _without_label(text: str) -> str:
    """Return the text without a greeting and without an introduction to the summary."""
    greeting = _GREETING.match(text)
    text = text[greeting.end() :].strip() if greeting else text
    first, _, rest = text.partition("\n")
    label = first.strip()
    if _SUMMARY_HEADING.fullmatch(label) or _SUMMARY_PREAMBLE.fullmatch(label):
        below = rest.strip()
        first, _, rest = below.partition("\n")
        text = rest.strip() if is_rule(first) else below
    prefix = _SUMMARY_PREFIX.match(text)
    return text[prefix.end() :].strip() if prefix else text


def summaries_in(completion: str) -> list[ExtractedItem]:
    """Return the summary as the only item, or no item for `None`. Raises `Unparsable`."""
    summary = parse_summary(completion, {})["summary"]
    return [] if summary is None else [ExtractedItem(summary)]


SUMMARISE_CONTEXT = StageDefinition(
    "summarise_context",
    ("query", "text"),
    parse_summary,
    SUMMARY_SCHEMA,
    schema=record(summary={"type": ["string", "null"]}),
    form=OutputFormat("the summary alone, or the single word None"),
    figures=Figures(RECORDED, completion=LinearSize(slope=0.44), things=LinearSize(0.99)),
    things=summaries_in,
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
# `covered: no`, but not the reason in `uncovered (no mention)`
_DENIAL = re.compile(r"[^\w\n]{1,6}(?:no|false)(?![^\W_])(?![^\S\n]+\w)", re.IGNORECASE)
_DOUBT = re.compile(
    r"[^\w\n]{1,6}(?:but\s)?(?:no|not|none|only|part(?:ly|ial|ially)|in part|somewhat|to some|maybe|unclear)"
    r"(?![^\W_])",
    re.IGNORECASE,
)


@final_answer
@past_echoes
def parse_conflicts(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the distinct `conflicts`: {first, second}, each with a text and its sources.

    The sources are numbers of contexts, from 1, in ascending order. `dropped` counts the pairs with a side without a
    known context. Raises `Unparsable` for a completion without an object or a single `None`, for an unreadable object,
    and if every pair is dropped.
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
    """Return `covered`: for each of `statements`, in order, True if the response states it.

    Raises `Unparsable` for a statement without a label or with several labels.
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
