"""The stages of NLI comprehensiveness (Dejl et al. 2025; methods, section 2) and how they are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from udfs.ratings import SCALE, Digit
from udfs.stages.definitions import StageDefinition, Unparsable
from udfs.stages.lists import AFTERWORDS, list_items, read_rows, says_none, whole
from udfs.stages.rated import is_known, is_named, match_lines, matching_key, rating_pattern, read_digit
from udfs.stages.reading import (
    Line,
    end_of_thinking,
    is_drawing,
    is_none,
    letters,
    split_marker,
    strip_thinking,
    without_emphasis,
)

UNIT_TYPES = ("Fact", "Claim", "Instruction", "Data Format", "Meta Statement", "Question", "Other")
RELATIONS = ("entailment", "contradiction", "neutral")

ATOM_TYPE = pa.struct([pa.field("text", pa.string()), pa.field("unit_type", pa.string())])
ATOMS_SCHEMA = pa.schema([pa.field("atoms", pa.list_(ATOM_TYPE))])
REVISED_SCHEMA = pa.schema([pa.field("atoms", pa.list_(pa.string()))])
RATINGS_SCHEMA = pa.schema([pa.field("ratings", pa.list_(pa.float64()))])
RELATION_SCHEMA = pa.schema([pa.field("relation", pa.string())])

_TYPE_NAMES = {name.casefold().replace(" ", "") + end: name for name in UNIT_TYPES for end in ("", "s")}
_TYPE_LABEL = re.compile(r"[:：(\[]\s{0,9}[*_]{0,2}(?:unit )?type[*_]{0,2}\Z", re.IGNORECASE)
_BRACKETED_TYPE = re.compile(r"[(\[【][^()\[\]]{1,30}[)\]】][\W_]{0,8}\Z")
_LONGEST_TYPE = 60
_COLONS = ":："

_RATING = rating_pattern("relevance|relevancy")
_LAST_NUMBER = re.compile(rf"(?<![\w.,/+-])(?P<number>[{SCALE}])(?:\s?/\s?{SCALE[-1]})?[\W_]{{0,8}}\Z")
_LONGEST_END = 24

_LABEL = r"(?:entail(?:ment|s|ed|ing)?|contradict(?:ion|s|ed|ing|ory)?|neutral)(?![^\W_]|[\W_]{0,3}\?)"
_OTHER_LABEL = rf"[*_\"'`]{{0,3}}\s{{0,2}}(?:[/|,]\s?(?:or|and)?|or|and)\s{{0,2}}[*_\"'`]{{0,3}}{_LABEL}"
_MENTION = re.compile(rf"(?<![^\W_]){_LABEL}", re.IGNORECASE)
_STATED = re.compile(
    r"(?<![^\W_])(?:answer|relation(?:ship)?|label|classification|category|conclusion|verdict|judge?ment)"
    rf"(?: between [\w ,]{{1,60}}?)?[\W_]{{0,6}}(?:is|would be)?[\W_]{{0,8}}(?P<label>{_LABEL})(?!{_OTHER_LABEL})",
    re.IGNORECASE,
)
_LEADING = re.compile(
    rf"[\W_]{{0,8}}(?P<label>{_LABEL})(?!{_OTHER_LABEL})(?![\W_]{{1,5}}(?:no|not|false)\b)(?:\s{{0,3}}[^\w\s]|\s*\Z)",
    re.IGNORECASE,
)
_PAIR_LINE = re.compile(r"[\W_]{0,8}(?:premise|hypothesis)[\s*_]{0,4}[:：]", re.IGNORECASE)
_BREAK = re.compile(r"[.;:!?\n]|\bbut\b", re.IGNORECASE)
_WORD = re.compile(r"[\w'’]+")
_NEGATIONS = {"not", "no", "never", "neither", "nor", "cannot", "without", "non", "than", "if", "whether", "would"}
_NEGATION_REACH, _CHARACTERS_BEFORE = 3, 60


@dataclass(frozen=True)
class _Rated:
    """A line that rates: its text without the rating, and the digit, null where that is out of scale."""

    text: str
    digit: Digit | None


def parse_atoms(completion: str, variables: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """`atoms`: the units in order, each with one of `UNIT_TYPES`; none for a lone `None`.

    The type follows the last colon. Raises `Unparsable` where a bulleted unit has no known type or nothing is a unit.
    """
    rows = read_rows(completion)
    atoms = [{"text": text, "unit_type": unit_type} for text, unit_type in _units(rows) if text]
    if not atoms and not says_none(rows):
        raise Unparsable("no unit with a unit type")
    return {"atoms": atoms}


def parse_revised(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """`atoms`: the statements in order; none for a lone `None`. Raises `Unparsable` where no line is a list item."""
    rows = read_rows(completion)
    atoms = [without_emphasis(" ".join(item)) for item in list_items(rows)]
    if not atoms and not says_none(rows):
        raise Unparsable("no list of statements")
    return {"atoms": atoms}


def parse_relevance(completion: str, variables: Mapping[str, Any]) -> dict[str, list[Digit]]:
    """`ratings`: a `Digit` for each of `statements`, in their order.

    Lines are matched to statements by text first, by position second, the latter only where there are as many rated
    lines as statements. Raises `Unparsable` where a statement has no rating from 1 to 5.
    """
    statements: Sequence[str] = variables["statements"]
    rated = list(_rated_lines(completion, set(map(matching_key, statements))))
    chosen = match_lines(statements, [line.text for line in rated])
    ratings = [rated[chosen[place][-1]].digit if place in chosen else None for place in range(len(statements))]
    found = [digit for digit in ratings if digit is not None]
    if len(found) < len(statements):
        raise Unparsable(f"no rating from 1 to 5 for {len(statements) - len(found)} of {len(statements)} statements")
    return {"ratings": found}


def parse_relation(completion: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """`relation`: the one of `RELATIONS` that is the answer.

    That is the last one stated as the answer, else the one that a line begins with, else the only one that is spoken
    of without a negation. Raises `Unparsable` where that is none or several.
    """
    lines = _first_answer(strip_thinking(completion).split("\n"))
    for labels in (_stated_labels(lines), _leading_labels(lines), _spoken_labels(lines, variables)):
        if len(labels) == 1:
            return {"relation": labels.pop()}
        if labels:
            raise Unparsable("several relations and no clear answer")
    raise Unparsable(f"none of {', '.join(RELATIONS)} is the answer")


def _units(rows: Sequence[Line]) -> Iterator[tuple[str, str]]:
    """The (text, type) of each unit; a bulleted one goes on over unmarked lines until its type comes.

    Where no line has a bullet, a line without type belongs to the next one's unit, if one came before.
    """
    bulleted = any(row.marked and not is_drawing(row) for row in rows)
    begun: list[str] = []
    any_came = False
    for row in rows:
        if is_drawing(row) or is_none(row.text):
            continue
        if begun and row.marked:
            break
        if any_came and not begun and not row.marked and letters(row.text) in AFTERWORDS:
            return
        typed = _split_type(row.text)
        if typed:
            yield whole(" ".join([*begun, typed[0]])), typed[1]
            begun, any_came = [], True
        elif row.marked or begun or (any_came and not bulleted):
            begun.append(row.text)
    if begun and bulleted:
        raise Unparsable("a unit has no known unit type")


def _split_type(text: str) -> tuple[str, str] | None:
    """The unit and its type: after the last colon, or in brackets at the end."""
    bare = without_emphasis(text)
    start = max(len(bare) - _LONGEST_TYPE, 0)
    place = max(bare.rfind(colon, start) for colon in _COLONS)
    name = _type_name(bare[place + 1 :]) if place >= 0 else None
    if name is None:
        bracket = _BRACKETED_TYPE.search(bare, start)
        place, name = (bracket.start(), _type_name(bracket[0])) if bracket else (place, None)
    unit = bare[:place].rstrip()
    label = _TYPE_LABEL.search(unit, max(len(unit) - _LONGEST_TYPE, 0))
    return (unit[: label.start()] if label else unit, name) if name else None


def _type_name(text: str) -> str | None:
    return _TYPE_NAMES.get(letters(text).replace(" ", ""))


def _rated_lines(completion: str, known: set[str]) -> Iterator[_Rated]:
    """Every rating with the text that it is for: its own line's, or that of the lines that it ends."""
    begun: list[str] = []
    bulleted = False
    offset = end_of_thinking(completion)
    for line in completion[offset:].split("\n"):
        rated, marked = _read_rating(line, offset, known), split_marker(line).marked
        offset += len(line) + 1
        if rated is not None:
            yield _Rated(_rated_text(rated.text, [] if marked else begun, known), rated.digit)
            begun, bulleted = [], False
        elif line.strip():
            if marked or not bulleted:
                begun = []
            begun.append(line)
            bulleted = bulleted or marked


