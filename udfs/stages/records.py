"""Reading lists that models write as JSON or as a Markdown table, for all stages. Every function is total and linear.

A record is one object of a JSON list, or one row of a table below its header. Values keep the offset at which they
stand in the completion, so that a rating can be weighed by its token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from untold.udfs.ratings import SCALE, Digit
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.reading import (
    answer_in_place,
    answer_span,
    is_fence,
    letters,
    split_marker,
    unfenced,
    without_emphasis,
)

# How models name the fields that stages ask for, in the form of `field_name`; of several that stand the first counts
STATEMENT_NAMES = ("statement", "unit", "atom", "text", "content", "contentunit", "claim", "fact", "item", "sentence")
QUESTION_NAMES = ("question", "q", "query", "text", "item")
RATING_NAMES = ("relevance", "relevancescore", "relevancerating", "rating", "score", "relevancy")
CONFIDENCE_NAMES = ("confidence", "confidencescore", "confidencelevel", "certainty", "rating", "score")
NUMBER_NAMES = ("number", "id", "no", "index", "statementid", "")  # the last is a column `#`

# JSON begins with a line, and with an object or a text: `[1, 3]` behind a statement is none. A key may lack its quotes
_STARTS = re.compile(
    r"^[ \t]{0,40}(?:\[\s{0,40}(?=\{|\"|'[^'\n]{0,2000}'\s{0,9}[],])|\[\s?\](?=[ \t\r]*$)"
    r"|\{\s{0,40}(?=[\"}]|'[^'\n]{1,60}'\s{0,9}:|[a-z]\w{0,40}:\s))",
    re.MULTILINE | re.IGNORECASE,
)
_NEXT = re.compile(r"[\s,;]{0,40}(?=[\[{])")
# Models comment upon what they write: `// ...` and `# ...` up to the end of a line, and `/* ... */`
_SPACE = re.compile(r"(?:\s|(?://|#)[^\n]{0,400}(?=\n)|/\*[^*]{0,400}\*/)*")
# The constants of Python too, whose literals small models take for JSON
_SCALARS = {"True": "true", "False": "false", "None": "null"}
_SCALAR = re.compile(r"-?\d[\d.eE+-]{0,30}|true|false|null|True|False|None")
_SINGLE_QUOTED = re.compile(r"'((?:[^'\\\n]|\\[^\n])*)'(?=\s{0,40}(?:[],:}]|//|#))")
_ESCAPED_QUOTE = re.compile(r"\\(['\"\\])")
_BARE_KEY = re.compile(r"[A-Za-z]\w{0,40}(?=\s?:)")
_RATING = re.compile(
    rf"[^\w+-]{{0,4}}(?P<digit>[{SCALE}])(?:[.,]0{{1,9}})?(?:\s?(?:/|out of|of)\s?{SCALE[-1]})?[\W_]{{0,9}}"
)
_SEPARATOR_ROW = re.compile(r"\s{0,40}\|?(?:\s{0,40}:?-{1,200}:?\s{0,40}\|){1,40}(?:\s{0,40}:?-{1,200}:?\s{0,40})?")
# A bar behind a backslash belongs to its cell
_CELL = re.compile(r"(?:\\[^\n]|[^|\n])*")
_DEEPEST = 8  # no stage's list is nested deeper; what is deeper is no answer of one
# Behind a line's marker and before its JSON: `Topic 1:`, a backtick; a word without a colon would be a sentence's.
# No label before an empty list: `Topic 2: []` says nothing of topic 1
_BEFORE_JSON = re.compile(
    r"[*_`]{0,3}(?:[^\W\d_][\w ]{0,50}[:：][*_]{0,2})?[ \t`*]{0,9}"
    r"(?=(?:\[[ \t]{0,9})?\{[ \t]{0,9}[\"'}]|\[[ \t]{0,9}\")"
)
# Wrappers of a result: tags and tokens of calls, `claims = `, `print(`
_WRAPPING = re.compile(
    r"\s*(?:<(?:tool_?calls?|function_?calls?|tool_use|tool|function(?:=\w{1,40})?)>\s*|\[TOOL_CALLS\]\s*)+"
    r"|\s*(?:(?:(?:const|let|var)\s)?\w{1,40}(?:\s?:\s?[\w\[\], ]{1,40})?\s?:?=|return\b|(?:print|json\.dumps)\()"
    r"\s*(?=[\[{\"])",
    re.IGNORECASE,
)
_ENDS_WRAPPING = re.compile(r"[\s;)]*(?:</[\w=]{1,40}>\s*)*(?:print\([^\n]{0,99})?")
_WRAPPERS = ("arguments", "parameters", "properties", "function", "tool_calls")
_CALL = re.compile(
    r"\s*(?:`{3}\w*\s*)?(?:<(?:tool|function|invoke)[_=\w]{0,40}[\s>]|\[TOOL_CALLS\]|[\"\\]{1,9}[{\[]\s?\\"
    r"|(?:\[\s*)?\{\s*(?:\"(?:name|type|id)\"\s*:\s*\"[^\"\n]{0,60}\"\s*,\s*)*\"(?:arguments|parameters|function|tool_calls)\"\s*:)",
    re.IGNORECASE,
)
_MARKUP = re.compile(
    rf"{_WRAPPING.pattern}|\s*\"?[\[{{]\s{{0,9}}\\?[\"'{{\[]|<(?:invoke|parameter|arg_)", re.IGNORECASE
)
# Not strict: models break lines within a string
_DECODER = json.JSONDecoder(strict=False)


@dataclass(frozen=True)
class Cell:
    """A text, number, `true`, `false` or `null`, as text, and where it begins in the completion."""

    text: str
    offset: int

    @property
    def bare(self) -> str:
        """The text without the emphasis around all of it."""
        return without_emphasis(self.text.strip())


@dataclass(frozen=True)
class Record:
    """The fields of an object or row in order; a name may stand twice, which `field` refuses."""

    pairs: tuple[tuple[str, Value], ...]

    def field(self, names: Sequence[str]) -> Value | None:
        """The value of the first of `names` (lower case, without spaces and signs) that there is, or None."""
        for name in names:
            values = [value for key, value in self.pairs if field_name(key) == name]
            if len(values) > 1:
                raise Unparsable("a field stands twice in one object")
            if values:
                return values[0]
        return None

    def cell(self, names: Sequence[str]) -> Cell | None:
        """The field of one of `names` where it is a text or a number that says something."""
        value = self.field(names)
        return value if isinstance(value, Cell) and value.bare and value.text != "null" else None


Value: TypeAlias = "Cell | Record | list[Value]"


@dataclass(frozen=True)
class Records:
    """What a completion lists as JSON or in tables, and the rest of it."""

    values: tuple[Value, ...]
    rest: str


def field_name(key: str) -> str:
    """A field's name as it is compared: `Unit Type`, `unit_type` and `unitType` are one."""
    return letters(key).replace(" ", "")


