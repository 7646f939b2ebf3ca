"""The stages of Q&A comprehensiveness (Dejl et al. 2025; methods, section 3) and how they are read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from udfs.facts.nodes import normalise
from udfs.llm.tools import COMPARE_QUANTITIES
from udfs.ratings import Digit
from udfs.stages.comparison import RELATIONS as RELATIONS
from udfs.stages.comparison import parse_comparison
from udfs.stages.definitions import StageDefinition, Unparsable
from udfs.stages.lists import AFTERWORDS, list_items, says_none, whole
from udfs.stages.rated import Rating, find_ratings, is_known, match_lines, matching_key, rating_pattern
from udfs.stages.reading import (
    Line,
    answer_span,
    collapsed,
    is_drawing,
    is_none,
    letters,
    split_marker,
    strip_thinking,
    unfenced,
)
from udfs.stages.records import (
    CONFIDENCE_NAMES,
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

QUESTIONS_SCHEMA = pa.schema([pa.field("questions", pa.list_(pa.string()))])
REFINED_SCHEMA = QUESTIONS_SCHEMA.append(pa.field("ratings", pa.list_(pa.float64())))
ANSWERS_SCHEMA = pa.schema(
    [pa.field("answers", pa.list_(pa.list_(pa.string()))), pa.field("confidences", pa.list_(pa.list_(pa.float64())))]
)
RELATION_SCHEMA = pa.schema([pa.field("relation", pa.string())])

_QUESTION_LABEL = re.compile(r"[*_]{0,2}(?:question|q)\s?\d{0,3}[*_]{0,2}\s?[:：.)](?:[*_]{1,2}(?=\s))?\s*", re.I)
_NOTE = re.compile(r"[\W_]{0,9}(?:notes?|nb|explanation|reasoning|rationale)[*_ ]{0,5}[:：]", re.I)
_AROUND_QUESTION = " \t\r*_`\"'”’»):："
_ASKED = re.compile(r"[?？][\W_]{0,6}[\[(][^\[\]()]{1,60}[\])][\W_]{0,4}\Z")
_AROUND_ANSWER = " \t\r*_`\"'“”‘’«»[]()<>"
_LONGEST_REMARK = 80
_RELEVANCE = rating_pattern("relevance|relevancy")
_CONFIDENCE = rating_pattern("confidence|certainty")

_BULLET = r"(?:[•●○◦▪■‣·*+–—-]\s{1,9}|\(?\d{1,3}[.)]\s{1,9})?"
_ANSWER_WORD = r"[*_]{0,2}(?:a|answers?)(?:\s?\d{1,2})?[*_]{0,2}\s?[:：](?:[*_]{1,2}(?=\s))?"
_ANSWER_LABEL = re.compile(rf"\s{{0,40}}{_BULLET}{_ANSWER_WORD}", re.I)
_NEXT_ANSWER = re.compile(rf"[\n|](?=[^\S\n]{{0,40}}{_BULLET}{_ANSWER_WORD})", re.I)
_LABEL_WITHIN = re.compile(rf"(?<![^\W_]){_ANSWER_WORD}", re.I)
_AFTER_QUESTION = re.compile(r"[?？][\s*_`\"'”’»):：→]{0,12}(?:[-–—]\s{1,3})?")
_DASHED = re.compile(r"\s[-–—:]{1,3}\s{1,3}|[:：]\s{1,3}")
_NUMBER = re.compile(r"\s{0,40}[*_]{0,2}\(?\d{1,3}[.)][*_]{0,2}\s")
_MOST_CUTS, _DECORATION = 8, 60
_SEPARATOR = re.compile(
    rf"[*_`]{{0,3}}\s{{0,40}}(?:\n\s{{0,40}}{_BULLET}|[|;,/]\s{{0,9}})(?:(?:and|or)\s)?(?:{_ANSWER_WORD})?"
    rf"|[*_`]{{0,3}}\s{{1,9}}(?:(?:and|or)\s|{_ANSWER_WORD})",
    re.I,
)
_BEFORE_RATING = re.compile(r"\s[-–—|:]{1,3}\Z")
# How models say that the text does not say; "in the text" and the like may follow.
_SOURCE = r"(?:the|this)(?: \w+)? (?:text|context|passage|source|document)"
_WHERE = rf"(?: (?:explicitly|directly|clearly))?(?: (?:in|by|from|within) {_SOURCE})?"
_NO_ANSWER = (
    r"(?:unknown|none|n\s?/\s?a|(?:it is |it's )?not (?:explicitly |directly )?(?:stated|mentioned|specified|given"
    r"|provided|available|known|said|applicable|addressed|answered|indicated|discussed)"
    r"|no (?:answer|information|mention|data)(?: (?:is )?(?:given|provided|available|found|stated))?"
    r"|(?:the|this) (?:text|context|passage|source|document) (?:does not|doesn['’]t) "
    r"(?:say|state|mention|specify|answer|give|provide|tell|indicate|address)(?: [^|\n.;,\[\]()]{1,80})?)" + _WHERE
)
_UNKNOWN = re.compile(rf"[\W_]{{0,9}}{_NO_ANSWER}(?:[\W_]{{0,9}}|[\W_]{{0,3}}\([^()]{{0,300}}\)[\W_]{{0,3}})", re.I)
_UNKNOWN_REMARK = re.compile(
    rf"[\W_]{{0,9}}{_NO_ANSWER}" r"[*_\"'”’`]{0,3}(?:\s*\Z|[^\S\n]*[\n(\[]|[.:;][*_\"'”’`]{0,3}\s|\s[-–—]\s)", re.I
)


@dataclass(frozen=True)
class _Block:
    """What is said to one question: its text as the completion gives it, and where its answers stand there."""

    question: str
    start: int
    end: int


@dataclass(frozen=True)
class _Answer:
    """An answer as it is written, and its confidence: null where that is missing or out of scale."""

    text: str
    digit: Digit | None

    @property
    def unknown(self) -> bool:
        return _UNKNOWN.fullmatch(self.text) is not None


def parse_questions(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """`questions`: the questions in order; none for a lone `None`. Raises `Unparsable` where no line is a list item."""
    records = read_records(completion)
    said = records.rest if records and (recorded := list(_recorded_questions(records.values))) else completion
    rows = [_question_row(line) for line in unfenced(strip_thinking(said)).split("\n")]
    listed = [row for row, below in _with_next(rows) if not _is_heading(row, below)]
    items = [whole(" ".join(item)) for item in list_items(listed)]
    questions = [item for item in items if matching_key(item) and not _NOTE.match(item)]
    if records and said is not completion:
        if questions:
            raise Unparsable("two lists of questions")
        return {"questions": [question for question, _ in recorded]}
    if not questions and not says_none(rows) and not is_empty_list(records):
        raise Unparsable("no list of questions")
    return {"questions": questions}


def parse_refined(completion: str, variables: Mapping[str, Any]) -> dict[str, list[Any]]:
    """`questions`, each text once, and `ratings`, a `Digit` for each; none for a lone `None`.

    Raises `Unparsable` where no line is a question or a question has no rating from 1 to 5.
    """
    records = read_records(completion)
    recorded = list(_recorded_questions(records.values)) if records else []
    listed = recorded or list(_rated_questions(completion))
    if records and recorded and any(_rated_questions(records.rest)):
        raise Unparsable("two lists of questions")
    if (
        not listed
        and not says_none(split_marker(line) for _, line in _lines(completion))
        and not is_empty_list(records)
    ):
        raise Unparsable("no list of questions")
    unrated = sum(digit is None for _, digit in listed)
    if unrated:
        raise Unparsable(f"no rating from 1 to 5 for {unrated} of {len(listed)} questions")
    distinct: dict[str, tuple[str, Digit | None]] = {}
    for question, digit in listed:
        distinct.setdefault(normalise(question), (question, digit))
    questions, digits = [text for text, _ in distinct.values()], [digit for _, digit in distinct.values()]
    return {"questions": questions, "ratings": digits}


def parse_answers(completion: str, variables: Mapping[str, Any]) -> dict[str, list[list[Any]]]:
    """`answers`, each text once, and `confidences`, a `Digit` for each: a list for each of `questions`, in their order.

    Empty where `unknown` is all that is written. Lines are matched to questions by text first, by position second, the
    latter only where there are as many. Raises `Unparsable` where a question is not answered or an answer has no
    confidence from 1 to 5.
    """
    questions: Sequence[str] = variables["questions"]
    blocks = _recorded_answers(completion, questions) or _written_answers(completion, questions)
    chosen = match_lines(questions, [question for question, _ in blocks])
    said = [
        [answer for number in chosen.get(place, []) for answer in blocks[number][1]] for place in range(len(questions))
    ]
    matched = set(chain.from_iterable(chosen.values()))
    strange = (answers for n, (question, answers) in enumerate(blocks) if n not in matched and not _asks(question))
    _check_answers(said, any(strange))
    kept = [_distinct(answers) for answers in said]
    return {
        "answers": [[answer.text for answer in answers] for answers in kept],
        "confidences": [[answer.digit for answer in answers] for answers in kept],
    }


def _recorded_questions(values: Sequence[Value]) -> Iterator[tuple[str, Digit | None]]:
    """The questions of a JSON list or a table, each with its rating if it has one."""
    for value in unwrapped(values, QUESTION_NAMES):
        cell = value.cell(QUESTION_NAMES) if isinstance(value, Record) else value
        if isinstance(cell, Cell) and matching_key(cell.text):
            yield cell.bare, read_rating(value.field(RATING_NAMES)) if isinstance(value, Record) else None
        elif isinstance(value, Record) and value.pairs and all(_asks(key) for key, _ in value.pairs):
            yield from ((key, read_rating(each)) for key, each in value.pairs)
        elif values:
            raise Unparsable("an element of a list is no question")


def _recorded_answers(completion: str, questions: Sequence[str]) -> list[tuple[str, list[_Answer]]]:
    """The questions of a JSON list or a table with their answers; none where it has no questions."""
    records = read_records(completion)
    if records is None:
        return []
    found: list[tuple[str, list[_Answer]]] = []
    for value in unwrapped(records.values, QUESTION_NAMES):
        question = value.cell(QUESTION_NAMES) if isinstance(value, Record) else None
        if question is not None and isinstance(value, Record):
            found.append((question.text, list(_recorded_answer(value))))
        elif isinstance(value, Record) and all(_asks(key) for key, _ in value.pairs):
            found.extend((key, list(_answers_of(each, None))) for key, each in value.pairs)
        else:
            raise Unparsable("an element of a list is no question with its answers")
    if found and any(_answers(records.rest, block) for block in _blocks(records.rest, questions)):
        raise Unparsable("two lists of answers")
    return found


def _written_answers(completion: str, questions: Sequence[str]) -> list[tuple[str, list[_Answer]]]:
    return [(block.question, _answers(completion, block)) for block in _blocks(completion, questions)]


def _recorded_answer(value: Record) -> Iterator[_Answer]:
    """The answers of one object: in a list, or one beside its confidence; an empty list is `unknown`."""
    return _answers_of(value.field(("answers", "answer", "a")), value.field(CONFIDENCE_NAMES))


def _answers_of(said: Value | None, confidence: Value | None) -> Iterator[_Answer]:
    if said == []:
        yield _Answer("unknown", None)
    for each in said if isinstance(said, list) else [said]:
        if isinstance(each, Record):
            own = each.field(CONFIDENCE_NAMES)
            yield from _answers_of(each.field(("answer", "text", "value", "a")), own or confidence)
        elif isinstance(each, Cell):
            text = "unknown" if each.text in ("null", "") else each.bare
            yield _Answer(text, read_rating(confidence))


def _lines(completion: str) -> Iterator[tuple[int, str]]:
    """The lines after the thinking, each with its offset in the completion."""
    offset, end = answer_span(completion)
    for line in completion[offset:end].split("\n"):
        yield offset, line
        offset += len(line) + 1


def _question_row(line: str) -> Line:
    """A line without its marker; `Q1:` is one too."""
    row = split_marker(line)
    label = _QUESTION_LABEL.match(row.text)
    return Line(row.text[label.end() :], True, row.indent) if label else row


def _asks(text: str) -> bool:
    """Whether a text ends in a question mark, but for what stands in brackets behind it."""
    return text.rstrip(_AROUND_QUESTION).endswith(("?", "？")) or _ASKED.search(text[-_LONGEST_REMARK:]) is not None


def _with_next(rows: Sequence[Line]) -> Iterator[tuple[Line, Line | None]]:
    """Each row and the next one below it that is not blank."""
    below: Line | None = None
    pairs = []
    for row in reversed(rows):
        pairs.append((row, below))
        below = row if row.text else below
    return reversed(pairs)


def _is_heading(row: Line, below: Line | None) -> bool:
    """A list item that is no question: one above items that are indented further, or one that ends in a colon."""
    if not row.marked or _asks(row.text) or below is None or not below.marked or _RELEVANCE.match(below.text):
        return False
    return below.indent > row.indent or row.text.rstrip("*_ ").endswith((":", "："))


def _rated_questions(completion: str) -> Iterator[tuple[str, Digit | None]]:
    """Every question that is listed, its rating null where that is missing: a rating may follow on a line below."""
    lines = list(_lines(completion))
    rows = [_question_row(line) for _, line in lines]
    bulleted = any(row.marked and not is_drawing(row) for row in rows)
    begun: list[str] = []
    came = False
    for (offset, line), (row, below) in zip(lines, _with_next(rows), strict=True):
        rating = next(reversed(find_ratings(completion, _RELEVANCE, offset, offset + len(line))), None)
        if rating is not None:
            question = _question_at(completion, offset, rating, offset + len(line), begun)
            goes_on = begun and not row.marked and not _asks(begun[-1])
            if begun and question and not goes_on:
                yield " ".join(begun), None
            if begun and (goes_on or not question):
                question = whole(" ".join([*begun, question]))
            if begun or (question and (row.marked or _asks(question))):
                yield question, rating.digit
                begun, came = [], True
        elif is_drawing(row) or is_none(row.text) or _is_heading(row, below):
            continue
        elif came and not begun and (_NOTE.match(line) or letters(row.text) in AFTERWORDS):
            return
        elif row.marked or (not bulleted and _asks(row.text)):
            if begun:
                yield " ".join(begun), None
            begun = [row.text]
        elif begun:
            begun.append(row.text)
    if begun:
        yield " ".join(begun), None


def _question_at(completion: str, start: int, rating: Rating, end: int, begun: Sequence[str]) -> str:
    """The question on a rating's line: before the rating, else behind it, unless one began above."""
    texts = [completion[start : rating.start], *([] if begun else [completion[rating.end : end]])]
    found = (_BEFORE_RATING.sub("", _question_row(text).text.removeprefix("| ")) for text in texts)
    return next((whole(text) for text in found if matching_key(text)), "")


