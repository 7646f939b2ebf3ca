"""Read numbers of the texts that a prompt lists: one list of them, or one list for each of other texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.forms import (
    ID_NAMES,
    find_records,
    get_field,
    lines_with_places,
    number_of_value,
    numbers_of_value,
    place_of_record,
    says_nothing,
)
from untold.udfs.stages.labels import BOXED
from untold.udfs.stages.reading import is_none, split_marker, unfenced

_WORD = r"(?:(?:topic|aspect|reference|claim|candidate|fact|statement|context|number|no|id)s?\.?\s?#?|c(?=\d)|#)"
_NUMBER = rf"(?:{_WORD}\s*+)?[\[({{#]?\d{{1,6}}+[\])}}]?"
_NUMBERS = rf"[\[({{]?\s*+{_NUMBER}(?:(?=[\s,;&]|and)\s*+[,;&]?\s*+(?:and\s*+)?{_NUMBER})*+\s*+[\])}}]?"
_ONLY_NUMBERS = re.compile(rf"\W{{0,4}}(?P<numbers>{_NUMBERS}|\[\s*\]|none)\W{{0,6}}", re.IGNORECASE)
_NAMED_NUMBERS = re.compile(
    r"[\W_]{0,6}(?:(?:the )?(?:final |selected |minimal |chosen )?(?:answer|selected|candidates?|numbers?|result|output"
    r"|evidence(?: claim ids)?|subset|selection|matches|matching candidates?|set)(?: numbers?)?"
    r"(?: is| are)?)[*_]{0,2}\s?[:：=]\s*[*_]{0,2}"
    rf"(?P<numbers>{_NUMBERS}|\[\s*\]|none)\W{{0,6}}",
    re.IGNORECASE,
)
# A sentence with the only brackets of its line
_CONCLUDES = re.compile(
    r"(?!.*\b(?:no|not|none|but|reject\w*|exclud\w*|wrong|instead)\b)[^\[\]\n]*(?P<numbers>\[[\d, ]*\])[^\[\]\n]*",
    re.IGNORECASE,
)
_NO_MATCH = re.compile(r"\W*(?:no match|no candidates?|none of (?:the candidates|them))\b[^\n.]*\W*", re.IGNORECASE)
_PAIR = re.compile(
    rf"[\W_]{{0,6}}(?:{_WORD}\s*)?(?P<id>\d{{1,6}})[\])]?[*_]{{0,2}}"
    rf"\s*(?:[:：]|→|->|=>|\s[-–—]|is (?:covered|entailed) by)\s*[*_]{{0,2}}(?P<word>{_WORD}\s*:?\s*)?"
    rf"(?P<numbers>{_NUMBERS}|\[\s*\]|none|not covered|-|–|—)\W{{0,6}}",
    re.IGNORECASE,
)
# An introduction, an offer, and a line about keys without numbers
_BESIDE_PAIRS = re.compile(
    r"[^\d{}\n]*[:：!][*_]{0,2}\s*"
    rf"|[\W_]*(?:{_WORD}\s*)[\d, and]{{1,40}} (?:is|are|have|has) (?:not|no)\b[^\n{{}}]*",
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
    if says_nothing(text) or _NO_MATCH.fullmatch(text.strip()):
        return []
    text = BOXED.sub(r"\1", text)
    if "{" in text or '["' in text or "['" in text:
        found = find_records(text, (*names, *ID_NAMES))
        if found is None:
            raise Unparsable("an object without a list of numbers")
        return _known(_numbers_of_records(found[0], names, texts), texts)
    lines = _lines(_LIST_ON_LINES.sub(lambda found: " ".join(found[0].split()), text))
    lines = [line for line in lines if not line.lstrip(" *_").casefold().startswith("note")]
    named = [line for line in lines if _NAMED_NUMBERS.fullmatch(line)]
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
    known_names = (*ID_NAMES, *names, *_REASONS)
    if len(records) != 1:
        others = [value for each in records for name, value in each.items() if name not in known_names]
        if any(value not in texts for value in others):
            raise Unparsable("candidates with other fields")
        return [number_of_value(get_field(each, (*ID_NAMES, *names))) or 0 for each in records]
    values = get_field({name: value for name, value in records[0].items() if not isinstance(value, bool)}, names)
    others = [value for name, value in records[0].items() if isinstance(value, bool) or name not in known_names]
    if not set(names).intersection(records[0]) or others not in ([], [bool(values)]) or isinstance(values, dict):
        raise Unparsable("an object without a list of numbers, or with another verdict")
    return values


def _lines(text: str) -> list[str]:
    return [line for _, line in lines_with_places(unfenced(text))]


def _numbers_in(line: str) -> list[int] | None:
    """Return the numbers of a line with nothing else, [] for an empty list, None for other text."""
    behind = split_marker(line).text
    # The number of a line is not in its list: `1. [2, 3]`
    lines = (behind, line) if behind.startswith("[") else (line, behind)
    found = next(
        (found for each in lines for pattern in (_NAMED_NUMBERS, _ONLY_NUMBERS) if (found := pattern.fullmatch(each))),
        None,
    )
    return _integers(found["numbers"]) if found else None


def _integers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def numbers_in_lines(text: str) -> list[int]:
    """Return the numbers of the lines that hold nothing but numbers."""
    return [number for line in _lines(text) for number in _numbers_in(line) or ()]


def _known(values: Any, texts: Sequence[str]) -> list[int]:
    known, unknown = numbers_of_value(values, len(texts), texts)
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
    if says_nothing(text) or (lines and is_none(lines[-1]) and not pairs and "{" not in text):
        return [[] for _ in keys]
    if not pairs or len(pairs) < len(lines):
        found = find_records(text, (*id_names, *list_names))
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
    known, _ = numbers_of_value(_integers(found["numbers"]), count)
    return int(found["id"]), known


def _pair_of(
    value: Any, id_names: Sequence[str], list_names: Sequence[str], keys: Sequence[str], texts: Sequence[str]
) -> tuple[int, list[int]]:
    if not isinstance(value, dict):
        raise Unparsable("a list element of another type than object")
    number = place_of_record(value, id_names, keys)
    if number is None or value.get("prefix", id_names[0]) not in ("", *id_names):
        raise Unparsable("a record without a number")
    named = [name for name in (*list_names, "value") if name in value]
    status = " ".join(
        str(value.get(name, "")) for name in ("status", "covered", "label", "entailed", "match")
    ).casefold()
    numbers = numbers_of_value(get_field(value, named), len(texts), texts)[0] if named else []
    denies = "not" in status or "none" in status or "false" in status or "uncovered" in status
    if not named and not denies:
        raise Unparsable("a record without a list of numbers")
    if numbers and denies:
        raise Unparsable("numbers for a text without a match")
    return number, numbers
