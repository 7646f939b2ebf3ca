"""Reading the relation of a premise to a hypothesis (Dejl et al. 2025; methods, section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from untold.udfs.stages.labels import labels_of, read_label

RELATIONS = ("entailment", "contradiction", "neutral")
VARIABLES = ("premise", "hypothesis")

# The beginnings of the labels and of the words by which prompts explain them
_STARTS = {
    "entail": "entailment",
    "certain": "entailment",
    "contradict": "contradiction",
    "impossible": "contradiction",
    "neutral": "neutral",
    "open": "neutral",
}
_LABELS = labels_of(
    _STARTS,
    r"entail(?:ment|s|ed|ing)?|contradict(?:ion|s|ed|ing|ory)?|neutral",
    opposites=("entailment", "contradiction"),
    neither="neutral",
    inputs=VARIABLES,
    explaining="certain|impossible|open",
    stating=r"hypothesis(?= (?:is|would be)\b)",
)


def parse_relation(completion: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """`relation`: the one of `RELATIONS` that is the answer, as `read_label` finds it; what neither entails nor
    contradicts is neutral. Raises `Unparsable` where that is none or several.
    """
    own = " ".join(str(variables.get(name) or "") for name in VARIABLES)
    return {"relation": read_label(completion, _LABELS, own)}
