"""Reading lists that models write: rows, items over several lines, notes below. Every function is total and linear."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from string import ascii_lowercase

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.non_answers import says_absent
from untold.udfs.stages.reading import (
    Line,
    answer_span,
    begins_with_symbol,
    is_drawing,
    is_none,
    letters,
    split_marker,
    strip_thinking,
    unfenced,
    without_emphasis,
    without_ticks,
)
from untold.udfs.texts import with_breaks, without_struck

# What a line between items introduces is a note, not the rest of the list: `I made these changes:`
_BEGINS_NOTE = re.compile(
    r"\b(?:I|we|notes?|changes?|changed|explanations?|reasoning|rationale|comments?|removed|merged|dropped|kept)\b",
    re.I,
)
# Headings that end a list: what stands below them speaks of it
AFTERWORDS = {
    "note",
    "notes",
    "references",
    "sources",
    "citations",
    "disclaimer",
    "explanation",
    "explanations",
    "reasoning",
    "rationale",
    "changes",
    "changes made",
}

# A list that says that it is not whole: `... and 2 more`, `(1 more)`, `etc.`, `…`
_COUNT = r"(?:\d{1,4}|several|many|some|a few|two|three)"
_MORE = r"(?:more|others?|further|additional|remaining|weitere|autres|más|altri|mais|meer|ещё|других)\b"
_AND_MORE = re.compile(
    rf"[\W_]{{0,9}}+(?:(?:(?:and|plus|und|et|y|e|и)\s(?:{_COUNT}\s)?|{_COUNT}\s|(?<=\.\.)|(?<=…)){_MORE}"
    r"(?:\s(?:(?:un)?covered|statement|claim|fact|item|question|topic|aspect|nugget|unit|not|listed|omitted)s?){0,3}"
    r"|etc|et cetera|and so (?:on|forth)|usw|u\. ?s\. ?w|и т\. ?д|и так далее|et ainsi de suite|y así sucesivamente"
    r"|等等?|など|以下略|以下省略|[还還]有\s?\d+.{0,4}|他\s?\d+件|(?:list )?(?:continued|continues|truncated|abridged)"
    r"|(?:the )?rest(?: of [\w ]{3,20})?(?: is| are)? omitted[\w ]{0,16}"
    r")[\W_\d]{0,9}|[-*•+\d\s]{0,9}[\[(\"]?(?:\.{2,9}|…{1,3})[\s,\W\d]{0,9}",
    re.IGNORECASE,
)
LONGEST_REMARK = 48  # characters of such a line
_BOLD = "**"
_NUMBER = re.compile(r"[(\[]?(\d{1,3})[.):\]]\s+")
_NONE_BECAUSE = re.compile(r"\W{0,9}none[*_]{0,2}[.:;,][*_]{0,2}\s", re.I)
# `-word`: who writes bullets so writes `-5 km` as an item too
_TIGHT = re.compile(r"\s{0,40}[-–—](?=[^\W\d_])")
_TIGHT_NUMBER = re.compile(r"(\s*)[-–—](?=\d)")
# What counts lines from 1 in one form, `1 - `, `(a) `, `1、` or `F1: `; `Fact 1: ` may say a type. Fewer lines than
# three may begin so by chance where letters count: `A. Holt climbed it.` above `B. Ree drew it.`
_COUNTED = re.compile(
    r"[ \t]{0,40}(?P<before>\*{0,2}"
    r"(?:(?:item|no\.|f|c|s)[ \t]?)?[#(\[（【]{0,2})"
    r"(?P<count>\d{1,3}|[a-z]|[ivx]{1,5})"
    r"(?P<behind>[ \t][-–—](?=[ \t])|\\?[.):\]、．）】/](?:\*\*)?:?)(?P<space>[ \t]{0,9})(?=\S)",
    re.IGNORECASE,
)
_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")
_FEWEST_LETTERS = 3
_CLOSE_TO_TEXT = ("、", "．", "）", "】")
_NESTED = 2  # spaces: what Markdown needs for a list within a list; one is a slip
# `Statement 3: ...`, `**Atom:** ...` and `[3] ...`
_LABEL = re.compile(
    r"(?:\*{0,2}(?:statement|atom|unit)(?:\s\d{1,3})?\s?(?:[:：]\*{0,2}|\*{1,2}[:：])|\[\d{1,3}\])\s{1,9}(?=\S)",
    re.IGNORECASE,
)


def read_rows(completion: str) -> list[Line]:
    """The lines of a completion without its thinking and without a fence around all of it."""
    return rows_of(unfenced(strip_thinking(completion)))


def rows_of(text: str) -> list[Line]:
    r"""The lines of a text, without what is struck out, and with line breaks that are written out as `\n`.

    A picture before a line is its bullet, but adorns a greeting where other bullets follow: `✨ Here you go! ✨`. A
    hyphen before a number is a minus sign, but a bullet where others stand as close to their words. What counts the
    lines from 1 in whatever form is a number before them.
    """
    lines = _counted(without_struck(with_breaks(text)).split("\n"))
    if any(_TIGHT.match(line) for line in lines):
        lines = [_TIGHT_NUMBER.sub(r"\1- ", line, count=1) if _TIGHT_NUMBER.match(line) else line for line in lines]
    rows = [split_marker(line) for line in lines]
    adorned = [row.marked and begins_with_symbol(line) for row, line in zip(rows, lines, strict=True)]
    if not any(row.marked and row.text and not other for row, other in zip(rows, adorned, strict=True)):
        return rows
    greets = [other and row.text.endswith("!") for row, other in zip(rows, adorned, strict=True)]
    return [replace(row, marked=False) if greeting else row for row, greeting in zip(rows, greets, strict=True)]


def _counted(lines: Sequence[str]) -> list[str]:
    """The lines, those numbered `1. ` that count from 1 in another form, `1 - ` or `(a) `; of several forms none."""
    found = {place: match for place, line in enumerate(lines) if (match := _COUNTED.match(line)) and _stands_off(match)}
    forms: dict[tuple[str, str], list[int]] = {}
    for place, match in found.items():
        forms.setdefault((match["before"].casefold().rstrip(), match["behind"]), []).append(place)
    counting = [places for places in forms.values() if _counts([found[place] for place in places])]
    counting = [places for places in counting if len(places) > 1] or counting
    if len(counting) != 1:
        return list(lines)
    numbers = {place: number for number, place in enumerate(counting[0], start=1)}
    return [
        _renumbered(line, numbers[place], found[place]) if place in numbers else line
        for place, line in enumerate(lines)
    ]


def _renumbered(line: str, number: int, said: re.Match[str]) -> str:
    """A line with this number in place of what it says; bold type that opens before that and closes later stays."""
    indent = line[: len(line) - len(line.lstrip())]
    opened = said["before"].startswith(_BOLD) and _BOLD not in said["behind"]
    return f"{indent}{number % 1000}. {_BOLD if opened else ''}{line[said.end() :]}"


def _stands_off(number: re.Match[str]) -> bool:
    """Whether a number has white space behind it, as signs that are wide themselves need not."""
    return bool(number["space"]) or number["behind"].startswith(_CLOSE_TO_TEXT)


def _plain(count: str) -> str:
    """A number in ASCII digits, or a letter in lower case."""
    return str(int(count)) if count.isdecimal() else count.casefold()


def _counts(found: Sequence[re.Match[str]]) -> bool:
    """Whether numbers or letters count from the first one on."""
    counts = [_plain(match["count"]) for match in found]
    if len(found) < 2:
        # A lone number has a sentence behind it: `1 - 0` is a score
        return counts == ["1"] and found[0].string[found[0].end()].isupper()
    if counts == [str(number) for number in range(1, len(counts) + 1)]:
        return True
    enough = len(counts) >= _FEWEST_LETTERS
    # In brackets a letter is no initial
    bracketed = found[0]["before"].endswith(("(", "[", "（"))
    roman, alphabet = list(_ROMAN[: len(counts)]), list(ascii_lowercase[: len(counts)])
    return (enough and counts == roman) or ((enough or bracketed) and counts == alphabet)


def breaks_off(text: str) -> bool:
    """Return True if a line or an item says that more of its list follows.

    >>> breaks_off("... and 2 more"), breaks_off("- (1 more)"), breaks_off("And more ships came.")
    (True, True, False)
    """
    return len(text) <= LONGEST_REMARK and _AND_MORE.fullmatch(text) is not None


def is_nested(completion: str) -> bool:
    """Whether an item that is no label has a list of its own below it."""
    start, end = answer_span(completion)
    rows = rows_of(completion[start:end])
    places = [place for place, row in enumerate(rows) if row.marked and not is_drawing(row)]
    return any(
        rows[below].indent >= rows[above].indent + _NESTED and not is_group_label(rows, above)
        for above, below in pairwise(places)
    )


def says_none(rows: Iterable[Line]) -> bool:
    """Whether a row is a lone `None`, or one with its reason behind: `None. The text says nothing on it.`

    So is a lone sentence that says that there is nothing in the text.
    """
    said = [row.text for row in rows if row.text]
    return any(is_none(text) or _NONE_BECAUSE.match(text) for text in said) or (len(said) == 1 and says_absent(said[0]))


def list_items(rows: Sequence[Line]) -> list[list[str]]:
    """The lines of each list item; one goes on over the unmarked lines directly below that belong to it.

    Those are indented further, or go on in lower case. Raises `Unparsable` where a line between two items may belong
    to the first, and where items stand below a line that may begin a note.
    """
    items: list[list[str]] = []
    indent: int | None = None
    unclear = False
    for place, row in enumerate(rows):
        if row.marked and not is_drawing(row):
            indent = row.indent
            if is_none(row.text) or is_group_label(rows, place):
                continue
            if unclear:
                raise Unparsable("a line between the items of a list may belong to it or not")
            items.append([row.text])
        elif items and indent is not None and row.text and (row.indent > indent or row.text[0].islower()):
            items[-1].append(row.text)
        elif letters(row.text) in AFTERWORDS and any(above.text for above in rows[:place]):
            break
        else:
            unclear = unclear or _is_unclear(rows, place, began=bool(items), below_item=indent is not None)
            indent = None
    return items


def _is_unclear(rows: Sequence[Line], place: int, *, began: bool, below_item: bool) -> bool:
    """Whether an unmarked line, once a list has begun, may be more than a heading: part of an item, or a note's first.

    A heading stands apart or looks like one; `I made these changes:` introduces what is no item.
    """
    row = rows[place]
    if not began or is_drawing(row):
        return False
    return _BEGINS_NOTE.search(row.text) is not None if is_heading(rows, place) else below_item


def is_heading(rows: Sequence[Line], place: int) -> bool:
    """Whether an unmarked line looks like a heading: `# ...`, all bold, in square brackets, or with a last colon."""
    text = rows[place].text
    if rows[place].marked or not text:
        return False
    return text.startswith("#") or text.rstrip("*_ ").endswith((":", "：")) or text[0] + text[-1] in ("[]", "**", "__")


def is_group_label(rows: Sequence[Line], place: int) -> bool:
    """`* Part 1:` or `* ## Part 1` above other items."""
    text = rows[place].text
    if not text.rstrip("*_ ").endswith((":", "：")):
        return text.startswith("## ")
    below = next((row for row in rows[place + 1 : place + 3] if row.text), rows[place])
    return below is not rows[place] and below.marked


def whole(text: str) -> str:
    """The text without its label and surrounding emphasis, or half of a bold whose other half is cut off."""
    text = without_ticks(text.strip())
    label = _LABEL.match(text)
    text = text[label.end() :] if label else text
    if text.count(_BOLD) % 2:
        text = text.removeprefix(_BOLD) if text.startswith(_BOLD) else text.removesuffix(_BOLD)
    return without_emphasis(text.strip())


def without_separators(items: Sequence[str]) -> list[str]:
    """The items without a comma or a semicolon that all but the last end with, as lists in one sentence do."""
    for sign in ",;":
        if len(items) > 1 and all(item.endswith(sign) for item in items[:-1]):
            return [item.removesuffix(sign).rstrip() for item in items]
    return list(items)


def without_numbers(items: Sequence[str]) -> list[str]:
    """The items without numbers that count them from 1, as in `* 1. ...`; other numbers belong to the texts."""
    found = [_NUMBER.match(item) for item in items]
    if len(items) < 2 or [int(each[1]) for each in found if each] != list(range(1, len(items) + 1)):
        return list(items)
    return [whole(item[each.end() :]) for item, each in zip(items, found, strict=True) if each]
