"""The stages of Q&A comprehensiveness (Dejl et al. 2025; methods, section 3) and how they are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from untold.udfs.facts.nodes import normalise
from untold.udfs.llm.tools import COMPARE_QUANTITIES
from untold.udfs.stages.answers import reader
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
from untold.udfs.stages.forms import says_nothing
from untold.udfs.stages.lists import QUESTION_NAMES, read_texts, things_of
from untold.udfs.stages.question_answers import answers_in, parse_answers
from untold.udfs.stages.rated_lists import RatedText, read_rated_texts

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
_GLUED = re.compile(r"[?？][*_\"')]*[\s–—;|*-]+\w|\AA:")


@reader
def parse_questions(text: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the `questions` in order; none for `None`.

    Raises `Unparsable` if a line may be a question or not, and for a question with more behind it.
    """
    questions = read_texts(text, QUESTION_NAMES, str(variables.get("text") or ""))
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
