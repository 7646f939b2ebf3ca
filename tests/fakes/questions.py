"""The Q&A language of the symbolic world: its questions, their answers, and the relations of answers.

Answers are the facts of `tests.fakes.facts` in fewer words. All results are computed only from texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tests.fakes.facts import (
    DURATION,
    FOREIGN,
    LENGTHS,
    LEVELS,
    LOOSE_LENGTHS,
    NEEDED,
    NOISE,
    RELATED,
    Fact,
    Odds,
    entails,
    generalise,
    made_careless,
    normalise,
    rate,
    read_fact,
    read_query,
    revise,
    roll,
    sentences,
)

RELATIONS = ("equivalent", "first_implies_second", "second_implies_first", "contradictory", "neutral")
SWAPPED = {"first_implies_second": "second_implies_first", "second_implies_first": "first_implies_second"}
RELATION_OF_OUTCOME = {
    "equal": "equivalent",
    "first_larger": "contradictory",
    "second_larger": "contradictory",
    "incomparable": "neutral",
}
NO_INFORMATION = "There is no relevant information."
SURE: Odds = {"5": 0.85, "4": 0.1, "n": 0.05}
# In the last two, the digit and the expected score are on different sides of the threshold
CONFIDENCES: Sequence[Odds] = (
    *[SURE] * 6,
    {"3": 0.8, "4": 0.15, "n": 0.05},
    {"1": 0.9, "2": 0.06, "n": 0.04},
    {"2": 0.45, "1": 0.4, "n": 0.15},
    {"1": 0.45, "3": 0.35, "4": 0.15, "n": 0.05},
)
PHRASINGS: Mapping[str, tuple[str, ...]] = {
    "founding": ("When was {x} founded?", "What is the founding date of {x}?", "At what time was {x} founded?"),
    "home": ("Where does {x} live?", "What is the home of {x}?", "Which place is the home of {x}?"),
    "fleet": ("How many boats does {x} have?", "How large is the fleet of {x}?", "How many boats belong to {x}?"),
    "taste": ("What does {x} like?", "What things does {x} like?", "What is liked by {x}?"),
    "length": ("How long is {x}?", "What is the length of {x}?", "How far does {x} extend?"),
}
# The value in an answer, by the form of its sentence
PHRASES: Mapping[str, tuple[str, ...]] = {
    "day": ("{v}", "the day {v}", "on {v}"),
    "year": ("{v}", "the year {v}", "in {v}"),
    "decade": ("{v}", "in {v}"),
    "century": ("{v}", "in {v}"),
    "city": ("{v}", "the city of {v}", "in {v}"),
    "country": ("{v}", "the country of {v}", "in {v}"),
    "continent": ("{v}", "the continent of {v}", "in {v}"),
    "exact": ("{v}", "{v} boats"),
    "least": ("{v}", "{v} boats"),
    "taste": ("{v}", "{v}, above all"),
    "length": ("{v}", "{v}", "a length of {v}"),
}
_UNKNOWN = ("unknown", "Unknown.", "unknown [Confidence: 5]")

Question = tuple[str, str, int]
Rated = tuple[str, Odds]


def _question_patterns() -> Iterator[tuple[re.Pattern[str], str, int]]:
    for topic, phrasings in PHRASINGS.items():
        for place, phrasing in enumerate(phrasings):
            yield re.compile(re.escape(phrasing.casefold()).replace(r"\{x\}", r"(?P<x>\w+ \w+)")), topic, place


def _answer_patterns() -> Iterator[tuple[re.Pattern[str], str, str, int]]:
    for (topic, level), (_, values) in LEVELS.items():
        for form, phrase in enumerate(PHRASES[level]):
            yield re.compile(phrase.replace("{v}", f"(?P<v>{values})")), topic, level, form


_QUESTION_PATTERNS = tuple(_question_patterns())
_ANSWER_PATTERNS = tuple(_answer_patterns())


def ask_for(topic: str, subject: str, phrasing: int = 0) -> str:
    """Return the question about a topic of a subject, in one of three phrasings."""
    return PHRASINGS[topic][phrasing].format(x=subject.title())


@lru_cache(maxsize=100_000)
def read_question(question: str) -> Question | None:
    """Return topic, subject and phrasing of a question, or None for any other text."""
    text = normalise(question)
    for pattern, topic, phrasing in _QUESTION_PATTERNS:
        if found := pattern.fullmatch(text):
            return topic, found["x"], phrasing
    return None


@lru_cache(maxsize=100_000)
def read_answer(question: str, answer: str) -> tuple[Fact, int] | None:
    """Return the fact in an answer to a question and its form, or None."""
    asked, text = read_question(question), normalise(answer)
    for pattern, topic, level, form in _ANSWER_PATTERNS:
        if asked and topic == asked[0] and (found := pattern.fullmatch(text)):
            return Fact(topic, level, asked[1], found["v"]), form
    return None


@lru_cache(maxsize=10_000)
def facts_of(text: str) -> tuple[tuple[Fact, int], ...]:
    """Return the facts of a text with their forms, in order and with duplicates."""
    return tuple(found for statement in revise(text, sentences(text)) if (found := read_fact(statement)))


def mine(query: str, text: str) -> list[str]:
    """Return a question for each fact of a text, in various phrasings and case, often after the query itself."""
    facts = facts_of(text)
    mined = [_in_some_case(text, ask_for(fact.topic, fact.subject, form % 3)) for fact, form in facts]
    return list(dict.fromkeys([query, *mined] if facts and roll(query, text) % 2 else mined))


def _in_some_case(text: str, question: str) -> str:
    return {0: question.upper(), 1: question.casefold()}.get(roll(text, question) % 6, question)


def refine(query: str, questions: Sequence[str]) -> list[Rated]:
    """Return one question per topic and subject, sometimes also the last phrasing, with the odds of its relevance.

    The query is removed, because it is too vague. Sometimes the first question is repeated at the end with another
    rating.
    """
    asked, length = read_query(query), len(questions)
    merged = dict.fromkeys(_merge(*found, length) for question in questions if (found := read_question(question)))
    rated = [(question, _rate(asked, question, length)) for question in merged]
    return [*rated, (rated[0][0].upper(), FOREIGN)] if rated and roll(query, str(length)) % 4 == 0 else rated


def _merge(topic: str, subject: str, phrasing: int, length: int) -> str:
    is_apart = phrasing == 2 and roll(topic, subject, str(length)) % 3 == 0
    return ask_for(topic, subject, 2 if is_apart else 0)


def _rate(asked: tuple[Sequence[str], str] | None, question: str, length: int) -> Odds:
    found = read_question(question)
    if asked is None or found is None or found[1] != asked[1]:
        return FOREIGN
    return NEEDED if found[0] in asked[0] else RELATED[roll(question, str(length)) % len(RELATED)]


def answer(text: str, questions: Sequence[str]) -> list[list[Rated]]:
    """Return the answers of the text to each question with the odds of the confidence, empty if unknown."""
    return [_answer(text, question) for question in questions]


def first_of_equals(rated: Sequence[Rated]) -> list[Rated]:
    """Return the first of questions or answers that are equal by `normalise`, as the parsers do."""
    first: dict[str, Rated] = {}
    for text, odds in rated:
        first.setdefault(normalise(text), (text, odds))
    return list(first.values())


def _answer(text: str, question: str) -> list[Rated]:
    asked = read_question(question)
    facts = [found for found in facts_of(text) if asked and (found[0].topic, found[0].subject) == asked[:2]]
    said = [_vary(_phrase(*found), str(place), text, question) for place, found in enumerate(facts)]
    return [(each, CONFIDENCES[roll(text, question, each) % len(CONFIDENCES)]) for each in said]


def _phrase(fact: Fact, form: int) -> str:
    phrases = PHRASES[fact.level]
    return phrases[form % len(phrases)].format(v=fact.written)


def _vary(said: str, *of: str) -> str:
    """Return another form of the same node."""
    forms = [said] * 4 + [f"{said}.", f'"{said}"', said.capitalize()]
    return forms[roll(said, *of) % len(forms)]


def relate_answers(question: str, first: str, second: str, judge: str) -> str:
    """Return the relation of two answers, one of `RELATIONS`, by a judge of `tests.fakes.facts` without a tool.

    Lengths with the same number of metres are equivalent, including loose lengths. A duration is neutral to them.
    `steps` finds only implications of one step, and among three phrasings of a value only adjacent ones are equivalent.
    Raises KeyError for an unknown judge.
    """
    return COMPARERS[judge](question, first, second)


def _relate_closed(question: str, first: str, second: str) -> str:
    one, other = read_answer(question, first), read_answer(question, second)
    if one is None or other is None:
        return "neutral"
    if one[0].topic == "length":
        return _relate_lengths(one[0].value, other[0].value)
    if one[0] == other[0]:
        return "equivalent"
    if entails(one[0], other[0]):
        return "first_implies_second"
    if entails(other[0], one[0]):
        return "second_implies_first"
    return "neutral" if one[0].topic == "taste" else "contradictory"


def _relate_lengths(first: str, second: str) -> str:
    metres = {**LENGTHS, **LOOSE_LENGTHS}
    if first == second:
        return "equivalent"
    if DURATION in (first, second):
        return "neutral"
    return "equivalent" if metres[first] == metres[second] else "contradictory"


def _relate_by_steps(question: str, first: str, second: str) -> str:
    truth = _relate_closed(question, first, second)
    one, other = read_answer(question, first), read_answer(question, second)
    if one is None or other is None or one[0].topic == "length":
        return truth
    if truth == "equivalent":
        return truth if abs(one[1] - other[1]) <= 1 else "neutral"
    is_far = "implies" in truth and generalise(one[0]) != other[0] and generalise(other[0]) != one[0]
    return "neutral" if is_far else truth


def _relate_noisily(question: str, first: str, second: str) -> str:
    one, other = normalise(first), normalise(second)
    number = roll(normalise(question), min(one, other), max(one, other))
    if number % 1000 >= NOISE * 1000:
        return _relate_closed(question, first, second)
    relation = RELATIONS[number % len(RELATIONS)]
    return relation if one < other else SWAPPED.get(relation, relation)


COMPARERS: Mapping[str, Callable[[str, str, str], str]] = {
    "closed": _relate_closed,
    "steps": _relate_by_steps,
    "noisy": _relate_noisily,
}


def quantities_of(question: str, first: str, second: str) -> dict[str, str] | None:
    """Return the arguments for `compare_quantities` if both answers have a length or a duration, or None."""
    found = [read_answer(question, text) for text in (first, second)]
    if any(each is None or each[0].topic != "length" for each in found):
        return None
    return {name: each[0].written for name, each in zip(("first", "second"), found, strict=True) if each}


def compare_lengths(first: str, second: str) -> str:
    """Return the result of `compare_quantities` for two lengths. Loose lengths and durations are not comparable."""
    if first == second == DURATION:
        return "equal"
    if first not in LENGTHS or second not in LENGTHS:
        return "incomparable"
    difference = LENGTHS[first] - LENGTHS[second]
    return "equal" if not difference else "first_larger" if difference > 0 else "second_larger"


def restate(question: str, answer: str) -> str:
    """Return the answer as a sentence, or question and answer if it cannot be parsed."""
    found = read_answer(question, answer)
    return found[0].sentence() if found else f"{question} {answer}"


def generate(query: str, contexts: Sequence[str]) -> str:
    """Return the distinct sentences of the contexts that answer the query, one per line."""
    stated = [statement for text in contexts for statement in revise(text, sentences(text))]
    needed = [one for one, odds in zip(stated, rate(query, stated), strict=True) if odds == NEEDED]
    return "\n".join({normalise(one): one for one in needed}.values()) or NO_INFORMATION


def say_qa(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Odds]] | None:
    """Return the completion of a Q&A or generation stage and the odds at its positions, or None for another stage.

    `outcome` in the payload is the result of the tool, which decides the relation of two lengths.
    """
    saying = _STAGES.get(payload.get("stage", ""))
    return saying(payload, judge) if saying else None


def _say_mined(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Odds]]:
    mined = mine(payload["query"], payload["text"])
    return "\n".join(f"* {question}" for question in mined) or "None", {}


def _say_refined(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Odds]]:
    text, places = "", {}
    for question, odds in refine(payload["query"], payload["questions"]):
        text += f"* {question} [Relevance: "
        places[len(text)] = odds
        text += f"{next(iter(odds))}]\n"
    return text or "None", places


def _say_answers(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Odds]]:
    text, places = "", {}
    for question, rated in zip(payload["questions"], answer(payload["text"], payload["questions"]), strict=True):
        text += f"* {question}\n"
        for place, (said, odds) in enumerate(rated):
            text += f"{' | ' if place else ''}A: {said} [Confidence: "
            places[len(text)] = odds
            text += f"{next(iter(odds))}]"
        text += "\n" if rated else f"A: {_UNKNOWN[roll(question) % len(_UNKNOWN)]}\n"
    return text, places


def _say_comparison(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Odds]]:
    question, first, second = payload["question"], payload["first"], payload["second"]
    outcome = payload.get("outcome") if quantities_of(question, first, second) else None
    relation = RELATION_OF_OUTCOME.get(outcome or "") or relate_answers(question, first, second, judge)
    if roll(question, first, second) % 3 == 0:
        first, second, relation = second, first, SWAPPED.get(relation, relation)
    reasoning = "At first sight this is [neutral] - but the answers are compared one by one."
    return f"{reasoning}\n\n{first} - {second} [{relation.replace('_', ' ')}]", {}


def comparison_lines(payload: Mapping[str, Any], judge: str) -> list[str]:
    """Return the relation of the answer to each other answer, `1: neutral`."""
    question, answered = payload["question"], payload["answer"]
    found = [relate_answers(question, answered, other, judge) for other in payload["others"]]
    return [f"{number}: {relation.replace('_', ' ')}" for number, relation in enumerate(found, start=1)]


def careless_comparisons(payload: Mapping[str, Any], judge: str) -> list[str]:
    """Return the same lines with the faults of `tests.fakes.facts.careless_lines`."""
    labels = [relation.replace("_", " ") for relation in RELATIONS]
    lines = comparison_lines(payload, judge)
    return made_careless(lines, labels, payload["question"], payload["answer"], *payload["others"])


def _say_compared(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Odds]]:
    return "\n".join(comparison_lines(payload, judge)), {}


def _say_restated(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Odds]]:
    return restate(payload["question"], payload["answer"]), {}


def _say_generated(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Odds]]:
    return generate(payload["query"], payload["contexts"]), {}


_STAGES: Mapping[str, Callable[[Mapping[str, Any], str], tuple[str, dict[int, Odds]]]] = {
    "mine_questions": _say_mined,
    "refine_questions": _say_refined,
    "answer_questions": _say_answers,
    "compare_answers": _say_comparison,
    "compare_many": _say_compared,
    "generate_answer": _say_generated,
    "restate_answer": _say_restated,
}
