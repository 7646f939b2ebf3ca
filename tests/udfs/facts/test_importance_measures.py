"""Compare the weights, ranks and measures of importance with the definition, and the bounds with all possible
results.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from untold.udfs.facts.aspect_coverage import f_score
from untold.udfs.facts.importance_measures import (
    CheckedFact,
    RatedFact,
    measures_of,
    names_of_measures,
    rank_facts,
    recall_at,
    weigh,
)

RATINGS = st.floats(1, 5) | st.sampled_from([1.0, 3.0, 3.5, 5.0])
WEIGHTS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.5]) | st.floats(0, 1)
VERDICTS = st.sampled_from(["supported", "contradicted", "not_supported", None])
KS = (1, 2, 3)


def fact(number: int, relevance: float | None, salience: float | None, weight: float | None = None) -> RatedFact:
    known = weigh(relevance, salience, 0.5) if relevance is not None and salience is not None else 0.0
    return RatedFact(number, relevance, salience, known if weight is None else weight)


RATED = st.lists(st.tuples(RATINGS, RATINGS), max_size=8).map(
    lambda rated: [fact(number, *ratings) for number, ratings in enumerate(rated, start=1)]
)
CHECKED = st.lists(st.tuples(WEIGHTS, st.sampled_from([True, False, None])), max_size=5).flatmap(
    lambda found: st.permutations(range(1, len(found) + 1)).map(
        lambda ranks: [
            CheckedFact(weight, covered, rank, len(ranks) + 1 - rank, number)
            for number, ((weight, covered), rank) in enumerate(zip(found, ranks, strict=True), start=1)
        ]
    )
)


@given(RATINGS, RATINGS, st.floats(0, 1))
def test_weights_are_the_formula(relevance: float, salience: float, share: float) -> None:
    a = Fraction(share)
    wanted = a * (Fraction(relevance) - 1) / 4 + (1 - a) * (Fraction(salience) - 1) / 4
    assert weigh(relevance, salience, share) == pytest.approx(float(wanted), abs=1e-12)


@given(RATED, st.sampled_from([None, 0.25, 0.5, 1.0]), st.sampled_from([None, 1, 3]))
def test_ranks_and_kept_facts_equal_the_definition(
    facts: list[RatedFact], least: float | None, top: int | None
) -> None:
    ranked = rank_facts(facts, least, top)
    assert [replace(one, rank=0, relevance_rank=0, salience_rank=0, kept=True) for one in ranked] == facts

    def order(*names: str) -> list[int]:
        return [
            one.number
            for one in sorted(facts, key=lambda one: (*(-round(getattr(one, name), 9) for name in names), one.number))
        ]

    for rank, names in (
        ("rank", ("weight", "relevance")),
        ("relevance_rank", ("relevance", "salience")),
        ("salience_rank", ("salience", "relevance")),
    ):
        by_rank = sorted(ranked, key=lambda one: getattr(one, rank))
        assert [getattr(one, rank) for one in by_rank] == list(range(1, len(facts) + 1))
        assert [one.number for one in by_rank] == order(*names)
    heavy = [one for one in order("weight", "relevance") if least is None or round(facts[one - 1].weight, 9) >= least]
    assert {one.number for one in ranked if one.kept} == set(heavy[:top])


def test_given_weights_are_ranked_among_rated_weights() -> None:
    facts = [fact(1, None, None, 0.5), fact(2, 3.0, 3.0), fact(3, None, None, 2.0), fact(4, None, None, 0.5)]
    assert [one.rank for one in rank_facts(facts, None, None)] == [3, 2, 1, 4]


def test_weights_that_differ_by_rounding_are_equal() -> None:
    facts = [fact(1, 3.0, 3.0, 0.5), fact(2, 3.0, 3.0, 0.5 + 1e-12)]
    assert [one.rank for one in rank_facts(facts, 0.5 + 1e-11, None)] == [1, 2]
    assert all(one.kept for one in rank_facts(facts, 0.5 + 1e-11, None))


@given(st.lists(VERDICTS, max_size=6), CHECKED)
def test_recall_at_all_is_recall(verdicts: list[str | None], facts: list[CheckedFact]) -> None:
    measures = measures_of(verdicts, len(verdicts), facts, (len(facts) or 1, 50), rated=True)
    for name in ("recall", "recall_relevance", "recall_salience"):
        assert measures[f"{name}@{len(facts) or 1}"] == measures[f"{name}@50"] == measures["recall"]


@given(CHECKED, st.sampled_from([0.1, 0.5, 1.0]))
def test_equal_weights_make_weighted_recall_recall(facts: list[CheckedFact], weight: float) -> None:
    equal = [replace(one, weight=weight) for one in facts]
    measures = measures_of([], 0, equal, KS, rated=True)
    for end in ("value", "low", "high"):
        found, wanted = getattr(measures["weighted_recall"], end), getattr(measures["recall"], end)
        assert found is wanted or found == pytest.approx(wanted)


@given(CHECKED)
def test_the_order_of_facts_changes_no_measure(facts: list[CheckedFact]) -> None:
    wanted = measures_of([], 0, facts, KS, rated=True)
    assert measures_of([], 0, facts[::-1], KS, rated=True) == wanted


@given(st.lists(VERDICTS, max_size=5), CHECKED)
def test_bounds_hold_for_all_results_and_values_are_between_them(
    verdicts: list[str | None], facts: list[CheckedFact]
) -> None:
    assume(verdicts.count(None) + sum(one.covered is None for one in facts) <= 5)
    measures = measures_of(verdicts, len(verdicts), facts, KS, rated=True)
    unjudged = [place for place, one in enumerate(verdicts) if one is None]
    unchecked = [place for place, one in enumerate(facts) if one.covered is None]
    reached: dict[str, list[float]] = {name: [] for name in measures}
    for said in product(("supported", "contradicted", "not_supported"), repeat=len(unjudged)):
        for covered in product((True, False), repeat=len(unchecked)):
            whole = list(verdicts)
            for place, label in zip(unjudged, said, strict=True):
                whole[place] = label
            checked = list(facts)
            for place, flag in zip(unchecked, covered, strict=True):
                checked[place] = replace(checked[place], covered=flag)
            for name, one in measures_of(whole, len(whole), checked, KS, rated=True).items():
                assert (one.value, one.value) == (one.low, one.high)
                if one.value is not None:
                    reached[name].append(one.value)
    for name, one in measures.items():
        if not reached[name]:
            assert (one.value, one.low, one.high) == (None, None, None)
            continue
        assert one.low is not None
        assert one.high is not None
        # Both of the bounds are reached, so they are as tight as possible
        assert (min(reached[name]), max(reached[name])) == (pytest.approx(one.low), pytest.approx(one.high))
        assert one.value is None or one.low - 1e-12 <= one.value <= one.high + 1e-12


@given(st.lists(VERDICTS, min_size=1, max_size=8))
def test_rates_are_shares_of_the_judged_claims(verdicts: list[str | None]) -> None:
    measures = measures_of(verdicts, len(verdicts), [], KS, rated=True)
    judged = [one for one in verdicts if one is not None]
    names = {"precision": "supported", "contradiction_rate": "contradicted", "not_supported_rate": "not_supported"}
    for name, label in names.items():
        wanted = judged.count(label) / len(judged) if judged else None
        assert measures[name].value == (None if wanted is None else pytest.approx(wanted))
        assert measures[name].low == pytest.approx(verdicts.count(label) / len(verdicts))


def test_a_measure_without_facts_or_claims_is_undefined() -> None:
    empty = measures_of([], 0, [], KS, rated=True)
    assert {name for name, one in empty.items() if one.value is None} == set(empty) - {"claims", "facts"}
    assert (empty["claims"].value, empty["facts"].value) == (0.0, 0.0)
    blank = measures_of([], 0, [CheckedFact(0.5, False, 1, 1, 1)], KS, rated=True)
    assert (blank["recall"].value, blank["precision"].value, blank["f1"].value) == (0.0, None, None)
    unread = measures_of(None, None, [], KS, rated=True)
    assert unread["claims"].value is unread["precision"].low is None
    # All facts have the weight zero
    light = measures_of([], 0, [CheckedFact(0.0, True, 1, 1, 1)], KS, rated=True)
    assert (light["weighted_recall"].high, light["recall"].value) == (None, 1.0)


def test_given_weights_leave_no_rank_by_one_rating() -> None:
    measures = measures_of([], 0, [CheckedFact(1.0, True, 1)], (2,), rated=False)
    assert (measures["recall@2"].value, measures["recall_relevance@2"].high) == (1.0, None)


@given(st.floats(0, 1), st.floats(0, 1))
def test_f1_is_the_harmonic_mean(precision: float, recall: float) -> None:
    found = f_score(precision, recall)
    assert found is not None
    if precision > 1e-150 and recall > 1e-150:
        assert found == pytest.approx(2 / (1 / precision + 1 / recall))
    else:
        assert found <= 1e-149


def test_recall_at_k_counts_the_first_by_rank() -> None:
    facts = [CheckedFact(0.1, True, 3, 1, 2), CheckedFact(0.9, False, 1, 2, 3), CheckedFact(0.5, True, 2, 3, 1)]
    assert [recall_at(facts, k).value for k in (1, 2, 3, 9)] == [0.0, 0.5, 2 / 3, 2 / 3]
    assert [recall_at(facts, 1, rank).value for rank in ("relevance_rank", "salience_rank")] == [1.0, 1.0]


def test_measures_have_names_by_the_settings() -> None:
    assert names_of_measures([5, 5, 10])[6:] == [
        *("recall@5", "recall@10", "recall_relevance@5", "recall_relevance@10"),
        *("recall_salience@5", "recall_salience@10", "claims", "facts"),
    ]
