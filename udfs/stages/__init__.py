"""What a stage is: template, variables, parser, output schema; one file a metric family, registered here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from untold.udfs.errors import Refused as Refused
from untold.udfs.errors import Registry
from untold.udfs.errors import Unparsable as Unparsable

if TYPE_CHECKING:
    from untold.udfs.stages.definitions import Mask, StageDefinition


GROUP = "untold.stages"
"""The entry points by which other packages add stages: workers and actors know a stage by its name."""

# Loaded when they are looked up: settings and the command line want the names alone, and parsers, which compile some
# hundred patterns, and pyarrow take a third of a second of CPU
STAGES: Registry[StageDefinition] = Registry(
    (),
    GROUP,
    places={
        "summarise_context": "untold.udfs.stages.e2e:SUMMARISE_CONTEXT",
        "evaluate_coverage": "untold.udfs.stages.e2e:EVALUATE_COVERAGE",
        "list_conflicts": "untold.udfs.stages.e2e:LIST_CONFLICTS",
        "cover_sides": "untold.udfs.stages.e2e:COVER_SIDES",
        "extract_atoms": "untold.udfs.stages.nli:EXTRACT_ATOMS",
        "revise_atoms": "untold.udfs.stages.nli:REVISE_ATOMS",
        "rate_relevance": "untold.udfs.stages.nli:RATE_RELEVANCE",
        "classify_relation": "untold.udfs.stages.nli:CLASSIFY_RELATION",
        "classify_relations": "untold.udfs.stages.nli:CLASSIFY_RELATIONS",
        "check_claims": "untold.udfs.stages.nli:CHECK_CLAIMS",
        "mine_questions": "untold.udfs.stages.qa:MINE_QUESTIONS",
        "refine_questions": "untold.udfs.stages.qa:REFINE_QUESTIONS",
        "answer_questions": "untold.udfs.stages.qa:ANSWER_QUESTIONS",
        "compare_answers": "untold.udfs.stages.qa:COMPARE_ANSWERS",
        "compare_many": "untold.udfs.stages.qa:COMPARE_MANY",
        "extract_claims": "untold.udfs.stages.importance:EXTRACT_CLAIMS",
        "generate_aspects": "untold.udfs.stages.importance:GENERATE_ASPECTS",
        "align_claims": "untold.udfs.stages.importance:ALIGN_CLAIMS",
        "extract_facts": "untold.udfs.stages.importance:EXTRACT_FACTS",
        "extract_verifiable_claims": "untold.udfs.stages.importance:EXTRACT_VERIFIABLE_CLAIMS",
        "rate_importance": "untold.udfs.stages.importance:RATE_IMPORTANCE",
        "verify_claim": "untold.udfs.stages.importance:VERIFY_CLAIM",
        "check_coverage": "untold.udfs.stages.importance:CHECK_COVERAGE",
        "resolve_coreference": "untold.udfs.stages.longrecall:RESOLVE_COREFERENCE",
        "match_one": "untold.udfs.stages.longrecall:MATCH_ONE",
        "match_many": "untold.udfs.stages.longrecall:MATCH_MANY",
        "match_holistic": "untold.udfs.stages.longrecall:MATCH_HOLISTIC",
        "create_nuggets": "untold.udfs.stages.nuggets:CREATE_NUGGETS",
        "rate_nuggets": "untold.udfs.stages.nuggets:RATE_NUGGETS",
        "assign_nuggets": "untold.udfs.stages.nuggets:ASSIGN_NUGGETS",
        "judge_criteria": "untold.udfs.stages.nuggets:JUDGE_CRITERIA",
        "judge_support": "untold.udfs.stages.nuggets:JUDGE_SUPPORT",
        "judge_relevancy": "untold.udfs.stages.nuggets:JUDGE_RELEVANCY",
        "generate_answer": "untold.udfs.stages.e2e:GENERATE_ANSWER",
        "restate_answer": "untold.udfs.stages.e2e:RESTATE_ANSWER",
    },
)

LOOKUPS: Registry[StageDefinition] = Registry(
    (),
    "untold.lookups",
    places={
        "embed_text": "untold.udfs.stages.lookups:EMBED_TEXT",
        "web_search": "untold.udfs.stages.lookups:WEB_SEARCH",
        "classify_entailment": "untold.udfs.stages.lookups:CLASSIFY_ENTAILMENT",
    },
)
"""Stages that ask no language model, and so have no template and no decoding of `stages.*`."""

MASKS: Registry[Mask] = Registry((), "untold.masks")
"""Masks of the texts of requests. Only other packages have masks."""


UNASKED = "unasked"
"""The error type of a request that has no completion and no failure yet."""


def definition_of(name: str) -> StageDefinition:
    """Return the stage of this name from `STAGES` or `LOOKUPS`. Raises KeyError for an unknown name."""
    return LOOKUPS[name] if name in LOOKUPS else STAGES[name]