def _blocks(completion: str, questions: Sequence[str]) -> list[_Block]:
    """The questions of a completion with what is said to each; numbered lines where none has its question.

    A lone question may be answered without being repeated.
    """
    lines = list(_lines(completion))
    known = {key for key in map(matching_key, questions) if key}
    longest = max(map(len, questions), default=0) + _DECORATION
    heads = [
        (offset, question, offset + cut)
        for (offset, line), followed in zip(lines, _followed_by_answers(lines), strict=True)
        for question, cut in _question_in(line, known, longest, followed)
    ]
    if not heads:
        numbers = ((offset, _NUMBER.match(line)) for offset, line in lines)
        heads = [(offset, "", offset + number.end()) for offset, number in numbers if number]
    if not heads and len(questions) == 1:
        heads = [(offset, "", offset) for offset, line in lines if _ANSWER_LABEL.match(line)][:1]
    ends = [*(offset for offset, *_ in heads), len(completion)][1:]
    return [_Block(question, start, end) for (_, question, start), end in zip(heads, ends, strict=True)]


def _followed_by_answers(lines: Sequence[tuple[int, str]]) -> Iterable[bool]:
    """For each line whether the next one that is not blank begins with `A:`."""
    followed, labelled = [], False
    for _, line in reversed(lines):
        followed.append(labelled)
        labelled = _ANSWER_LABEL.match(line) is not None if line.strip() else labelled
    return reversed(followed)


