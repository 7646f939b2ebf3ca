"""What a plan of the metric importance takes for granted: as many facts and claims as texts can have, all to check."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from jobs.metrics.base import Assumptions
from jobs.metrics.contexts import assumed_summaries
from jobs.metrics.graphs import different_texts
from jobs.metrics.likely import (
    Likely,
    all_highest,
    likely_summaries,
    made_up,
    size_of_things,
    tokens_of,
    value_of,
    whole,
)
from jobs.settings.model import Settings
from udfs.facts.claims import SUPPORTED

EXTRACTING = {"extract_facts": "facts", "extract_claims": "claims"}
# A statement takes two words at least, so that no text has more than half its words
WORDS_OF_A_STATEMENT = 2


def assume(settings: Settings) -> Assumptions:
    """As many facts and claims as texts can have, none of them near another, and all facts to be checked."""
    texts = different_texts(WORDS_OF_A_STATEMENT)
    found = {stage: {name: texts} for stage, name in EXTRACTING.items()}
    return Assumptions(settings, {**assumed_summaries(), **found, **_judged()}, likely=_likely)


def _judged() -> dict[str, Mapping[str, Column]]:
    """Of ratings the highest, so that facts are kept; nothing is asked of what verdicts say."""
    return {
        "rate_importance": {
            "relevance": all_highest("facts"),
            "salience": all_highest("facts"),
            "weighted": F.lit(True),
        },
        "classify_relation": {"relation": F.lit(None).cast("string")},
        "verify_claim": {"relation": F.lit(SUPPORTED)},
        "check_coverage": {"covered": F.lit(True), "claims": F.array().cast("array<int>")},
    }


def _likely(figures: Likely) -> dict[str, Mapping[str, Column]]:
    """As many facts and claims as the figures have of a text. That few facts are near each other no figure says."""
    tokens = tokens_of("text")
    found: dict[str, Mapping[str, Column]] = dict(_judged())
    for stage, name in EXTRACTING.items():
        count = whole(value_of(figures[stage].things, tokens), "text")
        found[stage] = {name: made_up(count, size_of_things(figures[stage], tokens), "text")}
    return {**likely_summaries(figures), **found}
