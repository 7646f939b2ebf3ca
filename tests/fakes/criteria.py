"""The language of the symbolic world for the stages of rubrics and citations: verdicts with reasons."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from tests.fakes.facts import roll
from tests.fakes.nuggets import SUPPORTS, faulty, importance_of, support_of

STAGE, CITED, RELEVANCY = "judge_criteria", "judge_support", "judge_relevancy"
CITED_LABELS = ("full_support", "partial_support", "no_support")
RELEVANCIES = ("relevant", "background", "irrelevant")
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
    return _say(labels, VERDICTS, "verdicts", roll(payload["response"], *payload["criteria"])), {}


def say_support(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Any]] | None:
    """Return the completion of the stage of citations, or None for another stage."""
    if payload.get("stage") != CITED:
        return None
    text = " ".join(payload["sources"])
    labels = [CITED_LABELS[SUPPORTS.index(support_of(text, one, judge))] for one in payload["sentences"]]
    return _say(labels, CITED_LABELS, "labels", roll(*payload["sources"], *payload["sentences"])), {}


def say_relevancy(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Any]] | None:
    """Return the completion of the stage of answer relevancy, or None for another stage."""
    if payload.get("stage") != RELEVANCY:
        return None
    labels = [relevancy_of(payload["query"], one) for one in payload["sentences"]]
    return _say(labels, RELEVANCIES, "labels", roll(payload["query"], *payload["sentences"])), {}


def relevancy_of(query: str, sentence: str) -> str:
    """Return the label of a sentence. A sentence that the query does not ask for has one of the other two labels."""
    return RELEVANCIES[0] if importance_of(query, sentence) == "vital" else RELEVANCIES[1 + roll(sentence) % 2]


def _say(labels: Sequence[str], known: Sequence[str], name: str, seed: int) -> str:
    dice = Random(seed)
    said = [(number, label, f"It says {label} | of {number}.") for number, label in faulty(labels, known, dice)]
    if dice.random() < 0.5:
        rows = [{"number": number, "reason": reason, "label": label} for number, label, reason in said]
        return json.dumps({name: rows})
    return "\n".join(f"{number}: {label} | {reason}" for number, label, reason in said)
