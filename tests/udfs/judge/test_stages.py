"""Compare the completions of the judge with the fields that the parsers of the stages return."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from untold.udfs.judge import stages
from untold.udfs.judge.model import Judgement
from untold.udfs.judge.stages import GIVEN, JUDGED, judging
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.store_files import Completion
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import SCHEMA, read_as

# Entailment and contradiction; all other pairs have neither
KNOWN = {
    ("bees", "honey"): (0.9, 0.0),
    ("bees", "wax"): (0.3, 0.1),
    ("wasps", "honey"): (0.1, 0.8),
    ("wasps", "wax"): (0.5, 0.5),
    ("one two", "sum"): (0.7, 0.0),
}
FOREIGN = "fremd"


class Judge:
    asked: ClassVar[set[str]] = set()

    def assess(self, texts: Sequence[str], facts: Sequence[str], queries: Sequence[str]) -> list[Judgement]:
        self.asked.update(queries)
        return [self._judge(*pair) for pair in zip(texts, facts, strict=True)]

    def _judge(self, text: str, fact: str) -> Judgement:
        if FOREIGN in (text, fact):
            return Judgement(None, None, 0, "not in English")
        return Judgement(*KNOWN.get((text, fact), (0.0, 0.0)), windows=2)


@pytest.fixture(autouse=True)
def _judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "shipped_judge", Judge)
    Judge.asked.clear()
    monkeypatch.setattr(stages, "find_for", lambda stage: None)


def answer(name: str, variables: Mapping[str, Any]) -> Completion:
    stage = Stage(name, STAGES[name].variables, "judge", "", api="local")
    (found,) = judging(stage)([{"request_id": "r", **variables}])
    assert found.request_id == "r"
    return found


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("classify_relation", {"premise": "bees", "hypothesis": "honey"}, {"relation": "entailment"}),
    ("classify_relation", {"premise": "wasps", "hypothesis": "honey"}, {"relation": "contradiction"}),
    ("classify_relation", {"premise": "bees", "hypothesis": "wax"}, {"relation": "neutral"}),
    ("classify_relation", {"premise": "wasps", "hypothesis": "wax"}, {"relation": "entailment"}),
    *(
        (
            name,
            {"premise": "bees", "hypotheses": ["wax", FOREIGN, "honey"]},
            {"relations": ["neutral", None, "entailment"]},
        )
        for name in ("classify_relations", "check_claims")
    ),
    ("match_one", {"reference": "honey", "candidate": "bees"}, {"matched": True}),
    ("match_one", {"reference": "honey", "candidate": "wasps"}, {"matched": False}),
    ("match_many", {"reference": "honey", "candidates": ["wasps", "bees"]}, {"candidates": [2]}),
    ("match_many", {"reference": "sum", "candidates": ["one", "two"]}, {"candidates": [1, 2]}),
    ("match_many", {"reference": "wax", "candidates": ["one", "two"]}, {"candidates": []}),
    (
        "assign_nuggets",
        {"query": "q", "response": "bees", "nuggets": ["honey", "wax", "milk", FOREIGN]},
        {"labels": ["support", "partial_support", "not_support", None], "reasons": [None] * 4},
    ),
    (
        "judge_support",
        {"sources": ["bees"], "sentences": ["honey", "wax", "milk", FOREIGN]},
        {
            "supports": ["full", "partial", "none", None],
            "reasons": [*(f"probability {one}" for one in ("0.90", "0.30", "0.00")), None],
        },
    ),
    (
        "align_claims",
        {"query": "q", "aspects": ["honey", "milk"], "claims": ["wasps", "bees"]},
        {"evidence": [[2], []]},
    ),
    ("verify_claim", {"claim": "honey", "evidence": ["wasps", "bees"]}, {"relation": "supported"}),
    ("verify_claim", {"claim": "honey", "evidence": ["wasps", "ants"]}, {"relation": "contradicted"}),
    ("verify_claim", {"claim": "wax", "evidence": ["bees", "ants"]}, {"relation": "not_supported"}),
    ("check_coverage", {"fact": "honey", "claims": ["ants", "bees", FOREIGN]}, {"covered": True, "claims": [2]}),
    ("check_coverage", {"fact": "milk", "claims": ["ants", "bees"]}, {"covered": False, "claims": []}),
    (
        "extract_atoms",
        {"text": "Bees fly. Why?\n\n- Wax is soft\n- Honey is sweet"},
        {
            "atoms": [
                {"text": "Bees fly.", "unit_type": "Fact"},
                {"text": "Why?", "unit_type": "Question"},
                {"text": "Wax is soft", "unit_type": "Fact"},
                {"text": "Honey is sweet", "unit_type": "Fact"},
            ]
        },
    ),
    ("extract_atoms", {"text": " \n"}, {"atoms": []}),
    (
        "revise_atoms",
        {"text": "t", "statements": ["It flies.", "* It - [4] stings"]},
        {"atoms": ["It flies.", "* It - [4] stings"]},
    ),
    ("extract_claims", {"text": "Bees fly. Bees fly. Do they?"}, {"claims": ["Bees fly."]}),
    ("extract_claims", {"text": "Why?"}, {"claims": []}),
    ("extract_facts", {"text": "Bees fly. They sting."}, {"facts": ["Bees fly.", "They sting."]}),
    (
        "extract_verifiable_claims",
        {"query": "q", "before": "b", "sentence": "Bees fly.", "after": "a"},
        {"claims": ["Bees fly."]},
    ),
]


@pytest.mark.parametrize(("name", "variables", "expected"), CASES)
def test_the_parser_of_a_stage_reads_the_answer(name: str, variables: dict[str, Any], expected: dict[str, Any]) -> None:
    text = answer(name, variables).text
    assert text is not None
    definition = STAGES[name]
    assert definition.parse(text, variables) == expected
    assert Judge.asked == ({variables.get("query", "")} if stages.JUDGED[name].pairs(variables) else set())
    assert read_as(text, definition.schema, definition.form, variables) == SCHEMA


def test_every_stage_has_a_case() -> None:
    assert {name for name, *_ in CASES} | {"rate_relevance"} == set(JUDGED)


def test_statements_near_the_query_are_rated_higher() -> None:
    variables = {"query": "How high is Mount Everest?", "statements": ["Rome fell.", "Mount Everest is 8,849 m high."]}
    text = answer("rate_relevance", variables).text or ""
    low, high = (int(one.value) for one in STAGES["rate_relevance"].parse(text, variables)["ratings"])
    assert (low < 3, high) == (True, 5)


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("classify_relation", {"premise": "bees", "hypothesis": FOREIGN}),
        ("check_claims", {"premise": FOREIGN, "hypotheses": ["honey", "wax"]}),
        ("match_one", {"reference": FOREIGN, "candidate": "bees"}),
        ("match_many", {"reference": "milk", "candidates": ["bees", FOREIGN]}),
        ("assign_nuggets", {"query": "q", "response": FOREIGN, "nuggets": ["honey"]}),
        ("judge_support", {"sources": [FOREIGN], "sentences": ["honey"]}),
        ("align_claims", {"query": "q", "aspects": ["milk"], "claims": [FOREIGN]}),
        ("verify_claim", {"claim": "milk", "evidence": ["bees", FOREIGN]}),
        ("check_coverage", {"fact": FOREIGN, "claims": ["bees"]}),
    ],
)
def test_a_request_without_a_probability_fails_with_the_reason(name: str, variables: dict[str, Any]) -> None:
    found = answer(name, variables)
    assert (found.text, found.error_type, found.error) == (None, "unjudged", "not in English")


def test_probabilities_and_windows_are_kept() -> None:
    trace = answer("classify_relation", {"premise": "bees", "hypothesis": "honey"}).tool_trace or ""
    assert json.loads(trace) == [{"entailment": 0.9, "contradiction": 0.0, "windows": 2}]
    failed = answer("classify_relation", {"premise": "bees", "hypothesis": FOREIGN}).tool_trace or ""
    assert json.loads(failed) == [{"windows": 0, "reason": "not in English"}]


@pytest.mark.parametrize("name", GIVEN)
def test_a_missing_requirement_is_an_error_with_the_remedy(name: str) -> None:
    found = answer(name, dict.fromkeys(STAGES[name].variables))
    assert found.error_type == "unjudged"
    assert "Give " in str(found.error)


def test_requests_of_a_group_have_their_own_judgements() -> None:
    stage = Stage("match_many", STAGES["match_many"].variables, "judge", "", api="local")
    rows = [
        {"request_id": str(place), "reference": fact, "candidates": texts}
        for place, (fact, texts) in enumerate([("honey", ["bees"]), ("sum", ["one", "two"]), ("honey", ["ants"])])
    ]
    found = {one.request_id: json.loads(one.text or "") for one in judging(stage)(rows)}
    assert found == {"0": {"candidates": [1]}, "1": {"candidates": [1, 2]}, "2": {"candidates": []}}
