"""Compare systems, or two groups of samples, from counts of distinct differences, and find where a series shifts.

No cost grows with the number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri, stdtr

from untold.udfs.statistics import intervals

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
    distinct, rows = intervals.sort_counts(differences, counts)
    difference = intervals.mean_of_counts(distinct, rows)
    if difference is None:
        return PairedTest(0, None, None)
    n = int(rows.sum())
    if not distinct.any():
        return PairedTest(n, difference, 1.0)
    sizes, alike = intervals.sort_counts(np.abs(distinct), np.where(distinct == 0, 0, rows))
    exact = n < resamples.bit_length()  # 2 ** n <= resamples
    null = (
        _every_sum(np.repeat(sizes, alike))
        if exact
        else _drawn_sums(intervals.cut_cells(sizes, alike), resamples, seed)
    )
    # The null distribution is symmetric: with the observed sum taken as positive, swapped systems have one p-value.
    p_value = _two_sided(
        null, abs(math.fsum(distinct * rows)), intervals.SAME * math.fsum(sizes * alike), adjustment=1 - exact
    )
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
    tie = intervals.SAME * math.fsum(np.abs(sums) * counts)
    if np.abs(deviations).max() <= tie:
        return PairedTest(sum(samples), difference, 1.0)
    cells = intervals.cut_cells(*intervals.sort_counts(deviations, counts))
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


def _every_sum(sizes: intervals.FloatArray) -> intervals.FloatArray:
    """The sums under every choice of signs: float64[2 ** n]."""
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate([sums - size, sums + size])
    return sums


def _drawn_sums(cells: intervals.Cells, resamples: int, seed: int) -> intervals.FloatArray:
    """The sums under random signs: float64[resamples]."""
    random = np.random.default_rng(seed)
    sums = np.empty(resamples)
    sizes = np.hypot(cells.means, np.sqrt(cells.variances))
    step = max(1, intervals.CELLS_IN_MEMORY // cells.counts.size)
    for start in range(0, resamples, step):
        part = slice(start, min(start + step, resamples))
        positive = random.binomial(cells.counts, 0.5, size=(part.stop - part.start, cells.counts.size))
        sums[part] = ((2 * positive - cells.counts) * sizes).sum(axis=1)
    return sums


def _drawn_groups(cells: intervals.Cells, size: int, resamples: int, seed: int) -> intervals.FloatArray:
    """The sums of random groups of so many questions: float64[resamples]."""
    random = np.random.default_rng(seed)
    sums = np.empty(resamples)
    step = max(1, intervals.CELLS_IN_MEMORY // cells.counts.size)
    for start in range(0, resamples, step):
        part = slice(start, min(start + step, resamples))
        drawn = random.multivariate_hypergeometric(cells.counts, size, part.stop - part.start, method="marginals")
        sums[part] = (drawn * cells.means).sum(axis=1)
    return sums


def _two_sided(null: intervals.FloatArray, observed: float, tie: float, *, adjustment: int) -> float:
    """Sums within `tie` of the observed one equal it, whatever their last bits."""
    larger = np.count_nonzero(null >= observed - tie)
    smaller = np.count_nonzero(null <= observed + tie)
    return float(min(1.0, 2 * (min(larger, smaller) + adjustment) / (null.size + adjustment)))


# Points on either side of a shift: one date alone is compared with its neighbours by a test
LEAST = 2
NORMAL_MAD = 1.4826  # from the median absolute deviation to the standard deviation of a normal variable
CHANCE = 0.05


def find_shifts(means: ArrayLike, errors: ArrayLike, *, points: int) -> list[int]:
    """The places at which a new level begins, ascending; none among fewer than four means.

    means: float64[n] in the order of time; errors: float64[n - 1], the standard error of each mean less the one before;
    points: how many means the family of series has, so that noise alone gives a shift in about `CHANCE` of all families
    at most. Noise is the larger of what the errors say and of what the steps themselves show. PELT: Killick, Fearnhead
    and Eckley 2012, by `ruptures`.

    >>> find_shifts([0.8, 0.81, 0.8, 0.6, 0.59, 0.6], [0.01] * 5, points=6)
    [3]
    """
    values = np.asarray(means, dtype=np.float64)
    steps = np.abs(np.diff(values))
    if values.size < 2 * LEAST or not steps.any():
        return []
    # Here, as it takes a second, which few commands need
    from ruptures import KernelCPD

    seen = NORMAL_MAD * float(np.median(steps))
    expected = float(np.median(np.asarray(errors, dtype=np.float64)))
    noise = max(seen, expected, intervals.SAME * float(steps.max())) / np.sqrt(2)
    # The linear kernel has the cost of squared distances, by PELT in C
    search = KernelCPD(kernel="linear", min_size=LEAST).fit(values / noise)
    return [int(place) for place in search.predict(pen=float(chdtri(1, CHANCE / points)))[:-1]]


# Draws that are as far from 0, below which their share says little
RARE = 20


@dataclass(frozen=True)
class Change:
    """What a later group has more than an earlier one, by questions as `clustered_bca_interval` takes them.

    `parts`: of pairs their differences; else the scores of the later group, then those of the earlier one, negated.
    """

    parts: Sequence[Clusters]

    @property
    def negated(self) -> Change:
        """The change the other way round."""
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
        """Whether it may be chance: flips of pairs, or groups drawn anew.

        Where hardly a draw is as far from 0, Student's t says how unlikely that is: one of the hundreds of changes of a
        year needs a p-value that draws cannot have.
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
        # Never less likely than that all questions of the smaller group move one way
        tail = max(p_of_error(test.difference, self.error, self.degrees_of_freedom), 0.5 ** (min(questions) - 1))
        return PairedTest(test.n, test.difference, min(test.p_value, tail))


