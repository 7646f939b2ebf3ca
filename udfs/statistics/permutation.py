"""Compare systems, or two groups of samples, from counts of distinct differences, and find the shifts of a series.

No cost grows with the number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from untold.udfs.statistics import intervals
from untold.udfs.statistics.intervals import FloatArray

Clusters = tuple[ArrayLike, ArrayLike, ArrayLike]
"""Sums, sizes and counts of questions, of one length."""


@dataclass(frozen=True)
class PairedTest:
    """A comparison of two systems on n samples. `difference` and `p_value` are None without samples."""

    n: int
    difference: float | None
    p_value: float | None


def clustered_permutation_test(
    sums: ArrayLike, sizes: ArrayLike, counts: ArrayLike | None = None, *, seed: int, resamples: int = 10_000
) -> PairedTest:
    """Return the mean difference of two systems on the same samples, and its two-sided p-value under flips of signs.

    sums: float64[k], the sum of the differences (the first system's value less the second's) of a question; sizes:
    int[k], the number of its samples; counts: int[k], the number of questions with this sum and size, by default one
    each. The difference is the mean over all samples, and n is their number. The differences of one question flip
    together, because responses to one question depend on each other and flips of single responses reject too often.
    Leave out samples with an undefined value.

    Equal |sums| are one binomial draw per resample. More than `MAX_CELLS` distinct sums are drawn as that many cells of
    neighbours by their root mean square, which keeps the variance under flips. The conventions are SciPy's: the p-value
    is twice the smaller share of sums at least as large, or at most as large, as the observed sum, and at most 1. If
    there are at most `resamples` flips of n questions, all 2^n are enumerated. Otherwise a share of random flips is
    (count + 1) / (resamples + 1). The p-value is 1 if all differences are 0.

    The same seed gives the same p-value in any order of the questions, and if the systems are swapped. Raises
    ValueError as `mean_of_counts`, and for fewer than one resample. Methods, section 7;
    `scipy.stats.permutation_test(permutation_type="samples")` is the reference.
    """
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, not {resamples}")
    lengths = np.asarray(sizes, dtype=np.int64)
    times = np.ones_like(lengths) if counts is None else np.asarray(counts)
    distinct, rows = intervals.sort_counts(sums, np.where(lengths > 0, times, 0))
    mean = intervals.mean_of_counts(distinct, rows)
    if mean is None:
        return PairedTest(0, None, None)
    n, questions = int((lengths * times).sum()), int(rows.sum())
    difference = mean if n == questions else mean * questions / n
    if not distinct.any():
        return PairedTest(n, difference, 1.0)
    magnitudes, alike = intervals.sort_counts(np.abs(distinct), np.where(distinct == 0, 0, rows))
    exact = questions < resamples.bit_length()  # 2 ** questions <= resamples
    null = (
        _every_sum(np.repeat(magnitudes, alike))
        if exact
        else _drawn_sums(intervals.cut_cells(magnitudes, alike), resamples, seed)
    )
    # The null distribution is symmetric. With the observed sum taken as positive, swapped systems have one p-value
    tie = intervals.SAME * math.fsum(magnitudes * alike)
    return PairedTest(n, difference, _two_sided(null, abs(math.fsum(distinct * rows)), tie, adjustment=1 - exact))


def unpaired_permutation_test(first: Clusters, second: Clusters, *, seed: int, resamples: int = 10_000) -> PairedTest:
    """Return the difference of the means over all samples of two groups, and its p-value if questions change groups.

    first, second: sums, sizes and counts of questions, as `clustered_permutation_test` accepts them. `n` is the number
    of samples of both groups, 0 if a group has none. The statistic is the sum of the deviations of the questions from
    the mean of all, which is monotone in the difference. More than `MAX_CELLS` distinct deviations are drawn as that
    many cells of neighbours. Methods, section 7; `scipy.stats.permutation_test(permutation_type="independent")` is the
    reference.
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
    tie = intervals.SAME * math.fsum(np.abs(sums) * counts)
    if np.abs(deviations).max() <= tie:
        return PairedTest(sum(samples), difference, 1.0)
    cells = intervals.cut_cells(*intervals.sort_counts(deviations, counts))
    null = _drawn_groups(cells, int(counts[own].sum()), resamples, seed)
    return PairedTest(sum(samples), difference, _two_sided(null, observed, tie, adjustment=1))


def binomial_test(successes: int, n: int) -> float:
    """Return the two-sided p-value of a number of successes in n independent trials with probability one half.

    >>> binomial_test(9, 10)
    0.021484375
    """
    # Not at the top: an install that only reads has no SciPy
    from scipy.stats import binomtest

    return float(binomtest(successes, n).pvalue)


