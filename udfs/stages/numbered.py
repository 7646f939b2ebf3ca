"""Read ratings and labels of numbered or named items. Every function is total and linear."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from untold.udfs.facts.nodes import normalise
from untold.udfs.ratings import SCALE, Digit
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.lists import numbers_of
from untold.udfs.stages.reading import collapsed, is_none, is_rule, split_marker, strip_thinking
from untold.udfs.stages.records import Cell, Record, Value, field_name, json_at_line_starts, read_records, unwrapped
from untold.udfs.texts import compatible

_SPACE = r"[^\S\n]"
# `4 out of 10` has another scale, and `1-5` and `4 or 5` are several ratings
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
    """A rating in a text, with its brackets. The digit is null unless it is a whole number of the scale."""

    start: int
    end: int
    digit: Digit | None


def rating_pattern(words: str) -> re.Pattern[str]:
    """Return a pattern for `Relevance: 4`. `words` is an alternation; the groups are the optional mark and number."""
    # `rating` and `score` are ambiguous outside of brackets, because texts contain these words
    return re.compile(
        rf"(?<![^\W_])(?:{words}|(?<=[(\[【])(?:rating|score))(?: (?:score|rating|level))?(?: (?:is|of))?"
        rf"(?P<mark>(?:{_SPACE}|[*_:：=\"'`(\[]|[-–—](?=\s)){{0,6}})(?P<number>[+-]?[0-9][0-9.,]{{0,9}})?",
        re.IGNORECASE,
    )


def is_named(found: re.Match[str]) -> bool:
    """Return True if a colon or an equals sign precedes the rating."""
    return any(mark in found["mark"] for mark in _NAMING)


def read_digit(text: str, found: re.Match[str], offset: int = 0) -> Digit | None:
    """Return the digit of a rating. It is null unless the number is a whole number of the scale.

    `offset` is the position of the text in the completion.
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
    """Return the ratings in text[start:end]: on each line in square brackets, or round brackets, or at its end."""
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
    """Return the rank of a rating on its line: 2 in square brackets, 1 in round brackets, 0 without brackets."""
    opener = _opener(text, place, start)
    return 0 if opener is None else 1 + (text[opener] in _SQUARE)


def _opener(text: str, place: int, start: int) -> int | None:
    """Return the position of the opening bracket before a word."""
    before = text[max(start, place - _FARTHEST_OPENER) : place].rstrip(_BEFORE_WORD)
    return max(start, place - _FARTHEST_OPENER) + len(before) - 1 if before and before[-1] in _CLOSERS else None


def _closes(text: str, found: re.Match[str]) -> bool:
    """Return True if a bracket closes directly after the number. `[relevance 4]` needs no colon."""
    after = _CLOSES.match(text, found.end())
    return bool(found["number"] and after and any(closer in after[0] for closer in _CLOSERS.values()))


def _closing(text: str, opener: int, place: int, end: int) -> int:
    """Return the end of a bracket, or `place` if the bracket does not close on its line."""
    line = text[place : min(end, place + _FARTHEST_CLOSER)].partition("\n")[0]
    closer = line.find(_CLOSERS[text[opener]])
    return place + closer + 1 if closer >= 0 else place


def matching_key(text: str) -> str:
    """Return the letters and digits of a text, case folded and with single spaces, to match equal texts."""
    return _NOT_WORDS.sub(" ", compatible(text).casefold()).strip()


def without_markers(line: str) -> list[str]:
    """Return the line with its markers, without the first marker, and without the first two markers."""
    texts = [line]
    while len(texts) < 3 and (row := split_marker(texts[-1])).marked:
        texts.append(row.text)
    return texts


def is_known(line: str, known: Collection[str]) -> bool:
    """Return True if the key of a line, with or without markers, is in `known`."""
    return any(key in known for key in map(matching_key, without_markers(line)) if key)


