"""Return the parsed completions of the stages of qa, without the parts that the tests do not need."""

from __future__ import annotations

from untold.udfs.ratings import Digit
from untold.udfs.stages.qa import (
    ANSWER_QUESTIONS,
    COMPARE_ANSWERS,
    MINE_QUESTIONS,
    REFINE_QUESTIONS,
)

QA = (MINE_QUESTIONS, REFINE_QUESTIONS, ANSWER_QUESTIONS, COMPARE_ANSWERS)


def mined(completion: str) -> list[str]:
    questions: list[str] = MINE_QUESTIONS.parse(completion, {"query": "?", "text": "t"})["questions"]
    return questions


def values(completion: str, digits: list[Digit]) -> list[int]:
    """Return the values of the digits, and check that each digit is at its offset in the completion."""
    assert [completion[digit.offset] for digit in digits] == [str(digit.value) for digit in digits]
    return [digit.value for digit in digits]


def refined(completion: str) -> list[tuple[str, int]]:
    row = REFINE_QUESTIONS.parse(completion, {"query": "?", "questions": ["a"]})
    return list(zip(row["questions"], values(completion, row["ratings"]), strict=True))


def answered(completion: str, questions: list[str]) -> list[list[tuple[str, int]]]:
    row = ANSWER_QUESTIONS.parse(completion, {"text": "t", "questions": questions})
    rated = zip(row["answers"], row["confidences"], strict=True)
    return [list(zip(answers, values(completion, digits), strict=True)) for answers, digits in rated]


def relation(completion: str, first: str = "5 km", second: str = "5,000 m") -> str:
    variables = {"question": "?", "first": first, "second": second}
    found: str = COMPARE_ANSWERS.parse(completion, variables)["relation"]
    return found
