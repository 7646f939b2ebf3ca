"""Register the stages of the modules in this folder, and those of other packages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from untold.udfs.errors import Refused as Refused
from untold.udfs.errors import Registry
from untold.udfs.errors import Unparsable as Unparsable

if TYPE_CHECKING:
    from untold.udfs.stages.definitions import Mask, StageDefinition


GROUP = "untold.stages"
"""The group of entry points with which other packages add stages. Workers and actors find a stage by its name."""

# The stages of each module. A stage is the constant with its name in capitals
_MODULES = (
    ("e2e", ("summarise_context", "evaluate_coverage", "list_conflicts", "cover_sides")),
    ("nli", ("extract_atoms", "revise_atoms", "rate_relevance", "classify_relation", "classify_relations")),
    ("nli", ("check_claims",)),
    ("qa", ("mine_questions", "refine_questions", "answer_questions", "compare_answers", "compare_many")),
    ("importance", ("extract_claims", "generate_aspects", "align_claims", "extract_facts")),
    ("importance", ("extract_verifiable_claims", "rate_importance", "verify_claim", "check_coverage")),
    ("longrecall", ("resolve_coreference", "match_one", "match_many", "match_holistic")),
    ("nuggets", ("create_nuggets", "rate_nuggets", "assign_nuggets")),
    ("nuggets", ("judge_criteria", "judge_support", "judge_relevancy")),
    ("e2e", ("generate_answer", "restate_answer")),
)
_OF_LOOKUPS = (("lookups", ("embed_text", "web_search", "classify_entailment")),)


def _places(modules: Sequence[tuple[str, Sequence[str]]]) -> dict[str, str]:
    return {name: f"untold.udfs.stages.{module}:{name.upper()}" for module, names in modules for name in names}


# A stage is imported when it is looked up. Parsers and pyarrow take a third of a second of CPU, and settings and the
# command line only need the names
STAGES: Registry[StageDefinition] = Registry((), GROUP, places=_places(_MODULES))

LOOKUPS: Registry[StageDefinition] = Registry((), "untold.lookups", places=_places(_OF_LOOKUPS))
"""Stages without a language model. They have no template and no decoding of `stages.*`."""

MASKS: Registry[Mask] = Registry((), "untold.masks")
"""Masks of the texts of requests. Only other packages have masks."""

UNASKED = "unasked"
"""The error type of a request that has no completion and no failure yet."""


def definition_of(name: str) -> StageDefinition:
    """Return the stage of this name from `STAGES` or `LOOKUPS`. Raises KeyError for an unknown name."""
    return LOOKUPS[name] if name in LOOKUPS else STAGES[name]
