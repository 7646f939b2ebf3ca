"""Cut texts into facts: as lists and tables, by sentences, or by a model's extraction (methods, section 13)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Literal

from untold.udfs.recall.fact_texts import Fact, fact_of, match_form, name_of, shown_form
from untold.udfs.texts import sentence_ends, with_breaks, without_struck

# Two lines that begin like items make a list
FEWEST_ITEMS = 2
# Numbers within a line: two may be a date or a version
FEWEST_NUMBERS = 3
# Columns that an item is indented by below its parent; one is a slip
_NESTED = 2
# An item carries the names of so many above it, so that deep lists take no quadratic space
_MOST_PARENTS = 3
# Characters of a line that may have been wrapped; the next line then belongs to it
_WRAPPED = 60
_ENDS = (".", "!", "?", ":", ";")
_TAB = 4
# A number in square brackets counts the items, as `1.` does: as a span it would be the anchor of every first item
_MARK = re.compile(
    r"(?:[-*+•‣◦▪·]|\d{1,3}[.):]|\(\d{1,3}\)|\[\d{1,3}\]|[A-Za-z]\)|[a-z]\.)(?:\s+\[[ xX✓✔]\])?(?:\s|$)|(?=\[)",
)
# Wide signs have no space behind them. Numbers of a decimal or of a date have a digit there
_WIDE_MARK = re.compile(
    r"\s*(?:[（(]?(?:[\d０-９]{1,3}|[一二三四五六七八九十]{1,3}|[Ａ-Ｚａ-ｚ])[．）、]|[（(][０-９一二三四五六七八九十]{1,3}[）)]"
    r"|[０-９]{1,3}[.):：]|[①-⑳❶-❿])(?![\d０-９])\s*"
)
# `A. Holt climbed it.` has an initial: only letters that follow each other from A on are marks
_CAPITAL = re.compile(r"(?P<letter>[A-Z])\.\s")
# A number in a heading or in bold type is an item, and what stands below it is its list
_HEADED = re.compile(r"(?:#{1,6}\s+(?P<bold>\*\*)?|\*\*)\d{1,3}[.)]\s+(?=\S)")
_NUMBER = re.compile(r"(?<![\w.,])(?P<number>\d{1,3})\.\s")
_HEADING = re.compile(r"#{1,6}\s|(?P<bold>\*\*\*?|__)(?!\s)[^*_]+(?P=bold)[:.]?$")
_RULE = re.compile(r"[-*_=~]{3,}|`{3,}\w*")
_COLUMNS = re.compile(r"\|?(?:\s*+:?-++:?\s*+\|)++(?:\s*+:?-++:?)?")
_CELL_END = re.compile(r"(?<!\\)\|")
_EMPHASIS = "*_ "


@dataclass
class ListItem:
    """An item or a row in its shown form."""

    lines: list[str]
    # What it stands below: the first lines of the items above it, or the header of its column
    under: tuple[str, ...] = ()
    # Columns
    indent: int = 0
    # Whether other items stand below it
    parent: bool = False
    # Those of its last lines that are not indented and may be a remark on the whole list, as they stand
    tail: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All that it says."""
        return " ".join(filter(None, map(str.strip, self.lines)))


@dataclass(frozen=True)
class ListItems:
    """What a text is as a list: its items, and paragraphs of prose as they stand, in order."""

    parts: tuple[ListItem | str, ...]

    @property
    def items(self) -> tuple[ListItem, ...]:
        """The items alone."""
        return tuple(part for part in self.parts if isinstance(part, ListItem))


@dataclass(frozen=True)
class _SourceLine:
    """A line in its shown form, without its mark where it has one, and as it stands."""

    text: str
    indent: int
    marked: bool
    raw: str


