"""Reading whether a candidate entails a fact, Match or No Match (Ardestani, Kamalloo, Rafiei; methods, section 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.labels import labels_of, read_label

VARIABLES = ("reference", "candidate")

_STRONG = r"exact|perfect|literal|verbatim|strict|direct|strong|clear|good|full|complete|true|real|valid|definite"
_WEAK = r"partial|near|close|approximate|possible|potential|likely|probable|weak|loose|rough|half|borderline"
_ADVERBS = r"really|actually|truly|quite|fully|exactly|clearly|directly|strictly|entirely|completely"
_MATCH, _NO_MATCH = "Match", "No Match"
_LABELS = labels_of(
    {
        _NO_MATCH: (
            r"no(?:t|n)?(?:[\s_‐‑‒–—-]|[*`]{1,3}\s){0,2}match(?:es|ed|ing)?"
            r"|mis[\s-]?match(?:es|ed|ing)?|unmatched|without (?:a )?match"
            r"|(?:do(?:es)? not|not|[a-z]{2,6}n['’]t|cannot)[\s_]"
            rf"(?:(?:{_ADVERBS}|be|considered|counted|count|as|constitute|seem|to)\s){{0,4}}(?:an?[\s_])?match(?:es|ed"
            rf"|ing)?"
            r"|fails? to match|neither\s(?:an?\s)?match"
        ),
        _MATCH: rf"(?:(?:{_STRONG})[\s_-])?match(?:es|ed)?(?![\s:=*_-]{{0,6}}[❌✗✘✖🚫👎])",
    },
    # What is neither: a partial match, and what is no exact one
    hedged=(
        rf"(?:(?:no|not|[a-z]{{2,6}}n['’]t)\s(?:be\s)?(?:an?\s)?(?:{_STRONG})|{_WEAK})[\s_-]match(?:es|ed|ing)?"
        r"|(?:partially|partly|nearly|almost|possibly|probably|maybe|perhaps|somewhat|loosely|only|in part)\s(?:an?\s)?"
        r"match(?:es|ed)?"
    ),
    inputs=VARIABLES,
    positive=_MATCH,
    denial=_NO_MATCH,
    fields=("match", "ismatch", "matched", "matches", "entailed", "entails", "entailment"),
)


@final_answer
def parse_match(completion: str, variables: Mapping[str, Any]) -> dict[str, bool]:
    """`matched`: whether the answer is `Match`, not `No Match`, as `read_label` finds it.

    Raises `Unparsable` where that is none or both, and for what is neither, such as a partial match.
    """
    own = [str(variables.get(name) or "") for name in VARIABLES]
    return {"matched": read_label(completion, _LABELS, own) == _MATCH}
