from __future__ import annotations

import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import ndtr, ndtri

from tests.examples import examples
from untold.udfs.statistics import intervals
from untold.udfs.statistics.intervals import (
    MAX_CELLS,
    FloatArray,
    IntArray,
    Interval,
    _clusters,
    acceleration_of,
    bca_interval,
    clustered_bca_interval,
    joint_bca_interval,
    mean_of_counts,
    wilson_interval,
)

# Two bootstraps of 10,000 resamples differ by about 0.08 standard errors in each limit.
RESAMPLING_NOISE = 0.3

SHAPES: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "binary": lambda random, n: (random.random(n) < 0.9).astype(float),
    "ratios": lambda random, n: random.integers(0, 6, n) / 5,
    "uniform": lambda random, n: random.random(n),
    "skewed": lambda random, n: random.lognormal(0, 1.5, n),
    "outlier": lambda random, n: np.append(random.random(n - 1), 300.0),
}
# The means of the resamples with the outlier form groups, so the limits of SciPy depend on the seed.
SMOOTH_SHAPES = [shape for shape in SHAPES if shape != "outlier"]


def clustered_acceleration(sums: ArrayLike, sizes: ArrayLike, counts: ArrayLike | None = None) -> float | None:
    found = _clusters(sums, sizes, np.ones(np.shape(sums), dtype=int) if counts is None else counts)
    return None if found is None or not found.residuals.any() else acceleration_of(found.influence(), found.counts)


def jackknife_acceleration(values: ArrayLike, counts: ArrayLike) -> float | None:
    return clustered_acceleration(values, np.ones(np.shape(values), dtype=int), counts)


def sample(shape: str, n: int) -> FloatArray:
    return SHAPES[shape](np.random.default_rng(7), n)


def limits(interval: Interval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def distances_from_scipy(rows: FloatArray, batch: int) -> list[float]:
    """Return the distances of the two limits from the limits of SciPy, in standard errors."""
    expected = stats.bootstrap((rows,), np.mean, method="BCa", n_resamples=10_000, batch=batch, rng=0)
    values, counts = np.unique(rows, return_counts=True)
    got = bca_interval(values, counts, seed=1)
    low, high = limits(got)
    scipys, error = expected.confidence_interval, float(expected.standard_error)
    return [abs(low - float(scipys.low)) / error, abs(high - float(scipys.high)) / error]


@pytest.mark.parametrize("shape", SMOOTH_SHAPES)
def test_limits_equal_scipy_at_2_000_rows(shape: str) -> None:
    assert max(distances_from_scipy(sample(shape, 2_000), batch=200)) < RESAMPLING_NOISE


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["ratios", "skewed"])
def test_limits_equal_scipy_at_10_000_rows(shape: str) -> None:
    assert max(distances_from_scipy(sample(shape, 10_000), batch=100)) < RESAMPLING_NOISE


@pytest.mark.parametrize("n", [2, 3, 5])
def test_ties_with_the_mean_count_half_as_in_scipy(n: int) -> None:
    rows = np.array([0.0, 0.25, 0.5, 0.75, 1.0])[:n]  # the values are exact in binary, so SciPy detects the ties
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


def peak_of(values: FloatArray, counts: IntArray) -> int:
    """Return the maximum number of bytes that an interval with 2,000 resamples allocates."""
    tracemalloc.start()
    bca_interval(values, counts, seed=0, resamples=2_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("distinct", [3, MAX_CELLS, MAX_CELLS + 1, 100_000])
def test_ten_times_the_rows_take_no_more_memory_and_ten_million_less_than_a_gigabyte(distinct: int) -> None:
    random = np.random.default_rng(3)
    values, counts = random.random(distinct), random.multinomial(10_000_000, np.full(distinct, 1 / distinct))
    fewer = random.multinomial(1_000_000, np.full(distinct, 1 / distinct))
    interval = bca_interval(values, counts, seed=0)
    of_fewer, of_all = (peak_of(values[given > 0], given[given > 0]) for given in (fewer, counts))
    low, high = limits(interval)
    error = np.sqrt(np.average((values - np.average(values, weights=counts)) ** 2, weights=counts) / counts.sum())
    # The rows are counted by value before the resampling. An array with all of the rows would need ten times the memory
    assert of_all < 1.5 * of_fewer
    assert of_all < 1e9
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)


