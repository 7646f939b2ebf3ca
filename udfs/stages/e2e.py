"""The stages of end-to-end comprehensiveness, of conflicts and of answers (Dejl et al. 2025; methods, section 4).

A completion of `evaluate_coverage` has two lists under headings, or JSON, with the sources of each item.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from untold.udfs.errors import Unparsable
from untold.udfs.facts.nodes import normalise
from untold.udfs.stages import forms
from untold.udfs.stages.answers import read_text, reader, unbulleted
from untold.udfs.stages.definitions import RECORDED, WRITTEN, ExtractedItem, Figures, LinearSize, StageDefinition
from untold.udfs.stages.labels import Vocabulary, numbered_labels, read_numbered_labels
from untold.udfs.stages.lists import NUMBERS, balanced, item_text
from untold.udfs.stages.non_answers import has_no_content, says_absent
from untold.udfs.stages.reading import (
    breaks_off,
    collapsed,
    introduces,
    is_drawing,
    split_marker,
    without_start,
    without_ticks,
)
from untold.udfs.stages.schemas import TEXT, THOUGHTS, OutputFormat, lines_of, listed, number_of, record

COVERED, UNCOVERED = "covered", "uncovered"
_STATEMENT_TYPE = pa.struct({"text": pa.string(), "covered": pa.bool_(), "sources": NUMBERS})
_SIDE_TYPE = pa.struct({"text": pa.string(), "sources": NUMBERS})
_CONFLICT_TYPE = pa.struct(dict.fromkeys(("first", "second"), _SIDE_TYPE))
_QUOTES = ('""', "“”", "«»", "„“")

_STATEMENT = record(statement=TEXT, sources=listed(number_of("contexts")))
_LINES = r"(?:- .+ \[\d+(?:, ?\d+)*\]\s*|None\s*)?(?:- .+ \[\d+(?:, ?\d+)*\]\s*)*"
_COVERAGE_FORM = OutputFormat(
    "reasoning, then `[Covered statements]` and `[Uncovered statements]` on lines of their own, below each one line "
    "`- statement [1, 3]` for each of its statements",
    re.compile(rf"(?s:.*?)\[Covered statements\]\n\s*{_LINES}\[Uncovered statements\]\s*{_LINES}"),
)

_SUMMARY_FIELDS = ("summary", "relevantsummary", "condensedtext", "condensed", "relevanttext", "text")
_NOTHING = ("n/a", "null", "nothing relevant", "not applicable")
# A sentence about the query is a remark on the task, unless the source mentions a query
_SOURCE = r"(?:the|this) (?:(?:given|provided|source) )?(?:text|passage|context|source)"
_IRRELEVANT = re.compile(
    rf"(?:none of {_SOURCE}\b|(?:nothing|no sentence) in {_SOURCE}\b|no relevant (?:information|sentences?|text)\b"
    rf"|{_SOURCE} (?:(?:is|are) (?:\w+ )?(?:irrelevant|unrelated|not relevant|not related)"
    r"|(?:does not|doesn['’]t|do not) (?:\w+ )?(?:contain|mention|provide|bear|help|relate|address)"
    r"|(?:contains|provides|has|says) (?:no|nothing)\b))[^.\n]{0,160}\bquery\b[^.\n]{0,80}\.?",
    re.IGNORECASE,
)
_SIDES = Vocabulary(
    {COVERED: (), UNCOVERED: ("not covered",)},
    positive=COVERED,
    flags=(COVERED, UNCOVERED),
    names=("covered",),
    inputs=("statement", "statements"),
)
_NO_CONFLICT = re.compile(r"\W*(?:there are )?no (?:conflicts|contradictions)\W*", re.IGNORECASE)
_SOURCES_OF_SIDE = ("sources", "source", "contexts", "context", "sourceids", "contextids", "ids")

_HEADING = re.compile(
    r"^[^\w\n\[(<]{0,12}(?:\d[.)][ \t]?)?[^\w\n\[(<]{0,6}[\[(【<]?(?:(?:and )?here are )?(?:list of |the |fully )?"
    r"(?P<partial>partial(?:ly)? |partly )?(?:(?P<not>un|not[ _-]|non-)?covered|(?P<missing>missing))"
    r"(?:[ _](?:statements?|facts?|claims?|items?))?(?: list| by the response)?[\])】>]?[*_]{0,2}[ \t]*"
    r"(?:\([^()\n]{1,60}\))?[ \t]*[:：]?[*_]{0,2}[ \t]*(?P<rest>[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
# Brackets with a number. `_is_sources` finds those that contain only numbers of contexts
_BRACKET = (
    r"(?:\[{1,2}|[【［])[^\[\]【】［］\n]{0,60}\d[^\[\]【】［］\n]{0,120}(?:\]{1,2}|[】］])"
    r"|\((?:contexts?|sources?) \d{1,4}\)"
)
_BETWEEN_BRACKETS = r"[*_]{0,2}\s*+(?:[,;]?\s*+and|[,;]|to|&|–|-)?+\s*+[*_]{0,2}"
_SOURCES_BEHIND = re.compile(
    rf"(?<!\s)\s*(?:[–—-]\s*)?[*_`]{{0,2}}(?P<sources>(?:{_BRACKET})(?:{_BETWEEN_BRACKETS}(?:{_BRACKET})){{0,12}})"
    r"[\s*_`.)✅❌]*(?:\([^()\[\]]{0,100}\))?\W*\Z"
    r"|(?<!\s)\s*(?:[(\[]|[-–—]\s*)?(?:contexts?|sources?):?\s*"
    r"(?P<numbers>\d{1,6}(?!\d)(?:\s*(?:,|and|&)\s*\d{1,6}(?!\d)){0,40})[)\]]?[\s.*_]*\Z",
    re.IGNORECASE,
)
_NUMBER_WORDS = re.compile(
    r"\s*(?:[,;、，&–-]|and|to)?\s*(?:(?:contexts?|sources?|ctx|c)\.?:?\s?(?:ids?\s)?|[#^])?\s*|\s*(?:†source)?\s*",
    re.IGNORECASE,
)
_SOURCES = re.compile(_BRACKET, re.IGNORECASE)
_NUMBER_OR_RANGE = re.compile(r"(\d{1,6})\]?\s*(?:-|–|to)\s*\[?(\d{1,6})(?!\d)|\d+")
# Behind a sentence, a dash or a bracket, or with a colon. Otherwise it is the last word, as in "It depends on context"
_SOURCES_LABEL = re.compile(
    r"(?:(?<=[.;,!?])\s*|(?<![\s*_(–-])(?=\s*[*_(–-])[\s*_(–-]*|(?<!\s)\s+(?=\w{6,8}\s*[:：]))"
    r"(?:contexts?|sources?)\s*[:：]?[*_\s]*\Z",
    re.IGNORECASE,
)
_ITEM_LABEL = re.compile(r"(?:\*\*)?(?:statement|fact)\s?\d{0,3}\s?[:：](?:\*\*)?\s*", re.IGNORECASE)
_NONE = re.compile(
    r"\W*(?:none|nothing|n/a|empty|(?:the response covers )?no (?:(?:un)?covered |missing )?statements?\b[^.\n]*"
    r"|no (?:uncovered|covered|missing)[^.\n]*|all (?:of the )?statements? (?:are|were) [^.\n]*"
    r"|none (?:identified|found|missing|of the above)|nothing (?:is |was )?(?:un)?(?:covered|missing))\W*"
    r"(?:\(?all [^.\n]*\)?|the response [^\n]*)?",
    re.IGNORECASE,
)
_PARTIAL = re.compile(r"(?:[(\[*]|^)[^()\[\]]{0,20}(?:partial|partly|in part)", re.IGNORECASE)
_MOVED = re.compile(r"[(\[]\s*(?:not|un)[ -]?covered\b", re.IGNORECASE)
_REMARK = re.compile(r"[→>(⇒]|(?:reason|note|explanation|quote|evidence)\w*\b[:\s]", re.IGNORECASE)
_CLOSES_LIST = re.compile(r"\W*(?:overall|in summary|total|summary)\b", re.IGNORECASE)
_TEXT_NAMES = ("statement", "text", "fact", "claim")
_SOURCE_NAMES = ("sources", "contexts", "source", "context", "contextids", "sourceids", "ids", "evidence", "numbers")
_COVERED_NAMES = ("coveredstatements", "covered")
_UNCOVERED_NAMES = ("uncoveredstatements", "uncovered", "notcovered", "notcoveredstatements")
_COVERED_WORDS = dict.fromkeys(("true", "covered", "yes"), True)
_COVERED_WORDS |= dict.fromkeys(("false", "uncovered", "no", "not covered"), False)


@partial(reader, is_text=True)
def parse_summary(text: str, variables: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the `summary` of the context, null for `None` and for a sentence that reports no relevant content.

    Raises `Unparsable` for an empty completion.
    """
    own = str(variables.get("text") or "")
    said = read_text(text, _SUMMARY_FIELDS, own)
    if said is None:
        return {"summary": None}
    summary = unbulleted(str(said))
    if not any(map(str.isalnum, summary)) or (has_no_content(summary) and not has_no_content(own)):
        raise Unparsable("no summary")
    if breaks_off(summary, own):
        raise Unparsable("a summary that breaks off")
    is_absent = says_absent(summary) and collapsed(summary).casefold() not in collapsed(own).casefold()
    is_remark = _IRRELEVANT.fullmatch(summary) is not None and "query" not in own.casefold()
    if is_absent or is_remark or forms.says_nothing(summary) or summary.strip(" .*_`").casefold() in _NOTHING:
        return {"summary": None}
    return {"summary": summary}


