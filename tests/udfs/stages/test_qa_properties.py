from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.udfs.stages.qa_read import QA, answered, mined, refined, relation, values
from tests.udfs.stages.test_nli_properties import plain
from untold.udfs.facts.nodes import normalise
from untold.udfs.stages import STAGES, Unparsable
from untold.udfs.stages.lists import matching_key
from untold.udfs.stages.non_answers import NONE_WORDS
from untold.udfs.stages.qa import ANSWER_QUESTIONS, COMPARE_ANSWERS, MINE_QUESTIONS, REFINE_QUESTIONS, RELATIONS

SWAPPED = {"first_implies_second": "second_implies_first", "second_implies_first": "first_implies_second"}

characters = st.one_of(
    st.sampled_from("[](){}*-•`_#:.,|\"' 195aéA中"),
    st.characters(exclude_characters="\n", exclude_categories=["Cs", "Cc", "Zl", "Zp"]),
)
texts = st.text(characters, min_size=1, max_size=40).map(lambda text: " ".join(text.split())).filter(bool)


def one_question(text: str) -> bool:
    """Return True if a question does not start like the label `Q:` and has no bullet after another question."""
    return not text.lower().startswith("q") and "? * " not in text and "? • " not in text


questions = texts.filter(plain).map(lambda text: f"{text}?").filter(one_question)
bullets = st.sampled_from(["- ", "* ", "• ", "  - ", "1. ", "(2) ", "Q3: "])
ends = st.sampled_from(["", ".", "  ", "\r"])
marks = st.integers(1, 5)


def kept_whole(text: str) -> bool:
    """Return True if an answer has no decoration and no separator of the format."""
    return (
        "unknown" not in text.lower()
        and "".join(filter(str.isalnum, text)).lower() not in ("none", "na")
        and "**" not in text
        and "| a" not in text.lower()
        and text[0].isalnum()
        and (text[-1].isalnum() or text[-1] in "])}.%")
        and "|a" not in text.lower()
    )


answers = texts.filter(kept_whole).filter(lambda text: text.strip().casefold() not in NONE_WORDS)


@given(st.lists(questions, min_size=1, max_size=6), bullets, st.booleans())
def test_questions_in_the_form_are_read_back(written: list[str], bullet: str, fenced: bool) -> None:
    completion = "\n".join(bullet + text for text in written)
    assert mined(f"Questions:\n```\n{completion}\n```\nDone." if fenced else completion) == written


@given(st.lists(st.tuples(questions, marks), min_size=1, max_size=6), bullets, ends)
def test_refined_questions_in_the_form_are_read_back(written: list[tuple[str, int]], bullet: str, end: str) -> None:
    first: dict[str, tuple[str, int]] = {}
    for text, mark in written:
        first.setdefault(normalise(text), (text, mark))
    lines = [f"{bullet}{text} [Relevance: {mark}]{end}" for text, mark in written]
    assert refined("\n".join(lines)) == list(first.values())


@given(
    st.lists(
        st.tuples(
            questions, st.lists(st.tuples(answers, marks), max_size=4, unique_by=lambda each: normalise(each[0]))
        ),
        min_size=1,
        max_size=5,
        unique_by=lambda each: matching_key(each[0]),
    ),
    st.sampled_from(["* ", "- ", "1. ", "**", "Q1: "]),
    st.sampled_from([" | A: ", "\nA: ", "\n  - A: ", " |\nAnswer: ", " | **A:** "]),
    st.sampled_from(["", "Here are the answers:\n\n", "<think>A: unknown</think>\n"]),
    st.randoms(use_true_random=False),
)
def test_answers_in_the_form_are_read_back(
    written: list[tuple[str, list[tuple[str, int]]]], bullet: str, separator: str, preamble: str, random: Any
) -> None:
    blocks = []
    for question, said in written:
        line = separator.join(f"{text} [Confidence: {mark}]" for text, mark in said) or "Unknown."
        blocks.append(f"{bullet}{question}{'**' * (bullet == '**')}\nA: {line}")
    random.shuffle(blocks)
    read = answered(preamble + "\n".join(blocks), [question for question, _ in written])
    assert read == [said for _, said in written]


sides = st.one_of(
    answers, st.sampled_from(["5", "-5", "5 - 6", "5 - 6 - 7", "a [neutral]", "a", "a - a", "[equivalent]", "C", "C++"])
)


