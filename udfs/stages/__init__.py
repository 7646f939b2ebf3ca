"""What a stage is: template, variables, parser, output schema; one file a metric family, registered here."""

from __future__ import annotations

from collections.abc import Mapping

import udfs.stages.e2e as e2e
import udfs.stages.generation as generation
import udfs.stages.lookups as lookups
import udfs.stages.nli as nli
import udfs.stages.qa as qa
from udfs.registry import Registry
from udfs.stages.definitions import StageDefinition

GROUP = "untold.stages"
"""The entry points by which other packages add stages: workers and actors know a stage by its name."""

STAGES: Registry[StageDefinition] = Registry(
    (
        e2e.SUMMARISE_CONTEXT,
        e2e.EVALUATE_COVERAGE,
        nli.EXTRACT_ATOMS,
        nli.REVISE_ATOMS,
        nli.RATE_RELEVANCE,
        nli.CLASSIFY_RELATION,
        qa.MINE_QUESTIONS,
        qa.REFINE_QUESTIONS,
        qa.ANSWER_QUESTIONS,
        qa.COMPARE_ANSWERS,
        generation.GENERATE_ANSWER,
        generation.RESTATE_ANSWER,
    ),
    GROUP,
)

LOOKUPS: Mapping[str, StageDefinition] = {
    one.name: one for one in (lookups.EMBED_TEXT, lookups.WEB_SEARCH, lookups.CLASSIFY_ENTAILMENT)
}
"""Stages that ask no language model, and so have no template and no decoding of `stages.*`."""


def definition_of(name: str) -> StageDefinition:
    """The stage of that name, of `STAGES` or `LOOKUPS`. Raises KeyError for one that is neither's."""
    return LOOKUPS[name] if name in LOOKUPS else STAGES[name]
