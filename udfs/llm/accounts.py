"""How an endpoint is called, what an asker has done so far, and what it knows of each request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from udfs.llm.client import Answer
from udfs.llm.limiter import Budget, Limits
from udfs.ratings import read_alternatives


@dataclass(frozen=True)
class CallSettings:
    """How the endpoint is called: everything that does not change a completion. Times in seconds."""

    base_url: str
    api_key_env: str | None = None
    timeout: float = 120.0
    deadline: float = 600.0
    outage: float = 600.0
    max_attempts: int = 4
    flush: float = 1.0
    prompt_price: float = 0.0
    completion_price: float = 0.0
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The price of these tokens; prices are per million."""
        return (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / 1e6


@dataclass
class Tally:
    """What one asker did so far. Counts only grow."""

    taken: int = 0
    done: int = 0
    failed: int = 0
    asked: int = 0
    calls: int = 0
    rate_limited: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens_estimated: bool = False

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(Tally)})


@dataclass(frozen=True)
class Progress:
    """A snapshot of an asker: its tally, what waits and is in flight, which units are written, why it stands still."""

    tally: Tally
    queued: int
    in_flight: int
    finished_units: tuple[str, ...]
    refusal: str | None
    refused: str | None
    models: tuple[str, ...]
    answered_ever: bool


@dataclass(slots=True)
class Request:
    """A request while it is asked: what was sent and spent, why it was not answered yet. Times in seconds.

    `turns` are those that followed the prompt, in `rounds` in which the model called tools; `trace` is what these said.
    """

    request_id: str
    variables: Mapping[str, Any]
    unit: str
    body: bytes | None = None
    tokens: int = 0
    reserved: int = 0
    attempts: int = 0
    calls: int = 0
    limited: int = 0
    first_sent: float | None = None
    first_fault: float | None = None
    last: Answer | None = None
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    rounds: int = 0
    turns: list[dict[str, Any]] = field(default_factory=list)
    trace: list[dict[str, str]] = field(default_factory=list)

    def begin_again(self) -> None:
        """Forgets what followed the prompt."""
        self.rounds, self.turns, self.trace = 0, [], []
        self.body, self.tokens = None, 0


@dataclass
class News:
    """What is to be told to the limiter with the next lease."""

    successes: int = 0
    answered: bool = False
    faults: int = 0
    limited: bool = False
    retry_after: float | None = None
    unused_tokens: int = 0
    reserved: int = 0

    def hear(self, *, success: bool) -> None:
        self.successes += success
        self.answered = True
        self.faults = 0


def completion_row(request: Request, answer: Answer, *, rated: bool, run: str) -> tuple[Any, ...]:
    """The row of the table `completions` that a request ends with, in the order of its schema."""
    return (
        request.request_id,
        answer.text,
        answer.finish_reason,
        json.dumps(request.trace, ensure_ascii=False) if request.trace else None,
        read_alternatives(answer.text, answer.logprobs) if rated and answer.text else None,
        answer.model,
        request.prompt_tokens,
        request.cached_prompt_tokens,
        request.completion_tokens,
        request.estimated,
        request.calls,
        monotonic() - request.first_sent if request.first_sent else None,
        datetime.now(UTC),
        answer.error_type,
        answer.error,
        run,
    )
