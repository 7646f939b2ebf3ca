"""Test the parsers of resolved facts and of matches. The folder `tests/udfs/completions` has many more completions."""

from __future__ import annotations

import json
from importlib.resources import files
from itertools import pairwise

import pyarrow as pa
import pytest

from tests.udfs.stages.longrecall_read import FACTS, LONGRECALL, chosen, mapped, matched, resolved
from untold.udfs.llm.templates import compile_prompt, split_turns
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import StageDefinition, Unparsable
from untold.udfs.stages.longrecall import MATCH_HOLISTIC, MATCH_MANY, MATCH_ONE, RESOLVE_COREFERENCE


def test_the_stages_are_registered_with_their_variables() -> None:
    assert {stage.name: stage.variables for stage in LONGRECALL} == {
        "resolve_coreference": ("text", "facts"),
        "match_one": ("reference", "candidate"),
        "match_many": ("reference", "candidates"),
        "match_holistic": ("query", "references", "candidates"),
    }
    assert all(STAGES[stage.name] is stage and not stage.rated for stage in LONGRECALL)


@pytest.mark.parametrize(
    ("stage", "completion", "row"),
    [
        (RESOLVE_COREFERENCE, "* A is b.\n* C is d.", {"facts": ["A is b.", "C is d."]}),
        (MATCH_ONE, "No Match", {"matched": False}),
        (MATCH_MANY, "[2, 1]", {"candidates": [1, 2]}),
        (MATCH_HOLISTIC, '{"reference": 2, "candidates": [1]}', {"candidates": [[], [1]]}),
    ],
)
def test_a_row_has_the_schema_of_its_stage(stage: StageDefinition, completion: str, row: object) -> None:
    facts = ["It is b.", "It is d."]
    variables = {"text": "t", "facts": facts, "reference": "r", "candidate": "c", "query": "q"}
    found = stage.parse(completion, variables | {"references": facts, "candidates": facts})
    assert found == row
    assert pa.Table.from_pylist([found], schema=stage.output).to_pylist() == [row]


@pytest.mark.parametrize("completion", ["", " \n", "---", "<think>None", "Sure!", "{}", '{"match": ', "```", "Match?"])
def test_nothing_is_unparsable_and_no_answer(completion: str) -> None:
    for read in (resolved, matched, chosen, mapped):
        with pytest.raises(Unparsable):
            read(completion)


LONE_NONE = ["None", "none.", "- None", "**None**", "(none)", "```\nNone\n```", "<think>x</think>None", "[]", "[ ]"]


@pytest.mark.parametrize("completion", LONE_NONE)
def test_a_single_none_is_an_empty_list_if_no_match_is_valid(completion: str) -> None:
    assert chosen(completion) == []
    assert mapped(completion) == [[], []]
    for read in (resolved, matched):
        with pytest.raises(Unparsable):
            read(completion)


# The facts by their position


def test_each_fact_has_a_line() -> None:
    lines = ["The tower is high.", "The tower is old.", "Ada Fenn built the tower."]
    for bullet in ("* ", "- ", "1. ", ""):
        assert resolved("\n".join(bullet + line for line in lines)) == lines
        for other in (lines[:2], [*lines, "The tower is grey."]):
            with pytest.raises(Unparsable):
                resolved("\n".join(bullet + line for line in other))


MOVED = {
    "all as they are": (["It is high.", "It is old.", "Ada Fenn built it."], [0, 1, 2]),
    "two in the other order": (["It is old.", "It is high.", "Ada Fenn built the tower."], [1, 0, 2]),
    "a round of three": (["Ada Fenn built it.", "It is high.", "It is old."], [1, 2, 0]),
    "in other case and signs": (['"it is OLD"', "it is high", "Ada Fenn built the tower."], [1, 0, 2]),
    "one that becomes another one's text": (["It is old.", "It is old.", "Ada Fenn built the tower."], [0, 1, 2]),
}


@pytest.mark.parametrize(("lines", "order"), MOVED.values(), ids=MOVED.keys())
def test_lines_that_repeat_facts_are_theirs(lines: list[str], order: list[int]) -> None:
    completion = "\n".join(f"* {line}" for line in lines)
    if order == [0, 1, 2]:
        assert resolved(completion) == lines
    else:
        with pytest.raises(Unparsable):
            resolved(completion)


@pytest.mark.parametrize(
    "lines",
    [
        ["It is old.", "The tower is high.", "Ada Fenn built the tower."],
        ["The tower is high.", "Ada Fenn built it.", "The tower is old."],
        ["It is old.", "Ada Fenn built it.", "Ada Fenn built the tower."],
    ],
)
def test_a_line_that_repeats_a_fact_at_another_position_is_unparsable(lines: list[str]) -> None:
    with pytest.raises(Unparsable):
        resolved("\n".join(f"* {line}" for line in lines))


def test_equal_facts_have_lines_of_their_own() -> None:
    facts = ["It is old.", "It is high.", "It is old."]
    lines = ["The tower is old.", "The tower is high.", "The mill is old."]
    assert resolved("\n".join(f"- {line}" for line in lines), facts) == lines
    assert resolved("\n".join(f"- {line}" for line in facts), facts) == facts


