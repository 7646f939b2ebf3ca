"""Read lists, and lines that cite their sources (methods, sections 4 and 9). Every function is total and linear."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from string import ascii_lowercase

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.non_answers import says_absent
from untold.udfs.stages.reading import (
    ParsedLine,
    answer_span,
    begins_with_symbol,
    is_drawing,
    is_fence,
    is_none,
    is_rule,
    letters,
    split_marker,
    strip_thinking,
    unfenced,
    without_emphasis,
    without_ticks,
)
from untold.udfs.texts import with_breaks, without_struck

# What a line between items introduces is a note, not the rest of the list: `I made these changes:`
_BEGINS_NOTE = re.compile(
    r"\b(?:I|we|notes?|changes?|changed|explanations?|reasoning|rationale|comments?|removed|merged|dropped|kept)\b",
    re.I,
)
# Headings that end a list: what stands below them speaks of it
AFTERWORDS = {
    "note",
    "notes",
    "references",
    "sources",
    "citations",
    "disclaimer",
    "explanation",
    "explanations",
    "reasoning",
    "rationale",
    "changes",
    "changes made",
}

# A list that says that it is not whole: `... and 2 more`, `(1 more)`, `etc.`, `…`
_COUNT = r"(?:\d{1,4}|several|many|some|a few|two|three)"
_MORE = r"(?:more|others?|further|additional|remaining|weitere|autres|más|altri|mais|meer|ещё|других)\b"
_AND_MORE = re.compile(
    rf"[\W_]{{0,9}}+(?:(?:(?:and|plus|und|et|y|e|и)\s(?:{_COUNT}\s)?|{_COUNT}\s|(?<=\.\.)|(?<=…)){_MORE}"
    r"(?:\s(?:(?:un)?covered|statement|claim|fact|item|question|topic|aspect|nugget|unit|not|listed|omitted)s?){0,3}"
    r"|etc|et cetera|and so (?:on|forth)|usw|u\. ?s\. ?w|и т\. ?д|и так далее|et ainsi de suite|y así sucesivamente"
    r"|等等?|など|以下略|以下省略|[还還]有\s?\d+.{0,4}|他\s?\d+件|(?:list )?(?:continued|continues|truncated|abridged)"
    r"|(?:the )?rest(?: of [\w ]{3,20})?(?: is| are)? omitted[\w ]{0,16}"
    r")[\W_\d]{0,9}|[-*•+\d\s]{0,9}[\[(\"]?(?:\.{2,9}|…{1,3})[\s,\W\d]{0,9}",
    re.IGNORECASE,
)
LONGEST_REMARK = 48  # characters of such a line
_BOLD = "**"
_NUMBER = re.compile(r"[(\[]?(\d{1,3})[.):\]]\s+")
_NONE_BECAUSE = re.compile(r"\W{0,9}none[*_]{0,2}[.:;,][*_]{0,2}\s", re.I)
# `-word`: who writes bullets so writes `-5 km` as an item too
_TIGHT = re.compile(r"\s{0,40}[-–—](?=[^\W\d_])")
_TIGHT_NUMBER = re.compile(r"(\s*)[-–—](?=\d)")
# What counts lines from 1 in one form, `1 - `, `(a) `, `1、` or `F1: `; `Fact 1: ` may say a type. Fewer lines than
# three may begin so by chance where letters count: `A. Holt climbed it.` above `B. Ree drew it.`
_COUNTED = re.compile(
    r"[ \t]{0,40}(?P<before>\*{0,2}"
    r"(?:(?:item|no\.|f|c|s)[ \t]?)?[#(\[（【]{0,2})"
    r"(?P<count>\d{1,3}|[a-z]|[ivx]{1,5})"
    r"(?P<behind>[ \t][-–—](?=[ \t])|\\?[.):\]、．）】/](?:\*\*)?:?)(?P<space>[ \t]{0,9})(?=\S)",
    re.IGNORECASE,
)
_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")
_FEWEST_LETTERS = 3
_CLOSE_TO_TEXT = ("、", "．", "）", "】")
_NESTED = 2  # spaces: what Markdown needs for a list within a list; one is a slip
# `Statement 3: ...`, `**Atom:** ...` and `[3] ...`
_LABEL = re.compile(
    r"(?:\*{0,2}(?:statement|atom|unit)(?:\s\d{1,3})?\s?(?:[:：]\*{0,2}|\*{1,2}[:：])|\[\d{1,3}\])\s{1,9}(?=\S)",
    re.IGNORECASE,
)


def read_rows(completion: str) -> list[ParsedLine]:
    """The lines of a completion without its thinking and without a fence around all of it."""
    return rows_of(unfenced(strip_thinking(completion)))


def rows_of(text: str) -> list[ParsedLine]:
    r"""The lines of a text, without what is struck out, and with line breaks that are written out as `\n`.

    A picture before a line is its bullet, but adorns a greeting where other bullets follow: `✨ Here you go! ✨`. A
    hyphen before a number is a minus sign, but a bullet where others stand as close to their words. What counts the
    lines from 1 in whatever form is a number before them.
    """
    lines = _counted(without_struck(with_breaks(text)).split("\n"))
    if any(_TIGHT.match(line) for line in lines):
        lines = [_TIGHT_NUMBER.sub(r"\1- ", line, count=1) if _TIGHT_NUMBER.match(line) else line for line in lines]
    rows = [split_marker(line) for line in lines]
    adorned = [row.marked and begins_with_symbol(line) for row, line in zip(rows, lines, strict=True)]
    if not any(row.marked and row.text and not other for row, other in zip(rows, adorned, strict=True)):
        return rows
    greets = [other and row.text.endswith("!") for row, other in zip(rows, adorned, strict=True)]
    return [replace(row, marked=False) if greeting else row for row, greeting in zip(rows, greets, strict=True)]


def _counted(lines: Sequence[str]) -> list[str]:
    """The lines, those numbered `1. ` that count from 1 in another form, `1 - ` or `(a) `; of several forms none."""
    found = {place: match for place, line in enumerate(lines) if (match := _COUNTED.match(line)) and _stands_off(match)}
    forms: dict[tuple[str, str], list[int]] = {}
    for place, match in found.items():
        forms.setdefault((match["before"].casefold().rstrip(), match["behind"]), []).append(place)
    counting = [places for places in forms.values() if _counts([found[place] for place in places])]
    counting = [places for places in counting if len(places) > 1] or counting
    if len(counting) != 1:
        return list(lines)
    numbers = {place: number for number, place in enumerate(counting[0], start=1)}
    return [
        _renumbered(line, numbers[place], found[place]) if place in numbers else line
        for place, line in enumerate(lines)
    ]


def _renumbered(line: str, number: int, said: re.Match[str]) -> str:
    """A line with this number in place of what it says; bold type that opens before that and closes later stays."""
    indent = line[: len(line) - len(line.lstrip())]
    opened = said["before"].startswith(_BOLD) and _BOLD not in said["behind"]
    return f"{indent}{number % 1000}. {_BOLD if opened else ''}{line[said.end() :]}"


def _stands_off(number: re.Match[str]) -> bool:
    """Whether a number has white space behind it, as signs that are wide themselves need not."""
    return bool(number["space"]) or number["behind"].startswith(_CLOSE_TO_TEXT)


def _plain(count: str) -> str:
    """A number in ASCII digits, or a letter in lower case."""
    return str(int(count)) if count.isdecimal() else count.casefold()


def _counts(found: Sequence[re.Match[str]]) -> bool:
    """Whether numbers or letters count from the first one on."""
    counts = [_plain(match["count"]) for match in found]
    if len(found) < 2:
        # A lone number has a sentence behind it: `1 - 0` is a score
        return counts == ["1"] and found[0].string[found[0].end()].isupper()
    if counts == [str(number) for number in range(1, len(counts) + 1)]:
        return True
    enough = len(counts) >= _FEWEST_LETTERS
    # In brackets a letter is no initial
    bracketed = found[0]["before"].endswith(("(", "[", "（"))
    roman, alphabet = list(_ROMAN[: len(counts)]), list(ascii_lowercase[: len(counts)])
    return (enough and counts == roman) or ((enough or bracketed) and counts == alphabet)


def breaks_off(text: str) -> bool:
    """Return True if a line or an item says that more of its list follows.

    >>> breaks_off("... and 2 more"), breaks_off("- (1 more)"), breaks_off("And more ships came.")
    (True, True, False)
    """
    return len(text) <= LONGEST_REMARK and _AND_MORE.fullmatch(text) is not None


def is_nested(completion: str) -> bool:
    """Whether an item that is no label has a list of its own below it."""
    start, end = answer_span(completion)
    rows = rows_of(completion[start:end])
    places = [place for place, row in enumerate(rows) if row.marked and not is_drawing(row)]
    return any(
        rows[below].indent >= rows[above].indent + _NESTED and not is_group_label(rows, above)
        for above, below in pairwise(places)
    )


def says_none(rows: Iterable[ParsedLine]) -> bool:
    """Whether a row is a lone `None`, or one with its reason behind: `None. The text says nothing on it.`

    So is a lone sentence that says that there is nothing in the text.
    """
    said = [row.text for row in rows if row.text]
    return any(is_none(text) or _NONE_BECAUSE.match(text) for text in said) or (len(said) == 1 and says_absent(said[0]))


def list_items(rows: Sequence[ParsedLine]) -> list[list[str]]:
    """The lines of each list item; one goes on over the unmarked lines directly below that belong to it.

    Those are indented further, or go on in lower case. Raises `Unparsable` where a line between two items may belong
    to the first, and where items stand below a line that may begin a note.
    """
    items: list[list[str]] = []
    indent: int | None = None
    unclear = False
    for place, row in enumerate(rows):
        if row.marked and not is_drawing(row):
            indent = row.indent
            if is_none(row.text) or is_group_label(rows, place):
                continue
            if unclear:
                raise Unparsable("a line between the items of a list may belong to it or not")
            items.append([row.text])
        elif items and indent is not None and row.text and (row.indent > indent or row.text[0].islower()):
            items[-1].append(row.text)
        elif letters(row.text) in AFTERWORDS and any(above.text for above in rows[:place]):
            break
        else:
            unclear = unclear or _is_unclear(rows, place, began=bool(items), below_item=indent is not None)
            indent = None
    return items


def _is_unclear(rows: Sequence[ParsedLine], place: int, *, began: bool, below_item: bool) -> bool:
    """Whether an unmarked line, once a list has begun, may be more than a heading: part of an item, or a note's first.

    A heading stands apart or looks like one; `I made these changes:` introduces what is no item.
    """
    row = rows[place]
    if not began or is_drawing(row):
        return False
    return _BEGINS_NOTE.search(row.text) is not None if is_heading(rows, place) else below_item


def is_heading(rows: Sequence[ParsedLine], place: int) -> bool:
    """Whether an unmarked line looks like a heading: `# ...`, all bold, in square brackets, or with a last colon."""
    text = rows[place].text
    if rows[place].marked or not text:
        return False
    return text.startswith("#") or text.rstrip("*_ ").endswith((":", "：")) or text[0] + text[-1] in ("[]", "**", "__")


def is_group_label(rows: Sequence[ParsedLine], place: int) -> bool:
    """`* Part 1:` or `* ## Part 1` above other items."""
    text = rows[place].text
    if not text.rstrip("*_ ").endswith((":", "：")):
        return text.startswith("## ")
    below = next((row for row in rows[place + 1 : place + 3] if row.text), rows[place])
    return below is not rows[place] and below.marked


def whole(text: str) -> str:
    """The text without its label and surrounding emphasis, or half of a bold whose other half is cut off."""
    text = without_ticks(text.strip())
    label = _LABEL.match(text)
    text = text[label.end() :] if label else text
    if text.count(_BOLD) % 2:
        text = text.removeprefix(_BOLD) if text.startswith(_BOLD) else text.removesuffix(_BOLD)
    return without_emphasis(text.strip())


def without_separators(items: Sequence[str]) -> list[str]:
    """The items without a comma or a semicolon that all but the last end with, as lists in one sentence do."""
    for sign in ",;":
        if len(items) > 1 and all(item.endswith(sign) for item in items[:-1]):
            return [item.removesuffix(sign).rstrip() for item in items]
    return list(items)


def without_numbers(items: Sequence[str]) -> list[str]:
    """The items without numbers that count them from 1, as in `* 1. ...`; other numbers belong to the texts."""
    found = [_NUMBER.match(item) for item in items]
    if len(items) < 2 or [int(each[1]) for each in found if each] != list(range(1, len(items) + 1)):
        return list(items)
    return [whole(item[each.end() :]) for item, each in zip(items, found, strict=True) if each]


OPENERS = "[【［"
_CLOSERS = "]】］"
_AFTER_SOURCES = " \t\r.,;:。"
EMPHASIS = "*_`"
_MARKS = ("**", "__", "*", "_", "`")
_ENDS_OF_SENTENCE = (".", "!", "?", "。", "…")
# Behind a whole sentence and its bracket: `It rose. [1] (left out by the response)`
_ASIDE = re.compile(r"\s{0,9}(?:\([^()]{1,300}\)|(?:[-–—]|→|->)\s.{1,300})[\s.]{0,9}")
# What stands beside the numbers in a bracket: `[Context 1 and Context 3]`, `[ctx_2]`, `[1†L3]`
_SOURCE_WORDS = re.compile(
    r"\b(?:and|contexts?|ctx|c|sources?|passages?|documents?|docs?|texts?|ids?)(?![^\W\d_])[:_]?|†\w{0,20}",
    re.IGNORECASE,
)
_SOURCE_SEPARATORS = re.compile(r"[,;&/\s#^、，\[\]【】［］()]+")
_RANGE_WORD = r"(?:[-–—~]|\.{2,3}|…|to|through|until|bis|à|hasta|fino a|a)"
_RANGE_SPACES = re.compile(rf"(?<=\d)\s{{0,9}}{_RANGE_WORD}\s{{0,9}}(?=\d)", re.IGNORECASE)
# A bracket directly before another one, `[1] and [3]`, and the text between them
_BRACKET_BEFORE = re.compile(
    r"(?:[\[【［]{1,2}([^\[\]【】［］]{1,60})[\]】］]{1,2}|\(\s?contexts?\b([^()]{1,60})\))"
    rf"[\s*_`]{{0,6}}(?:(?P<range>{_RANGE_WORD})|[,;&+/|、，]?\s?(?:and|or|und|oder|et|ou|y|o|e|en|och|og|i|и|和|及|と)?)"
    r"[\s*_`]{0,6}\Z",
    re.IGNORECASE,
)
_LONGEST_BEFORE = 90
_SOURCE_NUMBER = re.compile(r"-?\d+(?:-\d+)?")
# As prompts ask for them
_PLAIN = re.compile(r"[1-9][0-9]{0,8}(?:, ?[1-9][0-9]{0,8})*")
_WORDED_SOURCES = re.compile(r"\(\s*contexts?\b([^()]{1,200})\)\Z", re.IGNORECASE)
_MOST_DIGITS = 9  # of a context's number; `int` refuses a text of more than 4,300
# `It rose. Sources: [1]` and `It rose - [1]`: belongs to the bracket
_LEADS_TO_SOURCES = re.compile(
    r"(?:(?:(?<=[.!?\s])|\A)[*_]{0,2}(?:contexts?|sources?)[*_]{0,2}\s?[:：][*_]{0,2}|(?<=\s)[-–—|→])\Z", re.IGNORECASE
)
_LONGEST_LEAD = 20


def split_sources(text: str, contexts: int) -> tuple[str, frozenset[int] | None, bool]:
    """The text without its last bracket, the contexts that names, and whether it ends the text.

    Brackets that directly precede it belong to it: `[1][2]`, `[1] and [3]`, `[1] to [3]`.

    A bracket that is no list of numbers belongs to the text. One with more text behind it counts only where it stands
    apart and names a context that was shown, unless it is an aside behind a whole sentence: `It rose. [1] (left out)`.
    `(Context 1)` at the end counts where the text has no square bracket.
    """
    place = last_bracket(text)
    if place is None:
        return _split_worded(text, contexts)
    start, end = place
    inside = text[start + 1 : end]
    start -= inside.endswith(tuple(_CLOSERS)) and text[:start].endswith(tuple(OPENERS))  # `[[1]]`
    start, sources = _with_brackets_before(text, start, inside, contexts)
    before, behind = _without_marks(text[:start], text[end + 1 :])
    if sources and before.rstrip().endswith(_ENDS_OF_SENTENCE) and _ASIDE.fullmatch(behind):
        behind = ""
    at_end = not behind.strip(_AFTER_SOURCES + EMPHASIS)
    apart = not before or before[-1].isspace()
    if sources is None or not (at_end or (apart and sources)):
        return text, None, False
    return _rejoined(before, behind.strip(_AFTER_SOURCES) if at_end else behind), sources, at_end


def _without_marks(before: str, behind: str) -> tuple[str, str]:
    """What stands before and behind a bracket, without emphasis of the bracket alone."""
    for mark in _MARKS:
        if before.endswith(mark) and behind.startswith(mark) and before[: -len(mark)][-1:] in ("", " ", "\t"):
            return before[: -len(mark)], behind[len(mark) :]
    return before, behind


def _rejoined(before: str, behind: str) -> str:
    """The text around its bracket, without what leads to it alone."""
    before = before.rstrip()
    lead = None if behind else _LEADS_TO_SOURCES.search(before, max(0, len(before) - _LONGEST_LEAD))
    before = before[: lead.start()].rstrip() if lead else before
    return without_emphasis((before + behind).strip())


def _split_worded(text: str, contexts: int) -> tuple[str, frozenset[int] | None, bool]:
    """The same for `(Context 1)` at the end of a text without square brackets."""
    trimmed = text.rstrip(_AFTER_SOURCES)
    opening = trimmed.rfind("(")
    found = _WORDED_SOURCES.match(trimmed, opening) if opening >= 0 else None
    opening, sources = _with_brackets_before(text, opening, found[1], contexts) if found else (opening, None)
    return (trimmed[:opening].rstrip(), sources, True) if sources else (text, None, False)


def _with_brackets_before(text: str, start: int, inside: str, contexts: int) -> tuple[int, frozenset[int] | None]:
    """Return the start of the first of several adjacent brackets, and the numbers of all of them."""
    sources = numbers_of(inside, contexts)
    while sources is not None and (found := _BRACKET_BEFORE.search(text, max(0, start - _LONGEST_BEFORE), start)):
        left = found[1] or found[2]
        more = numbers_of(f"{left.strip()}-{inside.strip()}" if found["range"] else left, contexts)
        if more is None or not any(map(str.isdigit, left)):
            break
        start, inside, sources = found.start(), left, sources | more
    return start, sources


def last_bracket(text: str) -> tuple[int, int] | None:
    """Where the last square bracket opens and closes; None where there is none."""
    end = max(map(text.rfind, _CLOSERS))
    start = max(text.rfind(opener, 0, end) for opener in OPENERS) if end > 0 else -1
    return (start, end) if start >= 0 else None


def numbers_of(inside: str, contexts: int) -> frozenset[int] | None:
    """The numbers 1..contexts that a bracket lists, ranges included; null where it is no list of numbers.

    An empty bracket and `[None]` list nothing. Beside other words (`[Response, 1]`) a number counts that stands alone
    between commas and is one of a context.
    """
    if _PLAIN.fullmatch(inside):
        return frozenset(number for part in inside.split(",") if (number := int(part)) <= contexts)
    if not inside.strip() or is_none(inside):
        return frozenset()
    plain = _RANGE_SPACES.sub("-", _SOURCE_WORDS.sub(" ", inside.strip()))
    parts = [part for part in _SOURCE_SEPARATORS.split(plain) if part]
    if "0" in parts:
        raise Unparsable("numbers that count from 0")
    if parts and all(map(_SOURCE_NUMBER.fullmatch, parts)):
        return frozenset(number for part in parts for number in _range(part, contexts))
    listed = [part.strip() for part in plain.split(",")]
    known = frozenset(n for part in listed if _SOURCE_NUMBER.fullmatch(part) for n in _range(part, contexts))
    return known or None


def _range(part: str, contexts: int) -> Iterator[int]:
    """The numbers of `2` or `1-3` that are contexts'; a number below zero is none."""
    if part.startswith("-"):
        return iter(())
    ends = sorted(_bounded(digits, contexts) for digits in part.split("-"))
    return iter(range(max(ends[0], 1), min(ends[-1], contexts) + 1))


