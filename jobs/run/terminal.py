"""Print lines, tables and progress on a terminal."""

from __future__ import annotations

import os
import sys
import threading
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, chain
from textwrap import wrap
from time import monotonic
from typing import Any, TextIO

from untold.udfs.llm.usage import Usage, shown_tokens
from untold.udfs.redaction import redact

# The width of a terminal that does not report its width
USUAL_COLUMNS = 80
# Enough for the longest head and a part of a name. A narrower terminal wraps lines
FEWEST_COLUMNS = 20
# If names would get fewer columns, each cell of a row has its own line
SHORTEST_NAME = 8
# The share of a cut name from its beginning. The second and third are for names that are equal with the first
SHARES = (0.5, 0.2, 0.8)
GAP = "  "


@dataclass(frozen=True)
class Page:
    """The properties of an output of lines. `width` is its columns, None for a pipe or a file, which get full lines."""

    width: int | None = None
    encoding: str = "utf-8"

    @property
    def ellipsis(self) -> str:
        """The mark in place of the middle of a cut text."""
        return "…" if visible("…", self.encoding) == "…" else "..."


def page_of(stream: TextIO) -> Page:
    """Return the page of a stream, with the width of its terminal, and at most COLUMNS if it is set."""
    columns = os.environ.get("COLUMNS", "")
    widths = [int(columns)] if columns.isdecimal() else []
    if stream.isatty():
        with suppress(OSError):
            widths.append(os.get_terminal_size(stream.fileno()).columns)
        widths = [width for width in widths if width] or [USUAL_COLUMNS]
    return Page(min(filter(None, widths), default=None), getattr(stream, "encoding", None) or "utf-8")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to standard output. Characters outside of its encoding are escaped."""
    encoding = page_of(sys.stdout).encoding
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def amount(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun.

    >>> amount(1, "sample"), amount(2000, "sample"), amount(0, "query", "queries")
    ('1 sample', '2,000 samples', '0 queries')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def wrapped(text: str, page: Page, *, indent: int = 0) -> list[str]:
    """Return a text as lines within the width of the page. All lines but the first are indented. Words are not cut."""
    if page.width is None:
        return [text]
    return wrap(text, page.width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    page: Page,
    *,
    names: int = 1,
    texts: int = 0,
    among: Sequence[str] = (),
) -> list[str]:
    """Return the lines of a table: its heads, then one line per row.

    The first `names` columns and the last `texts` columns are aligned left, and the numbers between them right. On a
    narrow page, names are cut in the middle, but no two names (including `among`) to the same text. If this is not
    enough, each cell of a row has its own line.

    >>> print(*table(["system", "n"], [["model-a", "12"], ["a-model-of-a-long-name", "3"]], Page(20)), sep="\\n")
    system             n
    model-a           12
    a-model-…ng-name   3
    """
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in heads]
    limits: Sequence[int | None] = [None] * len(heads)
    if page.width is not None:
        needs = [
            max(width_of(visible(text, page.encoding)) for text in (head, *column))
            for head, column in zip(heads, columns, strict=True)
        ]
        width = max(page.width, FEWEST_COLUMNS)
        given = _limits(needs, names, width)
        if given is None:
            return _stacked(heads, columns, page, names, width)
        limits = given
    longest = max((limit for limit in limits[:names] if limit is not None), default=None)
    shown = _distinguishable([*columns[:names], among], [*limits[:names], longest], page)[:names] + columns[names:]
    whole = [
        [head if limit is None else cut(head, limit, mark=page.ellipsis), *column]
        for head, column, limit in zip(heads, shown, limits, strict=True)
    ]
    aligned = [_aligned(column, right=names <= place < len(heads) - texts) for place, column in enumerate(whole)]
    return [GAP.join(cells).rstrip() for cells in zip(*aligned, strict=True)]


def _limits(needs: Sequence[int], names: int, width: int) -> list[int] | None:
    """Return the widths of the columns of a table. Names share the rest of the width, and the longest are cut first.

    None if names would be shorter than `SHORTEST_NAME`.
    """
    room = width - sum(needs[names:]) - len(GAP) * (len(needs) - 1)
    longest = min(max(needs[:names], default=0), width)
    while longest > SHORTEST_NAME and sum(min(need, longest) for need in needs[:names]) > room:
        longest -= 1
    limits = [min(need, longest) for need in needs[:names]]
    return [*limits, *needs[names:]] if sum(limits) <= room else None


def _stacked(heads: Sequence[str], columns: Sequence[list[str]], page: Page, names: int, width: int) -> list[str]:
    """Return the rows as blocks with one line per cell, and an empty line between blocks."""
    rooms = [width - len(head) - 2 for head in heads[:names]]
    shown = _distinguishable(columns[:names], rooms, page) + list(columns[names:])
    lines: list[str] = []
    for row in zip(*shown, strict=True):
        for place, (head, text) in enumerate(zip(heads, row, strict=True)):
            line = f"{head}: {text}"
            lines += [line] if place < names else wrap(line, width, subsequent_indent=GAP)
        lines.append("")
    return lines[:-1]


def _distinguishable(columns: Sequence[Sequence[str]], widths: Sequence[int | None], page: Page) -> list[list[str]]:
    """Return the names cut to the widths of their columns. Names that would look equal get numbers."""
    for share in (*SHARES, SHARES[0]):
        shown = _shown(columns, widths, page, share, {})
        alike = _alike(columns, shown)
        if not alike:
            return shown
    numbers = {name: f"~{number}" for number, name in enumerate(dict.fromkeys(chain(*columns)), start=1)}
    numbered = _shown(columns, widths, page, SHARES[0], {name: numbers[name] for name in alike})
    # A name can be equal to another name with its number
    return _shown(columns, widths, page, SHARES[0], numbers) if _alike(columns, numbered) else numbered


def _shown(
    columns: Sequence[Sequence[str]], widths: Sequence[int | None], page: Page, share: float, marks: Mapping[str, str]
) -> list[list[str]]:
    """Return the cut names, with their marks at the end."""

    def show(name: str, width: int | None) -> str:
        text, mark = visible(name, page.encoding), marks.get(name, "")
        return text + mark if width is None else cut(text, width - len(mark), share, page.ellipsis) + mark

    return [[show(name, width) for name in column] for column, width in zip(columns, widths, strict=True)]


def _alike(columns: Sequence[Sequence[str]], shown: Sequence[Sequence[str]]) -> set[str]:
    """Return the names that look equal to another name."""
    owners: dict[str, set[str]] = {}
    for name, text in zip(chain(*columns), chain(*shown), strict=True):
        owners.setdefault(text.strip(), set()).add(name)
    return {name for names in owners.values() if len(names) > 1 for name in names}


def cut(text: str, width: int, share: float = SHARES[0], mark: str = "…") -> str:
    """Return the text in at most `width` columns. A long text lacks its middle, and `share` of it is its beginning.

    >>> cut("a-model-of-a-long-name", 12), cut("short", 12)
    ('a-mode…-name', 'short')
    """
    if width_of(text) <= width:
        return text
    room = width - width_of(mark)
    if room < 1:
        return _start(text, width)
    head = _start(text, max(1, round(room * share)))
    return f"{head}{mark}{_start(text[::-1], room - width_of(head))[::-1]}"


def _start(text: str, width: int) -> str:
    """Return the beginning of a text that fits into `width` columns."""
    return text[: sum(end <= width for end in accumulate(map(_columns, text)))]


def width_of(text: str) -> int:
    """Return the number of columns of a text on a terminal.

    >>> width_of("model"), width_of("模型")
    (5, 4)
    """
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    """Return the columns of a character: 2 for a wide one, 0 for a combining mark."""
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def visible(text: str, encoding: str = "utf-8") -> str:
    r"""Return the text on one line. Characters that a terminal does not show are escaped.

    >>> visible("two\nlines")
    'two\\nlines'
    """
    if not text.isprintable():
        text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _aligned(cells: Sequence[str], *, right: bool) -> list[str]:
    """Return the cells of a column padded to one width."""
    width = max(map(width_of, cells))
    blanks = (" " * (width - width_of(cell)) for cell in cells)
    return [blank + cell if right else cell + blank for cell, blank in zip(cells, blanks, strict=True)]


# Seconds between lines in a log or a pipe, because users read them later
PLAIN_SECONDS = 30.0
# Shorter waits are not shown
LONG_WAIT_SECONDS = 60.0
# The parts that a long line leaves out, in this order
LEAST = ("tokens", "calls", "limited", "cost", "paused", "failed")
CLEAR = "\r\x1b[2K"
# After this multiple of the wait for the first completion, the pace is the pace of the later half
SETTLED = 10
MOST_RISES = 256


@dataclass
class RunProgress:
    """The progress of a run in its stages. `total` is the number of stages, 0 if it is unknown."""

    total: int = 0
    begun: set[tuple[str, str]] = field(default_factory=set)
    # Metrics run in parallel threads
    _own: threading.local = field(default_factory=threading.local)

    @property
    def metric(self) -> str:
        """The metric of the stages of this thread."""
        metric: str = getattr(self._own, "metric", "")
        return metric

    def enter(self, metric: str) -> None:
        """Set the metric of the next stages of this thread."""
        self._own.metric = metric

    def begin(self, stage: str) -> None:
        """Count a stage of the metric, once for several calls."""
        self.begun.add((self.metric, stage))

    def describe(self, stage: str) -> str:
        """Return the label of a stage: its number, its metric and its name."""
        number = f"stage {len(self.begun)} of {max(self.total, len(self.begun))}, " if self.total else ""
        return visible(f"{number}{self.metric} {stage}" if self.metric else f"{number}{stage}")

    def left(self, seconds: float | None) -> str | None:
        """Return a text about the remaining seconds of the stage. Later stages are unknown before they begin."""
        if seconds is None:
            return None
        return f"{clock(seconds)} left{' of this stage' if self.total > len(self.begun) else ''}"


class Pace:
    """The pace of a stage: the numbers of finished requests over time, from the first request in flight.

    The start of actors before it does not count. Completions arrive in bursts if many requests are in flight, so only
    the times of completions count, and not the time since the last one.
    """

    def __init__(self, now: float) -> None:
        self._idle = self._now = now
        self._rises: list[tuple[float, int]] = []
        self._longest = 0.0
        self._in_flight = 0

    def see(self, now: float, done: int, in_flight: int) -> None:
        """Record the numbers of finished requests and of requests in flight."""
        self._now, self._in_flight = now, max(self._in_flight, in_flight)
        if not self._rises and not (done or in_flight):
            self._idle = now
            return
        if not self._rises:
            self._rises.append((self._idle, 0))
        if done > self._rises[-1][1]:
            self._longest = max(self._longest, now - self._rises[-1][0])
            self._rises.append((now, done))
        if len(self._rises) > MOST_RISES:
            self._rises = [*self._rises[:2], *self._rises[2::2]]

    def left(self, total: int) -> float | None:
        """Return the seconds until the end. None before the second completion, and at the end."""
        if len(self._rises) < 3 or self._rises[-1][1] >= total:
            return None
        last, done = self._rises[-1]
        # After the longest pause so far, the next completion is not expected soon
        waited = self._now - last if self._now - last <= self._longest else 0.0
        return max((total - done) / self._a_second() - waited, 0.0)

    def _a_second(self) -> float:
        """Return the finished requests per second: of the later half in a long stage, otherwise of the whole time."""
        (began, _), (first, early), (last, done) = self._rises[0], self._rises[1], self._rises[-1]
        if last - began >= SETTLED * (first - began):
            since, before = next(one for one in reversed(self._rises) if one[0] <= (began + last) / 2)
            return (done - before) / (last - since)
        # The first completion takes longer with cold caches, and many others can arrive at the same time
        return max(done / (last - began), (done - early - max(self._in_flight - 1, 0)) / (last - first))


class Display:
    """Show the status of a command and the progress of a stage: requests, calls per second, tokens, cost, time left.

    It writes to standard error, so that users can pipe the output of a command. All texts pass `redact`. As a context
    manager, it removes its line from the terminal at the end.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._began = monotonic()
        self._pace = Pace(self._began)
        self._shown = 0.0
        self._parts: Mapping[str, str] = {}
        self._waiting: str | None = None
        self._drawn = False
        self.course = RunProgress()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._write(CLEAR)
            self._drawn = False

    def note(self, text: str) -> None:
        """Print a permanent line in place of the current one."""
        self._write(f"{CLEAR if self._terminal else ''}{redact(text)}\n")
        self._drawn = False

    def status(self, text: str) -> None:
        """Show the current step on a terminal until the next line. The line of a running stage stays."""
        if self._terminal and not self._parts:
            self._draw({"stage": f"{text} ..."})

    def start(self, stage: str) -> None:
        """Begin a stage."""
        self._began, self._shown, self._parts = monotonic(), 0.0, {}
        self._pace = Pace(self._began)
        text = f"{self.course.describe(stage)}: starting"
        if self._terminal:
            self.status(text)
        else:
            self.note(text)

    def show(self, event: Mapping[str, Any]) -> None:
        """Show a progress event of the actor process. A permanent line reports once why no requests are sent."""
        waiting = why_waiting(event)
        if waiting is not None and self._waiting is None:
            self.note(waiting)
        self._waiting = waiting
        self._parts = describe(event, monotonic() - self._began, self.course, self._left(event))
        if self._terminal:
            self._draw(self._parts)
        elif monotonic() - self._shown >= PLAIN_SECONDS:
            self._shown = monotonic()
            self.note(", ".join(self._parts.values()))

    def end(self) -> None:
        """End a stage. Its last line stays."""
        if self._parts:
            parts = {**self._parts, "left": f"took {clock(monotonic() - self._began)}"}
            self.note(fit(parts, self._width) if self._terminal else ", ".join(parts.values()))
        self._parts = {}

    def _left(self, event: Mapping[str, Any]) -> float | None:
        """Return the remaining seconds of the stage, at least the pause that the endpoint requested."""
        self._pace.see(monotonic(), event["usage"]["done"], event.get("in_flight", 0))
        left = self._pace.left(event["total"])
        return None if left is None else max(left, event.get("paused", 0.0))

    @property
    def _width(self) -> int:
        """The width of the terminal minus one, because some terminals begin the next line after the last column."""
        return (page_of(self._stream).width or 0) - 1

    def _draw(self, parts: Mapping[str, str]) -> None:
        """Replace the current line."""
        self._write(f"{CLEAR}{fit(parts, self._width)}")
        self._drawn = True

    def _write(self, text: str) -> None:
        """Write the text. Ignore a closed pipe, and a signal handler that interrupts another write."""
        with suppress(BrokenPipeError, RuntimeError):
            self._stream.write(text)
            self._stream.flush()


