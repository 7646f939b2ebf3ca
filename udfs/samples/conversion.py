"""Records as samples: the known columns read, the others carried, what is unusable named."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from untold.udfs.samples.items import named_texts, normalise_aspects, normalise_references
from untold.udfs.samples.records import Record
from untold.udfs.samples.values import ENCODER, load_json, text_of

KNOWN = ("sample_id", "query", "response", "contexts", "system", "label")
REQUIRED = ("query", "response", "contexts")
# What some metrics read where it is there: whose question a row is, and what an answer to it ought to cover
OPTIONAL = ("query_id", "aspects", "references")
# A required column that another may stand in for: what is looked in for facts, or the facts themselves
EITHER = "contexts or references"
# How those of them are read that hold items
ITEMS = {"aspects": normalise_aspects, "references": normalise_references}
# What text begins with that is meant as a list of JSON, whole or not; a text may begin with a bracket
JSON_LISTS = ('["', "[{", "[]")
# What a column of items holds where there are none, as text too
NO_ITEMS: tuple[Any, ...] = (None, [], "", "[]")
# What an answer has and a question has not, and what names a question
OF_ANSWERS = ("response", "system", "label")
QUESTION_ID = "question_id"
# 128 of the hash's 256 bits: short enough to be read, long enough that no two samples of a billion have one id.
SAMPLE_ID_CHARACTERS = 32


@dataclass(frozen=True)
class Sample:
    """A row as a sample: the six known columns, the rest, the hash of all (64 hex characters), and what is wrong.

    `known` has null where a column is unusable, and `error` then says which, without any text of the row's.
    """

    known: Mapping[str, Any]
    rest: Mapping[str, Any]
    content: str
    error: str | None


def to_sample(
    record: Record,
    contexts_as_text: bool,
    required_columns: Sequence[str] = REQUIRED,
    optional_columns: Sequence[str] = (),
) -> Sample:
    """A record as a sample: its id where given, else the hash of all columns. What is unusable is null.

    Of `REQUIRED`, those that are not among `required_columns` may be missing; with `EITHER` among these, contexts are
    required of rows that bring no references. Those of `OPTIONAL` that are among
    `optional_columns` are read; the others are carried along as they are. Of a question, what belongs to answers is
    left out, and question_id is its id where it has one.
    """
    if is_question(required_columns):
        record = replace(record, values=_question(record.values))
    values = record.values
    problems = [record.problem] if record.problem else []
    required = dict.fromkeys(REQUIRED)
    if not record.problem:
        required |= _required(values, contexts_as_text, required_columns, problems)
    rest = {name: value for name, value in values.items() if name not in KNOWN}
    content = _content(record, required["contexts"], rest)
    if not record.problem:
        # After the hash, which is of the row as it was given
        rest |= _optional(values, contexts_as_text, optional_columns, required_columns, problems)
    known = {
        "sample_id": text_of(values.get("sample_id")) or content[:SAMPLE_ID_CHARACTERS],
        **required,
        "system": text_of(values.get("system")),
        "label": text_of(values.get("label")),
    }
    return Sample(known, rest, content, "; ".join(problems) or None)


def is_question(required_columns: Sequence[str]) -> bool:
    """Whether rows that need have these columns alone are questions, which have no answer yet.

    >>> is_question(("query", "contexts")), is_question(("query", "response", "contexts"))
    (True, False)
    """
    return "response" not in required_columns


def _question(values: Mapping[str, Any]) -> dict[str, Any]:
    """The columns without those of answers, question_id as sample_id."""
    kept = {name: value for name, value in values.items() if name not in (*OF_ANSWERS, QUESTION_ID)}
    named = text_of(values.get(QUESTION_ID))
    return {**kept, "sample_id": named} if named else kept


def _required(
    values: Mapping[str, Any], contexts_as_text: bool, columns: Sequence[str], problems: list[str]
) -> dict[str, Any]:
    """The required columns, null where unusable; what is wrong with them is added to the problems."""
    texts = [name for name in ("query", "response") if name in columns]
    found: dict[str, Any] = {name: _text_column(name, values.get(name), problems) for name in texts}
    try:
        given = values.get("contexts")
        found["contexts"] = normalise_contexts(items_of_text(given, "contexts") if contexts_as_text else given)
    except ValueError as error:
        # What nothing reads is no problem of the row, and is kept where it can be read
        is_read = "contexts" in columns or (EITHER in columns and values.get("references") in NO_ITEMS)
        problems += [str(error)] if is_read else []
    return found


def _optional(
    values: Mapping[str, Any], as_text: bool, names: Sequence[str], required: Sequence[str], problems: list[str]
) -> dict[str, Any]:
    """Those optional columns that the row has and that are read, null where unusable; problems as in `_required`."""
    found: dict[str, Any] = {}
    if "query_id" in names and ("query_id" in values or "query_id" in required):
        found["query_id"] = text_of(values.get("query_id")) or None
        problems += ["query_id is null"] if found["query_id"] is None and "query_id" in required else []
    for name, normalise in ITEMS.items():
        if name in names and name in values:
            try:
                found[name] = normalise(_given_items(name, values[name], as_text))
            except ValueError as error:
                found[name] = None
                problems += [str(error)]
    if "references" in required and values.get("references") is None:
        problems += ["references is null"]
    return found


def _given_items(name: str, given: Any, as_text: bool) -> Any:
    """What a row gives for a column of items; a column of text has JSON, and references may be one text as well."""
    is_text = name == "references" and isinstance(given, str) and not given.lstrip().startswith(JSON_LISTS)
    return items_of_text(given, name) if as_text and not is_text else given


def _text_column(name: str, value: Any, problems: list[str]) -> str | None:
    """A column as text, null where it is unusable; what is wrong is added to the problems."""
    if isinstance(value, list | dict):
        problems.append(f"{name} is no text")
        return None
    text = text_of(value)
    if text is None:
        problems.append(f"{name} is null")
    elif name == "query" and not text.strip():
        problems.append("query is empty")
        return None
    return text


def normalise_contexts(value: Any) -> list[dict[str, str]]:
    """Contexts as [{id, text}]: strings get their 1-based position, numbers and booleans become text.

    An id that is missing, null or empty is the position. Raises ValueError that says what is wrong, without the text.

    >>> normalise_contexts(["first", {"id": "b", "text": 2}])
    [{'id': '1', 'text': 'first'}, {'id': 'b', 'text': '2'}]
    """
    if value is None:
        raise ValueError("contexts is null")
    return [{"id": name, "text": text} for _, name, text, _ in named_texts(value, "context")]


def items_of_text(value: Any, column: str) -> Any:
    """What a column of text holds as a list of JSON. Raises ValueError where it is no JSON.

    >>> items_of_text('["one", "two"]', "contexts")
    ['one', 'two']
    """
    if not isinstance(value, str | bytes):
        return value
    try:
        return load_json(cast(str, text_of(value)))
    except (ValueError, RecursionError):
        raise ValueError(f"{column} is no JSON list") from None


def _content(record: Record, contexts: list[dict[str, str]] | None, rest: Mapping[str, Any]) -> str:
    """sha2-256 of every column's text, nulls left out; of text, because one column has one type."""
    values = record.values
    texts = {name: text_of(value) for name, value in rest.items()}
    texts |= {name: text_of(values.get(name)) for name in KNOWN}
    # An empty id counts as none, as it does for the sample's own.
    texts["sample_id"] = texts["sample_id"] or None
    if contexts is not None:
        texts["contexts"] = ENCODER.encode(contexts)
    columns = {name: text for name, text in texts.items() if text is not None}
    # The raw text is in it for rows that could not be read: two of them are two samples.
    return hashlib.sha256(ENCODER.encode([columns, record.raw, contexts is None]).encode()).hexdigest()