def _bounded(digits: str, contexts: int) -> int:
    """The number, or one more than there are contexts where it is too long to be one of theirs."""
    return int(digits) if len(digits) <= _MOST_DIGITS else contexts + 1


NOTHING = r"[\W_]{0,9}(?:none|nothing|n\s?/\s?a|n\.a\.|not applicable|no (?:\w+ ){0,2}statements?)(?![^\W_])"
BEGINS_NONE = re.compile(NOTHING, re.IGNORECASE)
_NOTE = re.compile(
    r"[\W_]{0,10}(?:notes?|nb|n\.b\.|p\.s\.|explanation|reasoning|rationale)[*_ ]{0,5}[:.：]", re.IGNORECASE
)
# What speaks of the lists below them, or of an item below it: no statement, whatever bracket ends it
_REMARK = re.compile(
    r"[\W_]{0,9}(?:overall|in (?:summary|conclusion|short|total|sum)|to (?:sum up|summari[sz]e|conclude)"
    r"|(?:final )?summary"
    r"|conclusion|altogether|total|therefore|thus|hence|assessment|verdict|coverage|i hope|hope|let me know"
    r"|(?:so|as you can see|as shown|this (?:means|shows|indicates)),? [^.\n]{0,20}response|(?:all|these|the above|the)"
    r" (?:(?:un)?covered )?statements|contexts? (?:used|cited)|i (?:have|used|listed|did)|(?:the|this) response"
    r" (?:covers?|says?|mentions?|leaves?|omits?|does|is|states?|therefore|thus|has|includes?|captures?|conveys?"
    r"|misses|fails"
    r"|addresses|only|also|correctly|fully|partially|never))\b(?!['’])",
    re.IGNORECASE,
)
_OF_LISTS = re.compile(r"\b(?:response|statements?|contexts?|(?:un)?covered)\b", re.IGNORECASE)
_REASON = re.compile(
    r"[\W_]{0,9}(?:(?:reason(?:ing)?|explanation|rationale|justification|quot(?:e|ation)|evidence|comment|remark|note"
    r"|status|match"
    r"|response|in (?:the )?response|(?:not )?covered|why)[*_]{0,2}\s?[:：–—-]|because\b|(?:stated|said|covered"
    r"|mentioned|found|left out|omitted|missing) (?:in|by|from|as)\b"
    r"|(?:as )?(?:the|this) response\b(?!['’]))|\s*(?:→|->|[\"“(])",
    re.IGNORECASE,
)
# `(Partially covered) The tower ...`, `The tower ... (partly covered)`
_PARTLY = re.compile(
    r"(?:^[\W_]{0,9}|[(\[]\s{0,2}|[–—-]\s)(?:partial(?:ly)?|partly"
    r"|half)(?:[\s-](?:un)?covered)?[*_]{0,3}\s?(?:[)\]:：]|\*\*|[–—-]\s)"
    r"|[–—(-]\s?(?:partially|partly) (?:un)?covered\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CitedLine:
    """A line and the sources of its last bracket: null where it gives none; `at_end` where that ends the line."""

    line: ParsedLine
    text: str
    sources: frozenset[int] | None
    at_end: bool

    @property
    def closed(self) -> bool:
        """Whether its sources end it, so that no further line belongs to it."""
        return self.sources is not None and self.at_end


def sourced_lines(lines: Sequence[str], contexts: int) -> list[CitedLine]:
    """The lines but for quotations; sources that stand below an item without any belong to it."""
    return _with_sources_below([_sourced(line, contexts) for line in _without_quotations(lines)])


def statement_lines(rows: Sequence[CitedLine]) -> list[CitedLine]:
    """The rows without reasons and remarks. Raises `Unparsable` for a statement that is partially covered."""
    if any(is_partly(row.line.text) for row in rows):
        raise Unparsable("a statement that is partially covered")
    return _without_asides(_without_remarks(rows))


def is_partly(text: str) -> bool:
    """Whether a statement is said to be covered in part."""
    return _PARTLY.search(text) is not None


def _sourced(line: str, contexts: int) -> CitedLine:
    """A line with its marker and its sources told apart."""
    if not line.strip():
        return CitedLine(ParsedLine("", False, len(line)), "", None, at_end=False)
    parts = split_marker(line)
    text, sources, at_end = split_sources(without_ticks(parts.text), contexts)
    return CitedLine(parts, text, sources, at_end)


def _with_sources_below(rows: Iterable[CitedLine]) -> list[CitedLine]:
    """The rows where sources that stand alone, `  - Sources: [1]`, belong to the item without any right above."""
    joined: list[CitedLine] = []
    for row in rows:
        above = joined[-1] if joined else None
        if row.sources and not row.text and above and above.line.marked and above.text and above.sources is None:
            joined[-1] = replace(above, sources=row.sources, at_end=True)
        else:
            joined.append(row)
    return joined


def _without_quotations(lines: Iterable[str]) -> list[str]:
    """The lines without those that quote, unless all do."""
    kept = [line for line in lines if not line.lstrip().startswith(">")]
    return kept if any(line.strip() for line in kept) else list(lines)


def _without_remarks(rows: Sequence[CitedLine]) -> list[CitedLine]:
    """The rows without reasons below an item that is closed, and without remarks in a paragraph below the items.

    Raises `Unparsable` for another unmarked line with sources that stands apart from items with markers.
    """
    kept: list[CitedLine] = []
    item: CitedLine | None = None
    apart = False
    for row in rows:
        below = item is not None and item.closed and row.line.indent > item.line.indent
        reason = below and row.sources and _REASON.match(row.line.text)
        if reason or (item is not None and (apart or not row.line.marked) and _is_remark(row.line.text)):
            continue
        bare = row.sources and not row.line.marked and not is_nothing(row)
        if apart and bare and item is not None and item.line.marked:
            raise Unparsable("a line with sources that may be a statement or a remark")
        apart = not row.line.text
        item = row if row.sources and not below else item
        kept.append(row)
    return kept


def _is_remark(text: str) -> bool:
    """Whether a line sums the lists up: `Overall, the response ...`, but not `Overall, prices rose.`"""
    return _REMARK.match(text) is not None and _OF_LISTS.search(text) is not None


def _without_asides(rows: list[CitedLine]) -> list[CitedLine]:
    """The rows where an unmarked line of a list with markers gives sources at its end only.

    `Overall, the response follows context [1] alone.` below the items is prose.
    """
    if not next((row.line.marked for row in rows if row.sources), False):
        return rows
    return [row if row.line.marked or row.closed else replace(row, text=row.line.text, sources=None) for row in rows]


def is_nothing(row: CitedLine) -> bool:
    """Blank lines, fences, rules and notes."""
    line = row.line
    if not line.text:
        return True
    if line.marked:
        return row.sources is None and is_rule(line.text * 3)
    if is_fence(line.text) or is_rule(line.text) or _NOTE.match(line.text) is not None:
        return True
    return not row.sources and (BEGINS_NONE.match(line.text) is None and is_heading([line], 0))
