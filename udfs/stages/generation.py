"""The stages that write text: answers, and answers as statements (Dejl et al. 2025; methods, sections 6 and 8)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from untold.udfs.stages.definitions import (
    TEXT,
    WRITTEN,
    Figures,
    LinearSize,
    OutputFormat,
    StageDefinition,
    Unparsable,
    record,
)
from untold.udfs.stages.final_answers import final_text, recorded_text, unframed, untagged
from untold.udfs.stages.reading import (
    collapsed,
    is_drawing,
    past_echoes,
    split_marker,
    strip_thinking,
    unfenced,
    without_emphasis,
    without_ticks,
)

ANSWER_SCHEMA = pa.schema([pa.field("answer", pa.string())])
RESTATED_SCHEMA = pa.schema([pa.field("statement", pa.string())])

_NAME = r"(?:(?:restated|rewritten|rephrased|combined|final|declarative|atomic) )?(?:statement|sentence)"
_LABELS = rf"(?:{_NAME}(?: \d{{1,2}})?|the (?:restated )?statement (?:is|would be|reads)|restated|rewritten|rephrased)"
_LABEL = re.compile(rf"[#*_\s]{{0,9}}{_LABELS}[*_]{{0,2}} ?[:：][*_]{{0,2}}\s*", re.IGNORECASE)
_HEADING = re.compile(
    rf"(?:#{{1,6}} *|\*\*)(?:{_NAME}|answer|result|output):?(?:\*\*)?:?\s*\n(?:\s*\n)?", re.IGNORECASE
)
_STATEMENT_FIELDS = ("statement", "restatedstatement", "sentence", "text")
_NUMBER = re.compile(r"\d{1,2}[.)]\s{1,9}(?=(?P<word>[^\W\d_]{1,60}))")
_GREETING = r"(?:(?:sure|certainly|of course|okay|ok|absolutely)(?: thing)?(?:[,.!]+\s*|\s*\n))"
# What ends in a full stop without ending a sentence; a single capital letter is an initial
_ABBREVIATION = re.compile(
    r"(?:\b(?:dr|mr|mrs|ms|prof|st|jr|sr|vs|etc|e\.g|i\.e|cf|approx|ca|fig|vol|inc|ltd|corp|gen|col|capt|lt|sgt|rev"
    r"|hon|dept|univ|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mt|ft|u\.s|u\.k|a\.m|p\.m)|(?-i:\b[A-Z]))\.\Z",
    re.IGNORECASE,
)
_INTRODUCTION = re.compile(
    rf"{_GREETING}?(?:here(?:['’]s| is)|this is|the following is) (?:a|an|the|your|my|one)\b"
    r"[^.:\n]{0,60}\b(?:statement|sentence|version)\b[^.:\n]{0,60}(?:[:：][*_]{0,2}\s*|\.\s*\n)"
    rf"|{_GREETING}?here(?:['’]s| is) what you asked for[:：]\s*",
    re.IGNORECASE,
)
_ONLY_GREETING = re.compile(_GREETING, re.IGNORECASE)
_LONGEST_ABBREVIATION = 12  # characters at a line's end that hold any of them
_BULLETS = "-*+•●○◦▪■‣·–—"
_ENDS = (".", "!", "?", "。", '"', "”", "'", "’", ")", "*", "`")
_QUOTES = {'""', "“”", "«»", "„“"}


@partial(final_text, may_be_json=True)  # a query may ask for JSON
def parse_answer(completion: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """`answer`: the text without thinking, and a fence or tags around all of it.

    Raises `Unparsable` where that is empty.
    """
    text = untagged(unfenced(strip_thinking(completion)), {"answer"})
    text = recorded_text(text, ("answer",)) or text
    if not text:
        raise Unparsable("no answer: the completion is empty after thinking is removed")
    return {"answer": text}


@final_text
@past_echoes
def parse_restated(completion: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """`statement`: the first sentence or line, on one line, without label, bullet and quotes.

    Raises `Unparsable` where nothing is left.
    """
    text = unfenced(_without_introduction(unfenced(unframed(strip_thinking(completion)))))
    recorded = recorded_text(text, _STATEMENT_FIELDS)
    if recorded == "null":
        raise Unparsable("no statement: the field is null")
    text = untagged(text if recorded is None else recorded, {"statement"})
    statement = _undecorated(_unnumbered(_first_of(text.split("\n")), variables))
    if not any(map(str.isalnum, statement)) or statement.startswith("|"):
        raise Unparsable("no statement: the completion is empty or a table after thinking and labels are removed")
    return {"statement": statement}


def _without_introduction(text: str) -> str:
    """The text without a greeting on a line of its own, `Here is the statement:` and `Statement:`."""
    # In the order in which models write them; below a heading there may be an introduction and a label again
    for opening in (_INTRODUCTION, _ONLY_GREETING, _LABEL, _HEADING, _INTRODUCTION, _LABEL):
        found = opening.match(text)
        text = text[found.end() :] if found else text
    return text


def _first_of(lines: Iterable[str]) -> str:
    """The lines of the first paragraph up to the one that ends a sentence."""
    taken: list[str] = []
    for line in (without_ticks(line.strip()) for line in lines):
        drawn = is_drawing(split_marker(line))
        if taken and drawn:
            break
        if not drawn:
            taken.append(line)
        if taken and line.rstrip().endswith(_ENDS) and not _ABBREVIATION.search(line.rstrip()[-_LONGEST_ABBREVIATION:]):
            break
    return collapsed(" ".join(taken))


def _unnumbered(text: str, variables: Mapping[str, Any]) -> str:
    """The text without a number before a word that question or answer know without it: `1. FC Köln` keeps its own."""
    found = _NUMBER.match(text)
    given = " ".join(str(variables.get(name) or "") for name in ("question", "answer")).casefold()
    known = found and found["word"].casefold() in given and text[: found.end("word")].casefold() not in given
    return text[found.end() :] if found and known else text


def _undecorated(text: str) -> str:
    """The sentence without the mark of a quotation, a bullet, emphasis and quotation marks around all of it."""
    text = text.removeprefix("> ")
    text = split_marker(text).text if text[:1] in _BULLETS else text
    text = without_emphasis(text)
    return text[1:-1].strip() if text[:1] + text[-1:] in _QUOTES and text[0] not in text[1:-1] else text


GENERATE_ANSWER = StageDefinition(
    "generate_answer",
    ("query", "contexts"),
    parse_answer,
    ANSWER_SCHEMA,
    form=OutputFormat("the answer alone"),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.81)),
)
RESTATE_ANSWER = StageDefinition(
    "restate_answer",
    ("question", "answer"),
    parse_restated,
    RESTATED_SCHEMA,
    schema=record(statement=TEXT),
    form=OutputFormat("one statement on one line", re.compile(".+")),
    figures=Figures(WRITTEN, completion=LinearSize(slope=1.22)),
)
