"""Declare the JSON schema, or the format of a text, that a stage requests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from untold.udfs.ratings import SCALE

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
RATING: Schema = {"type": "integer", "enum": list(map(int, SCALE))}
# Endpoints require every field. A model that has finished its reasoning returns null
THOUGHTS: Schema = {"type": ["string", "null"]}


def record(**fields: Schema) -> Schema:
    """Return the schema of an object with exactly these fields, in this order."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def listed(item: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item}


def one_of(labels: Sequence[str]) -> Schema:
    """Return the schema of a text from a closed list."""
    return {"type": "string", "enum": list(labels)}


def number_of(variable: str) -> Schema:
    """Return the schema of the number of a text of a variable, from 1."""
    return {"type": "integer", "enum": variable}


@dataclass(frozen=True)
class OutputFormat:
    """The output format of a template: its description for a model, and its pattern. None matches any text."""

    words: str
    pattern: re.Pattern[str] | None = None


def lines_of(pattern: str, line: str, each: str = "one line for each:") -> OutputFormat:
    """Return the format with one item per line, or only `None`. `line` describes the pattern of a line."""
    return OutputFormat(f"{each} `{line}`", re.compile(rf"(?:{pattern})(?:\n+(?:{pattern}))*|None"))


def label_of(labels: Sequence[str]) -> OutputFormat:
    """Return the format of a label without other text."""
    return OutputFormat(f"one of {', '.join(labels)}", re.compile("|".join(map(re.escape, labels))))
