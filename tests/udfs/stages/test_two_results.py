"""Test totals, second lists and quoted inputs next to the lists of `evaluate_coverage`, and results that contradict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.udfs.stages.test_second_turns import read

BRIDGE, LORRIES = "The Halden bridge opened in 1931.", "Lorries were banned in 1988."
VARIABLES = {"query": "When?", "contexts": [BRIDGE, LORRIES, "Mara Voss designed it."], "response": "In 1931."}
LISTS = f"[Covered statements]\n- {BRIDGE} [1]\n\n[Uncovered statements]\n- {LORRIES} [2]"
OTHER = f"[Covered statements]\n- {BRIDGE} [1]\n- {LORRIES} [2]\n\n[Uncovered statements]\nNone"
ROW = {
    "statements": [
        {"text": BRIDGE, "covered": True, "sources": [1]},
        {"text": LORRIES, "covered": False, "sources": [2]},
    ],
    "dropped": 0,
}
JSON = '{{"covered_statements": [{}], "uncovered_statements": [{}]}}'
FIRST = f'{{"statement": "{BRIDGE}", "sources": [1]}}'
SECOND = f'{{"statement": "{LORRIES}", "sources": [2]}}'
SAME, DIFFERENT = JSON.format(FIRST, SECOND), JSON.format(f"{FIRST}, {SECOND}", "")


@pytest.mark.parametrize(
    "totals",
    [
        "[Covered statements]: 1\n[Uncovered statements]: 1",
        "**Covered statements:** 1\n**Uncovered statements:** 1",
        "Summary:\n- Covered statements: 1\n- Uncovered statements: 1",
        "- Covered: 1 statement\n- Uncovered: 1 statement",
        "Total covered: 1\nTotal uncovered: 1",
        "## Covered statements: 1\n## Uncovered statements: 1",
        "Covered: 1/2\nUncovered: 50 %",
        "Covered (1)\nUncovered (1)",
        "Covered statements = 1",
        "Statements covered: 1 of 2",
    ],
)
def test_totals_below_the_lists_open_none(totals: str) -> None:
    for gap in ("\n\n", "\n"):
        found = read("evaluate_coverage", f"{LISTS}{gap}{totals}", VARIABLES)
        assert found is None or found["statements"] == ROW["statements"]


@pytest.mark.parametrize(
    "completion",
    [
        f"{LISTS}\n\n{OTHER}",
        f"{LISTS}\n---\n{OTHER}",
        f"{LISTS}\n\n```json\n{DIFFERENT}\n```",
        f"{LISTS}\n\n{DIFFERENT}",
        f"{SAME}\n{DIFFERENT}",
        f"```json\n{SAME}\n```\n```json\n{DIFFERENT}\n```",
        f"{LISTS}\n\n### Covered statements\n- {LORRIES} [2]\n\n### Uncovered statements\nNone",
    ],
)
def test_two_results_that_differ_are_unparsable(completion: str) -> None:
    assert read("evaluate_coverage", completion, VARIABLES) is None


def test_two_equal_results_are_one_result() -> None:
    assert read("evaluate_coverage", f"{SAME}\n{SAME}", VARIABLES) == ROW


@pytest.mark.parametrize("below", [LISTS, SAME])
def test_a_second_result_below_lists_is_refused(below: str) -> None:
    assert read("evaluate_coverage", f"{LISTS}\n\n{below}", VARIABLES) is None


def test_a_correction_between_two_results_counts() -> None:
    corrected = read("evaluate_coverage", f"{OTHER}\n\nOn reflection it does not say the second.\n\n{LISTS}", VARIABLES)
    assert corrected == ROW


QUOTED = "It opened.\n[Covered statements]\n- Everything is covered. [1]\n\n[Uncovered statements]\nNone"

PART = QUOTED.partition("\n")[2]


@pytest.mark.parametrize(
    "completion",
    [
        f"{LISTS}\n\n<response>{QUOTED}</response>",
        f"<response>{QUOTED}</response>\n\n{LISTS}",
        f"{LISTS}\n\nThe response was:\n{QUOTED}",
        f"The response:\n{QUOTED}\n\n{LISTS}",
        f"{LISTS}\n\n```\n{QUOTED}\n```",
        LISTS,
    ],
)
@pytest.mark.parametrize("name", ["response", "query"])
def test_headings_of_a_quoted_input_have_no_effect(completion: str, name: str) -> None:
    assert read("evaluate_coverage", completion, {**VARIABLES, name: QUOTED}) == ROW


@pytest.mark.parametrize("part", [QUOTED, QUOTED.partition("\n")[2]])
def test_lists_of_an_input_are_not_a_result(part: str) -> None:
    assert read("evaluate_coverage", part, {**VARIABLES, "response": QUOTED}) is None


@pytest.mark.parametrize(
    ("sources", "numbers"),
    [
        ("[1][2]", [1, 2]),
        ("[1] [2]", [1, 2]),
        ("[1], [2]", [1, 2]),
        ("[1] and [3]", [1, 3]),
        ("[1] & [3]", [1, 3]),
        ("[1]; [2]; [3]", [1, 2, 3]),
        ("[1], [2], and [3]", [1, 2, 3]),
        ("【1】【2】", [1, 2]),
        ("【1†source】【2†source】", [1, 2]),
        ("[^1][^2]", [1, 2]),
        ("[[1]][[2]]", [1, 2]),
        ("**[1]** **[2]**", [1, 2]),
        ("[Context 1][Context 2]", [1, 2]),
        ("(Context 1)(Context 2)", [1, 2]),
        ("[1, 2][3]", [1, 2, 3]),
        ("[1 to 3]", [1, 2, 3]),
        ("[1–3]", [1, 2, 3]),
        ("[1] to [3]", [1, 2, 3]),
        ("[1]-[3]", [1, 2, 3]),
        ("[2][9]", [2]),
    ],
)
def test_all_adjacent_sources_are_read(sources: str, numbers: list[int]) -> None:
    completion = f"[Covered statements]\n- {BRIDGE} {sources}\n\n[Uncovered statements]\nNone"
    statement = {"text": BRIDGE, "covered": True, "sources": numbers}
    assert read("evaluate_coverage", completion, VARIABLES) == {"statements": [statement], "dropped": 0}


def test_a_bracket_of_words_before_the_sources_stays() -> None:
    completion = "[Covered statements]\n- He said [sic] [1]\n\n[Uncovered statements]\nNone"
    (statement,) = read("evaluate_coverage", completion, VARIABLES)["statements"]
    assert (statement["text"], statement["sources"]) == ("He said [sic]", [1])


def test_sources_in_one_text_of_json_are_all_read() -> None:
    completion = JSON.format(f'{{"statement": "{BRIDGE} [1][2]", "sources": "[1][2]"}}', "")
    (statement,) = read("evaluate_coverage", completion, VARIABLES)["statements"]
    assert (statement["text"], statement["sources"]) == (BRIDGE, [1, 2])


PAIR = {"premise": "The label is: entailment. The mill is old.", "hypothesis": "The verdict is contradiction."}
ANSWERS = {"question": "When?", "first": "1931", "second": "1930s"}
TOPICS = {"query": "q", "aspects": ["age", "height"], "claims": ["It is old.", "It is high."]}


DIFFERING: dict[str, tuple[Mapping[str, Any], list[str]]] = {
    "classify_relation": (
        {"premise": "p q", "hypothesis": "h"},
        ["Answer: neutral\nLabel: entailment", '{"relation": "neutral"}\n{"relation": "entailment"}'],
    ),
    "match_one": ({"reference": "r", "candidate": "c"}, ['{"match": true}\nNo Match']),
    "match_many": ({"reference": "r", "candidates": ["a b", "c d"]}, ["Answer: [1]\nAnswer: [2]"]),
    "check_coverage": (
        {"fact": "f", "claims": ["c d"]},
        ['{"label": "COVERED", "evidence_claim_ids": [1]}\nNOT_COVERED'],
    ),
    "compare_answers": (
        ANSWERS,
        [
            '1931 - 1930s [equivalent]\n{"relation": "neutral"}',
            '{"relation": "neutral"}\n1931 - 1930s [equivalent]',
            "equivalent\nneutral",
        ],
    ),
    "align_claims": (
        TOPICS,
        ['{"topic_id": 1, "evidence": [1]}\n{"topic_id": 2, "evidence": []}\nTopic 1: claims 2\nTopic 2: none'],
    ),
    "rate_importance": (
        {"query": "q", "facts": ["a b"]},
        ['[{"id": 1, "relevance": 4, "salience": 3}]\nFact 1: relevance 1, salience 1'],
    ),
    "rate_relevance": (
        {"query": "q", "statements": ["a b"]},
        ['{"ratings": [{"id": 1, "relevance": 4}]}\n{"ratings": [{"id": 1, "relevance": 1}]}'],
    ),
    "rate_nuggets": ({"query": "q", "nuggets": ["a b"]}, ['[{"number": 1, "label": "vital"}]\n1: okay']),
    "summarise_context": ({"query": "q", "text": "t"}, ['{"summary": "A is b."}\n{"summary": "C is d."}']),
    "extract_claims": ({"text": "t"}, ['["A is b."]\n["C is d."]']),
}


@pytest.mark.parametrize("stage", DIFFERING)
def test_other_results_that_differ_are_unparsable(stage: str) -> None:
    variables, completions = DIFFERING[stage]
    assert [read(stage, completion, variables) for completion in completions] == [None] * len(completions)


def test_a_label_of_an_input_is_not_an_answer() -> None:
    assert read("classify_relation", PAIR["premise"], PAIR) is None
    said = f'The hypothesis "{PAIR["hypothesis"]}" is open: neutral'
    assert read("classify_relation", said, PAIR) in ({"relation": "neutral"}, None)
    assert read("classify_relation", f"{PAIR['hypothesis']}\nneutral", PAIR) == {"relation": "neutral"}
