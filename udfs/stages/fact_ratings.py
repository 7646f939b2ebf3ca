"""Reading how relevant and how salient numbered facts are ("Beyond Precision", 2026; methods, section 9)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from untold.udfs.ratings import Digit
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.numbered import Numbered, number_in
from untold.udfs.stages.rated_lines import read_rated_lines
from untold.udfs.stages.reading import answer_in_place
from untold.udfs.stages.records import Cell, Record, Value, json_at_line_starts, read_rating, read_records
from untold.udfs.stages.repeated_tags import past_echoes

SCALES: Mapping[str, Sequence[str]] = {
    "relevance": ("relevance", "relevancescore", "relevancerating", "relevancy"),
    "salience": ("salience", "saliencescore", "saliencerating", "saliency"),
}
_ID_NAMES = ("id", "factid", "number", "factnumber", "no", "index")
_TEXT_NAMES = ("", "fact", "statement", "text")  # the first is a column `#`
_WORDS: Mapping[str, str] = {"relevance": "relevance|relevancy", "salience": "salience|saliency"}  # in lines
_SCORE_NAMES = ("score", "rating", "value")
# What stands beside a fact's number: `Fact 3`, `fact_3`, `F3`
_FACT_WORDS = re.compile(r"(?<![^\W_])(?:facts?|statements?|no|number|id|f)(?![^\W\d_])", re.IGNORECASE)


class _Said(NamedTuple):
    """A rating of a fact, by its number, on a scale; the digit is null where it is no whole number from 1 to 5."""

    fact: int
    scale: str
    digit: Digit | None


@final_answer
@past_echoes
def parse_importance(completion: str, variables: Mapping[str, Any]) -> dict[str, list[Digit]]:
    """`relevance` and `salience`: a `Digit` for each of `facts`, in their order.

    Objects with other ids, and other fields, are passed over. Raises `Unparsable` where a fact lacks a rating from 1 to
    5, or has two that differ.
    """
    facts = Numbered(variables["facts"], _FACT_WORDS)
    text = answer_in_place(completion)
    records = read_records(json_at_line_starts(text))
    said: defaultdict[tuple[str, int], list[Digit | None]] = defaultdict(list)
    if records is None:
        said.update(read_rated_lines(text, _WORDS, facts))
    for one in _ratings(list(records.values) if records else [], 0, facts):
        said[one.scale, one.fact].append(one.digit)
    return {
        scale: [_agreed(said[scale, number], scale) for number in range(1, len(facts.texts) + 1)] for scale in SCALES
    }


def _agreed(digits: Sequence[Digit | None], scale: str) -> Digit:
    """The only rating, or the last of several that agree."""
    found = [digit for digit in digits if digit is not None]
    if not digits or len(found) < len(digits):
        raise Unparsable(f"a fact without a {scale} from 1 to 5")
    if len({digit.value for digit in found}) > 1:
        raise Unparsable(f"two ratings of one fact's {scale}")
    return found[-1]


def _ratings(value: Value, above: int, facts: Numbered) -> Iterator[_Said]:
    """The ratings of known facts within a value: of an object with an id of its own, else of that above it.

    `{"1": {...}}` and `{"id": 1, "ratings": {...}}` name the fact above its ratings; 0 is no fact.
    """
    if isinstance(value, list):
        for each in value:
            yield from _ratings(each, above, facts)
    elif isinstance(value, Record):
        fact = _numbered(value, above, facts)
        rated = {scale: value.field(names) for scale, names in SCALES.items()}
        found = {scale: each for scale, each in rated.items() if each is not None}
        if found and (known := fact or _worded(value, facts)) in facts:
            yield from (_Said(known, scale, _digit(each)) for scale, each in found.items())
        elif not found:
            for key, each in value.pairs:
                yield from _ratings(each, number_in(key, facts) or fact, facts)


def _numbered(value: Record, above: int, facts: Numbered) -> int:
    """The number of the fact that an object's id names, one of no fact where it is unknown; else the one above it."""
    cell = value.cell(_ID_NAMES)
    return above if cell is None else number_in(cell.bare, facts) or len(facts.texts) + 1


def _worded(value: Record, facts: Numbered) -> int:
    """The number of the fact that an object without an id repeats, else 0."""
    cell = value.cell(_TEXT_NAMES)
    return (number_in(cell.bare, facts) if cell else None) or 0


def _digit(value: Value) -> Digit | None:
    """The digit of `4`, `"4/5"` or `{"score": 4, "reason": "..."}`."""
    inner = value.field(_SCORE_NAMES) if isinstance(value, Record) else value
    return read_rating(inner) if isinstance(inner, Cell) else None
