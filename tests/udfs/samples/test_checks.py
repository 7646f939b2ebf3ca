"""Test the ground truths and the claims of RAGChecker files as columns of samples."""

from __future__ import annotations

from typing import Any

import pytest

from untold.udfs.samples.conversion import Sample, to_sample
from untold.udfs.samples.file_records import FileRecord
from untold.udfs.samples.items import normalise_checks, normalise_ground_truth

CHECKS = {
    "response_claims": ["Bees fly.", ["Ice", "floats"]],
    "answer2response": ["Entailment", None],
    "retrieved2response": [["Neutral", "CONTRADICTION"], ["Abstain", None]],
}


def sample(values: dict[str, Any], *, as_text: bool = False) -> Sample:
    given = {"query": "q", "response": "r", "contexts": ["a", "b"], "ground_truth": "g", **values}
    needed = ("query", "response", "contexts", "ground_truth")
    return to_sample(FileRecord(given), as_text, needed, ("ground_truth", "claim_checks"))


def test_labels_are_lower_case_and_parts_of_a_claim_one_text() -> None:
    found = sample({"claim_checks": CHECKS})
    assert found.error is None
    assert found.rest["claim_checks"] == {
        "response_claims": ["Bees fly.", "Ice floats"],
        "answer2response": ["entailment", None],
        "retrieved2response": [["neutral", "contradiction"], ["neutral", None]],
        **dict.fromkeys(("gt_answer_claims", "response2answer", "retrieved2answer")),
    }


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("One. Two.", {"text": "One. Two.", "claims": None}),
        ('["One.", "Two."]', {"text": "One.\nTwo.", "claims": ["One.", "Two."]}),
        ('{"text": "t", "claims": ["One."]}', {"text": "t", "claims": ["One."]}),
    ],
)
def test_a_ground_truth_may_be_text_or_claims_in_csv_too(given: str, read: dict[str, Any]) -> None:
    assert sample({"ground_truth": given}, as_text=True).rest["ground_truth"] == read
    # The column has the same form in the table `samples`, because this table can be an input
    assert normalise_ground_truth(read) == read


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"ground_truth": None}, "ground_truth is null"),
        ({"ground_truth": {"claims": None}}, "ground_truth is neither text nor a list of claims"),
        ({"ground_truth": [{"text": "a"}]}, "claims of ground_truth has an item that is not a text"),
        ({"claim_checks": []}, "claim_checks is not an object"),
        ({"claim_checks": {"response_claims": "a"}}, "response_claims is not a list"),
        (
            {"claim_checks": {"answer2response": ["Neutral"]}},
            "answer2response has the length 1, but response_claims has 0",
        ),
        (
            {"claim_checks": {**CHECKS, "answer2response": ["yes", "no"]}},
            "answer2response has a relation that is none of",
        ),
        (
            {"claim_checks": CHECKS, "contexts": ["a"]},
            "a row of retrieved2response has the length 2, but contexts has 1",
        ),
    ],
)
def test_an_invalid_value_is_reported_without_its_text(values: dict[str, Any], error: str) -> None:
    assert error in (sample(values).error or "")


def test_checks_of_a_table_can_be_read_again() -> None:
    read = normalise_checks(CHECKS)
    assert normalise_checks(read) == read


def test_relations_of_missing_claims_are_left_out() -> None:
    found = normalise_checks({"response_claims": None, "answer2response": [], "retrieved2response": []})
    assert found is not None
    assert (found["response_claims"], found["answer2response"], found["retrieved2response"]) == (None, None, None)


def test_nan_is_not_a_ground_truth() -> None:
    assert normalise_ground_truth(float("nan")) is None
