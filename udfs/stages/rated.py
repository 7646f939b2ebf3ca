"""What rated stages share: ratings in a text, and lines that answer for the inputs (Dejl et al. 2025; methods, 9)."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from untold.udfs.facts.nodes import normalise
from untold.udfs.ratings import SCALE, Digit
from untold.udfs.stages.reading import collapsed, split_marker

_SPACE = r"[^\S\n]"
# `4 out of 10` is of another scale, `1-5` and `4 or 5` are no single rating
_OUT_OF = re.compile(rf"{_SPACE}{{0,3}}(?:/|out of\b|of\b){_SPACE}{{0,3}}([0-9]{{1,9}})")
_RANGE = re.compile(rf"{_SPACE}?(?:[-–—]|to\b|or\b){_SPACE}?[{SCALE}](?!\w)")
_IN_SCALE = re.compile(rf"[{SCALE}](?:[.,]0{{1,9}})?")
_NAMING = ":：="
_NOT_WORDS = re.compile(r"[\W_]+")

_CLOSERS = {"[": "]", "【": "】", "［": "］", "(": ")", "（": "）"}
_SQUARE = "[【［"
_BEFORE_WORD = " \t*_"
_FARTHEST_OPENER, _FARTHEST_CLOSER = 6, 300  # characters: emphasis before the word, a remark behind the number
_AFTER_NUMBER = rf"(?:{_SPACE}?(?:/|out of|of){_SPACE}?{SCALE[-1]})?"
_CLOSES = re.compile(rf"{_AFTER_NUMBER}[^\w\n]{{0,4}}")
_ENDS_LINE = re.compile(rf"{_AFTER_NUMBER}(?:[^\w\n|]{{0,12}}(?=\n|\||\Z)|{_SPACE}[-–—(])")


@dataclass(frozen=True)
class Rating:
    """A rating in a text, brackets included; the digit is null where it is no whole number of the scale."""

    start: int
    end: int
    digit: Digit | None


def rating_pattern(words: str) -> re.Pattern[str]:
    """Matches `Relevance: 4` for one of `words`, an alternation; groups mark and number, which may be missing."""
    # `rating` and `score` say too little outside of brackets: texts speak of scores themselves
    return re.compile(
        rf"(?<![^\W_])(?:{words}|(?<=[(\[【])(?:rating|score))(?: (?:score|rating|level))?(?: (?:is|of))?"
        rf"(?P<mark>(?:{_SPACE}|[*_:：=\"'`(\[]|[-–—](?=\s)){{0,6}})(?P<number>[+-]?[0-9][0-9.,]{{0,9}})?",
        re.IGNORECASE,
    )


def is_named(found: re.Match[str]) -> bool:
    """Whether a colon or an equals sign says that what follows is the rating."""
    return any(mark in found["mark"] for mark in _NAMING)


def read_digit(text: str, found: re.Match[str], offset: int = 0) -> Digit | None:
    """The digit of a rating; null where it is no whole number of the scale, or out of another one.

    `offset` is where in the completion the text begins.
    """
    number = (found["number"] or "").rstrip(".,")
    if not _IN_SCALE.fullmatch(number):
        return None
    end = found.start("number") + len(number)
    out_of = _OUT_OF.match(text, end)
    if text[end : end + 1].isalnum() or _RANGE.match(text, end) or (out_of and out_of[1] != SCALE[-1]):
        return None
    return Digit(int(number[0]), offset + found.start("number"))


def find_ratings(text: str, pattern: re.Pattern[str], start: int, end: int) -> list[Rating]:
    """The ratings within text[start:end]; on a line those in square brackets, else in round ones, else at its end."""
    kinds: dict[int, dict[int, list[Rating]]] = {}
    line, last = 0, start
    for found in pattern.finditer(text, start, end):
        line, last = line + text.count("\n", last, found.start()), found.start()
        opener = _opener(text, found.start(), start)
        if opener is not None and (is_named(found) or _closes(text, found)):
            rating = Rating(opener, _closing(text, opener, found.end(), end), read_digit(text, found))
        elif is_named(found) and found["number"] and (ends := _ENDS_LINE.match(text, found.end(), end)):
            rating = Rating(found.start(), max(found.end(), ends.end() - 1), read_digit(text, found))
        else:
            continue
        kinds.setdefault(line, {}).setdefault(rank(text, found.start(), start), []).append(rating)
    return [rating for ranked in kinds.values() for rating in ranked[max(ranked)]]


def rank(text: str, place: int, start: int = 0) -> int:
    """What counts more of the ratings on one line: 2 in square brackets, 1 in round ones, 0 for none."""
    opener = _opener(text, place, start)
    return 0 if opener is None else 1 + (text[opener] in _SQUARE)


def _opener(text: str, place: int, start: int) -> int | None:
    """Where the bracket opens that stands before a word."""
    before = text[max(start, place - _FARTHEST_OPENER) : place].rstrip(_BEFORE_WORD)
    return max(start, place - _FARTHEST_OPENER) + len(before) - 1 if before and before[-1] in _CLOSERS else None


def _closes(text: str, found: re.Match[str]) -> bool:
    """Whether a bracket closes right behind the number: `[relevance 4]` needs no colon."""
    after = _CLOSES.match(text, found.end())
    return bool(found["number"] and after and any(closer in after[0] for closer in _CLOSERS.values()))


def _closing(text: str, opener: int, place: int, end: int) -> int:
    """The end of a bracket, or `place` where it does not close on its line."""
    line = text[place : min(end, place + _FARTHEST_CLOSER)].partition("\n")[0]
    closer = line.find(_CLOSERS[text[opener]])
    return place + closer + 1 if closer >= 0 else place


def matching_key(text: str) -> str:
    """What texts are matched by: letters and digits, case folded, with single spaces."""
    return _NOT_WORDS.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()


def without_markers(line: str) -> list[str]:
    """A line with its markers, without its first one, and without its first two, as far as it has any."""
    texts = [line]
    while len(texts) < 3 and (row := split_marker(texts[-1])).marked:
        texts.append(row.text)
    return texts


def is_known(line: str, known: Collection[str]) -> bool:
    """Whether a line, with or without markers, has one of the `known` keys."""
    return any(key in known for key in map(matching_key, without_markers(line)) if key)


def match_lines(inputs: Sequence[str], lines: Sequence[str]) -> dict[int, list[int]]:
    """The numbers of the lines that answer for each input, by its place; places without any are missing.

    By text first: as it is written, then by letters and digits. Of several inputs with one text each has a line of
    its own, the last lines in order, or shares the last one where their texts are the same. By position second, only
    where there are as many lines as inputs.
    """
    chosen: dict[int, list[int]] = {}
    for form in (normalise, matching_key):
        used = {number for numbers in chosen.values() for number in numbers}
        rest = {place: form(text) for place, text in enumerate(inputs) if place not in chosen}
        said = {number: line for number, line in enumerate(lines) if number not in used}
        chosen |= _match_texts(inputs, rest, said, form)
    if len(lines) == len(inputs):
        used = {number for numbers in chosen.values() for number in numbers}
        chosen |= {place: [place] for place in range(len(lines)) if place not in used and place not in chosen}
    return chosen


def _match_texts(
    inputs: Sequence[str], rest: Mapping[int, str], lines: Mapping[int, str], form: Callable[[str], str]
) -> dict[int, list[int]]:
    """The numbers of `lines` for the places in `rest`, where both are equal under one form."""
    places, said = defaultdict(list), defaultdict(list)
    for place, key in rest.items():
        places[key].append(place)
    for number, line in lines.items():
        known = next((key for key in map(form, without_markers(line)) if key and key in places), None)
        if known is not None:
            said[known].append(number)
    chosen: dict[int, list[int]] = {}
    for key, numbers in said.items():
        wanted = places[key]
        if len(wanted) == 1:
            chosen[wanted[0]] = numbers
            continue
        if len({collapsed(inputs[place]) for place in wanted}) == 1:
            numbers.extend(numbers[-1:] * (len(wanted) - len(numbers)))
        chosen |= {place: [number] for place, number in zip(wanted, numbers[-len(wanted) :], strict=False)}
    return chosen