def _read_rating(line: str, offset: int, known: set[str]) -> _Rated | None:
    """The last rating of a line, null where it has none; a line that repeats a statement and no more has none."""
    if is_known(line, known):
        return None
    last = None
    for found in _RATING.finditer(line):
        if found["number"] or is_named(found):
            last = found
    bare = _read_bare_rating(line, offset, known)
    if last is None or bare is not None:
        return bare
    before = line[: last.start()]
    return _Rated(before if matching_key(before) else line[last.end() :], read_digit(line, last, offset))


def _read_bare_rating(line: str, offset: int, known: set[str]) -> _Rated | None:
    """A digit without a word, `statement (4)`: only where all before it is one of the statements."""
    end = line.rstrip()[-_LONGEST_END:]
    found = _LAST_NUMBER.search(end)
    if found is None:
        return None
    place = len(line.rstrip()) - len(end) + found.start()
    text = line[:place]
    return _Rated(text, Digit(int(line[place]), offset + place)) if is_known(text, known) else None


def _rated_text(text: str, begun: Sequence[str], known: set[str]) -> str:
    """The text that a rating is for: of what may be meant, the one that is a statement, else all of it."""
    if not begun:
        return text
    joined = " ".join([*begun, text])
    meant = [text, joined, begun[0]]
    return next((each for each in meant if is_known(each, known)), text if matching_key(text) else joined)


