"""Read the claims of a text and the aspects of a query (Samarinas et al. 2025; methods, section 9)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from textwrap import dedent
from typing import Any

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.final_answers import final_answer, unframed
from untold.udfs.stages.lists import (
    AFTERWORDS,
    is_heading,
    is_nested,
    list_items,
    rows_of,
    says_none,
    whole,
    without_numbers,
    without_separators,
)
from untold.udfs.stages.reading import (
    ParsedLine,
    answer_span,
    collapsed,
    is_drawing,
    is_fence,
    is_none,
    letters,
    past_echoes,
)
from untold.udfs.stages.records import (
    Cell,
    Record,
    Records,
    Value,
    is_empty_list,
    json_at_line_starts,
    read_records,
    unwrapped,
)
from untold.udfs.texts import with_breaks, without_struck

_COLONS = (":", "：")
_ENDS = (".", "!", "?", "。", "…", '"', "”", ")")
_OF_LIST = r"(?:lists?|claims?|statements?|facts?|sentences?|topics?|aspects?|results?|answer|asked for|requested)\b"
_GREETING = r"(?:sure|certainly|okay|ok|of course|absolutely|great)(?: thing)?"
_HERE = (
    r"(?:the \w{1,20} (?:makes|contains|states|gives|includes) the following|(?:the )?following\b[^\n]{0,30}were"
    r"|here(?:['’]s| is| are)|below (?:is|are)|the following (?:is|are)|these are|this is)\b"
)
# `Sure! Here are the claims.` and `Of course!`
_PREAMBLE = re.compile(
    rf"\W{{0,9}}(?:{_GREETING}\W{{1,9}})?{_HERE}[^\n]{{0,100}}\b{_OF_LIST}"
    rf"|\W{{0,9}}(?:{_GREETING}|(?:{_GREETING}\W{{1,9}})?(?:here|there) you go)\W{{0,9}}\Z",
    re.I,
)
# `Claims`, `List of atomic facts`, `## The tower`
_TITLE = re.compile(
    rf"#{{1,6}}\s|[\W_]{{0,9}}(?:(?:the|all|list of|atomic|extracted|factual|final|main|key) ){{0,3}}{_OF_LIST}"
    r"(?: (?:in|of|from) (?:the|this) (?:text|query))?[\W_]{0,9}\Z",
    re.I,
)
# `There are no claims in this text.`, `The text does not contain facts`: not the word that was asked for
_OF_CLAIMS = r"(?:claims?|statements?|assertions?|facts?|topics?|aspects?)\b"
_DECLINES = re.compile(
    r"\W{0,9}(?:(?:sorry|unfortunately|however)\W{1,3})?(?:as an ai\b"
    rf"|(?:there (?:are|is) no|no) (?:[\w-]+ ){{0,3}}{_OF_CLAIMS}"
    rf"|(?:the|this) (?:[\w-]+ )?text\b[^\n]{{0,60}}\b(?:no|not|any|only|without)\b[^\n]{{0,60}}\b{_OF_CLAIMS})",
    re.I,
)
_FEW = 2  # lines: a completion that declines has no more
_REMARK = re.compile(
    rf"\W{{0,9}}(?:(?:notes?|disclaimer)\s?[:：]|(?:total|confidence)\s?[:：]\s?\d|(?:answer|list) complete\W"
    rf"|(?:these are|this is)\b[^\n]{{0,60}}\b{_OF_CLAIMS}|(?:that is|that['’]s) all\b"
    rf"|end of\b[^\n]{{0,20}}{_OF_LIST}|(?:done|end)\W{{0,9}}\Z)",
    re.I,
)
# A greeting on the line of an item: `Sure! The tower is high.`
_GREETS = re.compile(rf"\W{{0,9}}(?:{_GREETING})!\s{{1,9}}\w", re.I)
_FIRST_PERSON = re.compile(r"\b(?:I|We|we|me|my)\b")
_NAMES_LIST = re.compile(rf"\b{_OF_LIST}", re.I)
# What is left of a list in another form: an object that nobody could read, a row of a table, a text and its comma
_OTHER_FORM = re.compile(
    # What says that there is none in another word than was asked for, tags around a text, a field without its object
    r"\W{0,9}(?:n\s?/\s?a|null|nil|nothing|empty|no output)\W{0,9}\Z|<(\w{1,30})[^<>\n]{0,60}>[^\n]*</\1>\Z"
    # A turn that a model runs on into
    r"|(?:user|human|assistant)\s?(?:[:：]|\Z)"
    r"|\"\w{1,30}\"\s?:|[{}|]|\[\s{0,9}[\"'“\]]|\]\Z|[\"“][^\n]{0,2000}[\"”],\Z",
    re.IGNORECASE,
)
# An object behind what is no bullet, or a fence on the line of an item
_WITHIN = re.compile(r"^</?\w{1,30}>\Z|\{\s{0,3}[\"']\w{1,30}[\"']\s{0,3}:|^`{3}|`{3}\Z")
_BOLD = "**"


def ends_with_colon(text: str) -> bool:
    """Whether a line introduces what follows; bold type may end behind its colon.

    >>> ends_with_colon("**Claims:**")
    True
    """
    return text.rstrip("*_ \t\r").endswith(_COLONS)


def is_personal(text: str) -> bool:
    """Whether a text speaks in the first person, so that its claims may too."""
    return _FIRST_PERSON.search(text) is not None


def is_talk(text: str, personal: bool) -> bool:
    """Whether a line beside a list greets or speaks of the list, or of its writer where items are not `personal`.

    >>> is_talk("I left nothing out.", personal=False), is_talk("The tower is high.", personal=False)
    (True, False)
    """
    if is_other_form(text):
        return False
    of_list = any(each.match(text) for each in (_PREAMBLE, _TITLE)) or _NAMES_LIST.search(text) is not None
    return of_list or _speaks(text, personal)


def _speaks(text: str, personal: bool) -> bool:
    """Whether a line is a remark to whoever asked."""
    return _REMARK.match(text) is not None or (is_personal(text) and not personal)


def is_other_form(text: str) -> bool:
    """Whether a line is what nobody could read of an object, of a list of texts, or of a table without its header.

    >>> is_other_form("{'topic': 'age'}"), is_other_form("f{x} is a set.")
    (True, False)
    """
    return _OTHER_FORM.match(text) is not None or _WITHIN.search(text) is not None or text.endswith("|")


def bare_items(text: str, personal: bool) -> list[str]:
    """The items of a list without bullets, a line each; none for a lone `None`.

    What introduces the list is no item: greetings, titles, lines that end with a colon. Raises `Unparsable` where
    another line may be none either, and where there is no item.
    """
    rows = rows_of(text)
    places = [place for place, row in enumerate(rows) if not is_drawing(row) and letters(row.text)]
    begin = next((number for number, place in enumerate(places) if not _introduces(rows[place].text)), len(places))
    body = places[begin:]
    if body and says_none([rows[body[0]]]):
        return _no_claims(body)
    items = [rows[place] for place in body[: _end_of(rows, body, personal)] if _is_item(rows, place, personal)]
    declined = len(items) <= _FEW and any(_DECLINES.match(row.text) for row in items)
    if not items or declined or _is_partly_bold(items) or _is_wrapped(items):
        raise Unparsable("no list of one item a line")
    return [whole(row.text) for row in items]


def _introduces(text: str) -> bool:
    return ends_with_colon(text) or any(each.match(text) for each in (_PREAMBLE, _TITLE))


def _no_claims(body: Sequence[int]) -> list[str]:
    """Nothing; `None` may have a reason below it, a line in a paragraph of its own."""
    if len(body) > 2 or (len(body) == 2 and body[1] == body[0] + 1):
        raise Unparsable("lines below a None")
    return []


def _end_of(rows: Sequence[ParsedLine], body: Sequence[int], personal: bool) -> int:
    """How many of the lines stand above a heading such as `Notes:`, or a last remark, further off than other lines."""
    end = next((number for number, place in enumerate(body) if letters(rows[place].text) in AFTERWORDS), len(body))
    gaps = [below - above for above, below in pairwise(body[:end])]
    apart = len(gaps) > 0 and gaps[-1] > max([1, *gaps[:-1]])
    return end - 1 if apart and _speaks(rows[body[end - 1]].text, personal) else end


def _is_item(rows: Sequence[ParsedLine], place: int, personal: bool) -> bool:
    """Whether a line is an item; a heading is none. Raises `Unparsable` where it may be something else."""
    text = rows[place].text
    if ends_with_colon(text) or text.startswith("#"):
        if rows[place - 1].text:
            raise Unparsable("a line within a list introduces others")
        return False
    if is_none(text) or is_other_form(text):
        raise Unparsable("a line is in another form")
    if _PREAMBLE.match(text) or _GREETS.match(text) or _speaks(text, personal):
        raise Unparsable("a line within a list speaks of it")
    return True


def _is_partly_bold(items: Sequence[ParsedLine]) -> bool:
    """Whether some lines are all bold and others are not: headings, or items in bold type."""
    return len({row.text.startswith(_BOLD) and row.text.endswith(_BOLD) for row in items}) > 1


def _is_wrapped(items: Sequence[ParsedLine]) -> bool:
    """Whether a line may go on with the one above: indented further, or in lower case where that one does not end.

    Where no line has a full stop, lower case begins items too; `iPhone` and `pH` begin them always.
    """
    stopped = [row.text.endswith(_ENDS) for row in items]
    small = [row.text.split()[0].islower() for row in items]
    broken = any(begins and not ended for begins, ended in zip(small[1:], stopped, strict=False))
    return (broken and any(stopped)) or any(row.indent > items[0].indent + 1 for row in items)


CLAIM_NAMES = ("claim", "statement", "fact", "text", "sentence", "atomicclaim", "content", "item")
ASPECT_NAMES = ("topic", "aspect", "subtopic", "name", "title", "text", "item")

# `Claim 3: ...` and `- **Topic:** ...`: what introduces an item, behind a bullet or in place of one
_LABEL = re.compile(
    r"^(?P<indent>[ \t]{0,40})(?:>[ \t])?(?:[-*•+–][ \t]{1,9}|\(?\d{1,3}[.)][ \t]{1,9})?(?P<opened>\*{2})?"
    r"(?:claim|statement|fact|nugget|sentence|topic|aspect|subtopic)"
    r"(?:[ \t]#?\d{1,3}(?:[ \t]?(?P<stopped>\.|[-–—](?=[ \t])))?)?[ \t]?"
    r"(?(stopped)|(?:[:：](?P<closed>\*{2})?|(?P<closing>\*{2})[ \t]?[:：])[ \t]{1,9})(?=\S)",
    re.IGNORECASE | re.MULTILINE,
)
# `{"1": "...", "claim_2": "..."}`: fields that are numbered items
_NUMBERED_FIELD = re.compile(r"(?:claim|statement|fact|topic|aspect|subtopic)?s?[\s_#-]{0,3}\d{1,3}", re.IGNORECASE)
_NO_TEXTS = ("", "null", "true", "false")


@final_answer
@past_echoes
def parse_claims(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """`claims`: the claims in order, one that stands twice twice; none for a lone `None`.

    One claim a line, or the items of a list, or a JSON list or table. Raises `Unparsable` where a line may be a claim
    or not, and where nothing is one.
    """
    text = labelled_answer(completion)
    claims = recorded_texts(text, CLAIM_NAMES)
    return {"claims": listed_texts(text, str(variables.get("text", ""))) if claims is None else claims}


@final_answer
@past_echoes
def parse_aspects(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """`aspects`: the topics in order, one that stands twice twice; none for a lone `None`.

    One object a line, or a JSON list or table, or a list. Raises `Unparsable` where nothing is one of these; lines
    without bullets that are sentences may be thoughts.
    """
    text = labelled_answer(completion)
    aspects = recorded_texts(text, ASPECT_NAMES)
    if aspects is None:
        aspects = listed_texts(text, "")
        if not has_bullets(text) and (len(aspects) == 1 or any(each.endswith(".") for each in aspects)):
            raise Unparsable("lines that may be thoughts")
    return {"aspects": aspects}


def listed_texts(text: str, source: str) -> list[str]:
    """The items of a list with bullets or without, none for a lone `None`; `source` is what the completion is about.

    Raises `Unparsable` where a line may be an item or not, and where nothing is one.
    """
    inside, personal = _inside_fence(unframed(text, source)), is_personal(source)
    items = _bulleted(inside, personal) if has_bullets(inside) else bare_items(inside, personal)
    return without_separators(items)


def labelled_answer(completion: str) -> str:
    """A completion without its thinking, labels of items made bullets.

    Its first line is indented no less than before, which `is_nested` goes by.
    """
    start, end = answer_span(completion)
    return _labels_as_bullets(dedent(completion[start:end]))


def _labels_as_bullets(text: str) -> str:
    """The text with labels of items made bullets; bold type that a label opens and does not close begins behind it."""

    def bullet(found: re.Match[str]) -> str:
        opens = found["opened"] and not found["closed"] and not found["closing"]
        return f"{found['indent']}- {'**' if opens else ''}"

    return _LABEL.sub(bullet, text)


def recorded_texts(text: str, names: Sequence[str]) -> list[str] | None:
    """The texts of a JSON list, of objects or of a table, none for an empty list; None where there is none of these.

    Raises `Unparsable` for a list that is not all texts, and where bulleted items stand beside it.
    """
    records = read_records(json_at_line_starts(text))
    if records is None:
        return None
    cells = [cell.bare for value in _elements(records, names) for cell in _cells(value, names)]
    texts = [text for cell in cells if (text := _unstruck(cell)) or not cell]
    if "{" in records.rest or _items_beside(records.rest):
        raise Unparsable("two lists")
    if not texts and _lines_beside(records.rest):
        raise Unparsable("an empty list and lines that may be items")
    if any(each in _NO_TEXTS for each in texts) or not (texts or is_empty_list(records)):
        raise Unparsable("an element of a list is no text")
    return [] if all(map(is_none, texts)) else texts


def _unstruck(text: str) -> str:
    """The text of an element without what is struck out, spaces for line breaks that are written out."""
    return collapsed(without_struck(with_breaks(text))) if "~~" in text or "\\n" in text else text


def _elements(records: Records, names: Sequence[str]) -> list[Value]:
    """The elements of the list; those of `{"1": "...", "2": "..."}` are its values."""
    values = unwrapped(records.values, names)
    lone = values[0] if len(values) == 1 else None
    if isinstance(lone, Record) and lone.pairs and all(_NUMBERED_FIELD.fullmatch(key) for key, _ in lone.pairs):
        return [value for _, value in lone.pairs]
    return values


def _cells(value: Value, names: Sequence[str]) -> Iterator[Cell]:
    """The text of an element. Raises `Unparsable` where it has none."""
    cell = value.cell(names) if isinstance(value, Record) else value
    if not isinstance(cell, Cell):
        raise Unparsable("an element of a list is no text")
    yield cell


def _items_beside(rest: str) -> bool:
    """Whether bulleted items stand around a list, but for those below a heading such as `Notes:`."""
    rows = takewhile(lambda row: letters(row.text) not in AFTERWORDS, rows_of(rest))
    return any(list_items(list(rows)))


def _lines_beside(rest: str) -> bool:
    """Whether several lines stand around a list that neither speak of one nor lead to it."""
    rows = rows_of(rest)
    lines = [row.text for place, row in enumerate(rows) if not is_drawing(row) and not is_heading(rows, place)]
    return sum(bool(letters(line)) and not is_talk(line, personal=False) for line in lines) > 1


def _inside_fence(text: str) -> str:
    """What stands within the only code fence, where there is one. Raises `Unparsable` where items stand around it."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if is_fence(line)]
    if len(fences) != 2:
        return text
    around = "\n".join([*lines[: fences[0]], *lines[fences[1] + 1 :]])
    if _items_beside(around):
        raise Unparsable("two lists")
    return "\n".join(lines[fences[0] + 1 : fences[1]])


