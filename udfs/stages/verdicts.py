"""Reading whether evidence supports a claim ("Beyond Precision", 2026; methods, section 9)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from untold.udfs.facts.claims import CONTRADICTED, NOT_SUPPORTED, SUPPORTED
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.echoes import past_echoes
from untold.udfs.stages.labels import labels_of, read_label
from untold.udfs.stages.reading import strip_thinking

VERDICTS = (SUPPORTED, CONTRADICTED, NOT_SUPPORTED)

# `NOT_SUPPORTED`, `not-supported`, `not **supported**` and `isn't supported` are one word, and no `supported` is in it
_NOT = r"(?:not|non|un|(?:is|are|was|were)n['’]t)[\s*_\"'`~‐‑–—-]{0,6}supported"
# Lines are read one by one: one that ends between the two words is no end
_TORN = re.compile(r"(?<=not)[ \t]{0,9}\r?\n[ \t]{0,9}(?=supported)", re.IGNORECASE)
# `The evidence does not support the claim`; what nothing supports may be contradicted
_UNSUPPORTED = re.compile(
    r"(?:\bnot|n['’]t)\s(?:(?:at all|in any way)\s){0,2}support(?:ed|s|ing)?\b",
    re.IGNORECASE,
)
_OF_SUPPORT = re.compile(r"support|contradict|refut|confirm", re.IGNORECASE)
# What is not supported fully may be so in part
_HEDGE = re.compile(
    r"\b(?:fully|entirely|completely|wholly|partial|partially|partly|part|only|except|strictly|explicitly|directly|if|unless"
    r"|whether)\b",
    re.IGNORECASE,
)
_LABELS = labels_of(
    # Whatever begins in no other way is one of the forms of `not supported`
    {"support": SUPPORTED, "contradict": CONTRADICTED, "": NOT_SUPPORTED},
    rf"{_NOT}|supported|supports?(?![^\S\n]+(?:for|from)\b)|contradict(?:ion|s|ed|ing|ory)?",
    opposites=(SUPPORTED, CONTRADICTED),
    neither=NOT_SUPPORTED,
    inputs=("claim", "evidence"),
    stating="status|result|assessment|decision|rating",
    subject=r"(?:the claim[^\S\n])?",
)


@past_echoes
def parse_verdict(completion: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """`relation`: the one of `VERDICTS` that is the answer, as `read_label` finds it; what neither supports nor
    contradicts is not supported. Raises `Unparsable` where that is none or several.
    """
    own = " ".join([str(variables.get("claim") or ""), *map(str, variables.get("evidence") or ())])
    text = _TORN.sub(" ", completion)
    try:
        return {"relation": read_label(text, _LABELS, own)}
    except Unparsable:
        if not _denies_support(strip_thinking(text), own):
            raise
        return {"relation": NOT_SUPPORTED}


def _denies_support(text: str, own: str) -> bool:
    """Whether prose says that nothing supports the claim, all of it, and says nothing else of support."""
    rest = _UNSUPPORTED.sub(" ", text)
    return rest != text and not (_OF_SUPPORT.search(rest) or _HEDGE.search(rest) or _OF_SUPPORT.search(own))