def read_list(text: str) -> ListItems:
    """The items of a text, in their shown form and without bullets and numbers; two make it a list.

    Lines with a bullet or a number, and rows of tables; of a text with fewer than two of these the parts behind `1.`,
    `2.`, `3.` and so on.

    >>> [item.text for item in read_list("Directors:\\n- Federico Fellini\\n- Agnès Varda (Cléo)\\n\\nBoth won.").items]
    ['Federico Fellini', 'Agnès Varda (Cléo)']
    """
    plain = without_struck(with_breaks(text))
    lines = _lines(plain)
    found = _LineReader(max((len(line.text) for line in lines), default=0)).read(lines)
    return found if len(found.items) >= FEWEST_ITEMS else _numbered_parts(plain) or found


def is_list(text: str) -> bool:
    """Whether a text has two items at least."""
    return len(read_list(text).items) >= FEWEST_ITEMS


def ends_with_colon(shown: str) -> bool:
    """Whether a text in its shown form announces what follows."""
    return shown.rstrip(_EMPHASIS).endswith(":")


def _lines(text: str) -> list[_SourceLine]:
    lines = [(line, shown_form(line)) for line in text.splitlines()]
    counted = _count_from_a([found["letter"] for _, shown in lines if (found := _CAPITAL.match(shown))])
    return [_line(raw, shown, lettered=counted) for raw, shown in lines]


def _count_from_a(letters: Sequence[str]) -> bool:
    """Whether letters follow each other from A on, in one list or in several."""
    steps = all(later in ("A", chr(ord(earlier) + 1)) for earlier, later in pairwise(letters))
    return letters[:1] == ["A"] and "B" in letters and steps


def _line(raw: str, shown: str, *, lettered: bool) -> _SourceLine:
    """The line, its mark told apart; `lettered`: whether capital letters are marks."""
    if _RULE.fullmatch(shown):
        return _SourceLine("", 0, False, "")
    if headed := _HEADED.match(shown):
        # Above all others, so that the items below it are its own
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

    # Of the longest line, in characters
    width: int
    parts: list[ListItem | list[str]] = field(default_factory=list)
    # The items that the next line may stand below, outermost first
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
        """Begins an item, below those that it is indented under."""
        while self.open and line.indent < self.open[-1].indent + _NESTED:
            self.open.pop()
        if self.open:
            self.open[-1].parent = True
        parents = tuple(item.lines[0] for item in self.open[-_MOST_PARENTS:])
        self.open.append(ListItem([line.text], parents, line.indent))
        self.parts.append(self.open[-1])

    def _continue(self, line: _SourceLine) -> bool:
        """Whether a line is part of an open item: it is indented below it, or follows it and is no heading."""
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
        """Whether a line goes on in mid-sentence: it is in lower case, or the line above it had no more room."""
        wrapped = len(above) >= _WRAPPED and len(above) + len(text.split()[0]) >= self.width
        return text[0].islower() or (wrapped and not above.endswith(_ENDS))

    def _say(self, line: _SourceLine) -> None:
        """Adds a line of prose. A heading is none, and one with a colon takes its paragraph along."""
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
    """Whether a line is all bold, ends with a colon, or is a heading of Markdown."""
    return _HEADING.match(shown) is not None or ends_with_colon(shown)


def _without_remarks(parts: Sequence[ListItem | list[str]]) -> Iterator[ListItem | list[str]]:
    """The parts, the lines directly below the last item of a list a paragraph, unless other items have such lines."""
    tails = [part.tail if isinstance(part, ListItem) else [] for part in parts]
    ends = [not isinstance(below, ListItem) for below in parts[1:]] + [True]
    common = any(tail and not end for tail, end in zip(tails, ends, strict=False))
    for part, end in zip(parts, ends, strict=False):
        yield part
        if isinstance(part, ListItem) and part.tail and end and not common:
            del part.lines[-len(part.tail) :]
            yield part.tail


def _end_of_table(lines: Sequence[_SourceLine], start: int) -> int:
    """Behind the last row of the table that begins with a line; `start` where none does."""
    if start + 1 >= len(lines) or "|" not in lines[start].raw or not _COLUMNS.fullmatch(lines[start + 1].raw.strip()):
        return start
    return next((place for place in range(start + 2, len(lines)) if "|" not in lines[place].raw), len(lines))


