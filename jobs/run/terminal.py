"""Lines and tables on a terminal: they fit its width, and no two names look alike."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain
from textwrap import wrap
from typing import TextIO

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
    shown = _told_apart([*columns[:names], among], [*limits[:names], longest], page)[:names] + columns[names:]
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
    shown = _told_apart(columns[:names], rooms, page) + list(columns[names:])
    lines: list[str] = []
    for row in zip(*shown, strict=True):
        for place, (head, text) in enumerate(zip(heads, row, strict=True)):
            line = f"{head}: {text}"
            lines += [line] if place < names else wrap(line, width, subsequent_indent=GAP)
        lines.append("")
    return lines[:-1]


def _told_apart(columns: Sequence[Sequence[str]], widths: Sequence[int | None], page: Page) -> list[list[str]]:
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