def read_records(completion: str) -> Records | None:
    """The values of a completion's JSON, or the rows of its tables; None where it has neither.

    Raises `Unparsable` for JSON that breaks off, and where several lists stand beside each other.
    """
    start, end = answer_span(completion)
    return _read_json(answer_in_place(completion), start) or read_tables(completion, start, end)


def json_at_line_starts(text: str) -> str:
    """The text with line breaks in place of the bullets, numbers and labels before JSON, so that offsets stay.

    >>> json_at_line_starts('1. Topic: `{"topic": "age"}`').strip()
    '{"topic": "age"}`'
    """
    return "\n".join(map(_json_at_start, text.split("\n")))


def _json_at_start(line: str) -> str:
    bare = split_marker(line).text
    found = _BEFORE_JSON.match(bare)
    begin = line.find(bare[found.end() :]) if found else 0
    return "\n" * begin + line[begin:] if begin > 0 else line


def beside_json(text: str) -> str:
    """Return the text around the JSON of a completion; "" if there is none, or no JSON that can be read."""
    bare = unfenced(text)
    if _STARTS.match(bare) and bare.rpartition("\n")[2].lstrip("-*+ \t").startswith(("{", "[", "}", "]", '"')):
        return ""
    try:
        records = read_records(text)
    except Unparsable:
        return ""
    return records.rest if records else ""


def is_call(text: str) -> bool:
    """Return True if a text begins with a call of a tool, or with JSON in a JSON string."""
    return _CALL.match(text) is not None


def is_markup(text: str) -> bool:
    """Return True if a text is JSON, a call of a tool or an assignment, and nothing else."""
    is_whole = text.rstrip("; \n").endswith(("]", "}", ")", ">", '"', "'"))
    return is_call(text) or (is_whole and _MARKUP.match(text) is not None)


