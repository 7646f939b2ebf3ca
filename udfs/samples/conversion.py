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
# What some metrics read where it is there: whose question a row is, and what an answer to it ought to cover
OPTIONAL = ("query_id", "aspects")
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

    Of `REQUIRED`, those that are not among `required_columns` may be missing. Those of `OPTIONAL` that are among
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
        problems += [str(error)] if "contexts" in columns else []
    return found


def _optional(
    values: Mapping[str, Any], as_text: bool, names: Sequence[str], required: Sequence[str], problems: list[str]
) -> dict[str, Any]:
    """Those optional columns that the row has and that are read, null where unusable; problems as in `_required`."""
    found: dict[str, Any] = {}
    if "query_id" in names and ("query_id" in values or "query_id" in required):
        found["query_id"] = text_of(values.get("query_id")) or None
        problems += ["query_id is null"] if found["query_id"] is None and "query_id" in required else []
    if "aspects" in names and "aspects" in values:
        given = values["aspects"]
        try:
            found["aspects"] = normalise_aspects(items_of_text(given, "aspects") if as_text else given)
        except ValueError as error:
            found["aspects"] = None
            problems += [str(error)]
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
    return [{"id": name, "text": text} for name, text, _ in _items(value, "context")]


def normalise_aspects(value: Any) -> list[dict[str, Any]] | None:
    """Aspects as [{id, text, labels}], ids as of contexts; labels is a list of texts, or None. None without aspects.

    Raises ValueError that says what is wrong, without the text.

    >>> normalise_aspects(["cost", {"id": 7, "text": "safety", "labels": [True, "no"]}])
    [{'id': '1', 'text': 'cost', 'labels': None}, {'id': '7', 'text': 'safety', 'labels': ['true', 'no']}]
    """
    if value is None:
        return None
    return [
        {"id": name, "text": text, "labels": _labels(item, position)}
        for position, (name, text, item) in enumerate(_items(value, "aspect"), start=1)
    ]


def _labels(item: Any, position: int) -> list[str | None] | None:
    """What annotators say of an aspect, null where one of them says nothing."""
    labels = item.get("labels") if isinstance(item, dict) else None
    if labels is not None and not isinstance(labels, list):
        raise ValueError(f"labels of aspect {position} are no list")
    return None if labels is None else [text_of(label) for label in labels]


def _items(value: Any, one: str) -> list[tuple[str, str, Any]]:
    """The id, the text and the item itself of each of a list. Raises ValueError; `one` is what an item is called."""
    if not isinstance(value, list):
        raise ValueError(f"{one}s is no list")
    found: list[tuple[str, str, Any]] = []
    seen: dict[str, int] = {}
    for position, item in enumerate(value, start=1):
        named = isinstance(item, dict)
        text, name = (item.get("text"), item.get("id")) if named else (item, None)
        where = f"{one} {position}"
        if text is None:
            raise ValueError(f"{where} has no text" if named else f"{where} is null")
        if isinstance(text, list | dict) or isinstance(name, list | dict):
            raise ValueError(f"{where} is neither text nor an object of id and text")
        identifier = text_of(name) or str(position)
        # Sources of statements are ids: with two of one, nobody could say which context states what.
        if identifier in seen:
            raise ValueError(f"{one}s {seen[identifier]} and {position} have one id")
        seen[identifier] = position
        found.append((identifier, cast(str, text_of(text)), item))
    return found


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
