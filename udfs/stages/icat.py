"""The stages of ICAT: claims, aspects, and their alignment (Samarinas et al. 2025; methods, section 9)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from untold.udfs.stages.claims import parse_aspects, parse_claims
from untold.udfs.stages.definitions import (
    FACTSCORE,
    TEXT,
    WRITTEN,
    ExtractedItem,
    Figures,
    LinearSize,
    StageDefinition,
    Unparsable,
    lines_of,
    listed,
    number_of,
    record,
)
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.lists import rows_of, says_none
from untold.udfs.stages.numbered import (
    CLAIM_NAMES,
    CLAIM_WORDS,
    EVIDENCE_NAMES,
    NumberedTexts,
    cells_of,
    find_number,
    known_numbers,
    listed_numbers,
    lone_number,
    number_in,
)
from untold.udfs.stages.reading import is_drawing, is_none, letters, past_echoes, split_marker, strip_thinking, unfenced
from untold.udfs.stages.records import (
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

# Between both sides: a colon, an arrow, a dash between spaces, or `is covered by`
_BETWEEN = re.compile(
    r"\*{0,2}\s{0,3}(?:[:：]\*{0,2}|[-=]>|[→⇒]|(?<=\s)[-–—](?=\s)"
    r"|(?=\bis (?:covered|entailed|supported|matched) by\b))\s{0,3}"
)
_MOST_BETWEEN = 9  # a line that is one of them has few; what is left of each is looked at
_BY = re.compile(r"(?:(?:is )?(?:covered|entailed|supported|matched)(?: by)?\b)[:\s]{0,3}", re.IGNORECASE)
_NOT = re.compile(r"(?:is )?(?:not|un)[\s_-]?(?:covered|entailed|supported|matched)\W{0,3}", re.IGNORECASE)
_ASIDE = re.compile(r"\s{0,3}\((?P<text>[^()\n]{1,400})\)\s{0,3}\Z")
_DIGIT = re.compile(r"\d")


def read_aligned_lines(
    lines: Sequence[str], left: NumberedTexts, right: NumberedTexts
) -> dict[int, frozenset[int]] | None:
    """By known left number the right ones, of lines that all name both; None where the first line does not.

    A left side is a text or has a word beside its number: of two bare numbers nobody knows which is which. Raises
    `Unparsable` where another line says something else, or a left number stands twice.
    """
    rows = [row.text.strip("*_` ") for row in map(split_marker, lines) if not is_drawing(row)]
    rows = rows[1:] if rows and _is_introduction(rows[0]) else rows
    found = [_sides(row, left, right) for row in rows]
    if not found or found[0] is None:
        return None
    pairs = [pair for pair in found if pair]
    if len(pairs) < len(found) or len(dict(pairs)) < len(pairs):
        raise Unparsable("a line beside others that says something else")
    return {number: numbers for number, numbers in pairs if number in left}


def _is_introduction(line: str) -> bool:
    return line.rstrip("*_ ").endswith((":", "：")) and not _DIGIT.search(line)


def _sides(line: str, left: NumberedTexts, right: NumberedTexts) -> tuple[int, frozenset[int]] | None:
    """The left number of a line and the right ones; None for any other line. A text may have a colon of its own."""
    for between in islice(_BETWEEN.finditer(line), _MOST_BETWEEN):
        number = _left(line[: between.start()], left)
        if number is not None:
            numbers = _right(line[between.end() :].strip("*_` "), right)
            return None if numbers is None else (number, numbers)
    return None


def _left(said: str, left: NumberedTexts) -> int | None:
    """The number that a left side names with a word or by its text, or both where they agree."""
    aside = _ASIDE.search(said)
    number = number_in(said[: aside.start()] if aside else said, left)
    worded = left.words.search(said) is not None or left.find(said) is not None or _has_letters(said)
    named = left.find(aside["text"]) if aside else None
    return number if worded and (named is None or named == number) else None


def _has_letters(said: str) -> bool:
    return any(map(str.isalpha, said))


def _right(said: str, right: NumberedTexts) -> frozenset[int] | None:
    """The numbers of a right side, none of `None` and `not covered`; None where it is no list of numbers."""
    if _NOT.fullmatch(said) or is_none(said) or said.strip() == "[]":
        return frozenset()
    by = _BY.match(said)
    listed = said[by.end() :] if by else said
    return listed_numbers(listed, right) if _DIGIT.search(listed) else None


@dataclass(frozen=True)
class Alignment:
    """The form `{"<left>": n, "<right>": [n, ...]}` a line, as models write it: names of fields and words by numbers.

    `left_names` and `right_names` are of the fields with numbers, the first of them those of the form; `text_names` of
    one with a left text beside its number, `verdict_names` of one that says whether anything goes with it. `listing`
    are the fields of elements of the right list that are objects. `other_form` matches what is no remark beside `None`
    but an answer in another form, `Topic 1: claims 2, 3`.
    """

    left_names: Sequence[str]
    text_names: Sequence[str]
    left_words: re.Pattern[str]
    right_names: Sequence[str]
    listing: Sequence[str]
    right_words: re.Pattern[str]
    verdict_names: Sequence[str]
    other_form: re.Pattern[str]


_AFFIRMATIONS = ("true", "yes")
_DENIALS = {"false", "no", "none", "not covered", "uncovered", "no match", "not matched", "not entailed", "unmatched"}
_TOPIC_NAMES = (
    *("topicid", "aspectid", "subtopicid", "topicnumber", "aspectnumber", "id", "number", "no"),
    *("topic", "aspect", "subtopic", "index", "name", "text", ""),
)
_ASPECTS_AND_CLAIMS = Alignment(
    left_names=_TOPIC_NAMES,
    text_names=("topic", "aspect", "subtopic", "topictext", "aspecttext", "topicname", "name", "title", "text"),
    # `Topic 3`, `aspect_3`
    left_words=re.compile(r"(?<![^\W_])(?:topics?|aspects?|subtopics?|no|number|id|[ta])(?![^\W\d_])", re.IGNORECASE),
    right_names=EVIDENCE_NAMES,
    listing=CLAIM_NAMES,
    right_words=CLAIM_WORDS,
    verdict_names=("covered", "iscovered", "status", "coverage", "verdict", "label", "match", "matched"),
    other_form=re.compile(
        r"\{|\[\s{0,3}\d|\b(?:topic|aspect)\s?#?\d{1,4}\W{1,6}(?:claims?\W{1,3})?\d",
        re.IGNORECASE,
    ),
)


@final_answer
@past_echoes
def parse_alignment(completion: str, variables: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """`evidence`: for each of `aspects` the numbers of the `claims` that cover it, from 1, ascending; `[]` uncovered.

    As `read_alignment` reads it. Raises `Unparsable` where there is no object, or one cannot be read.
    """
    return {"evidence": read_alignment(completion, _ASPECTS_AND_CLAIMS, variables["aspects"], variables["claims"])}


def read_alignment(completion: str, form: Alignment, lefts: Sequence[str], rights: Sequence[str]) -> list[list[int]]:
    """For each of `lefts` the numbers of the `rights` that go with it, from 1, ascending.

    Lines such as `Topic 1: claims 2, 3` are read too; an empty list or a lone `None` is nothing for all. Numbers of no
    left and of no right text are passed over, and the numbers of a left text that stands twice are united. Raises
    `Unparsable` where there is no object, or one cannot be read.
    """
    text = strip_thinking(completion)
    left, right = NumberedTexts(lefts, form.left_words), NumberedTexts(rights, form.right_words)
    records = read_records(json_at_line_starts(text))
    objects = list(_objects(records, form, left)) if records else []
    if objects and any(is_none(row.text) for row in rows_of(text.partition("{")[0])):
        raise Unparsable("objects below a None")
    lines = None if records else read_aligned_lines(unfenced(text).split("\n"), left, right)
    if lines is not None:
        return [sorted(lines.get(number, ())) for number in range(1, len(lefts) + 1)]
    if not objects and not _says_nothing(text, records, form):
        raise Unparsable("no object with a number and those that go with it")
    aligned: list[set[int]] = [set() for _ in lefts]
    pairs = [(_left_number(value, form, left), _right_numbers(value, form, right)) for value in objects]
    numbers, half = [number for number, _ in pairs], len(pairs) // 2
    if half > 1 and numbers[:half] == numbers[half:] and pairs[:half] != pairs[half:]:
        raise Unparsable("two lists of objects that differ")
    for number, found in pairs:
        if number in left:
            aligned[number - 1] |= found
    return [sorted(numbers) for numbers in aligned]


def _says_nothing(text: str, records: Records | None, form: Alignment) -> bool:
    """Whether a completion without an object is an empty list or a lone `None`, with nothing in another form."""
    rows = rows_of(unfenced(text))
    # `1. none` above `2. 3` is a list in another form
    lone = says_none(rows) and sum(row.marked and not is_drawing(row) for row in rows) < 2
    empty = is_empty_list(records) or (records is None and lone)
    return empty and not form.other_form.search(records.rest if records else text)


def _objects(records: Records, form: Alignment, left: NumberedTexts) -> Iterator[Record]:
    """The objects, one a left text. Raises `Unparsable` for what is none, and for one that stands there unread."""
    if "{" in records.rest:
        raise Unparsable("an object that cannot be read")
    for value in unwrapped(_without_map(records.values, form, left), form.left_names):
        if not isinstance(value, Record):
            raise Unparsable("an element of a list is no object")
        yield value


def _without_map(values: Sequence[Value], form: Alignment, left: NumberedTexts) -> list[Value]:
    """The values; `{"1": [2, 3], "Topic 2": []}` is an object for each of its fields."""
    lone = values[0] if len(values) == 1 else None
    if not isinstance(lone, Record) or not lone.pairs or not all(_names_left(key, left) for key, _ in lone.pairs):
        return list(values)
    return [Record(((form.left_names[0], Cell(key, 0)), (form.right_names[0], value))) for key, value in lone.pairs]


def _names_left(key: str, left: NumberedTexts) -> bool:
    """Whether a field's name is the number or the text of a left text."""
    return lone_number(key, left) is not None or left.find(key) is not None


