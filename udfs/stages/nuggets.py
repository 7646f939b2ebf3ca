"""The stages of nuggets: what an answer should state, which of it is vital, and what a response supports of it
(Pradeep et al. 2025, AutoNuggetizer; methods, section 9).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from untold.udfs.facts.nugget_measures import NOT_SUPPORT, OKAY, PARTIAL, SUPPORT, SUPPORTS, VITAL
from untold.udfs.samples.items import IMPORTANCES
from untold.udfs.stages.claims import CLAIM_NAMES, labelled_answer, listed_texts, recorded_texts
from untold.udfs.stages.definitions import (
    TEXT,
    WRITTEN,
    ExtractedItem,
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
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.labels import Labels, labels_of, read_label
from untold.udfs.stages.numbered import NumberedTexts, read_numbered_labels
from untold.udfs.stages.reading import past_echoes, unfenced

NUGGETS_SCHEMA = pa.schema([pa.field("nuggets", pa.list_(pa.string()))])
# In the order of the variable `nuggets`; null where a nugget has no clear label or several
LABELS_SCHEMA = pa.schema([pa.field("labels", pa.list_(pa.string()))])
# What stands beside a nugget's number: `Nugget 3`, `n3`
_NUMBER_WORDS = re.compile(r"(?<![^\W_])(?:nuggets?|statements?|nos?|numbers?|ids?|n)(?![^\W\d_])", re.IGNORECASE)
_NOT = r"(?:not|non|no|un|(?:is|does)n['’]t)[\s*_\"'`~‐‑–—-]{0,6}"
_UNCHANGED = re.compile(
    r"[\W_]*(?:there (?:are|is) )?(?:no|nothing)(?: (?:further|more|other))?"
    r" (?:changes?|(?:new|additional) nuggets?|(?:new )?to add)"
    r"(?: (?:are |is )?(?:needed|required|necessary|found|to add))?[\W_]*",
    re.IGNORECASE,
)
_IMPORTANCES = labels_of(
    {VITAL: r"vital", OKAY: r"okay|ok"},
    hedged=rf"{_NOT}(?:vital|okay|ok)|(?:almost|nearly|barely)[\s_-]vital",
    inputs=("query", "nuggets"),
    positive=VITAL,
)
_SUPPORTS = labels_of(
    {
        PARTIAL: r"(?:partial(?:ly)?|partly)[\s*_-]{0,3}support(?:ed|s)?",
        NOT_SUPPORT: rf"{_NOT}support(?:ed|s)?",
        SUPPORT: r"(?:full(?:y)?[\s_-])?support(?:ed|s)?",
    },
    denying=r"do(?:es)?(?: not|n['’]t) (?:at all )?support",
    hedged=r"(?:mostly|largely|somewhat|weakly|half)[\s_-]support(?:ed|s)?",
    inputs=("query", "response", "nuggets"),
    positive=SUPPORT,
    neither=NOT_SUPPORT,
)


@final_answer
@past_echoes
def parse_nuggets(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """`nuggets`: the whole list in order, one that stands twice twice; none for a lone `None`. Read as claims are.

    `No changes.` stands for the nuggets so far. Raises `Unparsable` where a line may be a nugget or not, where nothing
    is one, and for an empty list in place of the nuggets so far.
    """
    text = labelled_answer(completion)
    if (so_far := variables.get("nuggets")) and _UNCHANGED.fullmatch(unfenced(text)):
        return {"nuggets": list(so_far)}
    recorded = recorded_texts(text, ("nugget", *CLAIM_NAMES))
    nuggets = listed_texts(text, "") if recorded is None else recorded
    if variables.get("nuggets") and not nuggets:
        raise Unparsable("no list, although there are nuggets so far")
    return {"nuggets": nuggets}


def nuggets_in(completion: str) -> list[ExtractedItem]:
    """The nuggets. Raises `Unparsable`."""
    return list(map(ExtractedItem, parse_nuggets(completion, {})["nuggets"]))


@final_answer
def parse_ratings(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """`labels`: one of `IMPORTANCES` for each of `nuggets`, as `read_numbered_labels` finds them."""
    return {"labels": _numbered(completion, variables, _IMPORTANCES)}


@final_answer
def parse_assignments(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """`labels`: one of `SUPPORTS` for each of `nuggets`, as `read_numbered_labels` finds them."""
    return {"labels": _numbered(completion, variables, _SUPPORTS)}


def _numbered(completion: str, variables: Mapping[str, Any], labels: Labels) -> list[str | None]:
    nuggets = variables["nuggets"]
    return read_numbered_labels(
        completion, NumberedTexts(nuggets, _NUMBER_WORDS), lambda text, n: read_label(text, labels, nuggets[n - 1 : n])
    )


def _labelling(name: str, variables: Sequence[str], labels: Sequence[str], **more: Any) -> StageDefinition:
    """A stage that gives each of its nuggets a label."""
    return StageDefinition(
        name,
        (*variables, "nuggets"),
        output=LABELS_SCHEMA,
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
    things=nuggets_in,
    items=("nuggets",),
    example={"most": 30},
)
RATE_NUGGETS = _labelling(
    "rate_nuggets",
    ("query",),
    IMPORTANCES,
    parse=parse_ratings,
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.37)),
)
ASSIGN_NUGGETS = _labelling(
    "assign_nuggets",
    ("query", "response"),
    SUPPORTS,
    parse=parse_assignments,
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.34)),
)
