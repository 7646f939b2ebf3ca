"""Cut texts into facts: as lists and tables, by sentences, or by a model's extraction (methods, section 13)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Literal

from untold.udfs.recall.fact_texts import Fact, fact_of, match_form, name_of, shown_form
from untold.udfs.texts import sentence_ends, table_cells, with_breaks, without_struck

# Two lines that begin like items make a list
FEWEST_ITEMS = 2
# Numbers within a line: two could be a date or a version
FEWEST_NUMBERS = 3
# Columns by which a sub-item is indented. One column is a mistake
_NESTED = 2
# The maximum number of parent names of an item, so that deep lists need no quadratic space
_MOST_PARENTS = 3
# Characters of a line that may be wrapped. The next line then belongs to it
_WRAPPED = 60
_ENDS = (".", "!", "?", ":", ";")
_TAB = 4
# A number in square brackets numbers the items, like `1.`. As a span it would be the anchor of every first item
_MARK = re.compile(
    r"(?:[-*+•‣◦▪·]|\d{1,3}[.):]|\(\d{1,3}\)|\[\d{1,3}\]|[A-Za-z]\)|[a-z]\.)(?:\s+\[[ xX✓✔]\])?(?:\s|$)|(?=\[)",
)
# Wide signs have no space after them. In decimals and dates, a digit follows
_WIDE_MARK = re.compile(
    r"\s*(?:[（(]?(?:[\d０-９]{1,3}|[一二三四五六七八九十]{1,3}|[Ａ-Ｚａ-ｚ])[．）、]|[（(][０-９一二三四五六七八九十]{1,3}[）)]"
    r"|[０-９]{1,3}[.):：]|[①-⑳❶-❿])(?![\d０-９])\s*"
)
# `A. Holt climbed it.` begins with an initial: only consecutive letters from A on are marks
_CAPITAL = re.compile(r"(?P<letter>[A-Z])\.\s")
# A heading or bold line with a number is an item, and the text below it is its list
_HEADED = re.compile(r"(?:#{1,6}\s+(?P<bold>\*\*)?|\*\*)\d{1,3}[.)]\s+(?=\S)")
_NUMBER = re.compile(r"(?<![\w.,])(?P<number>\d{1,3})\.\s")
_HEADING = re.compile(r"#{1,6}\s|(?P<bold>\*\*\*?|__)(?!\s)[^*_]+(?P=bold)[:.]?$")
_RULE = re.compile(r"[-*_=~]{3,}|`{3,}\w*")
_COLUMNS = re.compile(r"\|?(?:\s*+:?-++:?\s*+\|)++(?:\s*+:?-++:?)?")
_EMPHASIS = "*_ "


@dataclass
class ListItem:
    """An item or a row in its shown form."""

    lines: list[str]
    # The first lines of its parent items, or the header of its column
    under: tuple[str, ...] = ()
    # Indentation in columns
    indent: int = 0
    # True if the item has sub-items
    parent: bool = False
    # Its last lines without indentation, unchanged, which may be a remark about the whole list
    tail: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the text of all its lines."""
        return " ".join(filter(None, map(str.strip, self.lines)))


@dataclass(frozen=True)
class ListItems:
    """A text as a list: its items, and unchanged paragraphs of prose, in order."""

    parts: tuple[ListItem | str, ...]

    @property
    def items(self) -> tuple[ListItem, ...]:
        """Return only the items."""
        return tuple(part for part in self.parts if isinstance(part, ListItem))


@dataclass(frozen=True)
class _SourceLine:
    """A line in its shown form without its mark, and the unchanged line."""

    text: str
    indent: int
    marked: bool
    raw: str


def read_list(text: str) -> ListItems:
    """Return the items of a text, in their shown form and without marks. Two items make a list.

    Items are lines with a bullet or a number, and rows of tables. If a text has fewer than two of these, the items are
    the parts after `1.`, `2.`, `3.` and so on.

    >>> [item.text for item in read_list("Directors:\\n- Federico Fellini\\n- Agnès Varda (Cléo)\\n\\nBoth won.").items]
    ['Federico Fellini', 'Agnès Varda (Cléo)']
    """
    plain = without_struck(with_breaks(text))
    lines = _lines(plain)
    found = _LineReader(max((len(line.text) for line in lines), default=0)).read(lines)
    return found if len(found.items) >= FEWEST_ITEMS else _numbered_parts(plain) or found


def is_list(text: str) -> bool:
    """Return True if a text has at least two items."""
    return len(read_list(text).items) >= FEWEST_ITEMS


def ends_with_colon(shown: str) -> bool:
    """Return True if a text in its shown form ends with a colon."""
    return shown.rstrip(_EMPHASIS).endswith(":")


def _lines(text: str) -> list[_SourceLine]:
    lines = [(line, shown_form(line)) for line in text.splitlines()]
    counted = _count_from_a([found["letter"] for _, shown in lines if (found := _CAPITAL.match(shown))])
    return [_line(raw, shown, lettered=counted) for raw, shown in lines]


