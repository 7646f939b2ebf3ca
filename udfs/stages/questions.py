"""Reading lists of questions, rated or not (Dejl et al. 2025; methods, section 3)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from untold.udfs.facts.nodes import normalise
from untold.udfs.ratings import SCALE, Digit
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.lists import AFTERWORDS, is_heading, list_items, says_none, whole, without_numbers
from untold.udfs.stages.numbered import Rating, find_ratings, matching_key, rating_pattern
from untold.udfs.stages.reading import (
    ParsedLine,
    answer_span,
    is_drawing,
    is_none,
    letters,
    past_echoes,
    split_marker,
    strip_thinking,
    unfenced,
)
from untold.udfs.stages.records import (
    QUESTION_NAMES,
    RATING_NAMES,
    Cell,
    Record,
    Value,
    is_empty_list,
    read_rating,
    read_records,
    unwrapped,
)

# `Q1:`, `**Question:**`
_QUESTION_LABEL = re.compile(r"[*_]{0,2}(?:question|q)\s?\d{0,3}[*_]{0,2}\s?[:：.)](?:[*_]{1,2}(?=\s))?\s*", re.I)
NOTE = re.compile(r"[\W_]{0,9}(?:notes?|nb|explanation|reasoning|rationale)[*_ ]{0,5}[:：]", re.I)
_AROUND_QUESTION = " \t\r*_`\"'”’»):："
# `Who built it? (from the second text)`: a remark in brackets behind the question mark
_ASKED = re.compile(r"[?？][\W_]{0,6}[\[(][^\[\]()]{1,60}[\])][\W_]{0,4}\Z")
_LONGEST_REMARK = 80
_RELEVANCE = rating_pattern("relevance|relevancy")
# A dash, a bar or an arrow before a rating, and emphasis that opens there: `5 m — *[Confidence: 4]*`.
BEFORE_RATING = re.compile(r"(?:\s(?:[-–—|:→⇒➔]{1,3}|[*_`]{1,3})){1,3}\Z")
# `Who built it? [4]`, `Who built it? - 4/5`: a digit without a word; in square brackets behind what does not ask too.
_BARE_RATING = re.compile(
    rf"(?:[?？][\W_]{{0,8}}|[\[【［])(?P<digit>[{SCALE}])(?:\s?(?:/|of|out of)\s?{SCALE[-1]})?[\W_]{{0,6}}\Z"
)
_LONGEST_BARE = 40  # characters at a line's end in which a digit without a word is looked for
# `**Who built it?** - asks for a name`: bold type says where the question ends
_REMARKED = re.compile(r"\*\*([^*\n]{1,400}[?？])\*\*\s{0,3}(?:[-–—:：]\s|[(（])[^?？]*\Z")
# `- A: Ada Fenn [1]` below a question or behind it
_ANSWER = re.compile(
    r"[ \t]{0,40}(?:[-*+•>][ \t]{1,9})?[*_]{0,2}(?:a|answer)(?:[ \t]?\d{1,2})?[*_]{0,2}[ \t]?[:：]", re.I
)
_ANSWERED = re.compile(r"([?？][*_]{0,2})[ \t]{1,9}(?:[-–—|][ \t]{1,3})?[*_]{0,2}(?:A|Answer)[*_]{0,2}[ \t]?[:：].*\Z")
_SEVERAL_ON_LINE = re.compile(r"(?<=[?？])\s{1,9}[*•]\s{1,9}(?=\S)")
_OPENERS = " \t([【［（"


@final_answer
@past_echoes
def parse_questions(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """`questions`: the questions in order; none for a lone `None`. Raises `Unparsable` where no line is a list item."""
    records = read_records(completion)
    said = records.rest if records and (recorded := list(_recorded_questions(records.values))) else completion
    lines = unfenced(strip_thinking(said)).split("\n")
    rows = [question_row(_ANSWERED.sub(r"\1", line)) for line in lines if not _ANSWER.match(line)]
    listed = [row for row, below in _with_next(rows) if not _is_heading(row, below)]
    items = [whole(" ".join(item)) for item in list_items(listed)] or _unlisted_questions(listed)
    _check_nesting(rows)
    parts = (part for item in without_numbers(items) for part in _SEVERAL_ON_LINE.split(item))
    questions = [_REMARKED.sub(r"\1", part) for part in parts if matching_key(part) and not NOTE.match(part)]
    if records and said is not completion:
        if questions:
            raise Unparsable("two lists of questions")
        return {"questions": [question for question, _ in recorded]}
    if not questions and not says_none(rows) and not is_empty_list(records):
        raise Unparsable("no list of questions")
    return {"questions": questions}


@final_answer
@past_echoes
def parse_refined(completion: str, variables: Mapping[str, Any]) -> dict[str, list[Any]]:
    """`questions`, each text once, and `ratings`, a `Digit` for each; none for a lone `None`.

    Raises `Unparsable` where no line is a question or a question has no rating from 1 to 5.
    """
    records = read_records(completion)
    recorded = list(_recorded_questions(records.values)) if records else []
    listed = recorded or _barely_rated(completion, list(_rated_questions(completion)))
    if records and recorded and any(_rated_questions(records.rest)):
        raise Unparsable("two lists of questions")
    if (
        not listed
        and not says_none(split_marker(line) for _, line in answer_lines(completion))
        and not is_empty_list(records)
    ):
        raise Unparsable("no list of questions")
    unrated = sum(digit is None for _, digit in listed)
    if unrated:
        raise Unparsable(f"no rating from 1 to 5 for {unrated} of {len(listed)} questions")
    distinct: dict[str, tuple[str, Digit | None]] = {}
    for question, (_, digit) in zip(without_numbers([text for text, _ in listed]), listed, strict=True):
        distinct.setdefault(normalise(question), (question, digit))
    questions, digits = [text for text, _ in distinct.values()], [digit for _, digit in distinct.values()]
    return {"questions": questions, "ratings": digits}


def _recorded_questions(values: Sequence[Value]) -> Iterator[tuple[str, Digit | None]]:
    """The questions of a JSON list or a table, each with its rating if it has one."""
    for value in unwrapped(values, QUESTION_NAMES):
        cell = value.cell(QUESTION_NAMES) if isinstance(value, Record) else value
        if isinstance(cell, Cell) and matching_key(cell.text):
            yield cell.bare, read_rating(value.field(RATING_NAMES)) if isinstance(value, Record) else None
        elif isinstance(value, Record) and value.pairs and all(asks(key) for key, _ in value.pairs):
            yield from ((key, read_rating(each)) for key, each in value.pairs)
        elif values:
            raise Unparsable("an element of a list is no question")


def answer_lines(completion: str) -> Iterator[tuple[int, str]]:
    """The lines after the thinking, each with its offset in the completion."""
    offset, end = answer_span(completion)
    for line in completion[offset:end].split("\n"):
        yield offset, line
        offset += len(line) + 1


def question_row(line: str) -> ParsedLine:
    """A line without its marker; `Q1:` is one too."""
    row = split_marker(line)
    label = _QUESTION_LABEL.match(row.text)
    return ParsedLine(row.text[label.end() :], True, row.indent) if label else row


def asks(text: str) -> bool:
    """Whether a text ends in a question mark, but for what stands in brackets behind it."""
    return text.rstrip(_AROUND_QUESTION).endswith(("?", "？")) or _ASKED.search(text[-_LONGEST_REMARK:]) is not None


def _with_next(rows: Sequence[ParsedLine]) -> Iterator[tuple[ParsedLine, ParsedLine | None]]:
    """Each row and the next one below it that is not blank."""
    below: ParsedLine | None = None
    pairs = []
    for row in reversed(rows):
        pairs.append((row, below))
        below = row if row.text else below
    return reversed(pairs)


def _is_heading(row: ParsedLine, below: ParsedLine | None) -> bool:
    """A list item that is no question: one above items that are indented further, or one that ends in a colon."""
    if not row.marked or asks(row.text) or below is None or not below.marked or _RELEVANCE.match(below.text):
        return False
    return below.indent > row.indent or row.text.rstrip("*_ ").endswith((":", "："))


def _rated_questions(completion: str) -> Iterator[tuple[str, Digit | None]]:
    """Every question that is listed, its rating null where that is missing: a rating may follow on a line below."""
    lines = list(answer_lines(completion))
    rows = [question_row(line) for _, line in lines]
    bulleted = any(row.marked and not is_drawing(row) for row in rows)
    begun: list[str] = []
    came = False
    for (offset, line), (row, below) in zip(lines, _with_next(rows), strict=True):
        ratings = find_ratings(completion, _RELEVANCE, offset, offset + len(line))
        rating = ratings[-1] if ratings else None
        if rating is not None:
            question = _question_at(completion, offset, rating, offset + len(line), begun)
            goes_on = begun and not row.marked and not asks(begun[-1])
            if begun and question and not goes_on:
                yield " ".join(begun), None
            if begun and (goes_on or not question):
                question = whole(" ".join([*begun, question]))
            if begun or (question and (row.marked or asks(question))):
                yield question, rating.digit if len(ratings) == 1 else None
                begun, came = [], True
            elif question and not NOTE.match(line) and _ends_item(completion[rating.end : offset + len(line)]):
                # Neither bullet nor question mark: an item among bare lines, but beside bullets nobody can tell.
                yield question, None if bulleted else rating.digit
                came = True
        elif is_drawing(row) or is_none(row.text) or _is_heading(row, below):
            continue
        elif came and not begun and (NOTE.match(line) or letters(row.text) in AFTERWORDS):
            return
        elif row.marked or (not bulleted and asks(row.text)):
            if begun:
                yield " ".join(begun), None
            begun = [row.text]
        elif begun:
            begun.append(row.text)
    if begun:
        yield " ".join(begun), None


def _ends_item(behind: str) -> bool:
    """Whether no word stands behind a rating, nor a colon, which introduces what follows."""
    return not matching_key(behind) and not behind.rstrip(" \t\r*_").endswith((":", "："))


def _question_at(completion: str, start: int, rating: Rating, end: int, begun: Sequence[str]) -> str:
    """The question on a rating's line: before the rating, else behind it, unless one began above."""
    texts = [completion[start : rating.start], *([] if begun else [completion[rating.end : end]])]
    found = (BEFORE_RATING.sub("", question_row(text).text.removeprefix("| ")) for text in texts)
    behind = completion[rating.end : end]
    return next((whole(unopened(text, behind)) for text in found if matching_key(text)), "")


