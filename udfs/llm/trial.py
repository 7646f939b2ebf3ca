"""Finding out what an endpoint makes of a schema, by its first answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from untold.udfs.llm.calls import Answer, Request
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.structure import BROKEN, IGNORED, REFUSED, TAKEN, Finding
from untold.udfs.ratings import SCALE, read_alternatives
from untold.udfs.stages.schemas import SCHEMA, read_as


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
        self.over = False
        self._empty: str | None = None

    def hear(self, request: Request, answer: Answer, *, completed: bool) -> None:
        """Notes what the first answer says, or a refusal before any completion. Being told to wait says nothing.

        Nor does one request that is answered by nothing; two do.
        """
        first = self.pending and answer.error_type == "empty" and self._empty in (None, request.request_id)
        self._empty = request.request_id if first else self._empty
        if first:
            return
        if self.pending or (self._may_drop and answer.about_schema and not completed):
            self.finding = find(self._stage, answer, request.variables)
            self.over = self.finding is not None and self.finding.changes(self._stage)
            self.pending = answer.error_type == "http_429"
