"""Test valid completions with additional noise. The result is the same, or the completion is not valid."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.udfs.stages.test_completions import plain
from untold.udfs.stages import STAGES, Unparsable

TEXTS = ("The tower is 41 metres high.", "Ada Fenn built it: in 1874", "It has [3 of 5] floors", "Rune Dahl likes it")
QUESTIONS = (
    "How high is the tower?",
    "Who built it: a king?",
    "When did the mill (of Osk) close?",
    "price of a violin",
)

PREAMBLES = [
    "",
    "Sure! Here is what you asked for:\n\n",
    "Here is the list.\n",
    "## Result\n\n",
    "**Answer:**\n",
    "🙂\n",
]
PREAMBLES += ["<think>\n- No.\n</think>\n", "<|channel|>analysis<|message|>- No [1]<|end|><|channel|>final<|message|>"]
PREAMBLES += ["| Step | Done |\n|---|---|\n| reading | yes |\n\n", "Okay, let me think.\n</think>\n\n"]
NOTES = [
    "",
    "\n\nI hope this helps!",
    "\n\nNote: I kept the order.",
    "\n---\n",
    "<|im_end|>",
    "<|return|>",
    "\n\n**Notes:**",
]
NOTES += [
    "\n\nLet me know if you need more. 🙂",
    "\n\n**Notes:**\n- I kept the order.",
    "\n\n| a | b |\n|---|---|\n| 1 | 2 |",
]
BULLETS = ["- ", "* ", "• ", "– ", "1. ", "(1) ", "1) ", "**1.** ", "✅ ", "- [x] ", "👉 ", "  - ", "+ ", ""]


@dataclass(frozen=True)
class Item:
    """The content of a line in a list: the text, which can be bold, and the text after it."""

    text: str
    end: str = ""

    def line(self, bullet: str, bold: bool, tick: str) -> str:
        text = f"**{self.text}**" if bold else self.text
        return f"{bullet}{text}{self.end}{tick}"


Case = tuple[Mapping[str, Any], list[list[Item]], list[str], Any]


def atoms(picked: list[int]) -> Case:
    kinds = ("Fact", "Claim", "Other", "Data Format")
    items = [Item(TEXTS[number], f": {kinds[number]}") for number in picked]
    expected = [{"text": TEXTS[number], "unit_type": kinds[number]} for number in picked]
    return {"text": "t"}, [items], [""], {"atoms": expected}


def revised(picked: list[int]) -> Case:
    variables = {"text": "t", "statements": ["a"]}
    return variables, [[Item(TEXTS[number]) for number in picked]], [""], {"atoms": [TEXTS[n] for n in picked]}


def relevance(picked: list[int]) -> Case:
    items = [Item(TEXTS[number], f" [Relevance: {number + 1}]") for number in picked]
    variables = {"query": "?", "statements": [TEXTS[number] for number in picked]}
    return variables, [items], [""], {"ratings": [number + 1 for number in picked]}


def mined(picked: list[int]) -> Case:
    return {}, [[Item(QUESTIONS[number]) for number in picked]], [""], {"questions": [QUESTIONS[n] for n in picked]}


def refined(picked: list[int]) -> Case:
    items = [Item(QUESTIONS[number], f" [Relevance: {number + 1}]") for number in picked]
    expected = {"questions": [QUESTIONS[number] for number in picked], "ratings": [number + 1 for number in picked]}
    return {"query": "?", "questions": []}, [items], [""], expected


def answered(picked: list[int]) -> Case:
    said = [f"\nA: {TEXTS[number]} [Confidence: {number + 1}]" if number else "\nA: unknown" for number in picked]
    items = [Item(QUESTIONS[number], answer) for number, answer in zip(picked, said, strict=True)]
    expected = {
        "answers": [[TEXTS[number]] if number else [] for number in picked],
        "confidences": [[number + 1] if number else [] for number in picked],
    }
    return {"text": "t", "questions": [QUESTIONS[number] for number in picked]}, [items], [""], expected


def coverage(picked: list[int]) -> Case:
    covered = picked[: len(picked) // 2]
    lists = [[Item(TEXTS[n], f" [{n + 1}]") for n in half] for half in (covered, picked[len(covered) :])]
    statements = [{"text": TEXTS[n], "covered": n in covered, "sources": [n + 1]} for n in picked]
    headings = ["[Covered statements]\n", "\n\n[Uncovered statements]\n"]
    return {"contexts": ["c"] * 4}, lists, headings, {"statements": statements, "dropped": 0}


def claimed(picked: list[int]) -> Case:
    return {"text": "t"}, [[Item(TEXTS[number]) for number in picked]], [""], {"claims": [TEXTS[n] for n in picked]}


def aspects(picked: list[int]) -> Case:
    items = [Item(json.dumps({"topic": TEXTS[number]})) for number in picked]
    return {"query": "q"}, [items], [""], {"aspects": [TEXTS[number] for number in picked]}


def aligned(picked: list[int]) -> Case:
    items = [Item(json.dumps({"topic_id": number + 1, "evidence": [number + 1, 9]})) for number in picked]
    evidence = [[number + 1] if number in picked else [] for number in range(len(TEXTS))]
    return {"query": "q", "aspects": TEXTS, "claims": TEXTS}, [items], [""], {"evidence": evidence}


def facts(picked: list[int]) -> Case:
    return {"text": "t"}, [[Item(TEXTS[number]) for number in picked]], [""], {"facts": [TEXTS[n] for n in picked]}


def important(picked: list[int]) -> Case:
    rated = [{"id": place, "relevance": n + 1, "salience": 5 - n} for place, n in enumerate(picked, start=1)]
    expected = {scale: [one[scale] for one in rated] for scale in ("relevance", "salience")}
    variables = {"query": "?", "facts": [TEXTS[number] for number in picked]}
    return variables, [[Item(json.dumps(one)) for one in rated]], [""], expected


def verified(picked: list[int]) -> Case:
    said = ("supported", "NOT_SUPPORTED", "not supported", "contradicted")[picked[0]]
    expected = {"relation": said.lower().replace(" ", "_")}
    return {"claim": TEXTS[0], "evidence": TEXTS}, [[Item(said)]], [""], expected


def covered(picked: list[int]) -> Case:
    said = {"label": "COVERED", "evidence_claim_ids": [number + 1 for number in picked]}
    expected = {"covered": True, "claims": sorted(number + 1 for number in picked)}
    return {"fact": TEXTS[0], "claims": TEXTS}, [[Item(json.dumps(said))]], [""], expected


def resolved(picked: list[int]) -> Case:
    variables = {"text": "t", "facts": [f"It is {number}." for number in picked]}
    return variables, [[Item(TEXTS[number]) for number in picked]], [""], {"facts": [TEXTS[n] for n in picked]}


def matched(picked: list[int]) -> Case:
    truth = len(picked) % 2 == 1
    variables = {"reference": TEXTS[0], "candidate": TEXTS[3]}
    return variables, [[Item("Match" if truth else "No Match")]], [""], {"matched": truth}


def chosen(picked: list[int]) -> Case:
    numbers = [number + 1 for number in picked]
    variables = {"reference": "r", "candidates": TEXTS}
    return variables, [[Item(json.dumps([*numbers, 9]))]], [""], {"candidates": sorted(numbers)}


def mapped(picked: list[int]) -> Case:
    items = [Item(json.dumps({"reference": number + 1, "candidates": [number + 1, 9]})) for number in picked]
    candidates = [[number + 1] if number in picked else [] for number in range(len(TEXTS))]
    return {"query": "q", "references": TEXTS, "candidates": TEXTS}, [items], [""], {"candidates": candidates}


CASES: dict[str, Callable[[list[int]], Case]] = {
    "extract_atoms": atoms,
    "revise_atoms": revised,
    "rate_relevance": relevance,
    "mine_questions": mined,
    "refine_questions": refined,
    "answer_questions": answered,
    "evaluate_coverage": coverage,
    "extract_claims": claimed,
    "generate_aspects": aspects,
    "align_claims": aligned,
    "extract_facts": facts,
    "rate_importance": important,
    "verify_claim": verified,
    "check_coverage": covered,
    "resolve_coreference": resolved,
    "match_one": matched,
    "match_many": chosen,
    "match_holistic": mapped,
}


def read(stage: str, completion: str, variables: Mapping[str, Any]) -> Any:
    try:
        return plain(STAGES[stage].parse(completion, variables))
    except Unparsable:
        return None


def written(case: Case, bullet: str, gap: str, bold: bool, tick: str) -> str:
    _, lists, headings, _ = case
    bodies = [gap.join(item.line(bullet, bold, tick) for item in items) or "None" for items in lists]
    return "".join(heading + body for heading, body in zip(headings, bodies, strict=True))


@pytest.mark.parametrize("stage", CASES)
@given(st.data())
def test_noise_changes_no_reading(stage: str, data: st.DataObject) -> None:
    case = CASES[stage](data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True)))
    bullet, gap = data.draw(st.sampled_from(BULLETS)), data.draw(st.sampled_from(["\n", "\n\n", "\n\n\n"]))
    body = written(case, bullet, gap, data.draw(st.booleans()), data.draw(st.sampled_from(["", " ✅", " 🔹", "  "])))
    fence = data.draw(st.sampled_from(["{}", "```\n{}\n```", "```text\n{}\n```", "~~~\n{}\n~~~"]))
    preamble, note = data.draw(st.sampled_from(PREAMBLES)), data.draw(st.sampled_from(NOTES))
    completion = preamble + fence.format(body) + note
    completion = completion.replace("\n", data.draw(st.sampled_from(["\n", "\r\n"])))
    assert read(stage, completion, case[0]) in (case[3], None), completion


@pytest.mark.parametrize("stage", CASES)
@pytest.mark.parametrize("bullet", [bullet for bullet in BULLETS if bullet])
def test_common_manners_are_read(stage: str, bullet: str) -> None:
    case = CASES[stage]([0, 1, 2, 3])
    body = written(case, bullet, "\n", bold=False, tick="")
    for completion in (
        body,
        f"```\n{body}\n```",
        f"Here is the list:\n\n{body}\n\nNote: I kept the order.",
        f"{body}<|end|>",
    ):
        for text in (completion, completion.replace("\n", "\r\n")):
            assert read(stage, text, case[0]) == case[3], text
