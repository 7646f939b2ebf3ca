"""What a stage is: template, variables, parser, output schema; one file a metric family, registered here."""

from __future__ import annotations

import udfs.stages.e2e as e2e
import udfs.stages.generation as generation
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
