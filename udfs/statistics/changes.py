"""What two groups of samples differ by, paired or not, from counts of equal questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc

from untold.udfs.statistics.intervals import Interval, clustered_bca_interval, joint_bca_interval
from untold.udfs.statistics.permutation import (
    Clusters,
    PairedTest,
    clustered_permutation_test,
    unpaired_permutation_test,
)


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
    def error(self) -> float:
        """The standard error of the difference of the means."""
        return float(np.sqrt(sum(map(_variance, self.parts))))

    def test(self, seed: int) -> PairedTest:
        """Whether it may be chance: flips of pairs, or groups drawn anew."""
        if len(self.parts) == 1:
            return clustered_permutation_test(*self.parts[0], seed=seed)
        later, earlier = self.parts
        return unpaired_permutation_test(later, _negated(earlier), seed=seed)


def interval_of(*changes: Change, seed: int) -> Interval:
    """The sum of independent changes with its BCa interval: of a change and another one negated their difference."""
    parts = [part for change in changes for part in change.parts]
    if len(parts) == 1:
        return clustered_bca_interval(*parts[0], seed=seed)
    mean = joint_bca_interval(parts, seed=seed)
    return Interval(*(None if one is None else one * len(parts) for one in (mean.mean, mean.low, mean.high)))


def p_of_error(difference: float, error: float) -> float:
    """The two-sided p-value of a difference with a standard error, by the normal distribution.

    >>> round(p_of_error(1.96, 1.0), 3), p_of_error(0.0, 0.0), p_of_error(0.1, 0.0)
    (0.05, 1.0, 0.0)
    """
    if error == 0:
        return float(difference == 0)
    return float(chdtrc(1, (difference / error) ** 2))


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
