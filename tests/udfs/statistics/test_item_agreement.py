"""Compare votes, kappa and covered items with statsmodels, SciPy and a separate calculation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.inter_rater import fleiss_kappa as reference_kappa

from untold.udfs.statistics.intervals import FloatArray
from untold.udfs.statistics.item_agreement import fleiss_kappa, item_averages, krippendorff_alpha, votes

RESAMPLING_NOISE = 0.25  # in standard errors, of a limit with 10,000 resamples


@settings(deadline=None)
@given(st.none() | st.lists(st.sampled_from(["yes", "no", "partly", None]), max_size=7))
def test_votes_only_count_annotators_with_a_label(labels: list[str | None] | None) -> None:
    covered = sum(label in ("yes", "partly") for label in labels or ())
    said = sum(label is not None for label in labels or ())
    assert votes(labels, {"yes", "partly"}) == (covered, said - covered)


@settings(deadline=None)
@given(
    st.integers(2, 6).flatmap(
        lambda raters: st.lists(st.integers(0, raters).map(lambda yes: [yes, raters - yes]), min_size=1, max_size=20)
    )
)
def test_kappa_is_that_of_statsmodels(table: list[list[int]]) -> None:
    with np.errstate(invalid="ignore"):
        expected = float(reference_kappa(np.array(table)))
    found = fleiss_kappa(table)
    assert found is None if np.isnan(expected) else found == pytest.approx(expected)


def test_items_of_one_annotator_have_no_effect_on_agreement() -> None:
    table = [[2, 1], [3, 0], [0, 3]]
    assert fleiss_kappa([*table, [1, 0], [0, 0]]) == fleiss_kappa(table)
    assert fleiss_kappa([[1, 0], [0, 1]]) is None
    assert fleiss_kappa([]) is None


def test_annotators_may_differ_in_number() -> None:
    # Two of two annotators agree, one pair of three annotators agrees, and three of the five labels are yes
    assert fleiss_kappa([[2, 0], [1, 2]]) == pytest.approx(((1 + 1 / 3) / 2 - 13 / 25) / (1 - 13 / 25))


TABLES = st.integers(2, 3).flatmap(
    lambda kinds: st.lists(st.lists(st.integers(0, 4), min_size=kinds, max_size=kinds), min_size=1, max_size=20)
)


@settings(deadline=None)
@given(TABLES, st.data())
def test_alpha_of_counted_rows_equals_alpha_of_repeated_rows(table: list[list[int]], data: st.DataObject) -> None:
    items = data.draw(st.lists(st.integers(0, 5), min_size=len(table), max_size=len(table)))
    expected = krippendorff_alpha(np.repeat(np.array(table), items, axis=0))
    assert krippendorff_alpha(table, items) == (None if expected is None else pytest.approx(expected))


@settings(deadline=None)
@given(TABLES)
def test_alpha_is_that_of_the_package_krippendorff(table: list[list[int]]) -> None:
    reference = pytest.importorskip("krippendorff")
    counts = np.array(table)
    paired = counts[counts.sum(axis=1) >= 2]
    if (paired.sum(axis=0) > 0).sum() < 2:
        assert krippendorff_alpha(table) is None
    else:
        expected = reference.alpha(value_counts=counts, level_of_measurement="nominal")
        assert krippendorff_alpha(table) == pytest.approx(expected)


def test_alpha_of_annotators_that_differ_in_number_by_hand() -> None:
    # One of the three pairs of an item is unequal: 2 * 2 / (3 - 1), divided by 2 * 2 * 3 among five labels
    assert krippendorff_alpha([[2, 0], [0, 2], [1, 0]]) == 1.0
    assert krippendorff_alpha([[2, 0], [1, 2]]) == pytest.approx(1 - 4 * (2 * 1 * 2 / 2) / (2 * 3 * 2))


HITS, WRONG, MISSED = [2, 0, 0, 3, 1], [1, 0, 2, 0, 1], [0, 0, 1, 1, 3]


def test_covered_items_by_hand() -> None:
    found = item_averages(HITS, WRONG, MISSED, seed=0)
    value = {key: one.interval.mean for key, one in found.items()}
    assert value == pytest.approx(
        {
            ("precision", "macro"): (2 / 3 + 0 + 1 + 1 / 2) / 4,
            ("recall", "macro"): (1 + 0 + 3 / 4 + 1 / 4) / 4,
            ("f1", "macro"): (4 / 5 + 0 + 6 / 7 + 2 / 6) / 4,
            ("precision", "micro"): 6 / 10,
            ("recall", "micro"): 6 / 11,
            ("f1", "micro"): 12 / (12 + 4 + 5),
        }
    )
    assert {key: (one.n, one.excluded) for key, one in found.items() if key[1] == "macro"} == {
        (name, "macro"): (4, 1) for name in ("precision", "recall", "f1")
    }


def test_without_a_hit_or_a_miss_nothing_is_defined() -> None:
    found = item_averages([0, 0], [0, 0], [0, 0], seed=0)
    assert {(one.interval.mean, one.interval.low, one.n) for one in found.values()} == {(None, None, 0)}


def draw_items(n: int) -> tuple[FloatArray, ...]:
    random = np.random.default_rng(5)
    return tuple(random.integers(0, most, n) for most in (5, 3, 4))


@pytest.mark.parametrize("clustered", [False, True])
def test_limits_are_scipys_of_samples_or_of_clusters(clustered: bool) -> None:
    hits, wrong, missed = draw_items(60)
    owner = np.arange(60) // 2 if clustered else np.arange(60)
    units = int(owner.max()) + 1

    def micro(chosen: FloatArray) -> float:
        places = np.concatenate([np.flatnonzero(owner == one) for one in chosen])
        return 2 * hits[places].sum() / (2 * hits + wrong + missed)[places].sum()

    def macro(chosen: FloatArray) -> float:
        places = np.concatenate([np.flatnonzero(owner == one) for one in chosen])
        below = (2 * hits + wrong + missed)[places]
        return float(np.mean(2 * hits[places][below > 0] / below[below > 0]))

    clusters = [str(one) for one in owner] if clustered else None
    found = item_averages(hits, wrong, missed, clusters, seed=1)
    for average, statistic in (("micro", micro), ("macro", macro)):
        expected = stats.bootstrap(
            (np.arange(units),), statistic, vectorized=False, method="BCa", n_resamples=3000,
            rng=np.random.default_rng(0),
        )  # fmt: skip
        got, limits = found["f1", average].interval, expected.confidence_interval
        assert got.mean == pytest.approx(statistic(np.arange(units)))
        noise = RESAMPLING_NOISE * float(expected.standard_error)
        assert [got.low, got.high] == pytest.approx([float(limits.low), float(limits.high)], abs=noise)
