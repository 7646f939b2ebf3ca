"""Structured output: the fields that ask for it, and what an endpoint makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from untold.udfs.llm.keys import Stage
from untold.udfs.stages.schemas import REASONING, filled, lists_in, without_reasoning

TAKEN, IGNORED, REFUSED, BROKEN, UNTRIED = "taken", "ignored", "refused", "broken", "untried"
# What stands in a request by which its user asks for a form
OWN_FIELDS = frozenset({"response_format", "guided_json", "guided_regex", "guided_grammar", "grammar", "json_schema"})


def schema_fields(stage: Stage, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request's body that ask for JSON of the stage's schema; none where it sends no schema."""
    if stage.structured is None:
        return {}
    schema = filled(stage.structured["schema"], variables)
    if stage.structured["form"] == "guided_json":
        return {"guided_json": schema}
    named = {"name": stage.name, "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


class SchemaFields:
    """`schema_fields` of a stage, made once for all requests whose lists are as long."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._lists = tuple(lists_in(stage.structured["schema"])) if stage.structured else ()
        self._made: dict[tuple[int, ...], dict[str, Any]] = {}

    def of(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a request with these variables."""
        lengths = tuple(len(variables.get(name) or ()) for name in self._lists)
        if lengths not in self._made:
            self._made[lengths] = schema_fields(self._stage, variables)
        return self._made[lengths]


@dataclass(frozen=True)
class Finding:
    """What an endpoint and its model make of a schema, by the first answer to a request that had one.

    `outcome`: `taken`, `ignored` (the answer is another text), `refused`, `broken` (it is empty, or stands where
    thinking belongs), or `untried` where nobody could find out. `thinks`: the model thinks by itself. `weighs`: whether
    log-probabilities come beside a schema; None where no rating was asked for yet.
    """

    outcome: str
    thinks: bool = False
    weighs: bool | None = None

    def settles(self, stage: Stage) -> bool:
        """Whether nothing is left to find out for a stage."""
        return self.outcome != TAKEN or not stage.rated or self.weighs is not None

    def changes(self, stage: Stage) -> bool:
        """Whether a stage is to be asked otherwise."""
        return self.applied(stage) != stage

    def applied(self, stage: Stage) -> Stage:
        """The stage as it is asked: without a schema where that does harm, or without its reasoning."""
        if stage.structured is None:
            return stage
        if self.outcome in (REFUSED, BROKEN, UNTRIED) or (stage.rated and self.weighs is False):
            return replace(stage, structured=None)
        schema = stage.structured["schema"]
        if self.thinks and REASONING in schema["properties"]:
            return replace(stage, structured={**stage.structured, "schema": without_reasoning(schema)})
        return stage
