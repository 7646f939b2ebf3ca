"""The stages of end-to-end comprehensiveness (Dejl et al. 2025; methods, section 4) and how they are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from untold.udfs.stages.coverage import parse_coverage
from untold.udfs.stages.definitions import (
    RECORDED,
    TEXT,
    THOUGHTS,
    ExtractedItem,
    Figures,
    LinearSize,
    OutputFormat,
    StageDefinition,
    Unparsable,
    listed,
    number_of,
    record,
)
from untold.udfs.stages.final_answers import final_text, recorded_text, unframed, untagged
from untold.udfs.stages.non_answers import says_absent
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
# What speaks of the query speaks of this task, where the source itself does not: no sentence that was to be kept.
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
    """`summary`: the condensed context, null for a lone `None`. Raises `Unparsable` where nothing was answered."""
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
    """The text without tags, ticks, a bullet and emphasis around all of it; several bullets are its own."""
    text = without_emphasis(without_ticks(untagged(text, _SUMMARY_TAGS)))
    bullet = _BULLET.match(text)
    return without_emphasis(text[bullet.end() :].strip()) if bullet and "\n" not in text else text


def _is_nothing(text: str) -> bool:
    """A lone `None`, or one whose sentence ends there: `None. The text deals with cheese.`"""
    first = next((line for line in text.split("\n") if not is_fence(line)), "")
    if text.strip(" .*_`\"'").casefold() in _NOTHING:
        return True
    return is_none(text) or is_none(without_ticks(split_marker(first).text)) or _NONE_FIRST.match(text) is not None


def _is_irrelevant(text: str, variables: Mapping[str, Any]) -> bool:
    """A sentence that says that the text does not bear on the query, where the text does not say so itself."""
    own = str(variables.get("text") or "").casefold()
    if says_absent(text):
        return collapsed(text).casefold() not in collapsed(own)
    return _IRRELEVANT.fullmatch(text) is not None and "query" not in own


def _without_label(text: str) -> str:
    """The text without a greeting and without what introduces a summary, on a line above it or before it."""
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
    """One thing where a text has a summary; none for `None`. Raises `Unparsable`."""
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
    # Lists of 0.64 tokens a token were recorded; the reasoning, which was not, names each statement once before
    figures=Figures(RECORDED, completion=LinearSize(slope=1.28)),
    max_tokens=16_384,
    items=("statements",),
)
