"""The stages of Q&A comprehensiveness (Dejl et al. 2025; methods, section 3) and how they are read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from untold.udfs.facts.nodes import normalise
from untold.udfs.llm.tools import COMPARE_QUANTITIES
from untold.udfs.ratings import Digit
from untold.udfs.stages.comparison import RELATIONS as RELATIONS
from untold.udfs.stages.comparison import parse_comparison, parse_comparisons
from untold.udfs.stages.definitions import (
    RATING,
    TEXT,
    THOUGHTS,
    WRITTEN,
    ExtractedItem,
    Figures,
    LinearSize,
    OutputFormat,
    StageDefinition,
    Unparsable,
    lines_of,
    listed,
    number_of,
    one_of,
    record,
)
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.lists import whole
from untold.udfs.stages.non_answers import UNKNOWN_WORDS, says_absent
from untold.udfs.stages.numbered import Rating, find_ratings, is_known, match_lines, matching_key, rating_pattern
from untold.udfs.stages.questions import (
    BEFORE_RATING,
    NOTE,
    answer_lines,
    asks,
    parse_questions,
    parse_refined,
    question_row,
    unopened,
)
from untold.udfs.stages.reading import (
    collapsed,
    is_drawing,
    is_none,
    past_echoes,
    split_marker,
)
from untold.udfs.stages.records import (
    CONFIDENCE_NAMES,
    NUMBER_NAMES,
    QUESTION_NAMES,
    Cell,
    Record,
    Value,
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
# In the order of the other answers; null where one has to be asked again
RELATIONS_SCHEMA = pa.schema([pa.field("relations", pa.list_(pa.string()))])

_ANSWER = record(answer=TEXT, confidence=RATING)
_ANSWERS_FORM = lines_of(
    r"\* .+\nA: (?:unknown|.+ \[Confidence: [1-5]\])",
    "* question",
    "`A: answer [Confidence: n]`, several set apart by a bar, or `A: unknown`, each on the line below its question:",
)
_COMPARISON_FORM = OutputFormat(
    f"a short reason, then on the last line `first - second [{' | '.join(RELATIONS).replace('_', ' ')}]`",
    # Each part is matched in one way alone: a long line without its label would else take the square of its length
    re.compile(rf"(?:.*\n)*+(?>.+? - )(?>.+ \[)(?:{'|'.join(RELATIONS).replace('_', ' ')})\]"),
)
_AROUND_ANSWER = " \t\r*_`\"'“”‘’«»[]()<>"
_CONFIDENCE = rating_pattern("confidence|certainty")

_BULLET = r"(?:[•●○◦▪■‣·*+–—-]\s{1,9}|\(?\d{1,3}[.)]\s{1,9})?"
_ANSWER_WORD = r"[*_]{0,2}(?:a|answers?)(?:\s?\d{1,2})?[*_]{0,2}\s?[:：](?:[*_]{1,2}(?=\s))?"
_ANSWER_LABEL = re.compile(rf"\s{{0,40}}{_BULLET}{_ANSWER_WORD}", re.I)
# Where the next answer begins: on a line of its own or behind a bar, with `A:`
_NEXT_ANSWER = re.compile(rf"[\n|](?=[^\S\n]{{0,40}}{_BULLET}{_ANSWER_WORD})", re.I)
_LABEL_WITHIN = re.compile(rf"(?<![^\W_]){_ANSWER_WORD}", re.I)
_AFTER_QUESTION = re.compile(r"[?？][\s*_`\"'”’»):：→]{0,12}(?:[-–—]\s{1,3})?")
_DASHED = re.compile(r"\s[-–—:]{1,3}\s{1,3}|[:：]\s{1,3}")
_NUMBER = re.compile(r"\s{0,40}[*_]{0,2}\(?\d{1,3}[.)][*_]{0,2}\s")
# A line is cut behind a question at so many places, and a question may be so many characters longer than the given one
_MOST_CUTS, _DECORATION = 8, 60
# Between two rated answers: a line, a bar, a comma, `and`
_SEPARATOR = re.compile(
    rf"[*_`]{{0,3}}\s{{0,40}}(?:\n\s{{0,40}}{_BULLET}|[|;,/]\s{{0,9}})(?:(?:and|or)\s)?(?:{_ANSWER_WORD})?"
    rf"|[*_`]{{0,3}}\s{{1,9}}(?:(?:and|or)\s(?:{_ANSWER_WORD})?|{_ANSWER_WORD})",
    re.I,
)
# How models say that the text does not say; "in the text" and the like may follow.
_SOURCE = r"(?:the|this)(?: \w+)? (?:text|context|passage|source|document)"
_WHERE = rf"(?: (?:explicitly|directly|clearly))?(?: (?:in|by|from|within) {_SOURCE})?"
_NO_ANSWER = (
    rf"(?:{UNKNOWN_WORDS}|(?:it is |it's )?not (?:explicitly |directly )?(?:stated|mentioned|specified|given"
    r"|provided|available|known|said|applicable|addressed|answered|indicated|discussed)"
    r"|(?:there is |there['’]s )?no (?:relevant )?(?:answer|information|mention|data)"
    r"(?: (?:(?:is )?(?:given|provided|available|found|stated)|(?:about|on|regarding) (?:this|that|it)))?"
    r"|I (?:cannot|can['’]t) (?:answer|tell|say|determine)(?: (?:this|that|it|the)(?: question)?)?"
    r"|(?:it |this |that )?(?:cannot|can['’]t|could not) be (?:determined|answered|inferred|established|known|said)"
    r"|(?:insufficient|not enough) information|undetermined|unspecified|unstated|(?:I )?(?:do not|don['’]t) know"
    rf"|{_SOURCE} (?:(?:does not|doesn['’]t) "
    r"(?:say|state|mention|specify|answer|give|provide|tell|indicate|address|name|contain|include|discuss|reveal)"
    r"|(?:says|states) nothing|(?:gives|provides|contains|has) no (?:answer|information|data)|is silent)"
    r"(?: [^|\n.;,\[\]()]{1,80})?)" + _WHERE
)
_UNKNOWN = re.compile(rf"[\W_]{{0,9}}{_NO_ANSWER}(?:[\W_]{{0,9}}|[\W_]{{0,3}}\([^()]{{0,300}}\)[\W_]{{0,3}})", re.I)
# The same at the beginning, with a reason behind it
_UNKNOWN_REMARK = re.compile(
    rf"[\W_]{{0,9}}{_NO_ANSWER}" r"[*_\"'”’`]{0,3}(?:\s*\Z|[^\S\n]*[\n(\[]|[.:;][*_\"'”’`]{0,3}\s|\s[-–—]\s)", re.I
)


@dataclass(frozen=True)
class _QuestionBlock:
    """What is said to one question: its text as the completion gives it, and where its answers stand there."""

    question: str
    start: int
    end: int


@dataclass(frozen=True)
class _ParsedAnswer:
    """An answer as it is written, and its confidence: null where that is missing or out of scale."""

    text: str
    digit: Digit | None

    @property
    def unknown(self) -> bool:
        """Whether it says no more than that the text does not say."""
        return _says_unknown(self.text)


@final_answer
@past_echoes
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
    strange = (answers for n, (question, answers) in enumerate(blocks) if n not in matched and not asks(question))
    _check_answers(said, any(strange))
    kept = [_distinct(answers) for answers in said]
    return {
        "answers": [[answer.text for answer in answers] for answers in kept],
        "confidences": [[answer.digit for answer in answers] for answers in kept],
    }


def _recorded_answers(completion: str, questions: Sequence[str]) -> list[tuple[str, list[_ParsedAnswer]]]:
    """The questions of a JSON list or a table with their answers; none where it has no questions."""
    records = read_records(completion)
    if records is None:
        return []
    found: list[tuple[str, list[_ParsedAnswer]]] = []
    for value in unwrapped(records.values, QUESTION_NAMES):
        question = _question_of(value, questions) if isinstance(value, Record) else None
        if question is not None and isinstance(value, Record):
            found.append((question, list(_recorded_answer(value))))
        elif isinstance(value, Record) and all(asks(key) for key, _ in value.pairs):
            found.extend((key, list(_answers_of(each, None))) for key, each in value.pairs)
        else:
            raise Unparsable("an element of a list is no question with its answers")
    if found and any(_answers(records.rest, block) for block in _blocks(records.rest, questions)):
        raise Unparsable("two lists of answers")
    return found


def _question_of(value: Record, questions: Sequence[str]) -> str | None:
    """The question of an object: its text, or that of its number. Raises `Unparsable` for a number of none."""
    text, number = value.cell(QUESTION_NAMES), value.cell(NUMBER_NAMES)
    if text is not None or number is None or not questions:
        return text.text if text else None
    if not number.bare.isdecimal() or not 0 < int(number.bare[:9]) <= len(questions):
        raise Unparsable("an answer to none of the questions")
    return questions[int(number.bare) - 1]


def _written_answers(completion: str, questions: Sequence[str]) -> list[tuple[str, list[_ParsedAnswer]]]:
    """The questions of a completion in lines, each with its answers."""
    return [(block.question, _answers(completion, block)) for block in _blocks(completion, questions)]


def _recorded_answer(value: Record) -> Iterator[_ParsedAnswer]:
    """The answers of one object: in a list, or one beside its confidence; an empty list is `unknown`."""
    return _answers_of(value.field(("answers", "answer", "a")), value.field(CONFIDENCE_NAMES))


def _answers_of(said: Value | None, confidence: Value | None) -> Iterator[_ParsedAnswer]:
    """The answers of a field: a text, a list, or objects, whose own confidence counts before the outer one."""
    if said == []:
        yield _ParsedAnswer("unknown", None)
    for each in said if isinstance(said, list) else [said]:
        if isinstance(each, Record):
            own = each.field(CONFIDENCE_NAMES)
            yield from _answers_of(each.field(("answer", "text", "value", "a")), own or confidence)
        elif isinstance(each, Cell):
            text = "unknown" if each.text in ("null", "") else each.bare
            yield _ParsedAnswer(text, read_rating(confidence))


def _blocks(completion: str, questions: Sequence[str]) -> list[_QuestionBlock]:
    """The questions of a completion with what is said to each; numbered lines where none has its question.

    A lone question may be answered without being repeated.
    """
    lines = list(answer_lines(completion))
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
    return [_QuestionBlock(question, start, end) for (_, question, start), end in zip(heads, ends, strict=True)]


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
        for text in dict.fromkeys((line[:cut], question_row(line[:cut]).text)):
            if is_known(text, known):
                return [(text, cut)]
    row = question_row(line)
    if _ANSWER_LABEL.match(line) or NOTE.match(row.text) or is_drawing(row):
        return []
    if row.marked and labels and asks(line[: labels[0]]):
        return [(question_row(line[: labels[0]]).text, labels[0])]
    asks_or_marked = [asks(row.text), row.marked, followed].count(True) >= 2
    return [(row.text, len(line))] if asks_or_marked and not find_ratings(line, _CONFIDENCE, 0, len(line)) else []


def _answers(completion: str, block: _QuestionBlock) -> list[_ParsedAnswer]:
    """What is said to one question, `unknown` included; an empty text is nothing."""
    edges = [found.start() for found in _NEXT_ANSWER.finditer(completion, block.start, block.end)]
    starts, ends = [block.start, *(edge + 1 for edge in edges)], [*edges, block.end]
    labels = [_ANSWER_LABEL.match(completion, start, end) for start, end in zip(starts, ends, strict=True)]
    answers: list[_ParsedAnswer] = []
    for start, end, label in zip(starts, ends, labels, strict=True):
        start = label.end() if label else start
        ratings = find_ratings(completion, _CONFIDENCE, start, end)
        if ratings:
            answers.extend(_rated_answers(completion, start, end, ratings))
        elif label or not any(labels):
            answers.append(_unrated(completion[start:end]))
    return [answer for answer in answers if answer.text]


def _rated_answers(completion: str, start: int, end: int, ratings: Sequence[Rating]) -> Iterator[_ParsedAnswer]:
    """The answers that end in ratings; of two without a separator between them the second has none that is clear."""
    for place, rating in enumerate(ratings):
        written = completion[start : rating.start]
        start = rating.end
        separator = _SEPARATOR.match(written) if place else None
        unknown, pipe, rest = written[separator.end() if separator else 0 :].partition("|")
        if pipe and _UNKNOWN.fullmatch(unknown):
            yield _ParsedAnswer("unknown", None)
        else:
            rest = unknown + pipe + rest
        text = _answer_text(unopened(rest, completion[rating.end : min(end, rating.end + 2)]))
        yield _ParsedAnswer(text, rating.digit if separator or not place else None)
    rest = completion[start:end]
    if rest.lstrip().startswith("|"):
        yield _unrated(rest.lstrip().strip("| \t\r\n"))
    elif len(ratings) == 1 and not written.strip(_AROUND_ANSWER):
        yield _ParsedAnswer(_answer_text(rest.partition("\n")[0].lstrip(" :-–—")), ratings[0].digit)


def _says_unknown(text: str) -> bool:
    return _UNKNOWN.fullmatch(text) is not None or is_none(text) or says_absent(text)


def _unrated(text: str) -> _ParsedAnswer:
    """An answer without a confidence, which only `unknown` may be."""
    said = _UNKNOWN_REMARK.match(text) or _says_unknown(_answer_text(text))
    return _ParsedAnswer("unknown" if said else _answer_text(text), None)


def _answer_text(written: str) -> str:
    """An answer on one line without decoration; a bullet is one only where a line begins."""
    begins_line = written.lstrip(" \t\r").startswith("\n")
    text = collapsed(split_marker(written).text if begins_line else written)
    return whole(BEFORE_RATING.sub("", whole(text)))


def _check_answers(said: Sequence[Sequence[_ParsedAnswer]], any_strange: bool) -> None:
    """Raises `Unparsable` where a question has no answer, or an answer has no confidence or no question."""
    missing = sum(not answers for answers in said)
    if missing:
        raise Unparsable(f"no answer to {missing} of {len(said)} questions")
    unrated = sum(any(answer.digit is None and not answer.unknown for answer in answers) for answers in said)
    if unrated:
        raise Unparsable(f"no confidence from 1 to 5 for an answer to {unrated} of {len(said)} questions")
    if any_strange:
        raise Unparsable("an answer to none of the questions")


def _distinct(answers: Iterable[_ParsedAnswer]) -> list[_ParsedAnswer]:
    """The answers but for `unknown`, equal ones once as the first is written: nodes are made by the same form."""
    distinct: dict[str, _ParsedAnswer] = {}
    for answer in answers:
        if not answer.unknown:
            distinct.setdefault(normalise(answer.text), answer)
    return list(distinct.values())


def questions_in(completion: str) -> list[ExtractedItem]:
    """The questions. Raises `Unparsable`."""
    return list(map(ExtractedItem, parse_questions(completion, {})["questions"]))


def refined_in(completion: str) -> list[ExtractedItem]:
    """The questions with their relevance. Raises `Unparsable`."""
    refined = parse_refined(completion, {})
    return [
        ExtractedItem(text, digit.value) for text, digit in zip(refined["questions"], refined["ratings"], strict=True)
    ]


def answers_in(completion: str) -> list[ExtractedItem]:
    """The answers with their confidence, each told apart by its question. Raises `Unparsable` where none is asked."""
    blocks = _recorded_answers(completion, ()) or _written_answers(completion, ())
    if not blocks:
        raise Unparsable("no question that is answered")
    return [
        ExtractedItem(f"{matching_key(question)}: {answer.text}", answer.digit.value)
        for question, answers in blocks
        for answer in answers
        if answer.digit and not answer.unknown
    ]


MINE_QUESTIONS = StageDefinition(
    "mine_questions",
    ("query", "text"),
    parse_questions,
    QUESTIONS_SCHEMA,
    schema=record(questions=listed(TEXT)),
    form=lines_of(r"\* .+", "* question"),
    figures=Figures(WRITTEN, completion=LinearSize(slope=1.18), things=LinearSize(slope=0.076)),
    things=questions_in,
    max_tokens=8_192,
    items=("questions",),
)
REFINE_QUESTIONS = StageDefinition(
    "refine_questions",
    ("query", "questions"),
    parse_refined,
    REFINED_SCHEMA,
    schema=record(questions=listed(record(question=TEXT, relevance=RATING))),
    form=lines_of(r"\* .+ \[Relevance: [1-5]\]", "* question [Relevance: n]"),
    rated=True,
    figures=Figures(
        WRITTEN,
        completion=LinearSize(slope=0.91),
        things=LinearSize(slope=0.053),
        ratings=(0.07, 0.11, 0.17, 0.29, 0.36),
    ),
    things=refined_in,
    max_tokens=8_192,
    items=("questions", "ratings"),
)
ANSWER_QUESTIONS = StageDefinition(
    "answer_questions",
    ("text", "questions"),
    parse_answers,
    ANSWERS_SCHEMA,
    schema=record(answers=listed(record(id=number_of("questions"), answers=listed(_ANSWER)))),
    form=_ANSWERS_FORM,
    rated=True,
    figures=Figures(
        WRITTEN,
        completion=LinearSize(slope=0.94),
        things=LinearSize(slope=0.045),
        ratings=(0.0, 0.01, 0.24, 0.11, 0.64),
    ),
    things=answers_in,
    max_tokens=8_192,
)
COMPARE_ANSWERS = StageDefinition(
    "compare_answers",
    ("question", "first", "second"),
    parse_comparison,
    RELATION_SCHEMA,
    schema=record(reasoning=THOUGHTS, relation=one_of(RELATIONS)),
    form=_COMPARISON_FORM,
    tools=(COMPARE_QUANTITIES,),
    figures=Figures(WRITTEN, completion=LinearSize(5.0, slope=0.84)),
    max_tokens=8_192,
)
COMPARE_MANY = StageDefinition(
    "compare_many",
    ("question", "answer", "others"),
    parse_comparisons,
    RELATIONS_SCHEMA,
    schema=record(relations=listed(record(id=number_of("others"), relation=one_of(RELATIONS)))),
    form=lines_of(
        rf"\d{{1,9}}: (?:{'|'.join(RELATIONS).replace('_', ' ')})", "n: relation", "one line for each other answer:"
    ),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.9)),
)
