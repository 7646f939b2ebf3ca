"""The stages of importance-aware precision and recall ("Beyond Precision", 2026; methods, section 9)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from untold.udfs.facts.claim_verdicts import CONTRADICTED, NOT_SUPPORTED, SUPPORTED
from untold.udfs.ratings import Digit
from untold.udfs.stages.claims import parse_claims
from untold.udfs.stages.definitions import (
    FACTSCORE,
    RATING,
    TEXT,
    WRITTEN,
    ExtractedItem,
    Figures,
    LinearSize,
    OutputFormat,
    StageDefinition,
    Unparsable,
    label_of,
    lines_of,
    listed,
    number_of,
    one_of,
    record,
)
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.icat import EXTRACT_CLAIMS
from untold.udfs.stages.labels import labels_of, read_label
from untold.udfs.stages.numbered import (
    CLAIM_WORDS,
    EVIDENCE_NAMES,
    NumberedTexts,
    evidence_cells,
    listed_numbers,
    matching_key,
    number_in,
    rating_pattern,
    read_digit,
)
from untold.udfs.stages.reading import answer_in_place, is_fence, is_rule, past_echoes, strip_thinking, unfenced
from untold.udfs.stages.records import Cell, Record, Value, json_at_line_starts, read_rating, read_records

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
    claims = NumberedTexts(variables["claims"], CLAIM_WORDS)
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


def _read_object(value: Record, claims: NumberedTexts) -> _Coverage:
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


def _known(cell: Cell, claims: NumberedTexts) -> Iterator[int]:
    """The known numbers of `3`, `claim 3`, `1, 3` and `1-3`, or of the claim that is repeated."""
    number = number_in(cell.bare, claims)
    if number is not None and number in claims:
        yield number
    else:
        yield from listed_numbers(cell.bare, claims) or ()


def _read_lone_label(text: str, claims: NumberedTexts) -> _Coverage:
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


def _claims_behind(text: str, claims: NumberedTexts) -> frozenset[int] | None:
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


# `Fact 1 (relevance 5 ...` and `2. [Relevance: 4] ...`: what leads to ratings behind a fact's number or text
_AROUND = " \t\r*_`|([{,;-–—:="
# A number that leads a line, with a text behind it that is not as the fact was given
_LEADS = re.compile(r"[^\w\n]{0,6}(?:(?:fact|statement)[ _]?)?(?P<number>\d{1,6})[.):\]]", re.IGNORECASE)


@dataclass
class _FactRatings:
    """The ratings below or beside one fact, by scale."""

    fact: int
    said: dict[str, list[Digit | None]] = field(default_factory=dict)


def read_rated_lines(
    text: str, scales: Mapping[str, str], facts: NumberedTexts
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


def _blocks(text: str, patterns: Mapping[str, re.Pattern[str]], facts: NumberedTexts) -> Iterator[_FactRatings]:
    """The facts in the order of their lines; 0 stands for what is above the first."""
    block, start = _FactRatings(0), 0
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
                block = _FactRatings(number)
        if rated and block.fact not in facts:
            raise Unparsable("a rating of no fact")
        for scale, match in rated:
            block.said.setdefault(scale, []).append(read_digit(text, match))
        start = end + 1
    yield block


def _named(before: str, behind: str, facts: NumberedTexts) -> int | None:
    """The fact that a line names before its ratings, or behind them where nothing stands before; None for none."""
    said = before.strip(_AROUND)
    if not matching_key(said):
        said = behind.strip("/5" + _AROUND) if matching_key(behind) else ""
    number = number_in(said, facts) if said else None
    leading = _LEADS.match(before)
    return number if number is not None or leading is None else int(leading["number"])


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


class _ParsedRating(NamedTuple):
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
    facts = NumberedTexts(variables["facts"], _FACT_WORDS)
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


def _ratings(value: Value, above: int, facts: NumberedTexts) -> Iterator[_ParsedRating]:
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
            yield from (_ParsedRating(known, scale, _digit(each)) for scale, each in found.items())
        elif not found:
            for key, each in value.pairs:
                yield from _ratings(each, number_in(key, facts) or fact, facts)


def _numbered(value: Record, above: int, facts: NumberedTexts) -> int:
    """The number of the fact that an object's id names, one of no fact where it is unknown; else the one above it."""
    cell = value.cell(_ID_NAMES)
    return above if cell is None else number_in(cell.bare, facts) or len(facts.texts) + 1


def _worded(value: Record, facts: NumberedTexts) -> int:
    """The number of the fact that an object without an id repeats, else 0."""
    cell = value.cell(_TEXT_NAMES)
    return (number_in(cell.bare, facts) if cell else None) or 0


def _digit(value: Value) -> Digit | None:
    """The digit of `4`, `"4/5"` or `{"score": 4, "reason": "..."}`."""
    inner = value.field(_SCORE_NAMES) if isinstance(value, Record) else value
    return read_rating(inner) if isinstance(inner, Cell) else None


VERDICTS = (SUPPORTED, CONTRADICTED, NOT_SUPPORTED)

