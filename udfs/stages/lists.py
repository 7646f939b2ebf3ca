"""Reading lists that models write: rows, items over several lines, notes below. Every function is total and linear."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from udfs.stages.reading import (
    Line,
    is_drawing,
    is_none,
    letters,
    split_marker,
    strip_thinking,
    unfenced,
    without_emphasis,
)

AFTERWORDS = {"note", "notes", "explanation", "explanations", "reasoning", "rationale", "changes", "changes made"}

_BOLD = "**"


def read_rows(completion: str) -> list[Line]:
    """The lines of a completion without its thinking and without a fence around all of it."""
    return [split_marker(line) for line in unfenced(strip_thinking(completion)).split("\n")]


def says_none(rows: Iterable[Line]) -> bool:
    """Whether a row is a lone `None`."""
    return any(is_none(row.text) for row in rows)


def list_items(rows: Sequence[Line]) -> list[list[str]]:
    """The lines of each list item; one goes on over the unmarked lines directly below that are indented further."""
    items: list[list[str]] = []
    indent: int | None = None
    for place, row in enumerate(rows):
        if row.marked and not is_drawing(row):
            indent = row.indent
            if not is_none(row.text) and not is_group_label(rows, place):
                items.append([row.text])
        elif items and indent is not None and row.text and row.indent > indent:
            items[-1].append(row.text)
        elif items and letters(row.text) in AFTERWORDS:
            break
        else:
            indent = None
    return items


def is_group_label(rows: Sequence[Line], place: int) -> bool:
    """`* Part 1:` directly above items that are indented further."""
    below = rows[place + 1] if place + 1 < len(rows) else rows[place]
    return rows[place].text.rstrip("*_").endswith(":") and below.marked and below.indent > rows[place].indent


def whole(text: str) -> str:
    """The text without surrounding emphasis, or half of a bold whose other half is cut off."""
    text = text.strip()
    if text.count(_BOLD) % 2:
        text = text.removeprefix(_BOLD) if text.startswith(_BOLD) else text.removesuffix(_BOLD)
    return without_emphasis(text.strip())
