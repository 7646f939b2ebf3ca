"""Reading the relation of a premise to a hypothesis (Dejl et al. 2025; methods, section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.labels import labels_of, read_label

RELATIONS = ("entailment", "contradiction", "neutral")
VARIABLES = ("premise", "hypothesis")

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
    own = " ".join(str(variables.get(name) or "") for name in VARIABLES)
    return {"relation": read_label(completion, _LABELS, own)}
