"""The configuration of the model server, and the rules of its faults.

A rule is `{"when": {...}, "do": {...}}`. The first matching rule is used. `_CONDITIONS` and `_DEEDS` list the allowed
keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any

from tests.fakes.answers import find_answer

_CONDITIONS = {"share", "seed", "every", "first", "after", "stage", "contains", "attempt_below", "between"}
_CONDITIONS |= {"sends", "limit_above"}
_DEEDS = {"delay", "status", "headers", "error", "body", "hang", "html", "cut_json", "cut_body", "refuse", "garbage"}
_DEEDS |= {"empty", "null", "length", "filter", "no_usage", "no_logprobs", "text", "think"}
_DEEDS |= {"no_tools", "tool_garbage", "tool_loop", "finish", "nan", "zero", "short", "drop", "unnamed"}
_DEEDS |= {"reasoning", "few_tokens"}
# The handling of a schema: taken, refused, empty, misplaced, thinking, unweighed. A request without one is not affected
_DEEDS |= {"schema"}


@dataclass(frozen=True)
class Config:
    """The configuration of the server, which can change while it runs.

    `limits` has requests_per_minute, tokens_per_minute (sliding 60 s windows over accepted requests) and retry_after in
    seconds. `latency` is in seconds, for every response. With `api_key`, a request without this bearer token gets a
    401. `address` is the listening address. `batches` are fields of `FakeBatches`, and `classifier` fields of
    `FakeClassifier`. `prefix_cache`: the server reports cached tokens of a prompt's beginning.
    """

    answer: str = "e2e"
    rules: Sequence[Mapping[str, Any]] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    latency: float = 0.0
    down: bool = False
    api_key: str | None = None
    model: str = "fake-model"
    address: str = "127.0.0.1"
    batches: Mapping[str, Any] = field(default_factory=dict)
    classifier: Mapping[str, Any] = field(default_factory=dict)
    prefix_cache: bool = False

    def __post_init__(self) -> None:
        for rule in self.rules:
            _check_names("rule", rule, {"when", "do"})
            _check_names("condition", rule.get("when", {}), _CONDITIONS)
            _check_names("deed", deeds_of(rule), _DEEDS)
        _check_names("limit", self.limits, {"requests_per_minute", "tokens_per_minute", "retry_after"})
        find_answer(self.answer)


@dataclass(slots=True)
class Request:
    """A request for a completion, for rules.

    `key` is a hash of its messages. `index` (of all requests) and `attempt` (of this key) count from 1.
    """

    chat: bool
    body: dict[str, Any]
    raw: bytes
    prompt: str
    payload: dict[str, Any]
    key: int
    index: int
    attempt: int
    elapsed: float

    @property
    def limit(self) -> int | None:
        """Return the token limit, under either of its names."""
        limit: int | None = self.body.get("max_completion_tokens", self.body.get("max_tokens"))
        return limit

    @property
    def roles(self) -> set[str]:
        """Return the roles of the turns."""
        return {turn["role"] for turn in self.body.get("messages", ())}


def condition(when: Mapping[str, Any], rule_index: int) -> Callable[[Request], bool]:
    """Return a predicate that is True if a request meets all conditions. Shares without a seed are independent."""
    tests = [make(when[name]) for name, make in _TESTS.items() if name in when]
    if "share" in when:
        salt, share = str(when.get("seed", rule_index)).encode(), when["share"] * 2**64
        tests.append(lambda request: hash_of(salt + request.key.to_bytes(8, "big")) < share)
    return lambda request: all(test(request) for test in tests)


def _contains(request: Request, text: str) -> bool:
    if text in request.raw.decode("utf-8", "replace") or text in request.prompt:
        return True
    return text in json.dumps(request.payload, ensure_ascii=False)


_TESTS: dict[str, Callable[[Any], Callable[[Request], bool]]] = {
    "every": lambda n: lambda request: request.index % n == 0,
    "first": lambda n: lambda request: request.index <= n,
    "after": lambda n: lambda request: request.index > n,
    "stage": lambda name: lambda request: request.payload.get("stage") == name,
    "contains": lambda text: lambda request: _contains(request, text),
    "attempt_below": lambda k: lambda request: request.attempt < k,
    "sends": lambda name: lambda request: name in request.body or name in request.roles,
    "limit_above": lambda most: lambda request: (request.limit or 0) > most,
    "between": lambda span: lambda request: span[0] <= request.elapsed < span[1],
}


def deeds_of(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return the deeds of a rule. A bare name is a deed without a value."""
    deeds = rule.get("do", {})
    return {deeds: True} if isinstance(deeds, str) else dict(deeds)


def _check_names(kind: str, names: Mapping[str, Any], known: set[str]) -> None:
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=2)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(sorted(known))}{hint}")


def hash_of(data: bytes) -> int:
    """Return a hash of 64 bits."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
