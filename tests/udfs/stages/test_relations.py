"""Test the parser of the relation between a premise and a hypothesis."""

from __future__ import annotations

from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.udfs.stages.nli_read import relation
from untold.udfs.llm.keys import Stage
from untold.udfs.stages import STAGES
from untold.udfs.stages.arrow import _parse, make_parser
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.nli import RELATIONS

TEXTS = pa.schema([(name, pa.string()) for name in ("request_id", "text_of_completion", "error_type", "error")])


@pytest.mark.parametrize("label", RELATIONS)
@pytest.mark.parametrize(
    "form",
    [
        "{}",
        " {}\n",
        "{}.",
        "**{}**",
        '"{}"',
        "`{}`",
        "[{}]",
        "- {}",
        "1. {}",
        "Answer: {}",
        "Relation: {}.",
        "**Label:** {}",
        "Label: **{}**",
        "Relationship:\n{}",
        "The answer is {}.",
        "So the relation between the premise and the hypothesis is **{}**.",
        "{}. The premise speaks of the same thing.",
        "{} - the premise says enough.",
        "{}\n\nExplanation: no entailment would be without doubt, and no contradiction either; not neutral.",
        "{}\n\nPremise: It snows.\nHypothesis: It is cold.\nRelation: neutral\n\nPremise: It",
        "{}\nPremise: It snows.\nHypothesis: It is summer.\nRelation: contradiction",
        "Premise: It rains.\nHypothesis: It is wet.\nRelation: {}",
        "Entailment, contradiction or neutral? Final answer: {}",
        "It is not clear. If it were wet, entailment.\n\nAnswer: {}",
        "Answer: neutral? No.\nFinal answer: {}",
        "<think>entailment? contradiction? neutral?</think>\n{}",
        "```\n{}\n```",
        "I would say that it is {}",
    ],
)
def test_the_answer_is_found(form: str, label: str) -> None:
    assert relation(form.format(label)) == label
    assert relation(form.format(label.capitalize())) == label
    assert relation(form.format(label.upper())) == label


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("The premise entails the hypothesis.", "entailment"),
        ("Entails", "entailment"),
        ("The hypothesis is entailed by the premise", "entailment"),
        ("The hypothesis contradicts the premise.", "contradiction"),
        ("They are contradictory.", "contradiction"),
        ("contradictory", "contradiction"),
        ("Neutral, because the premise neither entails nor contradicts the hypothesis.", "neutral"),
        ("Neutral: the premise doesn't entail the hypothesis.", "neutral"),
        ("The premise neither entails nor contradicts the hypothesis.", "neutral"),
        ("It is neither contradicted nor entailed.", "neutral"),
        ("certain", "entailment"),
        ("**Impossible**: the years differ.", "contradiction"),
        ("Open.", "neutral"),
        ("The hypothesis is impossible.", "contradiction"),
        ("Answer: open", "neutral"),
        ('{"relation": "neutral", "reason": "It adds something."}', "neutral"),
        ("<|channel|>analysis<|message|>entailment?<|end|><|channel|>final<|message|>neutral<|return|>", "neutral"),
    ],
)
def test_verbs_are_labels_and_negated_ones_are_not(completion: str, expected: str) -> None:
    assert relation(completion) == expected


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "Yes.",
        "not entailed",
        "The premise is not neutral but contradicts the hypothesis.",
        "This rules out contradiction.",
        "To avoid contradiction, I would say neutral.",
        "The premise only entails the year.",
        "Entailment: no",
        "No contradiction.",
        "There is no clear contradiction here.",
        "The hypothesis isn't entailed by the premise.",
        "I cannot tell whether the premise entails it.",
        "Non-contradictory",
        "entailment or neutral",
        "Entailment/Neutral",
        "entailment, contradiction, neutral",
        "The answer is entailment or neutral.",
        "neutral\ncontradiction",
        "Entailment: it says so.\nContradiction: it says otherwise.",
        "It may be entailment. It may be a contradiction.",
        "entailmentneutral",
        "Entailment?",
        "**Neutral**? Hard to say.",
        "Premise: Its label is neutral.\nHypothesis: It is grey.",
        "<think>neutral",
    ],
)
def test_without_one_clear_answer_a_relation_is_unparsable(completion: str) -> None:
    with pytest.raises(Unparsable):
        relation(completion)


def test_words_of_the_premise_or_hypothesis_are_not_an_answer() -> None:
    with pytest.raises(Unparsable):
        relation("The premise says that Sweden was neutral.", "Sweden was neutral.", "Sweden took no side.")
    assert relation("Neutral.", "Sweden was neutral.", "Sweden took no side.") == "neutral"
    with pytest.raises(Unparsable):
        relation("Sweden was neutral: it entails that.", "Sweden was neutral.", "No side.")


said = st.sampled_from([*RELATIONS, "Neutral.", "no idea", "", None])
stored = st.tuples(said, st.sampled_from([None, "http_500", ""]), st.sampled_from([None, "broken"]))


@given(st.lists(stored, max_size=12))
def test_equal_completions_of_a_batch_are_parsed_once_with_the_same_result(rows: list[tuple[str | None, ...]]) -> None:
    bound = Stage("classify_relation", STAGES["classify_relation"].variables, "m", template="")
    batches = [
        pa.RecordBatch.from_pylist([dict(zip(TEXTS.names, (str(place), *row), strict=True))], TEXTS)
        for place, row in enumerate(rows)
    ]
    each = [row for batch in make_parser(bound, ())(iter(batches)) for row in batch.to_pylist()]
    together = pa.Table.from_batches(batches, TEXTS).combine_chunks().to_batches()
    with patch("untold.udfs.stages.arrow._parse", side_effect=_parse) as read:
        found = [row for batch in make_parser(bound, ())(iter(together)) for row in batch.to_pylist()]
    assert found == each
    assert read.call_count == len(set(rows))