def _question_in(line: str, known: Collection[str], longest: int, followed: bool) -> list[tuple[str, int]]:
    """The question that a line begins with, if any, and where in the line the answers may begin.

    One that is not `known` is a list item or stands above `A:`, and asks; a list item above `A:` need not ask.
    """
    labels = [label.start() for label in islice(_LABEL_WITHIN.finditer(line), _MOST_CUTS)]
    patterns = (_AFTER_QUESTION,) if _ANSWER_LABEL.match(line) else (_AFTER_QUESTION, _DASHED)
    ends = [islice(pattern.finditer(line), _MOST_CUTS) for pattern in patterns]
    cuts = (len(line), *labels, *(found.end() for found in chain(*ends)))
    for cut in (cut for cut in cuts if 0 < cut <= longest):
        for text in dict.fromkeys((line[:cut], _question_row(line[:cut]).text)):
            if is_known(text, known):
                return [(text, cut)]
    row = _question_row(line)
    if _ANSWER_LABEL.match(line) or _NOTE.match(row.text) or is_drawing(row):
        return []
    if row.marked and labels and _asks(line[: labels[0]]):
        return [(_question_row(line[: labels[0]]).text, labels[0])]
    asks_or_marked = [_asks(row.text), row.marked, followed].count(True) >= 2
    return [(row.text, len(line))] if asks_or_marked and not find_ratings(line, _CONFIDENCE, 0, len(line)) else []


