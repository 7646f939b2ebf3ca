"""Test the parsers of claims, aspects and the evidence of aspects.

The folder `tests/udfs/completions` has more tests.
"""

from __future__ import annotations

from importlib.resources import files

import pyarrow as pa
import pytest

from tests.udfs.stages.icat_read import ICAT, aspects, claims, evidence
from untold.udfs.llm.templates import compile_prompt, split_turns
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import StageDefinition, Unparsable
from untold.udfs.stages.importance import ALIGN_CLAIMS, EXTRACT_CLAIMS, GENERATE_ASPECTS

NUMBERS = pa.list_(pa.list_(pa.int32()))


def test_the_stages_are_registered_with_their_variables() -> None:
    assert {stage.name: stage.variables for stage in ICAT} == {
        "extract_claims": ("text",),
        "generate_aspects": ("query",),
        "align_claims": ("query", "aspects", "claims"),
    }
    assert all(STAGES[stage.name] is stage and not stage.rated for stage in ICAT)


@pytest.mark.parametrize(
    ("stage", "completion", "row"),
    [
        (EXTRACT_CLAIMS, "A is b.\nC is d.", {"claims": ["A is b.", "C is d."]}),
        (GENERATE_ASPECTS, '{"topic": "age"}\n{"topic": "use"}', {"aspects": ["age", "use"]}),
        (ALIGN_CLAIMS, '{"topic_id": 2, "evidence": [1]}', {"evidence": [[], [1]]}),
    ],
)
def test_a_row_has_the_schema_of_its_stage(stage: StageDefinition, completion: str, row: object) -> None:
    found = stage.parse(completion, {"aspects": ["age", "use"], "claims": ["A is b."]})
    assert found == row
    assert pa.Table.from_pylist([found], schema=stage.output).to_pylist() == [row]


LONE_NONE = ["None", "none.", "- None", "* **None**.", "(none)", "```\nNone\n```", "<think>x</think>None", "NONE"]
LONE_NONE += ["None\n\nNote: the text is empty.", "None. There is nothing to say.", "[]", "```json\n[]\n```"]


@pytest.mark.parametrize("completion", LONE_NONE)
def test_a_single_none_is_an_empty_list(completion: str) -> None:
    assert (claims(completion), aspects(completion), evidence(completion)) == ([], [], [[], [], []])


@pytest.mark.parametrize("completion", ["", " \n", "---", "<think>None", "Topics:", "Sure!", "{}", '{"topic": ', "```"])
def test_nothing_is_unparsable_and_no_empty_list(completion: str) -> None:
    for read in (claims, aspects, evidence):
        with pytest.raises(Unparsable):
            read(completion)


@pytest.mark.parametrize("colon", [":", "：", ":**", ": "])
@pytest.mark.parametrize("bullet", ["", "- ", "1. "])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_a_first_line_that_ends_with_a_colon_is_not_an_item(colon: str, bullet: str, end: str) -> None:
    bold = "**" if "*" in colon else ""
    lines = [f"{bullet}{bold}The text says{colon}", f"{bullet}A is b", f"{bullet}C is d"]
    assert claims(end.join(lines)) == ["A is b", "C is d"]
    assert aspects(end.join(lines)) == ["A is b", "C is d"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("At 10:30 it began.", "At 10:30 it began."),
        ("1912 was dry.", "1912 was dry."),
        ('Ada Fenn said: "It is high."', 'Ada Fenn said: "It is high."'),
        ("The **tower** is 41 m high.", "The **tower** is 41 m high."),
        ("None of the towers is high.", "None of the towers is high."),
        ("No results of the trial were published.", "No results of the trial were published."),
        ("All claims of Dahl were rejected by the court.", "All claims of Dahl were rejected by the court."),
        ("f{x} is a set.", "f{x} is a set."),
    ],
)
def test_a_claim_is_its_line(line: str, text: str) -> None:
    for completion in (f"{line}\nB is c.\nC is d.", f"- {line}\n- B is c.\n- C is d."):
        assert claims(completion) == [text, "B is c.", "C is d."]


AMBIGUOUS = {
    "a line without bullet below": "- A is b.\nC is d.",
    "a line without bullet above": "A is b.\n- C is d.",
    "a line without bullet apart": "- A is b.\n- C is d.\n\nE is f.",
    "a line that goes on or not": "A is b and\nthe same as c.\nC is d.",
    "a remark amid": "A is b.\nI left out the rest.\nC is d.",
    "a heading in bold or a claim": "**A is b**\nC is d",
    "items below items": "- A is b.\n  - C is d.\n- E is f.",
    "None amid": "A is b.\nNone\nC is d.",
    "a list beside a list": "- A is b.\n```\n- C is d.\n```",
    "an object that cannot be read": "A is b.\n{'claim: 'C is d.'}",
    "a last paragraph as far off as all others": "A is b.\n\nC is d.\n\nI like it.",
}


def test_all_aspects_are_returned_for_any_requested_number() -> None:
    assert aspects("\n".join(f'{{"topic": "part {n}"}}' for n in range(40))) == [f"part {n}" for n in range(40)]


