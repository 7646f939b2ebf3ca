"""Reading whether claims cover a fact, and which of them do ("Beyond Precision", 2026; methods, section 9)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.numbered import (
    CLAIM_WORDS,
    EVIDENCE_NAMES,
    Numbered,
    evidence_cells,
    listed_numbers,
    number_in,
)
from untold.udfs.stages.reading import strip_thinking, unfenced
from untold.udfs.stages.records import Cell, Record, Value, json_at_line_starts, read_records
from untold.udfs.stages.repeated_tags import past_echoes

_LABEL_NAMES = (
    *("label", "coveragelabel", "coverage", "verdict", "status", "answer", "classification", "decision"),
    *("covered", "iscovered"),
)
_COVERED = r"(?P<denied>(?:not|un|non)[\s_*–‑-]{0,6})?covered"
_LABEL = re.compile(rf"[\W_]{{0,9}}(?:{_COVERED}|(?P<true>true|yes)|(?P<false>false|no))[\W_]{{0,9}}", re.IGNORECASE)
# A completion without an object: `NOT_COVERED`, `Label: COVERED` and below it `Evidence: claims 1 and 3`
_LONE = re.compile(
    rf"[\W_]{{0,9}}(?:(?:final )?(?:label|answer|verdict)[\W_]{{1,9}})?{_COVERED}(?![^\W_])(?:\sby\b)?(?P<behind>.*)",
    re.IGNORECASE | re.DOTALL,
)
# `The fact is covered by claim 1, which ...` and `... is not covered by any of the claims`
_SAID_OF_FACT = re.compile(
    r"[\W_]{0,9}(?:(?:thus|therefore|hence|so),?\s)?(?:the|this)\sfact\sis(?=\s(?:not\s)?covered)|", re.IGNORECASE
)
# Between the label and its claims: `Evidence claim ids:`, bold, bulleted
_EVIDENCE_LABEL = re.compile(
    r"[\W_]{0,20}(?:(?:evidence|supporting|claims?|ids?|numbers?)[\W_]{1,9}){1,4}(?=\d|none\b)", re.IGNORECASE
)
_BULLET = re.compile(r"\n[ \t]{0,9}[-*•+][ \t]{1,3}")
# `claim 1`, `claims 2, 3 and 5` in a sentence; a number without the word is the claim's own
_CLAIM_NUMBER = re.compile(
    r"\bclaims?[ \t]{0,2}[#\[(]{0,2}(?P<one>\d{1,6})(?P<more>(?:(?:,|,? and|,? &) ?#?\d{1,6}\b(?! ?[^\W\d]))*)", re.I
)
_TAKES_BACK = re.compile(
    r"\b(?:not|no|none|never|neither|nor|but|only|alone|except|however|although|though|while|whereas|unlike|without|if"
    r"|unless"
    r"|part|partly|partially|other|others|rather|instead|wait|actually|or)\b|n['’]t\b",
    re.IGNORECASE,
)
_BY_NO_CLAIM = re.compile(r"\s?(?:by )?(?:any|the|these|those)\b[^\d\n]{0,80}\Z", re.IGNORECASE)
_TOGETHER = re.compile(r"[\s,;]{0,9}(?:and\s{1,3}|&\s{0,3})?")
_DIGITS = re.compile(r"\d+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s{1,3}")
_ANY_LABEL = re.compile(r"(?<![^\W_])(?:un)?covered(?![^\W_])", re.IGNORECASE)
_ENDS_LABEL = re.compile(r"[ \t\r]*(?:[^\w\s]|\n|\Z)")

# Whether the fact is covered, and by which claims
_Coverage = tuple[bool, frozenset[int]]


@final_answer
@past_echoes
def parse_covering(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """`covered`, and `claims`: the numbers of the `claims` that cover the fact, from 1, ascending; none uncovered.

    Numbers of no claim are passed over. Raises `Unparsable` where there is no label, where several objects disagree,
    where what is covered has no known claim, which nothing shows then, and where what is not covered has some.
    """
    text = strip_thinking(completion)
    claims = Numbered(variables["claims"], CLAIM_WORDS)
    records = read_records(json_at_line_starts(text))
    if records and "{" in records.rest:
        raise Unparsable("an object that cannot be read")
    objects = [each for value in records.values for each in _labelled(value)] if records else []
    found = {_read_object(each, claims) for each in objects} or {_read_lone_label(unfenced(text), claims)}
    if len(found) > 1:
        raise Unparsable("objects that disagree")
    covered, numbers = found.pop()
    if covered and not numbers:
        raise Unparsable("covered by no known claim")
    return {"covered": covered, "claims": sorted(numbers)}


def _labelled(value: Value) -> Iterator[Record]:
    """The objects with a label, within lists and other objects too."""
    if isinstance(value, Record) and value.cell(_LABEL_NAMES):
        yield value
    elif not isinstance(value, Cell):
        for each in value if isinstance(value, list) else [inner for _, inner in value.pairs]:
            yield from _labelled(each)


def _read_object(value: Record, claims: Numbered) -> _Coverage:
    """What an object says. Raises `Unparsable` where its label is another one, or it has two."""
    labels = [value.cell((name,)) for name in _LABEL_NAMES]
    read = {_is_covered(label.text) for label in labels if label}
    if len(read) > 1:
        raise Unparsable("an object with two labels")
    covered = read.pop()
    cells = evidence_cells(value.field(EVIDENCE_NAMES))
    known = frozenset(number for cell in cells for number in _known(cell, claims))
    if known and not covered:
        raise Unparsable("claims beside the word that the fact is not covered")
    return covered, known


def _is_covered(label: str) -> bool:
    found = _LABEL.fullmatch(label)
    if found is None:
        raise Unparsable("neither COVERED nor NOT_COVERED")
    return not (found["denied"] or found["false"])


def _known(cell: Cell, claims: Numbered) -> Iterator[int]:
    """The known numbers of `3`, `claim 3`, `1, 3` and `1-3`, or of the claim that is repeated."""
    number = number_in(cell.bare, claims)
    if number is not None and number in claims:
        yield number
    else:
        yield from listed_numbers(cell.bare, claims) or ()


def _read_lone_label(text: str, claims: Numbered) -> _Coverage:
    """What a completion without an object says. Raises `Unparsable` where that is no label, or several.

    Thoughts without a label may stand above the line of the label, or before it on the line where nothing is covered.
    """
    thoughts, label = _split_before_label(text)
    found = _LONE.fullmatch(_SAID_OF_FACT.sub("", label, count=1))
    if found is None or _ANY_LABEL.search(thoughts):
        raise Unparsable("no object with a label")
    if found["denied"]:
        if not _ends_denial(found["behind"]) or _ANY_LABEL.search(found["behind"]):
            raise Unparsable("no object, and more than a label")
        return False, frozenset()
    numbers = _claims_behind(found["behind"], claims)
    if numbers is None:
        raise Unparsable("no object, and more than a label and numbers")
    return True, numbers


def _split_before_label(text: str) -> tuple[str, str]:
    """What stands before the line, or the last sentence of all, that begins with a label, and what follows."""
    lines = text.split("\n")
    for place, line in enumerate(lines):
        if _LONE.match(_SAID_OF_FACT.sub("", line, count=1)):
            return "\n".join(lines[:place]), "\n".join(lines[place:])
    *before, last = _SENTENCE_END.split(lines[-1])
    denied = _LONE.fullmatch(last)
    return ("\n".join([*lines[:-1], *before]), last) if denied and denied["denied"] else ("", text)


def _ends_denial(behind: str) -> bool:
    return _ENDS_LABEL.match(behind) is not None or _BY_NO_CLAIM.match(behind) is not None


def _claims_behind(text: str, claims: Numbered) -> frozenset[int] | None:
    """The claims that stand behind a label, as a list or in a sentence that takes none back; None for other texts."""
    label = _EVIDENCE_LABEL.match(text)
    plain = _BULLET.sub(", ", text[label.end() :] if label else text)
    numbers = listed_numbers(plain.strip(", \t\r\n"), claims)
    if numbers is not None:
        return numbers
    named = list(_CLAIM_NUMBER.finditer(text))
    together = all(_TOGETHER.fullmatch(text, one.end(), other.start()) for one, other in pairwise(named))
    if not named or not together or _TAKES_BACK.search(text) or _ANY_LABEL.search(text):
        return None
    digits = [number for found in named for number in (found["one"], *_DIGITS.findall(found["more"]))]
    return frozenset(int(number) for number in digits if int(number) in claims)