def _first_answer(lines: Iterable[str]) -> list[str]:
    """The lines up to where a plain completion runs on into a further example, without a pair that is repeated."""
    kept: list[str] = []
    answered = False
    for line in lines:
        if not _PAIR_LINE.match(line):
            kept.append(line)
            answered = answered or bool(_stated_labels([line]) or _leading_labels([line]))
        elif answered:
            break
    return kept


def _stated_labels(lines: Iterable[str]) -> set[str]:
    """The last relation that is stated as the answer, `Answer: neutral` or `the relation is neutral`."""
    found = [match for line in lines for match in _STATED.finditer(line)]
    return {_relation(found[-1]["label"])} if found else set()


def _leading_labels(lines: Iterable[str]) -> set[str]:
    found = [_LEADING.match(split_marker(line).text) for line in lines]
    return {_relation(match["label"]) for match in found if match}


def _spoken_labels(lines: Iterable[str], variables: Mapping[str, Any]) -> set[str]:
    """The relations spoken of without a negation, but for those that premise or hypothesis speak of themselves."""
    own = " ".join(str(variables.get(name) or "") for name in CLASSIFY_RELATION.variables)
    own_labels = {_relation(match[0]) for match in _MENTION.finditer(own)}
    text = "\n".join(lines)
    spoken = {_relation(match[0]) for match in _MENTION.finditer(text) if not _is_negated(text, match.start())}
    return spoken - own_labels


def _relation(word: str) -> str:
    return next(relation for relation in RELATIONS if relation[0] == word[0].lower())


def _is_negated(text: str, place: int) -> bool:
    before = _BREAK.split(text[max(0, place - _CHARACTERS_BEFORE) : place])[-1]
    words = _WORD.findall(before.lower())[-_NEGATION_REACH:]
    return any(word in _NEGATIONS or word.endswith(("n't", "n’t")) for word in words)


EXTRACT_ATOMS = StageDefinition("extract_atoms", ("text",), parse_atoms, ATOMS_SCHEMA)
REVISE_ATOMS = StageDefinition("revise_atoms", ("text", "statements"), parse_revised, REVISED_SCHEMA)
RATE_RELEVANCE = StageDefinition("rate_relevance", ("query", "statements"), parse_relevance, RATINGS_SCHEMA, rated=True)
CLASSIFY_RELATION = StageDefinition("classify_relation", ("premise", "hypothesis"), parse_relation, RELATION_SCHEMA)
