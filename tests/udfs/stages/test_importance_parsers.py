"""Test the parsers of facts, ratings, verdicts and covered facts.

The folder `tests/udfs/completions` has more tests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pyarrow as pa
import pytest

from tests.udfs.stages.importance_read import IMPORTANCE, covering, facts, ratings, verdict
from untold.udfs.llm.templates import compile_prompt, split_turns
from untold.udfs.ratings import weigh
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import StageDefinition, Unparsable
from untold.udfs.stages.importance import (
    CHECK_COVERAGE,
    EXTRACT_FACTS,
    EXTRACT_VERIFIABLE_CLAIMS,
    RATE_IMPORTANCE,
    VERDICTS,
    VERIFY_CLAIM,
)

RATED = '[{"id": 1, "relevance": 4, "salience": 2}, {"id": 2, "relevance": 5, "salience": 3}]'
COVERED = '{"label": "COVERED", "evidence_claim_ids": [1]}'


def test_the_stages_are_registered_with_their_variables() -> None:
    assert {stage.name: stage.variables for stage in IMPORTANCE} == {
        "extract_facts": ("text",),
        "extract_verifiable_claims": ("query", "before", "sentence", "after"),
        "rate_importance": ("query", "facts"),
        "verify_claim": ("claim", "evidence"),
        "check_coverage": ("fact", "claims"),
    }
    assert all(STAGES[stage.name] is stage for stage in IMPORTANCE)
    assert [stage.name for stage in IMPORTANCE if stage.rated] == ["rate_importance"]


@pytest.mark.parametrize(
    ("stage", "completion", "row"),
    [
        (EXTRACT_FACTS, "- A is b.\n- C is d.", {"facts": ["A is b.", "C is d."]}),
        (EXTRACT_VERIFIABLE_CLAIMS, "A is b.\nC is d.", {"claims": ["A is b.", "C is d."]}),
        (EXTRACT_VERIFIABLE_CLAIMS, "None", {"claims": []}),
        (RATE_IMPORTANCE, RATED, {"relevance": [4.0, 5.0], "salience": [2.0, 3.0]}),
        (VERIFY_CLAIM, "not supported", {"relation": "not_supported"}),
        (CHECK_COVERAGE, COVERED, {"covered": True, "claims": [1]}),
        (CHECK_COVERAGE, '{"label": "NOT_COVERED"}', {"covered": False, "claims": []}),
    ],
)
def test_a_row_has_the_schema_of_its_stage(stage: StageDefinition, completion: str, row: object) -> None:
    variables = {"facts": ["A is b.", "C is d."], "claims": ["A is b."], "evidence": ["A is b."]}
    found, _ = weigh(stage.parse(completion, variables), None)
    assert found == row
    assert pa.Table.from_pylist([found], schema=stage.output).to_pylist() == [row]


@pytest.mark.parametrize(
    "completion", ["", " \n", "---", "<think>None", "Facts:", "Sure!", "{}", '{"label": ', "```", "Yes."]
)
@pytest.mark.parametrize("read", [ratings, verdict, covering])
def test_nothing_is_unparsable(read: Callable[[str], Any], completion: str) -> None:
    with pytest.raises(Unparsable):
        read(completion)


@pytest.mark.parametrize(
    "completion", ["None", "none.", "- None", "* **None**.", "```\nNone\n```", "[]", '{"facts": []}']
)
def test_a_single_none_is_neither_a_fact_nor_another_answer(completion: str) -> None:
    assert facts(completion) == []
    for read in (ratings, verdict, covering):
        with pytest.raises(Unparsable):
            read(completion)


@pytest.mark.parametrize("bullet", ["", "- ", "* ", "• ", "1. ", "(1) ", "✅ ", "– "])
def test_a_first_line_that_ends_with_a_colon_is_not_a_fact(bullet: str) -> None:
    assert facts(f"The facts:\n{bullet}A is b.\n{bullet}C is d.") == ["A is b.", "C is d."]


def test_a_fact_can_be_in_the_first_person_if_its_text_is() -> None:
    assert facts("- I saw it.", text="I saw it.") == ["I saw it."]


# Ratings


def test_ratings_are_weighed_at_their_own_digits_and_not_at_ids() -> None:
    """The endpoint returns alternatives for all digits, including the digits of ids and other fields."""
    completion = (
        '[{"id": 2, "note": "3 of 5", "relevance": 4, "salience": 1}, {"id": "1", "salience": 2, "relevance": 3}]'
    )
    row = RATE_IMPORTANCE.parse(completion, {"query": "q", "facts": ["A is b.", "C is d."]})
    places = {place: int(sign) for place, sign in enumerate(completion) if sign in "12345"}
    half = math.log(0.5)
    alternatives = [
        {"offset": place, "top": [{"token": str(digit), "logprob": half}, {"token": "5", "logprob": half}]}
        for place, digit in places.items()
    ]
    assert weigh(row, alternatives) == ({"relevance": [4.0, 4.5], "salience": [3.5, 3.0]}, True)


@pytest.mark.parametrize(
    "completion",
    [
        RATED,
        f"<think>{RATED.replace('4', '1')}</think>{RATED}",
        f"Ratings: {RATED}",
        f"- {RATED[1:-1].replace('}, {', chr(10).join(('}', '- {')))}",
        '{"1": {"relevance": 4, "salience": 2}, "2": {"salience": 3, "relevance": 5}}',
        '{"Fact 2": {"relevance": 5, "salience": 3}, "Fact 1": {"relevance": 4, "salience": 2}}',
        RATED.replace('"id": 1', '"id": "1"').replace('"id": 2', '"id": "fact 2"'),
        RATED + "\nNote: {relevance} of 5 is rare.",
    ],
)
def test_ratings_are_found(completion: str) -> None:
    assert ratings(completion) == [(4, 2), (5, 3)]


@pytest.mark.parametrize("rating", ["0", "6", "-1", "1.5", "null", '"high"', '"4-5"', '"4/10"', "true", "[4]", '""'])
def test_a_rating_out_of_the_scale_is_unparsable(rating: str) -> None:
    for scale in ("relevance", "salience"):
        completion = RATED.replace(f'"{scale}": {5 if scale == "relevance" else 3}', f'"{scale}": {rating}')
        assert completion != RATED
        with pytest.raises(Unparsable):
            ratings(completion)


@pytest.mark.parametrize("lost", ['"id": 2, ', '"relevance": 4, ', ', "salience": 3'])
def test_a_fact_without_both_ratings_is_unparsable(lost: str) -> None:
    with pytest.raises(Unparsable):
        ratings(RATED.replace(lost, ""))


def test_a_repeated_id_must_have_equal_ratings() -> None:
    assert ratings(f'{RATED[:-1]}, {{"id": "1", "relevance": 4, "salience": 2}}]') == [(4, 2), (5, 3)]
    with pytest.raises(Unparsable):
        ratings(f'{RATED[:-1]}, {{"id": 1, "relevance": 4, "salience": 3}}]')


def test_objects_without_ids_name_their_facts_or_none() -> None:
    texts = [
        '{"fact": "it is HIGH", "relevance": 5, "salience": 3}',
        '{"fact": "It is old.", "relevance": 4, "salience": 2}',
    ]
    assert ratings(f"[{', '.join(texts)}]") == [(4, 2), (5, 3)]
    with pytest.raises(Unparsable):
        ratings('[{"relevance": 4, "salience": 2}, {"relevance": 5, "salience": 3}]')


# Verdicts


@pytest.mark.parametrize("label", VERDICTS)
@pytest.mark.parametrize(
    "form",
    [
        *("{}", " {}\n", "{}.", "**{}**", '"{}"', "`{}`", "[{}]", "- {}", "1. {}", "```\n{}\n```", "> {}"),
        *("Answer: {}", "Verdict: {}.", "**Label:** {}", "Label: **{}**", "Classification:\n{}", "The answer is {}."),
        *(
            "{}. The evidence speaks of it.",
            "{} - see [1].",
            "{} (evidence 2)",
            '{{"label": "{}", "reason": "It rains."}}',
        ),
        "{}\n\nExplanation: it would be supported or contradicted only if the evidence spoke of it.",
        "{}\n\nClaim: It snows.\nEvidence: It is cold.\nVerdict: supported\n\nClaim: It",
        "Claim: It is wet.\nEvidence: It rains.\nVerdict: {}",
        "Supported, contradicted or not supported? Final answer: {}",
        "If it snowed, it would be contradicted.\n\nVerdict: {}",
        "<think>supported? contradicted? not_supported?</think>\n{}",
        "I would say that it is {}",
        "Therefore, the claim is {}.",
    ],
)
def test_a_verdict_is_found(form: str, label: str) -> None:
    for spelled in {label, label.replace("_", " "), label.replace("_", "-"), label.replace("_", "")}:
        assert verdict(form.format(spelled)) == label
        assert verdict(form.format(spelled.capitalize())) == label
        assert verdict(form.format(spelled.upper())) == label


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("The evidence supports the claim.", "supported"),
        ("The evidence contradicts the claim.", "contradicted"),
        ("The claim isn't supported.", "not_supported"),
        ("The claim is unsupported.", "not_supported"),
        ("The evidence neither supports nor contradicts the claim.", "not_supported"),
        ("The claim is neither contradicted nor supported.", "not_supported"),
        ("Not supported: it is not contradicted either.", "not_supported"),
        ('{"supported": false, "label": "contradicted"}', "contradicted"),
        ('{"reason": "so the verdict is supported", "label": "not_supported"}', "not_supported"),
    ],
)
def test_verbs_are_verdicts_and_negated_ones_are_not(completion: str, expected: str) -> None:
    assert verdict(completion) == expected


@pytest.mark.parametrize(
    "completion",
    [
        *(
            "partially supported",
            "Supported in part.",
            "supported (partially)",
            "supported only in part",
            "mostly true",
        ),
        *("supported or not supported", "Supported/Contradicted", "supported\nnot supported", "supported?"),
        *(
            "Not entirely supported.",
            "It cannot be supported.",
            "It might be contradicted.",
            "No evidence supports it.",
        ),
        *("I cannot tell whether it is supported.", "Nothing in the evidence supports the claim.", "insupportable"),
        '{"label": "supported"}\n{"label": "contradicted"}',
        '{"supported": 0.4, "contradicted": 0.6}',
    ],
)
def test_without_one_clear_verdict_a_completion_is_unparsable(completion: str) -> None:
    with pytest.raises(Unparsable):
        verdict(completion)


def test_words_of_claim_and_evidence_are_not_a_verdict() -> None:
    with pytest.raises(Unparsable):
        verdict("The evidence says that the beam is supported.", evidence=["The beam is supported by a wall."])
    assert verdict("supported", evidence=["The beam is supported by a wall."]) == "supported"


# Covered facts


@pytest.mark.parametrize(
    "label", ["NOT_COVERED", "not_covered", "not covered", "NOT COVERED", "Not-Covered", "NotCovered"]
)
@pytest.mark.parametrize(
    "more", ["", ', "evidence_claim_ids": []', ', "evidence_claim_ids": [9]', ', "evidence_claim_ids": null']
)
def test_what_is_not_covered_has_no_claims(label: str, more: str) -> None:
    assert covering(f'{{"label": "{label}"{more}}}') == []
    with pytest.raises(Unparsable):
        covering(f'{{"label": "{label}", "evidence_claim_ids": [1]}}')


@pytest.mark.parametrize(
    "more", ["", ', "evidence_claim_ids": []', ', "evidence_claim_ids": [4]', ', "evidence_claim_ids": null']
)
def test_covered_by_no_known_claim_is_unparsable(more: str) -> None:
    with pytest.raises(Unparsable):
        covering(f'{{"label": "COVERED"{more}}}')


@pytest.mark.parametrize("between", ["\n", "\n\nAnd again:\n", ", "])
def test_equal_objects_are_merged_and_others_are_unparsable(between: str) -> None:
    same = '{"label": "covered", "evidence_claim_ids": ["1", 7]}'
    assert covering(f"{COVERED}{between}{same}") == [1]
    for other in ('{"label": "NOT_COVERED"}', '{"label": "COVERED", "evidence_claim_ids": [2]}'):
        with pytest.raises(Unparsable):
            covering(f"{COVERED}{between}{other}")


@pytest.mark.parametrize(
    "completion",
    [
        *(
            "COVERED",
            "COVERED / NOT_COVERED",
            "NOT_COVERED or COVERED [1]",
            "Is it covered? [1]",
            "uncovered claims: 1",
        ),
        *("{'label': 'COVERED', 'evidence_claim_ids': [1}", COVERED[:-2], f"{COVERED}\n{{label: NOT_COVERED}}"),
        *('{"label": "PARTLY COVERED", "evidence_claim_ids": [1]}', '{"evidence_claim_ids": [1]}', "[1]"),
        '{"label": "COVERED", "covered": "no", "evidence_claim_ids": [1]}',
        '{"label": "COVERED", "evidence_claim_ids": [{"reason": "It is so."}]}',
    ],
)
def test_a_judgement_that_cannot_be_read_is_unparsable(completion: str) -> None:
    with pytest.raises(Unparsable):
        covering(completion)


def test_a_lone_label_is_read_with_its_numbers() -> None:
    assert covering("NOT_COVERED") == covering("**Label:** not covered: no claim says it") == []
    assert covering("COVERED [1, 3]") == covering("Label: COVERED\nEvidence claim ids: 1 and 3") == [1, 3]


# The shipped prompts


def shown(stage: str, *folder: str) -> list[tuple[str, str]]:
    """Return the user and assistant turns of the examples in a template."""
    file = files("untold.conf").joinpath("prompts", *folder, f"{stage}.jinja")
    turns = split_turns(file.read_text(encoding="utf-8"))[1:-1]
    return [(asked, said) for (_, asked, _), (_, said, _) in zip(turns[::2], turns[1::2], strict=True)]


@pytest.mark.parametrize("folder", [(), ("published",)])
def test_the_examples_of_the_shipped_prompts_are_in_the_form(folder: tuple[str, ...]) -> None:
    for _, said in shown("extract_facts", *folder):
        assert said == "None" or [f"- {fact}" for fact in facts(said)] == said.split("\n")
    for asked, said in shown("rate_importance", *folder):
        assert len(json.loads(said)) == len(ratings(said, ["text"] * asked.count("<fact id=")))
    for _, said in shown("extract_verifiable_claims"):
        assert ("\n".join(EXTRACT_VERIFIABLE_CLAIMS.parse(said, {})["claims"]) or "None") == said
    for _, said in shown("verify_claim"):
        assert verdict(said) == said
    for asked, said in shown("check_coverage", *folder):
        assert covering(said, ["text"] * asked.count("<claim id=")) == json.loads(said)["evidence_claim_ids"]


@pytest.mark.parametrize("folder", [(), ("published",)])
def test_the_examples_show_every_answer(folder: tuple[str, ...]) -> None:
    assert shown("extract_facts", *folder)[-1][1] == "None"
    assert {said for _, said in shown("verify_claim")} == set(VERDICTS)
    assert {len(covering(said)) for _, said in shown("check_coverage", *folder)} == {0, 1, 2}
    rated = [one for _, said in shown("rate_importance", *folder) for one in json.loads(said)]
    assert {one["relevance"] for one in rated} == {one["salience"] for one in rated} == set(range(1, 6))


def test_texts_are_numbered_from_one_in_prompts() -> None:
    source = files("untold.conf").joinpath("prompts", "verify_claim.jinja").read_text(encoding="utf-8")
    prompt = compile_prompt(source).messages({"claim": "It is wet.", "evidence": ["It rains.", "It pours."]})[-1][
        "content"
    ]
    assert prompt == (
        '<evidence id="1">It rains.</evidence>\n<evidence id="2">It pours.</evidence>\n\n<claim>It is wet.</claim>'
    )
