"""Reading which aspects claims cover, and which claims cover each (Samarinas et al. 2025; methods, section 9)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from udfs.stages.definitions import Unparsable
from udfs.stages.echoes import past_echoes
from udfs.stages.lists import rows_of, says_none
from udfs.stages.numbered import (
    CLAIM_WORDS,
    EVIDENCE_NAMES,
    Numbered,
    evidence_cells,
    listed_numbers,
    lone_number,
    number_of,
    number_texts,
)
from udfs.stages.reading import strip_thinking, unfenced
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

TOPIC_NAMES = (
    *("topicid", "aspectid", "subtopicid", "topicnumber", "aspectnumber", "id", "number", "no"),
    *("topic", "aspect", "subtopic", "index", "name", "text", ""),
)
_TEXT_NAMES = ("topic", "aspect", "subtopic", "topictext", "aspecttext", "topicname", "name", "title", "text")
_COVERED_NAMES = ("covered", "iscovered")
# What stands beside a topic's number: `Topic 3`, `aspect_3`
_TOPIC_WORDS = re.compile(r"(?<![^\W_])(?:topics?|aspects?|subtopics?|no|number|id|[ta])(?![^\W\d_])", re.IGNORECASE)
# Beside `None` and `[]`: evidence in another form, `Topic 1: claims 2, 3` or `[2, 3]`
_OTHER_FORM = re.compile(r"\{|\[\s{0,3}\d|\b(?:topic|aspect)\s?#?\d{1,4}\W{1,6}(?:claims?\W{1,3})?\d", re.IGNORECASE)


@past_echoes
def parse_alignment(completion: str, variables: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """`evidence`: for each of `aspects` the numbers of the `claims` that cover it, from 1, ascending; `[]` uncovered.

    An empty list or a lone `None` covers none. Numbers of no aspect and of no claim are passed over, and the evidence
    of an aspect that stands twice is united. Raises `Unparsable` where there is no object, or one cannot be read.
    """
    text = strip_thinking(completion)
    aspects = number_texts(variables["aspects"], _TOPIC_WORDS)
    claims = number_texts(variables["claims"], CLAIM_WORDS)
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


def _covers_none(text: str, records: Records | None) -> bool:
    """Whether a completion without an object is an empty list or a lone `None`, with no evidence in another form."""
    empty = is_empty_list(records) or (records is None and says_none(rows_of(unfenced(text))))
    return empty and not _OTHER_FORM.search(records.rest if records else text)


def _objects(records: Records, aspects: Numbered) -> Iterator[Record]:
    """The objects, one an aspect. Raises `Unparsable` for what is none, and for one that stands there unread."""
    if "{" in records.rest:
        raise Unparsable("an object that cannot be read")
    for value in unwrapped(_without_map(records.values, aspects), (*TOPIC_NAMES, *EVIDENCE_NAMES)):
        if not isinstance(value, Record):
            raise Unparsable("an element of a list is no object")
        yield value


def _without_map(values: Sequence[Value], aspects: Numbered) -> list[Value]:
    """The values; `{"1": [2, 3], "Topic 2": []}` is an object for each of its fields."""
    lone = values[0] if len(values) == 1 else None
    if not isinstance(lone, Record) or not lone.pairs or not all(_names_topic(key, aspects) for key, _ in lone.pairs):
        return list(values)
    return [Record((("topic_id", Cell(key, 0)), ("evidence", value))) for key, value in lone.pairs]


def _names_topic(key: str, aspects: Numbered) -> bool:
    """Whether a field's name is the number or the text of an aspect."""
    return lone_number(key, aspects) is not None or aspects.find(key) is not None


def _topic(value: Record, aspects: Numbered) -> int:
    """The number of the aspect, of none where it is unknown. Raises `Unparsable` where number and text are two's."""
    cell, text = value.cell(TOPIC_NAMES), value.cell(_TEXT_NAMES)
    if cell is None:
        raise Unparsable("an object without a topic")
    number, named = number_of(cell.bare, aspects), aspects.find(text.bare) if text else None
    if named and named != number and not (number in aspects and aspects.find(aspects.texts[number - 1]) == named):
        raise Unparsable("number and text are two topics'")
    return number


def _evidence(value: Record, claims: Numbered) -> set[int]:
    """The known claims of an object. Raises `Unparsable` for what is none, and where the object denies them."""
    found = value.field(EVIDENCE_NAMES)
    if found is None and any(_may_be_evidence(key, each) for key, each in value.pairs):
        raise Unparsable("evidence under another name")
    numbers = {number for cell in evidence_cells(found) for number in _claims_of(cell, claims)}
    covered = value.cell(_COVERED_NAMES)
    if numbers and covered and covered.text.casefold() in ("false", "no"):
        raise Unparsable("evidence of a topic that is not covered")
    return numbers


def _may_be_evidence(key: str, value: Value) -> bool:
    """Whether a field of an unknown name holds a list or numbers."""
    known = field_name(key) in (*TOPIC_NAMES, *_TEXT_NAMES)
    return not known and (not isinstance(value, Cell) or any(map(str.isdigit, value.text)))


def _claims_of(cell: Cell, claims: Numbered) -> Iterator[int]:
    """The known numbers of `3`, `claim 3`, `1, 3` and `1-3`, or of the claim that is repeated."""
    listed = listed_numbers(cell.bare, claims)
    if listed is not None:
        yield from listed
    elif (number := number_of(cell.bare, claims)) in claims:
        yield number
