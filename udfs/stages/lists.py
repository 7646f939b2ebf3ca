"""Read lists of texts, lists of texts with ratings from 1 to 5, and lists of the numbers of texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from untold.udfs.errors import Unparsable
from untold.udfs.ratings import SCALE, Digit
from untold.udfs.recall.segmentation import sentences
from untold.udfs.stages import forms
from untold.udfs.stages.answers import reader
from untold.udfs.stages.definitions import ExtractedItem, StageDefinition
from untold.udfs.stages.labels import BOXED
from untold.udfs.stages.non_answers import says_absent, texts_of
from untold.udfs.stages.reading import asks, breaks_off, collapsed, is_none, split_marker, unfenced, without_start
from untold.udfs.stages.schemas import TEXT, listed, record
from untold.udfs.texts import compatible

_TEXT_NAMES = ("text", "statement", "item", "content")
CLAIM_NAMES = ("claim", "fact", *_TEXT_NAMES)
FACT_NAMES = ("fact", "claim", *_TEXT_NAMES)
TOPIC_NAMES = ("topic", "aspect", "subtopic", *_TEXT_NAMES)
QUESTION_NAMES = ("question", *_TEXT_NAMES)
STATEMENT_NAMES = ("revisedstatement", "statement", "revised", "fact", "atom", "unit", "claim", *_TEXT_NAMES)

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
) -> list[forms.ListLine]:
    """Return the items of a list in order, with their numbers.

    preferred: the keys of the text fields of records with several texts. may_be_plain: one line without a bullet is a
    list. Raises `Unparsable` without a list, and for an ambiguous line.
    """
    bare = unfenced(text).strip()
    if forms.says_nothing(bare) or (says_absent(bare) and collapsed(bare) not in collapsed(own)):
        return []
    found = forms.find_records(text, (*preferred, *names))
    if found is not None:
        items = [_recorded(each, names, preferred) for each in found[0]]
        beside = [split_marker(line) for line in found[1].split("\n")]
        if any(line.marked and line.text.strip(" -_*=:") for line in beside):
            raise Unparsable("items outside of JSON or a table")
        if not items:
            return []
    else:
        items = [replace(line, text=item_text(line.text)) for line in forms.read_list(text)]
        if len(items) == 1 and not items[0].is_marked and not may_be_plain and not is_none(items[0].text):
            raise Unparsable("one line that may be a list or a sentence")
    if len(items) == 1 and is_none(items[0].text):
        return []
    if not items or any(is_none(item.text) or not any(map(str.isalnum, item.text)) for item in items):
        raise Unparsable("no items, or an item without a text")
    _check_items(items, own)
    return items


def _check_items(items: Sequence[forms.ListLine], own: str) -> None:
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


def _recorded(value: Any, names: Sequence[str], preferred: Sequence[str]) -> forms.ListLine:
    said = value
    if isinstance(value, dict):
        said = forms.get_field(value, preferred) or forms.get_field(value, (*names, "value"))
    number = forms.number_of_value(forms.get_field(value, forms.ID_NAMES)) if isinstance(value, dict) else None
    if not isinstance(said, str):
        raise Unparsable("a list element of another type than text")
    return forms.ListLine(said.strip(), number, -1)


def item_text(text: str) -> str:
    """Return the text of an item without label, sources and emphasis around it.

    >>> item_text("**Fact 1:** `a` is b. [1, 2]")
    '`a` is b.'
    """
    text = forms.undecorated(_BEHIND_ITEM.sub("", text))
    rest = without_start(_ITEM_LABEL, text).strip()
    return forms.undecorated(rest) if rest.strip("*_ ") else text


def balanced(text: str) -> str:
    """Return the text without unpaired marks of emphasis at its ends."""
    text = text.strip()
    for mark in ("**", "`", "*"):
        if text.count(mark) % 2:
            text = text.removesuffix(mark) if text.endswith(mark) else text.removeprefix(mark)
    return text


TEXTS, NUMBERS = pa.list_(pa.string()), pa.list_(pa.int32())
ReadTexts = Callable[[str, Mapping[str, Any]], list[str]]


def list_stage(
    name: str, variables: tuple[str, ...], column: str, read: ReadTexts, *, field: str = "", **more: Any
) -> StageDefinition:
    """Return a stage with one list of texts, which is a column of the output and a field of the schema.

    read: function from an answer and variables to the texts. field: the name of the field if it is not `column`.
    """

    @reader
    def parse(text: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
        return {column: read(text, variables)}

    return StageDefinition(
        name,
        variables,
        parse,
        pa.schema({column: TEXTS}),
        schema=record(**{field or column: listed(TEXT)}),
        things=lambda completion: list(map(ExtractedItem, parse(completion, {})[column])),
        items=(column,),
        **more,
    )


def texts_named(names: Sequence[str], *, may_be_plain: bool = False) -> ReadTexts:
    """Return `read_texts` for a list of these names, beside all variables of a request."""

    def read(text: str, variables: Mapping[str, Any]) -> list[str]:
        return read_texts(text, names, "\n".join(texts_of(variables.values())), may_be_plain=may_be_plain)

    return read


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
    *("relevance", "relevancy", "rating", "score", "relevancerating", "relevancescore", "confidence", "certainty"),
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
    number = forms.number_of_value(value.partition("/5")[0] if isinstance(value, str) else value)
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
        return asks(text) or matching_key(text) in known

    found = forms.find_records(completion, (*names, *RATING_NAMES))
    if found is not None:
        return _rated_records(completion, found[0], names)
    rated = []
    lines = forms.read_list(completion)
    if len({_WORD.search(line.text) is None for line in lines}) > 1:
        raise Unparsable("ratings with and without a name")
    for line in lines:
        split = split_rating(line.text, line.start, completion, is_known)
        if split is None:
            raise Unparsable("an item without a rating")
        before, digit, behind = split
        if any(map(str.isalnum, behind)) and (not before.strip() or behind.strip()[0] not in "(-–—:,;.["):
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
    rated: list[RatedText] = []
    name = ""
    for each in records:
        if isinstance(each, str):
            split = split_rating(each, 0, "")
            if split is None:
                raise Unparsable("an item without a rating")
            rated.append(RatedText(item_text(split[0]), Digit(split[1].value, -1), None))
            continue
        if not isinstance(each, dict):
            raise Unparsable("a list element of another type than object")
        name = next((one for one in RATING_NAMES if one in each), "")
        digit = Digit(rating_of_value(forms.get_field(each, RATING_NAMES)), -1)
        text = forms.get_field(each, names)
        is_text = text is None or isinstance(text, str)
        number = forms.number_of_value(forms.get_field(each, forms.ID_NAMES) if is_text else text)
        rated.append(RatedText(text.strip() if isinstance(text, str) else "", digit, number))
    if not name:
        return rated
    digits = digits_of_fields(completion, name, [one.digit.value for one in rated])
    return [replace(one, digit=digit) for one, digit in zip(rated, digits, strict=True)]


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
        number = forms.number_of_value(one.text) if one.text else one.number
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


_COUNTED = r"(?:(?:topic|aspect|reference|claim|candidate|fact|statement|context|number|no|id)s?\.?\s?#?|c(?=\d)|#)"
_NUMBER = rf"(?:{_COUNTED}\s*+)?[\[({{#]?\d{{1,6}}+[\])}}]?"
_NUMBERS = rf"[\[({{]?\s*+{_NUMBER}(?:(?=[\s,;&]|and)\s*+[,;&]?\s*+(?:and\s*+)?{_NUMBER})*+\s*+[\])}}]?"
# A line of numbers, with a name for the answer before them or without one
_ONLY_NUMBERS = re.compile(
    r"(?:[\W_]{0,6}(?P<name>(?:the )?(?:final |selected |minimal |chosen )?(?:answer|selected|candidates?|numbers?"
    r"|evidence(?: claim ids)?|result|output|subset|selection|matches|matching candidates?|set)(?: numbers?)?"
    r"(?: is| are)?)"
    rf"[*_]{{0,2}}\s?[:：=]\s*[*_]{{0,2}}|\W{{0,4}})(?P<numbers>{_NUMBERS}|\[\s*\]|none)\W{{0,6}}",
    re.IGNORECASE,
)
# A sentence with the only brackets of its line
_CONCLUDES = re.compile(
    r"(?!.*\b(?:no|not|none|but|reject\w*|exclud\w*|wrong|instead)\b)[^\[\]\n]*(?P<numbers>\[[\d, ]*\])[^\[\]\n]*",
    re.IGNORECASE,
)
_NO_MATCH = re.compile(r"\W*(?:no match|no candidates?|none of (?:the candidates|them))\b[^\n.]*\W*", re.IGNORECASE)
_PAIR = re.compile(
    rf"[\W_]{{0,6}}(?:{_COUNTED}\s*)?(?P<id>\d{{1,6}})[\])]?[*_]{{0,2}}"
    rf"\s*(?:[:：]|→|->|=>|\s[-–—]|is (?:covered|entailed) by)\s*[*_]{{0,2}}(?P<word>{_COUNTED}\s*:?\s*)?"
    rf"(?P<numbers>{_NUMBERS}|\[\s*\]|none|not covered|-|–|—)\W{{0,6}}",
    re.IGNORECASE,
)
# An introduction, an offer, and a line about keys without numbers
_BESIDE_PAIRS = re.compile(
    r"[^\d{}\n]*[:：!][*_]{0,2}\s*"
    rf"|[\W_]*(?:{_COUNTED}\s*)[\d, and]{{1,40}} (?:is|are|have|has) (?:not|no)\b[^\n{{}}]*",
    re.IGNORECASE,
)
_REASONS = ("reasoning", "reason", "explanation", "justification", "analysis", "reference", "rationale")
_NO_LIST = re.compile(r"(?<!\d)-\d|\[\s*\[|^[^\[\n]*\]|\[[^\]\n]*\Z")
_LIST_ON_LINES = re.compile(r"\[[\s\d,]{0,2000}\]")


def read_numbers(text: str, names: Sequence[str], texts: Sequence[str]) -> list[int]:
    """Return the numbers of the known `texts` in a completion, ascending.

    The numbers are in a field of an object, in a list on a line of its own, after a name for the answer, or one per
    line. `None` is the empty list. Raises `Unparsable` for several lists that differ, and if all numbers are unknown.
    """
    if forms.says_nothing(text) or _NO_MATCH.fullmatch(text.strip()):
        return []
    text = BOXED.sub(r"\1", text)
    if "{" in text or '["' in text or "['" in text:
        found = forms.find_records(text, (*names, *forms.ID_NAMES))
        if found is None:
            raise Unparsable("an object without a list of numbers")
        return _known(_numbers_of_records(found[0], names, texts), texts)
    lines = _lines(_LIST_ON_LINES.sub(lambda found: " ".join(found[0].split()), text))
    lines = [line for line in lines if not line.lstrip(" *_").casefold().startswith("note")]
    named = [line for line in lines if (each := _ONLY_NUMBERS.fullmatch(line)) and each["name"]]
    said = [numbers for line in named or lines if (numbers := _numbers_in(line)) is not None]
    concluded = _CONCLUDES.fullmatch(lines[-1]) if lines and not said else None
    said = [_integers(concluded["numbers"])] if concluded else said
    if len(said) > 1 and len(said) == len(lines) and all(len(each) == 1 for each in said) and "[" not in text:
        said = [[number for each in said for number in each]]
    if not said or any(each != said[0] for each in said) or any(map(_NO_LIST.search, lines)):
        raise Unparsable("several lists of candidates" if said else "no list of candidates")
    return _known(said[0], texts)


def _numbers_of_records(records: Sequence[Any], names: Sequence[str], texts: Sequence[str]) -> Any:
    """Return the list in a field of one object, or one number per object."""
    if not all(isinstance(each, dict) for each in records):
        return list(records)
    known_names = (*forms.ID_NAMES, *names, *_REASONS)
    if len(records) != 1:
        others = [value for each in records for name, value in each.items() if name not in known_names]
        if any(value not in texts for value in others):
            raise Unparsable("candidates with other fields")
        return [forms.number_of_value(forms.get_field(each, (*forms.ID_NAMES, *names))) or 0 for each in records]
    values = forms.get_field({name: value for name, value in records[0].items() if not isinstance(value, bool)}, names)
    others = [value for name, value in records[0].items() if isinstance(value, bool) or name not in known_names]
    if not set(names).intersection(records[0]) or others not in ([], [bool(values)]) or isinstance(values, dict):
        raise Unparsable("an object without a list of numbers, or with another verdict")
    return values


def _lines(text: str) -> list[str]:
    return [line for _, line in forms.lines_with_places(unfenced(text))]


def _numbers_in(line: str) -> list[int] | None:
    """Return the numbers of a line with nothing else, [] for an empty list, None for other text."""
    behind = split_marker(line).text
    # The number of a line is not in its list: `1. [2, 3]`
    lines = (behind, line) if behind.startswith("[") else (line, behind)
    found = next(filter(None, map(_ONLY_NUMBERS.fullmatch, lines)), None)
    return _integers(found["numbers"]) if found else None


def _integers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def numbers_in_lines(text: str) -> list[int]:
    """Return the numbers of the lines that hold nothing but numbers."""
    return [number for line in _lines(text) for number in _numbers_in(line) or ()]


def _known(values: Any, texts: Sequence[str]) -> list[int]:
    known, unknown = forms.numbers_of_value(values, len(texts), texts)
    if unknown and not known:
        raise Unparsable("only unknown numbers")
    return known


def read_number_lists(
    text: str, id_names: Sequence[str], list_names: Sequence[str], keys: Sequence[str], texts: Sequence[str]
) -> list[list[int]]:
    """Return for each of `keys` the numbers of `texts` that are given for it, ascending.

    A record has the number of a key, or its text, in a field of `id_names`, and a list of numbers in one of
    `list_names`. Unknown keys and numbers are dropped; a repeated key has the numbers of both records. `None` and `[]`
    give none for all. Raises `Unparsable` for an answer without records of known keys, and a record that cannot be
    read.
    """
    chosen: list[set[int]] = [set() for _ in keys]
    lines = [line for line in _lines(text) if not _BESIDE_PAIRS.fullmatch(line)]
    pairs = [pair for line in lines if (pair := _pair_in(line, len(texts))) is not None]
    if forms.says_nothing(text) or (lines and is_none(lines[-1]) and not pairs and "{" not in text):
        return [[] for _ in keys]
    if not pairs or len(pairs) < len(lines):
        found = forms.find_records(text, (*id_names, *list_names))
        beside = found[1].split("\n") if found else []
        if found is None or any("{" in line or is_none(line) or _pair_in(line, len(texts)) for line in beside):
            raise Unparsable("no object with a number and those that go with it")
        pairs = [_pair_of(each, id_names, list_names, keys, texts) for each in found[0]]
    if any(number < 1 for number, _ in pairs):
        raise Unparsable("the number 0")
    if pairs and all(number > len(keys) for number, _ in pairs):
        raise Unparsable("only unknown numbers")
    for number, numbers in pairs:
        if number <= len(keys):
            chosen[number - 1].update(numbers)
    return [sorted(numbers) for numbers in chosen]


def _pair_in(line: str, count: int) -> tuple[int, list[int]] | None:
    found = _PAIR.fullmatch(line) or _PAIR.fullmatch(split_marker(line).text)
    if found is None or not (found["word"] or found["numbers"][0] in "[nN"):
        return None
    known, _ = forms.numbers_of_value(_integers(found["numbers"]), count)
    return int(found["id"]), known


def _pair_of(
    value: Any, id_names: Sequence[str], list_names: Sequence[str], keys: Sequence[str], texts: Sequence[str]
) -> tuple[int, list[int]]:
    if not isinstance(value, dict):
        raise Unparsable("a list element of another type than object")
    number = forms.place_of_record(value, id_names, keys)
    if number is None or value.get("prefix", id_names[0]) not in ("", *id_names):
        raise Unparsable("a record without a number")
    named = [name for name in (*list_names, "value") if name in value]
    said = (str(value.get(name, "")).casefold() for name in ("status", "covered", "label", "entailed", "match"))
    numbers = forms.numbers_of_value(forms.get_field(value, named), len(texts), texts)[0] if named else []
    status = " ".join(said)
    denies = any(word in status for word in ("not", "none", "false", "uncovered"))
    if not named and not denies:
        raise Unparsable("a record without a list of numbers")
    if numbers and denies:
        raise Unparsable("numbers for a text without a match")
    return number, numbers
