"""Reading two ratings of each numbered fact in lines, `Fact 1: relevance 5, salience 4`, where a stage asks for JSON.

Every function is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from untold.udfs.ratings import Digit
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.numbered import Numbered, number_in
from untold.udfs.stages.rated import matching_key, rating_pattern, read_digit
from untold.udfs.stages.reading import is_fence, is_rule

# `Fact 1 (relevance 5 ...` and `2. [Relevance: 4] ...`: what leads to ratings behind a fact's number or text
_AROUND = " \t\r*_`|([{,;-–—:="
# A number that leads a line, with a text behind it that is not as the fact was given
_LEADS = re.compile(r"[^\w\n]{0,6}(?:(?:fact|statement)[ _]?)?(?P<number>\d{1,6})[.):\]]", re.IGNORECASE)


@dataclass
class _Block:
    """The ratings below or beside one fact, by scale."""

    fact: int
    said: dict[str, list[Digit | None]] = field(default_factory=dict)


def read_rated_lines(
    text: str, scales: Mapping[str, str], facts: Numbered
) -> dict[tuple[str, int], list[Digit | None]]:
    """By scale and number of a fact its ratings, as the lines have them that name the fact and those below it.

    `text` has line breaks in place of thinking, so that digits keep their places; `scales` are alternations of the
    words for each scale. Raises `Unparsable` for a rating of no fact, and for a fact that is named and rated twice.
    """
    patterns = {scale: rating_pattern(words) for scale, words in scales.items()}
    blocks = [block for block in _blocks(text, patterns, facts) if block.said]
    if len({block.fact for block in blocks}) < len(blocks):
        raise Unparsable("a fact that is rated twice")
    return {(scale, block.fact): digits for block in blocks for scale, digits in block.said.items()}


def _blocks(text: str, patterns: Mapping[str, re.Pattern[str]], facts: Numbered) -> Iterator[_Block]:
    """The facts in the order of their lines; 0 stands for what is above the first."""
    block, start = _Block(0), 0
    for line in text.split("\n"):
        end = start + len(line)
        found = [(scale, match) for scale, pattern in patterns.items() for match in pattern.finditer(text, start, end)]
        rated = [(scale, match) for scale, match in found if match["number"]]
        if line.strip() and not is_fence(line) and not is_rule(line):
            first = min((match.start() for _, match in rated), default=end)
            last = max((match.end() for _, match in rated), default=end)
            number = _named(text[start:first], text[last:end], facts)
            if number is not None:
                yield block
                block = _Block(number)
        if rated and block.fact not in facts:
            raise Unparsable("a rating of no fact")
        for scale, match in rated:
            block.said.setdefault(scale, []).append(read_digit(text, match))
        start = end + 1
    yield block


def _named(before: str, behind: str, facts: Numbered) -> int | None:
    """The fact that a line names before its ratings, or behind them where nothing stands before; None for none."""
    said = before.strip(_AROUND)
    if not matching_key(said):
        said = behind.strip("/5" + _AROUND) if matching_key(behind) else ""
    number = number_in(said, facts) if said else None
    leading = _LEADS.match(before)
    return number if number is not None or leading is None else int(leading["number"])
