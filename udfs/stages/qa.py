"""The stages of question answering: questions of contexts, answers, and comparisons of answers.

A completion of `answer_questions` has lines below their questions, or JSON. Each answer has a confidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from untold.udfs.errors import Unparsable
from untold.udfs.facts.nodes import normalise
from untold.udfs.llm.tools import COMPARE_QUANTITIES
from untold.udfs.ratings import Digit
from untold.udfs.stages import forms, lists
from untold.udfs.stages.answers import reader
from untold.udfs.stages.definitions import WRITTEN, ExtractedItem, Figures, LinearSize, StageDefinition
from untold.udfs.stages.labels import LABEL_NAMES, Vocabulary, labels_stage, read_label
from untold.udfs.stages.non_answers import UNKNOWN_WORDS, says_absent
from untold.udfs.stages.reading import asks, is_none, split_marker, without_start
from untold.udfs.stages.schemas import RATING, TEXT, THOUGHTS, OutputFormat, lines_of, listed, number_of, one_of, record

RELATIONS = ("equivalent", "first_implies_second", "second_implies_first", "contradictory", "neutral")
_WORDS = Vocabulary(
    {
        "equivalent": ("equivalence",),
        "first_implies_second": (
            *("the first implies the second", "first answer implies second answer", "first entails second"),
            *("the first answer implies the second answer", "first → second"),
        ),
        "second_implies_first": (
            *("the second implies the first", "second answer implies first answer", "second entails first"),
            *("the second answer implies the first answer", "first is implied by second", "second → first"),
        ),
        "contradictory": ("contradiction", "contradicts", "contradict"),
        "neutral": ("independent",),
    },
    inputs=("question", "first", "second", "others", "other", "first answer", "second answer"),
)
_BRACKET = re.compile(
    r"[\[【［(（]([^\[\]【】［］()（）\n]{1,60})[\]】］)）]|\\boxed\{(?:\\text\{)?([^{}\n]{1,60})\}{1,2}"
)
_BRACKETED = re.compile(r"\[([^\[\]\n]{1,60})\]")
_LAST_BRACKET = re.compile(r"\[([^\[\]\n]{1,60})\]\W*\Z")
_BEHIND = re.compile(r"(?:[^\w(]*\Z|[*_.`$\s]*(?:[(#]|[-–—:;,]\s|because\b|since\b))", re.IGNORECASE)
_SWAPPED = {"first_implies_second": "second_implies_first", "second_implies_first": "first_implies_second"}
_LAST_LINES = 3

_ANSWER = record(answer=TEXT, confidence=RATING)
_ANSWERS_FORM = lines_of(
    r"\* .+\nA: (?:unknown|.+ \[Confidence: [1-5]\])",
    "* question",
    "`A: answer [Confidence: n]`, several set apart by a bar, or `A: unknown`, each on the line below its question:",
)
_WRITTEN_RELATIONS = "|".join(RELATIONS).replace("_", " ")
_COMPARISON_FORM = OutputFormat(
    f"a short reason, then on the last line `first - second [{_WRITTEN_RELATIONS.replace('|', ' | ')}]`",
    # The atomic groups keep the time linear in the length of a line without a label
    re.compile(rf"(?:.*\n)*+(?>.+? - )(?>.+ \[)(?:{_WRITTEN_RELATIONS})\]"),
)
_GLUED = re.compile(r"[?？][*_\"')]*[\s–—;|*-]+\w|\AA:")

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
_A = r"[*_]{0,2}(?:a|answers?|答|答案|回答)(?:\s?\d{1,2})?[*_]{0,2}\s?[:：]"
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


@partial(reader, reasons=True)
def parse_comparison(text: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the `relation` of the variable `first` to `second`. The completion may name them in either order.

    It is in brackets after both answers on one of the last lines, in a field, or on a separate line. Raises
    `Unparsable` for no relation and for several.
    """
    first, second = (str(variables.get(name) or "") for name in ("first", "second"))
    found = forms.find_records(text, LABEL_NAMES)
    if found is not None and _BRACKET.search(found[1]) and any(map(_WORDS.read, _BRACKETED.findall(found[1]))):
        raise Unparsable("JSON and a classification outside of it")
    if found is not None and len(found[0]) == 1 and isinstance(found[0][0], dict):
        sides = [str(forms.get_field(found[0][0], (name,)) or "") for name in ("first", "second")]
        return {"relation": _turned(read_label(text, _WORDS, ()), " ".join(sides), first, second)}
    lines = [line for _, line in forms.lines_with_places(text)]
    ending = _LAST_BRACKET.search(lines[-1]) if lines else None
    if ending and _WORDS.read(ending[1]) is None and _last_side(lines[-1][: ending.start()], first, second):
        raise Unparsable("no classification on the last line")
    classified = [one for place in range(len(lines)) if (one := _classified(lines, place, first, second))]
    classified = classified[-_LAST_LINES:]
    named = [one for one in classified if _last_side(one.sides, first, second)]
    if classified and classified[-1].place >= len(lines) - _LAST_LINES:
        last = (named or classified)[-1]
        if not last.is_clear:
            raise Unparsable("several classifications, or one inside a sentence")
        return {"relation": _turned(last.relation, last.sides, first, second)}
    try:
        return {"relation": read_label("\n".join(lines[-2:]), _WORDS, (first, second))}
    except Unparsable as error:
        raise Unparsable("no classification on the last line") from error