# An answer in the words of a relation
@example("second implies first", "0", "second_implies_first", "{} - {} [{}]")
@given(
    sides, sides, st.sampled_from(RELATIONS), st.sampled_from(["{} - {} [{}]", "* {} - {} [{}].", "**{} – {}** [{}]"])
)
def test_a_swapped_pair_has_the_swapped_relation(first: str, second: str, said: str, form: str) -> None:
    assume(matching_key(first) != matching_key(second) and first + second)
    there = f"{first} - {second}", f"{second} - {first}"
    assume(normalise(there[0]) != normalise(there[1]))
    completion = "Because.\n" + form.format(first, second, said.replace("_", " "))
    assert relation(completion, first, second) == said
    assert relation(completion, second, first) == SWAPPED.get(said, said)


pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["\n", "\n  ", "- ", "* ", "1. ", "?", "A: ", " | A: ", " | ", "[Relevance: 4]", "[Confidence: 4]"]
    ),
    st.sampled_from(
        ["None", "```", "---", "**", "<think>", "</think>", "unknown", "Confidence: ", "5", "[", "]", "(", ")"]
    ),
    st.sampled_from(["A?", "B?", "Q1: ", "Note:", " - ", "[neutral]", "equivalent", "first implies second", "\r\n"]),
)


@given(st.lists(pieces, max_size=25).map("".join))
def test_any_text_is_read_or_unparsable(text: str) -> None:
    variables: dict[str, Any] = {"text": text, "questions": ["A?", "B?"], "first": "A", "second": text[:9]}
    for stage in QA:
        try:
            row = stage.parse(text, variables)
        except Unparsable:
            continue
        assert set(row) == set(stage.output.names)
        assert all(question.strip() for question in row.get("questions", []))
        assert all(1 <= value <= 5 for value in values(text, row.get("ratings", [])))
        assert len(row.get("ratings", [])) in (0, len(row.get("questions", [])))
        assert row.get("relation", "neutral") in RELATIONS
        assert len(row.get("answers", "AB")) == len(row.get("confidences", "AB")) == 2
        for said, digits in zip(row.get("answers", []), row.get("confidences", []), strict=True):
            assert all(answer.strip() for answer in said)
            assert len(said) == len(values(text, digits))


HOSTILE = {
    MINE_QUESTIONS.name: [
        "* a?\n",
        "* a:\n  * b\n",
        "* a?\n  b\n",
        "* \n",
        "None\n",
        "Q1: ",
        "<think>",
        "</think>",
        "**",
    ],
    REFINE_QUESTIONS.name: [
        *(
            "* a? [Relevance: 4]\n",
            "* a?\n",
            "a?\n",
            "Relevance",
            "Relevance: ",
            "[Relevance: 4]",
            "[Relevance: ",
            "[(",
        ),
        *("* a\n b\n", "? (", " - ", "relevance 4 "),
    ],
    ANSWER_QUESTIONS.name: [
        *(
            "* A?\nA: b [Confidence: 4]\n",
            "A: ",
            "A: b [Confidence: 4] | ",
            "|",
            "| A:",
            "\nA:",
            "? ",
            "A?\n",
            "* A?\n",
        ),
        *(
            "Confidence: ",
            "[Confidence: 4]",
            "[Confidence: ",
            "unknown ",
            "unknown | ",
            "1. A: unknown\n",
            "(",
            "**",
            " ",
        ),
        *("unknown (", "Answer", "* ", "A? A: b "),
    ],
    COMPARE_ANSWERS.name: [
        *(
            "[neutral]",
            "[neutral] ",
            "[",
            " - ",
            "A - ",
            "neutral ",
            "\n",
            "a [neutral]\n",
            "(neutral)",
            "[first implies ",
        ),
        *("- ", "_", " ", "first "),
    ],
}
LENGTH = 40_000


@pytest.mark.parametrize(("stage", "piece"), [(stage, piece) for stage, all_of in HOSTILE.items() for piece in all_of])
def test_long_hostile_text_is_read_or_unparsable(stage: str, piece: str) -> None:
    text = piece * (LENGTH // len(piece))
    variables = {"questions": ["A?", text], "first": "A", "second": text}
    for hostile in (text, f"* A? {text}\nA: {text} [Relevance: {text}: [neutral]"):
        try:
            row = STAGES[stage].parse(hostile, variables)
        except Unparsable:
            continue
        assert set(row) == set(STAGES[stage].output.names)
