"""Comparisons of systems from counts of distinct differences, so that no cost grows with the number of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from untold.udfs.statistics.intervals import (
    CELLS_IN_MEMORY,
    SAME,
    Cells,
    FloatArray,
    cut_cells,
    mean_of_counts,
    sort_counts,
)

# Sums, sizes and counts of questions, of one length
Clusters = tuple[ArrayLike, ArrayLike, ArrayLike]


@dataclass(frozen=True)
class PairedTest:
    """A comparison of two systems on n samples: `difference` and `p_value` are None without samples."""

    n: int
    difference: float | None
    p_value: float | None


def paired_permutation_test(
    differences: ArrayLike, counts: ArrayLike, *, seed: int, resamples: int = 10_000
) -> PairedTest:
    """The mean difference of two systems on the same samples, and the two-sided p-value under flips of its signs.

    differences: float64[k], the first system's value less the second's; counts: int[k], how many samples have each,
    not negative. Samples where either value is undefined are to be left out. Equal |differences| are one binomial draw
    a resample; more than `MAX_CELLS` distinct ones are drawn as that many cells of neighbours by their root mean
    square, which leaves the variance under flips as it is.

    SciPy's conventions: the p-value is twice the smaller share of sums at least as large, or at most as large, as the
    observed one, and never above 1. All 2^n flips are enumerated where they are at most `resamples`; of random ones, a
    share is (count + 1) / (resamples + 1). One sample, or no difference in any, gives 1.

    The same seed gives the same p-value in any order of the differences, and when the systems are swapped.
    Raises ValueError as `mean_of_counts`, and for fewer than one resample. Methods section 7;
    `scipy.stats.permutation_test(permutation_type="samples")` with the mean as its statistic is the reference.
    """
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, not {resamples}")
    distinct, rows = sort_counts(differences, counts)
    difference = mean_of_counts(distinct, rows)
    if difference is None:
        return PairedTest(0, None, None)
    n = int(rows.sum())
    if not distinct.any():
        return PairedTest(n, difference, 1.0)
    sizes, alike = sort_counts(np.abs(distinct), np.where(distinct == 0, 0, rows))
    exact = n < resamples.bit_length()  # 2 ** n <= resamples
    null = _every_sum(np.repeat(sizes, alike)) if exact else _drawn_sums(cut_cells(sizes, alike), resamples, seed)
    # The null distribution is symmetric: with the observed sum taken as positive, swapped systems have one p-value.
    p_value = _two_sided(null, abs(math.fsum(distinct * rows)), SAME * math.fsum(sizes * alike), adjustment=1 - exact)
    return PairedTest(n, difference, p_value)


def clustered_permutation_test(
    sums: ArrayLike, sizes: ArrayLike, counts: ArrayLike | None = None, *, seed: int, resamples: int = 10_000
) -> PairedTest:
    """`paired_permutation_test` where the differences of one question flip together.

    sums: float64[k], the sum of a question's differences; sizes: int[k], of how many samples; counts: int[k], how many
    questions have this sum and size, one each where it is None. The difference is the mean over all samples, n their
    number. Questions are as good as independent and the answers to one are not: flips of single answers reject too
    often. Methods, section 7; SciPy's test of the sums is the reference.
    """
    lengths = np.asarray(sizes, dtype=np.int64)
    alike = np.ones_like(lengths) if counts is None else np.asarray(counts, dtype=np.int64)
    some = lengths > 0
    test = paired_permutation_test(np.asarray(sums)[some], alike[some], seed=seed, resamples=resamples)
    n = int((lengths * alike).sum())
    return test if test.difference is None or n == test.n else PairedTest(n, test.difference * test.n / n, test.p_value)


def unpaired_permutation_test(first: Clusters, second: Clusters, *, seed: int, resamples: int = 10_000) -> PairedTest:
    """The difference of the means over all samples of two groups, and its p-value where questions change groups.

    first, second: sums, sizes and counts of questions as `clustered_permutation_test` takes them; `n` is the number of
    samples of both, 0 where a group has none. The statistic is the sum of the questions' deviations from the mean of
    all, which moves as the difference does. More than `MAX_CELLS` distinct ones are drawn as that many cells of
    neighbours. Methods section 7; `scipy.stats.permutation_test(permutation_type="independent")` is the reference.
    """
    pairs = zip(first, second, strict=True)
    sums, sizes, counts = (np.concatenate([np.asarray(one) for one in pair]) for pair in pairs)
    own = np.arange(len(counts)) < len(np.asarray(first[2]))
    samples = [int((sizes * counts)[part].sum()) for part in (own, ~own)]
    if not all(samples):
        return PairedTest(0, None, None)
    deviations = sums - sizes * (math.fsum(sums * counts) / sum(samples))
    observed = math.fsum((deviations * counts)[own])
    difference = observed * (1 / samples[0] + 1 / samples[1])
    tie = SAME * math.fsum(np.abs(sums) * counts)
    if np.abs(deviations).max() <= tie:
        return PairedTest(sum(samples), difference, 1.0)
    cells = cut_cells(*sort_counts(deviations, counts))
    null = _drawn_groups(cells, int(counts[own].sum()), resamples, seed)
    return PairedTest(sum(samples), difference, _two_sided(null, observed, tie, adjustment=1))


def binomial_test(successes: int, n: int) -> float:
    """The two-sided p-value of so many successes out of n independent trials, where each is as likely as not.

    >>> binomial_test(9, 10)
    0.021484375
    """
    # Here for the same reason as below
    from scipy.stats import binomtest

    return float(binomtest(successes, n).pvalue)


def adjust_p_values(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values of one family after Benjamini and Hochberg, in their order; None stays None and is no member.

    Raises ValueError for a p-value outside [0, 1]. Methods section 7; `scipy.stats.false_discovery_control`.

    >>> adjust_p_values([0.01, None, 0.04])
    [0.02, None, 0.04]
    """
    # Here, as it takes most of a second, which not every command that imports this module needs.
    from scipy.stats import false_discovery_control

    family = [index for index, p_value in enumerate(p_values) if p_value is not None]
    found = np.array([p_values[index] for index in family], dtype=np.float64)
    adjusted: list[float | None] = [None] * len(p_values)
    for index, p_value in zip(family, false_discovery_control(found), strict=True):
        adjusted[index] = float(p_value)
    return adjusted


