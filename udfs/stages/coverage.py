"""Reading the two lists of `evaluate_coverage` (Dejl et al. 2025; methods, section 4)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.final_answers import CORRECTS, final_answer
from untold.udfs.stages.lists import (
    AFTERWORDS,
    BEGINS_NONE,
    EMPHASIS,
    LONGEST_REMARK,
    NOTHING,
    OPENERS,
    CitedLine,
    breaks_off,
    is_heading,
    is_nothing,
    is_partly,
    last_bracket,
    numbers_of,
    sourced_lines,
    split_sources,
    statement_lines,
)
from untold.udfs.stages.reading import (
    ParsedLine,
    answer_span,
    collapsed,
    is_none,
    letters,
    next_turn,
    past_echoes,
    split_marker,
    strip_thinking,
    texts_of,
    without_emphasis,
)
from untold.udfs.stages.records import Cell, Record, Value, content_of, read_records, read_tables, unwrapped

_COVERED, _UNCOVERED, _PARTIAL = "covered", "uncovered", "partially covered"
# The headings that models write for the two lists, alone (`_SHORT`) or with the word for what is listed (`_LONG`)
_SHORT = {
    _COVERED: ("covered",),
    _UNCOVERED: ("uncovered", "not covered", "missing", "omitted", "left out", "missed"),
    _PARTIAL: ("partially covered", "partly covered", "partial", "partially uncovered"),
}
_LONG = {
    f"{words}": kind
    for kind, names in _SHORT.items()
    for name in names
    for noun in ("statements", "statement", "atomic statements", "facts")
    for words in (f"{name} {noun}", f"{noun} {name}")
}
# One of these is in each of them
_OF_HEADINGS = ("cover", "miss", "omit", "left", "part")
_HEADINGS = {**_LONG, **{name: kind for kind, names in _SHORT.items() for name in names}}
_BEGINS_NAME = re.compile(rf"[\W\d_]*(?:{'|'.join(sorted({name.split()[0] for name in _HEADINGS}))})", re.IGNORECASE)
_ENDS_OF_HEADING = (" by the response", " in the response", " from the contexts")
_NOTHING_BESIDE = (" none", " nothing", " n a")
_LONGEST_HEADING = 120  # characters: a longer line is a sentence that speaks of covered statements
# Before its bracket stand no letters, and no other bracket
_OPENING = re.escape(OPENERS)
_BRACKETED_HEADING = re.compile(
    rf"(?:(?![{_OPENING}])[\W\d_])*[{_OPENING}][\s*_]*"
    r"(uncovered|covered|partially covered)\s+statements[\s*_:]*[\]】］]",
    re.IGNORECASE,
)

# `Covered statements: 2`, `Total covered: 2 of 4`: a heading and a number are a total, not a list
_TOTAL = re.compile(
    r"(?=[^\n]{0,99}\d)(?=[^\n]{0,99}(?:cover|statement|total))(?:(?:total|number|count|sum|overall|of|the|in|all|not"
    r"|partially|partly|(?:un)?covered|coverage|missing|omitted|missed|left|out|atomic|statements?|facts?|are|and)"
    r"(?![^\W\d_])|[\d\W_])+",
    re.IGNORECASE,
)
_NUMBER_BEHIND = re.compile(r"[^\W\d_]\D*\d")
_ONLY_NONE = re.compile(rf"{NOTHING}[\W_]{{0,9}}", re.IGNORECASE)
_NO_STATEMENTS = re.compile(
    r"there (?:are|were) no (?:\w+ ){0,2}statements?(?: (?:were )?(?:found|identified|left out))?"
    r"|(?:all|every) (?:of )?(?:the )?(?:atomic )?statements?(?: of the contexts)? (?:are|is|were|was) (?:un)?covered"
)
_OTHER_HEADINGS = AFTERWORDS | {
    *("summary", "justification", "comments", "conclusion", "conclusions", "analysis", "total", "overview", "remarks"),
    *("final answer", "score", "assessment", "overall", "observations", "final summary", "coverage summary"),
}
# Headings within a list: `Statements from context 2`
_GROUPS = re.compile(
    r"(?:statements? )?(?:(?:from|in|of) )?(?:the )?(?:contexts?|sources?|passages?|documents?|texts?)"
)

# The form that the prompt asks for, each item a line, without any sign that another form or a decoration begins with.
# What stands above it may be in bold type
_ABOVE = r"[^\n\r\[\]【】［］<>\\~{}&◁]*\n"
_PLAIN = r"[^\n\r\t\[\]【】［］<>|\\~{}&*_`]"
_USUAL_TEXT = rf"[^\W_]{_PLAIN}*[\w.!?)'\"’”%]|[^\W_]"
_USUAL_ITEM = rf"(?:[-*•]|\d{{1,3}}\.) (?:{_USUAL_TEXT}) \[[1-9]\d{{0,2}}(?:, [1-9]\d{{0,2}})*\]\n"
_USUAL = re.compile(
    rf"((?:{_ABOVE})*)\[Covered statements\]\n(None\n|(?:{_USUAL_ITEM})+)\n*"
    rf"\[Uncovered statements\]\n(None\n|(?:{_USUAL_ITEM})+)\n*"
)
_DOUBTFUL = (*_OF_HEADINGS, "half", "statement", "total")  # one of these is in each text that may be no item

_CLOSING_TAG = re.compile(r"\s{0,9}[<\[]/[\w -]{1,40}[>\]]\s{0,9}")  # of `<covered_statements>`: it opens no list
_LABEL = re.compile(
    r"(?P<bold>\*\*|)(?:(?:un)?covered )?statement(?:(?P=bold)\s?[:：]|\s?[:：](?P=bold))\s{1,9}(?=\S)", re.IGNORECASE
)

_STATEMENT_FIELDS: tuple[str, ...] = (
    *("statement", "statements", "text", "fact", "content", "coveredstatement", "coveredstatements"),
    *("uncoveredstatement", "uncoveredstatements", "missingstatement", "missingstatements"),
)
_SOURCE_FIELDS: tuple[str, ...] = (
    *("sources", "source", "contexts", "context", "contextnumbers", "contextids", "contextnumber"),
    *("numbers", "ids", "sourcecontexts", "supportingcontexts"),
)
# Fields of an object that say which list it is of
_KIND_FIELDS = ("covered", "status", "coverage", "iscovered", "label", "classification")
_BEGINS_JSON = re.compile(r"^[ \t]{0,40}(?:\[\s{0,40})?\{\s{0,40}\"", re.MULTILINE)


class _ListedStatement(NamedTuple):
    """A statement as one list gives it."""

    text: str
    sources: frozenset[int]


@dataclass
class _List:
    """What one list holds: its statements, how many items state no source, and whether it says that it is empty."""

    items: list[_ListedStatement]
    dropped: int = 0
    says_none: bool = False

    @property
    def readable(self) -> bool:
        """Whether it has a statement, says that it has none, or is empty: else all of its items lack a source."""
        return bool(self.items) or self.says_none or not self.dropped


def parse_coverage(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """`statements`: each distinct text once, covered ones first, in order of appearance; `sources` count from 1.

    `dropped` counts the items beside them that state no source. Raises `Unparsable` where a heading is missing, where
    partially covered statements have one of their own, and where a list neither has a statement nor says that it has
    none.
    """
    texts = [variables.get("response") or "", *variables["contexts"]]
    is_quotable = any("overed statements]" in text for text in texts)
    usual = None if is_quotable else _usual_lists(completion, len(variables["contexts"]))
    return _parse_any_form(completion, variables) if usual is None else {"statements": _distinct(*usual), "dropped": 0}


def _usual_lists(completion: str, contexts: int) -> list[list[_ListedStatement]] | None:
    """The items of both lists of a completion in the very form that the prompt asks for, else null.

    It saves most of the time that a reading takes, and reads what the long way reads: whatever that may take for more
    than an item is left to it.
    """
    found = _USUAL.fullmatch(completion if completion.endswith("\n") else completion + "\n")
    if found is None:
        return None
    above, *both = found.groups()
    others = [line for line in above.lstrip().split("\n") if line and not line.startswith("Context ")]
    is_whole = not others or (answer_span(completion) == (0, len(completion)) and not next_turn(above, {}))
    if not is_whole or any(map(_heading, others)):
        return None
    lists: list[list[_ListedStatement]] = []
    for listed in both:
        folded = listed.casefold()
        is_doubtful = any(map(folded.__contains__, _DOUBTFUL))
        items: list[_ListedStatement] = []
        for line in listed.split("\n")[:-1] if listed != "None\n" else ():
            text, _, numbers = line[line.index(" ") + 1 :].rpartition(" [")
            sources = frozenset(number for each in numbers[:-1].split(", ") if (number := int(each)) <= contexts)
            if not sources or is_none(text) or _ONLY_NONE.fullmatch(text):
                return None
            if len(text) <= LONGEST_REMARK and breaks_off(text):
                return None
            if is_doubtful and (_heading(line) or is_partly(text) or _LABEL.match(text) or _TOTAL.fullmatch(text)):
                return None
            items.append(_ListedStatement(text, sources))
        lists.append(items)
    return lists


@final_answer
@past_echoes
def _parse_any_form(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a completion that may depart from the form in any way."""
    contexts = len(variables["contexts"])
    texts = list(texts_of(variables.values()))
    quoted = [text for text in texts if any(map(_heading, text.split("\n")))]
    for text in quoted:
        completion = completion.replace(text.strip(), "")
    lists = _recorded_lists(completion, contexts) or _written_lists(completion, contexts)
    if any(each.items and all(item.text in text for item in each.items) for each in lists for text in quoted):
        raise Unparsable("a list that an input holds")
    if not all(each.readable for each in lists):
        raise Unparsable("the text under the headings is neither a list with sources nor None")
    dropped = sum(each.dropped for each in lists if each.items)
    return {"statements": _distinct(*(each.items for each in lists)), "dropped": dropped}


