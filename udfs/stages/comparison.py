"""Reading how two answers relate (Dejl et al. 2025; methods, sections 3 and 9)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from untold.udfs.facts.nodes import normalise
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.labels import BOXED
from untold.udfs.stages.lists import whole
from untold.udfs.stages.numbered import NumberedTexts, matching_key, read_numbered_labels
from untold.udfs.stages.reading import is_drawing, letters, past_echoes, split_marker, strip_thinking
from untold.udfs.stages.records import Record, read_records

RELATIONS = ("equivalent", "first_implies_second", "second_implies_first", "contradictory", "neutral")

# What stands beside the number of an answer: `Answer 3`, `a3`
_NUMBER_WORDS = re.compile(r"(?<![^\W_])(?:answers?|others?|nos?|numbers?|ids?|a)(?![^\W\d_])", re.IGNORECASE)
_DECORATION = 60  # characters by which a side may be longer than its answer: quotation marks, emphasis, a label
_NAMES = {
    "equivalent": r"equivalent|equivalence",
    "first_implies_second": r"first(?: answer)? (?:implies|entails)(?: the)? second(?: answer)?",
    "second_implies_first": r"second(?: answer)? (?:implies|entails)(?: the)? first(?: answer)?",
    "contradictory": r"contradictory|contradictions?|contradicts?",
    "neutral": r"neutral",
}
_RELATION_NAME = re.compile(
    r"(?:(?:final )?(?:classification|relation|relationship|label|answer|result)(?: is)? )?(?:the )?(?:"
    + "|".join(f"(?P<{relation}>{names})" for relation, names in _NAMES.items())
    + ")"
)
_BOLD = re.compile(r"\*\*([^*\n]{1,80})\*\*")
_LABELLED = re.compile(
    r"(?<![^\W_])(?:classification|relation(?:ship)?|label|verdict)[*_]{0,2}\s?(?:[:：]|is\b)[\W_]{0,6}"
    rf"((?:the )?(?:{'|'.join(_NAMES.values())}))(?![^\W_])",
    re.I,
)
_SQUARE_BRACKET = re.compile(r"[\[【［]([^\[\]【】［］]{1,80})[\]】］]")
_ROUND_BRACKET = re.compile(r"[(（]([^()（）]{1,80})[)）]")
_AFTER_RELATION = re.compile(r"[\W_]{0,9}\Z|[*_.`\s]{0,6}(?:[(#]|[-–—:;,]\s|(?:note|because|since|as)\b)", re.I)
# What a relation is set apart by from a reason behind it
_REASON = re.compile(r"[*_`\]]{0,3}(?:\s[-–—]{1,2}\s|[:;,.(])")
_SIDE_LABEL = re.compile(
    r"(?:(?:the )?(?:final|first|second) )?(?:answer|first|second|classification|comparison|result|a)"
    r"(?: ?[12ab])?[*_]{0,2} ?(?:[:：][*_]{0,2}|(?=[(\"'“‘]))",
    re.I,
)
_BETWEEN_SIDES = re.compile(r"(?<=\s)(?:-{1,3}|[–—−|]|vs\.?)(?=\s)", re.I)
_SPLIT = re.compile(r"(?<=\s)(?:-{1,3}|[–—−|/;&→⇒↔]|vs\.?|and|to)(?=\s)", re.I)
_AROUND_SIDE = " \t\r*_`\"'“”‘’«»[]()<>"
_MOST_SPLITS = 64  # of one line: an answer may be a list of dashes, and each split is compared in three forms
_SWAPPED = {"first_implies_second": "second_implies_first", "second_implies_first": "first_implies_second"}
_RELATION_FIELDS = ("relation", "relationship", "classification", "label", "verdict", "result", "answer")
_LONE_OBJECT = re.compile(r"\A[`~\w\s]{0,20}\{|\}[`~\s]{0,20}\Z")
_BRACKETS = (_SQUARE_BRACKET, _ROUND_BRACKET, _BOLD, _LABELLED)


@final_answer
@past_echoes
def parse_comparison(completion: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """`relation`: one of `RELATIONS`, of the variable `first` to `second`, whichever the completion names first.

    That is the classification on the last line, below which one note may stand. Raises `Unparsable` where that has
    none or several.
    """
    recorded = _recorded(completion, variables)
    if recorded is not None:
        return {"relation": recorded}
    lines = reversed(strip_thinking(completion).split("\n"))
    last = list(islice((line for line in lines if not is_drawing(split_marker(line))), 3))
    last = [BOXED.sub(r"[\1]", line) for line in last]
    for place, line in enumerate(last[:2]):
        found = _classified(line, is_last=place == 0, variables=variables)
        if found is not None:
            sides, relation = found
            if place == 0 and any(_relation(each) not in (None, relation) for each in last[1:2]):
                raise Unparsable("two classifications that differ")
            if place == 0 and matching_key(sides) and _said_above(last[1:2], sides, relation, variables):
                raise Unparsable("an afterword with another classification")
            sides = sides if matching_key(sides) else "".join(last[place + 1 : place + 2])
            orders = _orders(sides, variables["first"], variables["second"])
            return {"relation": _turned(relation, orders)}
        if _SQUARE_BRACKET.search(line):
            break
    raise Unparsable("no classification on the last line")


@final_answer
@past_echoes
def parse_comparisons(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """`relations`: one of `RELATIONS` of `answer` to each of `others`, in their order, as `read_numbered_labels` finds.

    None where an answer has no clear relation or several. Raises `Unparsable` where none has one.
    """
    numbered = NumberedTexts(variables["others"], _NUMBER_WORDS)
    return {"relations": read_numbered_labels(completion, numbered, _read_listed)}


def _read_listed(text: str, number: int) -> str:
    """The relation that a line of a list names, in front of a reason or in brackets. Raises `Unparsable`."""
    lines = [line for line in text.split("\n") if line.strip()]
    named = [_relation(line) or _relation(_REASON.split(line.strip(), maxsplit=1)[0]) for line in lines]
    bracketed = [relation for line in lines for _, relation in _bracketed(line, _SQUARE_BRACKET)]
    said = {*filter(None, named), *bracketed}
    if said:  # `neutral, contradictory` names two
        said |= {relation for line in lines for part in _REASON.split(line.strip()) if (relation := _relation(part))}
    if len(said) != 1:
        raise Unparsable("no clear relation beside a number")
    return said.pop()


def _recorded(completion: str, variables: Mapping[str, Any]) -> str | None:
    """The relation that a lone JSON object gives in a field; its fields `first` and `second` may be swapped."""
    records = read_records(completion) if _LONE_OBJECT.search(strip_thinking(completion)) else None
    record = records.values[0] if records and len(records.values) == 1 else None
    said = record.cell(_RELATION_FIELDS) if isinstance(record, Record) else None
    relation = _relation(said.text) if said else None
    if relation is None or not isinstance(record, Record):
        return None
    named = [record.cell((name,)) for name in ("first", "second")]
    sides = " - ".join(side.text for side in named if side)
    return _turned(relation, _orders(sides, variables["first"], variables["second"]))


def _said_above(above: Sequence[str], sides: str, relation: str, variables: Mapping[str, Any]) -> bool:
    """Whether a last line of prose is an afterword: above it stands `first - second [...]` with another relation."""
    answers = variables["first"], variables["second"]
    found = [each for line in above for each in _bracketed(line, _SQUARE_BRACKET)][-1:]
    named = [bracket.string[: bracket.start()] for bracket, said in found if said != relation]
    return any(_orders(each, *answers) for each in named) and not _orders(sides, *answers)


def _turned(relation: str, orders: set[bool]) -> str:
    """The relation of the variable `first` to `second`, where a completion names them in one of `orders`."""
    return _SWAPPED.get(relation, relation) if orders == {True} else relation


def _classified(line: str, is_last: bool, variables: Mapping[str, Any]) -> tuple[str, str] | None:
    """What stands before the classification that ends a line, and its relation; alone it needs no bracket.

    Brackets within the two answers are none. Above a note only `first - second [classification]` counts.
    """
    if is_last and not any(map(str.isdigit, line)) and (relation := _relation(line)):
        return "", relation
    found = next((found for brackets in _BRACKETS if (found := _bracketed(line, brackets))), [])
    if not found or not _AFTER_RELATION.match(line, found[-1][0].end()):
        return None
    bracket, relation = found[-1]
    sides = line[: bracket.start()]
    first, second = variables["first"], variables["second"]
    if _orders(line, first, second):
        return None
    if len({relation for _, relation in found}) > 1 and not _orders(sides, first, second):
        raise Unparsable("several classifications on the last line")
    return (sides, relation) if is_last or not matching_key(sides) or _BETWEEN_SIDES.search(sides) else None


def _bracketed(line: str, brackets: re.Pattern[str]) -> list[tuple[re.Match[str], str]]:
    """The brackets of one kind on a line that hold a relation and nothing else."""
    return [(found, relation) for found in brackets.finditer(line) if (relation := _relation(found[1]))]


def _relation(text: str) -> str | None:
    """The relation that a text names and nothing else."""
    plain = len(text) <= _DECORATION * 2 and not {"?", "？"} & set(text)
    named = _RELATION_NAME.fullmatch(letters(text)) if plain else None
    return named.lastgroup if named else None


def _orders(sides: str, first: str, second: str) -> set[bool]:
    """Whether a line names the two answers swapped: both where that cannot be told, none where it does not name them.

    As they are written first, then without decoration, then by letters and digits.
    """
    splits = list(_splits(sides, (len(first), len(second))))
    forms: tuple[Callable[[str], str], ...] = (normalise, _plain_side, matching_key)
    for form in forms:
        pair = form(first), form(second)
        named = [(form(left), form(right)) for left, right in splits] if all(pair) else []
        orders = {swapped for swapped, wanted in ((False, pair), (True, pair[::-1])) if wanted in named}
        if orders:
            return orders
    return set()


def _splits(sides: str, lengths: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """The ways to read a line as `first - second` where the parts are about as long as the answers."""
    places = (found.span() for found in _SPLIT.finditer(sides))
    near = ((start, end) for start, end in places if any(abs(start - length) <= _DECORATION for length in lengths))
    for start, end in islice(near, _MOST_SPLITS):
        if any(abs(len(sides) - end - length) <= _DECORATION for length in lengths):
            yield sides[:start].strip(), sides[end:].strip()


def _plain_side(text: str) -> str:
    """An answer as a side of `first - second` gives it, without label, bullet and quotation marks."""
    bare = split_marker(whole(text)).text.strip(_AROUND_SIDE)
    label = _SIDE_LABEL.match(bare)
    return normalise(bare[label.end() if label else 0 :].strip(_AROUND_SIDE))
