"""Reading the units and statements of a text (Dejl et al. 2025; methods, section 2)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.lists import AFTERWORDS, is_heading, is_nested, list_items, read_rows, rows_of, says_none, whole
from untold.udfs.stages.numbered import matching_key
from untold.udfs.stages.reading import (
    ParsedLine,
    is_drawing,
    is_none,
    letters,
    past_echoes,
    without_emphasis,
    without_ticks,
)
from untold.udfs.stages.records import (
    STATEMENT_NAMES,
    Cell,
    Record,
    Records,
    Value,
    is_empty_list,
    read_records,
    unwrapped,
)

UNIT_TYPES = ("Fact", "Claim", "Instruction", "Data Format", "Meta Statement", "Question", "Other")

_TYPE_NAMES = {name.casefold().replace(" ", "") + end: name for name in UNIT_TYPES for end in ("", "s")}
# `unit (Type: Fact)` and `unit. **Type:** Fact`: what introduces the type, not the unit's own last words
_TYPE_LABEL = re.compile(
    r"(?:[:：(\[]\s{0,9}|(?<=[.!?。])\s{1,9}|\s[-–—|]\s|\s(?=[*_]))[*_]{0,2}(?:unit )?type[*_]{0,2}\Z", re.IGNORECASE
)
_BRACKETED_TYPE = re.compile(r"[(\[【][^()\[\]]{1,30}[)\]】][\W_]{0,8}\Z")
_REMARK = re.compile(r"\s\([^()]{1,40}\)[\W_]{0,4}\Z")
_SEPARATED = re.compile(r"\s(?:[-–—|→]|->|=>)\s")
_NAMES = "|".join(name.replace(" ", r"[\s_-]?") for name in UNIT_TYPES)
# `Fact: unit`, `Fact 3 (verifiable): unit`, `**[Fact]** unit`
_LEADING_TYPE = re.compile(
    rf"[*_`]{{0,3}}(?:[\[(【](?P<bracketed>{_NAMES})[)\]】][*_`]{{0,3}}\s{{0,3}}[:：]?"
    rf"|(?P<named>{_NAMES})(?:\s#?\d{{1,3}})?(?:\s\([^()]{{1,40}}\))?[*_`]{{0,3}}\s?(?:[:：]"
    rf"|[-–—](?=\s)))[*_`]{{0,3}}\s{{0,9}}(?=\S)",
    re.IGNORECASE,
)
_UNIT_LABEL = re.compile(r"[*_]{0,3}(?:(?:content )?unit|text|content|statement)[*_]{0,3}\s?[:：][*_]{0,3}\s*", re.I)
_EXPLAINED_TYPE = re.compile(
    rf"[:：]\s{{0,3}}[*_]{{0,2}}(?P<name>{_NAMES})[*_]{{0,2}}(?:\s[-–—]\s|,\s(?=as|because|since)"
    rf"|\.\s)[^:：]{{1,200}}\Z",
    re.I,
)
# `unit: Fact; unit: Claim`: several on one line would be one unit of the last type
_TYPE_WITHIN = re.compile(rf"(?:[:：]\s?(?:{_NAMES})|[(\[](?:{_NAMES})[)\]])\s?[;,|.]\s|\A\|\s")
# Models set the old statements beside the new ones, under a heading or on one line, which would double them
_OLD_HEADING = re.compile(r"(?:the )?(?:original|input|given|before)(?: (?:statements?|atoms|list|version))?\Z")
_OLD_OR_NEW = re.compile(
    r"(?:\A|\s)[*_]{0,3}(?:original|revised|rewritten)(?: statement)?[*_]{0,3}\s?[:：]", re.IGNORECASE
)
_NOTE = re.compile(r"[*_]{0,3}notes?[*_]{0,3}\s?[:：]", re.IGNORECASE)
_STRUCK = re.compile(r"~~[^~]{1,2000}~~\s?")
_REVISED_NAMES = ("revised", "revisedstatement", "revisedatom", "revision", "rewritten", *STATEMENT_NAMES)
# `statement (unchanged)`: said of the revision, not by the text
_REVISED_REMARK = re.compile(
    r"\s[*_]{0,2}[(\[](?:unchanged|no changes?(?: needed| made)?|kept as is|(?:pronouns?|references?) resolved)[)\]]"
    r"[*_]{0,2}(?P<stop>\.?)\Z",
    re.IGNORECASE,
)
_UNCHANGED = re.compile(r"\s?[:–—-]\s(?:unchanged|no changes?(?: needed| made)?)\.?\Z", re.IGNORECASE)
_ARROW = re.compile(r"\s(?:→|->|=>|➜|➡)\s")
_LABEL_WORDS = {"type", "unit type", "category", "label"}
_TYPE_FIELDS = ("type", "unittype", "category", "label", "class", "classification")
_LONGEST_TYPE = 60  # characters at a line's end in which its type, or a remark, is looked for
_COLONS = ":："

Unit = tuple[str, str]


@final_answer
@past_echoes
def parse_atoms(completion: str, variables: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """`atoms`: the units in order, each with one of `UNIT_TYPES`; none for a lone `None`.

    The type follows the last colon or a dash, stands in brackets at the end or leads; else it is the heading's above,
    or a field of an object or a column of a table. Raises `Unparsable` where a unit has no known type or nothing is a
    unit.
    """
    rows = read_rows(completion)
    found = _listed_units(read_records(completion), rows)
    atoms = [{"text": text, "unit_type": unit_type} for text, unit_type in found if text]
    if any(_TYPE_WITHIN.search(text) for text, _ in found):
        raise Unparsable("several units and their types on one line")
    if not atoms and not says_none(rows) and not is_empty_list(read_records(completion)):
        raise Unparsable("no unit with a unit type")
    return {"atoms": atoms}


@final_answer
@past_echoes
def parse_revised(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """`atoms`: the statements in order; none for a lone `None`.

    Raises `Unparsable` where no line is a list item, and where items have lists of their own below them: what was
    split and its parts, or a statement and its reasons.
    """
    rows = read_rows(completion)
    records = read_records(completion)
    atoms = list(_listed_texts(records)) if records else []
    if records and atoms and list_items(rows_of(records.rest)):
        raise Unparsable("two lists of statements")
    if not atoms and is_nested(completion):
        raise Unparsable("lists of statements below statements")
    atoms = atoms or list(_revised_items(rows, variables.get("statements", ())))
    if not atoms and not says_none(rows) and not is_empty_list(read_records(completion)):
        raise Unparsable("no list of statements")
    return {"atoms": atoms}


def _revised_items(rows: Sequence[ParsedLine], statements: Collection[str]) -> Iterator[str]:
    """The statements of the items of a list. Raises `Unparsable` where old ones may stand among the revised ones."""
    known = set(map(matching_key, statements))
    if any(_OLD_HEADING.match(letters(row.text)) for row in rows):
        raise Unparsable("the old statements beside the revised ones")
    for item in map(" ".join, list_items(rows)):
        if text := revised_text(item, known):
            yield text


def revised_text(item: str, known: Collection[str]) -> str:
    """The statement of an item without what was struck out, behind the arrow from the old one, without a remark.

    `known` are the keys of the old ones. Raises `Unparsable` for an item with the old statement beside the new one, and
    for a note.
    """
    if _OLD_OR_NEW.search(item) or (_NOTE.match(item) and not any(key.startswith("note") for key in known)):
        raise Unparsable("an item that is more than a revised statement")
    item = _STRUCK.sub("", item) if item.startswith("~~") else item
    arrow = _ARROW.search(item)
    text = whole(item[arrow.end() :] if arrow and matching_key(item[: arrow.start()]) in known else item)
    remark = _REVISED_REMARK.search(text, max(len(text) - _LONGEST_TYPE, 0))
    if remark:
        return whole(text[: remark.start()] + remark["stop"])
    unchanged = _UNCHANGED.search(text, max(len(text) - _LONGEST_TYPE, 0))
    return text[: unchanged.start()] if unchanged and matching_key(text[: unchanged.start()]) in known else text


def _listed_texts(records: Records) -> Iterator[str]:
    """The statements of a list of texts or of objects with a statement."""
    for value in unwrapped(records.values, _REVISED_NAMES):
        cell = value.cell(_REVISED_NAMES) if isinstance(value, Record) else value
        if not isinstance(cell, Cell) or not cell.bare:
            raise Unparsable("an element of a list is no statement")
        yield cell.bare


def _listed_units(records: Records | None, rows: Sequence[ParsedLine]) -> list[Unit]:
    """The units of a JSON list or table of them, else those of the lines."""
    if records is None:
        return list(_grouped_units(rows))
    units = [unit for value in unwrapped(records.values, STATEMENT_NAMES) for unit in _recorded_units(value)]
    beside = list(_grouped_units(rows_of(records.rest)))
    if units and beside:
        raise Unparsable("two lists of units and a unit type each")
    return units or beside


def _recorded_units(value: Value) -> Iterator[Unit]:
    """The unit of `{"unit": ..., "type": ...}` or of a text that ends in its type, or those of `{"Fact": [...]}`."""
    if isinstance(value, Cell):
        typed = _split_type(value.text)
    elif isinstance(value, Record) and (text := value.cell(STATEMENT_NAMES)) and value.field(_TYPE_FIELDS):
        kind = value.cell(_TYPE_FIELDS)
        name = _type_name(kind.text) if kind else None
        typed = (text.bare, name) if name else None
    elif isinstance(value, Record) and value.pairs and all(_type_name(key) for key, _ in value.pairs):
        yield from _units_by_type(value)
        return
    else:
        typed = None
    if typed is None:
        raise Unparsable("an element of a list has no known unit type")
    yield typed


def _units_by_type(record: Record) -> Iterator[Unit]:
    """The units of `{"Fact": [...], "Claim": [...]}`."""
    for key, value in record.pairs:
        name = _type_name(key)
        for text in value if isinstance(value, list) else [value]:
            if not isinstance(text, Cell) or name is None:
                raise Unparsable("an element under a unit type is no text")
            if text.bare and not is_none(text.text):
                yield text.bare, name


def _grouped_units(rows: Sequence[ParsedLine]) -> Iterator[Unit]:
    """The units of the lines: under a heading that is a type, those without one of their own have that."""
    headings = [place for place in range(len(rows)) if _group_type(rows, place) or is_heading(rows, place)]
    starts = [place for place in headings if not _is_about_group(rows, place)]
    grouped = any(_group_type(rows, place) for place in starts)
    if not grouped:
        yield from _units(rows)
        return
    yield from _units(rows[: starts[0]])
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        below, kind = rows[start + 1 : end], _group_type(rows, start)
        if letters(rows[start].text) in AFTERWORDS:
            return
        yield from _units_of_type(below, kind) if kind else _units(below)


def _is_about_group(rows: Sequence[ParsedLine], place: int) -> bool:
    """Whether a line directly below a type's heading speaks of it: `These can be verified:`."""
    row = rows[place]
    plain = row.text[:1].isalpha() and _type_name(row.text) is None and letters(row.text) not in AFTERWORDS
    return plain and not row.marked and place > 0 and _group_type(rows, place - 1) is not None


