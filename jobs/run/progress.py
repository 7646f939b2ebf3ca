"""Progress of long work: one line that rewrites itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, TextIO

from untold.udfs.llm.calls import CallSettings
from untold.udfs.redaction import redact

# In a log or a pipe lines stay: six a minute are read, those of a terminal, two a second, are not
PLAIN_SECONDS = 10.0
# A shorter wait is over before it is read.
LONG_WAIT_SECONDS = 60.0


class Display:
    """Shows how far a stage is: done of total, calls a second, tokens, cost so far, time left.

    On standard error, so that what a command prints can be piped. Whatever it shows goes through `redact`.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._began = monotonic()
        self._shown = 0.0
        self._line = ""
        self._waiting: str | None = None

    def note(self, text: str) -> None:
        """Shows a line that stays."""
        self._print(text)

    def start(self, stage: str) -> None:
        """Begins a stage."""
        self._began, self._shown, self._line = monotonic(), 0.0, ""
        if not self._terminal:
            self._print(f"{stage}: starting")

    def show(self, event: Mapping[str, Any], settings: CallSettings) -> None:
        """Shows a progress event of the answering process; why nothing is sent is said once, in a line that stays."""
        waiting = why_waiting(event)
        if waiting is not None and self._waiting is None:
            self._print(waiting)
        self._waiting = waiting
        self._line = describe(event, settings, monotonic() - self._began)
        if self._terminal:
            self._stream.write(f"\r\x1b[2K{self._line}")
            self._stream.flush()
        elif monotonic() - self._shown >= PLAIN_SECONDS:
            self._shown = monotonic()
            self._print(self._line)

    def end(self) -> None:
        """Ends a stage; its last line stays."""
        if self._line:
            self._print(self._line)
        self._line = ""

    def _print(self, text: str) -> None:
        """Writes a line over the one that rewrites itself. Whoever stopped reading does not end the run."""
        before = "\r\x1b[2K" if self._terminal else ""
        with suppress(BrokenPipeError):
            self._stream.write(f"{before}{redact(text)}\n")
            self._stream.flush()


def describe(event: Mapping[str, Any], settings: CallSettings, seconds: float) -> str:
    """The line for a progress event after so many seconds of the stage."""
    tally, total = event["tally"], event["total"]
    done, calls = tally["done"], tally["calls"]
    tokens = tally["prompt_tokens"] + tally["completion_tokens"]
    parts = [
        f"{event['stage']}: {done:,} / {total:,}",
        f"{calls / max(seconds, 0.1):,.1f} calls/s",
        f"{tokens:,} tokens",
    ]
    cost = settings.prices.cost(tally["prompt_tokens"], tally["completion_tokens"], calls)
    if cost is not None:
        parts.append(f"cost {cost:.4f}")
    if tally["failed"]:
        parts.append(f"{tally['failed']:,} failed")
    if tally["rate_limited"]:
        parts.append(f"{tally['rate_limited']:,} rate limited")
    if event.get("paused", 0.0) > LONG_WAIT_SECONDS:
        parts.append(f"paused by the endpoint for {_clock(event['paused'])}")
    # By the mean so far, which is too long at first: the first requests wait for the start of actors
    if 0 < done < total:
        parts.append(f"{_clock(seconds * (total - done) / done)} left")
    return ", ".join(parts)


def why_waiting(event: Mapping[str, Any]) -> str | None:
    """Why nothing is sent for longer than a moment, and for how long; None where that is not so."""
    if event.get("trouble"):
        unwritten = event["unwritten"]
        return f"{unwritten:,} answers cannot be written ({event['trouble']}); they are kept, and tried again"
    if event.get("paused", 0.0) > LONG_WAIT_SECONDS:
        return f"the endpoint asks to wait (Retry-After): nothing is sent for {_clock(event['paused'])}"
    return None


def _clock(seconds: float) -> str:
    """Seconds as minutes and hours.

    >>> _clock(59.6), _clock(3661)
    ('1:00', '1:01:01')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
