"""Shapes: the types of columns whose file does not name them, from their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What is nested deeper, or has more keys, is carried as JSON text: a schema of that size serves no reader.
MAX_DEPTH = 16
MAX_FIELDS = 200
LONG = 2**63

Shape = Any
"""null, boolean, long, double, string, text (types that do not agree), {"list": shape} or {"struct": {name: shape}}."""


def shape_of(value: Any, depth: int = 0) -> Shape:
    """The type of a value of JSON.

    >>> shape_of({"n": 1, "marks": [1, 2.5, None]})
    {'struct': {'n': 'long', 'marks': {'list': 'double'}}}
    """
    if value is None:
        return "null"
    # Before int, which it is in Python.
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
    """A struct, or text where Spark could not hold it: names equal but for case, empty names, too many.

    >>> struct_shape({"a": "long", "A": "long"})
    'text'
    """
    names = {name.lower() for name in fields}
    return "text" if len(names) < len(fields) or "" in names or len(fields) > MAX_FIELDS else {"struct": fields}


def merge_shapes(left: Shape, right: Shape) -> Shape:
    """The type that holds both; `text` where none does, which then is the whole column's.

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
    """By column of either: the type that holds both.

    Merged in any order and grouping the types are the same, as tasks end in any order.
    """
    names = {**left, **right}
    return {name: merge_shapes(left.get(name, "null"), right.get(name, "null")) for name in names}
