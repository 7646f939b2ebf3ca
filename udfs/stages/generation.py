"""The stages that write texts: answers to a query from its contexts, and statements of questions with answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from untold.udfs.stages.answers import read_text, reader, unbulleted, unframed, untagged
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
from untold.udfs.stages.reading import is_drawing, split_marker, unfenced, without_ticks

ANSWER_SCHEMA = pa.schema([pa.field("answer", pa.string())])
RESTATED_SCHEMA = pa.schema([pa.field("statement", pa.string())])

_GREETING = re.compile(r"(?:sure|certainly|of course|okay|ok|absolutely)(?: thing)?[,.!]+\s+", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,2}[.)]\s{1,9}(?P<word>[^\W\d_]{1,60})")
_ENDS_SENTENCE = (".", "!", "?", "。", '"', "”")
_QUOTES = ('""', "“”", "«»", "„“")


@partial(reader, is_text=True, may_be_code=True)
def parse_answer(text: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the `answer`: the text without a fence or tags around it. Raises `Unparsable` for an empty one."""
    answer = untagged(unfenced(text))
    # A query may ask for JSON
    recorded = read_text(answer, ("answer",)) if answer.startswith('{"answer"') else answer
    answer = recorded.strip() if isinstance(recorded, str) else answer
    if not answer:
        raise Unparsable("no answer")
    return {"answer": answer}


@partial(reader, is_text=True)
def parse_restated(text: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the `statement`: the first sentence or paragraph, on one line, without label, bullet and quotation marks.

    Raises `Unparsable` for an empty statement, and for a table in its place.
    """
    said = read_text(text, ("statement", "restatedstatement", "sentence", "text"))
    if not isinstance(said, str):
        raise Unparsable("no statement")
    paragraph = unframed(said.removeprefix("> ")).split("\n\n")[0].split("\n")
    lines = [line for line in paragraph if not is_drawing(split_marker(line)) and any(map(str.isalnum, line))]
    statement = ""
    for line in lines:
        statement = f"{statement} {without_ticks(unbulleted(line.strip()))}".strip()
        if line.rstrip("*_ ").endswith(_ENDS_SENTENCE):
            break
    statement = _GREETING.sub("", undecorated(statement), count=1)
    bare = item_text(statement)
    # `The statement: a lie, was made.` has no label
    statement = undecorated(statement if bare[:1].islower() and not statement[:1].islower() else bare)
    if statement[:1] + statement[-1:] in _QUOTES and statement[0] not in statement[1:-1]:
        statement = statement[1:-1].strip()
    number = _NUMBER.match(statement)
    given = " ".join(str(variables.get(name) or "") for name in ("question", "answer")).casefold()
    # `1. FC Köln` keeps its number
    if number and number["word"].casefold() in given and number[0].casefold() not in given:
        statement = number["word"] + statement[number.end() :]
    if not any(map(str.isalnum, statement)) or statement.startswith("|") or statement.endswith(":"):
        raise Unparsable("no statement")
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
)
