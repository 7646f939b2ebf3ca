"""Reading the claims of a text and the aspects of a query (Samarinas et al. 2025; methods, section 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from udfs.stages.definitions import Unparsable
from udfs.stages.echoes import past_echoes
from udfs.stages.lists import list_items, read_rows, rows_of, says_none, whole
from udfs.stages.reading import is_drawing
from udfs.stages.records import STATEMENT_NAMES, Cell, Record, is_empty_list, read_records, unwrapped

ASPECT_NAMES = ("topic", "aspect", "subtopic", "name", "title", "text")
_COLONS = (":", "：")


def _listed(completion: str, names: tuple[str, ...]) -> list[str]:
    records = read_records(completion)
    if records:
        values = unwrapped(records.values, names)
        cells = [value.cell(names) if isinstance(value, Record) else value for value in values]
        texts = [cell.bare for cell in cells if isinstance(cell, Cell) and cell.bare]
        if len(texts) < len(cells) or list_items(rows_of(records.rest)):
            raise Unparsable("an element of a list is none of what was asked for")
        return texts
    rows = read_rows(completion)
    if any(row.marked and not is_drawing(row) for row in rows):
        return [whole(" ".join(item)) for item in list_items(rows)]
    lines = [row.text for row in rows if not is_drawing(row)]
    if lines and lines[0].rstrip("*_ ").endswith(_COLONS):
        lines = lines[1:]
    return [] if says_none(rows) else [whole(line) for line in lines]


@past_echoes
def parse_claims(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """`claims`: the claims in order, equal ones as often as they stand there; none for a lone `None`."""
    return {"claims": _read(completion, STATEMENT_NAMES)}


@past_echoes
def parse_aspects(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """`aspects`: all of them in order, equal ones as often as they stand there; none for a lone `None`."""
    return {"aspects": _read(completion, ASPECT_NAMES)}


def _read(completion: str, names: tuple[str, ...]) -> list[str]:
    found = _listed(completion, names)
    if not found and not says_none(read_rows(completion)) and not is_empty_list(read_records(completion)):
        raise Unparsable("no list")
    return found
