from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.linear import assert_linear
from tests.udfs.stages.longrecall_read import LONGRECALL, chosen, mapped, matched, resolved
from untold.udfs.stages.definitions import StageDefinition, Unparsable
from untold.udfs.stages.longrecall import MATCH_HOLISTIC, MATCH_MANY, MATCH_ONE, RESOLVE_COREFERENCE

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
bullets = st.sampled_from(["- ", "* ", "• ", "  - ", "1. ", "(2) "])
ends = st.sampled_from(["\n", "\r\n", "\n\n", " \n"])
thoughts = st.sampled_from(["", "<think>No match. [9]</think>\n", "<|channel|>final<|message|>", "Hm.\n</think>\n"])
numbers = st.integers(1, 9)


@given(st.lists(texts, min_size=1, max_size=6), bullets, ends, thoughts, st.data())
def test_facts_in_the_form_are_read_back(
    written: list[str], bullet: str, end: str, thought: str, data: st.DataObject
) -> None:
    """No fact is repeated. A list with another number of facts is not valid."""
    facts = [f"fact {letter}" for letter in "abcdef"]
    completion = thought + end.join(bullet + text for text in written)
    assert resolved(completion, facts[: len(written)]) == written
    with pytest.raises(Unparsable):
        resolved(completion, facts[: data.draw(st.integers(1, 6).filter(lambda number: number != len(written)))])


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)), bullets)
def test_a_repeated_fact_never_takes_the_place_of_another(order: list[int], changed: set[int], bullet: str) -> None:
    """Each line repeats the fact at its position, repeats another fact, or is new. Other lists are not valid."""
    facts = [f"The {letter} is old." for letter in "abcdef"]
    lines = [f"The new {place}." if place in changed else facts[order[place]] for place in range(6)]
    moved = {place for place in range(6) if place not in changed and order[place] != place}
    completion = "\n".join(bullet + line for line in lines)
    if any(lines[order[place]] != lines[place] for place in moved):
        with pytest.raises(Unparsable):
            resolved(completion, facts)
    else:
        assert resolved(completion, facts) == lines


@given(
    st.booleans(),
    thoughts,
    st.sampled_from(["", "The heights agree. ", "Both are about the tower.\n\n", "Reference: A\nCandidate: B\n"]),
    st.sampled_from(["{}", "**{}**", "Answer: {}", "`{}`", "{}.", "### {}", "[{}]", "Final answer:\n\n{}", '"{}"']),
    st.sampled_from(["", "\n", "\n\nThe candidate says so in other words.", "\n\nReference: C\nCandidate: D\nMatch"]),
    st.sampled_from([str.upper, str.lower, str.title]),
)
def test_a_label_in_any_manner_is_read(
    truth: bool, thought: str, before: str, form: str, behind: str, case: Any
) -> None:
    label = form.format(case("Match" if truth else "No Match"))
    completion = thought + before + ("\n" if before.endswith(" ") else "") + label + behind
    assert matched(completion) is truth


@given(
    st.lists(numbers, max_size=6),
    st.integers(1, 7),
    thoughts,
    st.sampled_from(
        ["", "All of them: [1, 2, 3]\n", "Candidate [1] says the year.\n\n", "Rejected: [2]\n", "Sure!\n\n"]
    ),
    st.sampled_from(
        ["{}", "**{}**", "Answer: {}", "```json\n{}\n```", "- {}", "The answer is {}.", '{{"candidates": {}}}']
    ),
    st.sampled_from(["", "\n", "\n\nNote: [1] says the height.", "\n\nNot needed: [2]"]),
)
def test_a_subset_in_any_manner_is_read(
    written: list[int], of: int, thought: str, before: str, form: str, behind: str
) -> None:
    """The oracle drops unknown numbers. If there are no numbers left, the completion is not valid."""
    candidates = [f"candidate {letter}" for letter in "abcdefg"[:of]]
    expected = sorted({number for number in written if 1 <= number <= of})
    completion = thought + before + form.format(json.dumps(written)) + behind
    if written and not expected:
        with pytest.raises(Unparsable):
            chosen(completion, candidates)
    elif written and not behind.strip():
        assert chosen(completion, candidates) == expected
    else:
        # The parser can refuse an empty list, or a list before a note
        with suppress(Unparsable):
            assert chosen(completion, candidates) == expected


@given(st.lists(st.tuples(numbers, st.lists(numbers, max_size=5)), min_size=1, max_size=8), bullets, ends, st.data())
def test_a_map_in_the_form_is_read_back(
    written: list[tuple[int, list[int]]], bullet: str, end: str, data: st.DataObject
) -> None:
    """The oracle drops unknown numbers, and joins the candidates of one reference.

    A completion with only unknown references is not valid.
    """
    many, of = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7))
    expected = [
        sorted({one for number, numbers in written for one in numbers if number == reference and 1 <= one <= of})
        for reference in range(1, many + 1)
    ]
    lines = [bullet + json.dumps({"reference": number, "candidates": numbers}) for number, numbers in written]
    facts = [f"fact {letter}" for letter in "abcdefg"]
    if all(number > many for number, _ in written):
        with pytest.raises(Unparsable, match="only unknown numbers"):
            mapped(end.join(lines), facts[:many], facts[:of])
    else:
        assert mapped(end.join(lines), facts[:many], facts[:of]) == expected


pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["\n", "\n\n", "\n  ", "- ", "* ", "1. ", ": ", "A is b.", "Fact 1: ", "None", "```", "---", "**"]),
    st.sampled_from(
        ['{"match": ', '{"reference": ', ', "candidates": [', "]}", "1", "2, 3", "[", "]", "{", "}", '"', "[1, 2]"]
    ),
    st.sampled_from(
        ["<think>", "</think>", "<fact>", "</fact>", "Match", "No Match", "Answer: ", "not ", "They ", "I ", "but "]
    ),
)


@given(st.lists(pieces, max_size=25).map("".join))
def test_any_text_is_read_or_unparsable(text: str) -> None:
    facts = ["A is b.", text[:9]]
    variables: dict[str, Any] = {
        **dict.fromkeys(("facts", "references", "candidates"), facts),
        **dict.fromkeys(("query", "candidate"), "A is b."),
        "reference": text[:9],
        "text": text,
    }
    for stage in LONGRECALL:
        try:
            row = stage.parse(text, variables)
        except Unparsable:
            continue
        assert set(row) == set(stage.output.names)
        assert all(each.strip() for each in row.get("facts", []))
        assert len(row.get("facts", facts)) == 2
        assert row.get("matched", True) in (True, False)
        lists = row.get("candidates", []) if stage is MATCH_HOLISTIC else [row.get("candidates", [])]
        assert all(found == sorted({*found} & {1, 2}) for found in lists)


HOSTILE = {
    RESOLVE_COREFERENCE: [
        *(
            "- ",
            "- a\n",
            "a\n",
            "A is b.\n",
            "* a → b\n",
            "None\n",
            "```\n",
            "**",
            "Fact 1: a\n",
            "It is old.\n",
            "[",
            '["',
        ),
        *(
            '{"fact": "a"}\n',
            '{"1": "a"}\n',
            "<fact>",
            "| a ",
            "<think>",
            "- a\n  - b\n",
            "~~a~~ ",
            " (unchanged)",
            "(1) ",
        ),
    ],
    MATCH_ONE: [
        *(
            "match ",
            "no match ",
            "Match\n",
            "not ",
            "not a ",
            "so ",
            "so they ",
            "therefore ",
            "is ",
            "answer ",
            "answer is ",
        ),
        *(
            "the candidate ",
            "it is a ",
            "n't ",
            "no ",
            "Yes, ",
            "\\boxed{",
            "match: ",
            "match? ",
            "~~",
            "_",
            "*",
            "really ",
        ),
        *(
            '{"match": ',
            '{"match": 1}\n',
            "Reference: a\n",
            "match/no match ",
            "<think>",
            "partial ",
            "i think ",
            "mis",
            ":",
        ),
    ],
    MATCH_MANY: [
        *(
            "[",
            "[1",
            "[1] ",
            "[1]\n",
            "[1, 2]",
            "1, ",
            "1\n",
            "candidate ",
            "candidates 1 and ",
            "[]\n",
            "None\n",
            "answer is ",
        ),
        *(
            '{"candidates": [1]}\n',
            '{"candidates": ',
            '["A", ',
            "[[",
            "]",
            ": ",
            "is ",
            "- ",
            "\\boxed{",
            "[1] because ",
            "'",
        ),
        *(
            "[1] entails ",
            "so [1] ",
            "none of the ",
            "[ ",
            "[1]. ",
            "but ",
            "<candidate>",
            "- 1\n",
            "and ",
            "together ",
        ),
    ],
    MATCH_HOLISTIC: [
        *(
            '{"reference": 1, "candidates": [1]}\n',
            '{"reference": 1, "candidates": ["A"]}\n',
            '{"reference": 1, "cand',
            "1,",
        ),
        *(
            "{",
            "[]\n",
            "Reference 1: ",
            "ref 1 ",
            "None\n",
            "[ ",
            "candidate ",
            '{"1": [1]}\n',
            "reference ",
            "\n",
            "- {\n",
        ),
    ],
}
LENGTH = 32_000


@pytest.mark.parametrize(("stage", "piece"), [(stage, piece) for stage, all_of in HOSTILE.items() for piece in all_of])
def test_long_hostile_text_is_read_in_linear_time(stage: StageDefinition, piece: str) -> None:
    def read(length: int) -> None:
        text = piece * (length // len(piece))
        facts = ["A", text]
        variables: dict[str, Any] = {"text": text, "query": "q", "reference": "r", "candidate": "c"}
        variables |= {"facts": facts, "references": facts, "candidates": facts}
        quoted = json.dumps({"reference": text, "candidates": text, "match": text, "fact": text})
        for hostile in (text, f"* answer: {text} {{", f"{text}\n\n[1]", quoted):
            try:
                row = stage.parse(hostile, variables)
            except Unparsable:
                row = {}
            assert set(row) <= set(stage.output.names)

    assert_linear(read, LENGTH)