def _group_type(rows: Sequence[ParsedLine], place: int) -> str | None:
    """The type of the lines below, where a line is a heading of that name: `### Facts`, or `- Facts:` above others."""
    row = rows[place]
    name = _type_name(row.text)
    if name is None or not row.marked:
        return name
    below = next((each for each in rows[place + 1 :] if each.text), row)
    return name if below.marked and below is not row and below.indent > row.indent else None


def _units_of_type(rows: Sequence[ParsedLine], kind: str) -> Iterator[Unit]:
    """The units in the lines under a heading that is a type; one with a type of its own keeps that."""
    items = [" ".join(item) for item in list_items(rows)]
    said = [row for row in rows if not is_drawing(row) and not is_none(row.text)]
    if said and not items:
        raise Unparsable("no list of units under a unit type")
    for item in items:
        text, own = _split_type(item) or (item, kind)
        yield whole(text), own


def _units(rows: Sequence[ParsedLine]) -> Iterator[Unit]:
    """The (text, type) of each unit; a bulleted one goes on over unmarked lines until its type comes.

    Where no line has a bullet, a line without type belongs to the next one's unit, if one came before.
    """
    bulleted = any(row.marked and not is_drawing(row) for row in rows)
    begun: list[str] = []
    any_came = False
    for row in rows:
        if is_drawing(row) or is_none(row.text):
            continue
        typed = _split_type(row.text)
        if begun and typed and letters(typed[0]) in _LABEL_WORDS:
            typed = ("", typed[1])
            begun[0] = begun[0][label.end() :] if (label := _UNIT_LABEL.match(begun[0])) else begun[0]
        elif begun and row.marked:
            break
        if any_came and not begun and not row.marked and letters(row.text) in AFTERWORDS:
            return
        if typed:
            yield whole(" ".join([*begun, typed[0]])), typed[1]
            begun, any_came = [], True
        elif row.marked or begun or (any_came and not bulleted):
            begun.append(row.text)
    if begun and bulleted:
        raise Unparsable("a unit has no known unit type")


