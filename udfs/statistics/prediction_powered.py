"""Means of everything from judgements of a part and a proxy on all: PPI++ (Angelopoulos, Duchi and Zrnic 2023)."""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import ndtr, ndtri

from untold.udfs.statistics.intervals import Interval

# Judged samples of a stratum whose variance is its own
LEAST_JUDGED = 2


@dataclass(frozen=True)
class Moments:
    """What an estimate of a mean, or of a difference of two, is made of.

    An estimate is judged + weight * shift, and `weight` is that of the proxy. The variances and the covariance are of
    these two, from sums over clusters (queries) of what each adds to them.
    """

    judged: float  # mean of the judged samples
    shift: float  # mean of the proxy over the rest, less that over the judged samples
    variance: float  # of `judged`
    covariance: float
    shift_variance: float
    # Of `shift`, with the proxy's variance over all samples: what the reference tunes the weight by; None for clusters
    pooled_variance: float | None = None

    def less(self, other: Moments, cross: tuple[float, float, float, float]) -> Moments:
        """The difference of two means. cross: covariances of judged and judged, judged and shift of the other, shift
        and judged of the other, shift and shift.
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
        """The weight of the proxy under which the variance is least, between 0 and 1; PPI++, example 6.1."""
        below = self.shift_variance if self.pooled_variance is None else self.pooled_variance
        return min(1.0, max(0.0, -self.covariance / below)) if below > 0 else 0.0

    @property
    def mean(self) -> float:
        """The estimate."""
        return self.judged + self.weight * self.shift

    def variance_at(self, weight: float) -> float:
        """The variance of the estimate under a weight of the proxy."""
        return max(0.0, self.variance + 2 * weight * self.covariance + weight * weight * self.shift_variance)

    def interval(self, weight: float, confidence: float = 0.95) -> Interval:
        """The estimate under a weight of the proxy with its normal interval; no limits where nothing varies."""
        mean, deviation = self.judged + weight * self.shift, math.sqrt(self.variance_at(weight))
        half = float(ndtri((1 + confidence) / 2)) * deviation
        return Interval(mean, mean - half, mean + half) if half > 0 else Interval(mean, None, None)

    def p_value(self) -> float | None:
        """Two-sided, of an estimate of 0; None where nothing varies."""
        variance = self.variance_at(self.weight)
        return float(2 * ndtr(-abs(self.mean) / math.sqrt(variance))) if variance else None


@dataclass(frozen=True)
class Stratum:
    """How many samples of a stratum are judged and how many are not, how many clusters have judged ones, and sums."""

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
    """How the samples of a stratum count: the weight of each, and the means that they are centred by."""

    judged: float  # weight of the score of a judged sample
    shift: float  # weight of its proxy; 0 where no sample is left that is not judged
    rest: float  # weight of the proxy of another sample
    score_mean: float
    proxy_mean: float
    rest_mean: float
    # What deviations of judged samples are multiplied by, as they are from a mean of their own
    factor: float


def weigh_strata(strata: Sequence[Stratum], *, clustered: bool) -> list[StratumWeights]:
    """How the samples of each stratum count, in proportion to the sizes of the strata.

    Strata with fewer than `LEAST_JUDGED` judged samples are centred together, and with the largest where they have too
    few together. A single stratum without clusters is as in `ppi_py.ppi_mean_ci`, which divides by n and not by n - 1.
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
    """The places of strata that are centred together."""
    groups = [[place] for place, one in enumerate(strata) if one.judged >= LEAST_JUDGED]
    few = [place for place, one in enumerate(strata) if one.judged < LEAST_JUDGED]
    if groups and few and sum(strata[place].judged for place in few) < LEAST_JUDGED:
        max(groups, key=lambda group: strata[group[0]].size).extend(few)
    elif few:
        groups.append(few)
    return groups


def _weights(counts: Sequence[int], strata: Sequence[Stratum], share: float) -> list[float]:
    """The weight of each of so many samples of these strata, which have this share of all together."""
    of = sum(one.size for one, count in zip(strata, counts, strict=True) if count)
    return [share * one.size / of / count if count else 0.0 for one, count in zip(strata, counts, strict=True)]


def samples_needed(pilot: Moments, judged: int, rest: int, half_width: float, confidence: float = 0.95) -> int | None:
    """How many of judged + rest samples have to be judged for an interval of this half width; None if all are too few.

    pilot: the moments of `judged` judged samples beside `rest` others; without others, of a population without end. The
    variances of single samples are taken to be those of the pilot.
    """
    score, both = pilot.variance * judged, -pilot.covariance * judged
    proxy = pilot.shift_variance / (1 / judged + 1 / rest) if rest else 0.0
    wanted = (half_width / float(ndtri((1 + confidence) / 2))) ** 2

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
