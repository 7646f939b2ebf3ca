"""The expected results of the metric rag for samples of the symbolic world, by brute force (Ru et al. 2024).

Measures follow RAGChecker's formulas, over sets of claims and contexts. They are None if they would divide by 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

from tests.fakes.claims import claims_of
from tests.fakes.expected_icat import distinct
from tests.fakes.facts import relate_text
from tests.fakes.world import World

RELATIONS = ("entailment", "neutral", "contradiction")
Relation = str | None
Figures = dict[str, float | None]
Relate = Callable[[str, str], Relation]


@dataclass(frozen=True)
class Checked:
    """The claims of both sides, and the relations by side: a row per claim, with the whole text first."""

    response: list[str]
    truth: list[str]
    of_response: list[list[Relation]]
    of_truth: list[list[Relation]]
    contexts: int

    @property
    def unjudged(self) -> int:
        return sum(one is None for row in (*self.of_response, *self.of_truth) for one in row)

    def measures(self) -> dict[str, tuple[float | None, float | None]]:
        """Return the lowest and the highest value of each measure over all results of unknown relations."""
        holes = [
            (rows, place)
            for rows in (*self.of_response, *self.of_truth)
            for place, one in enumerate(rows)
            if one is None
        ]
        found: dict[str, list[float]] = {}
        for filling in product(RELATIONS, repeat=len(holes)):
            for (rows, place), one in zip(holes, filling, strict=True):
                rows[place] = one
            for name, value in figures(self.of_response, self.of_truth, self.contexts).items():
                found.setdefault(name, []).extend([] if value is None else [value])
        for rows, place in holes:
            rows[place] = None
        return {name: (min(values, default=None), max(values, default=None)) for name, values in found.items()}


def rag_samples(count: int, responses: int = 1, judge: str = "closed", first: int = 0) -> list[dict[str, Any]]:
    """Return samples of worlds with ground truths as texts, or in some worlds as claims."""
    found = []
    for seed in range(first, first + count):
        world, dice = World(seed, judge, ids=seed % 2 == 0), Random(f"rag/{seed}")
        text = world._write(dice, dice.randint(1, 4)) if seed % 11 else " "
        truth: Any = claims_of(text) if seed % 5 == 0 else text
        contexts = [] if seed % 13 == 0 else world.contexts
        found += [{**one, "contexts": contexts, "ground_truth": truth} for one in world.samples(responses)]
    return found


def check(sample: Mapping[str, Any], relate: Relate | None = None, judge: str = "closed") -> Checked:
    """Return the relations of a sample's claims by a judge, or by `relate`, which returns None for a lost one."""
    said = relate or (lambda premise, claim: relate_text(premise, claim, judge))
    truth = sample["ground_truth"]
    text = truth if isinstance(truth, str) else "\n".join(truth)
    claims = [one.strip() for one in (distinct(claims_of(text)) if isinstance(truth, str) else truth)]
    stated = distinct([one.strip() for one in claims_of(sample["response"])])
    contexts = [one if isinstance(one, str) else one["text"] for one in sample["contexts"]]

    def rows(whole: str, of: Sequence[str]) -> list[list[Relation]]:
        texts = [whole, *contexts]
        return [[said(one, claim) if one.strip() else "neutral" for one in texts] for claim in of]

    return Checked(stated, claims, rows(text, stated), rows(sample["response"], claims), len(contexts))


def figures(response: Sequence[Sequence[Relation]], truth: Sequence[Sequence[Relation]], contexts: int) -> Figures:
    """Return every measure of completely known relations."""
    ranks = range(1, contexts + 1)
    of = {side: list(range(len(rows))) for side, rows in (("r", response), ("g", truth))}
    right = {one for one in of["r"] if response[one][0] == "entailment"}
    said = {one for one in of["g"] if truth[one][0] == "entailment"}
    states = {rank: {one for one in of["r"] if response[one][rank] == "entailment"} for rank in ranks}
    recalls = {rank: {one for one in of["g"] if truth[one][rank] == "entailment"} for rank in ranks}
    relevant = {rank for rank in ranks if recalls[rank]}
    recalled = set[int]().union(*recalls.values())
    faithful = set[int]().union(*states.values())
    in_relevant = set[int]().union(*(states[rank] for rank in relevant))
    wrong = {*of["r"]} - right

    def share(part: set[int], whole: Sequence[int] | set[int], defined: bool = True) -> float | None:
        return float(Fraction(len(part), len(whole))) if whole and defined else None

    precision, recall = share(right, of["r"]), share(said, of["g"])
    both = None if precision is None or recall is None else 0.0
    if precision and recall:
        both = 2 * precision * recall / (precision + recall)
    there = contexts > 0
    noisy = there and bool(truth)
    measures: Figures = {
        "precision": precision,
        "recall": recall,
        "f1": both,
        "claim_recall": share(recalled, of["g"], there),
        "context_precision": share(relevant, list(ranks), noisy),
        "context_utilization": share(recalled & said, recalled, there),
        "noise_sensitivity_in_relevant": share(in_relevant & wrong, of["r"], noisy),
        "noise_sensitivity_in_irrelevant": share((faithful - in_relevant) & wrong, of["r"], noisy),
        "hallucination": share(wrong - faithful, of["r"], there),
        "self_knowledge": share(right - faithful, of["r"], there),
        "faithfulness": share(faithful, of["r"], there),
        "not_retrieved": share({*of["g"]} - said - recalled, of["g"]),
        "not_used": share(recalled - said, of["g"]),
        "claims": float(len(response)),
        "ground_truth_claims": float(len(truth)),
    }
    for name, rows, cells, defined in (
        ("precision", response, slice(0, 1), True),
        ("recall", truth, slice(0, 1), True),
        ("claim_recall", truth, slice(1, None), there),
        ("faithfulness", response, slice(1, None), there),
    ):
        left = [place for place, row in enumerate(rows) if "entailment" not in row[cells]]
        against = {place for place in left if "contradiction" in rows[place][cells]}
        measures[f"{name}_contradicted"] = share(against, range(len(rows)), defined)
        measures[f"{name}_neutral"] = share({*left} - against, range(len(rows)), defined)
    return measures
