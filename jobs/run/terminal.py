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

# Of a terminal that does not say how wide it is
USUAL_COLUMNS = 80
# Room for the longest head and some of a name; a narrower terminal wraps lines
FEWEST_COLUMNS = 20
# Where names would get fewer columns, the cells of a row stand below each other
SHORTEST_NAME = 8
# How much of a long name is taken from its beginning. The second and third are for names that the first makes alike
SHARES = (0.5, 0.2, 0.8)
GAP = "  "


@dataclass(frozen=True)
class Page:
    """What lines are printed on. `width` is its columns, None for a pipe or a file: there nothing is cut."""

    width: int | None = None
    encoding: str = "utf-8"

    @property
    def ellipsis(self) -> str:
        """What stands for the middle of a text that was cut."""
        return "…" if visible("…", self.encoding) == "…" else "..."


def page_of(stream: TextIO) -> Page:
    """The page that a stream is now: as wide as its terminal, and at most COLUMNS where that is set."""
    columns = os.environ.get("COLUMNS", "")
    widths = [int(columns)] if columns.isdecimal() else []
    if stream.isatty():
        with suppress(OSError):
            widths.append(os.get_terminal_size(stream.fileno()).columns)
        widths = [width for width in widths if width] or [USUAL_COLUMNS]
    return Page(min(filter(None, widths), default=None), getattr(stream, "encoding", None) or "utf-8")


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines on standard output; what its encoding lacks is escaped."""
    encoding = page_of(sys.stdout).encoding
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def amount(count: int, one: str, many: str | None = None) -> str:
    """A number and its noun.

    >>> amount(1, "sample"), amount(2000, "sample"), amount(0, "query", "queries")
    ('1 sample', '2,000 samples', '0 queries')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def wrapped(text: str, page: Page, *, indent: int = 0) -> list[str]:
    """A text as lines that fit the page; those after the first are indented. Long words, such as paths, stay whole."""
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
    """The lines of a table: its heads, then a line a row.

    The first `names` columns and the last `texts` columns are set to the left, the numbers between them to the right.
    Where the page is too narrow, names are cut in the middle, no two to the same text, nor to that of one of `among`.
    Where that is not enough, the cells of a row stand below each other.

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
    """The columns that each column of a table gets: names share what numbers leave, and the longest give way first.

    None where names would become shorter than `SHORTEST_NAME`.
    """
    room = width - sum(needs[names:]) - len(GAP) * (len(needs) - 1)
    longest = min(max(needs[:names], default=0), width)
    while longest > SHORTEST_NAME and sum(min(need, longest) for need in needs[:names]) > room:
        longest -= 1
    limits = [min(need, longest) for need in needs[:names]]
    return [*limits, *needs[names:]] if sum(limits) <= room else None


def _stacked(heads: Sequence[str], columns: Sequence[list[str]], page: Page, names: int, width: int) -> list[str]:
    """The rows as blocks of lines, one a cell, with an empty line between them."""
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
    """What is shown of names in columns of some widths; names that would be shown alike get numbers."""
    for share in (*SHARES, SHARES[0]):
        shown = _shown(columns, widths, page, share, {})
        alike = _alike(columns, shown)
        if not alike:
            return shown
    numbers = {name: f"~{number}" for number, name in enumerate(dict.fromkeys(chain(*columns)), start=1)}
    numbered = _shown(columns, widths, page, SHARES[0], {name: numbers[name] for name in alike})
    # A name may look like another with its number
    return _shown(columns, widths, page, SHARES[0], numbers) if _alike(columns, numbered) else numbered


def _shown(
    columns: Sequence[Sequence[str]], widths: Sequence[int | None], page: Page, share: float, marks: Mapping[str, str]
) -> list[list[str]]:
    """What is shown of names, with the marks behind those that have one."""

    def show(name: str, width: int | None) -> str:
        text, mark = visible(name, page.encoding), marks.get(name, "")
        return text + mark if width is None else cut(text, width - len(mark), share, page.ellipsis) + mark

    return [[show(name, width) for name in column] for column, width in zip(columns, widths, strict=True)]


def _alike(columns: Sequence[Sequence[str]], shown: Sequence[Sequence[str]]) -> set[str]:
    """The names that are shown as another one is."""
    owners: dict[str, set[str]] = {}
    for name, text in zip(chain(*columns), chain(*shown), strict=True):
        owners.setdefault(text.strip(), set()).add(name)
    return {name for names in owners.values() if len(names) > 1 for name in names}


def cut(text: str, width: int, share: float = SHARES[0], mark: str = "…") -> str:
    """The text in at most so many columns. What is too long lacks its middle; `share` of it is its beginning.

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
    """The beginning of a text that so many columns have room for."""
    return text[: sum(end <= width for end in accumulate(map(_columns, text)))]


def width_of(text: str) -> int:
    """The columns that a terminal shows a text in.

    >>> width_of("model"), width_of("模型")
    (5, 4)
    """
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    """Two for a wide character, none for a mark that stands on another."""
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def visible(text: str, encoding: str = "utf-8") -> str:
    r"""The text on one line. What a terminal would not show as itself is escaped.

    >>> visible("two\nlines")
    'two\\nlines'
    """
    if not text.isprintable():
        text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _aligned(cells: Sequence[str], *, right: bool) -> list[str]:
    """The cells of a column in one width."""
    width = max(map(width_of, cells))
    blanks = (" " * (width - width_of(cell)) for cell in cells)
    return [blank + cell if right else cell + blank for cell, blank in zip(cells, blanks, strict=True)]


