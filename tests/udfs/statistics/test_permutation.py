"""Paired tests and adjusted p-values: SciPy's, from counts of distinct differences."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from ruptures import KernelCPD
from scipy import stats

from tests.examples import examples
from untold.udfs.statistics.intervals import MAX_CELLS, FloatArray
from untold.udfs.statistics.permutation import (
    LEAST,
    PairedTest,
    _starts_of_levels,
    adjust_p_values,
    clustered_permutation_test,
    p_of_error,
    unpaired_permutation_test,
)

eighths = st.integers(-8, 8).map(lambda number: number / 8)  # exact in binary: SciPy's sums tie as ours

SHAPES: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "matches": lambda random, n: random.choice([-1.0, 0.0, 1.0], n, p=[0.2, 0.57, 0.23]),
    "ratios": lambda random, n: (random.integers(0, 6, n) - random.integers(0, 6, n)) / 5 + 0.015,
    "normal": lambda random, n: random.normal(0.025, 1, n),
    "skewed": lambda random, n: random.lognormal(0, 1.5, n) - random.lognormal(0.02, 1.5, n),
    "outlier": lambda random, n: np.append(random.normal(0.03, 1, n - 1), 40.0),
}


def flip(differences: ArrayLike, counts: ArrayLike, *, seed: int, resamples: int = 10_000) -> PairedTest:
    ones = np.ones(np.shape(counts), dtype=int)
    return clustered_permutation_test(differences, ones, counts, seed=seed, resamples=resamples)


def flipped(rows: FloatArray | list[float], *, seed: int = 0, resamples: int = 10_000) -> PairedTest:
    return flip(rows, np.ones(len(rows), dtype=int), seed=seed, resamples=resamples)


def p_of(result: PairedTest) -> float:
    assert result.p_value is not None
    return result.p_value


def scipys(rows: FloatArray | list[float], resamples: int = 10_000) -> tuple[float, float]:
    """The mean difference and the p-value of SciPy."""
    result = stats.permutation_test(
        (rows,), np.mean, permutation_type="samples", vectorized=True, n_resamples=resamples, batch=200, rng=0
    )
    return float(result.statistic), float(result.pvalue)


def noise_of(p_value: float, resamples: int) -> float:
    """Four standard errors of the difference of two such p-values."""
    side = p_value / 2
    return 4 * 2 * math.sqrt(2 * side * (1 - side) / resamples)


@examples(60)
@given(rows=st.lists(eighths, min_size=2, max_size=9))
def test_few_rows_have_exactly_scipys_p_value(rows: list[float]) -> None:
    assert (flipped(rows).difference, flipped(rows).p_value) == scipys(rows)


def test_all_flips_are_enumerated_as_long_as_scipy_does() -> None:
    rows = np.array([3, 1, -2, 5, 8, -1, 0, 4, 6, -7, 2, 1, 3, -4]) / 8
    assert p_of(flipped(rows[:13])) == scipys(rows[:13])[1]
    assert (p_of(flipped(rows[:13])) * 2**13).is_integer()
    assert p_of(flipped(rows)) * 10_001 % 1 == pytest.approx(0, abs=1e-9)
    assert p_of(flipped(rows[:3], resamples=8)) == scipys(rows[:3], resamples=8)[1]
    assert p_of(flipped(rows[:3], resamples=7)) * 8 % 1 == 0


@examples(60)
@given(tenths=st.lists(st.integers(-10, 10), min_size=1, max_size=9))
def test_equal_sums_are_ties_for_any_last_bits(tenths: list[int]) -> None:
    null = [sum(sizes) for sizes in itertools.product(*((-t, t) for t in tenths))]
    sides = [sum(total >= sum(tenths) for total in null), sum(total <= sum(tenths) for total in null)]
    assert p_of(flipped([t / 10 for t in tenths])) == min(1.0, 2 * min(sides) / len(null))


@pytest.mark.parametrize("shape", SHAPES)
def test_p_values_are_scipys_at_2_000_rows(shape: str) -> None:
    rows = SHAPES[shape](np.random.default_rng(7), 2_000)
    difference, p_value = scipys(rows, resamples=2_000)
    values, counts = np.unique(rows, return_counts=True)
    got = flip(values, counts, seed=1, resamples=20_000)
    assert got.n == 2_000
    assert got.difference == pytest.approx(difference, rel=1e-12)
    assert p_of(got) == pytest.approx(p_value, abs=noise_of(p_value, 2_000))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_p_values_are_scipys_at_10_000_rows(shape: str) -> None:
    rows = SHAPES[shape](np.random.default_rng(7), 10_000)
    p_value = scipys(rows)[1]
    assert p_of(flipped(rows, seed=1)) == pytest.approx(p_value, abs=noise_of(p_value, 10_000))


def test_wins_and_losses_have_the_p_value_of_the_sign_test() -> None:
    wins, losses = 2_501_800, 2_498_200
    exact = stats.binomtest(wins, wins + losses).pvalue
    got = flip([1.0, -1.0, 0.0], [wins, losses, 5_000_000], seed=0, resamples=40_000)
    assert (got.n, got.difference) == (10_000_000, 3_600 / 10_000_000)
    assert p_of(got) == pytest.approx(exact, abs=noise_of(exact, 40_000))


def test_cells_of_many_distinct_differences_keep_the_null_distribution() -> None:
    rows = np.random.default_rng(5).normal(0.006, 1, 5 * MAX_CELLS)
    flips = 2 * stats.norm.sf(abs(rows.sum()) / math.sqrt((rows**2).sum()))
    assert p_of(flipped(rows, resamples=20_000)) == pytest.approx(flips, abs=noise_of(flips, 20_000))


@examples(40)
@given(
    rows=st.lists(st.tuples(st.sampled_from([-0.7, -0.1, 0.0, 0.1, 1 / 3, 1.0]), st.integers(0, 20))), data=st.data()
)
def test_order_splitting_and_swapping_change_nothing(rows: list[tuple[float, int]], data: st.DataObject) -> None:
    split = [part for value, count in rows for part in ((value, count // 3), (value, count - count // 3))]
    shuffled = data.draw(st.permutations(split))
    first = flip([v for v, _ in rows], [c for _, c in rows], seed=5, resamples=200)
    second = flip([v for v, _ in shuffled], [c for _, c in shuffled], seed=5, resamples=200)
    swapped = flip([-v for v, _ in rows], [c for _, c in rows], seed=5, resamples=200)
    assert first == second
    assert swapped == PairedTest(first.n, None if first.difference is None else -first.difference, first.p_value)


@examples(100)
@given(
    rows=st.lists(st.tuples(st.floats(-1e100, 1e100), st.integers(0, 30)), max_size=6), resamples=st.integers(1, 300)
)
def test_p_values_are_null_or_in_range_without_warnings(rows: list[tuple[float, int]], resamples: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = flip([v for v, _ in rows], [c for _, c in rows], seed=5, resamples=resamples)
    assert got.n == sum(count for _, count in rows)
    assert (got.p_value is None) == (got.difference is None) == (got.n == 0)
    assert got.p_value is None or 0 < got.p_value <= 1


@pytest.mark.parametrize(
    ("differences", "counts", "expected"),
    [
        ([], [], PairedTest(0, None, None)),
        ([0.5], [0], PairedTest(0, None, None)),
        ([0.5], [1], PairedTest(1, 0.5, 1.0)),
        ([0.0, -0.0], [600, 600], PairedTest(1_200, 0.0, 1.0)),
        ([0.5, -0.5], [600, 600], PairedTest(1_200, 0.0, 1.0)),
        ([0.1], [1_200], PairedTest(1_200, 0.1, 2 / 10_001)),  # no draw reaches it
    ],
)
def test_degenerate_differences(differences: list[float], counts: list[int], expected: PairedTest) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flip(differences, counts, seed=0) == expected


def test_the_seed_decides() -> None:
    rows = SHAPES["normal"](np.random.default_rng(1), 300)
    assert flipped(rows, seed=1) == flipped(rows, seed=1)
    assert flipped(rows, seed=1) != flipped(rows, seed=2)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="resamples must be at least 1"):
        flipped([0.5], resamples=0)
    with pytest.raises(ValueError, match="finite"):
        flipped([float("nan")])


@given(st.lists(st.none() | st.floats(0, 1), max_size=12))
def test_adjusted_p_values_equal_scipy_without_nulls(p_values: list[float | None]) -> None:
    got = adjust_p_values(p_values)
    present = [p for p in p_values if p is not None]
    assert [p is None for p in got] == [p is None for p in p_values]
    assert [p for p in got if p is not None] == list(stats.false_discovery_control(present) if present else [])


def test_nulls_are_not_members_of_the_family() -> None:
    assert adjust_p_values([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.04, 0.04])
    assert adjust_p_values([None, 0.2]) == [None, 0.2]
    assert adjust_p_values([]) == []


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_p_values_out_of_range_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        adjust_p_values([0.5, wrong])


# Differences of whole questions


@pytest.mark.parametrize("questions", [7, 300])
def test_questions_flip_as_scipys_sums_do(questions: int) -> None:
    random = np.random.default_rng(questions)
    sizes = random.integers(1, 6, questions)
    sums = np.array([random.integers(-4, 6, size).sum() for size in sizes]) / 8
    _, p_value = scipys(sums, resamples=4_000)
    got = clustered_permutation_test(sums, sizes, seed=2)
    assert got.n == sizes.sum()
    assert got.difference == pytest.approx(sums.sum() / sizes.sum())
    assert p_of(got) == pytest.approx(p_value, abs=noise_of(p_value, 4_000))


def test_questions_of_one_answer_flip_as_answers_do() -> None:
    rows = SHAPES["matches"](np.random.default_rng(3), 400)
    values, counts = np.unique(rows, return_counts=True)
    assert clustered_permutation_test(values, np.ones_like(counts), counts, seed=1) == flipped(rows, seed=1)


def test_questions_without_answers_have_no_effect() -> None:
    assert clustered_permutation_test([0.0], [0], seed=0) == PairedTest(0, None, None)
    assert clustered_permutation_test([0.5, 0.0], [2, 0], seed=0) == PairedTest(2, 0.25, 1.0)


def matches_of(questions: int, answers: int, correlation: float, random: np.random.Generator) -> FloatArray:
    """Differences of two equally good systems that match or do not: float64[questions, answers].

    A share of `correlation` of the pairs of answers to one question have one difference: each answer copies the
    question's own with the root of that probability.
    """
    shape = (questions, answers)
    values = [-1.0, 0.0, 1.0]
    own = random.choice(values, questions, p=[0.25, 0.5, 0.25])[:, None]
    alone = random.choice(values, shape, p=[0.25, 0.5, 0.25])
    return np.where(random.random(shape) < math.sqrt(correlation), own, alone)


def sizes_of_tests(correlation: float, *, replications: int = 2_500) -> tuple[float, float]:
    """Return the false positive rates at 5 % of tests with and without regard to questions."""
    random = np.random.default_rng(11)
    rejected = np.zeros(2)
    for seed in range(replications):
        rows = matches_of(60, 5, correlation, random)
        sums, counts = np.unique(rows.sum(axis=1), return_counts=True)
        values, alike = np.unique(rows, return_counts=True)
        heeding = clustered_permutation_test(sums, np.full_like(counts, 5), counts, seed=seed, resamples=999)
        ignoring = flip(values, alike, seed=seed, resamples=999)
        rejected += p_of(heeding) <= 0.05, p_of(ignoring) <= 0.05
    heeding_size, ignoring_size = rejected / replications
    return float(heeding_size), float(ignoring_size)


@pytest.mark.parametrize(("correlation", "ignored"), [(0.0, 0.035), (0.3, 0.14), (0.5, 0.2)])
def test_the_size_of_the_test_at_5_per_cent(correlation: float, ignored: float) -> None:
    heeding, ignoring = sizes_of_tests(correlation)
    assert 0.035 <= heeding <= 0.065
    assert ignoring >= ignored


def group(rows: FloatArray, sizes: int = 1) -> tuple[FloatArray, list[int], list[int]]:
    return rows * sizes, [sizes] * len(rows), [1] * len(rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_groups_of_other_samples_are_compared_as_by_scipy(shape: str) -> None:
    random = np.random.default_rng(3)
    first, second = SHAPES[shape](random, 40) + 0.1, SHAPES[shape](random, 25)
    found = unpaired_permutation_test(group(first), group(second), seed=0)
    reference = stats.permutation_test(
        (first, second), lambda a, b: np.mean(a) - np.mean(b), permutation_type="independent", n_resamples=10_000, rng=0
    )
    assert (found.n, found.difference) == (65, pytest.approx(reference.statistic))
    assert abs(p_of(found) - reference.pvalue) < noise_of(reference.pvalue, 10_000)


def test_whole_questions_change_groups() -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(0.1, 1, 30), random.normal(0, 1, 30)
    once = unpaired_permutation_test(group(first), group(second), seed=0)
    thrice = unpaired_permutation_test(group(first, 3), group(second, 3), seed=0)
    assert (thrice.n, thrice.p_value) == (180, once.p_value)
    assert thrice.difference == pytest.approx(once.difference)


def test_equal_groups_do_not_differ_by_chance() -> None:
    same, other = np.full(8, 0.5), np.full(8, 0.25)
    assert unpaired_permutation_test(group(same), group(same), seed=0) == PairedTest(16, 0.0, 1.0)
    assert p_of(unpaired_permutation_test(group(same), group(other), seed=0)) < 0.001
    assert unpaired_permutation_test(group(same), group(other[:0]), seed=0) == PairedTest(0, None, None)


@pytest.mark.parametrize("freedom", [1, 2, 5, 30, 1_000, 20_000])
def test_the_p_value_of_an_error_is_students(freedom: int) -> None:
    for t in (0.01, 0.5, 1, 2, 5, 12, 40):
        assert p_of_error(t, 1.0, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-9, abs=1e-300)


@examples(100)
@given(st.integers(0, 2**32))
def test_shifts_cost_at_most_as_much_as_in_ruptures(seed: int) -> None:
    """`ruptures` prunes too much near the end of a series, so some of its results are not the optimum."""
    random = np.random.default_rng(seed)
    size = int(random.integers(2 * LEAST, 60))
    levels = np.repeat(random.normal(size=size) * random.choice([0, 3]), random.integers(1, 9, size))[:size]
    values, penalty = random.normal(size=size) + levels, float(random.uniform(1, 20))
    theirs = KernelCPD(kernel="linear", min_size=LEAST).fit(values).predict(pen=penalty)[:-1]
    ours = _starts_of_levels(values, penalty)
    assert all(end - start >= LEAST for start, end in itertools.pairwise([0, *ours, size]))
    assert cost_of(values, ours, penalty) <= cost_of(values, theirs, penalty) + 1e-9


def cost_of(values: FloatArray, starts: list[int], penalty: float) -> float:
    """The squared deviations from the means of the levels, and a penalty for each shift."""
    parts = np.split(values, starts)
    return sum(float(((part - part.mean()) ** 2).sum()) for part in parts) + penalty * len(starts)
