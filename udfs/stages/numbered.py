"""Read references to the texts that a prompt numbers, and one label for each of them. Every function is linear."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.lists import numbers_of
from untold.udfs.stages.rated import matching_key
from untold.udfs.stages.reading import is_none, is_rule, strip_thinking
from untold.udfs.stages.records import Cell, Record, Value, field_name, json_at_line_starts, read_records, unwrapped

EVIDENCE_NAMES = (
    *("evidence", "evidenceids", "evidenceclaims", "evidenceclaimids", "evidencenumbers", "claimids", "claimnumbers"),
    *("claims", "supportingclaims", "coveredby", "supportedby", "support", "claimid", "claimnumber", "claim"),
)
# What stands beside a claim's number: `C1`, `claims 1 and 2`
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
    """The texts that a prompt numbers from 1. `words` match what may stand beside a number, `Topic 3` and `C1`."""

    texts: Sequence[str]
    words: re.Pattern[str]

    def __contains__(self, number: int) -> bool:
        return 1 <= number <= len(self.texts)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        # Not before a completion repeats a text, which few do: of 500 claims it takes four times as long as the rest
        numbered = reversed(list(enumerate(map(matching_key, self.texts), start=1)))
        return {key: number for number, key in numbered}

    def find(self, text: str) -> int | None:
        """The number of a text that is one of them, by its letters and digits; of equal ones the first."""
        key = matching_key(text)
        return self._numbers.get(key) if key else None


def find_number(text: str, numbered: NumberedTexts) -> int:
    """The number that a text is, or whose text it is; 0 where there is none. Raises `Unparsable` for another text."""
    found = number_in(text, numbered)
    if found is None:
        raise Unparsable("a text that is neither a number nor one of those given")
    return found


def number_in(text: str, numbered: NumberedTexts) -> int | None:
    """The number that a text is, or whose text it is; None for any other text."""
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
    """The number that a text is, but for words such as `Topic`; 0 for one that is too long to be one of theirs.

    Raises `Unparsable` for 0: who counts from 0 means another text by every number.
    """
    found = _LONE_NUMBER.fullmatch(without_words(text, numbered))
    if found is None:
        return None
    if found["digits"] == "0":
        raise Unparsable("numbers that count from 0")
    return int(found["digits"]) if not found["sign"] and len(found["digits"]) < 10 else 0


def listed_numbers(text: str, numbered: NumberedTexts) -> frozenset[int] | None:
    """The known numbers of `3`, `claim 3`, `1, 3` and `1-3`, all of `all`, none of `N/A`; None for another text."""
    if _NO_EVIDENCE.fullmatch(text) or is_none(text):
        return frozenset()
    if _ALL.fullmatch(without_words(text, numbered)):
        return frozenset(range(1, len(numbered.texts) + 1))
    bare = _RANGE_WORD.sub("-", without_words(text, numbered))
    return numbers_of(bare, len(numbered.texts)) if _LISTED_NUMBERS.fullmatch(bare) else None


def known_numbers(text: str, numbered: NumberedTexts) -> frozenset[int]:
    """The known numbers of a text that lists some or is one, or the number of the text that it repeats.

    Raises `Unparsable` for another text.
    """
    listed = listed_numbers(text, numbered)
    if listed is not None:
        return listed
    number = find_number(text, numbered)
    return frozenset({number} if number in numbered else ())


def evidence_cells(value: Value | None) -> Iterator[Cell]:
    """The claims of a field, as `cells_of` gives them."""
    return cells_of(value, CLAIM_NAMES)


def cells_of(value: Value | None, names: Sequence[str]) -> Iterator[Cell]:
    """The texts and numbers of a field: itself, the elements of a list, or a field of theirs: `[{"claim_id": 1}]`.

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
    """The text without the words beside its numbers and without the signs around all of it."""
    return _WHOLE.sub(r"\1", numbered.words.sub(" ", text)).strip(_AROUND)


ReadLabel = Callable[[str, int], str]
"""The label in a text that answers for a number; raises `Unparsable` where there is none, or no clear one."""

_ID_NAMES = (
    *("id", "number", "no", "n", "index", "hypothesis", "hypothesisid", "hypothesisnumber", "hypothesisno"),
    *("answer", "answerid", "answernumber", "statement", "text", "claim", "claimid", "claimnumber"),
    *("nugget", "nuggetid", "nuggetnumber"),
)
_LABEL_NAMES = (
    *("relation", "relationship", "label", "verdict", "classification", "judgement", "judgment", "result"),
    *("assignment", "support", "importance", "rating", "covered"),
)
# Fields that may repeat a text in place of its number
_TEXT_NAMES = ("answer", "statement", "text", "claim", "nugget", "hypothesis")
# `1:`, `**Hypothesis 2** -`, `<claim id="3">`, `[4]`, a number alone, and `5 neutral`: never `1.5 km` or `8 boats`
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
    """The label of each text, in their order; None where its number is missing, stands twice or has no clear label.

    Other numbers are passed over. A label without a number answers for a text that is alone. Raises `Unparsable` where
    no text has a label, and for the number 0.
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
    """Whether numbers that leave some out are themselves among the texts: `2` and `3` of the answers "2" and "3"."""
    is_whole = said >= set(range(1, len(numbered.texts) + 1))
    return bool(said) and not is_whole and all(numbered.find(str(number)) for number in said)


def _numbered_texts(completion: str, numbered: NumberedTexts) -> Iterator[tuple[int, str]]:
    """What the completion says of each number: the cells of JSON or a table, else the lines that a number opens."""
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
    """The labels in objects: `{"id": 1, "relation": "neutral"}`, `{"1": "neutral"}` and `{"1": {"label": ...}}`."""
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
    """The number that an object names, by itself or by its text; 0 where it names none, or two that differ."""
    cells = [(key, each) for key, each in value.pairs if isinstance(each, Cell) and _names_number(key)]
    # The text "2" is not the second one
    texts = [numbered.find(cell.bare) if field_name(key) in _TEXT_NAMES else None for key, cell in cells]
    named = [text or number_in(cell.bare, numbered) for text, (_, cell) in zip(texts, cells, strict=True)]
    numbers = {number for number in named if number is not None}
    return numbers.pop() if len(numbers) == 1 else 0


def _names_number(key: str) -> bool:
    return field_name(key) in _ID_NAMES or key.strip() == "#"


def _blocks(text: str, numbered: NumberedTexts) -> Iterator[tuple[int, str]]:
    """The lines behind each number up to the next one, or to a blank line that follows more than the number."""
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
    """The number. Raises `Unparsable` for 0: who counts from 0 means another text by every number."""
    if int(digits) == 0:
        raise Unparsable("numbers that count from 0")
    return int(digits)


def _without_text(behind: str, digits: str, numbered: NumberedTexts) -> str:
    """What a line says behind a number, without the text of that number; nothing where it repeats that of another."""
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