def _rows(table: Sequence[str]) -> Iterator[ListItem]:
    """The rows of a table, each cell behind the header of its column; a column that counts the rows is left out."""
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
    """The cells of a row in their shown form, without bold type."""
    cells = _CELL_END.split(row.strip().removeprefix("|"))
    if len(cells) > 1 and not cells[-1].strip():
        cells.pop()
    return [shown_form(cell.replace("\\|", "|")).strip(_EMPHASIS) for cell in cells]


def _numbered_parts(text: str) -> ListItems | None:
    """The parts behind the numbers from 1 in their order, None with fewer than three of them."""
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
    """Where `1.`, the next `2.` behind it, and so on begin and end."""
    wanted = 1
    for found in _NUMBER.finditer(text):
        if int(found["number"]) == wanted:
            yield found.span()
            wanted += 1


Segmentation = Literal["list", "sentences", "atomic"]
Choice = Literal["auto", "list", "sentences", "atomic"]
# The tokenizer's time is quadratic in a word's signs: 16,000 of them took 0.2 s. No sentence is as long as this
_LONGEST_PIECE = 5_000


def choose_segmentation(wanted: Choice, response: str, references: str | None) -> Segmentation:
    """How a sample's texts are cut. references: their text, None where they are given one by one.

    `auto` mirrors the references: lists where both are lists, sentences beside given references, else atomic facts.
    """
    if wanted != "auto":
        return wanted
    given = references is None
    if is_list(response) and (given or is_list(str(references))):
        return "list"
    return "sentences" if given else "atomic"


def cut(text: str, segmentation: Segmentation, anchor_words: int) -> list[Fact]:
    """The facts of a text by its list or its sentences, in order; none for `atomic`, which a model has to be asked for.

    Cut as a list, a text without items is cut by sentences, as is the prose around them; a lone item is one.
    """
    if segmentation == "atomic":
        return []
    found = read_list(text) if segmentation == "list" else None
    if found is None or not found.items:
        return free_facts(sentences(text))
    return [fact for part in found.parts for fact in _facts_of(part, anchor_words)]


def _facts_of(part: ListItem | str, anchor_words: int) -> list[Fact]:
    """The facts of an item or of prose. An item that only names those below it, or announces some, is none."""
    if isinstance(part, str):
        return free_facts(sentences(part))
    names = [name for line in part.under if (name := name_of(line, anchor_words))]
    fact = fact_of(part.text, anchor_words, names)
    return [] if ends_with_colon(part.text) or (part.parent and not fact.evidence) else [fact]


def free_facts(texts: Iterable[str]) -> list[Fact]:
    """Facts cut out of free text."""
    return [Fact(shown_form(text), free=True) for text in texts]


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, line by line.

    >>> list(sentences("Dr. Varda filmed it. It rained.\\nThe end"))
    ['Dr. Varda filmed it.', 'It rained.', 'The end']
    """
    # Here, as its model takes a while to load, which no other metric needs
    from nupunkt import sent_tokenize

    for line in text.splitlines():
        for piece in _pieces(line):
            yield from (str(sentence).strip() for sentence in sent_tokenize(piece))


def distinct_facts(facts: Iterable[Fact]) -> list[Fact]:
    """The facts in their order, of those of equal form for matching the first; what has none is no fact."""
    first: dict[str, Fact] = {}
    for fact in facts:
        first.setdefault(match_form(fact.text), fact)
    return [fact for form, fact in first.items() if form]


def _pieces(line: str) -> Iterator[str]:
    """A line in pieces that the tokenizer can take: cut at `sentence_ends`, and at a space where there is one."""
    for start, end in pairwise([0, *sentence_ends(line), len(line)]):
        piece = line[start:end]
        while len(piece) > _LONGEST_PIECE:
            cut_at = piece.rfind(" ", 1, _LONGEST_PIECE) + 1 or _LONGEST_PIECE
            yield piece[:cut_at]
            piece = piece[cut_at:]
        yield piece