# `NOT_SUPPORTED`, `not-supported`, `not **supported**` and `isn't supported` are one word, and no `supported` is in it
_NOT = r"(?:not|non|un|(?:is|are|was|were)n['’]t)[\s*_\"'`~‐‑–—-]{0,6}supported"
# Lines are read one by one: one that ends between the two words is no end
_TORN = re.compile(r"(?<=not)[ \t]{0,9}\r?\n[ \t]{0,9}(?=supported)", re.IGNORECASE)
_LABELS = labels_of(
    {
        NOT_SUPPORTED: rf"{_NOT}|not (?:at all|in any way) supported",
        CONTRADICTED: r"contradict(?:ion|s|ed|ing|ory)?",
        SUPPORTED: r"supported|supports?",
    },
    denying=r"do(?:es)?(?: not|n['’]t) (?:at all )?support",
    hedged=r"(?:partially|partly|mostly|largely|somewhat|weakly|half)[\s_-]supported",
    inputs=("claim", "evidence"),
    positive=SUPPORTED,
    neither=NOT_SUPPORTED,
    opposites=(SUPPORTED, CONTRADICTED),
)


@final_answer
@past_echoes
def parse_verdict(completion: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """`relation`: the one of `VERDICTS` that is the answer, as `read_label` finds it; what neither supports nor
    contradicts is not supported. Raises `Unparsable` where that is none or several.
    """
    own = [str(variables.get("claim") or ""), *map(str, variables.get("evidence") or ())]
    return {"relation": read_label(_TORN.sub(" ", completion), _LABELS, own)}


FACTS_SCHEMA = pa.schema([pa.field("facts", pa.list_(pa.string()))])
# Each a list in the order of the variable `facts`
IMPORTANCE_SCHEMA = pa.schema(
    [pa.field("relevance", pa.list_(pa.float64())), pa.field("salience", pa.list_(pa.float64()))]
)
VERDICT_SCHEMA = pa.schema([pa.field("relation", pa.string())])
# Numbers of claims from 1, ascending; none of what is not covered
COVERING_SCHEMA = pa.schema([pa.field("covered", pa.bool_()), pa.field("claims", pa.list_(pa.int32()))])

_RATED = r'\{"id": \d+, "relevance": [1-5], "salience": [1-5]\}'


def parse_facts(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """`facts`: the facts in order, one that stands twice twice; none for a lone `None`. Read as claims are.

    Raises `Unparsable` where a line may be a fact or not, and where nothing is one.
    """
    return {"facts": parse_claims(completion, variables)["claims"]}


def facts_in(completion: str) -> list[ExtractedItem]:
    """The facts. Raises `Unparsable`."""
    return list(map(ExtractedItem, parse_facts(completion, {})["facts"]))


EXTRACT_FACTS = StageDefinition(
    "extract_facts",
    ("text",),
    parse_facts,
    FACTS_SCHEMA,
    schema=record(facts=listed(TEXT)),
    form=lines_of("- .+", "- fact"),
    # The same facts as those of `extract_claims`, each behind a bullet
    figures=Figures(FACTSCORE, completion=LinearSize(slope=1.81), things=LinearSize(slope=0.158)),
    things=facts_in,
    max_tokens=8_192,
    items=("facts",),
)
# The sentence is a fifth of the variables: they have a query and four other sentences
EXTRACT_VERIFIABLE_CLAIMS = replace(
    EXTRACT_CLAIMS,
    name="extract_verifiable_claims",
    variables=("query", "before", "sentence", "after"),
    figures=Figures(FACTSCORE, completion=LinearSize(slope=0.35), things=LinearSize(slope=0.032)),
    example=dict.fromkeys(("before", "sentence", "after"), "Ada lives in Lyon."),
)
RATE_IMPORTANCE = StageDefinition(
    "rate_importance",
    ("query", "facts"),
    parse_importance,
    IMPORTANCE_SCHEMA,
    schema=record(ratings=listed(record(id=number_of("facts"), relevance=RATING, salience=RATING))),
    form=OutputFormat(
        'a JSON list of one {"id": n, "relevance": n, "salience": n} for each fact',
        re.compile(rf"\[\s*{_RATED}(?:,\s*{_RATED})*\s*\]"),
    ),
    rated=True,
    figures=Figures(WRITTEN, completion=LinearSize(slope=1.09)),
    max_tokens=8_192,
)
VERIFY_CLAIM = StageDefinition(
    "verify_claim",
    ("claim", "evidence"),
    parse_verdict,
    VERDICT_SCHEMA,
    schema=record(verdict=one_of(VERDICTS)),
    form=label_of(VERDICTS),
    figures=Figures(WRITTEN, completion=LinearSize(14.0)),
)
CHECK_COVERAGE = StageDefinition(
    "check_coverage",
    ("fact", "claims"),
    parse_covering,
    COVERING_SCHEMA,
    schema=record(label=one_of(("COVERED", "NOT_COVERED")), evidence_claim_ids=listed(number_of("claims"))),
    form=OutputFormat(
        '{"label": "COVERED" or "NOT_COVERED", "evidence_claim_ids": [n, ...]}',
        re.compile(r'\{"label": "(?:NOT_)?COVERED", "evidence_claim_ids": \[[\d, ]*\]\}'),
    ),
    figures=Figures(WRITTEN, completion=LinearSize(16.0)),
)