def _written_lists(completion: str, contexts: int) -> list[_List]:
    """Return the two lists under their headings. Raise `Unparsable` if one kind has two lists that differ."""
    found: dict[str, list[_List]] = {_COVERED: [], _UNCOVERED: [], _PARTIAL: []}
    for kind, lines in _sections(strip_thinking(completion).split("\n")):
        found[kind].append(_read_section(lines, contexts))
    missing = [kind for kind in (_COVERED, _UNCOVERED) if not found[kind]]
    if missing:
        raise Unparsable("missing heading: " + ", ".join(f"[{kind.capitalize()} statements]" for kind in missing))
    if found[_PARTIAL]:
        raise Unparsable("a list of partially covered statements")
    both = [found[kind] for kind in (_COVERED, _UNCOVERED)]
    lists = [[each for each in listed if each.items or each.says_none] or listed for listed in both]
    differ = any(each.items != listed[-1].items for listed in lists for each in listed)
    if differ and not CORRECTS.search(completion):
        raise Unparsable("two lists of one kind that differ")
    return [listed[-1] for listed in lists]


def _sections(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The lines under each heading with its kind, each up to the next heading of any kind."""
    lines = ["" if _CLOSING_TAG.fullmatch(line) else line for line in lines]
    headings = [(number, *found) for number, line in enumerate(lines) if (found := _heading(line))]
    ends = [number for number, *_ in headings[1:]] + [len(lines)]
    for (number, kind, rest), end in zip(headings, ends, strict=False):
        yield kind, [rest, *lines[number + 1 : end]]


def _heading(line: str) -> tuple[str, str] | None:
    """The kind of list that a line opens and what else it holds, or null.

    A heading stands alone but for decoration and a remark in brackets. Only after a bracketed one may `None` or a first
    item follow: a sentence that speaks of covered statements opens nothing. `Covered` in a list item needs a colon, a
    bracket or bold letters.
    """
    folded = line.casefold()
    if not any(map(folded.__contains__, _OF_HEADINGS)):
        return None
    bare = _without_remark(line)
    if len(bare) <= _LONGEST_HEADING and (named := _named_heading(bare)):
        return named
    found = _BRACKETED_HEADING.match(line)
    if found is None:
        return None
    rest = line[found.end() :].strip(" \t\r:*_`")
    if rest.startswith("(") and rest.endswith(")"):
        return found[1].lower(), ""
    if not any(map(str.isalpha, rest)):
        return None
    follows = split_marker(rest).marked or last_bracket(rest) is not None or BEGINS_NONE.match(rest)
    return (found[1].lower(), rest) if follows else None


def _without_remark(line: str) -> str:
    """The line without `(in the response)` or `(3)` at its end."""
    bare = line.rstrip(" \t\r:*_`.：")
    opening = bare.rfind("(") if bare.endswith(")") else -1
    return bare[:opening] + line[len(bare) :] if opening > 0 else line


def _named_heading(line: str) -> tuple[str, str] | None:
    """The kind of a heading by its words, and `None` where it says beside it that the list is empty."""
    if not _BEGINS_NAME.match(line):
        return None
    words, rest = letters(line), ""
    for end in _NOTHING_BESIDE:
        if words.endswith(end) and words != "n a":
            words, rest = words.removesuffix(end), "None"
    for end in _ENDS_OF_HEADING:
        words = words.removesuffix(end)
    kind = _HEADINGS.get(words)
    is_total = _NUMBER_BEHIND.search(line) is not None
    if kind is None or is_total or (words not in _LONG and not rest and not _stands_out(line)):
        return None
    return kind, rest


def _stands_out(line: str) -> bool:
    """Whether a line is more of a heading than the item `- Covered`."""
    row = split_marker(line)
    return not row.marked or is_heading([ParsedLine(row.text, False, 0)], 0)


def _read_section(lines: Sequence[str], contexts: int) -> _List:
    """The list in the lines under a heading, tables in it included."""
    text = "\n".join(lines)
    tables = read_tables(text, 0, len(text))
    if tables is None:
        return _read_list(lines, contexts)
    found = _read_list(tables.rest.split("\n"), contexts)
    tabled = _read_values(tables.values, contexts)
    return _List([*tabled.items, *found.items], tabled.dropped + found.dropped, found.says_none or tabled.says_none)


def _read_list(lines: Sequence[str], contexts: int) -> _List:
    """The items of one list.

    An item is a line with a bullet or number, or one that ends in sources. An item without sources goes on over the
    unmarked lines that directly follow it: up to the first that ends in sources, else as long as they are indented
    further; one without a marker only while they are indented. Other unmarked lines are items without a source where
    they stand between items, else notes. Raises `Unparsable` for items below a heading of an unknown name.
    """
    rows = statement_lines(_before_other_heading(sourced_lines(lines, contexts)))
    found = _List([])
    loose: list[int] = []
    place = 0
    while place < len(rows):
        row = rows[place]
        if is_nothing(row) or _is_group_label(rows, place) or _TOTAL.fullmatch(row.text):
            place += 1
        elif _ONLY_NONE.fullmatch(row.text) or is_none(row.text) or (not row.sources and _says_none(row.text)):
            found.says_none, place = True, place + 1
        else:
            end = _end_of_item(rows, place)
            _add_item(found, loose, rows, place, end, contexts)
            place = end
    between = sum(before > 0 for before in loose[: _last_below(loose, len(found.items))])
    found.dropped += between if found.items else len(loose)
    return found


def _add_item(found: _List, loose: list[int], rows: Sequence[CitedLine], place: int, end: int, contexts: int) -> None:
    """Adds the item in rows[place:end]; one unmarked and without source to `loose`, as how many items came before."""
    if not rows[place].line.marked and not rows[end - 1].closed and not rows[place].sources:
        loose.append(len(found.items))
        return
    item = _joined(rows[place:end], contexts)
    if item.text and item.sources:
        found.items.append(item)
    elif item.text:
        found.dropped += 1


def _last_below(loose: Sequence[int], items: int) -> int:
    """How many of the loose lines stand above the last item."""
    return sum(before < items for before in loose)


def _before_other_heading(rows: list[CitedLine]) -> list[CitedLine]:
    """The rows up to a heading that is another one than those of the lists or of groups of them."""
    lines = [row.line for row in rows]
    came = False
    for place, row in enumerate(rows):
        words = letters(row.line.text)
        known = words in _OTHER_HEADINGS and not row.line.marked
        other = came and not row.sources and is_heading(lines, place) and not _GROUPS.fullmatch(words)
        if known or (other and not _ONLY_NONE.fullmatch(row.text)):
            if not known and any(below.sources for below in rows[place + 1 :]):
                raise Unparsable("statements below a heading that is none of the lists'")
            return rows[:place]
        came = came or bool(row.sources) or BEGINS_NONE.match(row.text) is not None
    return rows


def _says_none(text: str) -> bool:
    """`None`, with or without a reason, or a sentence that says that there are no such statements."""
    return BEGINS_NONE.match(text) is not None or _NO_STATEMENTS.fullmatch(letters(text)) is not None


def _is_group_label(rows: list[CitedLine], place: int) -> bool:
    """`- Context 1:` above items that are indented further."""
    row = rows[place]
    if not row.line.marked or row.sources is not None or not row.text.rstrip(EMPHASIS).endswith(":"):
        return False
    below = rows[place + 1].line if place + 1 < len(rows) else row.line
    return below.marked and below.indent > row.line.indent


def _end_of_item(rows: list[CitedLine], place: int) -> int:
    """The place after the last line of the item, or note, that begins at `place`."""
    head = rows[place]
    end = place + 1
    if head.closed:
        return end
    indented = end
    while end < len(rows) and not rows[end].line.marked and not is_nothing(rows[end]):
        deeper = rows[end].line.indent > head.line.indent
        if not deeper and not head.line.marked:
            break
        end += 1
        if rows[end - 1].closed:
            return end
        if deeper and indented == end - 1:
            indented = end
    return indented if head.line.marked else place + 1


def _joined(rows: Sequence[CitedLine], contexts: int) -> _ListedStatement:
    """The item that one line or several make: sources are those of the last bracket, labels and emphasis go."""
    if len(rows) == 1:
        text, sources = rows[0].text, rows[0].sources
    else:
        text, sources, _ = split_sources(" ".join(row.line.text for row in rows), contexts)
    bare = without_emphasis(text)
    if not rows[0].line.marked and bare != text:
        bare = split_marker(bare).text
    label = _LABEL.match(bare)
    return _ListedStatement(bare[label.end() :] if label else bare, sources or frozenset())


def _recorded_lists(completion: str, contexts: int) -> list[_List] | None:
    """The two lists of `{"covered_statements": [...], "uncovered_statements": [...]}` or of objects that say which."""
    records = read_records(completion) if _BEGINS_JSON.search(strip_thinking(completion)) else None
    values: Sequence[Value] = records.values if records else ()
    found: dict[str, list[Value]] = {}
    for value in values:
        for key, each in value.pairs if isinstance(value, Record) else ():
            kind = _HEADINGS.get(letters(key))
            if kind and isinstance(each, list) and content_of(found.setdefault(kind, each)) != content_of(each):
                raise Unparsable("two objects that differ")
    if not found:
        found = _by_field(unwrapped(values, _STATEMENT_FIELDS))
    if found.get(_PARTIAL):
        raise Unparsable("a list of partially covered statements")
    if not {_COVERED, _UNCOVERED} <= found.keys():
        return None
    return [_read_values(found[kind], contexts) for kind in (_COVERED, _UNCOVERED)]


def _by_field(values: Sequence[Value]) -> dict[str, list[Value]]:
    """Objects sorted by a field such as `"covered": true`, where all of them have one that can be read."""
    kinds = {"true": _COVERED, "yes": _COVERED, "false": _UNCOVERED, "no": _UNCOVERED, **_HEADINGS}
    found: dict[str, list[Value]] = {_COVERED: [], _UNCOVERED: []} if values else {}
    for value in values:
        cells = [value.cell((name,)) for name in _KIND_FIELDS] if isinstance(value, Record) else []
        said = {kinds.get(letters(cell.text)) for cell in cells if cell}
        if len(said) > 1:
            raise Unparsable("a statement that is said to be covered and uncovered")
        kind = said.pop() if said else None
        if kind is None:
            return {}
        found.setdefault(kind, []).append(value)
    return found


def _read_values(values: Sequence[Value], contexts: int) -> _List:
    """The list that objects, rows of a table or texts make."""
    found = _List([])
    for value in values:
        text, sources = _recorded_item(value, contexts)
        if _ONLY_NONE.fullmatch(text) or (not sources and BEGINS_NONE.match(text)):
            found.says_none = True
        elif text and sources:
            found.items.append(_ListedStatement(text, sources))
        else:
            found.dropped += 1
    return found


def _recorded_item(value: Value, contexts: int) -> tuple[str, frozenset[int]]:
    """The text and the sources of an object, a row or a text; the field of sources counts before a bracket."""
    cell = value.cell(_STATEMENT_FIELDS) if isinstance(value, Record) else value
    if not isinstance(cell, Cell):
        raise Unparsable("an element of a list is no statement")
    text, sources, at_end = split_sources(cell.bare, contexts)
    named = value.field(_SOURCE_FIELDS) if isinstance(value, Record) else None
    if named is None:
        return without_emphasis(text), sources or frozenset()
    inside = ", ".join(_texts_of(named))
    return text if sources and at_end else cell.bare, numbers_of(inside.strip("[]【】［］() "), contexts) or frozenset()


def _texts_of(value: Value) -> Iterator[str]:
    """The numbers of contexts that a field gives, one by one: texts, numbers or objects with an id."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, Cell):
            yield each.text
        elif isinstance(each, Record):
            named = each.cell(("id", "number", "context"))
            yield from [named.text] if named else []


def _distinct(covered: Iterable[_ListedStatement], uncovered: Iterable[_ListedStatement]) -> list[dict[str, Any]]:
    """Each text once, equals by collapsed white space; the first appearance keeps place and wording, covered wins."""
    found: dict[str, tuple[str, bool, set[int]]] = {}
    for is_covered, items in ((True, covered), (False, uncovered)):
        for item in items:
            _, _, sources = found.setdefault(collapsed(item.text), (item.text, is_covered, set()))
            sources.update(item.sources)
    return [{"text": text, "covered": kind, "sources": sorted(sources)} for text, kind, sources in found.values()]
