"""The stages of nuggets, rubrics, citations and answer relevancy: create and rate nuggets, and label texts.

Source: Pradeep et al. 2025, AutoNuggetizer; methods, section 9.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from untold.udfs.facts import citation_measures
from untold.udfs.facts.citation_measures import BACKGROUND, IRRELEVANT, LABELS, RELEVANT
from untold.udfs.facts.nugget_measures import NOT_SUPPORT, OKAY, PARTIAL, SUPPORT, SUPPORTS, VITAL
from untold.udfs.facts.rubric_measures import LEVEL, MET, NOT_MET, PARTLY, VERDICTS
from untold.udfs.samples.items import IMPORTANCES, MOST_LEVELS
from untold.udfs.stages.answers import reader
from untold.udfs.stages.definitions import (
    TEXT,
    WRITTEN,
    Figures,
    LinearSize,
    StageDefinition,
    Unparsable,
    lines_of,
    listed,
    number_of,
    one_of,
    record,
)
from untold.udfs.stages.forms import find_records, get_field, place_of_record
from untold.udfs.stages.labels import LABEL_NAMES, Vocabulary, read_numbered_labels
from untold.udfs.stages.lists import CLAIM_NAMES, read_texts, things_of

NUGGETS_SCHEMA = pa.schema([pa.field("nuggets", pa.list_(pa.string()))])
# In the order of the variable `nuggets`; null for a nugget without a clear label
LABELS_SCHEMA = pa.schema([pa.field("labels", pa.list_(pa.string()))])
REASONED_SCHEMA = pa.schema([*LABELS_SCHEMA, pa.field("reasons", pa.list_(pa.string()))])
_INPUTS = ("nugget", "nuggets", "query", "response")
_IMPORTANCES = Vocabulary({VITAL: (), OKAY: ("ok",)}, positive=VITAL, inputs=_INPUTS)
_SUPPORTS = Vocabulary(
    {
        SUPPORT: ("supported", "supports", "fully supported", "full support"),
        PARTIAL: ("partially supported", "partially supports", "partly supported"),
        NOT_SUPPORT: ("not supported", "does not support", "doesn't support", "unsupported", "no support"),
    },
    positive=SUPPORT,
    inputs=_INPUTS,
)


# Null for a criterion without a clear verdict, or without a reason
VERDICTS_SCHEMA = pa.schema([pa.field(name, pa.list_(pa.string())) for name in ("verdicts", "reasons")])
_LEVELS = [f"{LEVEL}{number}" for number in range(1, MOST_LEVELS + 1)]
_VERDICTS = Vocabulary(
    {
        MET: ("fully met", "satisfied", "fully satisfied"),
        PARTLY: ("partially met", "partially satisfied", "partly satisfied"),
        NOT_MET: ("unmet", "not satisfied"),
        **dict.fromkeys(_LEVELS, ()),
    },
    positive=MET,
    inputs=("statement", "statements", "criterion", "criteria", "query", "response"),
)
# In the order of the variable `sentences`; null for a sentence without a clear label, or without a reason
CITED_SCHEMA = pa.schema([pa.field(name, pa.list_(pa.string())) for name in ("supports", "reasons")])
FULL_SUPPORT, PARTIAL_SUPPORT, NO_SUPPORT = CITED_LABELS = "full_support", "partial_support", "no_support"
_CITED = Vocabulary(
    {
        FULL_SUPPORT: ("full", "fully supported", "fully supports", "supported", "supports"),
        PARTIAL_SUPPORT: ("partial", "partially supported", "partially supports", "partly supported"),
        NO_SUPPORT: ("not supported", "does not support", "doesn't support", "unsupported"),
    },
    positive=FULL_SUPPORT,
    inputs=("sentence", "sentences", "source", "sources", "evidence"),
)
_RELEVANCIES = Vocabulary(
    {
        RELEVANT: ("directly relevant",),
        BACKGROUND: ("background information", "supporting"),
        IRRELEVANT: ("not relevant", "off topic"),
    },
    positive=RELEVANT,
    inputs=("sentence", "sentences", "query"),
)
_OF_LABEL = dict(zip(CITED_LABELS, citation_measures.WEIGHTS, strict=True))
# The number and the verdict of a line, and the reason after the first bar
_REASONED = re.compile(
    r"^(?P<head>[^|\n\w]{0,20}(?:(?:criterion|statement|sentence) )?(?P<number>\d{1,4})\W[^|\n]{1,60})"
    r"\|(?P<reason>[^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
_REASON_NAMES = ("reason", "explanation", "justification", "rationale")


@reader
def parse_nuggets(text: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the `nuggets`: the whole list in order. `None` is an empty list.

    Raises `Unparsable` if a line may be a nugget or not, and for an empty list if there are nuggets already.
    """
    nuggets = read_texts(text, ("nugget", *CLAIM_NAMES))
    if variables.get("nuggets") and not nuggets:
        raise Unparsable("an empty list in place of the existing nuggets")
    return {"nuggets": nuggets}