def interval_of(*changes: Change, seed: int) -> intervals.Interval:
    """The sum of independent changes with its BCa interval: of a change and another one negated their difference."""
    parts = [part for change in changes for part in change.parts]
    draws = resamples_for(*parts)
    if len(parts) == 1:
        return intervals.clustered_bca_interval(*parts[0], seed=seed, resamples=draws)
    mean = intervals.joint_bca_interval(parts, seed=seed, resamples=draws)
    return intervals.Interval(*(None if one is None else one * len(parts) for one in (mean.mean, mean.low, mean.high)))


def resamples_for(*parts: Clusters) -> int:
    """How many resamples: fewer of so many distinct questions that each takes long and their mean is as good as normal.

    >>> resamples_for(([0.5], [1], [12]))
    10000
    """
    return 2_000 if any(np.size(counts) > intervals.MAX_CELLS for _, _, counts in parts) else 10_000


def p_of_error(difference: float, error: float, freedom: int) -> float:
    """The two-sided p-value of a difference with a standard error, by Student's t of so many degrees of freedom.

    >>> round(p_of_error(1.96, 1.0, 10_000), 3), p_of_error(0.0, 0.0, 3), p_of_error(0.1, 0.0, 3)
    (0.05, 1.0, 0.0)
    """
    if error == 0 or freedom < 1:
        return float(difference == 0)
    return float(2 * stdtr(freedom, -abs(difference / error)))


def _negated(part: Clusters) -> Clusters:
    sums, sizes, counts = part
    return -np.asarray(sums, dtype=np.float64), sizes, counts


def _variance(part: Clusters) -> float:
    """The variance of the mean over all samples of questions; 0 of fewer than two."""
    sums, sizes, counts = (np.asarray(one, dtype=np.float64) for one in part)
    samples, questions = float(sizes @ counts), float(counts.sum())
    if questions < 2:
        return 0.0
    deviations = sums - sizes * (sums @ counts) / samples
    return float(deviations**2 @ counts) / samples**2 * questions / (questions - 1)
