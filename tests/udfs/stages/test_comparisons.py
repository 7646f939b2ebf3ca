"""Test the parser of the relation between two answers to the same question."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.udfs.stages.qa_read import relation
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.qa import (
    COMPARE_MANY,
    RELATIONS,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("contradiction", "contradictory"),
        ("Equivalence", "equivalent"),
        ("the second answer implies the first answer", "second_implies_first"),
        ("Second Entails First.", "second_implies_first"),
    ],
)
def test_a_classification_has_several_names(name: str, expected: str) -> None:
    assert relation(f"5 km - 5,000 m [{name}]") == expected


@pytest.mark.parametrize(
    ("line", "first", "second"),
    [
        ("Paris - France", "France", "Paris"),
        ("**Paris** – **France.**", "france", "paris"),
        ("“Paris” - 'France'", "France", "Paris"),
        ("6 - 5", "5", "6"),
        ("-5 - 5", "5", "-5"),
        ("- 6 - 5", "5", "6"),
        ("a - b - c - d", "c - d", "a - b"),
        ("a - b - a", "a", "a - b"),
        ("Paris, in France - Paris", "Paris", "Paris, in France"),
        ("C++ - C", "C", "C++"),
        ("pH [neutral] - acid", "acid", "pH [neutral]"),
        ("acid - pH [neutral]", "pH [neutral]", "acid"),
        ("pH (neutral) - acid", "acid", "pH (neutral)"),
        ("Second: Paris - First: France", "France", "Paris"),
        ("1. FC Köln - 1. FC Bonn", "1. FC Bonn", "1. FC Köln"),
        ("Paris\t-\tFrance", "France", "Paris"),
        ("(Paris) - (France)", "France", "Paris"),
        ('"Paris." - "France."', "France", "Paris"),
        ("Second answer (Paris) - First answer (France)", "France", "Paris"),
    ],
)
def test_the_order_on_the_line_determines_the_first_answer(line: str, first: str, second: str) -> None:
    assert relation(f"{line} [first implies second]", first, second) == "second_implies_first"
    assert relation(f"{line} [first implies second]", second, first) == "first_implies_second"
    assert relation(f"{line}\n[second implies first]", first, second) == "first_implies_second"
    assert relation(f"{line} [contradictory]", first, second) == "contradictory"


@pytest.mark.parametrize("line", ["Lyon - France", "Paris", "first - second", "a - a - a", "They differ:"])
def test_else_the_order_of_the_variables_does(line: str) -> None:
    for first, second in (("France", "Paris"), ("Paris", "France"), ("a", "a - a")):
        assert relation(f"{line} [first implies second]", first, second) == "first_implies_second"


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "equivalent or neutral",
        "5 km - 5,000 m",
        "5 km - 5,000 m [same]",
        "5 km - 5,000 m [not equivalent]",
        "5 km - 5,000 m [implies]",
        "5 km - 5,000 m [equivalent/neutral]",
        "5 km - 5,000 m [equivalent or neutral]",
        "5 km - 5,000 m [equivalent] [neutral]",
        "5 km - 5,000 m: equivalent",
        "It is [neutral] at best, I would say",
        "I first thought\n5 km - 5,000 m [equivalent]\nbut it is\n5 km - 5,000 m [unclear]",
        "5 km - 5,000 m [equivalent]\n5 km - 5,000 m [unclear]",
        "<think>5 km - 5,000 m [equivalent]",
    ],
)
def test_without_one_classification_on_the_last_line_a_comparison_is_unparsable(completion: str) -> None:
    with pytest.raises(Unparsable):
        relation(completion)


def test_a_bracket_of_an_answer_is_not_a_classification() -> None:
    with pytest.raises(Unparsable):
        relation("acid - pH [neutral]", "acid", "pH [neutral]")


LISTED = ("1932", "4 May 1932", "in [neutral] colours", "8 boats: all of them", "the first of them")
LINES = (
    *("{n}: {r}", "{n}. {r}", "({n}) {r}", "**{n}**: {r}", "- {n}: [{r}]", "Answer {n}: **{r}**", "{n}. {t}: {r}"),
    *("{n}: {r} - they differ", "{n}: {r} (as the tool says).", "{n}. {t} - the day is given [{r}]", "{n} | {r}"),
)


@given(
    said=st.lists(st.tuples(st.integers(1, 7), st.sampled_from([*RELATIONS, "unclear"])), min_size=1, max_size=9),
    line=st.sampled_from(LINES),
    underscores=st.booleans(),
)
def test_each_number_that_occurs_once_in_a_list_has_its_relation(
    said: list[tuple[int, str]], line: str, underscores: bool
) -> None:
    texts = dict(enumerate(LISTED, start=1))
    lines = [
        line.format(n=number, r=relation if underscores else relation.replace("_", " "), t=texts.get(number, "x"))
        for number, relation in said
    ]
    numbers = [number for number, _ in said]
    expected = [
        dict(said)[number] if numbers.count(number) == 1 and dict(said)[number] in RELATIONS else None
        for number in texts
    ]
    variables = {"question": "When?", "answer": "in 1932", "others": list(LISTED)}
    if any(expected):
        assert COMPARE_MANY.parse("\n".join(lines), variables) == {"relations": expected}
    else:
        with pytest.raises(Unparsable):
            COMPARE_MANY.parse("\n".join(lines), variables)


@pytest.mark.parametrize(
    "completion",
    [
        '[{"id": 1, "relation": "neutral"}, {"id": 2, "relation": "first implies second"}]',
        '{"relations": [{"id": 2, "relation": "first_implies_second"}, {"id": 1, "relation": "neutral"}]}',
        "| no | relation |\n|---|---|\n| 1 | neutral |\n| 2 | first implies second |",
        "<think>1: equivalent</think>\n1: neutral\n2: first implies second\n3: equivalent",
        "1: neutral\nThey may both be right.\n2: first implies second\nThe second follows.",
    ],
)
def test_forms_of_lists(completion: str) -> None:
    variables = {"question": "When?", "answer": "in 1932", "others": ["far away", "near"]}
    assert COMPARE_MANY.parse(completion, variables) == {"relations": ["neutral", "first_implies_second"]}
