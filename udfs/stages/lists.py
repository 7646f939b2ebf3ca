"""Read lists of texts, and lists of texts with ratings from 1 to 5."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from untold.udfs.ratings import SCALE, Digit
from untold.udfs.recall.segmentation import sentences
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
from untold.udfs.stages.reading import breaks_off, collapsed, is_none, split_marker, unfenced
from untold.udfs.texts import compatible

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
# This number of equal items at the end is a loop of the model
LOOP = 7
# A bullet, a number or a bar behind a sentence
_JOINED = re.compile(r"[.!?。][\"”]?\s(?:[*•|–-]|\d{1,2}[.)])\s|\s\*\s(?=[A-Z])")
_BEHIND_ITEM = re.compile(
    r"(?<!\s)\s*(?:\[\d{1,4}(?:\s?[,;–-]\s?\d{1,4})*\]|\((?:unchanged|no change|same|as is|see above)[^()]{0,30}\)"
    r"|\[unchanged\])\s*\Z",
    re.IGNORECASE,
)


def read_texts(text: str, names: Sequence[str], own: str = "", *, may_be_plain: bool = False) -> list[str]:
    """Return the texts of a list in order. `None` and a sentence that reports no items are an empty list.

    names: the keys of fields that hold a text in JSON and in tables. Raises `Unparsable` without a list, and
    for an ambiguous line.
    """
    return [item.text for item in read_items(text, names, own, may_be_plain=may_be_plain)]


def read_items(
    text: str, names: Sequence[str], own: str = "", preferred: Sequence[str] = (), *, may_be_plain: bool = False
) -> list[ListLine]:
    """Return the items of a list in order, with their numbers.

    preferred: the keys of the text fields of records with several texts. may_be_plain: one line without a bullet is a
    list. Raises `Unparsable` without a list, and for an ambiguous line.
    """
    bare = unfenced(text).strip()
    if says_nothing(bare) or (says_absent(bare) and collapsed(bare) not in collapsed(own)):
        return []
    found = find_records(text, (*preferred, *names))
    if found is not None:
        items = [_recorded(each, names, preferred) for each in found[0]]
        beside = [split_marker(line) for line in found[1].split("\n")]
        if any(line.marked and line.text.strip(" -_*=:") for line in beside):
            raise Unparsable("items outside of JSON or a table")
        if not items:
            return []
    else:
        items = [replace(line, text=item_text(line.text)) for line in read_list(text)]
        if len(items) == 1 and not items[0].is_marked and not may_be_plain and not is_none(items[0].text):
            raise Unparsable("one line that may be a list or a sentence")
    if len(items) == 1 and is_none(items[0].text):
        return []
    if not items or any(is_none(item.text) or not any(map(str.isalnum, item.text)) for item in items):
        raise Unparsable("no items, or an item without a text")
    _check_items(items, own)
    return items


def _check_items(items: Sequence[ListLine], own: str) -> None:
    """Raise `Unparsable` for items that break off, repeat without end, or are several on one line."""
    texts = [item.text for item in items]
    if breaks_off(texts[-1], own):
        raise Unparsable("a list that breaks off")
    if len(texts) >= LOOP and len(set(texts[-LOOP:])) == 1:
        raise Unparsable("an item that is repeated without end")
    if any(_JOINED.search(text) and not _JOINED.search(own) for text in texts):
        raise Unparsable("several items on one line")
    if len(items) == 1 and not items[0].is_marked and len(list(sentences(texts[0]))) > 2:
        raise Unparsable("one line of several sentences")


def _recorded(value: Any, names: Sequence[str], preferred: Sequence[str]) -> ListLine:
    said = value
    if isinstance(value, dict):
        said = get_field(value, preferred) or get_field(value, (*names, "value"))
    number = number_of_value(get_field(value, ID_NAMES)) if isinstance(value, dict) else None
    if not isinstance(said, str):
        raise Unparsable("a list element of another type than text")
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
    """Return the text without unpaired marks of emphasis at its ends."""
    text = text.strip()
    for mark in ("**", "`", "*"):
        if text.count(mark) % 2:
            text = text.removesuffix(mark) if text.endswith(mark) else text.removeprefix(mark)
    return text


def things_of(parse: Parser, column: str) -> Reader:
    """Return the reader of the texts in a list column of `parse`."""
    return lambda completion: list(map(ExtractedItem, parse(completion, {})[column]))


_REMARK = re.compile(r"\((?P<inside>[^()]+)\)\Z|[:–—-]\s*(?:unchanged|no change\w*)\W*\Z")


def check_rewritten(texts: Sequence[str], own: str) -> None:
    """Raise `Unparsable` if a rewritten text has the old one before it or a remark behind it.

    own: the given texts. A rewritten text may contain their brackets.
    """
    for text in texts:
        if any(arrow in text and arrow not in own for arrow in (" → ", " -> ")):
            raise Unparsable("an old text and a new one")
        remark = _REMARK.search(text)
        if remark and not (remark["inside"] and remark["inside"] in own):
            raise Unparsable("a remark behind a text")


RATING_NAMES = (
    "relevance",
    "relevancy",
    "rating",
    "score",
    "relevancerating",
    "relevancescore",
    "confidence",
    "certainty",
    "value",
)
_OPENS, _CLOSES = r"[\[(（【［]", r"[\])）】］]"
_WORDS = r"(?:relevance|relevancy|rating|rated|score|confidence|certainty)"
_MARKS = r"[\s*_`]{0,4}"
_DIGIT = rf"(?P<digit>[{SCALE}１-５])(?:\s?/\s?5|\s?out of 5)?(?![\w%]|[.,/–-]\d|\s?-\s?\d)"
_NAMED = re.compile(
    rf"\s{{0,3}}(?:[-–—→:,;|]{{1,2}}\s{{0,2}}[*_]{{0,2}})?\s{{0,2}}{_OPENS}?{_MARKS}{_WORDS}{_MARKS}(?:score|rating)?{_MARKS}[:：=]?{_MARKS}{_DIGIT}{_MARKS}{_CLOSES}?",
    re.IGNORECASE,
)
_BARE = re.compile(rf"[\s\-–—→:,;|]{{0,4}}{_OPENS}{_MARKS}{_DIGIT}{_MARKS}{_CLOSES}")
_AT_END = re.compile(rf"(?:{_MARKS}(?:[:：–—→-]|[-=]>)|(?<=[?？])){_MARKS}{_DIGIT}{_MARKS}\Z")
_WORD = re.compile(rf"\b{_WORDS}{_MARKS}(?:score|rating)?{_MARKS}[:：=]", re.IGNORECASE)
_OPEN = re.compile(rf"{_OPENS}[^\])）】］]*\Z")
_NOT_WORDS = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class RatedText:
    """A text with its rating and its number."""

    text: str
    digit: Digit
    number: int | None


def matching_key(text: str) -> str:
    """Return the letters and digits of a text, case folded and with single spaces, to match equal texts."""
    return _NOT_WORDS.sub(" ", compatible(text).casefold()).strip()


def split_rating(
    text: str, start: int, completion: str, is_known: Callable[[str], bool] | None = None
) -> tuple[str, Digit, str] | None:
    """Return the text before the last rating, the rating, and the text after it. Return None without a rating.

    is_known: returns True if a digit without brackets and a name rates the text before it. None requires a name.
    Raises `Unparsable` for two ratings and for a rating out of scale.
    """
    found = list(_NAMED.finditer(text))
    if len(_WORD.findall(text)) > len(found):
        raise Unparsable("a rating other than a whole number from 1 to 5")
    if not found and is_known is not None:
        found = [each for each in _BARE.finditer(text) if not text[each.end() :].strip(" *_`.✅❌")]
        found = found or [each for each in _AT_END.finditer(text) if is_known(text[: each.start()])]
    if not found:
        return None
    if len({int(each["digit"]) for each in found}) > 1:
        raise Unparsable("two ratings of one text")
    if found[0].end() == len(text) and _OPEN.search(found[0][0]):
        raise Unparsable("a rating that breaks off")
    place = start + found[0].start("digit")
    is_there = completion[place : place + 1] == found[0]["digit"]
    digit = Digit(int(found[0]["digit"]), place if is_there else -1)
    return text[: found[0].start()], digit, text[found[0].end() :]


def rating_of_value(value: Any) -> int:
    """Return the rating in a field. Raises `Unparsable` unless it is a whole number from 1 to 5."""
    number = number_of_value(value.partition("/5")[0] if isinstance(value, str) else value)
    if number is None or str(number) not in SCALE:
        raise Unparsable("a rating other than a whole number from 1 to 5")
    return number


def digits_of_fields(completion: str, name: str, values: Sequence[int]) -> list[Digit]:
    """Return the ratings of a JSON field with the positions of their digits, -1 for unknown positions."""
    found = list(re.finditer(rf"[\"']?{name}[\"']?\s*:\s*[\"']?([{SCALE}])\b", completion, re.IGNORECASE))
    is_located = [int(each[1]) for each in found] == list(values)
    return [Digit(value, found[n].start(1) if is_located else -1) for n, value in enumerate(values)]


def read_rated_texts(completion: str, names: Sequence[str], texts: Sequence[str] = ()) -> list[RatedText]:
    """Return the items of a list with their ratings, in order.

    names: the keys of the text fields. texts: a digit without a name is a rating after one of these texts, or after a
    question mark. Raises `Unparsable` for an item without a rating from 1 to 5.
    """
    known = set(map(matching_key, texts))

    def is_known(text: str) -> bool:
        return text.rstrip(" *_").endswith(("?", "？")) or matching_key(text) in known

    found = find_records(completion, (*names, *RATING_NAMES))
    if found is not None:
        return _rated_records(completion, found[0], names)
    rated = []
    lines = read_list(completion)
    if len({_WORD.search(line.text) is None for line in lines}) > 1:
        raise Unparsable("ratings with and without a name")
    for line in lines:
        split = split_rating(line.text, line.start, completion, is_known)
        if split is None:
            raise Unparsable("an item without a rating")
        before, digit, behind = split
        if (
            behind.strip()
            and any(map(str.isalnum, behind))
            and (not before.strip() or behind.strip()[0] not in "(-–—:,;.[")
        ):
            if before.strip():
                raise Unparsable("a rating inside a text")
            before = behind.lstrip(" :-–—*")
        rated.append(RatedText(item_text(balanced(before)), digit, line.number))
    digits = [one.digit.value for one in rated]
    if len(rated) > 2 and digits == list(range(1, len(digits) + 1)) and "elevance" not in completion:
        raise Unparsable("numbers that may be sources")
    return rated


def _rated_records(completion: str, records: Sequence[Any], names: Sequence[str]) -> list[RatedText]:
    if records and all(isinstance(each, int) for each in records):
        return [RatedText("", Digit(rating_of_value(each), -1), place) for place, each in enumerate(records, 1)]
    texts: list[str] = []
    ratings: list[int] = []
    numbers: list[int | None] = []
    name = ""
    for each in records:
        if isinstance(each, str):
            split = split_rating(each, 0, "")
            if split is None:
                raise Unparsable("an item without a rating")
            texts.append(item_text(split[0]))
            ratings.append(split[1].value)
            numbers.append(None)
            continue
        if not isinstance(each, dict):
            raise Unparsable("a list element of another type than object")
        name = next((one for one in RATING_NAMES if one in each), "")
        ratings.append(rating_of_value(get_field(each, RATING_NAMES)))
        said = get_field(each, names)
        texts.append(said.strip() if isinstance(said, str) else "")
        numbers.append(number_of_value(get_field(each, ID_NAMES) if said is None or isinstance(said, str) else said))
    digits = digits_of_fields(completion, name, ratings) if name else [Digit(value, -1) for value in ratings]
    return [RatedText(*one) for one in zip(texts, digits, numbers, strict=True)]


def ratings_in_order(rated: Sequence[RatedText], texts: Sequence[str]) -> list[Digit]:
    """Return a rating for each of `texts`: matched by text, by number, or by position.

    Position counts if there are as many ratings as texts. Raises `Unparsable` for a text without a rating or with two.
    """
    keys = [matching_key(text) for text in texts]
    free: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        free.setdefault(key, []).append(place)
    chosen: dict[int, Digit] = {}
    unknown: list[tuple[int, RatedText]] = []
    for position, one in enumerate(rated):
        key = matching_key(one.text)
        number = number_of_value(one.text) if one.text else one.number
        if key and key in free:
            place = free[key].pop(0) if len(free[key]) > 1 else free[key][0]
        elif number is not None and (key == "" or key.split()[-1] == str(number)):
            place = number - 1
        else:
            unknown.append((position, one))
            continue
        if chosen.setdefault(place, one.digit).value != one.digit.value:
            raise Unparsable("two ratings of one text")
    for position, one in unknown:
        if len(rated) != len(texts) or position in chosen:
            raise Unparsable("a rating of another text")
        chosen[position] = one.digit
    if sorted(chosen) != list(range(len(texts))):
        raise Unparsable("a text without a rating")
    return [chosen[place] for place in range(len(texts))]