@reader
def parse_ratings(text: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """Return the `labels`: vital or okay for each of `nuggets`, None for one without a clear label."""
    return {"labels": read_numbered_labels(text, variables["nuggets"], _IMPORTANCES)}


def _parse_assignments(text: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """Return the `labels` and `reasons` for each of `nuggets`: one of `SUPPORTS`, None for one without a clear label.

    The prompt requests no reasons, but models that follow the format of records give some.
    """
    labels, reasons = _reasoned_labels(text, variables["nuggets"], _SUPPORTS)
    return {"labels": labels, "reasons": reasons}


def _parse_criteria(text: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """Return the `verdicts` and `reasons` for each of `criteria`, None for one without a clear verdict.

    A criterion with `levels` has one of its levels, and any other criterion one of `VERDICTS`.
    """
    labels, reasons = _reasoned_labels(text, variables["criteria"], _VERDICTS)
    verdicts = [
        verdict if verdict in (_LEVELS[: len(levels)] if levels else VERDICTS) else None
        for verdict, levels in zip(labels, variables["levels"], strict=True)
    ]
    if not any(verdicts):
        raise Unparsable("no verdict of a criterion, or no level that it has")
    return {
        "verdicts": verdicts,
        "reasons": [reason if verdict else None for verdict, reason in zip(verdicts, reasons, strict=True)],
    }


def _parse_supports(text: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """Return the `supports` and `reasons` for each of `sentences`, None for one without a clear label."""
    labels, reasons = _reasoned_labels(text, variables["sentences"], _CITED)
    return {"supports": [_OF_LABEL[label] if label else None for label in labels], "reasons": reasons}


def _parse_relevancies(text: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """Return the `labels` and `reasons` for each of `sentences`, None for one without a clear label."""
    labels, reasons = _reasoned_labels(text, variables["sentences"], _RELEVANCIES)
    return {"labels": labels, "reasons": reasons}


def _reasoned_labels(
    text: str, items: Sequence[str], vocabulary: Vocabulary
) -> tuple[list[str | None], list[str | None]]:
    """Return the label and the reason of each item, None for an item without a clear label."""
    reasons = _recorded_reasons(text, items, vocabulary)

    def without_reason(line: re.Match[str]) -> str:
        if vocabulary.read_with_reason(line["head"].partition(line["number"])[2]) is None:
            return line[0]
        reasons[int(line["number"])] = line["reason"]
        return line["head"]

    labels = read_numbered_labels(_REASONED.sub(without_reason, text), items, vocabulary)
    known = [
        (reasons.get(number, "").strip() or None) if label else None for number, label in enumerate(labels, start=1)
    ]
    return labels, known


def _recorded_reasons(text: str, items: Sequence[str], vocabulary: Vocabulary) -> dict[int, str]:
    """Return the reasons in the records of a completion, by the number of the item."""
    found = find_records(text, LABEL_NAMES)
    records = [each for each in found[0] if isinstance(each, dict)] if found else []
    named = {place_of_record(each, vocabulary.inputs, items): get_field(each, _REASON_NAMES) for each in records}
    return {place: reason for place, reason in named.items() if place is not None and isinstance(reason, str)}


# Reasons may quote anything
parse_assignments, parse_criteria, parse_supports, parse_relevancies = (
    reader(one, may_be_code=True) for one in (_parse_assignments, _parse_criteria, _parse_supports, _parse_relevancies)
)


def _labelling(name: str, variables: Sequence[str], labels: Sequence[str], **more: Any) -> StageDefinition:
    """Return a stage that assigns a label to each nugget."""
    return StageDefinition(
        name,
        (*variables, "nuggets"),
        schema=record(labels=listed(record(number=number_of("nuggets"), label=one_of(labels)))),
        form=lines_of(rf"\d{{1,9}}: (?:{'|'.join(labels)})", "n: label", "one line for each nugget:"),
        **more,
    )


CREATE_NUGGETS = StageDefinition(
    "create_nuggets",
    ("query", "texts", "nuggets", "most"),
    parse_nuggets,
    NUGGETS_SCHEMA,
    schema=record(nuggets=listed(TEXT)),
    form=lines_of("- .+", "- nugget"),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.85), things=LinearSize(slope=0.062)),
    things=things_of(parse_nuggets, "nuggets"),
    items=("nuggets",),
    example={"most": 30},
)
RATE_NUGGETS = _labelling(
    "rate_nuggets",
    ("query",),
    IMPORTANCES,
    parse=parse_ratings,
    output=LABELS_SCHEMA,
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.37)),
)
ASSIGN_NUGGETS = _labelling(
    "assign_nuggets",
    ("query", "response"),
    SUPPORTS,
    parse=parse_assignments,
    output=REASONED_SCHEMA,
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.34)),
)
JUDGE_CRITERIA = StageDefinition(
    "judge_criteria",
    ("query", "response", "criteria", "levels"),
    parse_criteria,
    VERDICTS_SCHEMA,
    schema=record(
        verdicts=listed(record(number=number_of("criteria"), reason=TEXT, label=one_of([*VERDICTS, *_LEVELS])))
    ),
    form=lines_of(
        rf"\d{{1,9}}: (?:{'|'.join(VERDICTS)}|{LEVEL}\d{{1,2}})(?: \| .+)?",
        "n: label | reason",
        "one line for each criterion:",
    ),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.53)),
    example={"criteria": ["Names the city", "Is clear"], "levels": [[], ["poor", "good"]]},
)
JUDGE_SUPPORT = StageDefinition(
    "judge_support",
    ("sources", "sentences"),
    parse_supports,
    CITED_SCHEMA,
    schema=record(labels=listed(record(number=number_of("sentences"), reason=TEXT, label=one_of(CITED_LABELS)))),
    form=lines_of(
        rf"\d{{1,9}}: (?:{'|'.join(CITED_LABELS)})(?: \| .+)?", "n: label | reason", "one line for each sentence:"
    ),
    # A line for each sentence, whatever the length of the sources
    figures=Figures(WRITTEN, completion=LinearSize(29.0, 0.06)),
    example={"sources": ["Ada lives in Lyon."], "sentences": ["Ada lives in Lyon.", "Ada lives in Rome."]},
)
JUDGE_RELEVANCY = StageDefinition(
    "judge_relevancy",
    ("query", "sentences"),
    parse_relevancies,
    REASONED_SCHEMA,
    schema=record(labels=listed(record(number=number_of("sentences"), reason=TEXT, label=one_of(LABELS)))),
    form=lines_of(rf"\d{{1,9}}: (?:{'|'.join(LABELS)})(?: \| .+)?", "n: label | reason", "one line for each sentence:"),
    figures=Figures(WRITTEN, completion=LinearSize(slope=1.0)),
    example={"sentences": ["Ada lives in Lyon.", "She likes bees."]},
)
