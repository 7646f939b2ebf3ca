"""The stages of nuggets: create the facts of a good answer, rate them, and label their support by a response.

Source: Pradeep et al. 2025, AutoNuggetizer; methods, section 9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from untold.udfs.facts.nugget_measures import NOT_SUPPORT, OKAY, PARTIAL, SUPPORT, SUPPORTS, VITAL
from untold.udfs.samples.items import IMPORTANCES
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
from untold.udfs.stages.labels import Vocabulary, read_numbered_labels
from untold.udfs.stages.lists import CLAIM_NAMES, read_texts, things_of

NUGGETS_SCHEMA = pa.schema([pa.field("nuggets", pa.list_(pa.string()))])
# In the order of the variable `nuggets`; null for a nugget without a clear label
LABELS_SCHEMA = pa.schema([pa.field("labels", pa.list_(pa.string()))])
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


@reader
def parse_assignments(text: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """Return the `labels`: one of `SUPPORTS` for each of `nuggets`, None for one without a clear label."""
    return {"labels": read_numbered_labels(text, variables["nuggets"], _SUPPORTS)}


def _labelling(name: str, variables: Sequence[str], labels: Sequence[str], **more: Any) -> StageDefinition:
    """Return a stage that assigns a label to each nugget."""
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
    things=things_of(parse_nuggets, "nuggets"),
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
