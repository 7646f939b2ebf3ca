"""Compare the measures, bounds and aspects of a sample in icat with the definition, claim by claim."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.facts.aspect_coverage import choose_aspects, conclude_samples, f_score, measures_of
from untold.udfs.facts.claim_verdicts import SUPPORTED
from untold.udfs.facts.nodes import normalise

BETAS = st.sampled_from([0.125, 0.25, 0.5, 1.0, 2.0, 8.0])
UNIT = st.fractions(0, 1, max_denominator=50)
ROW = pa.schema(
    [
        ("sample_id", pa.string()),
        (
            "claims",
            pa.list_(
                pa.struct(
                    [
                        ("position", pa.int64()),
                        ("verdict", pa.string()),
                        ("unjudged", pa.bool_()),
                        ("subtopics", pa.list_(pa.string())),
                    ]
                )
            ),
        ),
        ("aspects", pa.list_(pa.struct([("reference_id", pa.string()), ("text", pa.string())]))),
        ("evidence", pa.list_(pa.list_(pa.int32()))),
    ]
)


def exact(fact: Fraction, coverage: Fraction, beta: float) -> Fraction:
    """Return the result of the formula in the paper, in fractions."""
    square = Fraction(beta) ** 2
    total = square * fact + coverage
    return (1 + square) * fact * coverage / total if total else Fraction(0)


@given(UNIT, UNIT, BETAS)
def test_icat_is_the_formula(fact: Fraction, coverage: Fraction, beta: float) -> None:
    found = f_score(float(fact), float(coverage), beta)
    assert found == pytest.approx(float(exact(fact, coverage, beta)), abs=1e-15)
    assert f_score(None, float(coverage), beta) is None
    assert f_score(float(fact), None, beta) is None


@given(st.floats(1e-300, 1.0), st.floats(0.0, 1.0), st.floats(1e-200, 1e3))
def test_icat_is_a_number_for_any_beta(fact: float, coverage: float, beta: float) -> None:
    found = f_score(fact, coverage, beta)
    assert found is not None
    assert 0.0 <= found <= 1.0 + 1e-12


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3), st.integers(0, 4), st.integers(0, 4), BETAS)
def test_bounds_hold_for_all_results_of_unjudged_claims(
    grounded: int, others: int, unjudged: int, covered: int, uncovered: int, beta: float
) -> None:
    claims, aspects = grounded + others + unjudged, covered + uncovered
    covered = covered if grounded else 0
    found = measures_of(grounded, unjudged, claims, covered, aspects, beta)
    assert found["claims"].value == claims
    if not claims or not aspects:
        assert (found["icat"].value, found["icat"].low, found["icat"].high) == (None, None, None)
        assert (found["s_fact"].value is None) == (claims == unjudged)
        assert (found["s_coverage"].value is None) == (not aspects)
        return
    ends = []
    for more, wider in product(range(unjudged + 1), range(aspects - covered + 1)):
        if wider and not more:
            continue
        fact, coverage = Fraction(grounded + more, claims), Fraction(covered + wider, aspects)
        ends.append(exact(fact, coverage, beta))
        assert found["s_fact"].low <= float(fact) + 1e-12
        assert found["s_fact"].high >= float(fact) - 1e-12
    assert found["icat"].low == pytest.approx(float(min(ends)), abs=1e-12)
    assert found["icat"].high == pytest.approx(float(max(ends)), abs=1e-12)
    if not unjudged:
        assert found["icat"].low == found["icat"].value == found["icat"].high


def conclude(by_documents: bool = False, **given: Any) -> dict[str, Any]:
    batch = pa.RecordBatch.from_pylist([{"sample_id": "s", **given}], ROW)
    (found,) = conclude_samples([batch], beta=1.0, by_documents=by_documents)
    (row,) = found.to_pylist()
    return {**row, "measures": {one["measure"]: one["value"] for one in row["measures"]}}


@st.composite
def samples(draw: st.DrawFn) -> dict[str, Any]:
    verdicts = draw(st.lists(st.sampled_from(["supported", "contradicted", "not_supported", None]), max_size=6))
    topics = st.lists(st.sampled_from("123"), unique=True)
    claims = [
        {"position": at, "verdict": verdict, "unjudged": verdict is None, "subtopics": draw(topics)}
        for at, verdict in enumerate(verdicts, start=1)
    ]
    aspects = [{"reference_id": str(at), "text": f"aspect {at}"} for at in range(1, draw(st.integers(0, 4)) + 1)]
    grounded = verdicts.count(SUPPORTED)
    numbers = st.lists(st.integers(1, max(grounded, 1)), unique=True, max_size=grounded).map(sorted)
    evidence = [draw(numbers) for _ in aspects] if grounded and aspects else None
    return {"claims": draw(st.permutations(claims)), "aspects": aspects, "evidence": evidence}


@given(samples(), st.booleans())
def test_only_grounded_claims_cover(sample: dict[str, Any], by_documents: bool) -> None:
    found = conclude(by_documents, **sample)
    claims = sorted(sample["claims"], key=lambda claim: claim["position"])
    grounded = [claim for claim in claims if claim["verdict"] == SUPPORTED]
    for at, statement in enumerate(found["statements"]):
        if by_documents:
            wanted = [claim["position"] for claim in grounded if statement["reference_id"] in claim["subtopics"]]
        else:
            wanted = [grounded[number - 1]["position"] for number in (sample["evidence"] or [[]] * 9)[at]]
        assert (statement["claims"], statement["covered"], statement["number"]) == (wanted, bool(wanted), at + 1)
    covered = sum(one["covered"] for one in found["statements"])
    assert (found["covered"], found["uncovered"]) == (covered, len(sample["aspects"]) - covered)
    assert found["empty"] == (not claims or not sample["aspects"])
    assert found["unjudged"] == sum(claim["verdict"] is None for claim in claims)
    if sample["aspects"] and not grounded:
        assert found["measures"]["s_coverage"] == 0.0


def test_a_sample_without_claims_has_coverage_and_no_score() -> None:
    found = conclude(aspects=[{"reference_id": "1", "text": "Cost"}], claims=[])
    assert found["measures"] == {"s_fact": None, "s_coverage": 0.0, "icat": None, "claims": 0.0}
    assert found["empty"]


@given(st.lists(st.sampled_from(["Cost", "cost.", "Safety", "History", "“History”"]), max_size=8), st.integers(1, 5))
def test_generated_aspects_are_cut_before_equal_aspects_are_removed(texts: list[str], most: int) -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"sample_id": "s", "given": None, "generated": texts}, {"sample_id": "t", "given": [], "generated": texts}],
        pa.schema(
            [
                ("sample_id", pa.string()),
                ("given", pa.list_(pa.struct([("id", pa.string()), ("text", pa.string())]))),
                ("generated", pa.list_(pa.string())),
            ]
        ),
    )
    (found,) = choose_aspects([batch], most)
    first = texts[:most]
    wanted = [text for at, text in enumerate(first) if normalise(text) not in map(normalise, first[:at])]
    for row in found.to_pylist():
        assert [(one["reference_id"], one["text"]) for one in row["aspects"]] == [(None, text) for text in wanted]


def test_given_aspects_keep_their_ids_and_are_never_cut() -> None:
    given = [{"id": str(at), "text": "the same"} for at in range(12)]
    batch = pa.RecordBatch.from_pylist([{"sample_id": "s", "given": given, "generated": None}])
    (found,) = choose_aspects([batch], 10)
    assert [one["reference_id"] for one in found.to_pylist()[0]["aspects"]] == [one["id"] for one in given]
