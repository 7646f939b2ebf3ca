"""Records as samples: the known columns read, the others carried, what is unusable named."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from udfs.samples.records import Record
from udfs.samples.values import ENCODER, load_json, text_of

KNOWN = ("sample_id", "query", "response", "contexts", "system", "label")
REQUIRED = ("query", "response", "contexts")
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


def to_sample(record: Record, contexts_as_text: bool, required_columns: Sequence[str] = REQUIRED) -> Sample:
    """A record as a sample: its id where given, else the hash of all columns. What is unusable is null.

    Of `REQUIRED`, those that are not among `required_columns` may be missing. Of a question, what belongs to answers is
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
        found["contexts"] = normalise_contexts(contexts_of_text(given) if contexts_as_text else given)
    except ValueError as error:
        # What nothing reads is no problem of the row, and is kept where it can be read
        problems += [str(error)] if "contexts" in columns else []
    return found


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
    if not isinstance(value, list):
        raise ValueError("contexts is no list")
    contexts: list[dict[str, str]] = []
    seen: dict[str, int] = {}
    for position, item in enumerate(value, start=1):
        named = isinstance(item, dict)
        text, name = (item.get("text"), item.get("id")) if named else (item, None)
        where = f"context {position}"
        if text is None:
            raise ValueError(f"{where} has no text" if named else f"{where} is null")
        if isinstance(text, list | dict) or isinstance(name, list | dict):
            raise ValueError(f"{where} is neither text nor an object of id and text")
        identifier = text_of(name) or str(position)
        # Sources of statements are ids: with two of one, nobody could say which context states what.
        if identifier in seen:
            raise ValueError(f"contexts {seen[identifier]} and {position} have one id")
        seen[identifier] = position
        contexts.append({"id": identifier, "text": cast(str, text_of(text))})
    return contexts


def contexts_of_text(value: Any) -> Any:
    """Contexts that a column of text holds as JSON. Raises ValueError where it is no JSON.

    >>> contexts_of_text('["one", "two"]')
    ['one', 'two']
    """
    if not isinstance(value, str | bytes):
        return value
    try:
        return load_json(cast(str, text_of(value)))
    except (ValueError, RecursionError):
        raise ValueError("contexts is no JSON list") from None


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