def _split_type(text: str) -> Unit | None:
    """The unit and its type: behind it, else before it, else behind it and explained."""
    bare = without_emphasis(without_ticks(text))
    return _type_behind(bare) or _type_before(bare) or _explained_type(bare)


def _type_behind(bare: str) -> Unit | None:
    """After the last colon, in brackets at the end, or after the last dash."""
    start = max(len(bare) - _LONGEST_TYPE, 0)
    place = max(bare.rfind(colon, start) for colon in _COLONS)
    name = _type_name(bare[place + 1 :]) if place >= 0 else None
    if name is None and (bracket := _BRACKETED_TYPE.search(bare, start)):
        place, name = bracket.start(), _type_name(bracket[0])
    if name is None and (dashes := list(_SEPARATED.finditer(bare, start))):
        place, name = dashes[-1].start(), _type_name(bare[dashes[-1].end() :])
    unit = bare[:place].rstrip()
    label = _TYPE_LABEL.search(unit, max(len(unit) - _LONGEST_TYPE, 0))
    return (unit[: label.start()] if label else unit, name) if name else None


def _type_before(bare: str) -> Unit | None:
    """`Fact: unit`, `**Fact** - unit` and `[Fact] unit`."""
    found = _LEADING_TYPE.match(bare)
    name = _type_name(found["bracketed"] or found["named"]) if found else None
    return (bare[found.end() :], name) if found and name else None


def _explained_type(bare: str) -> Unit | None:
    """`unit: Fact - it can be checked`."""
    place = max(bare.rfind(colon) for colon in _COLONS)
    found = _EXPLAINED_TYPE.match(bare, place) if place > 0 else None
    name = _type_name(found["name"]) if found else None
    return (bare[:place].rstrip(), name) if name else None


def _type_name(text: str) -> str | None:
    """The type that a text names and nothing else, but for a remark in brackets: `Fact (verifiable)`."""
    if len(text) > _LONGEST_TYPE * 2:
        return None
    names = (letters(form).replace(" ", "") for form in (text, _REMARK.sub("", text)))
    return next((_TYPE_NAMES[name] for name in names if name in _TYPE_NAMES), None)