def test_lines_without_bullets_are_aspects_unless_they_may_be_thoughts() -> None:
    assert aspects("age of the tower\nheight of the tower") == ["age of the tower", "height of the tower"]
    for thought in ("The query asks for a tower", "The query asks for a tower.\nPeople want its height."):
        with pytest.raises(Unparsable):
            aspects(thought)


def test_a_repeated_topic_unites_its_evidence() -> None:
    assert evidence('{"topic_id": 1, "evidence": [2]}\n{"topic_id": 1, "evidence": [1, 2]}') == [[1, 2], [], []]


@pytest.mark.parametrize("number", ["4", '"9"', "12345678901234567890", '"topic 7"'])
def test_unknown_topics_are_dropped(number: str) -> None:
    completion = f'{{"topic_id": {number}, "evidence": [1]}}\n{{"topic_id": 2, "evidence": [2]}}'
    assert evidence(completion) == [[], [2], []]


@pytest.mark.parametrize("pair", ['"topic_id": 0, "evidence": [1]', '"topic_id": 1, "evidence": [0, 1]'])
def test_numbers_from_0_are_unparsable(pair: str) -> None:
    with pytest.raises(Unparsable):
        evidence(f'{{{pair}}}\n{{"topic_id": 2, "evidence": [2]}}')


@pytest.mark.parametrize("verdict", ['"status": "not covered"', '"match": "none"', '"covered": false'])
def test_evidence_next_to_the_word_none_is_unparsable(verdict: str) -> None:
    with pytest.raises(Unparsable):
        evidence(f'{{"topic_id": 1, {verdict}, "evidence": [2]}}')


@pytest.mark.parametrize("numbers", ["3, 1", '"claim 9", "claim 1"', "1, 12345678901234567890", "1.0"])
def test_unknown_claims_are_dropped(numbers: str) -> None:
    assert evidence(f'{{"topic_id": 2, "evidence": [{numbers}]}}') == [[], [1], []]


@pytest.mark.parametrize(
    "field",
    [
        '"evidence": []',
        '"evidence": [9]',
        '"evidence": null',
    ],
)
def test_a_topic_without_valid_evidence_is_not_covered(field: str) -> None:
    assert evidence(f'{{"topic_id": 2, {field}}}') == [[], [], []]


@pytest.mark.parametrize(
    "completion",
    [
        "Topic 1 is said to be covered by claim 2.",
        "1: 2",
        "Topic 1: [2]\nTopic 2: not sure",
        "Topic 1: claims 1, 2\n\nNone",
        "{'topic_id': 1, 'evidence': [2}",
        "{'topic_id: 1, 'evidence': [2]}\nNone",
        '{"topic_id": 1, "evidence": [2]',
        '{"topic_id": 1, "evidence": [2]} so {topic_id: 2}',
        '{"topic_id": 1, "evidence": ["It is wide."]}',
        '{"topic_id": "width", "evidence": [1]}',
        '{"topic_id": 1, "topic": "height", "evidence": [1]}',
        '{"topic_id": 1, "found_in": [2]}',
        '{"evidence": [2]}',
        "[1, 2]",
    ],
)
def test_an_alignment_that_cannot_be_read_is_unparsable(completion: str) -> None:
    with pytest.raises(Unparsable):
        evidence(completion)


def test_texts_can_replace_their_numbers() -> None:
    assert evidence('{"topic": "Height", "evidence": ["It is high."]}') == [[], [2], []]
    assert evidence('{"topic_id": 1, "evidence": [1]}', among=["1984", "1"], of=["x"]) == [[1], []]
    assert evidence('{"topic_id": "1984", "evidence": [1]}', among=["age", "1984"], of=["x"]) == [[], [1]]


EXAMPLES = {"extract_claims": claims, "generate_aspects": aspects, "align_claims": evidence}


@pytest.mark.parametrize("stage", EXAMPLES)
def test_the_examples_of_the_shipped_prompts_are_in_the_form(stage: str) -> None:
    """Each example can be parsed, and the last example of each stage is an empty list."""
    source = files("untold.conf").joinpath("prompts", f"{stage}.jinja").read_text(encoding="utf-8")
    shown = [text.strip() for role, text, _ in split_turns(source) if role == "assistant"]
    compile_prompt(source)
    many = [f"text {number}" for number in range(9)]
    read = [evidence(text, many, many) if stage == "align_claims" else EXAMPLES[stage](text) for text in shown]
    assert len(read) >= 3
    assert [any(each) for each in read] == [text != "None" for text in shown]
    assert shown[-1] == "None"


@pytest.mark.parametrize(
    ("completion", "said"),
    [
        ("- ~~A is b.~~\n- C is d.", ["C is d."]),
        ("- ~~A is c.~~ A is b.\n- C is d.", ["A is b.", "C is d."]),
        (r"- \nabla is b." + "\n" + r"- C:\new is d.", [r"\nabla is b.", r"C:\new is d."]),
    ],
)
def test_deleted_text_is_not_a_claim_and_a_line_break_can_be_escaped(completion: str, said: list[str]) -> None:
    assert claims(completion) == said
