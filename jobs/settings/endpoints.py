"""One of several endpoints of the language model, and what is sent to endpoints beside requests."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from untold.jobs.settings.fields import Address, Amount, Count, Positive, Section, Text, VariableName, merge_patch

# The client sends these itself: it could not read what comes of others
_OWN_HEADERS = frozenset({"accept-encoding", "connection", "content-length", "content-type", "host"})
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = "text, or {env: NAME} for the value of an environment variable"


def _without_nulls(value: object) -> object:
    """A null removes what a layer below set."""
    return merge_patch({}, value) if isinstance(value, Mapping) else value


def _sendable(value: dict[str, Any]) -> dict[str, Any]:
    """Names and values that fit into one line. Raises ValueError, which never names a value."""
    texts = [*value, *(one for one in value.values() if isinstance(one, str))]
    if not all(text.isprintable() and text for text in texts):
        raise ValueError(f"a mapping of names to {_VALUE}, each on one line")
    if any(isinstance(one, dict) and one.keys() != {"env"} for one in value.values()):
        raise ValueError(f"a mapping of names to {_VALUE}")
    return value


def _headers(value: dict[str, Any]) -> dict[str, Any]:
    """Headers that may be sent. Raises ValueError for others."""
    if own := sorted(name for name in value if name.lower() in _OWN_HEADERS):
        raise ValueError(f"a mapping without {', '.join(own)}, which Untold sends itself")
    if not all(_HEADER.fullmatch(name) and (not isinstance(one, str) or one.isascii()) for name, one in value.items()):
        raise ValueError("a mapping of names of HTTP headers to ASCII text")
    return value


Sent = Annotated[
    dict[str, str | int | dict[Literal["env"], VariableName]],
    BeforeValidator(_without_nulls),
    AfterValidator(_sendable),
]
Headers = Annotated[Sent, AfterValidator(_headers)]
A_SENT: Any = {"allowed": f"a mapping of names to {_VALUE}"}


class SendingSettings(Section):
    """What is sent with every request beside its body. It is no part of a request's id."""

    extra_headers: Headers = Field(
        default_factory=dict, description="Headers of every request; values are not shown", json_schema_extra=A_SENT
    )
    extra_query: Sent = Field(
        default_factory=dict,
        description="Parameters of every request's address, such as api-version; values are not shown",
        json_schema_extra=A_SENT,
    )


class EndpointSettings(SendingSettings):
    """One of several endpoints. What it leaves out is as in `llm.*`; an explicit null is no limit, key or price."""

    base_url: Address
    model: Text | None = None
    api_key_env: VariableName | None = None
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    max_concurrency: Count | None = None
    price_per_million_prompt_tokens: Amount | None = None
    price_per_million_completion_tokens: Amount | None = None
    weight: Positive = 1.0

    @property
    def identity(self) -> tuple[str | None, ...]:
        """What tells it from another one: two accounts of an address, or two routes of a gateway, are two endpoints."""
        sent = json.dumps([self.extra_headers, self.extra_query], sort_keys=True)
        return self.base_url, self.model, self.api_key_env, sent

    def over(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What it sets, and what it changes of `given`, the settings `llm.*`."""
        merged = {name: {**given[name], **getattr(self, name)} for name in ("extra_headers", "extra_query")}
        own = {name: getattr(self, name) for name in self.model_fields_set - {"weight", *merged}}
        return own | merged | {name: getattr(self, name) or given[name] for name in ("model", "max_concurrency")}

    @model_serializer(mode="wrap")
    def _set_fields(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only what was set, so that unset and null stay apart through JSON."""
        return {name: value for name, value in serialise(self).items() if name in self.model_fields_set}


def _distinct(value: list[EndpointSettings]) -> list[EndpointSettings]:
    """Raises ValueError for one endpoint that is named twice."""
    if len({one.identity for one in value}) < len(value):
        raise ValueError("a list of endpoints that differ in base_url, model, api_key_env or what is sent beside")
    return value


Endpoints = Annotated[list[EndpointSettings], AfterValidator(_distinct)]
ENDPOINTS: Any = {"allowed": "a list of endpoints, each a mapping with base_url"}
