"""Read the answers to several questions, each with a confidence: lines below their questions, or JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from untold.udfs.facts.nodes import normalise
from untold.udfs.ratings import Digit
from untold.udfs.stages.answers import reader
from untold.udfs.stages.definitions import ExtractedItem, Unparsable
from untold.udfs.stages.forms import (
    find_records,
    get_field,
    lines_with_places,
    place_of_record,
    undecorated,
)
from untold.udfs.stages.lists import balanced, digits_of_fields, matching_key, rating_of_value, split_rating
from untold.udfs.stages.non_answers import UNKNOWN_WORDS, says_absent
from untold.udfs.stages.reading import is_none, split_marker

_SOURCE = r"(?:the|this)(?: \w+)? (?:text|context|passage|source|document)"
# The answer that the text does not contain the information
_UNKNOWN = re.compile(
    rf"\W*(?:{UNKNOWN_WORDS}|(?:it is |it's |this is )?not (?:explicitly |directly )?(?:stated|mentioned|specified"
    r"|given|provided|available|known|said|applicable|addressed|answered|indicated|discussed)|un(?:specified|stated|determined)"
    r"|(?:there is )?no (?:relevant )?(?:answer|information|mention|data)(?: (?:is )?(?:given|provided|available|found"
    r"|stated)| (?:about|on|regarding) (?:this|that|it))?|insufficient information|I (?:do not|don['’]t) know"
    r"|(?:it |this )?(?:cannot|can['’]t|could not) be (?:determined|answered|inferred|known)"
    r"|I (?:cannot|can['’]t) (?:answer|tell|say|determine)(?: (?:this|that|it|the))?(?: question)?"
    rf"|{_SOURCE} (?:does not|doesn['’]t|gives no|says nothing|provides no|contains no|is silent)[^|\n;,\[\]]{{0,80}})"
    rf"(?: (?:in|by|from|within) {_SOURCE})?\W*(?:\([^()]*\)\W*)?",
    re.IGNORECASE,
)
_A = r"[*_]{0,2}(?:a|answers?)(?:\s?\d{1,2})?[*_]{0,2}\s?[:：]"
_ANSWER_LABEL = re.compile(rf"\s*(?:[-•*+]\s+)?{_A}[*_]{{0,2}}\s*", re.IGNORECASE)
_QUESTION_LABEL = re.compile(
    r"(?:\*\*|__)?(?:q|question)s?\s?\d{0,3}(?:\*\*|__)?\s?[:：.)](?:\*\*|__)?\s*", re.IGNORECASE
)
_BETWEEN_ANSWERS = re.compile(
    rf"\s+\|\s+|\s*\|\s*(?={_A}|\Z)|(?<=[\])】）])\s*\|\s*|(?<=[\])】）])\s*[,;]?\s*(?:and\s+)?(?={_A})"
    r"|(?<=[\])】）])\s*[,;]\s*",
    re.IGNORECASE,
)
_NOTE = re.compile(r"\W*(?:notes?|i hope|let me know|all questions)\b", re.IGNORECASE)
_ANSWER_NAMES = ("answers", "answer", "a", "value")
_CONFIDENCE_NAMES = ("confidence", "certainty", "rating", "score", "confidences")
_Answer = tuple[str, Digit]


class _Block(NamedTuple):
    """A question of the completion and the lines below it with their positions."""

    question: str
    lines: list[tuple[int, str]]


@reader
def parse_answers(text: str, variables: Mapping[str, Any]) -> dict[str, list[list[Any]]]:
    """Return the `answers`, each text once, and their `confidences`: a list for each of `questions`, in their order.

    A list is empty for `unknown`. Questions are matched by text or number.
    If neither is given, they are matched by position.
    Raises `Unparsable` for a question without an answer, and for an answer without a confidence from 1 to 5.
    """
    questions: Sequence[str] = variables["questions"]
    answers: dict[int, dict[str, _Answer]] = {}
    for place, said in _placed(text, questions):
        known = answers.setdefault(place, {})
        for answer in said:
            known.setdefault(normalise(answer[0]), answer)
    if sorted(answers) != list(range(len(questions))):
        raise Unparsable("a question without an answer")
    ordered = [answers[place].values() for place in range(len(questions))]
    return {
        "answers": [[text for text, _ in each] for each in ordered],
        "confidences": [[digit for _, digit in each] for each in ordered],
    }


def answers_in(completion: str) -> list[ExtractedItem]:
    """Return the answers with their confidence and question. Raises `Unparsable` for none."""
    blocks = _blocks(completion, ())
    if not blocks:
        raise Unparsable("no question with an answer")
    said = [(block.question, _in_lines(block.lines, completion)) for block in blocks]
    return [ExtractedItem(f"{matching_key(q)}: {text}", digit.value) for q, answers in said for text, digit in answers]


def _placed(text: str, questions: Sequence[str]) -> list[tuple[int, list[_Answer]]]:
    """Return the answers with the places of their questions."""
    found = find_records(text, ("question", "q", "answers"))
    found = found or (find_records(text, ("answer",)) if "{" in text else None)
    if found is not None:
        return _of_records(text, found[0], questions)
    blocks = _blocks(text, questions)
    keys = list(map(matching_key, questions))
    said = [matching_key(block.question) for block in blocks]
    if len(set(said)) < len(said) or not set(keys).issuperset(said) or not all(block.lines for block in blocks):
        raise Unparsable("a repeated or unknown question, or a question without an answer")
    return [(keys.index(key), _in_lines(block.lines, text)) for key, block in zip(said, blocks, strict=True)]


def _blocks(text: str, questions: Sequence[str]) -> list[_Block]:
    """Return the questions of a completion with the lines below each question."""
    known = set(map(matching_key, questions))
    blocks: list[_Block] = []
    lines = list(lines_with_places(text))
    for place, (start, line) in enumerate(lines):
        row = split_marker(line)
        question = _question(row.text)
        is_answer = _ANSWER_LABEL.match(line) is not None and matching_key(question) not in known
        is_followed = place + 1 < len(lines) and _ANSWER_LABEL.match(lines[place + 1][1]) is not None
        if is_answer:
            if not blocks and len(questions) != 1:
                raise Unparsable("an answer without a question")
            if not blocks:
                blocks.append(_Block(questions[0], []))
            blocks[-1].lines.append((start, line))
        elif matching_key(question) in known or (_asks(question) and (row.marked or is_followed)):
            blocks.append(_Block(question, []))
        elif blocks and not _NOTE.match(row.text) and (row.marked or not row.text.endswith(":")):
            if blocks[-1].lines and not row.marked and "onfidence" not in line:
                raise Unparsable("a line that is not an answer")
            blocks[-1].lines.append((start + line.find(row.text), row.text))
    return blocks


def _question(text: str) -> str:
    label = _QUESTION_LABEL.match(text)
    return undecorated(text[label.end() :] if label else text)


def _asks(text: str) -> bool:
    return text.rstrip(" *_").endswith(("?", "？"))


def _in_lines(lines: Sequence[tuple[int, str]], completion: str) -> list[_Answer]:
    """Return the answers of the lines. Skip unknown answers."""
    answers = []
    for start, line in lines:
        for place, part in _parts(line):
            label = _ANSWER_LABEL.match(part)
            said = part[label.end() :] if label else part
            if label and not said.strip():
                raise Unparsable("an answer without a text")
            if not said.strip() or _UNKNOWN.fullmatch(said) or says_absent(said):
                continue
            rated = split_rating(said, start + place + len(part) - len(said), completion)
            if rated is None:
                raise Unparsable("an answer without a confidence")
            before, digit, behind = rated
            text = undecorated(balanced(before))
            if not any(map(str.isalnum, text)) or (any(map(str.isalnum, behind)) and behind.strip()[0] not in "(–—-"):
                raise Unparsable("a confidence inside an answer")
            if not _UNKNOWN.fullmatch(text) and not is_none(text):
                answers.append((text, digit))
    return answers


def _parts(line: str) -> Iterator[tuple[int, str]]:
    start = 0
    for found in _BETWEEN_ANSWERS.finditer(line):
        yield start, line[start : found.start()]
        start = found.end()
    yield start, line[start:]


def _of_records(text: str, records: Sequence[Any], questions: Sequence[str]) -> list[tuple[int, list[_Answer]]]:
    rows: list[tuple[int, list[tuple[str, int]]]] = []
    keys = list(map(matching_key, questions))
    for each in records:
        if not isinstance(each, dict) or not any(name in each for name in _ANSWER_NAMES):
            raise Unparsable("a list element without a question and answers")
        number = place_of_record(each, ("question", "q"), questions)
        key = matching_key(str(get_field(each, ("question", "q"))))
        place = number - 1 if number is not None else keys.index(key) if key in keys else -1
        if not 0 <= place < len(questions):
            raise Unparsable("an answer to an unknown question")
        said = next(each[name] for name in _ANSWER_NAMES if name in each)
        rows.append((place, list(_of_value(said, get_field(each, _CONFIDENCE_NAMES)))))
    digits = iter(digits_of_fields(text, "confidence", [rating for _, said in rows for _, rating in said]))
    return [(place, [(answer, next(digits)) for answer, _ in said]) for place, said in rows]


def _of_value(said: Any, confidence: Any) -> Iterator[tuple[str, int]]:
    """Yield the answers of a field with their confidence. An object may have its own confidence."""
    for each in said if isinstance(said, list) else [said]:
        if isinstance(each, dict):
            own = get_field(each, _CONFIDENCE_NAMES)
            yield from _of_value(get_field(each, ("answer", "text", "value", "a")), confidence if own is None else own)
            continue
        text = "" if each is None else str(each).strip()
        if not text or _UNKNOWN.fullmatch(text) or is_none(text):
            continue
        rated = split_rating(text, 0, "") if confidence is None else None
        if confidence is None and rated is None:
            raise Unparsable("an answer without a confidence")
        yield (rated[0].strip(), rated[1].value) if rated else (text, rating_of_value(confidence))
