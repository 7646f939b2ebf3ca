from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kendalltau

from untold.udfs.statistics.item_agreement import compare_rankings, kappa_by_query, limits_of_agreement


def test_tau_is_that_of_the_systems_means() -> None:
    random = np.random.default_rng(1)
    sizes = random.integers(0, 3, (80, 6))
    sums = np.stack([random.random((80, 6)) + 0.1 * np.arange(6) for _ in range(2)]) * sizes
    found = compare_rankings(sums, sizes, seed=0)
    assert found is not None
    first, second = (sums.sum(axis=1) / sizes.sum(axis=0))[:]
    assert found.tau.mean == pytest.approx(kendalltau(first, second).statistic)
    assert found.same_winner == (first.argmax() == second.argmax())
    assert found.tau.low is not None
    assert found.tau.high is not None
    assert found.tau.low <= found.tau.mean <= found.tau.high
    assert 0 <= found.changes <= 1


def test_one_measure_ranks_as_itself() -> None:
    random = np.random.default_rng(2)
    sums = np.stack([random.random((40, 3))] * 2)
    found = compare_rankings(sums, np.ones((40, 3)), seed=0)
    assert found is not None
    assert (found.tau.mean, found.tau.low, found.tau.high) == (1, 1, 1)
    assert (found.same_winner, found.changes) == (True, 0)


def test_a_system_that_a_resample_lacks_does_not_win_in_it() -> None:
    # Only one query has the last system. Every other query has two systems, and one measure prefers the second system
    sums = np.zeros((2, 20, 3))
    sums[0, :, 0] = sums[1, :, 1] = sums[:, 0, 2] = 1
    sizes = np.ones((20, 3))
    sizes[1:, 2] = 0
    found = compare_rankings(sums * [1, 1, 0.5], sizes, seed=0)
    assert found is not None
    assert (found.same_winner, found.changes) == (False, 1)


def test_tied_systems_have_no_tau_and_one_system_has_no_ranking() -> None:
    sums = np.stack([np.ones((5, 2)), np.arange(10).reshape(5, 2)])
    found = compare_rankings(sums, np.ones((5, 2)), seed=0)
    assert found is not None
    assert found.tau.mean is None
    assert compare_rankings(sums[:, :, :1], np.ones((5, 1)), seed=0) is None


def test_kappa_is_that_of_all_verdicts_together() -> None:
    random = np.random.default_rng(4)
    first = random.integers(0, 3, (60, 12))
    second = np.where(random.random((60, 12)) < 0.8, first, random.integers(0, 3, (60, 12)))
    tables = np.zeros((60, 3, 4), int)
    for query in range(60):
        np.add.at(tables[query], (first[query], second[query]), 1)
    found = kappa_by_query(tables, seed=0)
    agreed, chance = (first == second).mean(), sum((first == one).mean() * (second == one).mean() for one in range(3))
    assert found.mean == pytest.approx((agreed - chance) / (1 - chance))
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.mean < found.high
    assert 0.05 < found.high - found.low < 0.2


def test_without_differences_the_limits_equal_kappa() -> None:
    tables = np.zeros((5, 2, 3), int)
    tables[:, 0, 0], tables[:, 1, 1] = 3, 2
    found = kappa_by_query(tables, seed=0)
    assert (found.mean, found.low, found.high) == (1, 1, 1)


def test_limits_of_agreement_are_the_mean_and_its_deviations_and_their_intervals_cover_the_true_ones() -> None:
    random, held = np.random.default_rng(5), 0
    for _ in range(200):
        # The five responses to a query share half of their variance
        differences = (random.normal(0.1, 0.1, (100, 1)) + random.normal(0, 0.1, (100, 5))).clip(-1, 1)
        sums, squares = differences.sum(axis=1), (differences**2).sum(axis=1)
        lower, upper = limits_of_agreement(sums, squares, np.full(100, 5), seed=0, resamples=400)
        spread = 1.959963984540054 * differences.std(ddof=1)
        assert (lower.mean, upper.mean) == pytest.approx((differences.mean() - spread, differences.mean() + spread))
        assert lower.low is not None
        assert lower.high is not None
        held += lower.low <= 0.1 - 1.959963984540054 * np.sqrt(0.02) <= lower.high
    assert held >= 180


def test_one_difference_has_no_limits_and_equal_ones_are_their_limits() -> None:
    (lower, upper) = limits_of_agreement([0.5], [0.25], [1], seed=0)
    assert (lower.mean, upper.low) == (None, None)
    (lower, upper) = limits_of_agreement([0.5, 0.5], [0.25, 0.25], [1, 1], seed=0)
    assert (lower.mean, lower.low, upper.high) == (0.5, 0.5, 0.5)
