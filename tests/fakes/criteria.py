"""The language of the symbolic world for the stage of rubrics: criteria that ask for a fact, and their verdicts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from tests.fakes.facts import roll
from tests.fakes.nuggets import SUPPORTS, faulty, support_of

STAGE = "judge_criteria"
VERDICTS = ("met", "partly_met", "not_met")
_STATES = re.compile(r"(?:States|Rates whether it states) that (?P<fact>.*)", re.DOTALL)


def verdict_of(response: str, criterion: str, levels: Sequence[str], judge: str = "closed") -> str:
    """Return the verdict of a criterion that asks for a fact, or its level."""
    found = _STATES.match(criterion)
    place = SUPPORTS.index(support_of(response, found["fact"], judge)) if found else 2
    return f"level_{3 - place}" if levels else VERDICTS[place]


def say_rubric(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Any]] | None:
    """Return the completion of the stage of criteria, or None for another stage."""
    if payload.get("stage") != STAGE:
        return None
    pairs = list(zip(payload["criteria"], payload["levels"], strict=True))
    labels = [verdict_of(payload["response"], *pair, judge) for pair in pairs]
    dice = Random(roll(payload["response"], *payload["criteria"]))
    said = [(number, label, f"It says {label} | of {number}.") for number, label in faulty(labels, VERDICTS, dice)]
    if dice.random() < 0.5:
        rows = [{"number": number, "reason": reason, "label": label} for number, label, reason in said]
        return json.dumps({"verdicts": rows}), {}
    return "\n".join(f"{number}: {label} | {reason}" for number, label, reason in said), {}
