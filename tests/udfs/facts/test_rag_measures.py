"""Test the measures of RAGChecker: published figures, undefined measures, and the bounds for unknown relations."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.expected_rag import RELATIONS, Checked, Relation
from untold.udfs.facts.rag_measures import (
    GENERATOR,
    HALLUCINATION,
    OVERALL,
    PUBLISHED,
    RETRIEVER,
    ClaimSide,
    measures_of,
)

Rows = list[list[Relation]]


def side(rows: Sequence[Sequence[Relation]]) -> ClaimSide:
    return ClaimSide([row[0] for row in rows], [row[1:] for row in rows])


def measured(response: Rows, truth: Rows, contexts: int) -> dict[str, float | None]:
    return {name: one.value for name, one in measures_of(side(response), side(truth), contexts).items()}


@st.composite
def checked(draw: st.DrawFn) -> Checked:
    """Draw a few claims and contexts. At most four relations are unknown, so there are at most 81 possible results."""
    contexts = draw(st.integers(0, 3))
    rows = st.lists(st.lists(st.sampled_from(RELATIONS), min_size=contexts + 1, max_size=contexts + 1), max_size=3)
    response, truth = draw(rows), draw(rows)
    cells = [(row, place) for row in (*response, *truth) for place in range(contexts + 1)]
    for row, place in draw(st.lists(st.sampled_from(cells), max_size=4)) if cells else ():
        row[place] = None
    return Checked([], [], response, truth, contexts)


@given(checked())
def test_bounds_cover_all_possible_unknown_relations(one: Checked) -> None:
    found = measures_of(side(one.of_response), side(one.of_truth), one.contexts)
    assert {name: (row.low, row.high) for name, row in found.items()} == one.measures()
    for name, row in found.items():
        if row.value is None:
            assert row.low is None or one.unjudged, name
        else:
            assert row.low <= row.value <= row.high, name  # type: ignore[operator]


@given(checked())
def test_faults_are_the_rest_of_recall_and_precision(one: Checked) -> None:
    found = measured(one.of_response, one.of_truth, one.contexts)
    if not one.unjudged and one.of_truth:
        assert found["recall"] + found["not_retrieved"] + found["not_used"] == pytest.approx(1)  # type: ignore[operator]
    if not one.unjudged and one.of_response and one.of_truth and one.contexts:
        lost = sum(found[name] or 0.0 for name in (*GENERATOR[1:3], HALLUCINATION))
        assert found["precision"] == pytest.approx(1 - lost)


# The values are from the code of RAGChecker in 2024: six claims of a response, four of the truth, and three contexts
E, N, C = RELATIONS
RESPONSE = [[E, E, N, N], [N, E, N, N], [C, N, N, E], [N, N, N, N], [E, N, N, N], [N, E, N, E]]
TRUTH = [[E, E, N, N], [N, N, N, N], [N, E, C, N], [E, N, N, N]]
FIGURES = {
    "precision": 0.3333333333333333,
    "recall": 0.5,
    "f1": 0.4,
    "claim_recall": 0.5,
    "context_precision": 0.3333333333333333,
    "context_utilization": 0.5,
    "noise_sensitivity_in_relevant": 0.3333333333333333,
    "noise_sensitivity_in_irrelevant": 0.16666666666666666,
    "hallucination": 0.16666666666666666,
    "self_knowledge": 0.16666666666666666,
    "faithfulness": 0.6666666666666666,
}


def test_figures_equal_the_published_code_to_the_last_digit() -> None:
    found = measured(RESPONSE, TRUTH, 3)
    assert {name: found[name] for name in PUBLISHED} == FIGURES


@pytest.mark.parametrize(
    ("response", "truth", "contexts", "undefined"),
    [
        ([], [[E, E]], 1, {"precision", "f1", *GENERATOR[1:]}),
        ([[E, E]], [], 1, {"recall", "f1", *RETRIEVER, *GENERATOR[:3]}),
        ([[E]], [[E]], 0, {*RETRIEVER, *GENERATOR}),
        ([[E, E]], [[E, N]], 1, {"context_utilization"}),
        ([], [], 0, {*OVERALL, *RETRIEVER, *GENERATOR}),
    ],
)
def test_a_measure_with_a_zero_denominator_is_undefined(
    response: Rows, truth: Rows, contexts: int, undefined: set[str]
) -> None:
    found = measures_of(side(response), side(truth), contexts)
    assert {name for name in PUBLISHED if found[name].low is None} == undefined