pairs = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.2, 1 / 3, 0.7, 1.0]), st.integers(0, 50)), max_size=12)


@examples(50)
@given(pairs=pairs, data=st.data())
def test_order_and_splitting_of_counts_change_nothing(pairs: list[tuple[float, int]], data: st.DataObject) -> None:
    split = [part for value, count in pairs for part in ((value, count // 3), (value, count - count // 3))]
    shuffled = data.draw(st.permutations(split))
    first = bca_interval([v for v, _ in pairs], [c for _, c in pairs], seed=5, resamples=200)
    second = bca_interval([v for v, _ in shuffled], [c for _, c in shuffled], seed=5, resamples=200)
    assert first == second


@examples(50)
@given(pairs=pairs)
def test_limits_are_within_the_values_and_are_never_nan(pairs: list[tuple[float, int]]) -> None:
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


def test_values_one_bit_apart_are_equal() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bca_interval([1.0, np.nextafter(1.0, 2)], [2, 1], seed=0) == Interval(1.0, None, None)


def test_mean_is_that_of_all_rows() -> None:
    assert mean_of_counts([1.0, 0.0, 0.5], [1, 1, 2]) == 0.5
    assert mean_of_counts([], []) is None


@pytest.mark.parametrize(
    ("values", "counts", "message"),
    [
        ([0.5], [1, 2], "differ in length"),
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


Clusters = tuple[FloatArray, IntArray]


def binary_fives(random: np.random.Generator, n: int) -> Clusters:
    return random.binomial(5, random.beta(4, 1, n)).astype(float), np.full(n, 5)


def thirds_of_unequal_sizes(random: np.random.Generator, n: int) -> Clusters:
    sizes = random.integers(1, 8, n)
    return random.binomial(3 * sizes, 1 / sizes**0.3) / 3, sizes  # large clusters have low means


def skewed_and_distinct(random: np.random.Generator, n: int) -> Clusters:
    sizes = random.integers(1, 8, n)
    return sizes * random.lognormal(0, 1, n), sizes


def one_giant(random: np.random.Generator, n: int) -> Clusters:
    sizes = np.append(random.integers(1, 4, n - 1), 2 * n)
    return np.append(random.random(n - 1), 0.5) * sizes, sizes


CLUSTERS = [binary_fives, thirds_of_unequal_sizes, skewed_and_distinct, one_giant]


def clusters(shape: Callable[[np.random.Generator, int], Clusters], n: int) -> Clusters:
    return shape(np.random.default_rng(7), n)


def ratio(sums: FloatArray, sizes: FloatArray, axis: int) -> FloatArray:
    totals: FloatArray = sums.sum(axis=axis) / sizes.sum(axis=axis)
    return totals


def distances_from_scipys_ratio(sums: FloatArray, sizes: IntArray) -> list[float]:
    """Return the distances of the two limits from the limits of SciPy, in standard errors."""
    options = {"paired": True, "vectorized": True, "method": "BCa", "n_resamples": 10_000, "batch": 200}
    expected = stats.bootstrap((sums, sizes.astype(float)), ratio, rng=0, **options)
    low, high = limits(clustered_bca_interval(sums, sizes, seed=1))
    scipys, error = expected.confidence_interval, float(expected.standard_error)
    return [abs(low - float(scipys.low)) / error, abs(high - float(scipys.high)) / error]


@pytest.mark.parametrize("shape", CLUSTERS)
def test_clustered_limits_equal_scipy_at_2_000_rows(shape: Callable[..., Clusters]) -> None:
    assert max(distances_from_scipys_ratio(*clusters(shape, 500))) < RESAMPLING_NOISE


@pytest.mark.slow
@pytest.mark.parametrize("shape", CLUSTERS)
def test_clustered_limits_equal_scipy_at_10_000_rows(shape: Callable[..., Clusters]) -> None:
    assert max(distances_from_scipys_ratio(*clusters(shape, 2_500))) < RESAMPLING_NOISE


@pytest.mark.parametrize("shape", [skewed_and_distinct, one_giant])
def test_clusters_grouped_in_cells_have_scipys_limits(shape: Callable[..., Clusters]) -> None:
    sums, sizes = clusters(shape, 2 * MAX_CELLS)
    assert max(distances_from_scipys_ratio(sums, sizes)) < RESAMPLING_NOISE


@pytest.mark.parametrize("n", [500, 2_500])
@pytest.mark.parametrize("shape", CLUSTERS)
def test_clustered_acceleration_is_that_of_the_jackknife(shape: Callable[..., Clusters], n: int) -> None:
    sums, sizes = clusters(shape, n)
    left_out = np.array([np.delete(sums, i).sum() / np.delete(sizes, i).sum() for i in range(n)])
    influence = (n - 1) * (left_out.mean() - left_out)
    expected = (influence**3).sum() / (6 * (influence**2).sum() ** 1.5)
    assert clustered_acceleration(sums, sizes) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("shape", SMOOTH_SHAPES)
def test_clusters_of_one_row_are_the_rows(shape: str) -> None:
    rows = sample(shape, 300)
    ones = np.ones(rows.size, dtype=int)
    assert clustered_acceleration(rows, ones) == pytest.approx(jackknife_acceleration(rows, ones), abs=1e-9)
    clustered = limits(clustered_bca_interval(rows, ones, seed=3))
    assert clustered == pytest.approx(limits(bca_interval(rows, ones, seed=3)), rel=1e-9)


def test_copies_in_a_cluster_count_as_one_row() -> None:
    rows = np.round(sample("uniform", 400), 2)
    fives, ones = np.full(rows.size, 5), np.ones(rows.size, dtype=int)
    once = limits(bca_interval(rows, ones, seed=3))
    assert limits(clustered_bca_interval(5 * rows, fives, seed=3)) == pytest.approx(once, rel=1e-9)


cluster_rows = st.lists(
    st.tuples(st.sampled_from([0.0, -0.0, 0.1, 0.5, 1 / 3, 2.0, -1.0]), st.integers(0, 4), st.integers(0, 9)),
    max_size=8,
)
ClusterRows = list[tuple[float, int, int]]


def columns(rows: ClusterRows) -> tuple[list[float], list[int], list[int]]:
    return [s for s, _, _ in rows], [n for _, n, _ in rows], [c for _, _, c in rows]


@examples(50)
@given(rows=cluster_rows, data=st.data())
def test_order_and_grouping_of_clusters_change_nothing(rows: ClusterRows, data: st.DataObject) -> None:
    single = [(total, size) for total, size, count in rows for _ in range(count)]
    shuffled = data.draw(st.permutations(single))
    grouped = clustered_bca_interval(*columns(rows), seed=5, resamples=200)
    one_each = clustered_bca_interval([s for s, _ in shuffled], [n for _, n in shuffled], seed=5, resamples=200)
    assert grouped == one_each


@examples(100)
@given(rows=cluster_rows)
def test_clustered_limits_are_within_the_means_of_clusters(rows: ClusterRows) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = clustered_bca_interval(*columns(rows), seed=5, resamples=200)
        acceleration = clustered_acceleration(*columns(rows))
    means = [total / size for total, size, count in rows if size and count]
    assert (got.mean is None) == (not means)
    assert (acceleration is None) == (len(set(means)) < 2)
    assert (got.low is None) == (got.high is None)
    if got.low is not None:
        low, high = limits(got)
        assert min(means) <= low <= high <= max(means)


@pytest.mark.parametrize(
    ("sums", "sizes", "mean"),
    [
        ([], [], None),
        ([0.0, 0.0], [0, 0], None),  # no cluster has a defined value
        ([2.0], [4], 0.5),
        ([2.0, 0.0], [4, 0], 0.5),
        ([0.1, 0.2, 0.1 + 0.2, 0.7], [1, 2, 3, 7], 0.1),  # all means are equal, except for the last bits
        ([0.0, 0.0], [1, 2], 0.0),
    ],
)
def test_degenerate_clusters_have_no_limits_and_no_warnings(
    sums: list[float], sizes: list[int], mean: float | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = clustered_bca_interval(sums, sizes, seed=0)
        assert clustered_acceleration(sums, sizes) is None
    assert got == Interval(None if mean is None else pytest.approx(mean), None, None)


def test_many_distinct_clusters_do_not_depend_on_order() -> None:
    sums, sizes = clusters(skewed_and_distinct, 5_000)
    order = np.random.default_rng(2).permutation(5_000)
    first = clustered_bca_interval(sums, sizes, seed=3, resamples=500)
    assert first == clustered_bca_interval(sums[order], sizes[order], seed=3, resamples=500)
    assert first != clustered_bca_interval(sums, sizes, seed=4, resamples=500)


@pytest.mark.parametrize(
    ("sums", "sizes", "counts", "message"),
    [
        ([0.5], [1, 2], None, "sums and sizes differ in length"),
        ([0.5], [1], [1, 2], "sums and counts differ in length"),
        ([0.5], [1.5], None, "sizes must be whole numbers"),
        ([0.5], [1], [-1], "counts must be whole numbers, not negative"),
        ([float("nan")], [1], None, "sums must be finite"),
    ],
)
def test_wrong_clusters_are_refused(
    sums: list[float], sizes: list[float], counts: list[int] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        clustered_bca_interval(sums, sizes, counts, seed=0)


def test_the_average_over_data_sets_has_scipys_joint_interval() -> None:
    random = np.random.default_rng(8)
    first, second = (random.random(90) < 0.8).astype(float), random.choice([0.1, 0.4, 0.9, 1.0], 40)

    def average(*samples: FloatArray, axis: int = -1) -> FloatArray:
        means: FloatArray = np.mean([sample.mean(axis=axis) for sample in samples], axis=0)
        return means

    expected = stats.bootstrap((first, second), average, vectorized=True, method="BCa", n_resamples=8_000, rng=0)
    got = joint_bca_interval([(one, np.ones(len(one)), np.ones(len(one))) for one in (first, second)], seed=1)
    limits = expected.confidence_interval
    assert got.mean == pytest.approx((first.mean() + second.mean()) / 2)
    noise = 0.1 * float(expected.standard_error)
    assert [got.low, got.high] == pytest.approx([float(limits.low), float(limits.high)], abs=noise)


def test_one_data_set_that_never_varies_leaves_the_other_its_interval() -> None:
    rows = ([0.0, 1.0], [1, 1], [30, 70])
    alone = clustered_bca_interval(*rows, seed=0)
    joint = joint_bca_interval([rows, ([1.0], [1], [50])], seed=0)
    assert joint.mean == pytest.approx(0.85)
    assert alone.low is not None
    assert joint.low is not None
    assert joint.mean - joint.low == pytest.approx((0.7 - alone.low) / 2, abs=0.01)
    assert joint_bca_interval([rows, ([], [], [])], seed=0) == Interval(None, None, None)
    assert joint_bca_interval([([1.0], [1], [9])] * 2, seed=0) == Interval(1.0, None, None)


def test_statistics_import_no_spark() -> None:
    code = "import sys, untold.udfs.statistics.intervals; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.9, 0.95]))
def test_wilsons_limits_are_scipys(counts: tuple[int, int], confidence: float) -> None:
    expected = stats.binomtest(*counts).proportion_ci(confidence, method="wilson")
    found = wilson_interval(*counts, confidence=confidence)
    assert found.mean == counts[0] / counts[1]
    assert limits(found) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_share_without_answers_has_no_interval() -> None:
    assert wilson_interval(0, 0) == Interval(None, None, None)
    with pytest.raises(ValueError, match="between 0 and 3"):
        wilson_interval(4, 3)


def test_without_scipy_normal_shares_and_quantiles_are_scipys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    spec = spec_from_file_location("plain_intervals", intervals.__file__)
    assert spec is not None
    assert spec.loader is not None
    plain = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, plain)
    spec.loader.exec_module(plain)
    values = np.linspace(-37, 8, 1_000)
    assert [plain.ndtr(value) for value in values.tolist()] == pytest.approx(ndtr(values), rel=1e-13)
    shares = np.linspace(0, 1, 1_001)[1:-1]
    assert [plain.ndtri(share) for share in shares.tolist()] == pytest.approx(ndtri(shares), rel=1e-13, abs=1e-15)
    one = plain.bca_interval([0.1, 0.4, 0.7], [3, 9, 2], seed=1)
    other = bca_interval([0.1, 0.4, 0.7], [3, 9, 2], seed=1)
    assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-12)
