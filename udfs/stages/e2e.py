"""The stages of end-to-end comprehensiveness (Dejl et al. 2025; methods, section 4) and how they are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from udfs.stages.coverage import parse_coverage
from udfs.stages.definitions import StageDefinition, Unparsable
from udfs.stages.reading import is_none, strip_thinking, unfenced

SUMMARY_SCHEMA = pa.schema([pa.field("summary", pa.string())])
STATEMENT_TYPE = pa.struct(
    [pa.field("text", pa.string()), pa.field("covered", pa.bool_()), pa.field("sources", pa.list_(pa.int32()))]
)
COVERAGE_SCHEMA = pa.schema([pa.field("statements", pa.list_(STATEMENT_TYPE)), pa.field("dropped", pa.int64())])

_SUMMARY_NAMES = r"(?:summary|relevant summary|condensed (?:text|context))"
_SUMMARY_PREFIX = re.compile(
    rf"(?:\*\*{_SUMMARY_NAMES}(?::\*\*|\*\* ?:)|(?:#{{1,6}} ?)?{_SUMMARY_NAMES} ?:)", re.IGNORECASE
)
_SUMMARY_HEADING = re.compile(rf"(?:#{{1,6}} *|\*\*){_SUMMARY_NAMES}(?:\*\*)?", re.IGNORECASE)
_NONE_FIRST = re.compile(
    r"[*_`\"'“\[(]{0,3}None[*_`\"'”\])]{0,3}"
    r"(?:[.:;]|\s[-–—]\s|\s?\(|,\s|\s*\n|[^\S\n]*\Z)",
    re.IGNORECASE,
)
_SUMMARY_PREAMBLE = re.compile(
    r"(?:sure[,.!] *)?here(?:['’]s| is) (?:a|an|the|my)\b[^.:]{0,60}\bsummary\b[^.:]{0,120}:", re.IGNORECASE
)


def parse_summary(completion: str, variables: Mapping[str, Any]) -> dict[str, str | None]:
    """`summary`: the condensed context, null for a lone `None`. Raises `Unparsable` where nothing was answered."""
    text = unfenced(_without_label(unfenced(strip_thinking(completion))))
    if not text:
        raise Unparsable("no summary: the completion is empty after thinking and labels are removed")
    return {"summary": None if _is_nothing(text) else text}


def _is_nothing(text: str) -> bool:
    """A lone `None`, or one whose sentence ends there: `None. The text deals with cheese.`"""
    return is_none(text) or _NONE_FIRST.match(text) is not None


def _without_label(text: str) -> str:
    first, _, rest = text.partition("\n")
    label = first.strip()
    if _SUMMARY_HEADING.fullmatch(label) or _SUMMARY_PREAMBLE.fullmatch(label):
        return rest.strip()
    prefix = _SUMMARY_PREFIX.match(text)
    return text[prefix.end() :].strip() if prefix else text


SUMMARISE_CONTEXT = StageDefinition("summarise_context", ("query", "text"), parse_summary, SUMMARY_SCHEMA)
EVALUATE_COVERAGE = StageDefinition(
    "evaluate_coverage", ("query", "contexts", "response"), parse_coverage, COVERAGE_SCHEMA
)
