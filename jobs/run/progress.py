"""Progress of long work: one line that rewrites itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TextIO

from untold.jobs.run.terminal import amount, cut, page_of, visible, width_of
from untold.udfs.llm.tokens import shown_tokens
from untold.udfs.llm.usage import Usage
from untold.udfs.redaction import redact

# In a log or a pipe lines stay: six a minute are read, those of a terminal, two a second, are not
PLAIN_SECONDS = 10.0
# A shorter wait is over before it is read.
LONG_WAIT_SECONDS = 60.0
# What a line that is too long leaves out, the first of it first
LEAST = ("tokens", "calls", "limited", "cost", "paused", "failed")
CLEAR = "\r\x1b[2K"


@dataclass
class Course:
    """How far a run is in its stages. `total`: how many it has, 0 where that is not known; `metric`: whose they are."""

    total: int = 0
    metric: str = ""
    begun: set[tuple[str, str]] = field(default_factory=set)
    # Of the stages that were asked and have ended
    ended: int = 0
    seconds: float = 0.0

    def begin(self, stage: str) -> None:
        """Counts a stage of the metric; one that is asked in several turns is counted once."""
        self.begun.add((self.metric, stage))

    def describe(self, stage: str) -> str:
        """What the stage is called: its number, its metric, its name."""
        number = f"stage {len(self.begun)} of {max(self.total, len(self.begun))}, " if self.total else ""
        return visible(f"{number}{self.metric} {stage}" if self.metric else f"{number}{stage}")

    def left(self, seconds: float, done: int, total: int) -> str | None:
        """The time that is left over all stages, after so many seconds of this one; None while nothing is done.

        By the mean so far, which is too long at first: the first requests wait for the start of actors. Stages that
        were not asked yet are taken to be as long as those that were.
        """
        if not 0 < done <= total:
            return None
        own = seconds * (total - done) / done
        later = max(0, self.total - len(self.begun))
        if not later:
            return f"{clock(own)} left" if done < total else None
        mean = (self.seconds + seconds + own) / (self.ended + 1)
        return f"about {clock(own + later * mean)} left"


class Display:
    """Shows what a command is at, and how far a stage is: done of total, calls a second, tokens, cost, time left.

    On standard error, so that what a command prints can be piped. Whatever it shows goes through `redact`. As a context
    manager it takes its line off the terminal at its end.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._began = monotonic()
        self._shown = 0.0
        self._parts: Mapping[str, str] = {}
        self._waiting: str | None = None
        self._drawn = False
        self.course = Course()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._write(CLEAR)
            self._drawn = False

    def note(self, text: str) -> None:
        """Shows a line that stays."""
        self._print(text)

    def status(self, text: str) -> None:
        """Shows what is done now, on a terminal alone, until something else is shown."""
        if self._terminal:
            self._draw({"stage": f"{text} ..."})

    def start(self, stage: str) -> None:
        """Begins to ask a stage."""
        self._began, self._shown, self._parts = monotonic(), 0.0, {}
        text = f"{self.course.describe(stage)}: starting"
        if self._terminal:
            self.status(text)
        else:
            self._print(text)

    def show(self, event: Mapping[str, Any]) -> None:
        """Shows a progress event of the answering process; why nothing is sent is said once, in a line that stays."""
        waiting = why_waiting(event)
        if waiting is not None and self._waiting is None:
            self._print(waiting)
        self._waiting = waiting
        self._parts = describe(event, monotonic() - self._began, self.course)
        if self._terminal:
            self._draw(self._parts)
        elif monotonic() - self._shown >= PLAIN_SECONDS:
            self._shown = monotonic()
            self._print(", ".join(self._parts.values()))

    def end(self) -> None:
        """Ends a stage; its last line stays."""
        if self._parts:
            self.course.ended += 1
            self.course.seconds += monotonic() - self._began
            self._print(fit(self._parts, self._width) if self._terminal else ", ".join(self._parts.values()))
        self._parts = {}

    @property
    def _width(self) -> int:
        """One column less than the terminal has now: some begin the next line once the last column is written."""
        return (page_of(self._stream).width or 0) - 1

    def _draw(self, parts: Mapping[str, str]) -> None:
        """Rewrites the line."""
        self._write(f"{CLEAR}{fit(parts, self._width)}")
        self._drawn = True

    def _print(self, text: str) -> None:
        """Writes a line over the one that rewrites itself."""
        self._write(f"{CLEAR if self._terminal else ''}{redact(text)}\n")
        self._drawn = False

    def _write(self, text: str) -> None:
        """Writes, if anybody reads, and if this is not the handler of a signal that came while a line was written."""
        with suppress(BrokenPipeError, RuntimeError):
            self._stream.write(text)
            self._stream.flush()


def describe(event: Mapping[str, Any], seconds: float, course: Course) -> dict[str, str]:
    """The parts of the line for a progress event after so many seconds of the stage, by what they tell."""
    used, total = Usage(**event["usage"]), event["total"]
    paused = event.get("paused", 0.0)
    parts = {
        "stage": f"{course.describe(event['stage'])}: {used.done:,} / {total:,}",
        "calls": f"{used.calls / max(seconds, 0.1):,.1f} calls/s",
        "tokens": f"{shown_tokens(used.tokens, estimated=used.estimated)} tokens",
        "cost": None if used.cost is None else f"cost {used.cost:.4f}",
        "failed": f"{used.failed:,} failed" if used.failed else None,
        "limited": f"{used.rate_limited:,} rate limited" if used.rate_limited else None,
        "paused": f"paused by the endpoint for {clock(paused)}" if paused > LONG_WAIT_SECONDS else None,
        "left": course.left(seconds, used.done, total),
    }
    return {name: part for name, part in parts.items() if part is not None}


def fit(parts: Mapping[str, str], width: int) -> str:
    """The line in so many columns: without what matters least, then with less of the stage's name.

    >>> fit({"stage": "e2e evaluate_coverage: 5 / 10", "calls": "2.0 calls/s", "left": "0:02 left"}, 40)
    'e2e evaluate_coverage: 5 / 10, 0:02 left'
    """
    kept = {name: redact(part) for name, part in parts.items()}
    for name in LEAST:
        if width_of(", ".join(kept.values())) <= width:
            break
        kept.pop(name, None)
    line = ", ".join(kept.values())
    name, colon, numbers = line.rpartition(": ")
    room = width - len(f"{colon}{numbers}")
    return cut(f"{cut(name, room)}{colon}{numbers}" if 0 < room < width_of(name) else line, width)


def why_waiting(event: Mapping[str, Any]) -> str | None:
    """Why nothing is sent for longer than a moment, and for how long; None where that is not so."""
    if event.get("trouble"):
        unwritten = amount(event["unwritten"], "answer")
        return f"{unwritten} cannot be written ({event['trouble']}); kept, and tried again"
    if event.get("paused", 0.0) > LONG_WAIT_SECONDS:
        return f"the endpoint asks to wait (Retry-After): nothing is sent for {clock(event['paused'])}"
    return None


def clock(seconds: float) -> str:
    """Seconds as minutes and hours.

    >>> clock(59.6), clock(3661)
    ('1:00', '1:01:01')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