# In a log or a pipe lines stay: two a minute are read, those of a terminal, two a second, are not
PLAIN_SECONDS = 30.0
# A shorter wait is over before it is read.
LONG_WAIT_SECONDS = 60.0
# What a line that is too long leaves out, the first of it first
LEAST = ("tokens", "calls", "limited", "cost", "paused", "failed")
CLEAR = "\r\x1b[2K"
# After so many times the wait for the first answer, the pace is that of the later half of the time
SETTLED = 10
MOST_RISES = 256


@dataclass
class RunProgress:
    """How far a run is in its stages. `total`: how many it has, 0 where that is not known."""

    total: int = 0
    begun: set[tuple[str, str]] = field(default_factory=set)
    # Metrics are scored side by side, each in a thread
    _own: threading.local = field(default_factory=threading.local)

    @property
    def metric(self) -> str:
        """Whose the stages of this thread are."""
        metric: str = getattr(self._own, "metric", "")
        return metric

    def enter(self, metric: str) -> None:
        """Says whose the stages of this thread are from here on."""
        self._own.metric = metric

    def begin(self, stage: str) -> None:
        """Counts a stage of the metric; one that is asked in several turns is counted once."""
        self.begun.add((self.metric, stage))

    def describe(self, stage: str) -> str:
        """What the stage is called: its number, its metric, its name."""
        number = f"stage {len(self.begun)} of {max(self.total, len(self.begun))}, " if self.total else ""
        return visible(f"{number}{self.metric} {stage}" if self.metric else f"{number}{stage}")

    def left(self, seconds: float | None) -> str | None:
        """What is said of the seconds that are left of the stage; later ones are not known before they begin."""
        if seconds is None:
            return None
        return f"{clock(seconds)} left{' of this stage' if self.total > len(self.begun) else ''}"


class Pace:
    """How fast a stage goes: how much was done when, from the moment at which the first request was under way.

    Before that actors start, which says nothing of the requests. Answers come in bursts where many are asked at once,
    so that what counts are the moments at which more is done, and not the time since.
    """

    def __init__(self, now: float) -> None:
        self._idle = self._now = now
        self._rises: list[tuple[float, int]] = []
        self._longest = 0.0
        self._in_flight = 0

    def see(self, now: float, done: int, in_flight: int) -> None:
        """Takes how much is done now, and how many requests are being asked."""
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
        """The seconds until all is done; None before the second answer, and once all is."""
        if len(self._rises) < 3 or self._rises[-1][1] >= total:
            return None
        last, done = self._rises[-1]
        # What stands still longer than ever is not about to go on
        waited = self._now - last if self._now - last <= self._longest else 0.0
        return max((total - done) / self._a_second() - waited, 0.0)

    def _a_second(self) -> float:
        """How much is done a second: of late where the stage has settled, else so far."""
        (began, _), (first, early), (last, done) = self._rises[0], self._rises[1], self._rises[-1]
        if last - began >= SETTLED * (first - began):
            since, before = next(one for one in reversed(self._rises) if one[0] <= (began + last) / 2)
            return (done - before) / (last - since)
        # The first answer takes longer where caches are cold, and may be one of many that come at once
        return max(done / (last - began), (done - early - max(self._in_flight - 1, 0)) / (last - first))


class Display:
    """Shows what a command is at, and how far a stage is: done of total, calls a second, tokens, cost, time left.

    On standard error, so that what a command prints can be piped. Whatever it shows goes through `redact`. As a context
    manager it takes its line off the terminal at its end.
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
        """Shows a line that stays."""
        self._print(text)

    def status(self, text: str) -> None:
        """Shows what is done now, on a terminal alone, until something else is shown. A stage that is asked stays."""
        if self._terminal and not self._parts:
            self._draw({"stage": f"{text} ..."})

    def start(self, stage: str) -> None:
        """Begins to ask a stage."""
        self._began, self._shown, self._parts = monotonic(), 0.0, {}
        self._pace = Pace(self._began)
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
        self._parts = describe(event, monotonic() - self._began, self.course, self._left(event))
        if self._terminal:
            self._draw(self._parts)
        elif monotonic() - self._shown >= PLAIN_SECONDS:
            self._shown = monotonic()
            self._print(", ".join(self._parts.values()))

    def end(self) -> None:
        """Ends a stage; its last line stays."""
        if self._parts:
            parts = {**self._parts, "left": f"took {clock(monotonic() - self._began)}"}
            self._print(fit(parts, self._width) if self._terminal else ", ".join(parts.values()))
        self._parts = {}

    def _left(self, event: Mapping[str, Any]) -> float | None:
        """The seconds that are left of the stage; at least those for which the endpoint asks to be left alone."""
        self._pace.see(monotonic(), event["usage"]["done"], event.get("in_flight", 0))
        left = self._pace.left(event["total"])
        return None if left is None else max(left, event.get("paused", 0.0))

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


def describe(
    event: Mapping[str, Any], seconds: float, course: RunProgress, left: float | None = None
) -> dict[str, str]:
    """The parts of the line for a progress event after so many seconds of the stage, by what they tell.

    left: the seconds until the stage is done.
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
    """Calls a second, or a minute where these would be less than one.

    >>> _rate(12.34), _rate(0.025)
    ('12.3 calls/s', '1.5 calls/min')
    """
    return f"{a_second:,.1f} calls/s" if a_second >= 1 else f"{60 * a_second:,.1f} calls/min"


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
        return f"{unwritten} cannot be written ({event['trouble']}). Untold keeps them and tries again"
    if event.get("paused", 0.0) > LONG_WAIT_SECONDS:
        return f"the endpoint asks to wait (Retry-After), so no request is sent for {clock(event['paused'])}"
    return None


def clock(seconds: float) -> str:
    """Seconds as minutes and hours.

    >>> clock(59.6), clock(3661)
    ('1:00', '1:01:01')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
