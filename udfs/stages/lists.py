"""Read lists of texts: claims, facts, topics, questions, nuggets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from untold.udfs.stages.definitions import ExtractedItem, Parser, Reader, Unparsable
from untold.udfs.stages.forms import (
    ID_NAMES,
    ListLine,
    find_records,
    get_field,
    number_of_value,
    read_list,
    says_nothing,
    undecorated,
)
from untold.udfs.stages.non_answers import says_absent
from untold.udfs.stages.reading import collapsed, is_none, split_marker, unfenced

_TEXT_NAMES = ("text", "statement", "item", "content")
CLAIM_NAMES = ("claim", "fact", *_TEXT_NAMES)
FACT_NAMES = ("fact", "claim", *_TEXT_NAMES)
TOPIC_NAMES = ("topic", "aspect", "subtopic", *_TEXT_NAMES)
QUESTION_NAMES = ("question", *_TEXT_NAMES)
STATEMENT_NAMES = (
    "revisedstatement",
    "statement",
    "revised",
    "fact",
    "atom",
    "unit",
    "claim",
    "text",
    "item",
    "content",
)

_LABELS = "fact|claim|statement|topic|subtopic|aspect|question|q|nugget|unit|atom|item|no|revised|answer|[a-f](?=[.)] )"
# `**Fact 1:** `, `Statement: `
_ITEM_LABEL = re.compile(
    rf"(?:\*\*|__)?(?:the )?(?:(?:atomic|revised|extracted) )?(?:{_LABELS})s?\.?\s?(?:\#?\s?\d{{1,3}})?"
    r"(?:\s?[:：]\s?(?:\*\*|__)|(?:\*\*|__)?\s?[:：]|(?<=\d)[.)]|(?<=\b\w)[.)])\s*",
    re.IGNORECASE,
)
_BEHIND_ITEM = re.compile(
    r"(?<!\s)\s*(?:\[\d{1,4}(?:\s?[,;–-]\s?\d{1,4})*\]|\((?:unchanged|no change|same|as is|see above)[^()]{0,30}\)"
    r"|\[unchanged\])\s*\Z",
    re.IGNORECASE,
)


def read_texts(text: str, names: Sequence[str], own: str = "") -> list[str]:
    """Return the texts of a list in order, none for `None` and for a sentence that says that there is nothing.

    names: the keys of fields that hold a text in JSON and in tables. Raises `Unparsable` if nothing is a list, and if a
    line may be an item or not.
    """
    return [item.text for item in read_items(text, names, own)]


def read_items(text: str, names: Sequence[str], own: str = "", preferred: Sequence[str] = ()) -> list[ListLine]:
    """Return the same with the numbers that the items have.

    preferred: the keys of fields that hold the text beside those of another text.
    """
    bare = unfenced(text).strip()
    if says_nothing(bare) or (says_absent(bare) and collapsed(bare) not in collapsed(own)):
        return []
    found = find_records(text, (*preferred, *names))
    if found is not None:
        items = [_recorded(each, names, preferred) for each in found[0]]
        if any(line.text for line in _marked_or_none(found[1])):
            raise Unparsable("items beside JSON or a table")
        if not items:
            return []
    else:
        items = [replace(line, text=item_text(line.text)) for line in read_list(text)]
    if len(items) == 1 and is_none(items[0].text):
        return []
    if not items or any(is_none(item.text) or not any(map(str.isalnum, item.text)) for item in items):
        raise Unparsable("no items, or an item without a text")
    return items


def _marked_or_none(rest: str) -> list[ListLine]:
    """Return the items with bullets around JSON."""
    lines = [split_marker(line) for line in rest.split("\n")]
    return [ListLine(line.text, None, 0) for line in lines if line.marked and line.text.strip(" -_*=:")]


def _recorded(value: Any, names: Sequence[str], preferred: Sequence[str]) -> ListLine:
    said = value
    if isinstance(value, dict):
        said = get_field(value, preferred) or get_field(value, (*names, "value"))
    number = number_of_value(get_field(value, ID_NAMES)) if isinstance(value, dict) else None
    if not isinstance(said, str):
        raise Unparsable("an element of a list that is no text")
    return ListLine(said.strip(), number, -1)


def item_text(text: str) -> str:
    """Return the text of an item without label, sources and emphasis around it.

    >>> item_text("**Fact 1:** `a` is b. [1, 2]")
    '`a` is b.'
    """
    text = undecorated(_BEHIND_ITEM.sub("", text))
    label = _ITEM_LABEL.match(text)
    rest = text[label.end() :].strip() if label else text
    return undecorated(rest) if rest.strip("*_ ") else text


def balanced(text: str) -> str:
    """Return the text without marks of emphasis at its ends that the cut has left alone."""
    text = text.strip()
    for mark in ("**", "`", "*"):
        if text.count(mark) % 2:
            text = text.removesuffix(mark) if text.endswith(mark) else text.removeprefix(mark)
    return text


def things_of(parse: Parser, column: str) -> Reader:
    """Return the reader of the texts in a list column of what `parse` returns."""
    return lambda completion: list(map(ExtractedItem, parse(completion, {})[column]))


_REMARK = re.compile(r"\((?P<inside>[^()]+)\)\Z|[:–—-]\s*(?:unchanged|no change\w*)\W*\Z")


def check_rewritten(texts: Sequence[str], own: str) -> None:
    """Raise `Unparsable` if a rewritten text has the old one before it or a remark behind it.

    own: the texts that were given; what they have in brackets may stand in a rewritten text too.
    """
    for text in texts:
        if any(arrow in text and arrow not in own for arrow in (" → ", " -> ")):
            raise Unparsable("an old text and a new one")
        remark = _REMARK.search(text)
        if remark and not (remark["inside"] and remark["inside"] in own):
            raise Unparsable("a remark behind a text")