def _left_number(value: Record, form: Alignment, left: NumberedTexts) -> int:
    """The left number, of none where it is unknown. Raises `Unparsable` where number and text are two texts'."""
    cell, text = value.cell(form.left_names), value.cell(form.text_names)
    if cell is None:
        raise Unparsable("an object without its number")
    number, named = find_number(cell.bare, left), left.find(text.bare) if text else None
    if named and named != number and not (number in left and left.find(left.texts[number - 1]) == named):
        raise Unparsable("number and text are two")
    return number


def _right_numbers(value: Record, form: Alignment, right: NumberedTexts) -> set[int]:
    """The known right numbers of an object. Raises `Unparsable` for what is none, and where the object denies them."""
    found = value.field(form.right_names)
    if found is None and any(_may_be_right(key, each, form) for key, each in value.pairs):
        raise Unparsable("numbers under another name")
    numbers = {number for cell in cells_of(found, form.listing) for number in known_numbers(cell.bare, right)}
    said = [value.cell((name,)) for name in form.verdict_names if name not in form.right_names]
    words = {letters(each.text) for each in said if each}
    if (numbers and words & _DENIALS) or (found is None and not words.isdisjoint(_AFFIRMATIONS)):
        raise Unparsable("numbers, or none, beside a word that says otherwise")
    return numbers


