"""Read JSON in any wrapping, Markdown tables, and lists of lines in completions.

A reader returns the written values or raises `Unparsable`. It never guesses. Every function takes linear time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from untold.udfs.facts.nodes import normalise
from untold.udfs.stages import reading
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.texts import table_cells

Fields = Mapping[str, Any]
"""A record: the values of a JSON object or a table row, by `field_key` of their names."""

ID_NAMES = ("id", "number", "no", "nr", "num", "n", "index", "item", "#")
_NUMBER_NAMES = (*ID_NAMES, "claimid", "candidateid", "claim", "candidate")
# The prefix of JSON on its line: a bullet, a number, emphasis, or a label of a few words
_BEGINS_JSON = re.compile(
    r"^[ \t]{0,40}(?:(?:[-*•+>–—]|\(?\d{1,3}[.)]|\*\*\d{1,3}[.)]\*\*)\s{1,4}(?:\[[ xX]\]\s)?"
    r"|[^\w\s{}\[\]\"`*_$]{1,3}[ \t]{0,2})?"
    r"(?P<label>[^\n{}\[\]|\"]{0,80}[:=：][*_]{0,2}[ \t]{0,4})?[*_`$]{0,3}"
    r"(?=\{\s*(?:[\"'}]|\w{1,40}\s*:|\d)|\[\s*[\[{\"'\d\]-])",
    re.MULTILINE,
)
# The library takes milliseconds for a thousand characters of JSON with mistakes
_LONGEST_REPAIRED = 20_000
_BARE_NUMBERS = re.compile(r"\[\s*-?\d|\{\s*\d+\s*:")
_NONE_AND_REMARK = re.compile(
    r"[*_`\"']{0,3}None[*_`\"']{0,3}(?:[.:;]\s|\s[-–—]\s|\s?\((?!of\b)|,\s(?:since|as|because)\b)",
    re.IGNORECASE,
)
_BEFORE_NONE = re.compile(
    r"\A[\W_]*(?:here is )?(?:my |the )?(?:final )?answer[*_]{0,2}\s?[:：](?=[\s*_]*none\b)", re.IGNORECASE
)
_NUMBERED_KEY = re.compile(r"([^\d]{0,20})(\d{1,6})")
_GAP_IN_JSON = re.compile(r"\s*,?\s*(?=[{\[])")
_ENDS_LINE = re.compile(r"[^\w\n\"'(){}\[\]<>]*(?:\n|\Z)")
_BRACKETS = re.compile(r"\"(?:[^\"\\]|\\.)*+\"?+|[{}\[\]]", re.DOTALL)
_TABLE_RULE = re.compile(r"\s*\|?\s*:?-{1,}:?\s*(?:\|\s*:?-{1,}:?\s*)*\|?\s*")
_NUMBER = re.compile(r"[^\w-]*(?:[^\W\d_]{1,12}[\s_.#-]{0,3})?(\d{1,9})(?:\.0)?[^\w]*")
_BETWEEN_NUMBERS = re.compile(r"\s*[,;&，、]\s*|\s+and\s+|\]\s*\[")
_RANGE = re.compile(r"\W{0,3}(?:[^\W\d_]{1,12}\s)?(\d{1,6})\W{0,2}(?:\s?[-–]\s?|\s?to\s?)\W{0,2}(\d{1,6})\W{0,3}")
_FIELD_LINE = re.compile(
    r"[\s>*_+•#\-\"']{0,9}(?P<name>[^\W\d][\w ]{0,30}?)[*_\"']{0,3}\s?[:：=][*_]{0,2}\s*(?P<value>\S[^\n]*)"
)
_HEADING = re.compile(r"\s*(?:#{1,6}\s.*|\*\*[^*]{1,100}(?<![.!?])\*\*:?\s*|[^\n]{0,200}[:：]\**\s*)")
# A heading or a line below a list with a remark on the list
_AFTERWORD = re.compile(
    r"[\s*_#>(-]{0,9}(?:notes?|explanations?|reasons?|reasoning|remarks?|comments?|changes|justification|total"
    r"|original|(?:i )?hope (?:this|that|it)|(?:please )?let me know|feel free|would you like|is there anything"
    r"|if you\b|i (?:have |did |only |also )?(?:merged?|split|used|started|struck|kept|combined|rated|resolved|left"
    r"|took|ignored|dropped|removed|replaced|changed|judged|listed|extracted)"
    r"|(?:all|these|those|the) (?:of )?(?:the )?(?:above )?(?:facts?|claims?|statements?|questions?|topics?"
    r"|aspects?|units?|nuggets?|lists?|items?)\b)",
    re.IGNORECASE,
)


def field_key(name: str) -> str:
    """Return the name of a field without case, spaces and punctuation.

    >>> field_key("Topic_ID"), field_key("#")
    ('topicid', '#')
    """
    return "".join(filter(str.isalnum, name)).casefold() or name.strip()


def get_field(fields: Fields, names: Sequence[str]) -> Any:
    """Return the value of the first of `names` that the record has, None for none.

    Raises `Unparsable` if two of the names have different values.
    """
    values = [fields[name] for name in names if name in fields and fields[name] is not None]
    if any(value != values[0] for value in values[1:]):
        raise Unparsable(f"two values of one field: {', '.join(names[:2])}")
    return values[0] if values else None


def number_of_value(value: Any) -> int | None:
    """Return the whole number that a value is or names (`2`, `2.0`, `"2"`, `"Fact 2"`), None if there is no one."""
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value)
        return int(found[1]) if found else None
    is_whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value)
    return int(value) if is_whole else None


def place_of_record(fields: Fields, names: Sequence[str], texts: Sequence[str]) -> int | None:
    """Return the number, from 1, of the text that a record names by its number or its text; None if it names neither.

    Raises `Unparsable` if the number and the text of a record differ.
    """
    places = _places_of(tuple(texts))
    said = [fields[name] for name in (*names, *ID_NAMES) if name in fields]

    def place_of(value: Any) -> int | None:
        return places.get(normalise(value)) if isinstance(value, str) else None

    by_text = [place for each in said if (place := place_of(each)) is not None]
    others = [number_of_value(each) for each in said if place_of(each) is None]
    numbers = [number for number in others if number is not None]
    chosen = (numbers or by_text)[:1]
    # Equal texts have the place of the first of them
    named = [place_of(texts[number - 1]) for number in chosen if 0 < number <= len(texts)]
    if chosen and any(place_of(each) not in (None, *chosen, *named) for each in fields.values()):
        raise Unparsable("a record with the text of another number")
    return chosen[0] if chosen else None


@lru_cache(maxsize=2)  # the records of a completion have the same texts
def _places_of(texts: tuple[str, ...]) -> Mapping[str, int]:
    """Return the number, from 1, of each text by its normal form."""
    places: dict[str, int] = {}
    for place, text in enumerate(texts, 1):
        places.setdefault(normalise(text), place)
    return places


def numbers_of_value(value: Any, count: int, texts: Sequence[str] = ()) -> tuple[list[int], int]:
    """Return the known numbers in a value, ascending, and how many of its numbers are not in 1..count.

    value: a number, a list of numbers, objects with an id or verbatim `texts`, or a text of numbers (`"1, 3"`).
    Raises `Unparsable` for 0, a negative number, or an element without a number.
    """
    if value is None or (isinstance(value, str) and (reading.is_none(value) or not any(map(str.isalnum, value)))):
        return [], 0
    if isinstance(value, str) and number_of_value(value) is None and value not in texts:
        value = [part for part in _BETWEEN_NUMBERS.split(value.strip().strip("[](){}")) if part]
    numbers: list[int] = []
    for each in value if isinstance(value, list) else [value]:
        bounds = _RANGE.fullmatch(each) if isinstance(each, str) else None
        if bounds and 0 < int(bounds[1]) < int(bounds[2]) <= count:
            numbers.extend(range(int(bounds[1]), int(bounds[2]) + 1))
            continue
        inner = get_field(each, _NUMBER_NAMES) if isinstance(each, dict) else each
        number = texts.index(inner) + 1 if isinstance(inner, str) and inner in texts else number_of_value(inner)
        if number is None or number < 1:
            raise Unparsable("a list element other than a number from 1")
        numbers.append(number)
    known = sorted({number for number in numbers if number <= count})
    return known, len({number for number in numbers if number > count})


def find_json(text: str) -> tuple[list[Any], str]:
    """Return the JSON values that begin a line, or follow another value, and end one, and the text around them.

    Python's literals, single quotes, comments and lost commas are repaired. Raises `Unparsable` for JSON that breaks
    off, and for an object with two values of one field.
    """
    values: list[Any] = []
    kept: list[str] = []
    place = 0
    while found := _BEGINS_JSON.search(text, place):
        ends = list(_decode_all(text, found.end()))
        end = ends[-1][1] if ends else found.end()
        if ends and _ENDS_LINE.match(text, end):
            values.extend(value for value, _ in ends)
            kept.append(text[place : found.start()] + "\n")
        else:
            # Text after it on the line makes it a text: `{"a": 1}: Data Format`, `[1] a statement`
            next_line = text.find("\n", end)
            end = next_line if next_line >= 0 else len(text)
            kept.append(text[place:end])
        place = end
    return values, "".join([*kept, text[place:]])


def _decode_all(text: str, start: int) -> Iterator[tuple[Any, int]]:
    """Yield the JSON values from a place on and their ends; none for a list of numbers with other signs."""
    place: int | None = start
    while place is not None and (found := _decode(text, place)) is not None:
        yield found
        gap = _GAP_IN_JSON.match(text, found[1])
        place = gap.end() if gap else None


def _decode(text: str, start: int) -> tuple[Any, int] | None:
    """Return the JSON value at a place and its end, None for a list of numbers with other signs."""
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError:
        raise Unparsable("JSON that is nested too deeply") from None
    except json.JSONDecodeError:
        if text[start] == "[" and _BARE_NUMBERS.match(text, start):
            return None
        end = _balanced_end(text, start)
    from json_repair import loads

    value: Any = None
    if not _BARE_NUMBERS.match(text, start, end) and end - start <= _LONGEST_REPAIRED:
        with suppress(ValueError, RecursionError):
            value = loads(text[start:end], skip_json_loads=True)
    if not isinstance(value, (dict, list)):
        raise Unparsable("JSON that cannot be read")
    return (_unique_fields(list(value.items())) if isinstance(value, dict) else value), end


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if fields.setdefault(field_key(str(name)), value) != value:
            raise Unparsable("an object with two values of one field")
    return fields


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_fields, strict=False)


def _balanced_end(text: str, start: int) -> int:
    """Return the place behind the bracket that closes the one at `start`. Raises `Unparsable` if none does."""
    depth = 0
    for found in _BRACKETS.finditer(text, start):
        if found[0] in "{[":
            depth += 1
        elif found[0] in "}]":
            depth -= 1
            if depth == 0:
                return found.end()
    raise Unparsable("JSON that cannot be read")


def find_table(text: str) -> tuple[list[Fields], str] | None:
    """Return the rows of the only Markdown table with a head, and the lines around it. None without a table.

    Raises `Unparsable` for several tables that differ in their heads.
    """
    lines = text.split("\n")
    rows: list[Fields] = []
    rest: list[str] = []
    head: list[str] | None = None
    for place, line in enumerate(lines):
        is_row = "|" in line
        if is_row and place + 1 < len(lines) and "|" in lines[place + 1] and _TABLE_RULE.fullmatch(lines[place + 1]):
            names = [field_key(undecorated(cell)) for cell in table_cells(line)]
            if head is not None and rows and names != head:
                raise Unparsable("two tables")
            head = names
        elif is_row and head is not None and not _TABLE_RULE.fullmatch(line):
            cells = list(map(undecorated, table_cells(line)))
            if len(cells) != len(head):
                raise Unparsable("a row of a table with another number of cells than its head")
            rows.append(dict(zip(head, cells, strict=True)))
        elif not is_row:
            rest.append(line)
    return (rows, "\n".join(rest)) if head is not None else None


def undecorated(text: str) -> str:
    """Return the text without surrounding ticks, emphasis and backticks.

    >>> undecorated("**`a` b** ✅"), undecorated("*a*")
    ('`a` b', 'a')
    """
    return reading.without_emphasis(reading.without_ticks(text.strip()))


def find_records(text: str, names: Sequence[str]) -> tuple[list[Any], str] | None:
    """Return the records or single values of the JSON or the table in a text, and the text around them.

    names: a record has one of these keys. Lists and objects around records are opened. A list of texts or numbers is
    returned as it is. An object with numbers for names is read as one record {id, value} per number. Return None if
    the text has neither such JSON nor a table.

    Raises `Unparsable` for two results that differ.
    """
    values, rest = find_json(text)
    opened = [each for value in values if (each := _open(value, names)) is not None]
    if opened:
        if len(opened) < len(values):
            raise Unparsable("JSON without a known field")
        if len(opened) > 1 and not all(isinstance(value, dict) and _is_record(value, names) for value in values):
            if any(each != opened[0] for each in opened):
                raise Unparsable("two results that differ")
            return opened[0], rest
        return [one for each in opened for one in each], rest
    if values and not rest.strip():
        if any(value != [] for value in values):
            raise Unparsable("JSON without a known field")
        return [], rest
    fields = _records_of_lines(text, names)
    if fields:
        return fields, ""
    table = find_table(text)
    if table is None or not table[0] or not any(_is_record(row, names) for row in table[0]):
        return None
    return list(table[0]), table[1]


def _records_of_lines(text: str, names: Sequence[str]) -> list[Any]:
    """Return the records of lines `name: value`; a repeated name begins the next record. None without two names."""
    records: list[dict[str, Any]] = []
    for _, line in lines_with_places(text):
        found = _FIELD_LINE.fullmatch(line)
        name = field_key(found["name"]) if found else ""
        if found and name in names:
            if not records or name in records[-1]:
                records.append({})
            records[-1][name] = undecorated(found["value"])
    return records if records and all(len(each) > 1 for each in records) else []


def _is_record(value: Mapping[str, Any], names: Sequence[str]) -> bool:
    return any(name in value and not isinstance(value[name], dict) for name in names)


def _open(value: Any, names: Sequence[str]) -> list[Any] | None:
    """Return the records or single values inside a JSON value; None if it has none."""
    if isinstance(value, list):
        if any(isinstance(each, list) for each in value):
            raise Unparsable("a list of lists")
        inner = [_open(each, names) if isinstance(each, (dict, list)) else [each] for each in value]
        if any(each is None for each in inner):
            raise Unparsable("a list with an element that has no known field")
        return [one for each in inner for one in each or ()]
    if not isinstance(value, dict):
        return None
    lists = [
        name for name, each in value.items() if isinstance(each, list) and any(isinstance(one, dict) for one in each)
    ]
    numbered = [found for name in value if (found := _NUMBERED_KEY.fullmatch(name))]
    if value and len(numbered) == len(value) and len({found[1] for found in numbered}) == 1:
        return [
            {"id": int(found[2]), "prefix": found[1], **(each if isinstance(each, dict) else {"value": each})}
            for found, each in zip(numbered, value.values(), strict=True)
        ]
    if len(lists) == 1 and not any(name in value for name in (*names, *ID_NAMES) if name not in lists):
        return _open(value[lists[0]], names)
    if _is_record(value, names):
        return [value]
    containers = [each for each in value.values() if isinstance(each, (dict, list))]
    return _open(containers[0], names) if len(containers) == 1 else None


@dataclass(frozen=True)
class ListLine:
    """An item of a list: its text without marker, the number before it, the place of its text, and how deep it is.

    heading: the text of the last heading above it. raw: the whole line. below_blank: a blank line precedes it.
    """

    text: str
    number: int | None
    start: int
    indent: int = 0
    is_marked: bool = True
    heading: str = ""
    raw: str = ""
    below_blank: bool = False


def read_list(text: str) -> list[ListLine]:
    """Return the items of a list: the lines with a bullet or a number, or all lines if none has one.

    Headings, an introduction above the items and an afterword below them are removed. An indented line without a bullet
    continues the item above. Raises `Unparsable` for an ambiguous line, for nested lists, and for an incomplete list.
    """
    lines = _said_lines(reading.within_fence(text))
    items = _marked_items(lines) if any(line.is_marked for line in lines) else _plain_items(lines)
    return _without_sequence(items)


def _said_lines(text: str) -> list[ListLine]:
    """Return the lines with text, up to a note below them."""
    lines: list[ListLine] = []
    offset, blank = 0, False
    rows = [(raw, reading.split_marker(raw)) for raw in text.split("\n")]
    bulleted = any(row.marked and not row.is_symbol for _, row in rows)
    for raw, row in rows:
        if reading.is_drawing(row) or not any(map(str.isalnum, row.text)):
            blank = True
        else:
            # If there are bullets, a picture before a greeting or a heading is not a bullet
            is_marked = row.marked and not (bulleted and row.is_symbol)
            found = _LINE_NUMBER.match(raw)
            start = offset + max(raw.find(row.text), 0)
            line = ListLine(row.text, int(found[1]) if found else None, start, row.indent, is_marked, "", raw, blank)
            bare = undecorated(row.text)
            if lines and blank and not is_marked and bare.startswith("(") and bare.endswith(")"):
                break
            if lines and _AFTERWORD.match(bare):
                is_note = _HEADING.fullmatch(raw) or _NOTE.match(bare)
                if is_note or (not is_marked and blank and any(each.is_marked for each in lines)):
                    break
            lines.append(line)
            blank = False
        offset += len(raw) + 1
    return lines


def _marked_items(lines: Sequence[ListLine]) -> list[ListLine]:
    items: list[ListLine] = []
    heading = ""
    lines = _without_remark(lines)
    for place, line in enumerate(lines):
        following = lines[place + 1] if place + 1 < len(lines) else None
        opens_list = following is not None and following.is_marked and reading.introduces(undecorated(line.text))
        if line.is_marked and opens_list and following and (following.indent > line.indent + 1 or not items):
            heading = line.text
        elif line.is_marked:
            items.append(replace(line, heading=heading))
        elif _HEADING.fullmatch(line.raw) and (line.below_blank or not items or line.raw.lstrip()[0] in "#*"):
            heading = line.raw
        elif not items:
            is_apart = following is not None and (not following.is_marked or following.below_blank)
            if not is_apart and not _INTRODUCTION.fullmatch(line.text) and not reading.introduces(line.text):
                raise Unparsable("a line without a bullet above some that have one")
        elif line.indent > items[-1].indent and not line.below_blank and not _LABELLED.match(line.text):
            items[-1] = replace(items[-1], text=f"{items[-1].text} {line.text}")
        else:
            raise Unparsable("lines with and without a bullet")
    if len({item.indent // 2 for item in items}) > 1 and max(item.indent for item in items) - items[0].indent > 1:
        raise Unparsable("a list below an item")
    return items


def _without_remark(lines: Sequence[ListLine]) -> Sequence[ListLine]:
    """Return the lines without the paragraphs below the list. Those with words of the list stay: they may be items."""
    end = max(place for place, line in enumerate(lines) if line.is_marked) + 1
    below = next((place for place in range(end, len(lines)) if lines[place].below_blank), len(lines))
    listed, said = (
        set(_LONG_WORD.findall("\n".join(line.text for line in part).casefold()))
        for part in (lines[:end], lines[below:])
    )
    return lines[:below] if 2 * len(said & listed) < len(said) else lines


def _plain_items(lines: Sequence[ListLine]) -> list[ListLine]:
    """Return the lines of a list without markers."""
    items: list[ListLine] = []
    are_bold = all(line.raw.strip().startswith("**") for line in lines)
    for place, line in enumerate(lines):
        is_heading = _HEADING.fullmatch(line.raw) is not None and not are_bold
        if not items and place + 1 < len(lines) and (is_heading or _INTRODUCTION.fullmatch(line.text)):
            continue
        if is_heading or _NO_ITEM.match(line.text) or "\\n" in line.text:
            raise Unparsable("a line outside of the list")
        if items and line.text[0].islower() and items[0].text[0].isupper():
            raise Unparsable("a line that continues the item above")
        items.append(line)
    return items


def _without_sequence(items: list[ListLine]) -> list[ListLine]:
    """Return the items without their leading numbers or letters, if these are in order."""
    if len(items) < 2:
        return items
    numbers = [int(found[1]) if (found := _NUMBERED_ITEM.match(item.text)) else 0 for item in items]
    # Numbers in another order are references to texts
    if sorted(numbers) == list(range(1, len(items) + 1)):
        return [replace(_without(_NUMBERED_ITEM, item), number=n) for item, n in zip(items, numbers, strict=True)]
    said = tuple(found[1].casefold() if (found := _LETTERED_ITEM.match(item.text)) else "" for item in items)
    is_sequence = said in (_LETTERS[: len(items)], _ROMANS[: len(items)])
    return [_without(_LETTERED_ITEM, item) for item in items] if is_sequence else items


def _without(marker: re.Pattern[str], item: ListLine) -> ListLine:
    found = marker.match(item.text)
    end = found.end() if found else 0
    return replace(item, text=item.text[end:].strip(), start=item.start + end, is_marked=True)


_LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
_LINE_NUMBER = re.compile(r"[\s>*_#]{0,9}(?:[^\W\d_]{1,12}[ _.]{0,2})?[\[(（【]?(\d{1,3})[\])）】.:：、．]")
_NUMBERED_ITEM = re.compile(
    r"\W{0,4}?(?:[^\W\d_]{1,10}[ .#_]{0,2})?(\d{1,3})(?:\*\*)?\s?[.)\]:：、．】）/–—-]+(?:\*\*)?\s*"
)
_LETTERED_ITEM = re.compile(r"\(?([A-Za-z]{1,5})[.)]\s+")
_ROMANS = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii")
_LONG_WORD = re.compile(r"\w{4,}")
_LABELLED = re.compile(r"\w{1,15}:\s")
_NOTE = re.compile(
    r"[*_(]{0,4}(?:(?:notes?|explanations?|remarks?|comments?)\b[*_]{0,2}[:：]|(?:i )?hope (?:this|that|it)\b"
    r"|(?:please )?let me know\b|feel free to\b|would you like\b|is there anything else\b)",
    re.IGNORECASE,
)
_INTRODUCTION = re.compile(
    r"[\s*_#]{0,9}(?:(?:sure|certainly|of course|okay|ok|great|absolutely)\b[^\n]{0,30}[!,.]\W*\s*)?"
    r"(?:(?:here (?:are|is)|here['’]s|below (?:are|is)|the following (?:are|is)|these are the) [^\n]*"
    r"|(?:here you|final|my answer|let me)\b[^\n]*[:：!]\W*)?",
    re.IGNORECASE,
)
# Lines of markup and remarks on the task
_NO_ITEM = re.compile(
    r"\||\"[^\"\n]*\"\s?[:,]|<\w{1,20}>|(?:could|can) you\b|please\b|(?:there (?:are|is) )?no (?:\w+ ){0,2}"
    r"(?:claims?|facts?|statements?|questions?|topics?|aspects?|units?|nuggets?|changes?|information|content)\b"
    r"|the (?:given |provided )?(?:text|query|passage|question|statements?|facts?|claims?|list)(?: itself)?"
    r" (?:is|are|has|have|asks?|contains?|does|do|mentions?|says?|states?|only|can|already)\b"
    r"|i (?:go|will|have|need|extract|list|split|found|find|left|cannot|can['’]t|could|am|see|do|think|would)\b"
    r"|i['’](?:m|ll|ve|d)\b|let me\b|sure\b|(?:none|nothing|n/a)\W*\Z|unchanged\W*\Z",
    re.IGNORECASE,
)


def says_nothing(text: str) -> bool:
    """Return True for an empty list, and for `None` with or without a remark."""
    bare = undecorated(_BEFORE_NONE.sub("", reading.unfenced(text)))
    if reading.is_none(bare) or bare in ("[]", "[ ]") or bare.strip(" .").casefold() == "nothing":
        return True
    first, _, below = bare.partition("\n")
    remark = below.strip()
    if reading.is_none(first):
        is_paragraph = below.startswith("\n") and "\n" not in remark and "{" not in remark
        return reading.is_none(remark) or (is_paragraph and not reading.split_marker(remark).marked)
    return not remark and _NONE_AND_REMARK.match(bare) is not None


def lines_with_places(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with text and the position of its start."""
    offset = 0
    for line in text.split("\n"):
        if line.strip() and not reading.is_fence(line) and not reading.is_rule(line):
            yield offset, line
        offset += len(line) + 1
