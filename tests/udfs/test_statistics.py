from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from udfs.statistics import MAX_CELLS, FloatArray, Interval, bca_interval, jackknife_acceleration, mean_of_counts

# Two bootstraps of 10,000 resamples differ by about 0.08 standard errors in each limit.
RESAMPLING_NOISE = 0.3

SHAPES: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "binary": lambda random, n: (random.random(n) < 0.9).astype(float),
    "ratios": lambda random, n: random.integers(0, 6, n) / 5,
    "uniform": lambda random, n: random.random(n),
    "skewed": lambda random, n: random.lognormal(0, 1.5, n),
    "outlier": lambda random, n: np.append(random.random(n - 1), 300.0),
}
# The outlier's resamples come in lumps, between which SciPy's own limits jump by 0.8 standard errors from seed to seed.
SMOOTH_SHAPES = [shape for shape in SHAPES if shape != "outlier"]


def sample(shape: str, n: int) -> FloatArray:
    return SHAPES[shape](np.random.default_rng(7), n)


def limits(interval: Interval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def distances_from_scipy(rows: FloatArray, batch: int) -> list[float]:
    """How far the two limits are from SciPy's, in standard errors."""
    expected = stats.bootstrap((rows,), np.mean, method="BCa", n_resamples=10_000, batch=batch, rng=0)
    values, counts = np.unique(rows, return_counts=True)
    got = bca_interval(values, counts, seed=1)
    low, high = limits(got)
    scipys, error = expected.confidence_interval, float(expected.standard_error)
    return [abs(low - float(scipys.low)) / error, abs(high - float(scipys.high)) / error]


@pytest.mark.parametrize("shape", SMOOTH_SHAPES)
def test_limits_are_those_of_scipy_at_2_000_rows(shape: str) -> None:
    assert max(distances_from_scipy(sample(shape, 2_000), batch=200)) < RESAMPLING_NOISE


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["ratios", "skewed"])
def test_limits_are_those_of_scipy_at_10_000_rows(shape: str) -> None:
    assert max(distances_from_scipy(sample(shape, 10_000), batch=100)) < RESAMPLING_NOISE


@pytest.mark.parametrize("n", [2, 3, 5])
def test_ties_with_the_mean_count_half_as_in_scipy(n: int) -> None:
    rows = np.array([0.0, 0.25, 0.5, 0.75, 1.0])[:n]  # exact in binary: SciPy leaves ties to the last bits
    assert max(distances_from_scipy(rows, batch=1_000)) < RESAMPLING_NOISE


@pytest.mark.parametrize("shape", SHAPES)
def test_acceleration_is_that_of_the_jackknife(shape: str) -> None:
    rows = sample(shape, 500)
    left_out = np.array([np.delete(rows, i).mean() for i in range(rows.size)])
    influence = (rows.size - 1) * (left_out.mean() - left_out)
    expected = (influence**3).sum() / (6 * (influence**2).sum() ** 1.5)
    assert jackknife_acceleration(rows, np.ones(rows.size, dtype=int)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_acceleration_is_scipys_skewness_over_six_root_n(shape: str) -> None:
    rows = sample(shape, 10_000)
    values, counts = np.unique(rows, return_counts=True)
    expected = stats.skew(rows) / (6 * np.sqrt(rows.size))
    assert jackknife_acceleration(values, counts) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("distinct", [3, MAX_CELLS, MAX_CELLS + 1, 100_000])
def test_ten_million_rows_take_less_than_two_seconds_and_a_gigabyte(distinct: int) -> None:
    random = np.random.default_rng(3)
    values, counts = random.random(distinct), random.multinomial(10_000_000, np.full(distinct, 1 / distinct))
    started = time.process_time()
    interval = bca_interval(values, counts, seed=0)
    seconds = time.process_time() - started
    tracemalloc.start()
    bca_interval(values, counts, seed=0, resamples=2_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    low, high = limits(interval)
    error = np.sqrt(np.average((values - np.average(values, weights=counts)) ** 2, weights=counts) / counts.sum())
    assert seconds < 2
    assert peak < 1e9
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)


pairs = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.2, 1 / 3, 0.7, 1.0]), st.integers(0, 50)), max_size=12)


@settings(max_examples=50, deadline=None)
@given(pairs=pairs, data=st.data())
def test_order_and_splitting_of_counts_change_nothing(pairs: list[tuple[float, int]], data: st.DataObject) -> None:
    split = [part for value, count in pairs for part in ((value, count // 3), (value, count - count // 3))]
    shuffled = data.draw(st.permutations(split))
    first = bca_interval([v for v, _ in pairs], [c for _, c in pairs], seed=5, resamples=200)
    second = bca_interval([v for v, _ in shuffled], [c for _, c in shuffled], seed=5, resamples=200)
    assert first == second


@settings(max_examples=50, deadline=None)
@given(pairs=pairs)
def test_limits_lie_within_the_values_and_are_never_nan(pairs: list[tuple[float, int]]) -> None:
    got = bca_interval([v for v, _ in pairs], [c for _, c in pairs], seed=5, resamples=200)
    present = [v for v, c in pairs if c]
    assert (got.mean is None) == (not present)
    assert (got.low is None) == (got.high is None)
    if got.low is not None:
        low, high = limits(got)
        assert min(present) <= low <= high <= max(present)


def test_many_distinct_values_do_not_depend_on_order() -> None:
    values = np.random.default_rng(1).random(5_000)
    counts = np.arange(5_000) % 7
    order = np.random.default_rng(2).permutation(5_000)
    assert bca_interval(values, counts, seed=3) == bca_interval(values[order], counts[order], seed=3)


def test_the_seed_decides() -> None:
    values, counts = np.random.default_rng(1).random(100), np.ones(100, dtype=int)
    assert bca_interval(values, counts, seed=1) == bca_interval(values, counts, seed=1)
    assert bca_interval(values, counts, seed=1) != bca_interval(values, counts, seed=2)


@pytest.mark.parametrize(
    ("values", "counts", "mean"),
    [([], [], None), ([0.5], [0], None), ([0.3], [1], 0.3), ([0.1], [3], 0.1), ([0.1, 0.1, 0.9], [2, 1, 0], 0.1)],
)
def test_degenerate_samples_have_no_limits_and_no_warnings(
    values: list[float], counts: list[int], mean: float | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bca_interval(values, counts, seed=0) == Interval(mean, None, None)
        assert jackknife_acceleration(values, counts) is None


def test_values_one_bit_apart_give_no_nan_and_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low, high = limits(bca_interval([1.0, np.nextafter(1.0, 2)], [2, 1], seed=0))
    assert 1.0 <= low <= high <= np.nextafter(1.0, 2)


def test_mean_is_that_of_all_rows() -> None:
    assert mean_of_counts([1.0, 0.0, 0.5], [1, 1, 2]) == 0.5
    assert mean_of_counts([], []) is None


@pytest.mark.parametrize(
    ("values", "counts", "message"),
    [
        ([0.5], [1, 2], "one length"),
        ([0.5], [-1], "not negative"),
        ([0.5], [1.5], "whole numbers"),
        ([float("nan")], [1], "finite"),
    ],
)
def test_wrong_counts_are_refused(values: list[float], counts: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bca_interval(values, counts, seed=0)


@pytest.mark.parametrize("options", [{"confidence": 1.0}, {"confidence": 0.0}, {"resamples": 0}])
def test_wrong_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="confidence"):
        bca_interval([0.0, 1.0], [1, 1], seed=0, **options)  # type: ignore[arg-type]


def test_statistics_import_no_spark() -> None:
    code = "import sys, udfs.statistics; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