class _Classified(NamedTuple):
    """A line that ends with a relation in brackets: its place, the relation, and the answers before it."""

    place: int
    relation: str
    sides: str
    is_clear: bool


def _classified(lines: Sequence[str], place: int, first: str, second: str) -> _Classified | None:
    line = lines[place]
    read = [(found, _WORDS.read(found[1] or found[2])) for found in _BRACKET.finditer(line)]
    brackets = [(found, relation) for found, relation in read if relation]
    if not brackets:
        return None
    found, relation = brackets[-1]
    sides = line[: found.start()]
    sides = sides if lists.matching_key(sides) or not place else lines[place - 1]
    names_both = _last_side(sides, first, second) is not None
    keys = lists.matching_key(first), lists.matching_key(second)
    if not names_both and all(keys) and lists.matching_key(line).endswith((" ".join(keys), " ".join(keys[::-1]))):
        return None  # brackets of the answers themselves
    is_sure = names_both or all(other == relation for _, other in brackets)
    return _Classified(place, relation, sides, is_sure and _BEHIND.match(line, found.end()) is not None)


def _last_side(sides: str, first: str, second: str) -> str | None:
    """Return the last of two answers in a line, or None if the line does not name both."""
    pairs = sorted(((first, second), (second, first)), key=lambda pair: -len(pair[0]))
    # The exact forms come first, because `C` and `C++`, or `5` and `-5`, differ only in signs
    for form in (normalise, lists.matching_key):
        named = form(sides.strip(" *_`"))
        for last, other in pairs if form(first) and form(second) else ():
            if named.endswith(form(last)) and form(other) in named[: -len(form(last))]:
                return last
    return None


def _turned(relation: str, sides: str, first: str, second: str) -> str:
    """Return the relation of `first` to `second`, given the line that names them in either order."""
    is_swapped = first != second and _last_side(sides, first, second) == first
    return _SWAPPED.get(relation, relation) if is_swapped else relation


def read_questions(text: str, variables: Mapping[str, Any]) -> list[str]:
    """Return the questions in order. The list is empty for `None`.

    Raises `Unparsable` if a line may be a question or not, and for a question with more behind it.
    """
    own = str(variables.get("text") or "")
    questions = lists.read_texts(text, lists.QUESTION_NAMES, own, may_be_plain="?" in text or "？" in text)
    if any(map(_GLUED.search, questions)):
        raise Unparsable("a question with more behind it")
    return questions