def _every_sum(sizes: FloatArray) -> FloatArray:
    """The sums under every choice of signs: float64[2 ** n]."""
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate([sums - size, sums + size])
    return sums


def _drawn_sums(cells: Cells, resamples: int, seed: int) -> FloatArray:
    """The sums under random signs: float64[resamples]."""
    random = np.random.default_rng(seed)
    sums = np.empty(resamples)
    sizes = np.hypot(cells.means, np.sqrt(cells.variances))
    step = max(1, CELLS_IN_MEMORY // cells.counts.size)
    for start in range(0, resamples, step):
        part = slice(start, min(start + step, resamples))
        positive = random.binomial(cells.counts, 0.5, size=(part.stop - part.start, cells.counts.size))
        sums[part] = ((2 * positive - cells.counts) * sizes).sum(axis=1)
    return sums


def _drawn_groups(cells: Cells, size: int, resamples: int, seed: int) -> FloatArray:
    """The sums of random groups of so many questions: float64[resamples]."""
    random = np.random.default_rng(seed)
    sums = np.empty(resamples)
    step = max(1, CELLS_IN_MEMORY // cells.counts.size)
    for start in range(0, resamples, step):
        part = slice(start, min(start + step, resamples))
        drawn = random.multivariate_hypergeometric(cells.counts, size, part.stop - part.start, method="marginals")
        sums[part] = (drawn * cells.means).sum(axis=1)
    return sums


def _two_sided(null: FloatArray, observed: float, tie: float, *, adjustment: int) -> float:
    """Sums within `tie` of the observed one equal it, whatever their last bits."""
    larger = np.count_nonzero(null >= observed - tie)
    smaller = np.count_nonzero(null <= observed + tie)
    return float(min(1.0, 2 * (min(larger, smaller) + adjustment) / (null.size + adjustment)))