@pytest.mark.parametrize(
    "talk", ["The facts are fine.", "No changes needed.", "The tower stands.", "I cannot do that."]
)
def test_small_talk_is_not_a_fact(talk: str) -> None:
    with pytest.raises(Unparsable):
        resolved(talk, ["It was closed in 1950."])
    assert resolved("The mill was closed in 1950.", ["It was closed in 1950."]) == ["The mill was closed in 1950."]


# One candidate

YES = [
    "Match",
    "match.",
    "a match",
    "**Match**",
    "It is a match.",
    "They match.",
    "The candidate matches the reference.",
]
NO = ["No Match", "no match.", "not a match", "**No Match**", "Mismatch", "It is no match.", "They don't match."]
NO += ["no_match", "No-match", "The candidate doesn’t match the reference.", "This is not a match."]


@pytest.mark.parametrize("label", [*YES, *NO])
@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "<think>Match? No match? Mismatch?</think>\n{}",
        "```\n{}\n```",
        "> {}",
        "✅ {}",
        "The heights agree.\n\n{}",
        "Therefore: {}",
        "Match or No Match? Final answer: {}",
        "Reference: It is high.\nCandidate: It is 41 m high.\nAnswer: {}",
    ],
)
def test_a_match_is_distinguished_from_no_match(form: str, label: str) -> None:
    assert matched(form.format(label)) is (label in YES)
    assert matched(form.format(label).upper()) is (label in YES)


@pytest.mark.parametrize("yes", ["true", '"yes"', '"Match"', '"TRUE"'])
@pytest.mark.parametrize("name", ["match", "is_match", "answer", "verdict"])
def test_a_field_states_the_match(name: str, yes: str) -> None:
    no = {
        "true": "false",
        '"yes"': '"no"',
    }.get(yes, '"No Match"')
    assert matched(f'{{"{name}": {yes}, "reason": "no mismatch"}}') is True
    assert matched(f'{{"reason": "no mismatch", "{name}": {no}}}') is False


UNDECIDED = [
    "Match or No Match",
    "Match / No Match",
    "Match\nNo Match",
    "Partial match",
    "Answer: partial match",
    "Yes.",
]
UNDECIDED += [
    "It may match.",
    "No exact match",
    "The years match.",
    "They match in the year.",
    "Match: partially",
    "No",
]
UNDECIDED += [
    "They match, but the place differs.",
    "It is a match if the year is right.",
    "They almost match.",
    "match?",
]
UNDECIDED += [
    "~~Match~~",
    "Matches were found.",
    "rematch",
    "No, match.",
    '{"match": 0.8}',
    '{"match": []}',
    "No. Match",
]


@pytest.mark.parametrize("completion", UNDECIDED)
def test_neither_or_both_labels_are_unparsable(completion: str) -> None:
    with pytest.raises(Unparsable):
        matched(completion)


@pytest.mark.parametrize(
    ("completion", "truth"),
    [
        ("At first the years differ, so no match. But both say 1950.\n\nMatch", None),
        ("The answer would be No Match if the year differed, but it does not.\n\nMatch", True),
        ("So it is a match.\n\nNo Match", None),
        ("Answer: Match\n\nSo they match.", True),
        ("No Match\n\nThe heights are given.\n\nMatch", None),
        ("Match: the year is the same. Therefore no match.", None),
    ],
)
def test_a_label_on_the_last_line_ends_all_reasoning(completion: str, truth: bool | None) -> None:
    if truth is None:
        with pytest.raises(Unparsable):
            matched(completion)
    else:
        assert matched(completion) is truth


def test_the_facts_can_contain_the_word_match() -> None:
    fact = "Harlow won the match."
    with pytest.raises(Unparsable):
        matched("It is a match that Harlow won.", fact, fact)
    assert matched("Harlow won the match in both.\n\nMatch", fact, fact)
    assert not matched("Answer: no match", fact, fact)


# Several candidates


@pytest.mark.parametrize("numbers", ["[1, 3]", "[3,1]", "[1, 1, 3]", "[1, 3, 4]"])
@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "**{}**",
        "Answer: {}",
        "The minimal subset is {}.",
        "```json\n{}\n```",
        "[2]? No.\n\n{}",
        "All candidates: [1, 2, 3]\nFinal answer: {}",
        "Rejected: [2]\n{}",
        "{}\n\nNot chosen: [2]",
        "{}\n\nCandidate [1] says the height and [3] who built it.",
        "{} because neither says both",
        '{{"reasoning": "2 is not needed", "candidates": {}}}',
    ],
)
def test_the_answers_list_is_found(form: str, numbers: str) -> None:
    assert chosen(form.format(numbers)) == [1, 3]


@pytest.mark.parametrize("numbers", ["[-2, 1, 3]", "[[1, 3]]"])
def test_a_list_in_another_form_is_refused(numbers: str) -> None:
    for completion in (numbers, f"Answer: {numbers}", f'{{"candidates": {numbers}}}'):
        with pytest.raises(Unparsable):
            chosen(completion)


