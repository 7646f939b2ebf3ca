"""Reading which of the texts that a prompt numbers is meant, by number or by text. Every function is linear."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.rated import matching_key
from untold.udfs.stages.reading import is_none
from untold.udfs.stages.records import Cell, Record, Value
from untold.udfs.stages.sources import numbers_of

EVIDENCE_NAMES = (
    *("evidence", "evidenceids", "evidenceclaims", "evidenceclaimids", "evidencenumbers", "claimids", "claimnumbers"),
    *("claims", "supportingclaims", "coveredby", "supportedby", "support", "claimid", "claimnumber", "claim"),
)
# What stands beside a claim's number: `C1`, `claims 1 and 2`
CLAIM_WORDS = re.compile(r"(?<![^\W_])(?:claims?|and|nos?|numbers?|ids?|evidence|c)(?![^\W\d_])", re.IGNORECASE)
CLAIM_NAMES = (*EVIDENCE_NAMES, "id", "number", "text", "statement")
_WHOLE = re.compile(r"(?<![\d.,])(\d{1,9})\.0{1,3}(?![\d.,])")
_AROUND = " \t\r\n[](){}（）【】「」\"'“”.:：#*_`"
_LONE_NUMBER = re.compile(r"(?P<sign>-?)0*(?P<digits>\d+)")
_RANGE_WORD = re.compile(r"(?<=\d)\s{1,3}(?:to|through)\s{1,3}(?=#?\d)", re.IGNORECASE)
_ALL = re.compile(r"(?:all|each|every)(?: (?:of )?(?:the|these|them))?", re.IGNORECASE)
_LISTED_NUMBERS = re.compile(r"[\s\d,;&/#、，–—-]+")
_TEXT_BEHIND_NUMBER = re.compile(
    r"\W{0,9}(?:(?:topic|aspect|subtopic|claim|fact|reference|candidate)\W{1,3})?(?P<number>\d{1,9})\s{0,3}[.:)\]–—-]{1,2}\s{1,9}(?=\S)",
    re.I,
)
_NO_EVIDENCE = re.compile(r"(?:null|n\s?/\s?a|[\W_]{0,20})", re.IGNORECASE)


@dataclass(frozen=True)
class Numbered:
    """The texts that a prompt numbers from 1. `words` match what may stand beside a number, `Topic 3` and `C1`."""

    texts: Sequence[str]
    words: re.Pattern[str]

    def __contains__(self, number: int) -> bool:
        return 1 <= number <= len(self.texts)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        # Not before a completion repeats a text, which few do: of 500 claims it takes four times as long as the rest
        numbered = reversed(list(enumerate(map(matching_key, self.texts), start=1)))
        return {key: number for number, key in numbered}

    def find(self, text: str) -> int | None:
        """The number of a text that is one of them, by its letters and digits; of equal ones the first."""
        key = matching_key(text)
        return self._numbers.get(key) if key else None


def number_of(text: str, numbered: Numbered) -> int:
    """The number that a text is, or whose text it is; 0 where there is none. Raises `Unparsable` for another text."""
    found = number_in(text, numbered)
    if found is None:
        raise Unparsable("a text that is neither a number nor one of those given")
    return found


def number_in(text: str, numbered: Numbered) -> int | None:
    """The number that a text is, or whose text it is; None for any other text."""
    lone = lone_number(text, numbered)
    if lone is not None and lone in numbered:
        return lone
    found = numbered.find(text)
    if lone is not None and found is None:
        return lone
    behind = _TEXT_BEHIND_NUMBER.match(text)
    if found is None and behind and numbered.find(text[behind.end() :]) == int(behind["number"]):
        found = int(behind["number"])
    return found


def lone_number(text: str, numbered: Numbered) -> int | None:
    """The number that a text is, but for words such as `Topic`; 0 for one that is too long to be one of theirs."""
    found = _LONE_NUMBER.fullmatch(without_words(text, numbered))
    if found is None:
        return None
    return int(found["digits"]) if not found["sign"] and len(found["digits"]) < 10 else 0


def listed_numbers(text: str, numbered: Numbered) -> frozenset[int] | None:
    """The known numbers of `3`, `claim 3`, `1, 3` and `1-3`, all of `all`, none of `N/A`; None for another text."""
    if _NO_EVIDENCE.fullmatch(text) or is_none(text):
        return frozenset()
    if _ALL.fullmatch(without_words(text, numbered)):
        return frozenset(range(1, len(numbered.texts) + 1))
    bare = _RANGE_WORD.sub("-", without_words(text, numbered))
    return numbers_of(bare, len(numbered.texts)) if _LISTED_NUMBERS.fullmatch(bare) else None


def known_numbers(text: str, numbered: Numbered) -> frozenset[int]:
    """The known numbers of a text that lists some or is one, or the number of the text that it repeats.

    Raises `Unparsable` for another text.
    """
    listed = listed_numbers(text, numbered)
    if listed is not None:
        return listed
    number = number_of(text, numbered)
    return frozenset({number} if number in numbered else ())


def evidence_cells(value: Value | None) -> Iterator[Cell]:
    """The claims of a field, as `cells_of` gives them."""
    return cells_of(value, CLAIM_NAMES)


def cells_of(value: Value | None, names: Sequence[str]) -> Iterator[Cell]:
    """The texts and numbers of a field: itself, the elements of a list, or a field of theirs: `[{"claim_id": 1}]`.

    Raises `Unparsable` for an object without a field of one of `names`.
    """
    if isinstance(value, list):
        for each in value:
            yield from cells_of(each, names)
    elif isinstance(value, Record):
        cell = value.cell(names)
        if cell is None:
            raise Unparsable("an element of a list of numbers has none")
        yield cell
    elif value is not None:
        yield value


def without_words(text: str, numbered: Numbered) -> str:
    """The text without the words beside its numbers and without the signs around all of it."""
    return _WHOLE.sub(r"\1", numbered.words.sub(" ", text)).strip(_AROUND)