@reader
def parse_refined(text: str, variables: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the distinct `questions` and their `ratings`. A repeated question keeps its first rating.

    The lists are empty for `None`. Raises `Unparsable` for a question without a rating from 1 to 5.
    """
    distinct: dict[str, lists.RatedText] = {}
    for rated in [] if forms.says_nothing(text) else lists.read_rated_texts(text, ("query", *lists.QUESTION_NAMES)):
        if not rated.text:
            raise Unparsable("a rating without a question")
        distinct.setdefault(normalise(rated.text), rated)
    return {
        "questions": [rated.text for rated in distinct.values()],
        "ratings": [rated.digit for rated in distinct.values()],
    }


def refined_in(completion: str) -> list[ExtractedItem]:
    """Return the questions with their relevance. Raises `Unparsable`."""
    refined = parse_refined(completion, {})
    pairs = zip(refined["questions"], refined["ratings"], strict=True)
    return [ExtractedItem(text, digit.value) for text, digit in pairs]


class _Block(NamedTuple):
    """A question of the completion and the lines below it with their positions."""

    question: str
    lines: list[tuple[int, str]]


@reader
def parse_answers(text: str, variables: Mapping[str, Any]) -> dict[str, list[list[Any]]]:
    """Return the distinct `answers` to each question, and their `confidences`, in the order of `questions`.

    The list of a question is empty for `unknown`. Questions are matched by text or number, and otherwise by position.
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
    return [
        ExtractedItem(f"{lists.matching_key(q)}: {text}", digit.value) for q, answers in said for text, digit in answers
    ]


def _placed(text: str, questions: Sequence[str]) -> list[tuple[int, list[_Answer]]]:
    """Return the answers with the places of their questions."""
    found = forms.find_records(text, ("question", "q", "answers"))
    found = found or (forms.find_records(text, ("answer",)) if "{" in text else None)
    if found is not None:
        return _of_records(text, found[0], questions)
    blocks = _blocks(text, questions)
    keys = list(map(lists.matching_key, questions))
    said = [lists.matching_key(block.question) for block in blocks]
    if len(set(said)) < len(said) or not set(keys).issuperset(said) or not all(block.lines for block in blocks):
        raise Unparsable("a repeated or unknown question, or a question without an answer")
    return [(keys.index(key), _in_lines(block.lines, text)) for key, block in zip(said, blocks, strict=True)]


def _blocks(text: str, questions: Sequence[str]) -> list[_Block]:
    """Return the questions of a completion with the lines below each question."""
    known = set(map(lists.matching_key, questions))
    blocks: list[_Block] = []
    lines = list(forms.lines_with_places(text))
    for place, (start, line) in enumerate(lines):
        row = split_marker(line)
        question = forms.undecorated(without_start(_QUESTION_LABEL, row.text))
        is_answer = _ANSWER_LABEL.match(line) is not None and lists.matching_key(question) not in known
        is_followed = place + 1 < len(lines) and _ANSWER_LABEL.match(lines[place + 1][1]) is not None
        if is_answer:
            if not blocks and len(questions) != 1:
                raise Unparsable("an answer without a question")
            if not blocks:
                blocks.append(_Block(questions[0], []))
            blocks[-1].lines.append((start, line))
        elif lists.matching_key(question) in known or (asks(question) and (row.marked or is_followed)):
            blocks.append(_Block(question, []))
        elif blocks and not _NOTE.match(row.text) and (row.marked or not row.text.endswith(":")):
            if blocks[-1].lines and not row.marked and "onfidence" not in line:
                raise Unparsable("a line that is not an answer")
            blocks[-1].lines.append((start + line.find(row.text), row.text))
    return blocks


def _in_lines(lines: Sequence[tuple[int, str]], completion: str) -> list[_Answer]:
    """Return the answers of the lines. Skip unknown answers."""
    answers = []
    for start, line in lines:
        ends = [(0, 0), *(found.span() for found in _BETWEEN_ANSWERS.finditer(line)), (len(line), len(line))]
        for (_, place), (end, _) in pairwise(ends):
            part = line[place:end]
            said = without_start(_ANSWER_LABEL, part)
            if said != part and not said.strip():
                raise Unparsable("an answer without a text")
            if not said.strip() or _UNKNOWN.fullmatch(said) or says_absent(said):
                continue
            rated = lists.split_rating(said, start + place + len(part) - len(said), completion)
            if rated is None:
                raise Unparsable("an answer without a confidence")
            before, digit, behind = rated
            text = forms.undecorated(lists.balanced(before))
            if not any(map(str.isalnum, text)) or (any(map(str.isalnum, behind)) and behind.strip()[0] not in "(–—-"):
                raise Unparsable("a confidence inside an answer")
            if not _UNKNOWN.fullmatch(text) and not is_none(text):
                answers.append((text, digit))
    return answers


def _of_records(text: str, records: Sequence[Any], questions: Sequence[str]) -> list[tuple[int, list[_Answer]]]:
    rows: list[tuple[int, list[tuple[str, int]]]] = []
    keys = list(map(lists.matching_key, questions))
    for each in records:
        if not isinstance(each, dict) or not any(name in each for name in _ANSWER_NAMES):
            raise Unparsable("a list element without a question and answers")
        number = forms.place_of_record(each, ("question", "q"), questions)
        key = lists.matching_key(str(forms.get_field(each, ("question", "q"))))
        place = number - 1 if number is not None else keys.index(key) if key in keys else -1
        if not 0 <= place < len(questions):
            raise Unparsable("an answer to an unknown question")
        said = next(each[name] for name in _ANSWER_NAMES if name in each)
        rows.append((place, list(_of_value(said, forms.get_field(each, _CONFIDENCE_NAMES)))))
    digits = iter(lists.digits_of_fields(text, "confidence", [rating for _, said in rows for _, rating in said]))
    return [(place, [(answer, next(digits)) for answer, _ in said]) for place, said in rows]


def _of_value(said: Any, confidence: Any) -> Iterator[tuple[str, int]]:
    """Yield the answers of a field with their confidence. An object may have its own confidence."""
    for each in said if isinstance(said, list) else [said]:
        if isinstance(each, dict):
            own = forms.get_field(each, _CONFIDENCE_NAMES)
            yield from _of_value(
                forms.get_field(each, ("answer", "text", "value", "a")), confidence if own is None else own
            )
            continue
        text = "" if each is None else str(each).strip()
        if not text or _UNKNOWN.fullmatch(text) or is_none(text):
            continue
        rated = lists.split_rating(text, 0, "") if confidence is None else None
        if confidence is None and rated is None:
            raise Unparsable("an answer without a confidence")
        yield (rated[0].strip(), rated[1].value) if rated else (text, lists.rating_of_value(confidence))


MINE_QUESTIONS = lists.list_stage(
    "mine_questions",
    ("query", "text"),
    "questions",
    read_questions,
    form=lines_of(r"\* .+", "* question"),
    figures=Figures(WRITTEN, completion=LinearSize(slope=1.18), things=LinearSize(slope=0.076)),
    max_tokens=8_192,
)
REFINE_QUESTIONS = StageDefinition(
    "refine_questions",
    ("query", "questions"),
    parse_refined,
    pa.schema({"questions": lists.TEXTS, "ratings": pa.list_(pa.float64())}),
    schema=record(questions=listed(record(question=TEXT, relevance=RATING))),
    form=lines_of(r"\* .+ \[Relevance: [1-5]\]", "* question [Relevance: n]"),
    rated=True,
    figures=Figures(WRITTEN, LinearSize(slope=0.91), LinearSize(slope=0.053), ratings=(0.07, 0.11, 0.17, 0.29, 0.36)),
    things=refined_in,
    max_tokens=8_192,
    items=("questions", "ratings"),
)
ANSWER_QUESTIONS = StageDefinition(
    "answer_questions",
    ("text", "questions"),
    parse_answers,
    pa.schema({"answers": pa.list_(lists.TEXTS), "confidences": pa.list_(pa.list_(pa.float64()))}),
    schema=record(answers=listed(record(id=number_of("questions"), answers=listed(_ANSWER)))),
    form=_ANSWERS_FORM,
    rated=True,
    figures=Figures(WRITTEN, LinearSize(slope=0.94), LinearSize(slope=0.045), ratings=(0.0, 0.01, 0.24, 0.11, 0.64)),
    things=answers_in,
    max_tokens=8_192,
)
COMPARE_ANSWERS = StageDefinition(
    "compare_answers",
    ("question", "first", "second"),
    parse_comparison,
    pa.schema({"relation": pa.string()}),
    schema=record(reasoning=THOUGHTS, relation=one_of(RELATIONS)),
    form=_COMPARISON_FORM,
    tools=(COMPARE_QUANTITIES,),
    figures=Figures(WRITTEN, completion=LinearSize(5.0, slope=0.84)),
    max_tokens=8_192,
)
COMPARE_MANY = labels_stage(
    "compare_many",
    ("question", "answer", "others"),
    RELATIONS,
    _WORDS,
    ("relations", "id", "relation"),
    Figures(WRITTEN, completion=LinearSize(slope=0.9)),
    one="other answer",
    pattern=_WRITTEN_RELATIONS,
)