def _answers(completion: str, block: _Block) -> list[_Answer]:
    """What is said to one question, `unknown` included; an empty text is nothing."""
    edges = [found.start() for found in _NEXT_ANSWER.finditer(completion, block.start, block.end)]
    starts, ends = [block.start, *(edge + 1 for edge in edges)], [*edges, block.end]
    labels = [_ANSWER_LABEL.match(completion, start, end) for start, end in zip(starts, ends, strict=True)]
    answers: list[_Answer] = []
    for start, end, label in zip(starts, ends, labels, strict=True):
        start = label.end() if label else start
        ratings = find_ratings(completion, _CONFIDENCE, start, end)
        if ratings:
            answers.extend(_rated_answers(completion, start, end, ratings))
        elif label or not any(labels):
            answers.append(_unrated(completion[start:end]))
    return [answer for answer in answers if answer.text]


def _rated_answers(completion: str, start: int, end: int, ratings: Sequence[Rating]) -> Iterator[_Answer]:
    """The answers that end in ratings; of two without a separator between them the second has none that is clear."""
    for place, rating in enumerate(ratings):
        written = completion[start : rating.start]
        start = rating.end
        separator = _SEPARATOR.match(written) if place else None
        unknown, pipe, rest = written[separator.end() if separator else 0 :].partition("|")
        if pipe and _UNKNOWN.fullmatch(unknown):
            yield _Answer("unknown", None)
        else:
            rest = unknown + pipe + rest
        yield _Answer(_answer_text(rest), rating.digit if separator or not place else None)
    rest = completion[start:end]
    if rest.lstrip().startswith("|"):
        yield _unrated(rest.lstrip().strip("| \t\r\n"))
    elif len(ratings) == 1 and not written.strip(_AROUND_ANSWER):
        yield _Answer(_answer_text(rest.partition("\n")[0].lstrip(" :-–—")), ratings[0].digit)


