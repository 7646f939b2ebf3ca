"""Judges of a panel that disagree in a known manner: a label is a hash of the judge and the text of the item."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from tests.fakes.criteria import CITED_LABELS, VERDICTS
from tests.fakes.nuggets import SUPPORTS

VOTERS = ("a", "b", "c")
RELATIONS = ("entailment", "contradiction", "neutral")
COVERAGE = ("covered", "uncovered")
# The variable with the items, and the labels, of each stage
LISTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "assign_nuggets": ("nuggets", SUPPORTS),
    "judge_support": ("sentences", CITED_LABELS),
    "cover_sides": ("statements", COVERAGE),
    "classify_relations": ("hypotheses", RELATIONS),
    "check_claims": ("hypotheses", RELATIONS),
}
SINGLE: Mapping[str, tuple[str, Sequence[str]]] = {
    "classify_relation": ("hypothesis", RELATIONS),
    "verify_claim": ("claim", ("supported", "contradicted", "not_supported")),
}


def vote_on(voter: str, text: str, labels: Sequence[str]) -> str:
    """Return the label of a text. Half of the votes of all judges are equal."""
    of_all, of_one = (blake2b(f"{who} {text}".encode(), digest_size=8).digest() for who in ("", voter))
    number = of_one if of_one[0] % 2 else of_all
    return labels[number[1] % len(labels)]


def say_vote(payload: Mapping[str, Any], voter: str) -> str | None:
    """Return the completion of a stage that labels items, or None for another stage."""
    stage = str(payload.get("stage"))
    if stage in LISTS:
        variable, labels = LISTS[stage]
        return _lines([vote_on(voter, text, labels) for text in payload[variable]])
    if stage in SINGLE:
        variable, labels = SINGLE[stage]
        return vote_on(voter, payload[variable], labels)
    if stage == "judge_criteria":
        pairs = zip(payload["criteria"], payload["levels"], strict=True)
        return _lines([vote_on(voter, text, levels_of(levels) or VERDICTS) for text, levels in pairs])
    if stage == "check_coverage":
        covered = vote_on(voter, payload["fact"], COVERAGE) == "covered"
        return json.dumps({"label": "COVERED" if covered else "NOT_COVERED", "evidence_claim_ids": [1] * covered})
    return None


def levels_of(levels: Sequence[str]) -> list[str]:
    """Return the labels of a criterion with levels."""
    return [f"level_{number}" for number in range(1, len(levels) + 1)]


def _lines(labels: Sequence[str]) -> str:
    return "\n".join(f"{number}: {label}" for number, label in enumerate(labels, start=1))
