"""The stages of nuggets, rubrics, citations and answer relevancy: create and rate nuggets, and label texts.

Source: Pradeep et al. 2025, AutoNuggetizer; methods, section 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from untold.udfs.errors import Unparsable
from untold.udfs.facts import citation_measures
from untold.udfs.facts.citation_measures import BACKGROUND, IRRELEVANT, LABELS, RELEVANT
from untold.udfs.facts.nugget_measures import NOT_SUPPORT, OKAY, PARTIAL, SUPPORT, SUPPORTS, VITAL
from untold.udfs.facts.rubric_measures import LEVEL, MET, NOT_MET, PARTLY, VERDICTS
from untold.udfs.samples.items import IMPORTANCES, MOST_LEVELS
from untold.udfs.stages.answers import reader
from untold.udfs.stages.definitions import WRITTEN, Figures, LinearSize, Parser, StageDefinition
from untold.udfs.stages.labels import Vocabulary, labels_stage, numbered_labels, read_reasoned_labels
from untold.udfs.stages.lists import CLAIM_NAMES, TEXTS, list_stage, read_texts
from untold.udfs.stages.non_answers import texts_of
from untold.udfs.stages.schemas import lines_of

_INPUTS = ("nugget", "nuggets", "query", "response")
_IMPORTANCES = Vocabulary(
    {VITAL: ("essential", "crucial"), OKAY: ("ok", "optional", "nice to have")}, positive=VITAL, inputs=_INPUTS
)
_SUPPORTS = Vocabulary(
    {
        SUPPORT: ("supported", "supports", "fully supported", "full support"),
        PARTIAL: ("partially supported", "partially supports", "partly supported"),
        NOT_SUPPORT: ("not supported", "does not support", "doesn't support", "unsupported", "no support"),
    },
    positive=SUPPORT,
    inputs=_INPUTS,
)
_LEVELS = [f"{LEVEL}{number}" for number in range(1, MOST_LEVELS + 1)]
_VERDICTS = Vocabulary(
    {
        MET: ("fully met", "satisfied", "fully satisfied", "fulfilled"),
        PARTLY: ("partially met", "partially satisfied", "partly satisfied"),
        NOT_MET: ("unmet", "not satisfied", "not fulfilled"),
        **dict.fromkeys(_LEVELS, ()),
    },
    positive=MET,
    inputs=("statement", "statements", "criterion", "criteria", "query", "response"),
)
FULL_SUPPORT, PARTIAL_SUPPORT, NO_SUPPORT = CITED_LABELS = "full_support", "partial_support", "no_support"
_CITED = Vocabulary(
    {
        FULL_SUPPORT: ("full", "fully supported", "fully supports", "supported", "supports"),
        PARTIAL_SUPPORT: ("partial", "partially supported", "partially supports", "partly supported"),
        NO_SUPPORT: ("not supported", "does not support", "doesn't support", "unsupported"),
    },
    positive=FULL_SUPPORT,
    names=("support",),
    inputs=("sentence", "sentences", "source", "sources", "evidence"),
)
_RELEVANCIES = Vocabulary(
    {
        RELEVANT: ("directly relevant", "on topic"),
        BACKGROUND: ("background information", "supporting"),
        IRRELEVANT: ("not relevant", "off topic"),
    },
    positive=RELEVANT,
    inputs=("sentence", "sentences", "query"),
)
_OF_LABEL = dict(zip(CITED_LABELS, citation_measures.WEIGHTS, strict=True))


def read_nuggets(text: str, variables: Mapping[str, Any]) -> list[str]:
    """Return the whole list in order. `None` is an empty list.

    Raises `Unparsable` if a line may be a nugget or not, and for an empty list if there are nuggets already.
    """
    nuggets = read_texts(text, ("nugget", *CLAIM_NAMES), "\n".join(texts_of(variables.values())))
    if variables.get("nuggets") and not nuggets:
        raise Unparsable("an empty list in place of the existing nuggets")
    return nuggets


@partial(reader, may_be_code=True)
def parse_criteria(text: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """Return the `verdicts` and `reasons` for each of `criteria`, None for one without a clear verdict.

    A criterion with `levels` has one of its levels, and any other criterion one of `VERDICTS`.
    """
    said = read_reasoned_labels(text, variables["criteria"], _VERDICTS)
    verdicts = [
        verdict if verdict in (_LEVELS[: len(levels)] if levels else VERDICTS) else None
        for verdict, levels in zip(said["labels"], variables["levels"], strict=True)
    ]
    if not any(verdicts):
        raise Unparsable("no verdict of a criterion, or no level that it has")
    reasons = [reason if verdict else None for verdict, reason in zip(verdicts, said["reasons"], strict=True)]
    return {"verdicts": verdicts, "reasons": reasons}


@partial(reader, may_be_code=True)
def parse_supports(text: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """Return the `supports` and `reasons` for each of `sentences`, None for one without a clear label."""
    said = read_reasoned_labels(text, variables["sentences"], _CITED)
    return {"supports": [_OF_LABEL[label] if label else None for label in said["labels"]], "reasons": said["reasons"]}


def _parser_of(variable: str, vocabulary: Vocabulary) -> Parser:
    """Return the parser of the `labels` and `reasons` of the texts of a variable. Reasons may quote code."""
    return reader(lambda text, given: read_reasoned_labels(text, given[variable], vocabulary), may_be_code=True)


# The lists are in the order of the texts. A text without a clear label has null
_REASONED = pa.schema({"labels": TEXTS, "reasons": TEXTS})
CREATE_NUGGETS = list_stage(
    "create_nuggets",
    ("query", "texts", "nuggets", "most"),
    "nuggets",
    read_nuggets,
    form=lines_of("- .+", "- nugget"),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.85), things=LinearSize(slope=0.062)),
    example={"most": 30},
)
RATE_NUGGETS = labels_stage(
    "rate_nuggets",
    ("query", "nuggets"),
    IMPORTANCES,
    _IMPORTANCES,
    ("labels", "number", "label"),
    Figures(WRITTEN, completion=LinearSize(slope=0.37)),
)
# The prompt requests no reasons, but models that follow the format of records give some
ASSIGN_NUGGETS = StageDefinition(
    "assign_nuggets",
    ("query", "response", "nuggets"),
    _parser_of("nuggets", _SUPPORTS),
    _REASONED,
    **numbered_labels("nuggets", SUPPORTS),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.34)),
)
JUDGE_CRITERIA = StageDefinition(
    "judge_criteria",
    ("query", "response", "criteria", "levels"),
    parse_criteria,
    pa.schema({"verdicts": TEXTS, "reasons": TEXTS}),
    **numbered_labels(
        "criteria",
        [*VERDICTS, *_LEVELS],
        ("verdicts", "number", "label"),
        one="criterion",
        pattern=rf"{'|'.join(VERDICTS)}|{LEVEL}\d{{1,2}}",
        has_reason=True,
    ),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.53)),
    example={"criteria": ["Names the city", "Is clear"], "levels": [[], ["poor", "good"]]},
)
JUDGE_SUPPORT = StageDefinition(
    "judge_support",
    ("sources", "sentences"),
    parse_supports,
    pa.schema({"supports": TEXTS, "reasons": TEXTS}),
    **numbered_labels("sentences", CITED_LABELS, has_reason=True),
    # A line for each sentence, whatever the length of the sources
    figures=Figures(WRITTEN, completion=LinearSize(29.0, 0.06)),
    example={"sources": ["Ada lives in Lyon."], "sentences": ["Ada lives in Lyon.", "Ada lives in Rome."]},
)
JUDGE_RELEVANCY = StageDefinition(
    "judge_relevancy",
    ("query", "sentences"),
    _parser_of("sentences", _RELEVANCIES),
    _REASONED,
    **numbered_labels("sentences", LABELS, has_reason=True),
    figures=Figures(WRITTEN, completion=LinearSize(slope=1.0)),
    example={"sentences": ["Ada lives in Lyon.", "She likes bees."]},
)
