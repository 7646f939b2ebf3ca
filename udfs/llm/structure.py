"""Structured output: the fields that ask for it, and what an endpoint makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from untold.udfs.llm.keys import Stage
from untold.udfs.ratings import SCALE, read_alternatives
from untold.udfs.stages.schemas import REASONING, SCHEMA, filled, read_as, without_reasoning

if TYPE_CHECKING:
    from untold.udfs.llm.calls import Answer, Request

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


def find(stage: Stage, answer: Answer, variables: Mapping[str, Any]) -> Finding | None:
    """What an answer to a request with a schema says of the endpoint; None where that is nothing."""
    if answer.about_schema:
        return Finding(REFUSED)
    if answer.misplaced or answer.error_type == "empty":
        return Finding(BROKEN)
    if answer.text is None or stage.structured is None:
        return None
    if read_as(answer.text, stage.structured["schema"], None, variables) != SCHEMA:
        return Finding(IGNORED)
    return Finding(TAKEN, answer.thinks, _weighs(stage, answer))


def _weighs(stage: Stage, answer: Answer) -> bool | None:
    """Whether a rated stage's answer came with log-probabilities; None where none were asked for."""
    asked = stage.rated and stage.extra_body.get("logprobs") is not False
    rating = asked and answer.text is not None and any(digit in answer.text for digit in SCALE)
    return read_alternatives(answer.text or "", answer.logprobs) is not None if rating else None


class SchemaTrial:
    """What an asker finds out of its endpoint: while it is `pending`, the first request goes alone.

    It is `over` once the stage has to be asked otherwise, and so all of its requests.
    """

    def __init__(self, stage: Stage, *, pending: bool, may_drop: bool) -> None:
        self._stage, self._may_drop = stage, may_drop
        self.pending = pending
        self.finding: Finding | None = None

    @property
    def over(self) -> bool:
        """Whether the finding changes how the stage is asked."""
        return self.finding is not None and self.finding.changes(self._stage)

    def hear(self, request: Request, answer: Answer, *, completed: bool) -> None:
        """Notes what the first answer says, or a refusal before any completion. Being told to wait says nothing."""
        if self.pending or (self._may_drop and answer.about_schema and not completed):
            self.finding = find(self._stage, answer, request.variables)
            self.pending = answer.error_type == "http_429"
