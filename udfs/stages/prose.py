"""Reading the stages that give one text, where a model wraps it as JSON or between tags. Every function is linear."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from udfs.stages.definitions import Unparsable
from udfs.stages.reading import letters
from udfs.stages.records import Cell, Record, field_name, read_records

_OBJECT = re.compile(r'\{\s{0,40}"(?P<first>[^"\n]{1,60})"\s{0,9}:')
_TAG = re.compile(r"<(?P<name>[a-z_]{1,30})(?:\s[^<>\n]{0,60})?>", re.IGNORECASE)


def recorded_text(text: str, names: Sequence[str]) -> str | None:
    """The field of one of `names` in a lone JSON object, `null` as it is; None where the text is something else.

    Raises `Unparsable` for an object that begins with such a field and cannot be read: it broke off. Any other one
    stays a text, since sources quote JSON too.
    """
    opening = _OBJECT.match(text)
    if opening is None:
        return None
    try:
        records = read_records(text)
    except Unparsable:
        if field_name(opening["first"]) in names:
            raise
        return None
    value = records.values[0] if records and len(records.values) == 1 else None
    found = value.field(names) if isinstance(value, Record) else None
    return found.text.strip() if isinstance(found, Cell) else None


def untagged(text: str, names: Collection[str]) -> str:
    """The text between the tags of one of `names` that surround all of it; any other text as it is."""
    opening = _TAG.match(text)
    if opening is None or letters(opening["name"]) not in names:
        return text
    closing = f"</{opening['name']}>"
    inner = text[opening.end() : -len(closing)]
    return inner.strip() if text.endswith(closing) and closing not in inner else text
