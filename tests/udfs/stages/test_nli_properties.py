from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.linear import assert_linear
from tests.udfs.stages.nli_read import NLI, Units, ratings, revised, units
from untold.udfs.stages.definitions import StageDefinition, Unparsable
from untold.udfs.stages.nli import CLASSIFY_RELATION, EXTRACT_ATOMS, RATE_RELEVANCE, RELATIONS, REVISE_ATOMS, UNIT_TYPES
from untold.udfs.stages.non_answers import NONE_WORDS
from untold.udfs.stages.reading import letters, split_marker, without_emphasis


def plain(text: str) -> bool:
    """Return True if the text has no decoration that a parser must remove."""
    stripped = text.strip()
    words = letters(stripped)
    return (
        bool(words)
        and without_emphasis(stripped) == stripped
        and not split_marker(stripped).marked
        and not stripped.startswith("#")
        and stripped.casefold() not in NONE_WORDS
        and stripped[-1].isalpha()
        and "**" not in stripped
        and words.split()[-1] not in ("none", "type")
    )


texts = (
    st.text(
        st.one_of(
            st.sampled_from("[](){}*-•`_#:.,\"' 195aé中"),
            st.characters(exclude_characters="\n", exclude_categories=["Cs"]),
        ),
        min_size=1,
        max_size=40,
    )
    .map(lambda text: f"{text} osk")
    .filter(plain)
)  # the additional word makes sure that the text is not a known heading
bullets = st.sampled_from(["- ", "* ", "• ", "  - ", "1. ", "(2) "])
ends = st.sampled_from(["", ".", "  ", "\r"])


@given(st.lists(st.tuples(texts, st.sampled_from(UNIT_TYPES)), min_size=1, max_size=6), bullets, ends)
def test_units_in_the_form_are_read_back(written: Units, bullet: str, end: str) -> None:
    completion = "\n".join(f"{bullet}{text}: {unit_type}{end}" for text, unit_type in written)
    assert units(completion) == [(text.strip(), unit_type) for text, unit_type in written]


@given(st.lists(texts, min_size=1, max_size=6), bullets)
def test_statements_in_the_form_are_read_back(written: list[str], bullet: str) -> None:
    assert revised("\n".join(bullet + text for text in written)) == [text.strip() for text in written]


@given(st.data(), st.lists(texts, min_size=1, max_size=6), bullets, ends)
def test_ratings_in_the_form_are_read_back(data: st.DataObject, written: list[str], bullet: str, end: str) -> None:
    marks = [data.draw(st.integers(1, 5)) for _ in written]
    lines = [f"{bullet}{text} [Relevance: {mark}]{end}" for text, mark in zip(written, marks, strict=True)]
    assert ratings("\n".join(lines), written) == marks


pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["\n", "\n  ", "- ", "* ", "1. ", ": Fact", ": ", "[Relevance: 4]", "Relevance", "[", "]", "4/5"]),
    st.sampled_from(["None", "```", "---", "**", "<think>", "</think>", "entailment", "neutral", "not ", "Answer: "]),
    st.sampled_from(["Premise: ", "A", "B", "Note:", "(Claim)", "contradicts", " or ", "5", "rating"]),
)


@given(st.lists(pieces, max_size=25).map("".join))
def test_any_text_is_read_or_unparsable(text: str) -> None:
    variables: dict[str, Any] = {"text": text, "statements": ["A", "B"], "premise": "A", "hypothesis": text[:9]}
    for stage in NLI:
        try:
            row = stage.parse(text, variables)
        except Unparsable:
            continue
        assert set(row) == set(stage.output.names)
        for digit in row.get("ratings", []):
            assert text[digit.offset] == str(digit.value)
            assert digit.value in range(1, 6)
        assert len(row.get("ratings", "AB")) == 2
        assert all((atom["text"] if isinstance(atom, dict) else atom).strip() for atom in row.get("atoms", []))
        assert row.get("relation", "neutral") in RELATIONS


HOSTILE = {
    EXTRACT_ATOMS: [
        "- ",
        "- \n",
        "a\n",
        "a: Fact\n",
        "* a: Fact\n",
        ": ",
        "Fact",
        "- a\n b\n",
        "(Fact",
        "- Fact\n",
        "### Facts\n",
        '{"a": "b"}\n',
        "| Unit | Type |\n|---|---|\n",
        "<|a|>",
        "<|channel|>final<|message|>",
        "[Type: ",
        "**",
    ],
    REVISE_ATOMS: ["* a\n", "* a:\n  * b\n", "* a\n  b\n", "* \n", "None\n", "```\n", "<think>", "</think>"],
    RATE_RELEVANCE: [
        "Relevance",
        "Relevance: ",
        "[Relevance: 4]",
        "* A [Relevance: 4]\n",
        "4",
        "4 ",
        "A 4\n",
        "[",
        "ﷺ",
    ],
    CLASSIFY_RELATION: [
        *("entailment", "entailment ", "not entailment ", "neutral\n", "neutral or ", "answer ", "answer is "),
        *("relation between ", "Premise: \n", "_", " "),
    ],
}
LENGTH = 32_000


@pytest.mark.parametrize(("stage", "piece"), [(stage, piece) for stage, all_of in HOSTILE.items() for piece in all_of])
def test_long_hostile_text_is_read_in_linear_time(stage: StageDefinition, piece: str) -> None:
    def read(length: int) -> None:
        text = piece * (length // len(piece))
        variables: dict[str, Any] = {"statements": ["A", text], "premise": "A", "hypothesis": text}
        for hostile in (text, f"* answer: {text} [Relevance: {text}: Fact"):
            try:
                row = stage.parse(hostile, variables)
            except Unparsable:
                row = {}
            assert set(row) <= set(stage.output.names)

    assert_linear(read, LENGTH)
