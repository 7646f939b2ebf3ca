from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.linear import assert_linear
from tests.udfs.stages.icat_read import ICAT, aspects, claims, evidence
from untold.udfs.stages.definitions import StageDefinition, Unparsable
from untold.udfs.stages.importance import ALIGN_CLAIMS, EXTRACT_CLAIMS, GENERATE_ASPECTS

characters = st.one_of(
    st.sampled_from("[](){}*-•`_#:.,|\"' 195aéA中"),
    st.characters(exclude_characters="\n", exclude_categories=["Cs", "Cc"]),
)
# The words around a text are not part of a list. The text has single spaces, because lines are joined with a space
texts = (
    st.text(characters, max_size=40)
    .filter(lambda text: "\\n" not in text and "~~" not in text)  # a line break and deleted text in a list
    .map(lambda text: " ".join(["It says", *text.split(), "so"]))
)
bullets = st.sampled_from(["- ", "* ", "• ", "  - ", "1. ", "(2) ", ""])
ends = st.sampled_from(["\n", "\r\n", "\n\n", " \n"])


@given(st.lists(texts, min_size=1, max_size=6), bullets, ends)
def test_claims_in_the_form_are_read_back(written: list[str], bullet: str, end: str) -> None:
    # The text is in the first person, so that an `I` among the characters is not treated as a remark
    assert claims(end.join(bullet + text for text in written), text="I say so") == written


@given(
    st.lists(texts, min_size=1, max_size=12),
    bullets,
    ends,
    st.booleans(),
)
def test_aspects_in_the_form_are_read_back(written: list[str], bullet: str, end: str, ascii_only: bool) -> None:
    lines = [bullet + json.dumps({"topic": text}, ensure_ascii=ascii_only) for text in written]
    assert aspects(end.join(lines)) == written


numbers = st.integers(1, 9)


@given(st.lists(st.tuples(numbers, st.lists(numbers, max_size=5)), min_size=1, max_size=8), bullets, ends, st.data())
def test_an_alignment_in_the_form_is_read_back(
    written: list[tuple[int, list[int]]], bullet: str, end: str, data: st.DataObject
) -> None:
    """The oracle drops unknown ids and numbers, and joins the evidence of one topic.

    A completion with only unknown ids is not valid.
    """
    many, of = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7))
    expected = [
        sorted({claim for topic, numbers in written for claim in numbers if topic == aspect and 1 <= claim <= of})
        for aspect in range(1, many + 1)
    ]
    lines = [bullet + json.dumps({"topic_id": topic, "evidence": numbers}) for topic, numbers in written]
    texts = [f"aspect {letter}" for letter in "abcdefg"]
    if all(topic > many for topic, _ in written):
        with pytest.raises(Unparsable, match="only unknown numbers"):
            evidence(end.join(lines), texts[:many], texts[:of])
    else:
        assert evidence(end.join(lines), texts[:many], texts[:of]) == expected


pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["\n", "\n\n", "\n  ", "- ", "* ", "1. ", ": ", "A is b.", "Claim 1: ", "None", "```", "---", "**"]
    ),
    st.sampled_from(
        ['{"topic": "', '"}', '{"topic_id": ', ', "evidence": [', "]}", "1", "2, 3", "[", "]", "{", "}", '"']
    ),
    st.sampled_from(
        ["<think>", "</think>", "<claim>", "</claim>", "Topic 1: ", "Note: ", "Here are the claims:", "I "]
    ),
)


@given(st.lists(pieces, max_size=25).map("".join))
def test_any_text_is_read_or_unparsable(text: str) -> None:
    variables: dict[str, Any] = {
        "text": text,
        "query": "q",
        "aspects": ["A", text[:9]],
        "claims": ["A is b.", text[:9]],
    }
    for stage in ICAT:
        try:
            row = stage.parse(text, variables)
        except Unparsable:
            continue
        assert set(row) == set(stage.output.names)
        assert all(each.strip() for name in ("claims", "aspects") for each in row.get(name, []))
        assert len(row.get("evidence", "AB")) == 2
        assert all(found == sorted({*found} & {1, 2}) for found in row.get("evidence", []))


HOSTILE = {
    EXTRACT_CLAIMS: [
        *(
            "- ",
            "- \n",
            "a\n",
            "A is b.\n",
            "* a\n",
            "None\n",
            "```\n",
            "**",
            "Claim 1: ",
            "Claim 1: a\n",
            "sure ",
            "I \n",
        ),
        *(
            "here are ",
            "the text ",
            "no ",
            "there are no ",
            "no-",
            "[",
            '["',
            '{"claim": "a"}\n',
            '{"a":',
            "<claim>",
            "| a ",
        ),
        *("<think>", "</think>", "- a\n  - b\n", "- a\n b\n", ": \n", "#\n", "{\n", "A: ", "“", '"a",\n'),
    ],
    GENERATE_ASPECTS: [
        *(
            '{"topic": "a"}\n',
            '{"topic": "a"} ',
            '{"topic": ',
            "{",
            "- {",
            "1. {\n",
            "`{",
            "a: {",
            "a ",
            "Topic 1: ",
            "[]\n",
        ),
        *("Topic 1: {", "* ", "- a\n", '["a"]', "[{", "}\n", "👉 ", '{"1": "a"}'),
    ],
    ALIGN_CLAIMS: [
        *(
            '{"topic_id": 1, "evidence": [1]}\n',
            '{"topic_id": 1, "evidence": ["A"]}\n',
            '{"topic_id": 1, "evidence": [',
            "1,",
        ),
        *("{", "[]\n", "Topic 1: ", "topic 1 ", "None\n", "[ ", "claim ", '{"1": [1]}\n', "aspect ", "\n", "- {\n"),
    ],
}
LENGTH = 32_000


@pytest.mark.parametrize(("stage", "piece"), [(stage, piece) for stage, all_of in HOSTILE.items() for piece in all_of])
def test_long_hostile_text_is_read_in_linear_time(stage: StageDefinition, piece: str) -> None:
    def read(length: int) -> None:
        text = piece * (length // len(piece))
        variables: dict[str, Any] = {"text": text, "query": "q", "aspects": ["A", text], "claims": ["A", text]}
        quoted = json.dumps({"topic_id": text, "evidence": text, "topic": text, "claim": text})
        for hostile in (text, f"* answer: {text} {{", quoted):
            try:
                row = stage.parse(hostile, variables)
            except Unparsable:
                row = {}
            assert set(row) <= set(stage.output.names)

    assert_linear(read, LENGTH)
