"""The identity of a request: what changes its completion, and only that."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

# Part of every key: raised, no completion of any store would be found again.
KEY_VERSION = 1
# 128 bits: of a billion requests two share a key with odds below 1 in 10 ** 20, and batch APIs take ids of 64
# characters.
_ID_BYTES = 16
# APIs of servers that classify pairs, each the last part of its address; and all that take several rows in a call
CLASSIFYING = ("classify", "predict", "score")
LOCAL = "local"
SEVERAL_ROWS = ("embeddings", LOCAL, *CLASSIFYING)
# The parameter of the token limit: its first name, and the name that reasoning models accept
MAX_TOKENS, MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
SYSTEM = "system"


@dataclass(frozen=True)
class Stage:
    """A stage bound to a model, a template and decoding parameters: frozen data that decides its requests' keys.

    `model` is sent to the endpoint; `model_key` stands for it in the key (a local file's sha256, else the same name). A
    decoding parameter that is None is not sent and not in the key. `rated` stages ask for log-probabilities, which are
    not in the key. `structured` is how a schema is sent (`form`) and the stage's own (`schema`); None sends none.
    `salt` is not sent: with another one the same requests have other keys, and are asked anew. `limit_name`: the
    parameter that carries `max_tokens`. `system_role`: the role of the system turn; `user` merges it into the first
    user turn. `window`: the context window in tokens, which bounds prompt and completion together; `most_tokens`: the
    largest limit that the endpoint accepts. `reasoning_tokens`: tokens added to the limit for reasoning; they are not
    in the key.

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

    @cached_property
    def decoding(self) -> dict[str, Any]:
        """The parameters that are sent beside model and prompt; fields of `extra_body` win."""
        own = {"temperature": self.temperature, "top_p": self.top_p, self.limit_name: self.max_tokens}
        sent: dict[str, Any] = _canonical({**own, **self.extra_body})
        return sent

    @cached_property
    def digest(self) -> str:
        """32 hex characters over everything that changes this stage's completions."""
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
        }
        return _hash(canonical_json(identity))

    def request_id(self, variables: Mapping[str, Any]) -> str:
        """The key of the request for these values of the stage's variables: 32 hex characters."""
        return request_id(self.digest, {name: variables.get(name) for name in self.variables})


def request_id(digest: str, variables: Mapping[str, Any]) -> str:
    """The key of a request for these variables, by the digest of its stage."""
    return _hash(digest + canonical_json(variables))


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces, in which null and absent fields are the same, and 1.0 is 1.

    Raises ValueError for NaN and infinity, which are no JSON.

    >>> canonical_json({"b": 1.0, "a": None, "c": "é"})
    '{"b":1,"c":"é"}'
    """
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _canonical(value: Any) -> Any:
    """The value with null fields left out and integral numbers as integers, at any depth: 0.0 and 0 ask the same."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _hash(text: str) -> str:
    """blake2b of the text's UTF-8 as 32 hex characters."""
    return blake2b(text.encode("utf-8"), digest_size=_ID_BYTES).hexdigest()


class PairKeys:
    """The keys of requests for ordered pairs of some texts, by a stage of two variables: `Stage.request_id`, but quick.

    Each text is written as JSON and hashed as the beginning of a key once, not once a pair.
    """

    def __init__(self, stage: Stage, texts: Sequence[str]) -> None:
        # In the order of their names, as canonical JSON has them, whichever the stage calls first.
        low, high = sorted(stage.variables)
        self._turned = (low, high) != stage.variables
        values = [canonical_json(text) for text in texts]
        beginnings = (f'{stage.digest}{{"{low}":{value},"{high}":' for value in values)
        self._states = [blake2b(beginning.encode("utf-8"), digest_size=_ID_BYTES) for beginning in beginnings]
        self._ends = [f"{value}}}".encode() for value in values]

    def request_id(self, first: int, second: int) -> str:
        """The key for two of the texts by their places, as the stage's first and second variable."""
        low, high = (second, first) if self._turned else (first, second)
        state = self._states[low].copy()
        state.update(self._ends[high])
        return state.hexdigest()
