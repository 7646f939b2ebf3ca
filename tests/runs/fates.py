"""Predict the result of a request from the rules of the model server, without the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fakes.lookups import LOOKUPS
from tests.fakes.rules import Request, condition, deeds_of, hash_of
from tests.runs.harness import PROMPTS, Row
from untold.udfs.llm.templates import compile_prompt

ATTEMPTS = 4
ERRORS = {
    "status": "http_500",
    "refuse": "connection",
    "hang": "timeout",
    "html": "bad_body",
    "cut_json": "bad_body",
    "empty": "empty",
    "length": "truncated",
    "garbage": "unparsable",
    "finish": "bad_finish",
    **dict.fromkeys(("nan", "zero", "drop"), "bad_body"),
}
ASKED_ONCE = {"http_400", "http_403"}
# The run retries this status
RETRIED = 408
PASSING = {"http_408", "http_500", "connection", "timeout", "bad_body", "bad_finish"}


@dataclass(frozen=True)
class Fate:
    """The expected result of a request: its error type (None for a completion), its calls, and the number of 429s."""

    error_type: str | None
    calls: int
    limited: int
    estimated: bool = False


def key_of(payload: Mapping[str, Any]) -> int:
    """Return the hash of a prompt, a search query, or the texts of an embedding call, as the server computes it."""
    if payload["stage"] in LOOKUPS:
        texts = payload.get("texts") or [payload["query"]]
        return hash_of("\0".join(texts).encode("utf-8", "replace"))
    source = (PROMPTS / f"{payload['stage']}.jinja").read_text(encoding="utf-8")
    (message,) = compile_prompt(source).messages(payload)
    return hash_of(message["content"].encode("utf-8"))


def fate_of(payload: Mapping[str, Any], rules: Sequence[Row]) -> Fate:
    """Return the result of a request that is retried until it succeeds or has no attempts left."""
    tests = [(condition(rule["when"], index), deeds_of(rule)) for index, rule in enumerate(rules)]
    attempts = limited = 0
    while True:
        calls = attempts + limited + 1
        request = Request(True, {}, b"", "", dict(payload), key_of(payload), 0, calls, 0.0)
        deeds = next((deeds for holds, deeds in tests if holds(request)), {})
        deed = next(iter(deeds), None)
        if deed in (None, "no_usage"):
            return Fate(None, calls, limited, deed == "no_usage")
        if deed == "filter" or f"http_{deeds.get('status')}" in ASKED_ONCE:
            return Fate("filtered" if deed == "filter" else f"http_{deeds['status']}", calls, limited)
        if deeds.get("status") == 429:
            limited += 1
            continue
        attempts += 1
        if attempts == ATTEMPTS:
            retried = deeds.get("status") == RETRIED
            return Fate(f"http_{RETRIED}" if retried else ERRORS[str(deed)], calls, limited)