def unopened(text: str, behind: str) -> str:
    """The text without the `*` or backtick that opens it, where that closes `behind` its rating."""
    mark, bare = behind.lstrip()[:1], text.lstrip(" \t")
    return bare[1:] if mark and mark in "*_`" and bare.startswith(mark) and bare.count(mark) == 1 else text


def _check_nesting(rows: Sequence[ParsedLine]) -> None:
    """Raises `Unparsable` where items below a question are its answers or remarks: indented further, and not asking."""
    for above, below in _with_next([row for row in rows if row.marked]):
        if below and below.indent > above.indent and asks(above.text) and not asks(below.text):
            raise Unparsable("what stands below a question is none")


def _unlisted_questions(rows: Sequence[ParsedLine]) -> list[str]:
    """The lines of a completion without list items where all but headings ask, at least two and evenly spaced.

    One question alone, or one that stands apart, may be put to whoever reads: `Shall I go on?`.
    """
    places = [place for place, row in enumerate(rows) if asks(row.text) and not row.marked]
    others = set(range(len(rows))) - set(places)
    even = len({after - before for before, after in pairwise(places)}) == 1
    # Among bold questions a bold line may be one that does not ask, and below the last there is nothing to head
    bold = any(rows[place].text.startswith("**") for place in places)
    headings = {
        place
        for place in others
        if is_heading(rows, place) and place < max(places, default=0) and not (bold and rows[place].text[:2] == "**")
    }
    if not even or not all(is_drawing(rows[place]) for place in others - headings):
        return []
    return [whole(rows[place].text) for place in places]


