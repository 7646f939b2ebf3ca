"""Reading which aspects claims cover, and which claims cover each (Samarinas et al. 2025; methods, section 9)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from udfs.stages.definitions import Unparsable
from udfs.stages.echoes import past_echoes
from udfs.stages.lists import rows_of, says_none
from udfs.stages.rated import matching_key
from udfs.stages.reading import is_none, strip_thinking, unfenced
from udfs.stages.records import (
    Cell,
    Record,
    Records,
    Value,
    field_name,
    is_empty_list,
    json_at_line_starts,
    read_records,
    unwrapped,
)
from udfs.stages.sources import numbers_of

TOPIC_NAMES = (
    *("topicid", "aspectid", "subtopicid", "topicnumber", "aspectnumber", "id", "number", "no"),
    *("topic", "aspect", "subtopic", "index", "name", "text", ""),
)
EVIDENCE_NAMES = (
    *("evidence", "evidenceids", "evidenceclaims", "evidenceclaimids", "evidencenumbers", "claimids", "claimnumbers"),
    *("claims", "supportingclaims", "coveredby", "supportedby", "support", "claimid", "claimnumber", "claim"),
)
_TEXT_NAMES = ("topic", "aspect", "subtopic", "topictext", "aspecttext", "topicname", "name", "title", "text")
_CLAIM_NAMES = (*EVIDENCE_NAMES, "id", "number", "text", "statement")
_COVERED_NAMES = ("covered", "iscovered")
# What stands beside a number: `Topic 3`, `aspect_3`, `C1`, `claims 1 and 2`
_TOPIC_WORDS = re.compile(r"(?<![^\W_])(?:topics?|aspects?|subtopics?|no|number|id|[ta])(?![^\W\d_])", re.IGNORECASE)
_CLAIM_WORDS = re.compile(r"(?<![^\W_])(?:claims?|and|nos?|numbers?|ids?|evidence|c)(?![^\W\d_])", re.IGNORECASE)
_WHOLE = re.compile(r"(?<![\d.,])(\d{1,9})\.0{1,3}(?![\d.,])")
_AROUND = " \t\r\n[](){}\"'“”.:#*_`"
_LONE_NUMBER = re.compile(r"(?P<sign>-?)0*(?P<digits>\d+)")
_LISTED_NUMBERS = re.compile(r"[\s\d,;&/#、，–—-]+")
_TEXT_BEHIND_NUMBER = re.compile(
    r"\W{0,9}(?:(?:topic|aspect|subtopic|claim)\W{1,3})?(?P<number>\d{1,9})\s{0,3}[.:)\]–—-]{1,2}\s{1,9}(?=\S)", re.I
)
_NO_EVIDENCE = re.compile(r"(?:null|n\s?/\s?a|[\W_]{0,20})", re.IGNORECASE)
# Beside `None` and `[]`: evidence in another form, `Topic 1: claims 2, 3` or `[2, 3]`
_OTHER_FORM = re.compile(r"\{|\[\s{0,3}\d|\b(?:topic|aspect)\s?#?\d{1,4}\W{1,6}(?:claims?\W{1,3})?\d", re.IGNORECASE)


@dataclass(frozen=True)
class _Numbered:
    """The texts that a prompt numbers from 1, and by its letters and digits the number of each."""

    texts: Sequence[str]
    numbers: Mapping[str, int]
    words: re.Pattern[str]

    def __contains__(self, number: int) -> bool:
        return 1 <= number <= len(self.texts)

    def find(self, text: str) -> int | None:
        """The number of a text that is one of them."""
        return self.numbers.get(matching_key(text)) if matching_key(text) else None


@past_echoes
def parse_alignment(completion: str, variables: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """`evidence`: for each of `aspects` the numbers of the `claims` that cover it, from 1, ascending; `[]` uncovered.

    An empty list or a lone `None` covers none. Numbers of no aspect and of no claim are passed over, and the evidence
    of an aspect that stands twice is united. Raises `Unparsable` where there is no object, or one cannot be read.
    """
    text = strip_thinking(completion)
    aspects, claims = _number(variables["aspects"], _TOPIC_WORDS), _number(variables["claims"], _CLAIM_WORDS)
    records = read_records(json_at_line_starts(text))
    objects = list(_objects(records, aspects)) if records else []
    if not objects and not _covers_none(text, records):
        raise Unparsable("no object with a topic and its evidence")
    evidence: list[set[int]] = [set() for _ in aspects.texts]
    for value in objects:
        topic, found = _topic(value, aspects), _evidence(value, claims)
        if topic in aspects:
            evidence[topic - 1] |= found
    return {"evidence": [sorted(numbers) for numbers in evidence]}


def _number(texts: Sequence[str], words: re.Pattern[str]) -> _Numbered:
    """The texts by number; of equal ones the first has their text."""
    numbered = reversed(list(enumerate(map(matching_key, texts), start=1)))
    return _Numbered(texts, {key: number for number, key in numbered}, words)


def _covers_none(text: str, records: Records | None) -> bool:
    """Whether a completion without an object is an empty list or a lone `None`, with no evidence in another form."""
    empty = is_empty_list(records) or (records is None and says_none(rows_of(unfenced(text))))
    return empty and not _OTHER_FORM.search(records.rest if records else text)


def _objects(records: Records, aspects: _Numbered) -> Iterator[Record]:
    """The objects, one an aspect. Raises `Unparsable` for what is none, and for one that stands there unread."""
    if "{" in records.rest:
        raise Unparsable("an object that cannot be read")
    for value in unwrapped(_without_map(records.values, aspects), (*TOPIC_NAMES, *EVIDENCE_NAMES)):
        if not isinstance(value, Record):
            raise Unparsable("an element of a list is no object")
        yield value


def _without_map(values: Sequence[Value], aspects: _Numbered) -> list[Value]:
    """The values; `{"1": [2, 3], "Topic 2": []}` is an object for each of its fields."""
    lone = values[0] if len(values) == 1 else None
    if not isinstance(lone, Record) or not lone.pairs or not all(_names_topic(key, aspects) for key, _ in lone.pairs):
        return list(values)
    return [Record((("topic_id", Cell(key, 0)), ("evidence", value))) for key, value in lone.pairs]


def _names_topic(key: str, aspects: _Numbered) -> bool:
    """Whether a field's name is the number or the text of an aspect."""
    return _lone_number(key, aspects) is not None or aspects.find(key) is not None


