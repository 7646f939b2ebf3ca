"""Reading which candidates together entail a fact: their numbers (Ardestani, Kamalloo, Rafiei; methods, section 9)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.labels import behind_correction
from untold.udfs.stages.numbered import NumberedTexts, cells_of, known_numbers, number_in, without_words
from untold.udfs.stages.reading import (
    is_fence,
    is_none,
    is_rule,
    letters,
    past_echoes,
    split_marker,
    strip_thinking,
    without_ticks,
)
from untold.udfs.stages.records import (
    Cell,
    Record,
    Records,
    Value,
    field_name,
    json_at_line_starts,
    read_records,
    unwrapped,
)

# What stands beside a number: `Candidate 3`, `candidates 1 and 2`, `C1`
CANDIDATE_WORDS = re.compile(
    r"(?<![^\W_])(?:candidates?|facts?|and|plus|only|alone|together|nos?|numbers?|ids?|cand|[cf])(?![^\W\d_])",
    re.IGNORECASE,
)
CANDIDATE_NAMES = (
    *("candidates", "candidatenumbers", "candidateids", "candidate", "candidatenumber", "candidateid", "subset"),
    *("minimalsubset", "matches", "matching", "matchingcandidates", "matchedcandidates", "selected", "matched"),
    *("selectedcandidates", "chosen", "numbers", "ids", "answer", "finalanswer", "result", "output", "match", "best"),
    *("bestcandidate", "evidence", "supporting", "supportingcandidates", "entailing", "entailingcandidates"),
)
_ELEMENT_NAMES = (*("candidate", "candidatenumber", "candidateid", "number", "id", "no", "index", "fact", "text", ""),)
_VERDICT_NAMES = (
    *("match", "ismatch", "matches", "matched", "entails", "entailed", "selected", "chosen", "verdict", "label"),
    *("supports", "covers", "covered", "relevant", "needed"),
)
_YES, _NO = {"true", "yes", "match", "1"}, {"false", "no", "no match", "0"}

_BRACKET = re.compile(r"\[([^\[\]]{0,2000})\]")
# `[1, 3] [1, 3]`, a list twice, and `[1], [3]`, a list for each number
_REPEATED = re.compile(r"^[ \t]{0,9}(\[[\d\s,]{0,200}\])(?:[ \t\r\n]{0,9}\1){1,9}(?=\s|\Z)", re.MULTILINE)
_ROW_OF_LISTS = re.compile(r"(?<!\[)\[\d{1,6}\](?:[ \t]{0,3}(?:[,&]|and)?[ \t]{0,3}\[\d{1,6}\]){1,99}(?!\])")
_OTHERS = re.compile(r"\][ \t]{0,3}[(,]?[ \t]{0,3}or[ \t]{1,3}\[\d", re.IGNORECASE)  # `[2] (or [3])`
_DIGITS = re.compile(r"\d+")
_ROUND = re.compile(r"\((\d{1,6})\)")
_NUMBERS = re.compile(r"[\s\d,;&/#、，–—.+-]*")
_SIGNS = re.compile(r"[\W_]{0,40}")
_ENDS_LINE = re.compile(r"(?:[^\w\n]|_){0,40}(?:\n|\Z)")
_BOXED = re.compile(r"\$?\\boxed\{(?:\\text\{)?")
# What states that a list is the answer; a short line with a colon does, too
_STATING = re.compile(
    r"\b(?:answer|best|subset|set|result|output|conclusion|verdict|selection|therefore|thus|hence|so|finally|choose"
    r"|select"
    r"|return|list|entail\w*|needed|required|suffic\w+|together)\b",
    re.IGNORECASE,
)
_LEADS = re.compile(
    r"(?:[:：=→]|->|=>|\b(?:is|are|be|choose|select|return|candidates?|by|therefore|thus|hence|so))\s*\Z", re.I
)
# Characters of a line before a list that are read, and of those a label may have
_REACH, _LONGEST_LABEL = 200, 60
_AROUND_LINE = " \t\r*_`\"'-.!"
# Before a list of what is no answer: `Rejected: [2]`, `Candidates considered: [1, 2, 3]`
_OF_OTHERS = re.compile(
    r"\b(?:not|no|non|reject\w*|exclud\w*|dropped|remaining|others?|consider\w*|all|irrelevant|unmatched|un\w+ed"
    r"|partial\w*"
    r"|against|without|insufficient|except|if|instead|first|initial\w*|possible|given|sources?|references?|citations?"
    r"|total|count"
    r"|confidence|score|analysis|notes?|missing)\b|n['’]t\b",
    re.IGNORECASE,
)
_OF_LIST = re.compile(r"[\[\]{}]")
_REASON = re.compile(
    r"[*_`\]]{0,3}(?:[.:]\s"
    r"|[.,;]?\s{1,3}(?:[-–—(/#→]|(?:because|since|as)\b|(?:is|are) (?:the|my|enough|sufficient)\b))",
    re.IGNORECASE,
)
# `Not [2]. The answer is [1, 3]`: what stands before a list ends the sentence that it is in
_SENTENCE_END = re.compile(r"(?<=[.;!?\]])\s|\bbut\b", re.IGNORECASE)
_ONLY_LABEL = re.compile(r"(?:the )?(?:final )?(?:answer|result|output|candidates)(?: is)?[:：]?\Z", re.IGNORECASE)
_QUOTES = re.compile(r"[\"'“”‘’]")
_VERB = r"(?:entails?|match(?:es)?|covers?|implies|imply|suffices?|supports?)\b"
_ALONE = r"(?:\s(?:together|alone|jointly|both|combined))?"
_BEHIND = re.compile(rf"{_ALONE}\s{_VERB}(?![^\n]{{0,200}}\b(?:not|only|part|partly|but|except)\b)", re.IGNORECASE)
_SENTENCE = re.compile(
    rf"(?:only\s)?(?P<numbers>(?:candidates?|facts?)\s#?\d[^\n.]{{0,80}}?){_ALONE}\s{_VERB}"
    r"(?![^\n]*\b(?:not|only|part|partly|but|except|candidate|candidates)\b)[^\n]{0,120}",
    re.IGNORECASE,
)
_NO_CANDIDATE = re.compile(
    r"(?:none of (?:the|these|them|those)\b[^\n\d]{0,120}"
    r"|no (?:match(?:es)?|(?:matching )?candidates?)(?:\s[^\n\d]{0,80})?)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _ParsedSubset:
    """A list in a completion: what it holds, whether it is the answer by its line, and whether that needs no word."""

    inside: str
    is_answer: bool
    is_bare: bool
    start: int
    end: int


@final_answer
@past_echoes
def parse_subset(completion: str, variables: Mapping[str, Any]) -> dict[str, list[int]]:
    """`candidates`: the numbers of `candidates` that together entail the reference, from 1, ascending; `[]` for none.

    The list of an object, else the last list that has its line for itself or is said to be the answer, else a line of
    numbers, else a lone `None`. Unknown numbers are dropped. Raises `Unparsable` where none is left of some, and where
    no list is the answer or several may be.
    """
    text = _REPEATED.sub(r"\1", strip_thinking(completion))
    if _OTHERS.search(text):
        raise Unparsable("several lists of candidates")
    text = _ROW_OF_LISTS.sub(lambda row: f"[{', '.join(_DIGITS.findall(row[0]))}]", text)
    numbered = NumberedTexts(variables["candidates"], CANDIDATE_WORDS)
    found = _read(text, numbered)
    if found is None:
        raise Unparsable("no list of candidates")
    if found != _corrected(behind_correction(text), numbered, found):
        raise Unparsable("a list that is taken back")
    return {"candidates": sorted(found)}


def _read(text: str, numbered: NumberedTexts) -> frozenset[int] | None:
    found = _recorded(text, numbered)
    for read in (_listed, _bare, _none):
        found = read(text, numbered) if found is None else found
    return found


def _corrected(behind: str, numbered: NumberedTexts, before: frozenset[int]) -> frozenset[int]:
    """What a correction says, or what was said before it where it says nothing else."""
    try:
        said = _read(behind, numbered) if behind.strip() else None
    except Unparsable:
        said = None
    if said is not None:
        return said
    listed = _lists_of_numbers(behind)
    return _known(listed[-1], numbered) if listed else before


def _lists_of_numbers(text: str) -> list[str]:
    """What stands in brackets and is numbers alone, or nothing."""
    return [found[1] for found in _BRACKET.finditer(text) if _NUMBERS.fullmatch(found[1])]


def _known(text: str, numbered: NumberedTexts) -> frozenset[int]:
    """The known numbers of a text that lists some. Raises `Unparsable` where none is left of some."""
    known = frozenset(known_numbers(text, numbered))
    if not known and any(map(str.isdigit, text)):
        raise Unparsable("no number of a candidate is left")
    return known


def _recorded(text: str, numbered: NumberedTexts) -> frozenset[int] | None:
    """The candidates of an object, or of a list of objects or of texts; None where there is none of these.

    Raises `Unparsable` where it has none, and where another list beside it is the answer too.
    """
    records = read_records(json_at_line_starts(text))
    if records is None or not any(_is_named(value) for value in records.values):
        return None
    found = _of_records(records, numbered)
    beside = _listed(records.rest, numbered)
    if "{" in records.rest or (beside is not None and beside != found):
        raise Unparsable("two lists of candidates")
    return found


def _is_named(value: Value) -> bool:
    """Whether a value is an object, or a list of objects or texts; lists of numbers are read as they stand."""
    return isinstance(value, Record) or (isinstance(value, list) and bool(value))


def _of_records(records: Records, numbered: NumberedTexts) -> frozenset[int]:
    lone = records.values[0] if len(records.values) == 1 else None
    if isinstance(lone, Record) and lone.field(CANDIDATE_NAMES) is not None:
        found = _numbers_of(_listing_field(lone), numbered)
        if found and _verdicts(lone) & _NO:
            raise Unparsable("candidates beside the word that there are none")
        return found
    values = unwrapped(records.values, _ELEMENT_NAMES)
    if not values or any(isinstance(value, list) for value in values):
        raise Unparsable("an object without candidates")
    return _numbers_of([value for value in values if not isinstance(value, Record) or _is_chosen(value)], numbered)


def _listing_field(record: Record) -> Value | None:
    """The field with the candidates, which is no verdict, `"match": true`; None where one denies all of them."""
    fields = [value for key, value in record.pairs if field_name(key) in CANDIDATE_NAMES]
    listing = [value for value in fields if not isinstance(value, Cell) or letters(value.text) not in _YES | _NO]
    if not listing and _verdicts(record) & _NO:
        return None
    if len(listing) != 1 or isinstance(listing[0], Record):
        raise Unparsable("several lists of candidates in one object, or none")
    return listing[0]


def _numbers_of(value: Value | None, numbered: NumberedTexts) -> frozenset[int]:
    """The known numbers of a field; none for `null`. Raises `Unparsable` where none is left, and for lists in lists."""
    if isinstance(value, list) and len(value) > 1 and any(isinstance(each, list) for each in value):
        raise Unparsable("several lists of candidates")
    cells = list(cells_of(value, _ELEMENT_NAMES))
    known = frozenset(number for cell in cells for number in known_numbers(cell.bare, numbered))
    if not known and any(map(str.isdigit, "".join(cell.text for cell in cells))):
        raise Unparsable("no number of a candidate is left")
    return known


def _verdicts(record: Record) -> set[str]:
    """What an object says in fields of verdicts."""
    fields = [value for key, value in record.pairs if field_name(key) in _VERDICT_NAMES]
    return {letters(value.text) or value.bare for value in fields if isinstance(value, Cell)}


def _is_chosen(element: Record) -> bool:
    """Whether an element of a list is not denied, `{"candidate": 1, "match": false}`.

    Raises `Unparsable` for a verdict that is neither yes nor no.
    """
    said = _verdicts(element)
    if (said & _YES and said & _NO) or said - _YES - _NO:
        raise Unparsable("a verdict that is neither yes nor no")
    return not said & _NO


def _listed(text: str, numbered: NumberedTexts) -> frozenset[int] | None:
    """The last list that is the answer by its line; of lists without a word that differ and stand together, none is."""
    said = list(_lists(text, numbered))
    answers = [each for each in said if each.is_answer]
    for above, below in pairwise(answers):
        apart = text[above.end : below.start].strip(" \t\r\n,;*_`[]-")
        before = text[max(0, above.start - _LONGEST_LABEL) : above.start].rstrip()
        is_labelled = _ONLY_LABEL.fullmatch(apart) and _ONLY_LABEL.search(before)
        bare = above.is_bare and below.is_bare
        if (is_labelled or (bare and not apart)) and _known(above.inside, numbered) != _known(below.inside, numbered):
            raise Unparsable("several lists of candidates")
    if answers:
        return _known(answers[-1].inside, numbered)
    if len({each.inside for each in said}) > 1:
        raise Unparsable("several lists of candidates and none is the answer")
    return _known(said[0].inside, numbered) if said else None


def _lists(text: str, numbered: NumberedTexts) -> Iterator[_ParsedSubset]:
    """The lists that are answers by their lines, a lone `None` among them, and those that lead a line or a clause."""
    for found in _BRACKET.finditer(text):
        inside = _QUOTES.sub("", found[1])
        if not (_NUMBERS.fullmatch(without_words(inside, numbered)) or is_none(inside)):
            continue
        line, end = _line_before(text, found.start()), found.end()
        before = _SENTENCE_END.split(line)[-1]
        begins, stated, reasoned = _begins_line(line), _states(before), _REASON.match(text, end) is not None
        if (begins or stated) and _ENDS_LINE.match(text, end):
            yield _ParsedSubset(inside, True, begins, found.start(), end)
        elif stated and reasoned:
            yield _ParsedSubset(inside, True, False, found.start(), end)
        elif (begins and reasoned) or (_BEHIND.match(text, end) and not _OF_OTHERS.search(before)):
            yield _ParsedSubset(inside, False, begins, found.start(), end)


def _line_before(text: str, place: int) -> str:
    """What stands before a place on its line; of a long line the last characters, behind words that begin it."""
    start = max(0, place - _REACH)
    begin = text.rfind("\n", start, place) + 1
    return text[begin:place] if begin or not start else f"... and so on {text[start:place]}"


def _begins_line(before: str) -> bool:
    """Whether nothing but a bullet and signs stands before a list."""
    return _SIGNS.fullmatch(split_marker(_BOXED.sub("", before) + ".").text) is not None


def _states(before: str) -> bool:
    """Whether what stands before a list says that it is the answer."""
    label = before.rstrip(" \t*_`\"'([{$\\")
    if _OF_OTHERS.search(label) or not _LEADS.search(label):
        return False
    plain = len(label) <= _LONGEST_LABEL and label.endswith((":", "：", "=")) and not any(map(str.isdigit, label))
    return plain or _STATING.search(label) is not None


def _bare(text: str, numbered: NumberedTexts) -> frozenset[int] | None:
    """Numbers without brackets: all lines, the last line, or a lone sentence, `Candidates 1 and 3 entail it.`

    So is a lone line with a candidate's own text, behind its number or not.
    """
    lines = [line for line in text.split("\n") if line.strip() and not is_fence(line) and not is_rule(line)]
    repeated = number_in(lines[0].strip(), numbered) if len(lines) == 1 else None
    if repeated is not None and repeated in numbered:
        return frozenset({repeated})
    # `_listed` found those to be no answer
    if any(map(_DIGITS.search, _lists_of_numbers(text))):
        raise Unparsable("a list of numbers that may be the answer or not")
    numbers = [_line_of_numbers(_ROUND.sub(r"\1", line), numbered) for line in lines]
    first = next((place for place, line in enumerate(numbers) if line is not None), len(lines))
    if first == len(lines):
        sentence = _SENTENCE.fullmatch(lines[0].strip()) if len(lines) == 1 else None
        return _listed_numbers(sentence["numbers"], numbered) if sentence else None
    if None in numbers[first:] or (first < len(lines) - 1 and not _introduces(lines[:first])):
        raise Unparsable("numbers that may be the answer or not")
    return frozenset(number for line in numbers[first:] for number in line or ())


def _introduces(lines: Sequence[str]) -> bool:
    return all(line.rstrip(" \t\r*_").endswith((":", "：")) for line in lines)


def _line_of_numbers(line: str, numbered: NumberedTexts) -> frozenset[int] | None:
    """The numbers of a line that is nothing else, behind a bullet and a word that says that it is the answer."""
    return None if _OF_LIST.search(line) else _listed_numbers(_without_label(line), numbered)


def _without_label(line: str) -> str:
    """The line without its bullet and without a word before that says that it is the answer."""
    bare = line.strip().lstrip("-*+•> \t").strip("*_`")
    for colon in (":", "：", " is ", " are "):
        before, said, behind = bare.rpartition(colon)
        if said and _states(before + said):
            bare = behind
    return bare.strip()


def _listed_numbers(text: str, numbered: NumberedTexts) -> frozenset[int] | None:
    """The known numbers of a text that is a list of some; None for any other text."""
    bare = without_words(text, numbered)
    return _known(text, numbered) if _NUMBERS.fullmatch(bare) and any(map(str.isdigit, bare)) else None


def _none(text: str, numbered: NumberedTexts) -> frozenset[int] | None:
    """Nothing, where a line is a lone `None` or the first says that none of the candidates is one."""
    lines = [line.strip(_AROUND_LINE) for line in text.split("\n") if line.strip() and not is_fence(line)]
    lines = [without_ticks(_without_label(line).strip(_AROUND_LINE)) for line in lines]
    if any(map(is_none, lines)) or (lines and _NO_CANDIDATE.fullmatch(lines[0])):
        return frozenset()
    return None