def without_wrapping(text: str) -> str:
    """Return the result within a call of a tool, an assignment or a JSON string. Return any other text unchanged.

    >>> without_wrapping('<tool_call>{"name": "x", "arguments": {"facts": []}}</tool_call>')
    '{"facts": []}'
    """
    bare = unfenced(text)
    opening = _WRAPPING.match(bare)
    try:
        value, end = _DECODER.raw_decode(bare, opening.end() if opening else 0)
        inner = value
        for _ in range(_DEEPEST):
            lone = inner[0] if isinstance(inner, list) and len(inner) == 1 else inner
            name = next((name for name in _WRAPPERS if isinstance(lone, dict) and name in lone), None)
            inner = lone[name] if name else _DECODER.decode(inner) if isinstance(inner, str) else inner
    except (ValueError, RecursionError):
        return text
    is_wrapped = (opening or inner is not value) and _ENDS_WRAPPING.fullmatch(bare, end)
    return json.dumps(inner, ensure_ascii=False) if is_wrapped else text


def unwrapped(values: Sequence[Value], names: Collection[str] = ()) -> list[Value]:
    """The elements of a lone list, or of the only list in a lone object: `{"statements": [...], "note": "..."}`.

    So are those of `{"result": {"statements": [...]}}`. An object with a field of one of `names` is an element itself.
    """
    if len(values) != 1:
        return list(values)
    value = values[0]
    if isinstance(value, Record):
        lists = [each for _, each in value.pairs if isinstance(each, list)]
        own = any(field_name(key) in names for key, _ in value.pairs)
        if own or len(lists) > 1:
            return [value]
        if lists:
            return lists[0]
        inner = [each for _, each in value.pairs]
        if len(inner) == 1 and isinstance(inner[0], Record):
            found = unwrapped(inner, names)
            return [value] if found == inner else found
        return [value]
    return value if isinstance(value, list) else [value]


def is_empty_list(records: Records | None) -> bool:
    """Whether all that is there is an empty list, or an object with one: `{"atoms": []}`."""
    return records is not None and len(records.values) == 1 and unwrapped(records.values) == []


def read_rating(value: Value | None) -> Digit | None:
    """The digit of a field that is a rating and nothing else; null where it is no whole number from 1 to 5."""
    found = _RATING.fullmatch(value.text) if isinstance(value, Cell) else None
    return (
        Digit(int(found["digit"]), value.offset + found.start("digit")) if found and isinstance(value, Cell) else None
    )


def _read_json(text: str, start: int) -> Records | None:
    """The JSON values from a place on, one list or objects below each other, and what stands around them."""
    values: list[Value] = []
    rest: list[str] = []
    place = start
    while opening := (_NEXT.match(text, place) if values else None) or _STARTS.search(text, place):
        rest.append(text[place : opening.start()])
        begin = opening.start() + len(opening[0]) - len(opening[0].lstrip(" \t\r\n,;"))
        value, place = _whole_value(text, begin)
        values.append(value)
    if not values:
        return None
    are_lists = all(isinstance(value, list) and value for value in values)
    if len(values) > 1 and (are_lists or set(map(_listing_field, values)) == {_listing_field(values[0]) or ""}):
        values = values[-1:] if len({content_of(value) for value in values}) == 1 else values
    if len(values) > 1 and (_listing_field(values[0]) or not all(isinstance(value, Record) for value in values)):
        raise Unparsable("several JSON lists")
    return Records(tuple(values), "\n".join([*rest, text[place:]]))


def _listing_field(value: Value) -> str | None:
    """The name of the only field of an object, a list: `{"ratings": [...]}` is a whole result."""
    lone = value.pairs[0] if isinstance(value, Record) and len(value.pairs) == 1 else None
    return lone[0] if lone and isinstance(lone[1], list) else None


def content_of(value: Value) -> str:
    """What a value says, wherever it stands: models write one list twice."""
    if isinstance(value, Cell):
        return json.dumps(value.text)
    if isinstance(value, Record):
        return "{" + ",".join(f"{json.dumps(key)}:{content_of(each)}" for key, each in value.pairs) + "}"
    return "[" + ",".join(map(content_of, value)) + "]"


def _whole_value(text: str, begin: int) -> tuple[Value, int]:
    """The value that begins at a place; one that breaks off or is no JSON makes the completion `Unparsable`."""
    try:
        return _value(text, begin, 0)
    except (ValueError, IndexError) as error:
        raise Unparsable("JSON that cannot be read") from error


