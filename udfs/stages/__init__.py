"""What a stage is: template, variables, parser, output schema; one file a metric family."""

from __future__ import annotations

import udfs.stages.e2e as e2e
import udfs.stages.nli as nli
from udfs.stages.base import StageDefinition

STAGES: dict[str, StageDefinition] = {
    stage.name: stage
    for stage in (
        e2e.SUMMARISE_CONTEXT,
        e2e.EVALUATE_COVERAGE,
        nli.EXTRACT_ATOMS,
        nli.REVISE_ATOMS,
        nli.RATE_RELEVANCE,
        nli.CLASSIFY_RELATION,
    )
}