def match_lines(inputs: Sequence[str], lines: Sequence[str]) -> dict[int, list[int]]:
    """Return the numbers of the lines for each input, by its position, without inputs that have no line.

    Lines match by text first, exact and then by letters and digits. Inputs with equal texts get the last lines in
    order, or share the last line. If as many lines as inputs remain, they match by position.
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
    """Return the numbers of `lines` for the positions in `rest` whose texts are equal under one form."""
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


EVIDENCE_NAMES = (
    *("evidence", "evidenceids", "evidenceclaims", "evidenceclaimids", "evidencenumbers", "claimids", "claimnumbers"),
    *("claims", "supportingclaims", "coveredby", "supportedby", "support", "claimid", "claimnumber", "claim"),
)
# Words next to the number of a claim: `C1`, `claims 1 and 2`
CLAIM_WORDS = re.compile(r"(?<![^\W_])(?:claims?|and|nos?|numbers?|ids?|evidence|c)(?![^\W\d_])", re.IGNORECASE)
CLAIM_NAMES = (*EVIDENCE_NAMES, "id", "number", "text", "statement")
_WHOLE = re.compile(r"(?<![\d.,])(\d{1,9})\.0{1,3}(?![\d.,])")
_AROUND = " \t\r\n[](){}（）【】「」\"'“”.:：#*_`"
_LONE_NUMBER = re.compile(r"(?P<sign>-?)0*(?P<digits>\d+)")
_RANGE_WORD = re.compile(r"(?<=\d)\s{1,3}(?:to|through)\s{1,3}(?=#?\d)", re.IGNORECASE)
_ALL = re.compile(r"(?:all|each|every)(?: (?:of )?(?:the|these|them))?", re.IGNORECASE)
_LISTED_NUMBERS = re.compile(r"[\s\d,;&/#、，–—-]+")
_TEXT_BEHIND_NUMBER = re.compile(
    r"\W{0,9}(?:(?:topic|aspect|subtopic|claim|fact|reference"
    r"|candidate)\W{1,3})?(?P<number>\d{1,9})\s{0,3}[.:)\]–—-]{1,2}\s{1,9}(?=\S)",
    re.I,
)
_NO_EVIDENCE = re.compile(r"(?:null|n\s?/\s?a|[\W_]{0,20})", re.IGNORECASE)


@dataclass(frozen=True)
class NumberedTexts:
    """The texts that a prompt numbers from 1. `words` matches the words next to a number, as in `Topic 3` and `C1`."""

    texts: Sequence[str]
    words: re.Pattern[str]

    def __contains__(self, number: int) -> bool:
        return 1 <= number <= len(self.texts)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        # Computed on the first repeated text, because for 500 claims it takes four times as long as the rest
        numbered = reversed(list(enumerate(map(matching_key, self.texts), start=1)))
        return {key: number for number, key in numbered}

    def find(self, text: str) -> int | None:
        """Return the number of the first text with the same letters and digits."""
        key = matching_key(text)
        return self._numbers.get(key) if key else None


def find_number(text: str, numbered: NumberedTexts) -> int:
    """Return the number that a text states, or the number of an equal text. Raises `Unparsable` for any other text."""
    found = number_in(text, numbered)
    if found is None:
        raise Unparsable("a text that is neither a number nor one of those given")
    return found


def number_in(text: str, numbered: NumberedTexts) -> int | None:
    """Return the number that a text states, or the number of an equal text; None for any other text."""
    lone = lone_number(text, numbered)
    if lone is not None and lone in numbered:
        return lone
    found = numbered.find(text)
    if lone is not None and found is None:
        return lone
    behind = _TEXT_BEHIND_NUMBER.match(text)
    if found is None and behind and numbered.find(text[behind.end() :]) == int(behind["number"]):
        found = int(behind["number"])
    return found


def lone_number(text: str, numbered: NumberedTexts) -> int | None:
    """Return the number of a text without words such as `Topic`, or 0 for a number with too many digits.

    Raises `Unparsable` for 0, because a list from 0 shifts every number.
    """
    found = _LONE_NUMBER.fullmatch(without_words(text, numbered))
    if found is None:
        return None
    if found["digits"] == "0":
        raise Unparsable("numbers that count from 0")
    return int(found["digits"]) if not found["sign"] and len(found["digits"]) < 10 else 0


def listed_numbers(text: str, numbered: NumberedTexts) -> frozenset[int] | None:
    """Return the known numbers in `3`, `claim 3`, `1, 3`, `1-3`, `all` or `N/A`; None for any other text."""
    if _NO_EVIDENCE.fullmatch(text) or is_none(text):
        return frozenset()
    if _ALL.fullmatch(without_words(text, numbered)):
        return frozenset(range(1, len(numbered.texts) + 1))
    bare = _RANGE_WORD.sub("-", without_words(text, numbered))
    return numbers_of(bare, len(numbered.texts)) if _LISTED_NUMBERS.fullmatch(bare) else None


def known_numbers(text: str, numbered: NumberedTexts) -> frozenset[int]:
    """Return the known numbers that a text lists, or the number of an equal text.

    Raises `Unparsable` for any other text.
    """
    listed = listed_numbers(text, numbered)
    if listed is not None:
        return listed
    number = find_number(text, numbered)
    return frozenset({number} if number in numbered else ())


def evidence_cells(value: Value | None) -> Iterator[Cell]:
    """Return the claims of a field, as returned by `cells_of`."""
    return cells_of(value, CLAIM_NAMES)


def cells_of(value: Value | None, names: Sequence[str]) -> Iterator[Cell]:
    """Yield the texts and numbers of a field, of the elements of a list, or of their fields: `[{"claim_id": 1}]`.

    Raises `Unparsable` for an object without a field of one of `names`.
    """
    if isinstance(value, list):
        for each in value:
            yield from cells_of(each, names)
    elif isinstance(value, Record):
        cell = value.cell(names)
        if cell is None:
            raise Unparsable("an element of a list of numbers has none")
        yield cell
    elif value is not None:
        yield value


def without_words(text: str, numbered: NumberedTexts) -> str:
    """Return the text without the words next to its numbers and without surrounding punctuation."""
    return _WHOLE.sub(r"\1", numbered.words.sub(" ", text)).strip(_AROUND)


ReadLabel = Callable[[str, int], str]
"""Return the label in the text after a number. Raises `Unparsable` if there is no clear label."""

_ID_NAMES = (
    *("id", "number", "no", "n", "index", "hypothesis", "hypothesisid", "hypothesisnumber", "hypothesisno"),
    *("answer", "answerid", "answernumber", "statement", "text", "claim", "claimid", "claimnumber"),
    *("nugget", "nuggetid", "nuggetnumber"),
)
_LABEL_NAMES = (
    *("relation", "relationship", "label", "verdict", "classification", "judgement", "judgment", "result"),
    *("assignment", "support", "importance", "rating", "covered"),
)
# Fields that can repeat a text instead of its number
_TEXT_NAMES = ("answer", "statement", "text", "claim", "nugget", "hypothesis")
# `1:`, `**Hypothesis 2** -`, `<claim id="3">`, `[4]`, a single number, and `5 neutral`, but not `1.5 km` or `8 boats`
_OPENS = re.compile(
    r"[^\w\n]{0,12}(?:(?:hypothesis|statement|claim|nugget|answer|number|no|id|h)\b[^\w\n]{0,6}){0,2}"
    r"(?P<number>\d{1,9})"
    r"(?:[*_`\"'\])>]{0,4}[^\S\n]{0,2}(?:[:：.](?!\d)|[)\]|=→>]|[-–—]{1,2}>?\s)"
    r"|[*_`\])>]{0,4}[^\S\n]{0,9}$|(?=[*_`\])>]{0,4}[^\S\n]{1,3}[*_`\"'(]{0,3}[^\W\d]+[\W_]{0,9}$))",
    re.IGNORECASE,
)
_AROUND_LABELS = " \t\r*_`\"'“”‘’|:-–—>"
_PARTS = re.compile(r"[|:：→]|[^\S\n][-–—]{1,2}>?[^\S\n]")
_CLOSING_TAG = re.compile(r"</\w{1,20}>")


def read_numbered_labels(completion: str, numbered: NumberedTexts, read: ReadLabel) -> list[str | None]:
    """Return the label of each text, in order; None for a missing or repeated number or an unclear label.

    Unknown numbers are ignored. A label without a number belongs to a single text. Raises `Unparsable` if no text has a
    label, and for the number 0.
    """
    said: defaultdict[int, list[str | None]] = defaultdict(list)
    for number, text in _numbered_texts(completion, numbered):
        label = None
        with suppress(Unparsable):
            label = read(text, number) if number in numbered else None
        said[number].append(label)
    if not said and len(numbered.texts) == 1:
        return [read(strip_thinking(completion), 1)]
    if _may_be_texts(said.keys(), numbered):
        raise Unparsable("numbers that may be texts")
    labels = [said[number][0] if len(said[number]) == 1 else None for number in range(1, len(numbered.texts) + 1)]
    if not any(labels):
        raise Unparsable("no clear label beside a number")
    return labels


def _may_be_texts(said: Set[int], numbered: NumberedTexts) -> bool:
    """Return True if incomplete numbers are also texts: `2` and `3` for the answers "2" and "3"."""
    is_whole = said >= set(range(1, len(numbered.texts) + 1))
    return bool(said) and not is_whole and all(numbered.find(str(number)) for number in said)


def _numbered_texts(completion: str, numbered: NumberedTexts) -> Iterator[tuple[int, str]]:
    """Return the text for each number, from JSON, from a table, or from the lines that begin with a number."""
    records = read_records(json_at_line_starts(completion))
    if records is None:
        yield from _blocks(strip_thinking(completion), numbered)
        return
    values = unwrapped(records.values, (*_ID_NAMES, *_LABEL_NAMES))
    cells = [value for value in values if isinstance(value, Cell)]
    if len(cells) < len(values):
        yield from _recorded(values, 0, numbered)
        return
    blocks = list(_blocks("\n".join(cell.text for cell in cells), numbered))
    in_order = enumerate((cell.text for cell in cells), start=1) if len(cells) == len(numbered.texts) else ()
    yield from blocks or in_order


def _recorded(value: Value | Sequence[Value], above: int, numbered: NumberedTexts) -> Iterator[tuple[int, str]]:
    """Return the labels in objects such as `{"id": 1, "relation": "neutral"}` and `{"1": {"label": ...}}`."""
    if isinstance(value, Record):
        number = _named(value, numbered) or above
        label = value.cell(_LABEL_NAMES)
        if label is not None:
            yield number, label.text
            return
        for key, each in value.pairs:
            named = number_in(key, numbered)
            if isinstance(each, Cell) and named:
                yield named, each.text
            elif not isinstance(each, Cell):
                yield from _recorded(each, named or number, numbered)
    elif not isinstance(value, Cell):
        for each in value:
            yield from _recorded(each, above, numbered)


def _named(value: Record, numbered: NumberedTexts) -> int:
    """Return the number in an object, or the number of its text; 0 for no number or two different numbers."""
    cells = [(key, each) for key, each in value.pairs if isinstance(each, Cell) and _names_number(key)]
    # The text "2" is not the second one
    texts = [numbered.find(cell.bare) if field_name(key) in _TEXT_NAMES else None for key, cell in cells]
    named = [text or number_in(cell.bare, numbered) for text, (_, cell) in zip(texts, cells, strict=True)]
    numbers = {number for number in named if number is not None}
    return numbers.pop() if len(numbers) == 1 else 0


def _names_number(key: str) -> bool:
    return field_name(key) in _ID_NAMES or key.strip() == "#"


def _blocks(text: str, numbered: NumberedTexts) -> Iterator[tuple[int, str]]:
    """Return the lines after each number, up to the next number or to a blank line after some text."""
    number, lines = 0, [""]
    for line in text.split("\n"):
        opened = _OPENS.match(line)
        if opened:
            if number:
                yield number, "\n".join(lines)
            number, lines = _known(opened["number"]), [_without_text(line[opened.end() :], opened["number"], numbered)]
        elif line.strip() and not is_rule(line):
            lines.append(line)
        elif number and matching_key("".join(lines)):
            yield number, "\n".join(lines)
            number = 0
    if number:
        yield number, "\n".join(lines)


def _known(digits: str) -> int:
    """Return the number. Raises `Unparsable` for 0, because a list from 0 shifts every number."""
    if int(digits) == 0:
        raise Unparsable("numbers that count from 0")
    return int(digits)


def _without_text(behind: str, digits: str, numbered: NumberedTexts) -> str:
    """Return the rest of a line after a number and its text; empty if the line repeats the text of another number."""
    number, behind = int(digits), _CLOSING_TAG.sub(" : ", behind)
    if number not in numbered:
        return ""
    if any(numbered.find(part) not in (None, number) for part in _PARTS.split(behind) if part.strip()):
        return ""
    bare, own = behind.lstrip(_AROUND_LABELS), numbered.texts[number - 1].strip()
    rest = bare[len(own) :] if own and bare.startswith(own) else ""
    if not rest and own.endswith(".") and bare.startswith(own[:-1]):
        rest = bare[len(own) - 1 :]
    return rest.lstrip(_AROUND_LABELS + ".") if matching_key(rest) else behind
