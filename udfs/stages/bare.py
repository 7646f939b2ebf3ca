"""Reading lists without bullets, one item a line: what is an item, and what speaks of the list.

A line that may be either makes the completion `Unparsable`: dropped it may be lost, and taken it would be made up.
Every function is total and linear.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.lists import AFTERWORDS, rows_of, says_none, whole
from untold.udfs.stages.reading import Line, is_drawing, is_none, letters

_COLONS = (":", "：")
_ENDS = (".", "!", "?", "。", "…", '"', "”", ")")
_OF_LIST = r"(?:lists?|claims?|statements?|facts?|sentences?|topics?|aspects?|results?|answer|asked for|requested)\b"
_GREETING = r"(?:sure|certainly|okay|ok|of course|absolutely|great)(?: thing)?"
_HERE = r"(?:here(?:['’]s| is| are)|below (?:is|are)|the following (?:is|are)|these are|this is)\b"
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


def _end_of(rows: Sequence[Line], body: Sequence[int], personal: bool) -> int:
    """How many of the lines stand above a heading such as `Notes:`, or a last remark, further off than other lines."""
    end = next((number for number, place in enumerate(body) if letters(rows[place].text) in AFTERWORDS), len(body))
    gaps = [below - above for above, below in pairwise(body[:end])]
    apart = len(gaps) > 0 and gaps[-1] > max([1, *gaps[:-1]])
    return end - 1 if apart and _speaks(rows[body[end - 1]].text, personal) else end


def _is_item(rows: Sequence[Line], place: int, personal: bool) -> bool:
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


def _is_partly_bold(items: Sequence[Line]) -> bool:
    """Whether some lines are all bold and others are not: headings, or items in bold type."""
    return len({row.text.startswith(_BOLD) and row.text.endswith(_BOLD) for row in items}) > 1


def _is_wrapped(items: Sequence[Line]) -> bool:
    """Whether a line may go on with the one above: indented further, or in lower case where that one does not end.

    Where no line has a full stop, lower case begins items too; `iPhone` and `pH` begin them always.
    """
    stopped = [row.text.endswith(_ENDS) for row in items]
    small = [row.text.split()[0].islower() for row in items]
    broken = any(begins and not ended for begins, ended in zip(small[1:], stopped, strict=False))
    return (broken and any(stopped)) or any(row.indent > items[0].indent + 1 for row in items)
