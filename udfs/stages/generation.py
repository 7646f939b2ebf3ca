"""The stages that write texts: answers to a query from its contexts, and statements of questions with answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from untold.udfs.stages.answers import read_text, reader, unbulleted
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
from untold.udfs.stages.forms import undecorated
from untold.udfs.stages.lists import item_text
from untold.udfs.stages.reading import split_marker, without_ticks

ANSWER_SCHEMA = pa.schema([pa.field("answer", pa.string())])
RESTATED_SCHEMA = pa.schema([pa.field("statement", pa.string())])

_QUOTES = ('""', "“”", "«»", "„“")


@partial(reader, is_text=True, may_be_code=True)
def parse_answer(text: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the `answer`: the text without a fence or tags around it. Raises `Unparsable` for an empty one."""
    answer = read_text(text, ("answer", "response"), str(variables.get("query") or ""))
    if not isinstance(answer, str) or not any(map(str.isalnum, answer)):
        raise Unparsable("no answer")
    return {"answer": undecorated(answer)}


@partial(reader, is_text=True)
def parse_restated(text: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the `statement`: the first sentence or paragraph, on one line, without label, bullet and quotation marks.

    Raises `Unparsable` for an empty statement, and for a table in its place.
    """
    said = read_text(text, ("statement", "restatedstatement", "sentence", "text"))
    if not isinstance(said, str):
        raise Unparsable("no statement")
    lines = [line for line in said.split("\n") if any(map(str.isalnum, line))]
    line = unbulleted(without_ticks(lines[0].strip())) if len(lines) == 1 else ""
    statement = item_text(line)
    # `The statement: a lie, was made.` has no label
    statement = line if statement[:1].islower() and not line[:1].islower() else statement
    if statement[:1] + statement[-1:] in _QUOTES and statement[0] not in statement[1:-1]:
        statement = statement[1:-1].strip()
    given = [word for name in ("question", "answer") for word in str(variables.get(name) or "").casefold().split()]
    # `1. FC Köln` keeps its number
    rest = split_marker(statement).text
    if rest.split()[:1] and rest.casefold().split()[0] in given and statement.split()[0] not in given:
        statement = rest
    if not any(map(str.isalnum, statement)) or statement.startswith("|") or statement.endswith((":", "?")):
        raise Unparsable("no statement on one line")
    return {"statement": statement}


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
    text="statement",
)
