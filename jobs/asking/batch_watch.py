"""Who waits for batches, and for how long an endpoint's faults are borne. Imports no pyspark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from untold.udfs.llm.calls import Answer
from untold.udfs.llm.retrying import is_passing, remedy_of

# An address that never answered is wrong more likely than out
FIRST_OUTAGE_SECONDS = 60.0
# So many batches in a row of which nothing came
FRUITLESS = 3
NO_BATCHES = "if the endpoint has no batches, set llm.delivery to calls"
REMEDIES = {
    **dict.fromkeys(("http_400", "http_404", "http_405"), NO_BATCHES),
    "http_413": "lower batch.requests or batch.bytes",
}


@dataclass(frozen=True)
class Watch:
    """Who waits for batches: whether to stop, what takes progress, and lines that stay."""

    stopped: Callable[[], str | None]
    show: Callable[[Mapping[str, Any]], None]
    note: Callable[[str], None]


class EndedError(Exception):
    """The job ends early, for a reason of `Outcome` and with an error."""

    def __init__(self, reason: str, error: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.error = reason, error


class Patience:
    """What has gone wrong at an endpoint that may be away for `outage` seconds.

    `faults`: so many since it answered last. `held_until`: until when it asked to be left alone.
    """

    def __init__(self, outage: float) -> None:
        self.faults, self.held_until = 0, 0.0
        self._outage = outage
        self._first, self._reached, self._fruitless = 0.0, False, 0

    @property
    def is_held(self) -> bool:
        """Whether the endpoint is left alone."""
        return monotonic() < self.held_until

    def hear(self) -> None:
        """Takes that the endpoint answered."""
        self.faults, self._reached = 0, True

    def bear(self, answer: Answer) -> None:
        """Takes an error of the endpoint, which passes. Raises EndedError for others, and where it lasts too long."""
        if answer.refused or not is_passing(answer.error_type):
            remedy = REMEDIES.get(answer.error_type or "") or remedy_of(answer)
            raise EndedError("refused", f"{answer.error}; {remedy}")
        now, most = monotonic(), self._outage
        if answer.retry_after:
            self.held_until = max(self.held_until, now + answer.retry_after)
        self._first = self._first if self.faults else now
        self.faults += 1
        if self.faults > 1 and now - self._first >= (most if self._reached else min(most, FIRST_OUTAGE_SECONDS)):
            raise EndedError("outage")

    def read(self, *, came: bool) -> None:
        """Takes whether anything came of a batch. Raises EndedError where nothing did of several in a row."""
        self._fruitless = 0 if came else self._fruitless + 1
        if self._fruitless >= FRUITLESS:
            raise EndedError("outage")
