"""Reading which numbered texts go with which in lines, `Topic 1: claims 2 and 3`, where a stage asks for objects.

Every function is linear.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.numbered import Numbered, listed_numbers, number_in
from untold.udfs.stages.reading import is_drawing, is_none, split_marker

# Between both sides: a colon, an arrow, a dash between spaces, or `is covered by`
_BETWEEN = re.compile(
    r"\*{0,2}\s{0,3}(?:[:：]\*{0,2}|[-=]>|[→⇒]|(?<=\s)[-–—](?=\s)"
    r"|(?=\bis (?:covered|entailed|supported|matched) by\b))\s{0,3}"
)
_MOST_BETWEEN = 9  # a line that is one of them has few; what is left of each is looked at
_BY = re.compile(r"(?:(?:is )?(?:covered|entailed|supported|matched)(?: by)?\b)[:\s]{0,3}", re.IGNORECASE)
_NOT = re.compile(r"(?:is )?(?:not|un)[\s_-]?(?:covered|entailed|supported|matched)\W{0,3}", re.IGNORECASE)
_ASIDE = re.compile(r"\s{0,3}\((?P<text>[^()\n]{1,400})\)\s{0,3}\Z")
_DIGIT = re.compile(r"\d")


def read_aligned_lines(lines: Sequence[str], left: Numbered, right: Numbered) -> dict[int, frozenset[int]] | None:
    """By known left number the right ones, of lines that all name both; None where the first line does not.

    A left side is a text or has a word beside its number: of two bare numbers nobody knows which is which. Raises
    `Unparsable` where another line says something else, or a left number stands twice.
    """
    rows = [row.text.strip("*_` ") for row in map(split_marker, lines) if not is_drawing(row)]
    rows = rows[1:] if rows and _is_introduction(rows[0]) else rows
    found = [_sides(row, left, right) for row in rows]
    if not found or found[0] is None:
        return None
    pairs = [pair for pair in found if pair]
    if len(pairs) < len(found) or len(dict(pairs)) < len(pairs):
        raise Unparsable("a line beside others that says something else")
    return {number: numbers for number, numbers in pairs if number in left}


def _is_introduction(line: str) -> bool:
    return line.rstrip("*_ ").endswith((":", "：")) and not _DIGIT.search(line)


def _sides(line: str, left: Numbered, right: Numbered) -> tuple[int, frozenset[int]] | None:
    """The left number of a line and the right ones; None for any other line. A text may have a colon of its own."""
    for between in islice(_BETWEEN.finditer(line), _MOST_BETWEEN):
        number = _left(line[: between.start()], left)
        if number is not None:
            numbers = _right(line[between.end() :].strip("*_` "), right)
            return None if numbers is None else (number, numbers)
    return None


def _left(said: str, left: Numbered) -> int | None:
    """The number that a left side names with a word or by its text, or both where they agree."""
    aside = _ASIDE.search(said)
    number = number_in(said[: aside.start()] if aside else said, left)
    worded = left.words.search(said) is not None or left.find(said) is not None or _has_letters(said)
    named = left.find(aside["text"]) if aside else None
    return number if worded and (named is None or named == number) else None


def _has_letters(said: str) -> bool:
    return any(map(str.isalpha, said))


def _right(said: str, right: Numbered) -> frozenset[int] | None:
    """The numbers of a right side, none of `None` and `not covered`; None where it is no list of numbers."""
    if _NOT.fullmatch(said) or is_none(said) or said.strip() == "[]":
        return frozenset()
    by = _BY.match(said)
    listed = said[by.end() :] if by else said
    return listed_numbers(listed, right) if _DIGIT.search(listed) else None
