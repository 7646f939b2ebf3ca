"""What a stage is: template, variables, parser, output schema; one file a metric family."""

from __future__ import annotations

import udfs.stages.e2e as e2e
from udfs.stages.base import StageDefinition

STAGES: dict[str, StageDefinition] = {stage.name: stage for stage in (e2e.SUMMARISE_CONTEXT, e2e.EVALUATE_COVERAGE)}
