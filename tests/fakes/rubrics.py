"""Worlds for the metric rubric: criteria that ask for facts, and the expected results by brute force."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

from tests.fakes.asked_nuggets import label_in_lists
from tests.fakes.criteria import STAGE, say_rubric
from tests.fakes.world_importance import ImportanceWorld
from untold.udfs.stages import STAGES

Row = Mapping[str, Any]
Bounds = tuple[float | None, float | None, float | None]
LEVELS = ("absent", {"label": "in part", "text": "a part of it", "share": 0.25}, {"grade": "whole", "share": 0.75})
KINDS = ("mixed", "mixed", "wanted", "graded", "unwanted", "none", "blank")
"""The rubrics of worlds: any criteria, only positive points, with levels, only negative points, no criterion, and any
criteria for blank responses.
"""


class RubricWorld(ImportanceWorld):
    """A world with a rubric and a ground truth, determined only by the seed."""

    def __init__(self, seed: int, judge: str = "closed") -> None:
        super().__init__(seed, judge)
        random = Random(f"rubric/{seed}")
        leaves, self.rubric_kind = self._world.leaves, KINDS[seed % len(KINDS)]
        count = 0 if self.rubric_kind == "none" else random.choice((1, 3, 7, 14))
        facts = [random.choice(leaves).sentence(0) for _ in range(count)]
        self.rubric = [_criterion(random, fact, place, self.rubric_kind) for place, fact in enumerate(facts)]
        self.truth = " ".join(random.choice(leaves).sentence(0) for _ in range(random.randint(0, 3)))

    def samples(self, responses: int = 1) -> list[dict[str, Any]]:
        """Return a sample for each response, with `rubric` and `ground_truth`."""
        blank = {"response": " \n"} if self.rubric_kind == "blank" else {}
        more = {"rubric": self.rubric, "ground_truth": self.truth, "references": None, **blank}
        return [sample | more | {"system": f"S{n}"} for n, sample in enumerate(self._world.samples(responses))]


def rubric_worlds(count: int, judge: str = "closed") -> list[RubricWorld]:
    """Return worlds with successive seeds."""
    return [RubricWorld(seed, judge) for seed in range(count)]


def _criterion(random: Random, fact: str, place: int, kind: str) -> dict[str, Any]:
    is_graded = kind == "graded" or (kind == "mixed" and random.random() < 0.2)
    points = {"wanted": (1, 2.5, 10), "unwanted": (-1, -4)}.get(kind, (5, 5, 2.5, 8, -3, -8))
    one: dict[str, Any] = {
        random.choice(("text", "criterion")): f"{'Rates whether it states' if is_graded else 'States'} that {fact}",
        random.choice(("points", "weight")): random.choice(points),
        "tags": random.choice(([], ["level:example"])),
    }
    if is_graded:
        one["levels"] = [{"label": "absent", "share": 0}, *LEVELS[1:]]
    if random.random() < 0.7:
        one[random.choice(("axis", "dimension"))] = random.choice(("accuracy", "style: short"))
    return one | ({"id": f"C{place}"} if random.random() < 0.5 else {})


@dataclass(frozen=True)
class ExpectedRubric:
    """The expected result of a sample. `criteria`: verdict, grade and earned points of each. Measures by name."""

    criteria: tuple[tuple[str | None, str | None, float | None], ...]
    measures: Mapping[str, Bounds]
    status: str
    # Covered, uncovered, unjudged
    counts: tuple[int, int, int]


def normalised(rubric: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the criteria under one name each."""
    return [
        {
            "text": one.get("text", one.get("criterion")),
            "points": Fraction(one.get("points", one.get("weight"))),
            "dimension": one.get("dimension", one.get("axis")),
            "levels": [level_line(level) for level in one.get("levels", ())],
            "labels": [level.get("label", level.get("grade")) for level in one.get("levels", ())],
            "shares": [Fraction(level["share"]) for level in one.get("levels", ())],
        }
        for one in rubric
    ]


def level_line(level: Row) -> str:
    """Return a level as in the prompt."""
    return ": ".join(filter(None, (level.get("label", level.get("grade")), level.get("text"))))


Verdicts = Sequence[str | None]


def expected_rubric(
    sample: Row, verdicts: Verdicts, reference: Verdicts, score: str, *, unasked: bool = False
) -> ExpectedRubric:
    """Compute the result by brute force. reference: the verdicts on the ground truth, for a relative score."""
    criteria = normalised(sample["rubric"])
    partly = Fraction(0 if score == "strict" else 1, 2)
    measures: dict[str, Bounds] = {
        name: ends_of([criteria], [verdicts], net(credit))
        for name, credit in (("strict", 0), ("lenient", Fraction(1, 2)))
    }
    measures["criteria"] = (float(len(criteria)),) * 3
    if score == "relative":
        measures["reference"] = ends_of([criteria], [reference], net(partly))
        measures["relative"] = relative_of(criteria, verdicts, reference, partly)
    for name in {one["dimension"] for one in criteria if one["dimension"]}:
        own = [place for place, one in enumerate(criteria) if one["dimension"] == name]
        of, said, other = ([each[place] for place in own] for each in (criteria, verdicts, reference or verdicts))
        relative = score == "relative"
        measures[f"dimension:{name}"] = (
            relative_of(of, said, other, partly) if relative else ends_of([of], [said], net(partly))
        )
    shares = [None if one is None else share_of(of, one, partly) for of, one in zip(criteria, verdicts, strict=True)]
    wanted = [share for share, one in zip(shares, criteria, strict=True) if one["points"] > 0]
    open_ones = [*verdicts, *(reference if score == "relative" else ())].count(None)
    value, _, high = measures[score]
    status = (
        "no_statements" if high is None else "ok" if not open_ones else "partial" if value is not None else "failed"
    )
    if unasked:
        status = "budget"
    if status in ("failed", "budget"):
        measures = {name: (None, low, high) for name, (_, low, high) in measures.items()}
    return ExpectedRubric(
        tuple(
            (
                None if one is None else "graded" if of["levels"] else one,
                None if one is None or not of["levels"] else of["labels"][int(one[6:]) - 1],
                None if share is None else float(of["points"] * share),
            )
            for of, one, share in zip(criteria, verdicts, shares, strict=True)
        ),
        measures,
        status,
        (wanted.count(1), sum(share is not None and share < 1 for share in wanted), open_ones),
    )


