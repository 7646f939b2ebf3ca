"""Reading whether evidence supports a claim ("Beyond Precision", 2026; methods, section 9)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from untold.udfs.facts.claim_verdicts import CONTRADICTED, NOT_SUPPORTED, SUPPORTED
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.labels import labels_of, read_label
from untold.udfs.stages.repeated_tags import past_echoes

VERDICTS = (SUPPORTED, CONTRADICTED, NOT_SUPPORTED)

# `NOT_SUPPORTED`, `not-supported`, `not **supported**` and `isn't supported` are one word, and no `supported` is in it
_NOT = r"(?:not|non|un|(?:is|are|was|were)n['’]t)[\s*_\"'`~‐‑–—-]{0,6}supported"
# Lines are read one by one: one that ends between the two words is no end
_TORN = re.compile(r"(?<=not)[ \t]{0,9}\r?\n[ \t]{0,9}(?=supported)", re.IGNORECASE)
_LABELS = labels_of(
    {
        NOT_SUPPORTED: rf"{_NOT}|not (?:at all|in any way) supported",
        CONTRADICTED: r"contradict(?:ion|s|ed|ing|ory)?",
        SUPPORTED: r"supported|supports?",
    },
    denying=r"do(?:es)?(?: not|n['’]t) (?:at all )?support",
    hedged=r"(?:partially|partly|mostly|largely|somewhat|weakly|half)[\s_-]supported",
    inputs=("claim", "evidence"),
    positive=SUPPORTED,
    neither=NOT_SUPPORTED,
    opposites=(SUPPORTED, CONTRADICTED),
)


@final_answer
@past_echoes
def parse_verdict(completion: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """`relation`: the one of `VERDICTS` that is the answer, as `read_label` finds it; what neither supports nor
    contradicts is not supported. Raises `Unparsable` where that is none or several.
    """
    own = [str(variables.get("claim") or ""), *map(str, variables.get("evidence") or ())]
    return {"relation": read_label(_TORN.sub(" ", completion), _LABELS, own)}
