"""Compare two groups of samples, paired or not, from counts of equal questions, and find where a series shifts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri, stdtr

from untold.udfs.statistics.intervals import MAX_CELLS, SAME, Interval, clustered_bca_interval, joint_bca_interval
from untold.udfs.statistics.permutation import (
    Clusters,
    PairedTest,
    clustered_permutation_test,
    unpaired_permutation_test,
)

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
    noise = max(seen, expected, SAME * float(steps.max())) / np.sqrt(2)
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
    def freedom(self) -> int:
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
        tail = max(p_of_error(test.difference, self.error, self.freedom), 0.5 ** (min(questions) - 1))
        return PairedTest(test.n, test.difference, min(test.p_value, tail))


def interval_of(*changes: Change, seed: int) -> Interval:
    """The sum of independent changes with its BCa interval: of a change and another one negated their difference."""
    parts = [part for change in changes for part in change.parts]
    draws = resamples_for(*parts)
    if len(parts) == 1:
        return clustered_bca_interval(*parts[0], seed=seed, resamples=draws)
    mean = joint_bca_interval(parts, seed=seed, resamples=draws)
    return Interval(*(None if one is None else one * len(parts) for one in (mean.mean, mean.low, mean.high)))


def resamples_for(*parts: Clusters) -> int:
    """How many resamples: fewer of so many distinct questions that each takes long and their mean is as good as normal.

    >>> resamples_for(([0.5], [1], [12]))
    10000
    """
    return 2_000 if any(np.size(counts) > MAX_CELLS for _, _, counts in parts) else 10_000


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
