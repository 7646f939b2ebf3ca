"""JSON schemas of completions, and in which of a stage's forms a completion was written.

A stage's schema is data that a request fills in: `number_of("claims")` becomes the numbers of the claims that its
prompt shows. It keeps to what the structured outputs of endpoints know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from untold.udfs.ratings import SCALE
from untold.udfs.stages.reading import first_turn
from untold.udfs.stages.repeated_tags import texts_of

Schema = Mapping[str, Any]

# How a completion was read: as JSON of the schema, in the form of methods, section 9, or in another without doubt
SCHEMA, FORM, LENIENT = READ_AS = ("schema", "form", "lenient")
REASONING = "reasoning"
# OpenAI takes 1,000 values in one schema; beyond these, numbers are a range
MOST_NUMBERS = 250

TEXT: Schema = {"type": "string"}
RATING: Schema = {"type": "integer", "enum": list(map(int, SCALE))}
# Endpoints want every field; a model that has thought already leaves it null
THOUGHTS: Schema = {"type": ["string", "null"]}


def record(**fields: Schema) -> Schema:
    """An object with these fields, in this order, and no others."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def listed(item: Schema) -> Schema:
    """A list of such items."""
    return {"type": "array", "items": item}


def one_of(labels: Sequence[str]) -> Schema:
    """One of these texts."""
    return {"type": "string", "enum": list(labels)}


def number_of(variable: str) -> Schema:
    """The number, from 1, of one of the texts of a variable."""
    return {"type": "integer", "enum": variable}


@dataclass(frozen=True)
class Form:
    """The form that a template asks for: in words for a model, and what matches a completion; None matches any text."""

    words: str
    pattern: re.Pattern[str] | None = None


def lines_of(pattern: str, line: str, each: str = "one line for each:") -> Form:
    """The form with one item a line, which the pattern matches and `line` shows, or a lone `None`."""
    return Form(f"{each} `{line}`", re.compile(rf"(?:{pattern})(?:\n+(?:{pattern}))*|None"))


def label_of(labels: Sequence[str]) -> Form:
    """The form that is one of these labels and nothing else."""
    return Form(f"one of {', '.join(labels)}", re.compile("|".join(map(re.escape, labels))))


def filled(schema: Schema, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of one request.

    >>> filled(number_of("claims"), {"claims": ["Water is wet.", "Ice is cold."]})
    {'type': 'integer', 'enum': [1, 2]}
    """
    variable = schema.get("enum")
    if isinstance(variable, str):
        return {"type": "integer", **_numbers(len(variables.get(variable) or ()))}
    return {name: filled(value, variables) if isinstance(value, Mapping) else value for name, value in schema.items()}


def lists_in(schema: Schema) -> Iterator[str]:
    """The variables on whose lengths `filled` depends."""
    variable = schema.get("enum")
    if isinstance(variable, str):
        yield variable
    for value in schema.values():
        if isinstance(value, Mapping):
            yield from lists_in(value)


def _numbers(count: int) -> dict[str, Any]:
    """The numbers from 1; a range in place of too many, or of none, which no schema may list."""
    if 0 < count <= MOST_NUMBERS:
        return {"enum": list(range(1, count + 1))}
    return {"minimum": 1, "maximum": max(count, 1)}


def without_reasoning(schema: Schema) -> Schema:
    """The schema for a model that thinks before it answers."""
    fields = {name: field for name, field in schema["properties"].items() if name != REASONING}
    return record(**fields)


def read_as(completion: str, schema: Schema | None, form: Form | None, variables: Mapping[str, Any]) -> str:
    """One of `READ_AS`, for a completion that a stage's parser can read. A stage without a form takes any text.

    schema: the one that was sent; None for none.
    """
    answer = first_turn(completion, list(texts_of(variables.values()))).strip()
    if schema is not None and answer.startswith("{") and _fits(answer, filled(schema, variables)):
        return SCHEMA
    pattern = form.pattern if form else None
    return FORM if pattern is None or pattern.fullmatch(answer) else LENIENT


def _fits(answer: str, schema: Mapping[str, Any]) -> bool:
    # Not at the top: it takes a tenth of a second, and most completions are no JSON
    from jsonschema import Draft202012Validator

    try:
        return bool(Draft202012Validator(schema).is_valid(json.loads(answer)))
    except (ValueError, RecursionError):
        return False