def adjust_p_values(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values of one family after Benjamini and Hochberg, in their order. None stays None.

    Raises ValueError for a p-value outside [0, 1]. Methods, section 7; `scipy.stats.false_discovery_control` is the
    reference, whose import would take most of a second.

    >>> adjust_p_values([0.01, None, 0.04])
    [0.02, None, 0.04]
    """
    family = [index for index, p_value in enumerate(p_values) if p_value is not None]
    found = np.array([p_values[index] for index in family], dtype=np.float64)
    if not ((found >= 0) & (found <= 1)).all():
        raise ValueError("p-values must be between 0 and 1")
    order = np.argsort(found)
    scaled = found[order] * (found.size / np.arange(1, found.size + 1))
    adjusted: list[float | None] = [None] * len(p_values)
    for place, p_value in zip(order, np.minimum.accumulate(scaled[::-1])[::-1], strict=True):
        adjusted[family[place]] = min(1.0, float(p_value))
    return adjusted


def _every_sum(sizes: FloatArray) -> FloatArray:
    """Return the sums under every choice of signs: float64[2 ** n]."""
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate([sums - size, sums + size])
    return sums


def _drawn_sums(cells: intervals.Cells, resamples: int, seed: int) -> FloatArray:
    """Return the sums under random signs: float64[resamples]."""
    random = np.random.default_rng(seed)
    sizes = np.hypot(cells.means, np.sqrt(cells.variances))
    parts = intervals.in_parts(resamples, cells.counts.size)
    drawn = (random.binomial(cells.counts, 0.5, size=(some, cells.counts.size)) for some in parts)
    return np.concatenate([((2 * positive - cells.counts) * sizes).sum(axis=1) for positive in drawn])


def _drawn_groups(cells: intervals.Cells, size: int, resamples: int, seed: int) -> FloatArray:
    """Return the sums of random groups of this number of questions: float64[resamples]."""
    random = np.random.default_rng(seed)
    parts = intervals.in_parts(resamples, cells.counts.size)
    drawn = (random.multivariate_hypergeometric(cells.counts, size, some, method="marginals") for some in parts)
    return np.concatenate([(groups * cells.means).sum(axis=1) for groups in drawn])


def _two_sided(null: FloatArray, observed: float, tie: float, *, adjustment: int) -> float:
    """Return the p-value. Sums within `tie` of the observed sum are equal to it, because their last bits may differ."""
    larger = np.count_nonzero(null >= observed - tie)
    smaller = np.count_nonzero(null <= observed + tie)
    return float(min(1.0, 2 * (min(larger, smaller) + adjustment) / (null.size + adjustment)))


# Points on either side of a shift. A test compares a single date with its neighbours
LEAST = 2
NORMAL_MAD = 1.4826  # from the median absolute deviation to the standard deviation of a normal variable
CHANCE = 0.05


def find_shifts(means: ArrayLike, errors: ArrayLike, *, points: int) -> list[int]:
    """Return the indices at which a new level begins, ascending. Fewer than four means have no shift.

    means: float64[n], in the order of time; errors: float64[n - 1], the standard error of each mean less the previous
    one; points: the number of means in the family of series. Noise alone gives a shift in at most about `CHANCE` of all
    families. Noise is the larger of the median error and of the median absolute deviation of the steps. The optimum of
    PELT (Killick, Fearnhead and Eckley 2012); `ruptures.KernelCPD(kernel="linear")` is the reference.

    >>> find_shifts([0.8, 0.81, 0.8, 0.6, 0.59, 0.6], [0.01] * 5, points=6)
    [3]
    """
    values = np.asarray(means, dtype=np.float64)
    steps = np.abs(np.diff(values))
    if values.size < 2 * LEAST or not steps.any():
        return []
    seen = NORMAL_MAD * float(np.median(steps))
    expected = float(np.median(np.asarray(errors, dtype=np.float64)))
    noise = max(seen, expected, intervals.SAME * float(steps.max())) / np.sqrt(2)
    # The square of a normal variable exceeds the penalty with this probability
    return _starts_of_levels((values - values.mean()) / noise, float(intervals.ndtri(CHANCE / points / 2)) ** 2)


def _starts_of_levels(values: FloatArray, penalty: float) -> list[int]:
    """Return the starts of all levels after the first, with the least squared deviations plus penalties of shifts.

    Optimal partitioning (Jackson et al. 2005), in time n^2.
    """
    sums, squares = (np.concatenate([[0.0], np.cumsum(one)]) for one in (values, values * values))
    costs, starts = np.full(values.size + 1, np.inf), np.zeros(values.size + 1, dtype=np.int64)
    costs[0] = 0.0
    for end in range(LEAST, values.size + 1):
        before = np.arange(end - LEAST + 1)
        within = squares[end] - squares[before] - (sums[end] - sums[before]) ** 2 / (end - before)
        total = costs[before] + within + penalty
        starts[end] = total.argmin()
        costs[end] = total[starts[end]]
    found, end = [], values.size
    while (end := int(starts[end])) > 0:
        found.append(end)
    return found[::-1]


MOST_STEPS = 1000  # of a continued fraction, which ends after some tens
# A p-value from fewer draws as far from 0 as the observed sum is too rough
RARE = 20


@dataclass(frozen=True)
class Change:
    """The difference of a later group and an earlier group of questions, as `clustered_bca_interval` accepts them.

    `parts`: the differences of pairs; or the scores of the later group, and the negated scores of the earlier group.
    """

    parts: Sequence[Clusters]

    @property
    def negated(self) -> Change:
        """The change in the other direction."""
        return Change([_negated(part) for part in self.parts])

    @property
    def degrees_of_freedom(self) -> int:
        """The degrees of freedom of its error."""
        return sum(int(np.sum(counts)) - 1 for _, _, counts in self.parts)

    @property
    def error(self) -> float:
        """The standard error of the difference of the means."""
        return float(np.sqrt(sum(map(_variance, self.parts))))

    def test(self, seed: int) -> PairedTest:
        """Test the change by flips of pairs, or by random groups.

        If hardly a draw is as far from 0, Student's t gives the p-value: one of the hundreds of changes of a year needs
        a smaller p-value than draws can have.
        """
        draws = resamples_for(*self.parts)
        if len(self.parts) == 1:
            test = clustered_permutation_test(*self.parts[0], seed=seed, resamples=draws)
        else:
            later, earlier = self.parts
            test = unpaired_permutation_test(later, _negated(earlier), seed=seed, resamples=draws)
        if test.p_value is None or test.difference is None or test.p_value > RARE / draws:
            return test
        questions = [int(np.sum(counts)) for _, _, counts in self.parts]
        # At least the probability that all questions of the smaller group move in one direction
        tail = max(p_of_error(test.difference, self.error, self.degrees_of_freedom), 0.5 ** (min(questions) - 1))
        return PairedTest(test.n, test.difference, min(test.p_value, tail))


def interval_of(*changes: Change, seed: int) -> intervals.Interval:
    """Return the sum of independent changes with its BCa interval. Negate a change to subtract it."""
    parts = [part for change in changes for part in change.parts]
    mean = intervals.joint_bca_interval(parts, seed=seed, resamples=resamples_for(*parts))
    return intervals.Interval(*(None if one is None else one * len(parts) for one in (mean.mean, mean.low, mean.high)))


def resamples_for(*parts: Clusters) -> int:
    """Return the number of resamples. Many distinct questions need fewer, because their mean is nearly normal.

    >>> resamples_for(([0.5], [1], [12]))
    10000
    """
    return 2_000 if any(np.size(counts) > intervals.MAX_CELLS for _, _, counts in parts) else 10_000


def p_of_error(difference: float, error: float, freedom: int) -> float:
    """Return the two-sided p-value of a difference with a standard error, by Student's t.

    >>> round(p_of_error(1.96, 1.0, 10_000), 3), p_of_error(0.0, 0.0, 3), p_of_error(0.1, 0.0, 3)
    (0.05, 1.0, 0.0)
    """
    if error == 0 or freedom < 1:
        return float(difference == 0)
    squared = (difference / error) ** 2
    return _beta_share(freedom / 2, 0.5, freedom / (freedom + squared), squared / (freedom + squared))


def _beta_share(a: float, b: float, x: float, rest: float) -> float:
    """Return the probability that a beta variable is below x, where `rest` is 1 - x. Lentz's continued fraction."""
    if x == 0 or rest == 0:
        return float(x > 0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(b, a, rest, x)
    fraction, lower, upper = 1.0, 0.0, 1.0
    for step in range(1, MOST_STEPS):
        half = step // 2
        term = -(a + half) * (a + b + half) * x if step % 2 else half * (b - half) * x
        term /= (a + step - 1) * (a + step)
        lower, upper = 1 / (1 + term * lower), 1 + term / upper
        fraction *= lower * upper
        if abs(1 - lower * upper) < intervals.SAME / 100:
            break
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    return math.exp(scale) / a / fraction


def _negated(part: Clusters) -> Clusters:
    sums, sizes, counts = part
    return -np.asarray(sums, dtype=np.float64), sizes, counts


def _variance(part: Clusters) -> float:
    """Return the variance of the mean over all samples of questions, 0 for fewer than two questions."""
    sums, sizes, counts = (np.asarray(one, dtype=np.float64) for one in part)
    samples, questions = float(sizes @ counts), float(counts.sum())
    if questions < 2:
        return 0.0
    deviations = sums - sizes * (sums @ counts) / samples
    return float(deviations**2 @ counts) / samples**2 * questions / (questions - 1)
