"""Compare correlations and their intervals with SciPy, for all weights, by samples and by clusters."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.examples import examples
from untold.udfs.statistics.correlation import COEFFICIENTS, Correlation, _all, _pair, correlate
from untold.udfs.statistics.intervals import FloatArray

SCIPY = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
RESAMPLING_NOISE = 0.25  # in standard errors, of a limit with 2,000 resamples
SHARES = st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 2 / 3, 1.0])


def draw_pairs(n: int, seed: int = 3) -> tuple[FloatArray, FloatArray]:
    """Return coverages with many ties, and a score that is correlated with them."""
    random = np.random.default_rng(seed)
    covered = random.integers(0, 6, n) / 5
    return covered, np.round(0.5 * covered + random.random(n), 1)


@examples(150)
@given(
    st.lists(
        st.tuples(SHARES, SHARES | st.floats(-3, 3).map(lambda value: round(value, 3)), st.integers(0, 3)),
        min_size=3,
        max_size=12,
    )
)
def test_a_weighted_coefficient_is_scipys_of_the_rows_repeated(rows: list[tuple[float, float, int]]) -> None:
    x, y, weights = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    repeated = [np.repeat(side, weights.astype(int)) for side in (x, y)]
    if weights.sum() < 2:
        return
    found = _all(_pair(x, y), weights[None, :])
    for name, of in SCIPY.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = float(of(*repeated).statistic)
        assert found[name][0] == pytest.approx(expected, abs=1e-9, nan_ok=True), name


@pytest.mark.parametrize("name", SCIPY)
def test_values_p_values_and_limits_are_scipys(name: str) -> None:
    x, y = draw_pairs(60)
    got = correlate(x, y, seed=1, resamples=2000)[name]
    expected = SCIPY[name](x, y)
    assert (got.n, got.value, got.p_value) == (60, expected.statistic, expected.pvalue)
    bootstrapped = stats.bootstrap(
        (x, y), lambda a, b: SCIPY[name](a, b).statistic, paired=True, vectorized=False, method="BCa",
        n_resamples=2000, rng=np.random.default_rng(0),
    )  # fmt: skip
    limits, noise = bootstrapped.confidence_interval, RESAMPLING_NOISE * float(bootstrapped.standard_error)
    assert [got.low, got.high] == pytest.approx([float(limits.low), float(limits.high)], abs=noise)


@pytest.mark.parametrize("name", SCIPY)
def test_limits_by_clusters_equal_scipys_bootstrap_of_the_clusters(name: str) -> None:
    x, y = draw_pairs(90)
    owner = np.arange(90) // 3

    def statistic(chosen: FloatArray) -> float:
        places = (chosen.astype(int)[:, None] * 3 + np.arange(3)).ravel()
        return float(SCIPY[name](x[places], y[places]).statistic)

    expected = stats.bootstrap(
        (np.arange(30),), statistic, vectorized=False, method="BCa", n_resamples=2000, rng=np.random.default_rng(0)
    )
    got = correlate(x, y, [f"q{number}" for number in owner], seed=1, resamples=2000)[name]
    limits, noise = expected.confidence_interval, RESAMPLING_NOISE * float(expected.standard_error)
    assert [got.low, got.high] == pytest.approx([float(limits.low), float(limits.high)], abs=noise)


def test_clusters_of_one_pair_equal_no_clusters() -> None:
    x, y = draw_pairs(40)
    names = [f"{number:02}" for number in range(40)]
    assert correlate(x, y, names, seed=2, resamples=500) == correlate(x, y, seed=2, resamples=500)


@pytest.mark.parametrize(
    ("x", "y"), [([], []), ([0.5, 1.0], [0.1, 0.2]), ([0.5] * 5, [0.1, 0.2, 0.3, 0.4, 0.5]), ([0, 1, 0.5], [1, 1, 1])]
)
def test_few_pairs_and_constants_have_no_correlation(x: list[float], y: list[float]) -> None:
    assert correlate(x, y, seed=0) == dict.fromkeys(COEFFICIENTS, Correlation(len(x), None, None, None, None))


@pytest.mark.parametrize("n", [3, 4])
def test_limits_of_fewer_than_five_pairs_are_not_known(n: int) -> None:
    x, y = [0.0, 1.0, 3.0, 2.0, 5.0], [1.0, 0.0, 2.0, 3.0, 4.0]
    for name, found in correlate(x[:n], y[:n], seed=0).items():
        assert found.value is not None, name
        assert found.p_value is not None
        assert (found.low, found.high) == (None, None)
    assert correlate(x, y, seed=0)["pearson"].low is not None


def test_a_perfect_correlation_has_no_interval() -> None:
    found = correlate([0.1, 0.2, 0.3, 0.4, 0.5], [1.0, 2.0, 3.0, 4.0, 5.0], seed=0)["spearman"]
    assert (found.value, found.low, found.high) == (pytest.approx(1), None, None)


def test_what_cannot_be_correlated_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the same length, not the shapes \(2,\) and \(3,\)"):
        correlate([1, 2], [1, 2, 3], seed=0)
    with pytest.raises(ValueError, match="finite"):
        correlate([1, 2, np.nan], [1, 2, 3], seed=0)
    with pytest.raises(ValueError, match="2 clusters are given for 3 pairs"):
        correlate([1, 2, 4], [1, 2, 3], ["a", "b"], seed=0)
