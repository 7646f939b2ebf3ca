"""Lists in a text: their items, and what of an item is its anchor (methods, section 13)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from untold.udfs.recall.forms import shown_form

# Two lines that begin like items make a list
FEWEST_ITEMS = 2
# Numbers within a line: two may be a date or a version
FEWEST_NUMBERS = 3
# A number in square brackets counts the items, as `1.` does: as a span it would be the anchor of every first item
_ITEM_START = re.compile(
    r"(?:[-*+•‣◦▪·]|\d{1,3}[.):]|\(\d{1,3}\)|\[\d{1,3}\]|[A-Za-z]\)|[a-z]\.)(?:\s|$)|(?=\[)",
)
_NUMBER = re.compile(r"(?<![\w.,])(?P<number>\d{1,3})\.\s")
_SPAN = re.compile(r"\*{2,3}(?P<bold>[^*]+)\*{2,3}|__(?P<underlined>.+?)__|\[(?P<bracketed>[^\[\]]+)\]")
# In a text in its shown form every dash is `-`
_SEPARATOR = re.compile(r": | - | \(")
_BRACKETS = {")": "(", "]": "["}
# What stands between a span and what is said of it
_BEHIND_SPAN = re.compile(r"^\s*(?:[:,;(]|-(?=\s))?\s*")


@dataclass(frozen=True)
class Fact:
    """A fact in its shown form: an anchor with evidence, an anchor alone (`evidence` empty), or a statement.

    `free`: it was cut out of free text, so that what it refers to may stand elsewhere.
    """

    evidence: str
    anchor: str | None = None
    free: bool = False

    @property
    def text(self) -> str:
        """What it is matched, shown and embedded by.

        >>> Fact("He directed 8 films", "Federico Fellini").text, Fact("", "Federico Fellini").text
        ('Federico Fellini: He directed 8 films', 'Federico Fellini')
        """
        return ": ".join(part for part in (self.anchor, self.evidence) if part)


@dataclass(frozen=True)
class Items:
    """What a text is as a list: its items in their shown form, and the text before the first of them as it stands."""

    items: tuple[str, ...]
    before: str = ""

    @property
    def introduced(self) -> bool:
        """Whether the text before the first item announces the list, and says nothing else."""
        return shown_form(self.before).rstrip("*_ ").endswith(":")


def read_list(text: str) -> Items:
    """The items of a text, in their shown form and without bullets and numbers; two make it a list.

    Lines with a bullet or a number, and those that follow one; of a text with fewer than two such lines the parts
    behind `1.`, `2.`, `3.` and so on.

    >>> read_list("Directors:\\n- Federico Fellini\\n- Agnès Varda (Cléo)")
    Items(items=('Federico Fellini', 'Agnès Varda (Cléo)'), before='Directors:')
    """
    lines = _item_lines(text)
    return lines if len(lines.items) >= FEWEST_ITEMS else _numbered_parts(text) or lines


def is_list(text: str) -> bool:
    """Whether a text has two items at least."""
    return len(read_list(text).items) >= FEWEST_ITEMS


def fact_of(item: str, anchor_words: int) -> Fact:
    """The fact of an item in its shown form.

    >>> fact_of("Jean-Luc Godard (Breathless, 1960)", 10)
    Fact(evidence='Breathless, 1960', anchor='Jean-Luc Godard', free=False)
    """
    span = _SPAN.match(item)
    if span:
        anchor, evidence = next(filter(None, span.groups())), _BEHIND_SPAN.sub("", item[span.end() :], count=1)
    else:
        anchor, evidence = _parted(item, anchor_words)
    anchor, evidence = anchor.strip().rstrip(":").rstrip(), _without_unmatched(evidence)
    if anchor and evidence:
        return Fact(evidence, anchor)
    # Without evidence even a span is no more than a text, which may be long
    alone = anchor or item
    return Fact("", alone) if len(alone.split()) <= anchor_words else Fact(alone)


def _item_lines(text: str) -> Items:
    """The items by lines. Lines without a mark belong to the item above them."""
    before: list[str] = []
    items: list[list[str]] = []
    for line in text.splitlines():
        shown = shown_form(line)
        start = _ITEM_START.match(shown)
        if start:
            items.append([shown[start.end() :]])
        elif items:
            items[-1].append(shown)
        else:
            before.append(line)
    joined = (" ".join(filter(None, map(str.strip, lines))) for lines in items)
    return Items(tuple(filter(None, joined)), "\n".join(before))


def _numbered_parts(text: str) -> Items | None:
    """The parts behind the numbers from 1 in their order, None with fewer than three of them."""
    shown = shown_form(text)
    places = list(_numbers_in_order(shown))
    if len(places) < FEWEST_NUMBERS:
        return None
    ends = [start for start, _ in places[1:]] + [len(shown)]
    parts = (shown[behind:end].strip() for (_, behind), end in zip(places, ends, strict=True))
    return Items(tuple(filter(None, parts)), shown[: places[0][0]].strip())


def _numbers_in_order(text: str) -> Iterator[tuple[int, int]]:
    """Where `1.`, the next `2.` behind it, and so on begin and end."""
    wanted = 1
    for found in _NUMBER.finditer(text):
        if int(found["number"]) == wanted:
            yield found.span()
            wanted += 1


def _parted(item: str, anchor_words: int) -> tuple[str, str]:
    """What stands before the first separator and what behind it; no anchor where that has too many words or none."""
    separator = _SEPARATOR.search(item)
    if separator is None or not 0 < len(item[: separator.start()].split()) <= anchor_words:
        return "", item
    return item[: separator.start()], item[separator.end() :]


def _without_unmatched(text: str) -> str:
    """The text without closing brackets that nothing opens.

    >>> _without_unmatched("Breathless (1960), and others)")
    'Breathless (1960), and others'
    """
    kept: list[str] = []
    opened: dict[str, int] = {"(": 0, "[": 0}
    for sign in text:
        if sign in opened:
            opened[sign] += 1
        elif sign in _BRACKETS:
            if not opened[_BRACKETS[sign]]:
                continue
            opened[_BRACKETS[sign]] -= 1
        kept.append(sign)
    return "".join(kept).strip()
