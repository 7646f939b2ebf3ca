"""Compare the measures of nuggets with brute force. The bounds hold for all results of the lost requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.expected_nuggets import ExpectedNugget, Options, expected_nuggets
from tests.fakes.expected_nuggets import measures_of as expected_measures
from tests.fakes.nuggets import support_of
from tests.fakes.world_importance import texts_of
from tests.fakes.world_nuggets import nugget_worlds
from untold.udfs.facts.nugget_measures import (
    NUGGET,
    SUPPORTS,
    Nugget,
    conclude_batches,
    measures_of,
    rank_batches,
)
from untold.udfs.samples.items import IMPORTANCES

WEIGHTS = st.none() | st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0])
NUGGETS = st.lists(
    st.builds(Nugget, st.sampled_from(IMPORTANCES), st.none() | st.sampled_from(SUPPORTS), WEIGHTS), max_size=6
)


def ends_of(nuggets: Sequence[Nugget]) -> dict[str, tuple[float | None, ...]]:
    return {name: (one.value, one.low, one.high) for name, one in measures_of(nuggets).items()}


@given(NUGGETS)
def test_measures_equal_brute_force(nuggets: list[Nugget]) -> None:
    expected = [ExpectedNugget("", one.importance, True, one.support, None, one.weight) for one in nuggets]
    found, wanted = ends_of(nuggets), expected_measures(expected)
    assert found.keys() == wanted.keys()
    for name, ends in wanted.items():
        assert found[name] == pytest.approx(ends), name


def test_the_largest_weights_are_shares_too() -> None:
    given = [("vital", "support", 1.5e308), ("vital", "not_support", 1.5e308), ("okay", None, 1.5e308)]
    assert ends_of([Nugget(*one) for one in given])["weighted"] == pytest.approx((0.5, 1 / 3, 2 / 3))


@given(NUGGETS)
def test_bounds_hold_for_all_results_of_the_lost_requests(nuggets: list[Nugget]) -> None:
    found = measures_of(nuggets)
    for labels in product(*([one.support] if one.support else SUPPORTS for one in nuggets)):
        whole = [Nugget(one.importance, label, one.weight) for one, label in zip(nuggets, labels, strict=True)]
        for name, one in measures_of(whole).items():
            if one.value is not None:
                low, high = found[name].low, found[name].high
                assert low is not None
                assert high is not None
                assert low - 1e-9 <= one.value <= high + 1e-9, name


def test_a_nugget_with_a_weight_below_0_is_left_out() -> None:
    given = [("b", "okay", -3.0), ("a", "vital", None), ("c", "okay", 2.0), ("d", "okay", None)]
    names = ("text", "importance", "weight")
    row = {"owner": "o", "nuggets": [dict(zip(names, one, strict=True)) for one in given], "rated": []}
    (ranked,) = rank_batches(batch([row], owner=pa.string(), nuggets=GIVEN, rated=LABELS), 3)
    (nuggets,) = (one["nuggets"] for one in ranked.to_pylist())
    assert [(one["text"], one["kept"]) for one in nuggets] == [("a", True), ("c", True), ("d", True), ("b", False)]


def test_without_vital_nuggets_the_vital_measures_are_undefined() -> None:
    found = ends_of([Nugget("okay", "support"), Nugget("okay", "not_support")])
    assert found["vital"] == found["strict_vital"] == (None, None, None)
    assert found["all"] == found["weighted"] == (0.5,) * 3
    assert set(ends_of([])["all"]) == {None}


def batch(rows: Sequence[Mapping[str, Any]], **types: pa.DataType) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(rows, pa.schema(list(types.items())))]


LABELS = pa.list_(pa.struct([("number", pa.int64()), ("label", pa.string())]))
GIVEN = pa.list_(pa.struct([field for field in NUGGET if field.name not in ("number", "kept")]))


def concluded(sample: Mapping[str, Any], texts: Sequence[str], options: Options) -> Mapping[str, Any]:
    """Return the result of ranking and conclusion for a sample without errors."""
    expected = expected_nuggets(sample, texts, options)
    in_order = [
        {"reference_id": one.reference_id, "text": one.text, "importance": one.importance, "weight": one.weight}
        for one in sorted(expected.nuggets, key=lambda one: one.importance == "vital")
    ]
    unrated = [{**one, "importance": None} if one["weight"] is None else one for one in in_order]
    rated = [{"number": place, "label": one["importance"]} for place, one in enumerate(in_order, start=1)]
    row = {"owner": "o", "nuggets": unrated, "rated": rated}
    (ranked,) = rank_batches(batch([row], owner=pa.string(), nuggets=GIVEN, rated=LABELS), options.top_k)
    (nuggets,) = (one["nuggets"] for one in ranked.to_pylist())
    assigned = [
        {"number": one["number"], "label": support_of(sample["response"], one["text"], options.judge)}
        for one in nuggets
        if one["kept"]
    ]
    row = {"sample_id": "s", "blank": not sample["response"].strip(), "nuggets": nuggets, "assigned": assigned}
    types = {"sample_id": pa.string(), "blank": pa.bool_(), "nuggets": pa.list_(NUGGET), "assigned": LABELS}
    (found,) = conclude_batches(batch([row], **types), options.score)
    (one,) = found.to_pylist()
    return one


@pytest.mark.parametrize(
    "options", [Options(top_k=3), Options(score="strict_all"), Options(judge="noisy")], ids=["cut", "strict", "noisy"]
)
def test_hundreds_of_worlds_are_concluded_as_by_brute_force(options: Options) -> None:
    left_out = 0
    for world in nugget_worlds(210):
        for sample in world.samples(2):
            texts = [text for _, text in texts_of(sample)]
            expected = expected_nuggets(sample, texts, options)
            found = concluded(sample, texts, options)
            ends = {one["measure"]: (one["value"], one["value_low"], one["value_high"]) for one in found["measures"]}
            assert ends == {name: pytest.approx(wanted) for name, wanted in expected.measures.items()}
            assert (found["covered"], found["uncovered"], found["unjudged"]) == expected.counts
            assert found["empty"] == (expected.status == "no_statements")
            assert [(one["text"], one["importance"], one["support"]) for one in found["statements"]] == [
                (one.text, one.importance, one.support) for one in expected.nuggets
            ]
            left_out += found["left_out"]
    assert (left_out > 50) == (options.top_k == 3)