def has_bullets(text: str) -> bool:
    """Whether a line begins with a bullet or a number."""
    return any(row.marked and not is_drawing(row) for row in rows_of(text))


def _bulleted(text: str, personal: bool) -> list[str]:
    """The items of a list. Raises `Unparsable` where there is none, or a line beside them may be another item."""
    rows = rows_of(text)
    first = next((row for row in rows if not is_drawing(row)), None)
    rows = [row for row in rows if row is not first] if first and ends_with_colon(first.text) else rows
    if is_nested(text):
        raise Unparsable("lists below the items of a list")
    items = without_numbers([whole(" ".join(item)) for item in list_items(rows)])
    if any(is_other_form(each) or not letters(each) for each in items):
        raise Unparsable("an item is in another form")
    if items and any(_may_be_items(rows, personal)):
        raise Unparsable("a line beside a list may belong to it")
    if not items and not says_none(rows):
        raise Unparsable("no list")
    return items


def _may_be_items(rows: Sequence[ParsedLine], personal: bool) -> Iterator[bool]:
    """Of each line without a bullet whether it may be an item: it is no heading, and does not speak of the list."""
    below: int | None = None
    for place, row in enumerate(rows):
        if letters(row.text) in AFTERWORDS:
            return
        if row.marked and not is_drawing(row):
            below = row.indent
        elif row.text and below is not None and (row.indent > below or row.text[0].islower()):
            yield False  # goes on with the item above, as `list_items` reads it
        else:
            below = None
            spoken = letters(row.text) and not is_heading(rows, place) and not is_talk(row.text, personal)
            yield bool(spoken) or is_other_form(row.text)
