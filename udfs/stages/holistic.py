"""Reading one map of all references to candidates (Ardestani, Kamalloo, Rafiei, LongRecall; methods, section 9)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from untold.udfs.stages.alignment import Alignment, read_alignment
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.repeated_tags import past_echoes
from untold.udfs.stages.subsets import CANDIDATE_WORDS

_CANDIDATE_NAMES = (
    *("candidates", "candidateids", "candidatenumbers", "matches", "matchedcandidates", "matchingcandidates"),
    *("matched", "candidate", "candidateid", "candidatenumber", "evidence", "support", "supportedby", "coveredby"),
    *("generated", "generatedfacts", "generatedids", "claims", "claimids"),
)
_REFERENCES_AND_CANDIDATES = Alignment(
    left_names=(
        *("reference", "referenceid", "referencenumber", "referencefact", "referencefactid", "ref", "refid"),
        *("id", "number", "no", "index", ""),
    ),
    text_names=("referencetext", "referencefact", "text", "fact", "statement"),
    # `Reference 3`, `ref_3`, `R1`
    left_words=re.compile(r"(?<![^\W_])(?:references?|refs?|facts?|no|number|id|r)(?![^\W\d_])", re.IGNORECASE),
    right_names=_CANDIDATE_NAMES,
    listing=(*_CANDIDATE_NAMES, "id", "number", "text", "fact"),
    right_words=CANDIDATE_WORDS,
    verdict_names=("covered", "iscovered", "match", "ismatch", "entailed", "status", "verdict", "label", "coverage"),
    other_form=re.compile(
        r"\{|\[\s{0,3}\d|\b(?:references?|ref|fact)\s?#?\d{1,4}\W{1,6}(?:candidates?\W{1,3})?\d", re.IGNORECASE
    ),
)


@final_answer
@past_echoes
def parse_holistic(completion: str, variables: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """`candidates`: for each of `references` the numbers of the `candidates` that together entail it.

    Numbers are from 1, ascending; `[]` where there are none. As `read_alignment` reads them: unknown ones are dropped,
    and those of a reference that stands twice united. Raises `Unparsable` where there is no object, or one that cannot
    be read.
    """
    aligned = read_alignment(completion, _REFERENCES_AND_CANDIDATES, variables["references"], variables["candidates"])
    return {"candidates": aligned}