def _count_from_a(letters: Sequence[str]) -> bool:
    """Return True if letters are consecutive from A on, in one or several lists."""
    steps = all(later in ("A", chr(ord(earlier) + 1)) for earlier, later in pairwise(letters))
    return letters[:1] == ["A"] and "B" in letters and steps


def _line(raw: str, shown: str, *, lettered: bool) -> _SourceLine:
    """Return the line with its mark removed. `lettered`: capital letters are marks."""
    if _RULE.fullmatch(shown):
        return _SourceLine("", 0, False, "")
    if headed := _HEADED.match(shown):
        # Above all others, so that the items below it are its sub-items
        bold = "**" if headed["bold"] or shown.startswith("**") else ""
        return _SourceLine(bold + shown[headed.end() :], -_NESTED, True, raw)
    expanded = raw.expandtabs(_TAB) if raw[:1].isspace() else raw
    indent = len(expanded) - len(expanded.lstrip())
    if wide := _WIDE_MARK.match(raw):
        return _SourceLine(shown_form(raw[wide.end() :]), indent, True, raw)
    mark = _MARK.match(shown) or (_CAPITAL.match(shown) if lettered else None)
    return _SourceLine(shown[mark.end() :] if mark else shown, indent, mark is not None, raw)


@dataclass
class _LineReader:
    """Reads lines into items and paragraphs."""

    # The length of the longest line, in characters
    width: int
    parts: list[ListItem | list[str]] = field(default_factory=list)
    # The possible parents of the next line, outermost first
    open: list[ListItem] = field(default_factory=list)
    after_blank: bool = False

    def read(self, lines: Sequence[_SourceLine]) -> ListItems:
        place = 0
        while place < len(lines):
            end = _end_of_table(lines, place)
            if end > place:
                self.open.clear()
                self.parts += _rows([line.raw for line in lines[place:end]])
            else:
                self._add(lines[place])
            place = max(end, place + 1)
        parts = ("\n".join(part) if isinstance(part, list) else part for part in _without_remarks(self.parts))
        return ListItems(tuple(part for part in parts if (part.text if isinstance(part, ListItem) else part)))

    def _add(self, line: _SourceLine) -> None:
        if line.marked:
            self._begin(line)
        elif line.text and not self._continue(line):
            self._say(line)
        self.after_blank = not line.marked and not line.text

    def _begin(self, line: _SourceLine) -> None:
        """Start an item below the items with less indentation."""
        while self.open and line.indent < self.open[-1].indent + _NESTED:
            self.open.pop()
        if self.open:
            self.open[-1].parent = True
        parents = tuple(item.lines[0] for item in self.open[-_MOST_PARENTS:])
        self.open.append(ListItem([line.text], parents, line.indent))
        self.parts.append(self.open[-1])

    def _continue(self, line: _SourceLine) -> bool:
        """Add a line to an open item if it is part of it: below and indented, or next and not a heading."""
        heading = is_heading(line.text) and not line.text[0].islower()
        if any(0 <= item.indent < line.indent for item in self.open):
            while not 0 <= self.open[-1].indent < line.indent:
                self.open.pop()
            if not heading:
                self.open[-1].lines.append(line.text)
                self.open[-1].tail.clear()
            return True
        if heading or self.after_blank or not self.open or line.indent < self.open[-1].indent:
            return False
        item = self.open[-1]
        if item.tail or not self._goes_on(item.lines[-1], line.text):
            item.tail.append(line.raw)
        item.lines.append(line.text)
        return True

    def _goes_on(self, above: str, text: str) -> bool:
        """Return True if a line continues a sentence: it is in lower case, or the line above was full."""
        wrapped = len(above) >= _WRAPPED and len(above) + len(text.split()[0]) >= self.width
        return text[0].islower() or (wrapped and not above.endswith(_ENDS))

    def _say(self, line: _SourceLine) -> None:
        """Add a line of prose. A heading is skipped, and a heading with a colon drops its paragraph."""
        self.open.clear()
        if self.after_blank or not self.parts or isinstance(self.parts[-1], ListItem):
            self.parts.append([])
        paragraph = self.parts[-1]
        assert isinstance(paragraph, list)
        if ends_with_colon(line.text):
            paragraph.clear()
        elif not is_heading(line.text):
            paragraph.append(line.raw)


def is_heading(shown: str) -> bool:
    """Return True if a line is all bold, ends with a colon, or is a heading of Markdown."""
    return _HEADING.match(shown) is not None or ends_with_colon(shown)


def _without_remarks(parts: Sequence[ListItem | list[str]]) -> Iterator[ListItem | list[str]]:
    """Yield the parts. Lines directly after the last item become a paragraph, unless other items have such lines."""
    tails = [part.tail if isinstance(part, ListItem) else [] for part in parts]
    ends = [not isinstance(below, ListItem) for below in parts[1:]] + [True]
    common = any(tail and not end for tail, end in zip(tails, ends, strict=False))
    for part, end in zip(parts, ends, strict=False):
        yield part
        if isinstance(part, ListItem) and part.tail and end and not common:
            del part.lines[-len(part.tail) :]
            yield part.tail


