"""The identity of a request, and the output format and parameters that are part of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

from untold.udfs.stages.definitions import REASONING, filled, lists_in, without_reasoning

# Part of every key. Another version would invalidate the completions of all stores
KEY_VERSION = 1
# With 128 bits, the probability of equal keys among a billion requests is below 1e-20. Batch APIs accept 64 characters
_ID_BYTES = 16
# APIs of servers that classify pairs, each the last part of its address. Below, all APIs with several rows per call
CLASSIFYING = ("classify", "predict", "score")
LOCAL = "local"
PROMPTED = ("chat", "completions")
SEVERAL_ROWS = ("embeddings", LOCAL, *CLASSIFYING)
# The parameter of the token limit: its first name, and the name that reasoning models accept
MAX_TOKENS, MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
SYSTEM = "system"


@dataclass(frozen=True)
class Stage:
    """A stage bound to a model, a template and decoding parameters. These data decide the keys of its requests.

    A decoding parameter of None is neither sent nor part of the key.

    Attributes:
        model: name of the model in requests. `model_key` replaces it in the key: the sha256 of a local file, or the
            same name.
        rated: request log-probabilities, which are not part of the key.
        structured: the way to send a schema (`form`), and the schema of the stage (`schema`). None sends no schema.
        salt: text that is part of the key but not sent. Another salt sends all requests again.
        limit_name: name of the parameter for `max_tokens`.
        system_role: role of the system turn; `user` merges it into the first user turn.
        window: context window in tokens, the limit of prompt and completion together.
        most_tokens: the largest token limit that the endpoint accepts.
        reasoning_tokens: tokens added to the limit for reasoning, which are not part of the key.
        mask: name and version of the mask of the variables.

    >>> stage = Stage("rate", ("query", "text"), model="a-model", template="{{ query }} {{ text }}")
    >>> stage.request_id({"query": "q", "text": "t"}) == stage.request_id({"text": "t", "query": "q", "row": 7})
    True
    """

    name: str
    variables: tuple[str, ...]
    model: str
    template: str
    api: str = "chat"
    model_key: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()
    rated: bool = False
    structured: Mapping[str, Any] | None = None
    salt: str | None = None
    limit_name: str = MAX_TOKENS
    system_role: str = SYSTEM
    window: int | None = None
    most_tokens: int | None = None
    reasoning_tokens: int = 0
    mask: tuple[str, str] | None = None

    @property
    def has_prompt(self) -> bool:
        """Return True if a language model is given the template as a prompt."""
        return self.api in PROMPTED

    @cached_property
    def decoding(self) -> dict[str, Any]:
        """Return the parameters of a request besides model and prompt. Fields of `extra_body` override others."""
        own = {"temperature": self.temperature, "top_p": self.top_p, self.limit_name: self.max_tokens}
        sent: dict[str, Any] = _canonical({**own, **self.extra_body})
        return sent

    @cached_property
    def digest(self) -> str:
        """Return the hash of everything that changes the completions of the stage: 32 hex characters."""
        identity = {
            "version": KEY_VERSION,
            "stage": self.name,
            "model": self.model_key or self.model,
            "api": self.api,
            "template": self.template,
            "tools": list(self.tools) or None,
            "decoding": self.decoding,
            "structured": self.structured,
            "salt": self.salt,
            "system": None if self.system_role == SYSTEM else self.system_role,
            "window": self.window,
            "most_tokens": self.most_tokens,
            "mask": self.mask,
        }
        return _hash(canonical_json(identity))

    def request_id(self, variables: Mapping[str, Any]) -> str:
        """Return the key of the request with these variables: 32 hex characters."""
        return request_id(self.digest, {name: variables.get(name) for name in self.variables})


def request_id(digest: str, variables: Mapping[str, Any]) -> str:
    """Return the key of a request with these variables. `digest` belongs to its stage."""
    return _hash(digest + canonical_json(variables))


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces. Null fields are left out, and 1.0 is 1.

    Raises ValueError for NaN and infinity, because JSON does not support them.

    >>> canonical_json({"b": 1.0, "a": None, "c": "é"})
    '{"b":1,"c":"é"}'
    """
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _canonical(value: Any) -> Any:
    """Return the value without null fields, and with integers for integral numbers, at any depth."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _hash(text: str) -> str:
    """Return blake2b of the text in UTF-8 as 32 hex characters."""
    return blake2b(text.encode("utf-8"), digest_size=_ID_BYTES).hexdigest()


class PairKeys:
    """The keys of requests for ordered pairs of texts, for a stage with two variables: a faster `Stage.request_id`.

    Each text is serialized and hashed once, and not once per pair.
    """

    def __init__(self, stage: Stage, texts: Sequence[str]) -> None:
        # In the order of their names, as in canonical JSON
        low, high = sorted(stage.variables)
        self._turned = (low, high) != stage.variables
        values = [canonical_json(text) for text in texts]
        beginnings = (f'{stage.digest}{{"{low}":{value},"{high}":' for value in values)
        self._states = [blake2b(beginning.encode("utf-8"), digest_size=_ID_BYTES) for beginning in beginnings]
        self._ends = [f"{value}}}".encode() for value in values]

    def request_id(self, first: int, second: int) -> str:
        """Return the key for two texts by their indices, as the first and second variable of the stage."""
        low, high = (second, first) if self._turned else (first, second)
        state = self._states[low].copy()
        state.update(self._ends[high])
        return state.hexdigest()


TAKEN, IGNORED, REFUSED, BROKEN, UNTRIED = "taken", "ignored", "refused", "broken", "untried"
# Parameters that ask for log-probabilities
RATING = frozenset({"logprobs", "top_logprobs"})
# Fields of a request with which a user requests an output format
OWN_FIELDS = frozenset({"response_format", "guided_json", "guided_regex", "guided_grammar", "grammar", "json_schema"})


def schema_fields(stage: Stage, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that ask for JSON of the schema of the stage. Empty if it sends no schema."""
    if stage.structured is None:
        return {}
    schema = filled(stage.structured["schema"], variables)
    if stage.structured["form"] == "guided_json":
        return {"guided_json": schema}
    named = {"name": stage.name, "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


class SchemaFields:
    """`schema_fields` of a stage, computed once for all requests with lists of the same lengths."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._lists = tuple(lists_in(stage.structured["schema"])) if stage.structured else ()
        self._made: dict[tuple[int, ...], dict[str, Any]] = {}

    def of(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a request with these variables."""
        lengths = tuple(len(variables.get(name) or ()) for name in self._lists)
        if lengths not in self._made:
            self._made[lengths] = schema_fields(self._stage, variables)
        return self._made[lengths]


@dataclass(frozen=True)
class SchemaSupport:
    """The support of an endpoint and its model for schemas, by the first response to a request with a schema.

    Attributes:
        outcome: `taken`, `ignored` (the completion has another form), `refused`, `broken` (the completion is empty, or
            in the field of the reasoning), or `untried`.
        thinks: True if the model reasons without a request.
        weighs: True if responses with a schema have log-probabilities. None before the first request of a rating.
    """

    outcome: str
    thinks: bool = False
    weighs: bool | None = None

    def settles(self, stage: Stage) -> bool:
        """Return True if nothing is left to test for a stage."""
        return self.outcome != TAKEN or not stage.rated or self.weighs is not None

    def changes(self, stage: Stage) -> bool:
        """Return True if the requests of a stage change."""
        return self.applied(stage) != stage

    def applied(self, stage: Stage) -> Stage:
        """Return the stage without a schema that does harm, or without the reasoning in the schema."""
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
        if not stage.has_prompt:
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
