"""Test changes from date to date and shifts of a level. A test finds real changes, and false findings are rare."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from scipy import stats

from untold.udfs.statistics.intervals import FloatArray
from untold.udfs.statistics.permutation import Change, find_shifts, interval_of


def part(rows: FloatArray) -> tuple[FloatArray, list[int], list[int]]:
    return rows, [1] * len(rows), [1] * len(rows)


def test_errors_are_scipys() -> None:
    random = np.random.default_rng(0)
    later, earlier = random.normal(0.5, 0.1, 20), random.normal(0.5, 0.3, 30)
    assert Change([part(later)]).error == pytest.approx(stats.sem(later))
    both = Change([part(later), part(-earlier)])
    assert both.error == pytest.approx(sqrt(stats.sem(later) ** 2 + stats.sem(earlier) ** 2))
    assert both.test(0).difference == pytest.approx(later.mean() - earlier.mean())
    assert interval_of(both, seed=0).mean == pytest.approx(later.mean() - earlier.mean())


def test_the_interval_of_a_change_beyond_the_judge_contains_the_truth() -> None:
    random = np.random.default_rng(1)
    held = 0
    for _ in range(60):
        system, judge = random.normal(-0.3, 0.2, 40), random.normal(-0.1, 0.1, 30)
        found = interval_of(Change([part(system)]), Change([part(judge)]).negated, seed=0)
        assert found.low is not None
        assert found.high is not None
        held += found.low < -0.2 < found.high
    # This is 95 % of 60 minus four standard errors
    assert held >= 50


@pytest.mark.parametrize("nights", [6, 14, 30, 90])
def test_noise_has_hardly_ever_a_shift(nights: int) -> None:
    random = np.random.default_rng(nights)
    errors = [0.1 * sqrt(2)] * (nights - 1)
    found = [bool(find_shifts(random.normal(0.5, 0.1, nights), errors, points=nights)) for _ in range(400)]
    # This is 5 % of 400 plus four standard errors
    assert sum(found) <= 20 + 4 * sqrt(400 * 0.05 * 0.95)


def test_noise_of_nights_beyond_the_noise_of_samples_is_not_a_shift() -> None:
    random = np.random.default_rng(0)
    found = [bool(find_shifts(random.normal(0.5, 0.1, 30), [0.01] * 29, points=30)) for _ in range(400)]
    assert sum(found) <= 20 + 4 * sqrt(400 * 0.05 * 0.95)


def test_a_small_shift_is_found_without_a_significant_difference_of_two_nights() -> None:
    random = np.random.default_rng(0)
    levels = np.repeat([0.6, 0.5], 15)
    found = [find_shifts(random.normal(levels, 0.05), [0.05 * sqrt(2)] * 29, points=30) for _ in range(50)]
    assert sum(len(one) == 1 and abs(one[0] - 15) <= 2 for one in found) >= 40


@pytest.mark.parametrize("means", [[], [0.5], [0.5, 0.1, 0.1], [0.5] * 9])
def test_too_few_or_equal_means_have_no_shift(means: list[float]) -> None:
    assert find_shifts(means, [0.0] * (len(means) - 1), points=9) == []


@pytest.mark.parametrize("paired", [True, False])
def test_a_change_among_hundreds_has_a_p_value_that_draws_cannot_have(paired: bool) -> None:
    random = np.random.default_rng(0)
    later, earlier = random.normal(0.4, 0.1, 50), random.normal(0.6, 0.1, 50)
    parts = [part(later - earlier)] if paired else [part(later), part(-earlier)]
    reference = stats.ttest_1samp(later - earlier, 0) if paired else stats.ttest_ind(later, earlier)
    assert Change(parts).test(0).p_value == pytest.approx(reference.pvalue, rel=1e-6)
    assert reference.pvalue < 1e-9
    # With few queries, the p-value is computed from the draws and is never that small
    few = Change([part(np.full(14, -0.5) + random.normal(0, 0.001, 14))]).test(0)
    assert few.p_value == pytest.approx(2 * 0.5**14)