def _end_of_table(lines: Sequence[_SourceLine], start: int) -> int:
    """Return the end of the table that starts at a line, or `start` if there is none."""
    if start + 1 >= len(lines) or "|" not in lines[start].raw or not _COLUMNS.fullmatch(lines[start + 1].raw.strip()):
        return start
    return next((place for place in range(start + 2, len(lines)) if "|" not in lines[place].raw), len(lines))


def _rows(table: Sequence[str]) -> Iterator[ListItem]:
    """Yield the rows of a table, each cell after its header. A column that numbers the rows is left out."""
    header, _, *rows = map(_cells, table)
    if [row[0] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]:
        header, *rows = (cells[1:] for cells in (header, *rows))
    for first, *others in filter(None, rows):
        said = [
            f"{name}: {cell}" if name else cell for name, cell in zip_longest(header[1:], others, fillvalue="") if cell
        ]
        text = ": ".join(filter(None, [first, "; ".join(said)]))
        yield ListItem([text], tuple(header[:1]) if first and header and header[0] else ())


def _cells(row: str) -> list[str]:
    """Return the cells of a row in their shown form, without bold type."""
    return [shown_form(cell).strip(_EMPHASIS) for cell in table_cells(row)]


def _numbered_parts(text: str) -> ListItems | None:
    """Return the parts after the consecutive numbers from 1, or None if there are fewer than three."""
    shown = shown_form(text)
    places = list(_numbers_in_order(shown))
    if len(places) < FEWEST_NUMBERS:
        return None
    ends = [start for start, _ in places[1:]] + [len(shown)]
    items = (ListItem([shown[behind:end].strip()]) for (_, behind), end in zip(places, ends, strict=True))
    before = shown[: places[0][0]].strip()
    prose = [before] if before and not ends_with_colon(before) else []
    return ListItems((*prose, *(item for item in items if item.text)))


def _numbers_in_order(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of `1.`, the next `2.` after it, and so on."""
    wanted = 1
    for found in _NUMBER.finditer(text):
        if int(found["number"]) == wanted:
            yield found.span()
            wanted += 1


Segmentation = Literal["list", "sentences", "atomic"]
Choice = Literal["auto", "list", "sentences", "atomic"]
# The tokenizer's time is quadratic in the length of a word: 16,000 signs took 0.2 s. No sentence is this long
_LONGEST_PIECE = 5_000


def choose_segmentation(wanted: Choice, response: str, references: str | None) -> Segmentation:
    """Return the segmentation of a sample's texts. references: their text, None if they are given as a list.

    `auto` follows the references: list if both are lists, sentences for given references, otherwise atomic.
    """
    if wanted != "auto":
        return wanted
    given = references is None
    if is_list(response) and (given or is_list(str(references))):
        return "list"
    return "sentences" if given else "atomic"


def cut(text: str, segmentation: Segmentation, anchor_words: int) -> list[Fact]:
    """Return the facts of a text by its list or its sentences, in order. `atomic` needs a model and returns none.

    In list mode, a text without items and the prose around items are cut by sentences. A single item is an item.
    """
    if segmentation == "atomic":
        return []
    found = read_list(text) if segmentation == "list" else None
    if found is None or not found.items:
        return free_facts(sentences(text))
    return [fact for part in found.parts for fact in _facts_of(part, anchor_words)]


def _facts_of(part: ListItem | str, anchor_words: int) -> list[Fact]:
    """Return the facts of an item or of prose. An item that only names or announces its sub-items has none."""
    if isinstance(part, str):
        return free_facts(sentences(part))
    names = [name for line in part.under if (name := name_of(line, anchor_words))]
    fact = fact_of(part.text, anchor_words, names)
    return [] if ends_with_colon(part.text) or (part.parent and not fact.evidence) else [fact]


def free_facts(texts: Iterable[str]) -> list[Fact]:
    """Return facts from free text."""
    return [Fact(shown_form(text), free=True) for text in texts]


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, line by line.

    >>> list(sentences("Dr. Varda filmed it. It rained.\\nThe end"))
    ['Dr. Varda filmed it.', 'It rained.', 'The end']
    """
    # Imported here because its model loads slowly, and no other metric needs it
    from nupunkt import sent_tokenize

    for line in text.splitlines():
        for piece in _pieces(line):
            yield from (str(sentence).strip() for sentence in sent_tokenize(piece))


def distinct_facts(facts: Iterable[Fact]) -> list[Fact]:
    """Return the facts in order, without duplicates by match form and facts without a match form."""
    first: dict[str, Fact] = {}
    for fact in facts:
        first.setdefault(match_form(fact.text), fact)
    return [fact for form, fact in first.items() if form]


def _pieces(line: str) -> Iterator[str]:
    """Yield a line in pieces for the tokenizer: cut at `sentence_ends`, and at a space if there is one."""
    for start, end in pairwise([0, *sentence_ends(line), len(line)]):
        piece = line[start:end]
        while len(piece) > _LONGEST_PIECE:
            cut_at = piece.rfind(" ", 1, _LONGEST_PIECE) + 1 or _LONGEST_PIECE
            yield piece[:cut_at]
            piece = piece[cut_at:]
        yield piece
