"""Learn from the first answers of an endpoint how its requests are sent: with or without schema and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from untold.udfs.llm.calls import Answer, Request
from untold.udfs.llm.keys import MAX_COMPLETION_TOKENS, MAX_TOKENS, SYSTEM, Stage
from untold.udfs.llm.structure import BROKEN, IGNORED, RATING, REFUSED, TAKEN, Finding, Parameters
from untold.udfs.ratings import SCALE, read_alternatives
from untold.udfs.stages.schemas import SCHEMA, read_as

# Parameters that a request can do without
_OPTIONAL = ("temperature", "top_p", "logprobs", "top_logprobs", "seed")
# A completion in fewer tokens is of no use to a stage
LEAST_TOKENS = 16
# Halving an unexplained limit stops here
LEAST_HALF = 256


def find(stage: Stage, answer: Answer, variables: Mapping[str, Any]) -> Finding | None:
    """What an answer to a request with a schema says of the endpoint; None where that is nothing."""
    if stage.structured is None:
        return None
    if answer.about_schema:
        return Finding(REFUSED)
    if answer.misplaced or answer.error_type == "empty":
        return Finding(BROKEN)
    if answer.text is None:
        return None
    if read_as(answer.text, stage.structured["schema"], None, variables) != SCHEMA:
        return Finding(IGNORED)
    return Finding(TAKEN, answer.thinks, _weighs(stage, answer))


def _weighs(stage: Stage, answer: Answer) -> bool | None:
    """Whether a rated stage's answer came with log-probabilities; None where none were asked for."""
    asked = stage.rated and stage.extra_body.get("logprobs") is not False
    rating = asked and answer.text is not None and any(digit in answer.text for digit in SCALE)
    return read_alternatives(answer.text or "", answer.logprobs) is not None if rating else None


def refused_parameters(stage: Stage, answer: Answer) -> Parameters | None:
    """Return how to send the stage after this refusal; None if it names nothing that the stage sends."""
    sends = {**stage.decoding}
    if stage.rated and sends.get("logprobs") is not False:
        sends |= dict.fromkeys(RATING)
    for name in answer.about:
        if name in _OPTIONAL and name in sends and sends[name] is not False:
            return Parameters(dropped=(name,))
        if name == MAX_COMPLETION_TOKENS and MAX_TOKENS in sends and stage.api == "chat":
            return Parameters(limit_name=MAX_COMPLETION_TOKENS)
        if name == "developer" and stage.system_role == SYSTEM and stage.api == "chat":
            return Parameters(system_role="developer")
        if name in (SYSTEM, "developer") and stage.system_role != "user" and stage.api == "chat":
            return Parameters(system_role="user")
        if name == MAX_TOKENS and (smaller := _smaller(stage, answer)):
            return smaller
    return None


def _smaller(stage: Stage, answer: Answer) -> Parameters | None:
    """Return a smaller limit for a stage whose limit is too large: the window, the named limit, or half."""
    if answer.window and stage.window is None:
        return Parameters(window=answer.window)
    if stage.max_tokens is None:
        return None
    sent = stage.most_tokens or stage.max_tokens + stage.reasoning_tokens
    if answer.most_tokens and LEAST_TOKENS <= answer.most_tokens < sent:
        return Parameters(max_tokens=answer.most_tokens)
    half = sent // 2
    return Parameters(max_tokens=half) if half >= LEAST_HALF else None


class Trial:
    """The trial of an endpoint. While it is `pending`, the first request goes alone.

    It is `over` once the stage has to be sent otherwise, and so all of its requests. `may_drop`: the schema may be
    dropped; `may_adapt`: so may parameters.
    """

    def __init__(self, stage: Stage, *, pending: bool, may_drop: bool, may_adapt: bool = False) -> None:
        self._stage, self._may_drop, self._may_adapt = stage, may_drop, may_adapt
        self.pending = pending
        self.finding: Finding | None = None
        self.parameters: Parameters | None = None
        self.over = False
        self._empty: str | None = None

    def hear(self, request: Request, answer: Answer, *, completed: bool) -> None:
        """Note the first answer, or a refusal before any completion. A rate limit says nothing.

        One request with an empty completion says nothing; two do.
        """
        refused = refused_parameters(self._stage, answer) if self._may_adapt and not completed else None
        if refused is not None and refused.changes(self._stage):
            self.parameters, self.over = refused, True
            return
        first = self.pending and answer.error_type == "empty" and self._empty in (None, request.request_id)
        self._empty = request.request_id if first else self._empty
        if first:
            return
        if self.pending or (self._may_drop and answer.about_schema and not completed):
            self.finding = find(self._stage, answer, request.variables)
            self.over = self.finding is not None and self.finding.changes(self._stage)
            self.pending = answer.error_type == "http_429"
