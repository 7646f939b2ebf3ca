"""The language of the symbolic world for the stages of nuggets: nuggets, their importance, and their support.

A nugget is a claim of a text. Completions with labels of lists have faults: lines are missing, repeated and shuffled.
The label of a number that occurs once is correct, and a list with one item has no fault.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from tests.fakes.claims import claims_of
from tests.fakes.facts import NEEDED, normalise, rate, relate, roll
from tests.fakes.importance import covering, parts_of

IMPORTANCES = ("vital", "okay")
SUPPORTS = ("support", "partial_support", "not_support")


def created(texts: Sequence[str], nuggets: Sequence[str], most: int) -> list[str]:
    """Return the given nuggets and the other claims of the texts, without duplicates, the first `most` of them."""
    first: dict[str, str] = {}
    for nugget in [*nuggets, *(claim.strip() for text in texts for claim in claims_of(text))]:
        first.setdefault(normalise(nugget), nugget)
    return list(first.values())[:most]


def importance_of(query: str, nugget: str) -> str:
    """Return vital for the content that the query asks for."""
    return "vital" if NEEDED in rate(query, parts_of(nugget)) else "okay"


def support_of(response: str, nugget: str, judge: str = "closed") -> str:
    """Return the support. Claims of the response must entail the nugget, or one of its claims for partial support."""
    said = claims_of(response)
    if covering(nugget, said, judge):
        return "support"
    less = (relate(part, claim, judge) == "entailment" for part in parts_of(nugget) for claim in said)
    return "partial_support" if any(less) else "not_support"


def say_nuggets(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Any]] | None:
    """Return the completion of a stage of nuggets, or None for another stage."""
    stage = payload.get("stage")
    if stage == "create_nuggets":
        return _say_list(created(payload["texts"], payload["nuggets"], payload["most"]), roll(*payload["texts"])), {}
    if stage == "rate_nuggets":
        labels = [importance_of(payload["query"], nugget) for nugget in payload["nuggets"]]
        return _say_labels(labels, IMPORTANCES, roll(*payload["nuggets"])), {}
    if stage == "assign_nuggets":
        labels = [support_of(payload["response"], nugget, judge) for nugget in payload["nuggets"]]
        return _say_labels(labels, SUPPORTS, roll(payload["response"], *payload["nuggets"])), {}
    return None


def _say_list(nuggets: Sequence[str], form: int) -> str:
    forms = ("\n".join(f"- {one}" for one in nuggets), json.dumps(nuggets), json.dumps({"nuggets": nuggets}))
    return forms[form % len(forms)] if nuggets else ("None", "[]")[form % 2]


def _say_labels(labels: Sequence[str], known: Sequence[str], seed: int) -> str:
    dice = Random(seed)
    said = faulty(labels, known, dice)
    if dice.random() < 0.5:
        return json.dumps([{"number": number, "label": label} for number, label in said])
    return "\n".join(f"{number}: {label}" for number, label in said)


def faulty(labels: Sequence[str], known: Sequence[str], dice: Random) -> list[tuple[int, str]]:
    """Return numbers with labels. Numbers of a list are missing, repeated with another label, and shuffled."""
    said = list(enumerate(labels, start=1))
    if len(labels) > 1:
        kept = [one for one in said if dice.random() > 0.1]
        wrong = [dice.randint(1, len(labels)) for _ in range(dice.choice((0, 0, 0, 1)))]
        # A number that is only in `wrong` would be read as a label
        found = kept + [(number, dice.choice(known)) for number in wrong if number in dict(kept)]
        # If no label of a list is clear, the same list would be requested again
        said = found if 1 in Counter(number for number, _ in found).values() else said
        dice.shuffle(said)
        said.append((len(labels) + 1, known[0]))
    return said
