"""The stages of question answering: questions of contexts, answers, and comparisons of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from untold.udfs.facts.nodes import normalise
from untold.udfs.llm.tools import COMPARE_QUANTITIES
from untold.udfs.stages.answers import reader
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
from untold.udfs.stages.forms import find_records, get_field, lines_with_places, says_nothing
from untold.udfs.stages.labels import LABEL_NAMES, Vocabulary, read_label, read_numbered_labels
from untold.udfs.stages.lists import QUESTION_NAMES, RatedText, read_rated_texts, read_texts, things_of
from untold.udfs.stages.question_answers import answers_in, parse_answers
from untold.udfs.texts import compatible

RELATIONS = ("equivalent", "first_implies_second", "second_implies_first", "contradictory", "neutral")
_WORDS = Vocabulary(
    {
        "equivalent": ("equivalence",),
        "first_implies_second": (
            *("the first implies the second", "first answer implies second answer", "first entails second"),
            "the first answer implies the second answer",
        ),
        "second_implies_first": (
            *("the second implies the first", "second answer implies first answer", "second entails first"),
            *("the second answer implies the first answer", "first is implied by second"),
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
_NOT_WORDS = re.compile(r"[\W_]+")
_LAST_LINES = 3

QUESTIONS_SCHEMA = pa.schema([pa.field("questions", pa.list_(pa.string()))])
REFINED_SCHEMA = QUESTIONS_SCHEMA.append(pa.field("ratings", pa.list_(pa.float64())))
ANSWERS_SCHEMA = pa.schema(
    [pa.field("answers", pa.list_(pa.list_(pa.string()))), pa.field("confidences", pa.list_(pa.list_(pa.float64())))]
)
RELATION_SCHEMA = pa.schema([pa.field("relation", pa.string())])
# In the order of the other answers; null if the relation is missing
RELATIONS_SCHEMA = pa.schema([pa.field("relations", pa.list_(pa.string()))])

_ANSWER = record(answer=TEXT, confidence=RATING)
_ANSWERS_FORM = lines_of(
    r"\* .+\nA: (?:unknown|.+ \[Confidence: [1-5]\])",
    "* question",
    "`A: answer [Confidence: n]`, several set apart by a bar, or `A: unknown`, each on the line below its question:",
)
_COMPARISON_FORM = OutputFormat(
    f"a short reason, then on the last line `first - second [{' | '.join(RELATIONS).replace('_', ' ')}]`",
    # The atomic groups keep the time linear in the length of a line without a label
    re.compile(rf"(?:.*\n)*+(?>.+? - )(?>.+ \[)(?:{'|'.join(RELATIONS).replace('_', ' ')})\]"),
)
_GLUED = re.compile(r"[?？][*_\"')]*[\s–—;|*-]+\w|\AA:")


@partial(reader, reasons=True)
def parse_comparison(text: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the `relation` of the variable `first` to `second`. The completion may name them in either order.

    It is in brackets after both answers on one of the last lines, in a field, or on a line of its own. Raises
    `Unparsable` for no relation and for several.
    """
    first, second = (str(variables.get(name) or "") for name in ("first", "second"))
    found = find_records(text, LABEL_NAMES)
    if found is not None and _BRACKET.search(found[1]) and any(map(_WORDS.read, _BRACKETED.findall(found[1]))):
        raise Unparsable("JSON and a classification outside of it")
    if found is not None and len(found[0]) == 1 and isinstance(found[0][0], dict):
        sides = [str(get_field(found[0][0], (name,)) or "") for name in ("first", "second")]
        return {"relation": _turned(read_label(text, _WORDS, ()), " ".join(sides), first, second)}
    lines = [line for _, line in lines_with_places(text)]
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


@reader
def parse_comparisons(text: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """Return the `relations` of `answer` to each of `others`, None for one without a clear relation."""
    return {"relations": read_numbered_labels(text, variables["others"], _WORDS)}


class _Classified(NamedTuple):
    """A line that ends with a relation in brackets: its place, the relation, and the answers before it."""

    place: int
    relation: str
    sides: str
    is_clear: bool


def _classified(lines: Sequence[str], place: int, first: str, second: str) -> _Classified | None:
    line = lines[place]
    keys = _key(first), _key(second)
    if all(keys) and _key(line).endswith((" ".join(keys), " ".join(keys[::-1]))):
        return None  # brackets of the answers themselves
    brackets = [
        (found, relation) for found in _BRACKET.finditer(line) if (relation := _WORDS.read(found[1] or found[2]))
    ]
    if not brackets:
        return None
    found, relation = brackets[-1]
    sides = line[: found.start()]
    sides = sides if _key(sides) or not place else lines[place - 1]
    is_sure = all(other == relation for _, other in brackets) or _last_side(sides, first, second) is not None
    return _Classified(place, relation, sides, is_sure and _BEHIND.match(line, found.end()) is not None)


def _last_side(sides: str, first: str, second: str) -> str | None:
    """Return the one of two answers that a line names last, None if it does not name both."""
    pairs = sorted(((first, second), (second, first)), key=lambda pair: -len(pair[0]))
    # The exact forms come first, because `C` and `C++`, or `5` and `-5`, differ only in signs
    for form in (normalise, _key):
        named = form(sides.strip(" *_`"))
        for last, other in pairs if form(first) and form(second) else ():
            if named.endswith(form(last)) and form(other) in named[: -len(form(last))]:
                return last
    return None


def _key(text: str) -> str:
    return _NOT_WORDS.sub(" ", compatible(text).casefold()).strip()


def _turned(relation: str, sides: str, first: str, second: str) -> str:
    """Return the relation of `first` to `second`, given the line that names them in either order."""
    is_swapped = first != second and _last_side(sides, first, second) == first
    return _SWAPPED.get(relation, relation) if is_swapped else relation


@reader
def parse_questions(text: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the `questions` in order; none for `None`.

    Raises `Unparsable` if a line may be a question or not, and for a question with more behind it.
    """
    own = str(variables.get("text") or "")
    questions = read_texts(text, QUESTION_NAMES, own, may_be_plain="?" in text or "？" in text)
    if any(map(_GLUED.search, questions)):
        raise Unparsable("a question with more behind it")
    return {"questions": questions}


@reader
def parse_refined(text: str, variables: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the `questions`, each text once with its first rating, and their `ratings`, a `Digit` each.

    None for `None`. Raises `Unparsable` for a question without a rating from 1 to 5.
    """
    distinct: dict[str, RatedText] = {}
    for rated in [] if says_nothing(text) else read_rated_texts(text, ("query", *QUESTION_NAMES)):
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


MINE_QUESTIONS = StageDefinition(
    "mine_questions",
    ("query", "text"),
    parse_questions,
    QUESTIONS_SCHEMA,
    schema=record(questions=listed(TEXT)),
    form=lines_of(r"\* .+", "* question"),
    figures=Figures(WRITTEN, completion=LinearSize(slope=1.18), things=LinearSize(slope=0.076)),
    things=things_of(parse_questions, "questions"),
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
