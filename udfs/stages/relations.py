"""Reading the relation of a premise to a hypothesis (Dejl et al. 2025; methods, section 2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.labels import labels_of, read_label
from untold.udfs.stages.numbered import Numbered
from untold.udfs.stages.numbered_labels import read_numbered_labels

RELATIONS = ("entailment", "contradiction", "neutral")
VARIABLES = ("premise", "hypothesis")
LIST_VARIABLES = ("premise", "hypotheses")

# What stands beside a hypothesis's number: `Hypothesis 3`, `h3`
_NUMBER_WORDS = re.compile(
    r"(?<![^\W_])(?:hypothes[ei]s|statements?|claims?|nos?|numbers?|ids?|h)(?![^\W\d_])", re.IGNORECASE
)

# `certain`, `impossible` and `open` are the words by which other prompts explain the labels
_LABELS = labels_of(
    {
        "entailment": r"entail(?:ment|s|ed|ing)?|certain",
        "contradiction": r"contradict(?:ion|s|ed|ing|ory)?|impossible",
        "neutral": r"neutral|open",
    },
    hedged=r"(?:partial|weak|near|possible|apparent|likely)[\s_-](?:entailment|contradiction)",
    inputs=VARIABLES,
    positive="entailment",
    neither="neutral",
    opposites=("entailment", "contradiction"),
)


@final_answer
def parse_relation(completion: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """`relation`: the one of `RELATIONS` that is the answer, as `read_label` finds it; what neither entails nor
    contradicts is neutral. Raises `Unparsable` where that is none or several.
    """
    own = [str(variables.get(name) or "") for name in VARIABLES]
    return {"relation": read_label(completion, _LABELS, own)}


@final_answer
def parse_relations(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """`relations`: one of `RELATIONS` for each of `hypotheses`, in their order, as `read_numbered_labels` finds them.

    None where a hypothesis has no clear relation or several. Raises `Unparsable` where none has one.
    """
    hypotheses, premise = variables["hypotheses"], str(variables.get("premise") or "")

    def read(text: str, number: int) -> str:
        return read_label(text, _LABELS, (premise, hypotheses[number - 1]))

    return {"relations": read_numbered_labels(completion, Numbered(hypotheses, _NUMBER_WORDS), read)}