def summaries_in(completion: str) -> list[ExtractedItem]:
    """Return the summary as the only item, or no item for `None`. Raises `Unparsable`."""
    summary = parse_summary(completion, {})["summary"]
    return [] if summary is None else [ExtractedItem(summary)]


class _Statement(NamedTuple):
    text: str
    covered: bool
    sources: list[int]


@partial(reader, reasons=True)
def parse_coverage(text: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `statements`, covered ones first, and the number of `dropped` items, which name no shown context.

    Statements with equal texts are one with the sources of both. Raises `Unparsable` for a missing heading, for
    partially covered statements, and for items none of which names a shown context.
    """
    count = len(variables["contexts"])
    values, rest = forms.find_json(text) if "{" in text else ([], text)
    if values and _HEADING.search(rest) and _names_sources(rest):
        raise Unparsable("JSON and lists outside of it")
    own = [collapsed(str(variables.get(name) or "")) for name in ("query", "response")]
    read = _of_json(values, count) if values else _of_lists(text, count, own)
    if not all(_is_visible(one.text) for one in read):
        raise Unparsable("an item without text")
    found = [one for one in read if not _says_none(one.text)]
    statements: dict[str, dict[str, Any]] = {}
    for statement in sorted(found, key=lambda one: not one.covered):
        if statement.sources:
            known = statements.setdefault(collapsed(statement.text), {**statement._asdict(), "sources": []})
            known["sources"] = sorted({*known["sources"], *statement.sources})
    if found and not statements:
        raise Unparsable("no item names a context that was shown")
    return {"statements": list(statements.values()), "dropped": sum(not one.sources for one in found)}


def _of_lists(text: str, count: int, own: Sequence[str]) -> list[_Statement]:
    """Return the statements below the last heading of each kind. Skip headings that quote one of the `own` texts."""
    headings = [found for found in _HEADING.finditer(text) if not found["rest"].strip() or _says_none(found["rest"])]
    if any("covered" in each.casefold() for each in own):
        headings = [found for found in headings if not _is_quoted(text, found, own)]
    if any(found["partial"] for found in headings):
        raise Unparsable("partially covered statements")
    ends = [found.start() for found in headings[1:]] + [len(text)]
    parts = [text[heading.end() : end] for heading, end in zip(headings, ends, strict=False)]
    sections = {each: "" if each["rest"].strip() else part for each, part in zip(headings, parts, strict=True)}
    # A heading without sources below it may be a total, and opens a list only if no other heading of its kind does
    by_weight = sorted(headings, key=lambda heading: _names_sources(sections[heading]))
    last = {not (found["not"] or found["missing"]): found for found in by_weight}
    if len(last) < 2:
        raise Unparsable("a heading is missing")
    statements = []
    for heading, section in sections.items():
        if heading not in last.values():
            if _names_sources(section):
                raise Unparsable("two lists under one heading")
        elif section:
            statements += _of_section(section, not (heading["not"] or heading["missing"]), count)
    return statements


def _is_quoted(text: str, heading: re.Match[str], own: Sequence[str]) -> bool:
    """Return True if one of the `own` texts contains a heading and the line below it."""
    below = next((line for _, line in forms.lines_with_places(text[heading.end() :])), "")
    quoted = collapsed(f"{heading[0]} {below}").removeprefix("> ")
    return any(quoted in each for each in own)


def _of_section(text: str, covered: bool, count: int) -> list[_Statement]:
    table = forms.find_table(text)
    if table is not None:
        return [_of_record(row, covered, count) for row in table[0]]
    statements = [_of_item(item, covered, count) for item in _items(text)]
    statements = [one for one in statements if not _says_none(one.text)]
    if statements and not any(one.sources for one in statements):
        raise Unparsable("items without known sources")
    return statements


def _items(text: str) -> list[str]:
    """Return the items of a list without remarks on them and without the text below the list."""
    items: list[str] = []
    base, is_marked, below_blank = -1, False, False
    for raw in text.split("\n"):
        row = split_marker(raw)
        if is_drawing(row) or not any(map(str.isalnum, row.text)):
            below_blank = True
            continue
        is_quoted = raw.lstrip().startswith(">")
        if is_quoted or (base < 0 and not row.marked and introduces(row.text)):
            continue
        if base < 0:
            base, is_marked = row.indent, row.marked
        if row.marked and row.indent > base + 1:
            if not _REMARK.match(row.text):
                raise Unparsable("a list below an item")
        elif row.marked or not (is_marked or (below_blank and items)):
            if items and _CLOSES_LIST.match(row.text):
                break
            items.append(row.text)
        elif items and raw[:1] in " \t" and not below_blank:
            items[-1] += "" if _REMARK.match(row.text) else f" {row.text}"
        elif below_blank or raw.lstrip()[0] in "#*[":
            break
        else:
            raise Unparsable("lines with and without a bullet")
        below_blank = False
    return items


def _of_item(item: str, covered: bool, count: int) -> _Statement:
    if _PARTIAL.search(item):
        raise Unparsable("a partially covered statement")
    if covered and _MOVED.search(item):
        raise Unparsable("a statement with two labels")
    text, said = _split_sources(item)
    text = _SOURCES_LABEL.sub("", text).strip()
    text = forms.undecorated(balanced(without_start(_ITEM_LABEL, text)))
    return _Statement(text, covered, _known(_numbers(said), count))


def _split_sources(item: str) -> tuple[str, str]:
    """Return the text of an item and the numbers of its sources, "" for none."""
    behind = _SOURCES_BEHIND.search(item)
    if behind and behind["numbers"]:
        return item[: behind.start()], behind["numbers"]
    if behind:
        brackets = list(_SOURCES.finditer(behind["sources"]))
        first = len(brackets)
        while first and _is_sources(brackets[first - 1][0]):
            first -= 1
        if first < len(brackets):
            start = behind.start("sources") + brackets[first].start() if first else behind.start()
            return item[:start], item[behind.start("sources") + brackets[first].start() : behind.end("sources")]
    return item, ""


def _names_sources(text: str) -> bool:
    return any(_is_sources(found[0]) for found in _SOURCES.finditer(text))


def _is_sources(bracket: str) -> bool:
    """Return whether a bracket has nothing but numbers of contexts."""
    return all(map(_NUMBER_WORDS.fullmatch, re.split(r"\d+", bracket.strip("[]()【】［］"))))


def _numbers(text: str) -> Iterable[int]:
    """Return the numbers of a text, ranges included."""
    for found in _NUMBER_OR_RANGE.finditer(text):
        if found[1] and not 0 <= int(found[2]) - int(found[1]) <= 1000:
            raise Unparsable("a range that does not ascend")
        yield from range(int(found[1]), int(found[2]) + 1) if found[1] else [int(found[0])]


def _known(numbers: Iterable[int], count: int) -> list[int]:
    numbers = set(numbers)
    if 0 in numbers:
        raise Unparsable("the number 0")
    return sorted(number for number in numbers if number <= count)


def _of_json(values: Sequence[Any], count: int) -> list[_Statement]:
    value = values[0]
    if any(each != value for each in values):
        raise Unparsable("two results that differ")
    lone = next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else None
    value = lone if isinstance(lone, (dict, list)) else value
    if isinstance(value, list):
        return [_of_record(each, None, count) for each in value]
    if any(name.startswith("partial") for name in value):
        raise Unparsable("partially covered statements")
    lists = [(forms.get_field(value, _COVERED_NAMES), True), (forms.get_field(value, _UNCOVERED_NAMES), False)]
    if not all(isinstance(each, list) for each, _ in lists):
        raise Unparsable("an object without two lists of statements")
    return [_of_record(each, covered, count) for listed, covered in lists for each in listed]


def _of_record(value: Any, covered: bool | None, count: int) -> _Statement:
    if isinstance(value, str) and covered is not None:
        return _of_item(value, covered, count)
    if not isinstance(value, dict):
        raise Unparsable("a list element without a statement")
    if covered is None:
        covered = _COVERED_WORDS.get(str(forms.get_field(value, ("covered", "label", "status"))).casefold())
    text = forms.get_field(value, _TEXT_NAMES)
    if covered is None or not isinstance(text, str) or not any(name in value for name in _SOURCE_NAMES):
        raise Unparsable("a statement without text, sources or label")
    sources = forms.get_field(value, _SOURCE_NAMES)
    known = _known(_numbers(sources), count) if isinstance(sources, str) else forms.numbers_of_value(sources, count)[0]
    bare, said = _split_sources(text.strip())
    return _Statement(bare if said and _known(_numbers(said), count) == known else text.strip(), covered, known)


def _is_visible(text: str) -> bool:
    """Return False for a text of spaces, and of marks without a width."""
    return any(sign.isprintable() and not sign.isspace() for sign in text)


def _says_none(text: str) -> bool:
    return forms.says_nothing(text) or _NONE.fullmatch(text.strip()) is not None


@reader
def parse_sides(text: str, variables: Mapping[str, Any]) -> dict[str, list[bool]]:
    """Return whether each of `statements` is `covered`. Raises `Unparsable` for one without a clear label."""
    labels = read_numbered_labels(text, variables["statements"], _SIDES)
    if None in labels:
        raise Unparsable("a statement without a clear label")
    return {"covered": [label == COVERED for label in labels]}


@reader
def parse_conflicts(text: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `conflicts`, each pair once, and how many pairs beside them were `dropped`: a side names no context.

    Raises `Unparsable` for a pair without two statements and their sources, and if no pair names shown contexts.
    """
    if forms.says_nothing(text) or _NO_CONFLICT.fullmatch(text):
        return {"conflicts": [], "dropped": 0}
    found = forms.find_records(text, ("first", "second"))
    if found is None:
        raise Unparsable("no object with two statements")
    conflicts: dict[frozenset[str], dict[str, Any]] = {}
    dropped = 0
    for each in found[0]:
        sides = {name: _side(each, name, len(variables["contexts"])) for name in ("first", "second")}
        pair = frozenset(normalise(side["text"]) for side in sides.values())
        if not all(side["sources"] for side in sides.values()):
            dropped += 1
        elif len(pair) > 1:
            conflicts.setdefault(pair, sides)
    if dropped and not conflicts:
        raise Unparsable("no pair with contexts that were shown")
    return {"conflicts": list(conflicts.values()), "dropped": dropped}


def _side(value: Any, name: str, count: int) -> dict[str, Any]:
    known = value if isinstance(value, dict) else {}
    text, sources = known.get(name), forms.get_field(known, [f"{name}{each}" for each in _SOURCES_OF_SIDE])
    if isinstance(text, dict):
        text, sources = forms.get_field(text, ("text", "statement")), forms.get_field(text, ("sources", "contexts"))
    if not isinstance(text, str) or not text.strip() or sources is None:
        raise Unparsable("a pair without two statements and their sources")
    return {"text": text.strip(), "sources": forms.numbers_of_value(sources, count)[0]}


@partial(reader, is_text=True, may_be_code=True)
def parse_answer(text: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the `answer`: the text without a fence or tags around it. Raises `Unparsable` for an empty one."""
    answer = read_text(text, ("answer", "response"), str(variables.get("query") or ""))
    if not isinstance(answer, str) or not any(map(str.isalnum, answer)):
        raise Unparsable("no answer")
    return {"answer": forms.undecorated(answer)}


@partial(reader, is_text=True)
def parse_restated(text: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the `statement`: the first sentence or paragraph, on one line, without label, bullet and quotation marks.

    Raises `Unparsable` for an empty statement, and for a table in its place.
    """
    said = read_text(text, ("statement", "restatedstatement", "sentence", "text"))
    if not isinstance(said, str):
        raise Unparsable("no statement")
    lines = [line for line in said.split("\n") if any(map(str.isalnum, line))]
    line = unbulleted(without_ticks(lines[0].strip())) if len(lines) == 1 else ""
    statement = item_text(line)
    # `The statement: a lie, was made.` has no label
    statement = line if statement[:1].islower() and not line[:1].islower() else statement
    if statement[:1] + statement[-1:] in _QUOTES and statement[0] not in statement[1:-1]:
        statement = statement[1:-1].strip()
    given = [word for name in ("question", "answer") for word in str(variables.get(name) or "").casefold().split()]
    # `1. FC Köln` keeps its number
    rest = split_marker(statement).text
    if rest.split()[:1] and rest.casefold().split()[0] in given and statement.split()[0] not in given:
        statement = rest
    if not any(map(str.isalnum, statement)) or statement.startswith("|") or statement.endswith((":", "?")):
        raise Unparsable("no statement on one line")
    if breaks_off(statement, " ".join(given)):
        raise Unparsable("a statement that breaks off")
    return {"statement": statement}


SUMMARISE_CONTEXT = StageDefinition(
    "summarise_context",
    ("query", "text"),
    parse_summary,
    pa.schema({"summary": pa.string()}),
    schema=record(summary={"type": ["string", "null"]}),
    form=OutputFormat("the summary alone, or the single word None"),
    figures=Figures(RECORDED, completion=LinearSize(slope=0.44), things=LinearSize(0.99)),
    things=summaries_in,
    text="summary",
)
EVALUATE_COVERAGE = StageDefinition(
    "evaluate_coverage",
    ("query", "contexts", "response"),
    parse_coverage,
    pa.schema({"statements": pa.list_(_STATEMENT_TYPE), "dropped": pa.int64()}),
    schema=record(reasoning=THOUGHTS, covered_statements=listed(_STATEMENT), uncovered_statements=listed(_STATEMENT)),
    form=_COVERAGE_FORM,
    # Recorded lists have 0.64 tokens per token. The reasoning, which was not recorded, repeats each statement once.
    figures=Figures(RECORDED, completion=LinearSize(slope=1.28)),
    max_tokens=16_384,
    items=("statements",),
)
# The requested form. The two parts match no common text, so matching takes linear time.
_TEXT, _NUMBERS = r'"(?:[^"\\\n]|\\.)+"', r"\[[\d, ]*\]"
_SOURCE_NUMBERS = listed(number_of("contexts"))
LIST_CONFLICTS = StageDefinition(
    "list_conflicts",
    ("query", "contexts"),
    parse_conflicts,
    pa.schema({"conflicts": pa.list_(_CONFLICT_TYPE), "dropped": pa.int64()}),
    schema=record(
        conflicts=listed(record(first=TEXT, first_sources=_SOURCE_NUMBERS, second=TEXT, second_sources=_SOURCE_NUMBERS))
    ),
    form=lines_of(
        rf'\{{"first": {_TEXT}, "first_sources": {_NUMBERS}, "second": {_TEXT}, "second_sources": {_NUMBERS}\}}',
        '{"first": "...", "first_sources": [n, ...], "second": "...", "second_sources": [n, ...]}',
        "one object on a line for each conflict:",
    ),
    figures=Figures(WRITTEN, completion=LinearSize(slope=1.03)),
    max_tokens=8_192,
    items=("conflicts",),
)
COVER_SIDES = StageDefinition(
    "cover_sides",
    ("response", "statements"),
    parse_sides,
    pa.schema({"covered": pa.list_(pa.bool_())}),
    **numbered_labels("statements", (COVERED, UNCOVERED), ("labels", "id", "label")),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.4)),
)
GENERATE_ANSWER = StageDefinition(
    "generate_answer",
    ("query", "contexts"),
    parse_answer,
    pa.schema({"answer": pa.string()}),
    form=OutputFormat("the answer alone"),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.81)),
    text="answer",
)
RESTATE_ANSWER = StageDefinition(
    "restate_answer",
    ("question", "answer"),
    parse_restated,
    pa.schema({"statement": pa.string()}),
    schema=record(statement=TEXT),
    form=OutputFormat("one statement on one line", re.compile(".+")),
    figures=Figures(WRITTEN, completion=LinearSize(slope=1.22)),
    text="statement",
)