def _value(text: str, place: int, depth: int) -> tuple[Value, int]:
    """The value that begins at `place`, and where it ends. Raises ValueError or IndexError where there is none."""
    if depth > _DEEPEST:
        raise ValueError
    if text[place] in "\"'":
        said, end = _quoted(text, place)
        return Cell(said, place + 1), end
    if text[place] in "[{":
        return _elements(text, place, depth)
    scalar = _SCALAR.match(text, place)
    if scalar is None:
        raise ValueError
    return Cell(_SCALARS.get(scalar[0], scalar[0]), place), scalar.end()


def _quoted(text: str, place: int) -> tuple[str, int]:
    """A text in quotes, single ones where an element or a key ends behind the second, and where it ends."""
    if text[place] == '"':
        said, end = _DECODER.raw_decode(text, place)
        return said, end
    single = _SINGLE_QUOTED.match(text, place)
    if single is None:
        raise ValueError
    return _ESCAPED_QUOTE.sub(r"\1", single[1]), single.end()


def _elements(text: str, place: int, depth: int) -> tuple[Value, int]:
    """A list or an object; a comma before its end is passed over, as models write one."""
    keyed, closer = text[place] == "{", "}" if text[place] == "{" else "]"
    pairs: list[tuple[str, Value]] = []
    place = _skip(text, place + 1)
    while text[place] != closer:
        key = ""
        if keyed:
            key, place = _key(text, place)
        value, place = _value(text, place, depth + 1)
        pairs.append((key, value))
        place = _skip(text, place)
        if text[place] == ",":
            place = _skip(text, place + 1)
        elif text[place] != closer:
            raise ValueError
    return (Record(tuple(pairs)) if keyed else [value for _, value in pairs]), place + 1


def _key(text: str, place: int) -> tuple[str, int]:
    """The name of a field, and where its value begins."""
    bare = _BARE_KEY.match(text, place)
    if not bare and text[place] not in "\"'":
        raise ValueError
    key, place = (bare[0], bare.end()) if bare else _quoted(text, place)
    place = _skip(text, place)
    if text[place] != ":":
        raise ValueError
    return key, _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    """The next place that is no white space and no comment."""
    space = _SPACE.match(text, place)
    return space.end() if space else place


def read_tables(completion: str, start: int, end: int) -> Records | None:
    """The rows of every Markdown table, each a record of its header's names."""
    lines = list(_lines(completion, start, end))
    values: list[Value] = []
    rest: list[str] = []
    header: list[Cell] | None = None
    for place, (offset, line) in enumerate(lines):
        following = lines[place + 1][1] if place + 1 < len(lines) else ""
        if header is None and "|" in line and _SEPARATOR_ROW.fullmatch(following.rstrip()):
            header = _cells(line, offset)
        elif header is not None and _SEPARATOR_ROW.fullmatch(line.rstrip()):
            continue
        elif header is not None and "|" in line:
            values.append(_row(header, _cells(line, offset)))
        else:
            header = None
            rest.append(line)
    return Records(tuple(values), "\n".join(rest)) if values else None


def _row(header: Sequence[Cell], cells: Sequence[Cell]) -> Record:
    """A row of a table under its header's names. Raises `Unparsable` where a bar within a text makes it longer."""
    if len(cells) != len(header):
        raise Unparsable("a row of a table has other columns than its header")
    return Record(tuple((name.bare, cell) for name, cell in zip(header, cells, strict=True)))


def _cells(line: str, offset: int) -> list[Cell]:
    """The cells of a line, without the bars at its ends."""
    begin = len(line) - len(line.lstrip())
    begin += line[begin : begin + 1] == "|"
    stop = len(line.rstrip())
    stop -= line[stop - 1 : stop] == "|" and stop > begin
    cells = []
    while begin <= stop:
        found = _CELL.match(line, begin, stop)
        last = found.end() if found else stop
        text = line[begin:last]
        cells.append(Cell(text.strip().replace("\\|", "|"), offset + begin + len(text) - len(text.lstrip())))
        begin = last + 1
    return cells


def _lines(completion: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    """The lines that are no fences, each with its offset in the completion."""
    for line in completion[start:end].split("\n"):
        if not is_fence(line):
            yield start, line
        start += len(line) + 1
