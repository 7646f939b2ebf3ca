"""Reading facts whose references are resolved (Ardestani, Kamalloo, Rafiei, LongRecall; methods, section 9)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from untold.udfs.stages.claims import CLAIM_NAMES, has_bullets, labelled_answer, listed_texts, recorded_texts
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.rated import matching_key
from untold.udfs.stages.records import NUMBER_NAMES, Record, json_at_line_starts, read_records, unwrapped
from untold.udfs.stages.repeated_tags import past_echoes
from untold.udfs.stages.units import revised_text

# The new text counts where an object has the old one too
_FACT_NAMES = (
    *("resolved", "resolvedfact", "resolvedtext", "resolvedstatement", "rewritten", "rewrittenfact", "revised"),
    *("revisedfact", "selfcontained", "selfcontainedfact", "output", "new", *CLAIM_NAMES),
)
_NUMBER = re.compile(r"(?:fact|statement)?[\W_]{0,3}(\d{1,6})[\W_]{0,3}", re.IGNORECASE)
_LINE_NUMBER = re.compile(r"^[ \t>*(\[#]{0,9}(\d{1,6})[.):\]]\*{0,2}[ \t]{1,9}(?=\S)", re.MULTILINE)
_WORD = re.compile(r"\w+")


@final_answer
@past_echoes
def parse_resolved(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """`facts`: a text for each of `facts`, in their order.

    Lines are the facts' by position, but where some repeat facts in another order, by those texts. Raises `Unparsable`
    where there is another number of lines, where they have an order of their own, and where a line without a bullet has
    little of its fact.
    """
    facts: Sequence[str] = variables["facts"]
    text = labelled_answer(completion)
    lines = recorded_texts(text, _FACT_NAMES)
    bare = lines is None and not has_bullets(text)
    if lines is None:
        lines = listed_texts(text, "\n".join([str(variables.get("text", "")), *facts]))
        lines = _by_number(lines, _numbers_of_lines(text, len(lines)))
    else:
        lines = _by_number(lines, _numbers(text))
    known = set(map(matching_key, facts))
    lines = [revised_text(line, known) for line in lines]
    if len(lines) != len(facts) or not all(lines):
        raise Unparsable(f"{sum(map(bool, lines))} texts of {len(facts)} facts")
    if bare and not all(map(_keeps_words, lines, facts)):
        raise Unparsable("a line without a bullet that is no form of its fact")
    return {"facts": _in_order(lines, facts)}


def _numbers(text: str) -> list[int]:
    """The numbers that the elements of a JSON list or the rows of a table have; none where some has none."""
    records = read_records(json_at_line_starts(text))
    values = unwrapped(records.values, _FACT_NAMES) if records else []
    lone = values[0] if len(values) == 1 else None
    if isinstance(lone, Record) and lone.cell(_FACT_NAMES) is None:
        said = [key for key, _ in lone.pairs]
    else:
        cells = [value.cell(NUMBER_NAMES) for value in values if isinstance(value, Record)]
        said = [cell.text for cell in cells if cell]
    found = [number for number in map(_NUMBER.fullmatch, said) if number]
    return [int(number[1]) for number in found] if len(found) == max(len(values), len(said)) else []


def _numbers_of_lines(text: str, count: int) -> list[int]:
    """The numbers before the lines where they are those of the facts in another order; none else."""
    numbers = [int(number) for number in _LINE_NUMBER.findall(text)]
    return numbers if sorted(numbers) == list(range(1, count + 1)) else []


def _by_number(lines: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """The lines in the order of their numbers. Raises `Unparsable` where those do not count the lines."""
    if not numbers:
        return list(lines)
    if sorted(numbers) not in (list(range(len(lines))), list(range(1, len(lines) + 1))):
        raise Unparsable("texts are not numbered as the facts are")
    return [lines[place] for place in sorted(range(len(lines)), key=numbers.__getitem__)]


def _keeps_words(line: str, fact: str) -> bool:
    """Whether a line has half of the words of its fact, as all have of which but names and pronouns are changed."""
    words = set(_WORD.findall(matching_key(fact)))
    return 2 * len(words & set(_WORD.findall(matching_key(line)))) >= len(words)


def _in_order(lines: Sequence[str], facts: Sequence[str]) -> list[str]:
    """The lines in the order of the facts: where they are, but for those that repeat facts of other places.

    A line that repeats another fact than its own belongs to that one, unless that has its own text in its place: two
    facts may become one. Raises `Unparsable` where the lines that are so moved leave a fact without one.
    """
    said, keys = list(map(matching_key, lines)), list(map(matching_key, facts))
    places = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    kept = {key for key, own in zip(said, keys, strict=True) if key == own}
    moved = [place for place, key in enumerate(said) if key in places and key not in kept]
    targets = [places[said[place]].pop(0) for place in moved if places[said[place]]]
    if sorted(targets) != moved:
        raise Unparsable("lines repeat facts in an order that leaves some without one")
    ordered = list(lines)
    for place, target in zip(moved, targets, strict=True):
        ordered[target] = lines[place]
    return ordered
