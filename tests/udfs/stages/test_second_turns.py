"""Test completions with a second turn in every stage. The result is the first turn, or the completion is not valid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.udfs.stages.test_completions import plain
from untold.udfs.stages import STAGES, Unparsable

BRIDGE = "The Halden bridge opened in 1931."
LISTS = "[Covered statements]\n{}\n\n[Uncovered statements]\n{}"
# The name of a stage, its variables, a completion, and a completion of another request with a different result
CASES: dict[str, tuple[str, Mapping[str, Any], str, str]] = {
    "evaluate_coverage": (
        "evaluate_coverage",
        {"query": "When did it open?", "contexts": [BRIDGE, "It is long."], "response": "In 1931."},
        LISTS.format(f"- {BRIDGE} [1]", "- It is long. [2]"),
        LISTS.format("- The Moren dam is 90 m high. [1]", "None"),
    ),
    "summarise_context": (
        "summarise_context",
        {"query": "When?", "text": BRIDGE},
        BRIDGE,
        "The Moren dam is 90 m high.",
    ),
    "generate_answer": ("generate_answer", {"query": "When?", "contexts": [BRIDGE]}, BRIDGE, "The dam is high."),
    "restate_answer": ("restate_answer", {"question": "When?", "answer": "1931"}, BRIDGE, "The dam is high."),
    "extract_claims": ("extract_claims", {"text": BRIDGE}, f"- {BRIDGE}\n- It is long.", "- The dam is 90 m high."),
    "bare claims": ("extract_claims", {"text": BRIDGE}, f"{BRIDGE}\nIt is long.", "The dam is 90 m high."),
    "extract_atoms": ("extract_atoms", {"text": BRIDGE}, "- It opened: Fact", "- The dam is high: Claim"),
    "mine_questions": (
        "mine_questions",
        {"query": "When?", "text": BRIDGE},
        "* When did it open?",
        "* How high is the dam?",
    ),
    "generate_aspects": ("generate_aspects", {"query": "When?"}, '{"topic": "age of it"}', '{"topic": "height of it"}'),
    "classify_relation": ("classify_relation", {"premise": BRIDGE, "hypothesis": "Old."}, "neutral", "entailment"),
    "match_one": ("match_one", {"reference": BRIDGE, "candidate": "Opened 1931."}, "No Match", "Match"),
    "verify_claim": ("verify_claim", {"claim": BRIDGE, "evidence": ["It is old."]}, "supported", "contradicted"),
    "match_many": ("match_many", {"reference": BRIDGE, "candidates": ["a b", "c d", "e f"]}, "[1, 3]", "[2]"),
    "compare_answers": (
        "compare_answers",
        {"question": "When?", "first": "1931", "second": "before 1950"},
        "1931 - before 1950 [first implies second]",
        "contradictory",
    ),
    "check_coverage": (
        "check_coverage",
        {"fact": BRIDGE, "claims": ["It is old."]},
        '{"label": "COVERED", "evidence_claim_ids": [1]}',
        '{"label": "NOT_COVERED", "evidence_claim_ids": []}',
    ),
    "align_claims": (
        "align_claims",
        {"query": "When?", "aspects": ["age"], "claims": ["It is old.", "It is long."]},
        '{"topic_id": 1, "evidence": [1]}',
        '{"topic_id": 1, "evidence": [2]}',
    ),
    "rate_relevance": (
        "rate_relevance",
        {"query": "When?", "statements": [BRIDGE]},
        f"* {BRIDGE} [Relevance: 4]",
        f"* {BRIDGE} [Relevance: 1]",
    ),
    "rate_nuggets": ("rate_nuggets", {"query": "When?", "nuggets": [BRIDGE]}, "1: vital", "1: okay"),
}
TURNS = [
    "<|im_end|>\n<|im_start|>user\nNext<|im_end|>\n<|im_start|>assistant\n",
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "<end_of_turn>\n<start_of_turn>user\nand this?<end_of_turn>\n<start_of_turn>model\n",
    "</s><s>[INST] next [/INST] ",
    "<|end|>\n<|user|>\nnext<|end|>\n<|assistant|>\n",
    "<|end|><|start|>user<|message|>next<|end|><|start|>assistant<|channel|>final<|message|>",
    "<|endoftext|>",
    "<|return|>\n",
    "<｜end▁of▁sentence｜><｜User｜>next<｜Assistant｜>",
    "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>next<|CHATBOT_TOKEN|>",
    "\n\nHuman: And the Moren dam?\n\nAssistant: ",
    "\n\nUser: And the Moren dam?\nAssistant:\n",
    "\n\n=== user\nnext\n\n=== assistant\n",
    "\n\n### Instruction:\nnext\n\n### Response:\n",
    "\n\n**User:** next\n\n**Assistant:** ",
    "\nuser\nnext\nassistant\n",
    "assistant\n\n",
    "\n\n用户：下一个\n\n助手：",
]


def read(stage: str, completion: str, variables: Mapping[str, Any]) -> Any:
    try:
        return plain(STAGES[stage].parse(completion, variables))
    except Unparsable:
        return None


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("case", CASES)
def test_a_second_turn_is_never_read(case: str, turn: str) -> None:
    stage, variables, completion, other = CASES[case]
    assert read(stage, completion + turn + other, variables) in (read(stage, completion, variables), None)


@pytest.mark.parametrize("case", CASES)
def test_what_ends_a_turn_with_a_token_is_read(case: str) -> None:
    stage, variables, completion, other = CASES[case]
    assert read(stage, f"{completion}<|im_end|>\n<|im_start|>user\n{other}", variables) == plain(
        STAGES[stage].parse(completion, variables)
    )


@pytest.mark.parametrize("case", CASES)
def test_an_input_of_another_request_ends_the_turn(case: str) -> None:
    stage, variables, completion, other = CASES[case]
    tag = next(iter(variables))
    turn = f"\n\n<{tag}>The Moren dam</{tag}>\n\n"
    assert read(stage, completion + turn + other, variables) in (read(stage, completion, variables), None)


@pytest.mark.parametrize("token", ["<|im_end|>", "</s>", "[/INST]", "</think>", "Human: hello"])
def test_an_input_can_contain_the_token(token: str) -> None:
    text = f"A turn ends at {token} as a rule."
    assert read("extract_claims", f"- {text}\n- It is old.", {"text": text}) == {"claims": [text, "It is old."]}


CLOSINGS = ["</think>", " </think>\n\n", "[/THINK]", "◁/think▷", "</thinking>", "</reasoning>", "<|end_of_thought|>"]


@pytest.mark.parametrize("closing", CLOSINGS)
@pytest.mark.parametrize("case", CASES)
def test_a_closing_tag_without_an_opening_one_ends_the_thinking(case: str, closing: str) -> None:
    stage, variables, completion, other = CASES[case]
    found = [read(stage, f"{draft}{closing}{completion}", variables) for draft in ("999 m may be wrong.", other)]
    assert found == [read(stage, completion, variables)] * 2


HEADINGS = [
    "Thinking:\n",
    "## Thinking\n",
    "**Thoughts:**\n",
    "Thought process:\n",
    "Reasoning: ",
    "Thinking.\n",
    "思考：\n",
]
REASONED = ("evaluate_coverage", "compare_answers")
# These formats do not separate the result from the thoughts
FREE = ("bare claims", "summarise_context", "generate_answer", "restate_answer")


@pytest.mark.parametrize("heading", HEADINGS)
@pytest.mark.parametrize("case", [case for case in CASES if case not in FREE])
def test_a_heading_of_thoughts_does_not_hide_the_result(case: str, heading: str) -> None:
    stage, variables, completion, _ = CASES[case]
    for thoughts in ("The year fits.\n", "The year fits.\n\n", "The year fits.\nIt is so.\n\nOn it goes.\n\n"):
        expected = read(stage, completion, variables)
        found = read(stage, heading + thoughts + completion, variables)
        # Only the formats with reasons before the result permit other text before it
        assert found == expected or (found is None and case not in REASONED)


@pytest.mark.parametrize("gap", ["\n", "\n\n"])
@pytest.mark.parametrize("case", FREE)
def test_thoughts_without_an_end_are_not_text(case: str, gap: str) -> None:
    stage, variables, completion, _ = CASES[case]
    assert read(stage, f"Thinking:\nThe year fits.{gap}{completion}", variables) is None


def wrapped(result: str) -> list[str]:
    value = json.loads(result)
    return [
        json.dumps(result),
        json.dumps(json.dumps(result)),
        f"```json\n{json.dumps(result)}\n```",
        result + result,
        f"<tool_call>{json.dumps({'name': 'x', 'arguments': value})}</tool_call>",
        json.dumps({"name": "x", "arguments": value}),
        json.dumps({"name": "x", "arguments": result}),
        json.dumps([{"type": "function", "function": {"name": "x", "arguments": result}}]),
        f"[TOOL_CALLS] [{json.dumps({'name': 'x', 'arguments': value})}]",
        f"<function=x>{result}</function>",
        json.dumps({"properties": value}),
        f"result = {result}",
        f"print({result})",
        f"claims = {json.dumps(next(iter(value.values())))}",
        f'<invoke name="x">{result}</invoke>',
    ]


RESULTS = {
    "extract_claims": ({"text": "x y"}, {"claims": [BRIDGE, "It is long."]}, {"claims": [BRIDGE, "It is long."]}),
    "generate_aspects": ({"query": "q x"}, {"topics": ["age of it", "height"]}, {"aspects": ["age of it", "height"]}),
    "summarise_context": ({"query": "q x", "text": "x y"}, {"summary": BRIDGE}, {"summary": BRIDGE}),
    "restate_answer": ({"question": "q x", "answer": "x y"}, {"statement": BRIDGE}, {"statement": BRIDGE}),
    "classify_relation": ({"premise": "p q", "hypothesis": "h"}, {"relation": "neutral"}, {"relation": "neutral"}),
    "rate_relevance": (
        {"query": "q", "statements": ["a b"]},
        {"ratings": [{"id": 1, "relevance": 4}]},
        {"ratings": [4]},
    ),
    "match_many": ({"reference": "r", "candidates": ["a b", "c d"]}, {"candidates": [2]}, {"candidates": [2]}),
}


@pytest.mark.parametrize("stage", RESULTS)
def test_markup_around_a_result_is_not_part_of_it(stage: str) -> None:
    variables, result, expected = RESULTS[stage]
    found = [read(stage, completion, variables) for completion in wrapped(json.dumps(result))]
    assert all(each in (expected, None) for each in found)
    assert found.count(expected) >= 3


MORE = [
    "... and 1 more",
    "(2 more)",
    "etc.",
    "…",
    "- ...",
    "- and 2 others",
    "+ 2 more",
    "and so on",
    "… und 2 weitere",
    "[...]",
]


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize(
    "case", ["evaluate_coverage", "extract_claims", "bare claims", "extract_atoms", "mine_questions", "align_claims"]
)
def test_a_list_that_announces_more_items_is_not_complete(case: str, more: str) -> None:
    stage, variables, completion, _ = CASES[case]
    assert read(stage, f"{completion}\n{more}", variables) is None


@pytest.mark.parametrize("last", ["...", "... and 2 more", "etc."])
def test_the_last_element_can_announce_more_items(last: str) -> None:
    assert read("extract_claims", json.dumps([BRIDGE, last]), {"text": "x"}) is None
