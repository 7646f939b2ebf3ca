"""The expected results of the metric nuggets for samples of the symbolic world, by brute force."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from tests.fakes.nuggets import created, importance_of, support_of

Bounds = tuple[float | None, float | None, float | None]
CREDIT = {"support": Fraction(1), "partial_support": Fraction(1, 2), "not_support": Fraction(0)}


@dataclass(frozen=True)
class Options:
    """The options of a job in a world. `unassigned(response, nugget)` returns True for a lost assignment."""

    judge: str = "closed"
    window: int = 10
    max_generated: int = 30
    top_k: int = 20
    vital_weight: float = 1.0
    score: str = "vital"
    unassigned: Callable[[str, str], bool] = lambda response, nugget: False


@dataclass(frozen=True)
class ExpectedNugget:
    """A nugget in its rank. `support` is None if it is unjudged or not kept."""

    text: str
    importance: str
    kept: bool
    support: str | None = None
    reference_id: str | None = None
    weight: float | None = None


@dataclass(frozen=True)
class ExpectedNuggets:
    """The expected nuggets result of a sample. Measures by name: value, low, high."""

    nuggets: tuple[ExpectedNugget, ...]
    measures: Mapping[str, Bounds]
    status: str
    # Covered, uncovered, unjudged
    counts: tuple[int, int, int]


def expected_nuggets(sample: Mapping[str, Any], texts: Sequence[str], options: Options) -> ExpectedNuggets:
    """Compute the result by brute force. texts: the sources of nuggets, if the sample has no references."""
    references = sample.get("references") or ()
    several = [references] if isinstance(references, str) else references
    given = [one if isinstance(one, dict) else {"text": one} for one in several]
    if not given:
        found: list[str] = []
        for first in range(0, len(texts), options.window):
            found = created(texts[first : first + options.window], found, options.max_generated)
        given = [{"text": text, "id": ""} for text in found]
    named = [_named(one, place, sample["query"], options) for place, one in enumerate(given, start=1)]
    ranked = [one for importance in ("vital", "okay") for one in named if one.importance == importance]
    nuggets = [
        _judged(one, sample["response"], options)
        if place <= options.top_k or one.weight is not None
        else replace(one, kept=False)
        for place, one in enumerate(ranked, start=1)
    ]
    kept = [one for one in nuggets if one.kept]
    measures = measures_of(kept)
    supports = [one.support for one in kept]
    counts = (
        supports.count("support"),
        sum(one in ("partial_support", "not_support") for one in supports),
        supports.count(None),
    )
    empty = measures[options.score][2] is None
    status = "no_statements" if empty else "partial" if counts[2] else "ok"
    return ExpectedNuggets(tuple(nuggets), measures, status, counts)


def _named(one: Mapping[str, Any], place: int, query: str, options: Options) -> ExpectedNugget:
    weight = one.get("weight")
    by_weight = None if weight is None else "vital" if weight >= options.vital_weight else "okay"
    importance = (one.get("importance") or "").lower() or by_weight or importance_of(query, one["text"])
    name = one.get("id", str(place)) or None
    return ExpectedNugget(one["text"], importance, True, None, name, weight)


def _judged(nugget: ExpectedNugget, response: str, options: Options) -> ExpectedNugget:
    if not response.strip():
        return replace(nugget, support="not_support")
    if options.unassigned(response, nugget.text):
        return nugget
    return replace(nugget, support=support_of(response, nugget.text, options.judge))


def measures_of(nuggets: Sequence[ExpectedNugget]) -> dict[str, Bounds]:
    """Return each measure over the judged nuggets, with the least and the greatest value for all others."""

    def share(chosen: Sequence[ExpectedNugget], strict: bool, weighted: bool = False) -> Bounds:
        def weight(one: ExpectedNugget) -> Fraction:
            if not weighted:
                return Fraction(1)
            return (
                Fraction(one.weight) if one.weight is not None else Fraction(1, 1 if one.importance == "vital" else 2)
            )

        def of(ones: Sequence[ExpectedNugget], best: bool) -> float | None:
            whole = sum((weight(one) for one in ones if weight(one) > 0), Fraction(0))
            if not whole:
                return None
            earned = Fraction(0)
            for one in ones:
                credit = CREDIT[one.support] if one.support else Fraction(int((weight(one) > 0) == best))
                earned += weight(one) * (credit if not strict or credit == 1 else 0)
            return float(min(Fraction(1), max(Fraction(0), earned / whole)))

        return of([one for one in chosen if one.support], True), of(chosen, False), of(chosen, True)

    wanted = [one for one in nuggets if one.weight is None or one.weight >= 0]
    vital = [one for one in wanted if one.importance == "vital"]
    counts = {"nuggets": len(nuggets), "vital_nuggets": len(vital)}
    return {
        "strict_vital": share(vital, True),
        "strict_all": share(wanted, True),
        "vital": share(vital, False),
        "all": share(wanted, False),
        "weighted": share(nuggets, False, weighted=True),
        **{name: (float(count),) * 3 for name, count in counts.items()},
    }
