"""Weights of statements: the measures are the sums of brute force, and their bounds hold all results."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.facts.importance_measures import (
    CHANGE,
    SOURCE_WEIGHTED,
    WITHOUT,
    WeighedStatement,
    Weighting,
    rank_by_relevance,
    relevance_measures,
    source_measures,
    weigh_batches,
)

WEIGHTS = {"wiki": 1.0, "forum": 0.25, "1": 0.5}
SOURCES = [("1", "wiki"), ("2", "wiki"), ("3", "forum"), ("4",)]
statements = st.lists(
    st.builds(
        WeighedStatement,
        covered=st.sampled_from([True, False, None]),
        weight=st.sampled_from([0.0, 0.5, 1.0]),
        sources=st.lists(st.sampled_from(SOURCES), unique=True, max_size=3),
    ),
    max_size=5,
)


def covered_share(known: list[tuple[bool, Fraction]]) -> Fraction | None:
    whole = sum((weight for _, weight in known), Fraction(0))
    return sum((weight for covered, weight in known if covered), Fraction(0)) / whole if whole else None


def by_hand(known: list[WeighedStatement], flags: list[bool]) -> dict[str, Fraction | None]:
    """Return the measures of statements with these flags, in fractions."""
    weight = {"1": "1/2", "2": "1", "3": "1/4", "4": "1"}
    pairs = list(zip(flags, known, strict=True))

    def factor(one: WeighedStatement) -> Fraction:
        return max((Fraction(weight[name]) for name, *_ in one.sources), default=Fraction(1))

    plain = covered_share([(flag, Fraction(one.weight)) for flag, one in pairs])
    found = {SOURCE_WEIGHTED: covered_share([(flag, Fraction(one.weight) * factor(one)) for flag, one in pairs])}
    for source in WEIGHTS:
        left = [pair for pair in pairs if any(source not in names for names in pair[1].sources) or not pair[1].sources]
        without = covered_share([(flag, Fraction(one.weight)) for flag, one in left])
        found[f"{WITHOUT}{source}"] = without
        found[f"{CHANGE}{source}"] = None if without is None or plain is None else without - plain
    return found


@given(statements)
def test_measures_of_sources_equal_brute_force(known: list[WeighedStatement]) -> None:
    judged = [one for one in known if one.covered is not None]
    expected = by_hand(judged, [bool(one.covered) for one in judged])
    found = source_measures(judged, WEIGHTS)
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].value == (None if value is None else pytest.approx(float(value)))


@given(statements)
def test_bounds_hold_the_results_of_all_unjudged_statements(known: list[WeighedStatement]) -> None:
    found = source_measures(known, WEIGHTS)
    for flags in product(*([True, False] if one.covered is None else [one.covered] for one in known)):
        for name, value in by_hand(known, list(flags)).items():
            if value is not None:
                low, high = found[name].low, found[name].high
                assert low is not None
                assert high is not None
                assert low - 1e-12 <= value <= high + 1e-12


@given(st.lists(st.none() | st.sampled_from([1.0, 2.5, 4.0, 5.0]), max_size=6), st.data())
def test_recall_at_k_counts_the_most_relevant_statements(ratings: list[float | None], data: st.DataObject) -> None:
    covered = [data.draw(st.booleans()) for _ in ratings]
    ranked = rank_by_relevance(ratings)
    order = sorted((-one, place) for place, one in enumerate(ratings) if one is not None)
    found = relevance_measures(covered, ranked, [1, 3])
    for k in (1, 3):
        first = [covered[place] for _, place in order[:k]]
        assert found[f"recall@{k}"].value == (sum(first) / len(first) if first else None)
    assert sorted(rank for _, rank in ranked if rank is not None) == list(range(1, len(order) + 1))


def row(status: str = "ok", **changes: Any) -> dict[str, Any]:
    one = {"statement_id": "s:nli:1", "kept": None, "weight": None, "relevance": 3.0, "sources": ["1"], "covered": True}
    return {
        "sample_id": "s",
        "status": status,
        "contexts": [{"id": "1", "kind": "wiki"}, {"id": "3", "kind": "forum"}],
        "statements": [
            {**one, "number": 10, "statement_id": "s:nli:10", "sources": ["3"], "relevance": 5.0, "covered": False},
            {**one, "number": 9, "statement_id": "s:nli:9"},
        ],
        **changes,
    }


def weighed(given: dict[str, Any], **options: Any) -> dict[str, Any]:
    batch = pa.RecordBatch.from_pylist([given])
    (found,) = weigh_batches([batch], Weighting({"forum": 0.25}, **options))
    (only,) = found.to_pylist()
    return {**only, "measures": {one["measure"]: one for one in only["measures"]}}


def test_statements_have_their_weights_in_the_order_of_their_numbers() -> None:
    found = weighed(row(), ks=[1])
    assert found["weights"] == [
        {"statement_id": "s:nli:9", "source_weight": 1.0, "relevance_weight": 0.5, "relevance_rank": 2},
        {"statement_id": "s:nli:10", "source_weight": 0.25, "relevance_weight": 1.0, "relevance_rank": 1},
    ]
    assert found["measures"]["source_weighted"]["value"] == 0.8
    assert found["measures"]["recall@1"]["value"] == 0.0
    assert found["measures"]["weighted_recall"]["value"] == pytest.approx(1 / 3)


def test_a_missing_relation_may_change_every_statement() -> None:
    measures = weighed(row("partial"), whole_range=True)["measures"]
    assert (measures["source_weighted"]["value_low"], measures["source_weighted"]["value_high"]) == (0.0, 1.0)
    assert (measures["change_without:forum"]["value_low"], measures["change_without:forum"]["value_high"]) == (
        -1.0,
        1.0,
    )


def test_a_sample_without_statements_has_undefined_measures() -> None:
    found = weighed(row("no_statements", statements=None, contexts=None))
    assert found["weights"] == []
    assert [one["value"] for one in found["measures"].values()] == [None, None, None]


def test_each_measure_has_bounds_for_samples_without_results() -> None:
    weighting = Weighting({"forum": 0.25}, ks=[5])
    assert list(weighting.bounds()) == [
        "source_weighted",
        "without:forum",
        "weighted_recall",
        "recall@5",
        "change_without:forum",
    ]
    assert not Weighting({})