def _topic(value: Record, aspects: _Numbered) -> int:
    """The number of the aspect, of none where it is unknown. Raises `Unparsable` where number and text are two's."""
    cell, text = value.cell(TOPIC_NAMES), value.cell(_TEXT_NAMES)
    if cell is None:
        raise Unparsable("an object without a topic")
    number, named = _number_of(cell.bare, aspects), aspects.find(text.bare) if text else None
    if named and named != number and not (number in aspects and aspects.find(aspects.texts[number - 1]) == named):
        raise Unparsable("number and text are two topics'")
    return number


def _evidence(value: Record, claims: _Numbered) -> set[int]:
    """The known claims of an object. Raises `Unparsable` for what is none, and where the object denies them."""
    found = value.field(EVIDENCE_NAMES)
    if found is None and any(_may_be_evidence(key, each) for key, each in value.pairs):
        raise Unparsable("evidence under another name")
    numbers = {number for cell in _cells(found) for number in _claims_of(cell, claims)}
    covered = value.cell(_COVERED_NAMES)
    if numbers and covered and covered.text.casefold() in ("false", "no"):
        raise Unparsable("evidence of a topic that is not covered")
    return numbers


def _may_be_evidence(key: str, value: Value) -> bool:
    """Whether a field of an unknown name holds a list or numbers."""
    known = field_name(key) in (*TOPIC_NAMES, *_TEXT_NAMES)
    return not known and (not isinstance(value, Cell) or any(map(str.isdigit, value.text)))


def _cells(value: Value | None) -> Iterator[Cell]:
    """The texts and numbers of a field: itself, the elements of a list, or their numbers: `[{"claim_id": 1}]`."""
    if isinstance(value, list):
        for each in value:
            yield from _cells(each)
    elif isinstance(value, Record):
        cell = value.cell(_CLAIM_NAMES)
        if cell is None:
            raise Unparsable("an element of the evidence is no claim")
        yield cell
    elif value is not None:
        yield value


def _claims_of(cell: Cell, claims: _Numbered) -> Iterator[int]:
    """The known numbers of `3`, `claim 3`, `1, 3` and `1-3`, or of the claim that is repeated."""
    text = cell.bare
    if _NO_EVIDENCE.fullmatch(text) or is_none(text):
        return
    bare = _without_words(text, claims)
    listed = numbers_of(bare, len(claims.texts)) if _LISTED_NUMBERS.fullmatch(bare) else None
    if listed is not None:
        yield from listed
    elif (number := _number_of(text, claims)) in claims:
        yield number


def _number_of(text: str, numbered: _Numbered) -> int:
    """The number that a text is, or whose text it is; 0 where there is none. Raises `Unparsable` for another text."""
    number = _lone_number(text, numbered)
    found = numbered.find(text)
    if number is not None and (number in numbered or found is None):
        return number
    behind = _TEXT_BEHIND_NUMBER.match(text)
    if found is None and behind and numbered.find(text[behind.end() :]) == int(behind["number"]):
        found = int(behind["number"])
    if found is None:
        raise Unparsable("a text that is neither a number nor one of those given")
    return found


def _lone_number(text: str, numbered: _Numbered) -> int | None:
    """The number that a text is, but for words such as `Topic`; 0 for one that is too long to be one of theirs."""
    found = _LONE_NUMBER.fullmatch(_without_words(text, numbered))
    if found is None:
        return None
    return int(found["digits"]) if not found["sign"] and len(found["digits"]) < 10 else 0


def _without_words(text: str, numbered: _Numbered) -> str:
    return _WHOLE.sub(r"\1", numbered.words.sub(" ", text)).strip(_AROUND)
