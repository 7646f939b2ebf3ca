"""Structured output, and the parameters that an endpoint and its model refuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from untold.udfs.llm.keys import Stage
from untold.udfs.stages.schemas import REASONING, filled, lists_in, without_reasoning

TAKEN, IGNORED, REFUSED, BROKEN, UNTRIED = "taken", "ignored", "refused", "broken", "untried"
# Parameters that ask for log-probabilities
RATING = frozenset({"logprobs", "top_logprobs"})
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


@dataclass(frozen=True)
class Parameters:
    """The parameters that an endpoint and its model refuse, and how requests are sent instead.

    `dropped`: parameters that are not sent. `limit_name`, `system_role` and `window` replace those of the stage.
    `max_tokens`: the upper bound of the token limit. `reasoning_tokens`: the most that a completion used for reasoning.
    """

    dropped: tuple[str, ...] = ()
    limit_name: str | None = None
    system_role: str | None = None
    max_tokens: int | None = None
    window: int | None = None
    reasoning_tokens: int = 0

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Parameters:
        """Return the parameters of their JSON."""
        return cls(**{**plain, "dropped": tuple(plain.get("dropped", ()))})

    def merged(self, later: Parameters) -> Parameters:
        """Return both findings; the later one counts where they differ."""
        limits = [limit for limit in (self.max_tokens, later.max_tokens) if limit is not None]
        return Parameters(
            tuple(sorted({*self.dropped, *later.dropped})),
            later.limit_name or self.limit_name,
            later.system_role or self.system_role,
            min(limits, default=None),
            later.window or self.window,
            max(self.reasoning_tokens, later.reasoning_tokens),
        )

    def applied(self, stage: Stage) -> Stage:
        """Return the stage without the refused parameters. A stage that sends none of them is returned unchanged."""
        if stage.api not in ("chat", "completions"):
            return stage
        extra = {name: value for name, value in stage.extra_body.items() if name not in self.dropped}
        if stage.rated and RATING.intersection(self.dropped):
            extra["logprobs"] = False
        chat = stage.api == "chat"
        return replace(
            stage,
            temperature=None if "temperature" in self.dropped else stage.temperature,
            top_p=None if "top_p" in self.dropped else stage.top_p,
            extra_body=extra,
            most_tokens=self.max_tokens or stage.most_tokens,
            limit_name=(self.limit_name or stage.limit_name) if chat else stage.limit_name,
            system_role=(self.system_role or stage.system_role) if chat else stage.system_role,
            window=self.window or stage.window,
            reasoning_tokens=max(self.reasoning_tokens, stage.reasoning_tokens),
        )

    def changes(self, stage: Stage) -> bool:
        """Return True if the requests of the stage have other keys without the refused parameters."""
        return self.applied(stage).digest != stage.digest

    def lines(self) -> list[str]:
        """Return one line per finding, for users."""
        found = [f"{name} is not supported; sent without it" for name in self.dropped]
        if self.limit_name:
            found.append(f"max_tokens is not supported; sent as {self.limit_name}")
        if self.system_role:
            how = "merged into the first user turn" if self.system_role == "user" else f"sent as {self.system_role}"
            found.append(f"the system role is not supported; {how}")
        if self.window:
            found.append(f"the context window has {self.window:,} tokens; max_tokens is reduced to the rest")
        if self.max_tokens:
            found.append(f"max_tokens is limited to {self.max_tokens:,}")
        if self.reasoning_tokens:
            found.append(f"reasoning used up to {self.reasoning_tokens:,} tokens, which are added to max_tokens")
        return found
