"""Score a response by the criteria of a rubric, and relative to a reference response.

Methods, section 18. HealthBench (Arora et al. 2025), ResearchRubrics (Sharma et al. 2025) and RACE (Du et al. 2025).
Lost verdicts are unjudged: values cover the judged criteria, and bounds cover all their possible results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Any

from untold.udfs.arrow import FLAG, FLOAT, NUMBER, TEXT, Row, columns, over_rows, struct
from untold.udfs.facts.aspect_coverage import CONCLUSION, UNDEFINED, BoundedValue, conclusion, share_of

VERDICTS = MET, PARTLY, NOT_MET = "met", "partly_met", "not_met"
GRADED = "graded"
# A verdict of a criterion with levels is `level_` and the number of the level, from 1
LEVEL = "level_"
STRICT, LENIENT, RELATIVE = SCORES = "strict", "lenient", "relative"
REFERENCE, CRITERIA, BLOCKED = "reference", "criteria", "blocked_rate"
DIMENSION = "dimension:"
# The credit for a criterion that a response meets partly
CREDIT: Mapping[str, float] = {STRICT: 0.0, LENIENT: 0.5}

_GIVEN = struct(number=NUMBER, criterion_id=TEXT, text=TEXT, points=FLOAT, dimension=TEXT, tags=[TEXT])
_VERDICT = {"verdict": TEXT, "grade": TEXT, "earned": FLOAT, "reason": TEXT}
_CRITERION = struct(_GIVEN, **_VERDICT, **{f"reference_{name}": kind for name, kind in _VERDICT.items()})
CONCLUDED = columns(CONCLUSION, criteria=[_CRITERION], known=FLAG)


@dataclass(frozen=True)
class JudgedCriterion:
    """A criterion for measures. `verdict` is None if it is unjudged. `shares` are the shares of its levels."""

    points: float
    verdict: str | None
    shares: tuple[float, ...] = ()

    def share(self, partly: float) -> float | None:
        """Return the share of the points for the verdict, None if it is unjudged. `partly`: the share of `PARTLY`."""
        if self.verdict is None:
            return None
        if self.verdict.startswith(LEVEL):
            return self.shares[int(self.verdict.removeprefix(LEVEL)) - 1]
        return {MET: 1.0, PARTLY: partly, NOT_MET: 0.0}[self.verdict]

    def ends(self, partly: float) -> tuple[float, float]:
        """Return the smallest and the largest points that the criterion can add."""
        known = self.share(partly)
        shares = (self.shares or (0.0, 1.0)) if known is None else (known,)
        # Adding 0 turns -0 into 0
        points = [self.points * share + 0.0 for share in shares]
        return min(points), max(points)


def net_share(criteria: Sequence[JudgedCriterion], partly: float) -> BoundedValue:
    """Return the points of the met criteria over all positive points, undefined without positive points.

    The value covers the judged criteria, and is kept within the bounds. Negative points subtract, so the value can be
    below 0.

    >>> net_share([JudgedCriterion(5, "met"), JudgedCriterion(5, "not_met"), JudgedCriterion(-8, "met")], 0.5).value
    -0.3
    """
    whole = fsum(one.points for one in criteria if one.points > 0)
    if not whole:
        return UNDEFINED
    low, high = (fsum(ends) / whole for ends in zip(*(one.ends(partly) for one in criteria), strict=True))
    judged = [(one.points, share) for one in criteria if (share := one.share(partly)) is not None]
    positive = fsum(points for points, _ in judged if points > 0)
    earned = fsum(points * share for points, share in judged)
    return BoundedValue(min(high, max(low, earned / positive)) if positive else None, low, high)


def relative_share(response: BoundedValue, reference: BoundedValue) -> BoundedValue:
    """Return RACE's relative score: response / (response + reference), with net shares below 0 as 0.

    It is undefined if both are 0, and 0.5 for equal shares.

    >>> relative_share(BoundedValue(0.75, 0.75, 0.75), BoundedValue(0.25, 0.25, 0.25)).value
    0.75
    """
    if response.high is None or reference.high is None or response.high <= 0 >= reference.high:
        return UNDEFINED
    return BoundedValue(
        _part(response.value, reference.value),
        # An end with two zeros is undefined, and any value is possible near it
        _part(response.low, reference.high, 0.0),
        _part(response.high, reference.low, 1.0),
    )


def _part(one: float | None, other: float | None, undefined: float | None = None) -> float | None:
    if one is None or other is None:
        return None
    first, second = max(0.0, one), max(0.0, other)
    return first / (first + second) if first + second else undefined


def measures_of(
    criteria: Sequence[JudgedCriterion],
    reference: Sequence[JudgedCriterion] | None,
    dimensions: Sequence[str | None],
    score: str,
) -> dict[str, BoundedValue]:
    """Return the measures of a sample by name.

    reference: the same criteria with the verdicts of a reference response, or None without one. dimensions: the
    dimension of each criterion. score: one of `SCORES`; each dimension has this score.
    """
    partly = CREDIT[STRICT if score == STRICT else LENIENT]
    count = float(len(criteria))
    found = {name: net_share(criteria, credit) for name, credit in CREDIT.items()}
    found[CRITERIA] = BoundedValue.exact(count)
    if reference is not None:
        found[REFERENCE] = net_share(reference, partly)
        found[RELATIVE] = relative_share(net_share(criteria, partly), found[REFERENCE])
    for name in filter(None, dict.fromkeys(dimensions)):
        own = [place for place, one in enumerate(dimensions) if one == name]
        share = net_share([criteria[place] for place in own], partly)
        if reference is not None:
            share = relative_share(share, net_share([reference[place] for place in own], partly))
        found[DIMENSION + name] = share
    return found


@over_rows(CONCLUDED)
def conclude_batches(row: Row, score: str) -> Row:
    """Return columns of `CONCLUDED`.

    row: sample_id; rubric list<struct<id, text, points, dimension, tags, levels>>; judged, reference and unblocked
    list<struct<number, verdict, reason>> with a null verdict for a lost one; blank, reference_blank and
    unblocked_blank, true for a blank text, which meets no criterion, null without the text; is_blocked, true if the
    sample has blocked sources. `unblocked` judges the response without sentences that cite them. `empty`: the score is
    undefined. `known`: it has a value.
    """
    rubric = row["rubric"] or ()
    judged = _by_number(row["judged"])
    met = criteria = _judge_all(rubric, judged, blank=row["blank"])
    if row["unblocked_blank"] is not None:
        without = _by_number(row["unblocked"])
        cut = _judge_all(rubric, without, blank=row["unblocked_blank"])
        criteria = [_without_blocked(*pair) for pair in zip(met, cut, strict=True)]
        judged |= {number: one for number, one in without.items() if criteria[number - 1] is cut[number - 1]}
    compared = _by_number(row["reference"]) if score == RELATIVE else {}
    reference = _judge_all(rubric, compared, blank=score == RELATIVE and row["reference_blank"])
    dimensions = [one["dimension"] for one in rubric]
    measures = measures_of(criteria, reference if score == RELATIVE else None, dimensions, score)
    if row["is_blocked"]:
        measures[BLOCKED] = share_of([_is_blocked(*pair) for pair in zip(met, criteria, strict=True)])
    partly = CREDIT[STRICT if score == STRICT else LENIENT]
    wanted = [one.share(partly) for one in criteria if one.points > 0]
    both = [*criteria, *(reference if score == RELATIVE else ())]
    flags = [None if share is None else share == 1 for share in wanted]
    return {
        **conclusion(row, measures, flags, empty=measures[score].high is None),
        "unjudged": sum(one.verdict is None for one in both),
        "criteria": [
            {
                "number": place,
                "criterion_id": one["id"],
                **{name: one[name] for name in ("text", "points", "dimension", "tags")},
                **_shown(one, criteria[place - 1], judged.get(place, {}), partly),
                **_shown(one, reference[place - 1], compared.get(place, {}), partly, "reference_"),
            }
            for place, one in enumerate(rubric, start=1)
        ],
        "known": measures[score].value is not None,
    }


def _without_blocked(met: JudgedCriterion, unblocked: JudgedCriterion) -> JudgedCriterion:
    """Return a wanted criterion with its verdict without blocked sentences, if this has less credit.

    A criterion without credit, or with points to avoid, keeps its verdict. The verdict is None if either is missing.
    """
    shares = met.share(0.5), unblocked.share(0.5)
    if met.points <= 0 or shares[0] == 0:
        return met
    if None in shares:
        return replace(met, verdict=None)
    return min(met, unblocked, key=lambda one: one.share(0.5) or 0.0)


def _is_blocked(met: JudgedCriterion, kept: JudgedCriterion) -> bool | None:
    """Return whether blocked sentences give a criterion its credit, for the verdicts with and without them."""
    return None if kept.verdict is None else met != kept


def _by_number(judged: Sequence[Row] | None) -> dict[int, Row]:
    return {one["number"]: one for one in judged or ()}


def _judge_all(rubric: Sequence[Row], judged: Mapping[int, Row], *, blank: bool) -> list[JudgedCriterion]:
    """Return the criteria with their verdicts. judged: the verdicts by number, from 1."""
    return [_judged(one, judged.get(number, {}), blank=blank) for number, one in enumerate(rubric, start=1)]


def _judged(criterion: Row, judged: Row, *, blank: bool) -> JudgedCriterion:
    """Return a criterion with its verdict. A blank response has the lowest level of a criterion with levels."""
    shares = tuple(level["share"] for level in criterion["levels"] or ())
    verdict = judged.get("verdict")
    if blank:
        verdict = f"{LEVEL}{shares.index(min(shares)) + 1}" if shares else NOT_MET
    return JudgedCriterion(criterion["points"], verdict, shares)


def _shown(criterion: Row, judged: JudgedCriterion, row: Row, partly: float, prefix: str = "") -> dict[str, Any]:
    """Return the columns of the table `criteria` about a verdict."""
    verdict, grade, share = judged.verdict, None, judged.share(partly)
    if verdict is not None and verdict.startswith(LEVEL):
        grade = criterion["levels"][int(verdict.removeprefix(LEVEL)) - 1]["label"]
        verdict = GRADED
    return {
        f"{prefix}verdict": verdict,
        f"{prefix}grade": grade,
        f"{prefix}earned": None if share is None else judged.points * share + 0.0,
        f"{prefix}reason": row.get("reason"),
    }
