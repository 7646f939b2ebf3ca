"""Convert values of files to JSON, text and column types, and infer types from values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time
from typing import Any
from uuid import UUID

import pyarrow as pa

# Deeper JSON is refused, because Python's own limit depends on the call stack
MAX_NESTING = 200
# Larger integers are not exact as doubles, so only smaller doubles are written as integers
EXACT_DOUBLE = 2**53
UUID_BYTES = 16

ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))
SURROGATE = re.compile("[\ud800-\udfff]")
SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def plain(value: Any) -> Any:
    """Return the value for canonical JSON: no nulls in objects, integral doubles as integers, dates as ISO text.

    >>> plain({"n": 2.0, "none": None, "day": date(2025, 3, 1)})
    {'n': 2, 'day': '2025-03-01'}
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < EXACT_DOUBLE else value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        with suppress(OverflowError):
            value = value.astimezone(UTC) if value.tzinfo else value
        return value.isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def canonical(value: Any) -> str:
    """Return canonical JSON: keys sorted by code point, no spaces, only the required escapes.

    >>> canonical({"b": [1.0, None], "a": "é"})
    '{"a":"é","b":[1,null]}'
    """
    return ENCODER.encode(plain(value))


def text_of(value: Any) -> str | None:
    """Return a value for a text column: text unchanged, bytes decoded as UTF-8, other values as canonical JSON.

    NaN and infinities become None, because data frames write NaN for a missing value.

    >>> text_of("as it is"), text_of(2.0), text_of(["a"]), text_of(None), text_of(math.nan)
    ('as it is', '2', '["a"]', None, None)
    """
    value = finite(value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    text = plain(value)
    return text if isinstance(text, str) else canonical(text)


def finite(value: Any) -> Any:
    """Return the value; None for NaN and infinities."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def object_of(value: Any) -> Mapping[str, Any]:
    """Return a value that is an object, and an empty object for any other value."""
    return value if isinstance(value, Mapping) else {}


def first_of(values: Mapping[str, Any], names: Iterable[str]) -> Any:
    """Return the first value under the names that is not null, NaN or infinite, None without one."""
    return next((values[name] for name in names if finite(values.get(name)) is not None), None)


def id_of(value: Any) -> str | None:
    """Return an id as text. 16 bytes that are not text become a UUID, and others hexadecimal digits.

    >>> id_of(7), id_of(b"a-1"), id_of(bytes(16)), id_of(b"\\xff")
    ('7', 'a-1', '00000000-0000-0000-0000-000000000000', 'ff')
    """
    if not isinstance(value, bytes):
        return text_of(value)
    with suppress(UnicodeDecodeError):
        if (text := value.decode()).isprintable():
            return text
    return str(UUID(bytes=value)) if len(value) == UUID_BYTES else value.hex()


def as_type(value: Any, arrow: pa.DataType) -> Any:
    """Return a value for its column: text columns need `text_of`, and Arrow refuses some integers as doubles."""
    if value is None:
        return None
    if pa.types.is_string(arrow):
        return text_of(value)
    if pa.types.is_floating(arrow):
        return float(value)
    if pa.types.is_list(arrow):
        return [as_type(item, arrow.value_type) for item in value]
    if pa.types.is_struct(arrow):
        return {item.name: as_type(value.get(item.name), item.type) for item in arrow}
    if pa.types.is_map(arrow):
        return [(key, as_type(item, arrow.item_type)) for key, item in value.items()]
    return value


def load_json(text: str) -> Any:
    """Return JSON as Python values, with lone surrogates replaced. For equal keys the last value counts.

    Raises ValueError for invalid JSON, and RecursionError for JSON that is nested too deeply.

    >>> load_json('{"id": 1, "id": 2}')
    {'id': 2}
    """
    return check_nesting(json.loads(text), text)


def json_or(text: str, default: Any) -> Any:
    """Return JSON as `load_json`, or the default for a text that is not JSON or too deeply nested."""
    try:
        return load_json(text)
    except (ValueError, RecursionError):
        return default


def check_nesting(value: Any, text: str) -> Any:
    """Return the value of a JSON text with lone surrogates replaced. Raises RecursionError if it is too deep."""
    # The count is fast and never too low, so only texts with many brackets are walked
    if text.count("[") + text.count("{") > MAX_NESTING and _is_deeper(value, MAX_NESTING):
        raise RecursionError
    return without_surrogates(value) if SURROGATE_ESCAPE.search(text) else value


def _is_deeper(value: Any, depth: int) -> bool:
    """Return True if lists and objects are nested more than `depth` levels deep."""
    if not isinstance(value, list | dict):
        return False
    items = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(item, depth - 1) for item in items)


def without_surrogates(value: Any) -> Any:
    """Replace lone surrogates at any depth, also in keys, because Arrow and UTF-8 do not support them."""
    if isinstance(value, str):
        return SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    return value


# Deeper values and values with more keys become JSON text, because a schema of this size is of no use
MAX_DEPTH = 16
MAX_FIELDS = 200
LONG = 2**63

Shape = Any
"""null, boolean, long, double, string, text (mixed types), {"list": shape} or {"struct": {name: shape}}."""


def shape_of(value: Any, depth: int = 0) -> Shape:
    """Return the type of a JSON value.

    >>> shape_of({"n": 1, "marks": [1, 2.5, None]})
    {'struct': {'n': 'long', 'marks': {'list': 'double'}}}
    """
    if value is None:
        return "null"
    # Before int, because bool is a subclass of int
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "long" if -LONG <= value < LONG else "text"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return "string"
    if depth == MAX_DEPTH or not isinstance(value, list | dict):
        return "text"
    if isinstance(value, dict):
        fields = {key: shape_of(item, depth + 1) for key, item in value.items()}
        return "text" if "text" in fields.values() else struct_shape(fields)
    inner: Shape = "null"
    for item in value:
        inner = merge_shapes(inner, shape_of(item, depth + 1))
    return "text" if inner == "text" else {"list": inner}


def struct_shape(fields: dict[str, Shape]) -> Shape:
    """Return a struct, or text if Spark does not support it: names that differ only by case, empty or too many names.

    >>> struct_shape({"a": "long", "A": "long"})
    'text'
    """
    names = {name.lower() for name in fields}
    return "text" if len(names) < len(fields) or "" in names or len(fields) > MAX_FIELDS else {"struct": fields}


def merge_shapes(left: Shape, right: Shape) -> Shape:
    """Return the type that holds both, or `text` if there is none, which then applies to the whole column.

    >>> merge_shapes("long", "double"), merge_shapes("long", "string"), merge_shapes("null", "boolean")
    ('double', 'text', 'boolean')
    """
    if left == right or right == "null":
        return left
    if left == "null":
        return right
    if isinstance(left, str) or isinstance(right, str):
        return "double" if {str(left), str(right)} == {"long", "double"} else "text"
    if "list" in left and "list" in right:
        inner = merge_shapes(left["list"], right["list"])
        return "text" if inner == "text" else {"list": inner}
    if "struct" in left and "struct" in right:
        fields = dict(left["struct"])
        for name, shape in right["struct"].items():
            fields[name] = merge_shapes(fields.get(name, "null"), shape)
        return "text" if "text" in fields.values() else struct_shape(fields)
    return "text"


def merge_columns(left: Mapping[str, Shape], right: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the type that holds both, for each column of either.

    The result does not depend on order and grouping, because tasks end in any order.
    """
    names = {**left, **right}
    return {name: merge_shapes(left.get(name, "null"), right.get(name, "null")) for name in names}