def _unrated(text: str) -> _Answer:
    return _Answer("unknown" if _UNKNOWN_REMARK.match(text) else _answer_text(text), None)


def _answer_text(written: str) -> str:
    """An answer on one line without decoration; a bullet is one only where a line begins."""
    begins_line = written.lstrip(" \t\r").startswith("\n")
    text = collapsed(split_marker(written).text if begins_line else written)
    return whole(_BEFORE_RATING.sub("", whole(text)))


def _check_answers(said: Sequence[Sequence[_Answer]], any_strange: bool) -> None:
    missing = sum(not answers for answers in said)
    if missing:
        raise Unparsable(f"no answer to {missing} of {len(said)} questions")
    unrated = sum(any(answer.digit is None and not answer.unknown for answer in answers) for answers in said)
    if unrated:
        raise Unparsable(f"no confidence from 1 to 5 for an answer to {unrated} of {len(said)} questions")
    if any_strange:
        raise Unparsable("an answer to none of the questions")


def _distinct(answers: Iterable[_Answer]) -> list[_Answer]:
    distinct: dict[str, _Answer] = {}
    for answer in answers:
        if not answer.unknown:
            distinct.setdefault(normalise(answer.text), answer)
    return list(distinct.values())


MINE_QUESTIONS = StageDefinition("mine_questions", ("query", "text"), parse_questions, QUESTIONS_SCHEMA)
REFINE_QUESTIONS = StageDefinition(
    "refine_questions", ("query", "questions"), parse_refined, REFINED_SCHEMA, rated=True
)
ANSWER_QUESTIONS = StageDefinition("answer_questions", ("text", "questions"), parse_answers, ANSWERS_SCHEMA, rated=True)
COMPARE_ANSWERS = StageDefinition(
    "compare_answers",
    ("question", "first", "second"),
    parse_comparison,
    RELATION_SCHEMA,
    tools=(COMPARE_QUANTITIES,),
)