@pytest.mark.parametrize("numbers", ["4", "4, 5", '"candidate 9"'])
def test_a_list_with_only_unknown_numbers_is_not_an_empty_list(numbers: str) -> None:
    for completion in (f"[{numbers}]", f'{{"candidates": [{numbers}]}}', f"Answer: [{numbers}]"):
        with pytest.raises(Unparsable):
            chosen(completion)
    assert chosen(f"[{numbers}, 2]") == [2]


UNCLEAR = [
    "[1]\n[2]",
    "[1] or [2]",
    "[[1], [2]]",
    "[1] is high and [3] is old.",
    "Rejected: [1]",
    "[1, 2",
]
UNCLEAR += ["Match", "all of them", "[true]", "[0.5]", '["The tower is grey."]', '{"candidates": {"a": 1}}', "1 of 3"]
UNCLEAR += ['{"candidates": [1], "others": [2], "selected": [3]}', '[{"id": 1, "match": "maybe?"}', "[1: high]"]


@pytest.mark.parametrize("completion", UNCLEAR)
def test_without_one_clear_list_it_is_unparsable(completion: str) -> None:
    with pytest.raises(Unparsable):
        chosen(completion)


@pytest.mark.parametrize(
    ("completion", "numbers"),
    [
        ('[{"id": 1, "match": true}, {"id": 2, "match": false}, {"id": 3, "match": "yes"}]', None),
        ('[{"candidate": 2, "entails": 1}, {"candidate": 3, "entails": 0}]', None),
        ('{"candidates": [{"id": 1, "reason": "high"}, {"id": 3, "reason": "Ada Fenn"}]}', [1, 3]),
        ('{"match": true, "candidates": [2]}', [2]),
        ('{"match": 2}', None),
        ('{"match": "Candidate 1"}', None),
        ('{"match": true}', None),
        ('{"match": false, "candidates": [2]}', None),
        ('[{"candidate": 1, "match": "partly"}]', None),
        ('[{"candidate": 1, "match": 0.4}]', None),
        ('[{"candidate": 1, "match": true, "entails": false}]', None),
    ],
)
def test_candidates_may_have_reasons_but_no_other_verdicts(completion: str, numbers: list[int] | None) -> None:
    if numbers is None:
        with pytest.raises(Unparsable):
            chosen(completion)
    else:
        assert chosen(completion) == numbers


def test_texts_can_replace_numbers() -> None:
    assert chosen(json.dumps(FACTS[1:])) == [2, 3]
    with pytest.raises(Unparsable):
        chosen('["it is high", 3]')


# All references in one request


def test_a_repeated_reference_unites_its_candidates() -> None:
    assert mapped('{"reference": 1, "candidates": [2]}\n{"reference": 1, "candidates": [1, 2]}') == [[1, 2], []]


@pytest.mark.parametrize("number", ["3", '"9"', "12345678901234567890", '"reference 7"'])
def test_unknown_references_and_candidates_are_dropped(number: str) -> None:
    unknown = number.replace("reference", "candidate").replace("3", "4")
    lines = f'{{"reference": {number}, "candidates": [1]}}\n{{"reference": 2, "candidates": [3, {unknown}]}}'
    assert mapped(lines) == [[], [3]]


@pytest.mark.parametrize(
    "completion",
    [
        "Reference 1 is said to be entailed by candidate 2.",
        "1: 2",
        "Reference 1: [2]\nReference 2: not sure",
        "Reference 1: candidates 1, 2\n\nNone",
        "{'reference: 1, 'candidates': [2]}\nNone",
        '{"reference": 1, "candidates": [2]',
        '{"reference": 1, "candidates": ["It is wide."]}',
        '{"reference": "width", "candidates": [1]}',
        '{"reference": 1, "text": "height", "candidates": [1]}',
        '{"reference": 1, "found_in": [2]}',
        '{"candidates": [2]}',
        "[1, 2]",
    ],
)
def test_a_map_that_cannot_be_read_is_unparsable(completion: str) -> None:
    with pytest.raises(Unparsable):
        mapped(completion)


def test_the_examples_of_the_shipped_prompts_are_in_the_form() -> None:
    many = [f"text {number}" for number in range(9)]
    for stage in LONGRECALL:
        source = files("untold.conf").joinpath("prompts", f"{stage.name}.jinja").read_text(encoding="utf-8")
        compile_prompt(source)
        turns = [(role, text.strip()) for role, text, _ in split_turns(source)]
        shown = [(asked, said) for (_, asked), (role, said) in pairwise(turns) if role == "assistant"]
        assert len(shown) >= 3
        for asked, said in shown:
            facts = [f"t {number}" for number in range(asked.count("<fact>"))]
            variables = {"text": asked, "facts": facts, "query": "q", "reference": "r", "candidate": "c"}
            assert stage.parse(said, variables | {"references": many, "candidates": many})
