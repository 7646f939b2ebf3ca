"""Means of all samples from judgements of a part and a proxy of all: PPI++ (Angelopoulos, Duchi and Zrnic 2023)."""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from untold.udfs.statistics.intervals import CONFIDENCE, Interval, ndtr, ndtri

# Judged samples of a stratum with a variance of its own
LEAST_JUDGED = 2


@dataclass(frozen=True)
class Moments:
    """The moments of an estimate of a mean, or of a difference of two means.

    An estimate is judged + weight * shift, with the weight of the proxy. The variances and the covariance come from
    sums over clusters (queries).
    """

    judged: float  # mean of the judged samples
    shift: float  # mean of the proxy over the rest less its mean over the judged samples
    variance: float  # of `judged`
    covariance: float
    shift_variance: float
    # Variance of `shift` from all samples, by which the reference tunes the weight. None for clusters
    pooled_variance: float | None = None

    def less(self, other: Moments, cross: tuple[float, float, float, float]) -> Moments:
        """Return the difference of two means.

        cross: covariances of judged and other judged, judged and other shift, shift and other judged, both shifts.
        """
        both, this_shift, other_shift, shifts = cross
        return Moments(
            self.judged - other.judged,
            self.shift - other.shift,
            self.variance + other.variance - 2 * both,
            self.covariance + other.covariance - this_shift - other_shift,
            self.shift_variance + other.shift_variance - 2 * shifts,
        )

    @property
    def weight(self) -> float:
        """The weight of the proxy with the least variance, between 0 and 1. PPI++, example 6.1."""
        below = self.shift_variance if self.pooled_variance is None else self.pooled_variance
        return min(1.0, max(0.0, -self.covariance / below)) if below > 0 else 0.0

    @property
    def mean(self) -> float:
        """The estimate."""
        return self.judged + self.weight * self.shift

    def variance_at(self, weight: float) -> float:
        """Return the variance of the estimate under a weight of the proxy."""
        return max(0.0, self.variance + 2 * weight * self.covariance + weight * weight * self.shift_variance)

    def interval(self, weight: float) -> Interval:
        """Return the estimate under a weight of the proxy with its normal interval, without limits if constant."""
        mean, deviation = self.judged + weight * self.shift, math.sqrt(self.variance_at(weight))
        half = float(ndtri((1 + CONFIDENCE) / 2)) * deviation
        return Interval(mean, mean - half, mean + half) if half > 0 else Interval(mean, None, None)

    def p_value(self) -> float | None:
        """Return the two-sided p-value of the estimate against 0, or None if nothing varies."""
        variance = self.variance_at(self.weight)
        return float(2 * ndtr(-abs(self.mean) / math.sqrt(variance))) if variance else None


@dataclass(frozen=True)
class Stratum:
    """Counts of a stratum: judged samples, other samples, clusters with judged samples; and sums of its values."""

    judged: int
    rest: int
    clusters: int
    score: float  # over judged samples
    proxy: float  # over judged samples
    proxy_rest: float

    @property
    def size(self) -> int:
        return self.judged + self.rest


@dataclass(frozen=True)
class StratumWeights:
    """The weights of the samples of a stratum, and the means that centre them."""

    judged: float  # weight of the score of a judged sample
    shift: float  # weight of its proxy; 0 if all samples are judged
    rest: float  # weight of the proxy of another sample
    score_mean: float
    proxy_mean: float
    rest_mean: float
    # Factor of the deviations of judged samples, because their mean comes from the same samples
    factor: float


def weigh_strata(strata: Sequence[Stratum], *, clustered: bool) -> list[StratumWeights]:
    """Return the weights of the samples of each stratum, in proportion to the sizes of the strata.

    Strata with fewer than `LEAST_JUDGED` judged samples have one common mean. If they have too few together, they share
    the mean of the largest stratum. A single stratum without clusters follows `ppi_py.ppi_mean_ci`, which divides by n
    and not by n - 1.
    """
    whole, groups = sum(one.size for one in strata), _groups(strata)
    found: dict[int, StratumWeights] = {}
    for places in groups:
        own = [strata[place] for place in places]
        share = sum(one.size for one in own) / whole
        judged = _weights([one.judged for one in own], own, share)
        rest = _weights([one.rest for one in own], own, share)
        score_mean, proxy_mean, rest_mean = (
            math.fsum(map(operator.mul, weights, sums)) / share
            for weights, sums in (
                (judged, [one.score for one in own]),
                (judged, [one.proxy for one in own]),
                (rest, [one.proxy_rest for one in own]),
            )
        )
        free = sum(one.clusters for one in own)
        factor = math.sqrt(free / (free - 1)) if free > 1 and (clustered or len(groups) > 1) else 1.0
        for place, of_judged, of_rest in zip(places, judged, rest, strict=True):
            shift = of_judged if any(rest) else 0.0
            found[place] = StratumWeights(of_judged, shift, of_rest, score_mean, proxy_mean, rest_mean, factor)
    return [found[place] for place in range(len(strata))]


def _groups(strata: Sequence[Stratum]) -> list[list[int]]:
    """Return the indices of the strata with a common mean."""
    groups = [[place] for place, one in enumerate(strata) if one.judged >= LEAST_JUDGED]
    few = [place for place, one in enumerate(strata) if one.judged < LEAST_JUDGED]
    if groups and few and sum(strata[place].judged for place in few) < LEAST_JUDGED:
        max(groups, key=lambda group: strata[group[0]].size).extend(few)
    elif few:
        groups.append(few)
    return groups


def _weights(counts: Sequence[int], strata: Sequence[Stratum], share: float) -> list[float]:
    """Return the weight of each sample by stratum. share: the share of these strata of all samples."""
    of = sum(one.size for one, count in zip(strata, counts, strict=True) if count)
    return [share * one.size / of / count if count else 0.0 for one, count in zip(strata, counts, strict=True)]


def samples_needed(pilot: Moments, judged: int, rest: int, half_width: float) -> int | None:
    """Return the number of samples to judge for an interval of this half width, or None if all are too few.

    pilot: the moments of `judged` judged samples and `rest` other samples. Without other samples the population is
    infinite. The variances of single samples are those of the pilot.
    """
    score, both = pilot.variance * judged, -pilot.covariance * judged
    proxy = pilot.shift_variance / (1 / judged + 1 / rest) if rest else 0.0
    wanted = (half_width / float(ndtri((1 + CONFIDENCE) / 2))) ** 2

    def is_enough(number: int) -> bool:
        left = judged + rest - number
        if not rest or not proxy or left <= 0:
            return score / number <= wanted
        moments = Moments(0, 0, score / number, -both / number, proxy * (1 / number + 1 / left))
        return moments.variance_at(moments.weight) <= wanted

    most = judged + rest if rest else max(1, math.ceil(score / wanted) + 1)
    if not is_enough(most):
        return None
    return 1 + bisect_left(range(1, most + 1), True, key=is_enough)
