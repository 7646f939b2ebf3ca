"""What the metric importance asks, and what a plan of it takes for granted."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from untold.jobs.metrics.base import Assumptions
from untold.jobs.metrics.graphs import different_texts
from untold.jobs.metrics.grounded_claims import ENTAILMENT
from untold.jobs.metrics.judging import CLASSIFY_LISTS
from untold.jobs.metrics.reference_facts import EXTRACT as EXTRACT_FACTS
from untold.jobs.metrics.reference_facts import RATE, RELATE
from untold.jobs.metrics.summaries import STAGE as SUMMARISE
from untold.jobs.metrics.summaries import (
    Likely,
    all_highest,
    assumed_summaries,
    likely_summaries,
    made_up,
    size_of_things,
    tokens_of,
    value_of,
    whole,
)
from untold.jobs.metrics.verified_claims import VERIFY, verifying_stage
from untold.jobs.retrieval.sources import STAGE as EMBED
from untold.jobs.retrieval.sources import assumed_results
from untold.jobs.settings.model import Settings
from untold.udfs.facts.claim_verdicts import SUPPORTED

EXTRACT_CLAIMS, CHECK = "extract_claims", "check_coverage"
EXTRACT_OF_SENTENCE = "extract_verifiable_claims"
# The output list, its source text and the other variables of each stage that extracts
EXTRACTING: Mapping[str, tuple[str, ...]] = {
    EXTRACT_FACTS: ("facts", "text"),
    EXTRACT_CLAIMS: ("claims", "text"),
    EXTRACT_OF_SENTENCE: ("claims", "sentence", "query", "before", "after"),
}
# A statement takes two words at least, so that no text has more than half its words
WORDS_OF_A_STATEMENT = 2


def stages(settings: Settings) -> tuple[str, ...]:
    """The stages that the metric may ask, in order. Given references need none of the first."""
    return (*stages_of_facts(settings), extracting_stage(settings), verifying_stage(settings), CHECK)


def extracting_stage(settings: Settings) -> str:
    """Return the stage that extracts the claims of responses."""
    return EXTRACT_OF_SENTENCE if settings.importance.claims == "window" else EXTRACT_CLAIMS


def stages_of_facts(settings: Settings) -> tuple[str, ...]:
    """Those whose answers facts and their weights are made of."""
    condense = settings.summarise_contexts and settings.knowledge.source == "contexts"
    relate = settings.importance.duplicates == "entailed"
    return (
        *((SUMMARISE,) if condense else ()),
        EXTRACT_FACTS,
        EMBED,
        *((RELATE,) if relate else ()),
        RATE,
    )


def assume(settings: Settings) -> Assumptions:
    """As many facts and claims as texts can have, none of them near another, and all facts to be checked."""
    found = {
        stage: {name: different_texts(WORDS_OF_A_STATEMENT, text)} for stage, (name, text, *_) in EXTRACTING.items()
    }
    everything = {**assumed_summaries(), **found, **_judged()}
    return Assumptions(settings, {name: everything[name] for name in stages(settings)}, likely=_likely)


def _judged() -> dict[str, Mapping[str, Column]]:
    """Of ratings the highest, so that facts are kept; nothing is asked of what vectors, relations and verdicts say."""
    return {
        EMBED: assumed_results()[EMBED],
        RATE: {"relevance": all_highest("facts"), "salience": all_highest("facts"), "weighted": F.lit(True)},
        RELATE: {"relation": F.lit(None).cast("string")},
        VERIFY: {"relation": F.lit(SUPPORTED)},
        CLASSIFY_LISTS: {"relations": F.transform("hypotheses", lambda _: F.lit(ENTAILMENT))},
        CHECK: {"covered": F.lit(True), "claims": F.array().cast("array<int>")},
    }


def _likely(figures: Likely) -> dict[str, Mapping[str, Column]]:
    """As many facts and claims as the figures have of a text. That few facts are near each other no figure says."""
    found: dict[str, Mapping[str, Column]] = dict(_judged())
    for stage, (name, text, *others) in EXTRACTING.items():
        if stage in figures:
            tokens = tokens_of(text, *others)
            count = whole(value_of(figures[stage].things, tokens), text)
            found[stage] = {name: made_up(count, size_of_things(figures[stage], tokens), text)}
    return {**likely_summaries(figures), **found}