def _may_be_right(key: str, value: Value, form: Alignment) -> bool:
    """Whether a field of an unknown name holds a list or numbers."""
    known = field_name(key) in (*form.left_names, *form.text_names)
    return not known and (not isinstance(value, Cell) or any(map(str.isdigit, value.text)))


CLAIMS_SCHEMA = pa.schema([pa.field("claims", pa.list_(pa.string()))])
ASPECTS_SCHEMA = pa.schema([pa.field("aspects", pa.list_(pa.string()))])
# One list an aspect, in the order of the variable: numbers of claims from 1, ascending; an empty one is not covered
ALIGNMENT_SCHEMA = pa.schema([pa.field("evidence", pa.list_(pa.list_(pa.int32())))])


def claims_in(completion: str) -> list[ExtractedItem]:
    """The claims. Raises `Unparsable`."""
    return list(map(ExtractedItem, parse_claims(completion, {})["claims"]))


def aspects_in(completion: str) -> list[ExtractedItem]:
    """The aspects. Raises `Unparsable`."""
    return list(map(ExtractedItem, parse_aspects(completion, {})["aspects"]))


EXTRACT_CLAIMS = StageDefinition(
    "extract_claims",
    ("text",),
    parse_claims,
    CLAIMS_SCHEMA,
    schema=record(claims=listed(TEXT)),
    form=lines_of(r"(?![-*•] ).+", "claim"),
    # The same facts as those of `extract_atoms`, without a bullet and a type
    figures=Figures(FACTSCORE, completion=LinearSize(slope=1.73), things=LinearSize(slope=0.158)),
    things=claims_in,
    max_tokens=8_192,
    items=("claims",),
)
GENERATE_ASPECTS = StageDefinition(
    "generate_aspects",
    ("query",),
    parse_aspects,
    ASPECTS_SCHEMA,
    schema=record(topics=listed(TEXT)),
    form=lines_of(r'\{"topic": ".+"\}', '{"topic": "..."}'),
    # A long query has no more aspects than a short one
    figures=Figures(WRITTEN, completion=LinearSize(64.0), things=LinearSize(5.7)),
    things=aspects_in,
    items=("aspects",),
)
ALIGN_CLAIMS = StageDefinition(
    "align_claims",
    ("query", "aspects", "claims"),
    parse_alignment,
    ALIGNMENT_SCHEMA,
    schema=record(covered=listed(record(topic_id=number_of("aspects"), evidence=listed(number_of("claims"))))),
    form=lines_of(r'\{"topic_id": \d+, "evidence": \[[\d, ]*\]\}', '{"topic_id": n, "evidence": [n, ...]}'),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.3)),
    max_tokens=8_192,
)