def share_of(criterion: Row, verdict: str, partly: Fraction) -> Fraction:
    """Return the share of the points of a verdict."""
    if criterion["levels"]:
        return criterion["shares"][int(verdict[6:]) - 1]
    return {"met": Fraction(1), "partly_met": partly, "not_met": Fraction(0)}[verdict]


def net(partly: Fraction | int) -> Callable[[Sequence[Row], Sequence[str]], Fraction | None]:
    """Return the formula of the points over all positive points."""

    def of(criteria: Sequence[Row], verdicts: Sequence[str]) -> Fraction | None:
        whole = sum((one["points"] for one in criteria if one["points"] > 0), Fraction(0))
        pairs = zip(criteria, verdicts, strict=True)
        earned = sum((one["points"] * share_of(one, verdict, Fraction(partly)) for one, verdict in pairs), Fraction(0))
        return earned / whole if whole else None

    return of


def completions(criteria: Sequence[Row], verdicts: Verdicts) -> list[tuple[str, ...]]:
    """Return the verdicts with the best and the worst verdict in place of each lost one."""
    best_and_worst = []
    for one, verdict in zip(criteria, verdicts, strict=True):
        known = [f"level_{n}" for n in range(1, len(one["levels"]) + 1)] or ["met", "not_met"]
        best_and_worst.append([verdict] if verdict else known)
    if len(criteria) <= 6:
        return list(product(*best_and_worst))
    ordered = [
        sorted(known, key=lambda said, one=one: one["points"] * share_of(one, said, Fraction(0)))
        for one, known in zip(criteria, best_and_worst, strict=True)
    ]
    return [tuple(known[0] for known in ordered), tuple(known[-1] for known in ordered)]


def ends_of(
    sides: Sequence[Sequence[Row]], verdicts: Sequence[Verdicts], formula: Callable[..., Fraction | None]
) -> Bounds:
    """Return the value over the judged criteria, kept within the extremes over all completions of the lost ones."""
    (criteria,), (said,) = sides, verdicts
    found = [formula(criteria, one) for one in completions(criteria, said)]
    if None in found:
        return None, None, None
    low, high = min(found), max(found)
    judged = [place for place, one in enumerate(said) if one is not None]
    value = formula([criteria[place] for place in judged], [said[place] for place in judged])
    value = None if value is None else min(high, max(low, value))
    return None if value is None else float(value), float(low), float(high)


def relative_of(criteria: Sequence[Row], verdicts: Verdicts, reference: Verdicts, partly: Fraction) -> Bounds:
    """Return RACE's relative score with the extremes of both sides."""
    one, other = (ends_of([criteria], [said], net(partly)) for said in (verdicts, reference))
    if one[2] is None or (one[2] <= 0 and other[2] <= 0):
        return None, None, None

    def part(first: float | None, second: float | None, undefined: float | None) -> float | None:
        if first is None or second is None:
            return None
        first, second = max(first, 0.0), max(second, 0.0)
        return first / (first + second) if first + second else undefined

    return part(one[0], other[0], None), part(one[1], other[2], 0.0), part(one[2], other[1], 1.0)


@dataclass
class JudgedRubric:
    """The requests of a sample by `ask`, and its expected result. `lost`: stage, variables and error per request."""

    ask: Callable[..., str | None]
    score: str = "strict"
    size: int = 10
    judge: str = "closed"
    lost: set[tuple[str, str, str]] = field(default_factory=set)

    def judged(self, sample: Row) -> ExpectedRubric:
        """Send all requests that a sample needs, in order, and return its result."""
        texts = [sample["response"], *([sample["ground_truth"]] if self.score == "relative" else [])]
        found = [self._verdicts(sample["query"], text, normalised(sample["rubric"])) for text in texts]
        return expected_rubric(sample, found[0], found[-1] if len(found) > 1 else [], self.score)

    def _verdicts(self, query: str, text: str, criteria: Sequence[Row]) -> list[str | None]:
        if not text.strip():
            return ["level_1" if one["levels"] else "not_met" for one in criteria]

        def read(places: Sequence[int]) -> tuple[Sequence[str | None], str | None]:
            own = [criteria[place] for place in places]
            listed = {name: [one[field] for one in own] for name, field in (("criteria", "text"), ("levels", "levels"))}
            asked = {"query": query, "response": text, **listed}
            if error := self.ask(STAGE, **asked):
                return [None] * len(own), error
            said = say_rubric({"stage": STAGE, **asked}, self.judge)
            assert said is not None
            labels: Sequence[str | None] = STAGES[STAGE].parse(said[0], asked)["verdicts"]
            return labels, None

        def lose(places: Sequence[int], error: str) -> None:
            self.lost.add((STAGE, json.dumps([text, *(criteria[place]["text"] for place in places)]), error))

        return label_in_lists(len(criteria), self.size, read, lose)
