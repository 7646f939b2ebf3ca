from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.e2e import GENERATE_ANSWER, RESTATE_ANSWER


def answer(completion: str) -> str:
    written: str = GENERATE_ANSWER.parse(completion, {"query": "?", "contexts": []})["answer"]
    return written


def restated(completion: str) -> str:
    statement: str = RESTATE_ANSWER.parse(completion, {"question": "?", "answer": "a"})["statement"]
    return statement


def test_the_stages_are_registered_with_their_variables() -> None:
    assert (GENERATE_ANSWER.variables, RESTATE_ANSWER.variables) == (("query", "contexts"), ("question", "answer"))
    assert all(STAGES[stage.name] is stage for stage in (GENERATE_ANSWER, RESTATE_ANSWER))


@pytest.mark.parametrize(
    ("completion", "written"),
    [
        ("It is 5 m high.", "It is 5 m high."),
        ("\n  It is:\n\n* high\n* old\n\n", "It is:\n\n* high\n* old"),
        ("<think>It is 9 m.</think>\n\nIt is 5 m high.", "It is 5 m high."),
        ("```text\nIt is 5 m high.\n```", "It is 5 m high."),
        ("It is this:\n```\n5 m\n```", "It is this:\n```\n5 m\n```"),
        ("None", "None"),
        (
            "<|channel|>analysis<|message|>9 m?<|end|><|channel|>final<|message|>It is 5 m high.<|return|>",
            "It is 5 m high.",
        ),
        ("It is 5 m high.<|im_end|>\n<|endoftext|>", "It is 5 m high."),
        ("There is no relevant information.", "There is no relevant information."),
    ],
)
def test_an_answer_is_the_text_without_thinking_and_fence(completion: str, written: str) -> None:
    assert answer(completion) == written


@pytest.mark.parametrize("completion", ["", " \n\t", "<think>It is 5 m.</think>", "<think>It is 5 m.", "```\n```"])
def test_an_empty_completion_is_neither_an_answer_nor_a_statement(completion: str) -> None:
    with pytest.raises(Unparsable):
        answer(completion)
    with pytest.raises(Unparsable):
        restated(completion)


STATEMENTS = {
    "contract": "The tower: 5 m high.",
    "label": "Statement: The tower: 5 m high.",
    "label in capitals": "STATEMENT: The tower: 5 m high.",
    "bold label": "**Statement:** The tower: 5 m high.",
    "label on a line": "**Restated statement**:\n\nThe tower: 5 m high.",
    "heading": "## Statement:\nThe tower: 5 m high.",
    "preamble": "Here is the statement:\n\nThe tower: 5 m high.",
    "preamble in line": "Sure! Here's the restated sentence: The tower: 5 m high.",
    "greeting": "Certainly!\n\nThe tower: 5 m high.",
    "preamble and label": "Here is a declarative version of the pair:\n**Statement:** The tower: 5 m high.",
    "bullet": "* The tower: 5 m high.",
    "bold": "**The tower: 5 m high.**",
    "quotes": '"The tower: 5 m high."',
    "typographic quotes": "“The tower: 5 m high.”",
    "fence": "```\nThe tower: 5 m high.\n```",
    "preamble and fence": "Here is the statement:\n```\nThe tower: 5 m high.\n```",
    "thinking": "<think>5 m?</think>\nThe tower: 5 m high.",
    "greeting in line": "Sure! The tower: 5 m high.",
    "greeting and label": "Sure! Statement: The tower: 5 m high.",
    "channels": "<|channel|>analysis<|message|>5 m?<|end|><|channel|>final<|message|>The tower: 5 m high.<|return|>",
    "rule": "---\nThe tower: 5 m high.\n---",
}


@pytest.mark.parametrize("completion", STATEMENTS.values(), ids=STATEMENTS.keys())
def test_a_statement_is_the_first_sentence_without_label(completion: str) -> None:
    assert restated(completion) == "The tower: 5 m high."


@pytest.mark.parametrize(
    "statement",
    [
        "1. FC Köln won 3 - 2.",
        "-5 °C is cold",
        "Here is where the king lived: Bonn.",
        "“A” is before “B”",
        '"A" is before "B"',
        "The statement: a lie, was made.",
        "It is 5 m. It is also old.",
        "The **tower** is *high*.",
        "The statement is true (or so it says).",
    ],
)
def test_what_belongs_to_a_statement_stays(statement: str) -> None:
    assert restated(statement) == statement


@pytest.mark.parametrize(
    "completion",
    [
        "Statement:",
        "Here is the statement:",
        "***",
        "The tower:\n5 m\n  high.",
        "The tower: 5 m high.\nNote: I kept the unit.",
        "The tower: 5 m high.\n\nI kept the unit.",
    ],
)
def test_a_label_is_not_a_statement(completion: str) -> None:
    with pytest.raises(Unparsable):
        restated(completion)


pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["\n", "Statement:", "Here is the ", "**", "```", "- ", "<think>", "</think>", '"', "a.", "Sure!"]),
)


@given(st.lists(pieces, max_size=20).map("".join))
def test_any_text_is_read_or_unparsable(text: str) -> None:
    for read in (answer, restated):
        try:
            assert read(text).strip()
        except Unparsable:
            continue
