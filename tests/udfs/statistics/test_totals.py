"""Compare the statistics of totals over samples with SciPy, statsmodels and a separate calculation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.inter_rater import cohens_kappa

from tests.examples import examples
from untold.udfs.statistics.confusion import accuracy, kappa, macro_f1
from untold.udfs.statistics.intervals import FloatArray, IntArray, total_interval
from untold.udfs.statistics.item_agreement import auc, score_counts

RESAMPLING_NOISE = 0.25  # in standard errors, of a limit with 10,000 resamples
TABLES = st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=1, max_size=5)


def square(totals: IntArray) -> IntArray:
    return totals.reshape(*totals.shape[:-1], 2, 2)


def kappa_of_two(totals: IntArray) -> FloatArray:
    return kappa(square(totals))


def f1(hits: int, wrong: int, missed: int) -> float:
    return 2 * hits / (2 * hits + wrong + missed)


@settings(deadline=None)
@given(
    st.integers(2, 4).flatmap(
        lambda k: st.lists(st.lists(st.integers(0, 9), min_size=k, max_size=k), min_size=k, max_size=k)
    )
)
def test_kappa_of_any_number_of_labels_is_that_of_statsmodels(table: list[list[int]]) -> None:
    counts = np.array(table)
    found = float(kappa(counts))
    rows, columns = counts.sum(axis=1), counts.sum(axis=0)
    if not counts.sum() or (rows * columns).sum() == counts.sum() ** 2:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(float(cohens_kappa(counts, return_results=False)))
    assert np.isnan(accuracy(counts)) or accuracy(counts) == np.trace(counts) / counts.sum()


def test_macro_f1_of_two_labels_by_hand() -> None:
    assert float(macro_f1(np.array([[3, 2], [1, 4]]))) == pytest.approx((f1(3, 1, 2) + f1(4, 2, 1)) / 2)
    # No item is covered or predicted as covered, so the mean does not include this label
    assert float(macro_f1(np.array([[0, 0], [0, 4]]))) == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=30))
def test_auc_is_the_share_of_pairs_in_the_right_order(items: list[tuple[int, bool]]) -> None:
    scores, positive = [score / 4 for score, _ in items], [flag for _, flag in items]
    counts, owners = score_counts(scores, positive, [f"s{n % 3}" for n in range(len(items))])
    assert owners == sorted(owners)
    assert counts.sum() == len(items)
    found = float(auc(counts.sum(axis=0)))
    ours, others = ([s for s, flag in zip(scores, positive, strict=True) if flag is wanted] for wanted in (True, False))
    if ours and others:
        assert found == pytest.approx(stats.mannwhitneyu(ours, others).statistic / len(ours) / len(others))
    else:
        assert np.isnan(found)


@pytest.mark.parametrize("clustered", [False, True])
def test_intervals_are_scipys_over_samples_or_clusters(clustered: bool) -> None:
    random = np.random.default_rng(3)
    counts = random.poisson([2.0, 0.7, 0.8, 3.0], size=(60, 4))
    clusters = [f"q{n // 3}" for n in range(60)] if clustered else None
    found = total_interval(kappa_of_two, counts, clusters, seed=1)
    units = counts.reshape(20, 3, 4).sum(axis=1) if clustered else counts

    def statistic(*columns: FloatArray, axis: int = -1) -> FloatArray:
        return kappa_of_two(np.stack([column.sum(axis=axis) for column in columns], axis=-1).astype(np.int64))

    expected = stats.bootstrap(
        tuple(units.T.astype(float)), statistic, paired=True, method="BCa", n_resamples=10_000, rng=2
    )
    assert found.mean == pytest.approx(float(kappa_of_two(counts.sum(axis=0))))
    noise = RESAMPLING_NOISE * expected.standard_error
    assert found.low == pytest.approx(expected.confidence_interval.low, abs=noise)
    assert found.high == pytest.approx(expected.confidence_interval.high, abs=noise)


@examples(20)
@given(TABLES.flatmap(lambda rows: st.tuples(st.just(rows), st.permutations(rows))))
def test_the_order_of_samples_changes_nothing(orders: tuple[list[list[int]], list[list[int]]]) -> None:
    found, other = (total_interval(kappa_of_two, each, seed=0, resamples=200) for each in orders)
    assert found == other


def test_nothing_and_one_sample_have_no_interval() -> None:
    assert total_interval(kappa_of_two, np.zeros((0, 4)), seed=0).mean is None
    assert total_interval(kappa_of_two, [[0, 0, 0, 0]], seed=0).mean is None
    one = total_interval(kappa_of_two, [[2, 1, 1, 2]], seed=0)
    assert (one.mean is not None, one.low, one.high) == (True, None, None)