def describe(
    event: Mapping[str, Any], seconds: float, course: RunProgress, left: float | None = None
) -> dict[str, str]:
    """Return the parts of the line for a progress event by name.

    seconds: time since the start of the stage; left: seconds until its end.
    """
    used, total = Usage.of(event["usage"]), event["total"]
    paused = event.get("paused", 0.0)
    parts = {
        "stage": f"{course.describe(event['stage'])}: {used.done:,} / {total:,}",
        "calls": _rate(used.calls / max(seconds, 0.1)),
        "tokens": f"{shown_tokens(used.tokens, estimated=used.estimated)} tokens",
        "cost": None if used.cost is None else f"cost {used.cost:.4f}",
        "failed": f"{used.failed:,} failed" if used.failed else None,
        "limited": f"{used.rate_limited:,} rate limited" if used.rate_limited else None,
        "paused": f"paused by the endpoint for {clock(paused)}" if paused > LONG_WAIT_SECONDS else None,
        "left": course.left(left),
    }
    return {name: part for name, part in parts.items() if part is not None}


def _rate(a_second: float) -> str:
    """Return the calls per second, or per minute if there are fewer than one per second.

    >>> _rate(12.34), _rate(0.025)
    ('12.3 calls/s', '1.5 calls/min')
    """
    return f"{a_second:,.1f} calls/s" if a_second >= 1 else f"{60 * a_second:,.1f} calls/min"


def fit(parts: Mapping[str, str], width: int) -> str:
    """Return the line in `width` columns: without the least important parts, then with a shorter name of the stage.

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
    """Return the reason and the time of a long wait without requests, None if there is none."""
    if event.get("trouble"):
        unwritten = amount(event["unwritten"], "answer")
        return f"{unwritten} cannot be written ({event['trouble']}). Untold keeps them and tries again"
    if event.get("paused", 0.0) > LONG_WAIT_SECONDS:
        return f"the endpoint asks to wait (Retry-After), so no request is sent for {clock(event['paused'])}"
    return None


def clock(seconds: float) -> str:
    """Return seconds as minutes and hours.

    >>> clock(59.6), clock(3661)
    ('1:00', '1:01:01')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