def _barely_rated(completion: str, listed: list[tuple[str, Digit | None]]) -> list[tuple[str, Digit | None]]:
    """Questions whose ratings are digits without a word, where every one of them ends in such a digit.

    Digits that count the lines, `[1]`, `[2]`, `[3]`, are none.
    """
    found = [_BARE_RATING.search(text[-_LONGEST_BARE:]) for text, digit in listed if digit is None]
    values = [int(each["digit"]) for each in found if each]
    digits = list(_bare_digits(completion))
    counted = len(values) > 1 and values == list(range(1, len(values) + 1))
    if counted or len(values) < len(listed) or values != [digit.value for digit in digits]:
        return listed
    return [
        (_before_bare(text, each.start("digit")), digit)
        for (text, _), each, digit in zip(listed, found, digits, strict=True)
        if each
    ]


def _before_bare(text: str, place: int) -> str:
    """The question before a digit that stands at `place` of the text's end."""
    question = text[: len(text[:-_LONGEST_BARE]) + place].rstrip(_OPENERS)
    return whole(BEFORE_RATING.sub("", question))


def _bare_digits(completion: str) -> Iterator[Digit]:
    """The digits without a word that end lines."""
    for offset, line in answer_lines(completion):
        end = len(line.rstrip())
        start = max(0, end - _LONGEST_BARE)
        if found := _BARE_RATING.search(line[start:end]):
            yield Digit(int(found["digit"]), offset + start + found.start("digit"))
