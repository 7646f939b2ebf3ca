"""The stages of claims, aspects and facts: ICAT, and importance-aware precision and recall.

Sources: Samarinas et al. 2025, and "Beyond Precision", 2026; methods, section 9.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from untold.udfs.errors import Unparsable
from untold.udfs.facts.claim_verdicts import CONTRADICTED, NOT_SUPPORTED, SUPPORTED
from untold.udfs.ratings import Digit
from untold.udfs.stages import lists
from untold.udfs.stages.answers import reader
from untold.udfs.stages.definitions import FACTSCORE, WRITTEN, Figures, LinearSize, StageDefinition
from untold.udfs.stages.forms import find_records, get_field, lines_with_places, numbers_of_value, place_of_record
from untold.udfs.stages.labels import Vocabulary, label_stage, labels_in_lines
from untold.udfs.stages.schemas import RATING, OutputFormat, lines_of, listed, number_of, one_of, record

_TOPIC_IDS = ("topicid", "topic", "topicnumber", "aspect", "aspectid")
_ALIGNED_NAMES = ("evidence", "evidenceids", "evidenceclaimids", "claims", "claimids", "claim", "claimid")
VERDICTS = (SUPPORTED, CONTRADICTED, NOT_SUPPORTED)
_VERDICTS = Vocabulary(
    {
        SUPPORTED: ("supports", "support"),
        CONTRADICTED: ("contradicts", "contradict", "contradiction"),
        NOT_SUPPORTED: (
            *("unsupported", "does not support", "doesn't support", "do not support", "not support", "notsupported"),
            *("isn't supported", "not at all supported", "neither supported nor contradicted"),
            *("neither supports nor contradicts", "neither contradicts nor supports"),
            "neither contradicted nor supported",
        ),
    },
    positive=SUPPORTED,
    inputs=("claim", "evidence"),
)
_COVERED, _NOT_COVERED = "COVERED", "NOT_COVERED"
_COVERINGS = Vocabulary(
    {
        _COVERED: ("yes", "true"),
        _NOT_COVERED: ("uncovered", "no", "false", "notcovered", "not covered by any", "not covered by any of"),
    },
    positive=_COVERED,
)
_COVERING_NAMES = ("label", "verdict", "status", "judgement", "answer")
_EVIDENCE_NAMES = (
    *("evidenceclaimids", "evidence", "claims", "claimids", "evidenceids", "ids", "numbers", "supportingclaims"),
    "evidenceclaims",
)
# `COVERED by claims 1 and 3`, `NOT_COVERED`
_COVERING_LINE = re.compile(
    r"[\W_]{0,6}(?:(?:label|(?:final )?answer|verdict)[*_]{0,2}[:：][\s*_]*|the fact is [*_]{0,2})?"
    r"(?P<not>not[ _-])?covered\b[\s*_]{0,4}(?:by|:|：|\(|（|-|–|,)?\s*"
    r"(?:(?:evidence(?: claim)?(?: ids)?:?|by claims?|claims?)\s*){0,3}:?\s*"
    r"(?P<numbers>[\[(]?\s*(?:\d{1,4}(?:\s*(?:,|，|、|and|&|to|-|–)\s*\d{1,4})*)?\s*[\])]?)?\W{0,6}",
    re.IGNORECASE,
)
SCALES: Mapping[str, tuple[str, ...]] = {
    "relevance": ("relevance", "relevancy", "relevancescore", "relevancerating"),
    "salience": ("salience", "saliency", "saliencescore", "saliencerating"),
}
_FACT_LINE = re.compile(r"[\W_]{0,6}(?:(?:fact|id|no|number)[\s_:#]*)?(?P<id>\d{1,4})\b", re.IGNORECASE)
_LINE_RATING = re.compile(
    r"(?P<scale>relevance|salience)[\s*_`]{0,3}[:=]?[\s*_`]{0,3}(?P<digit>[1-5])(?:/5)?(?![\d.,/-]*\d)", re.IGNORECASE
)


@reader
def parse_alignment(text: str, variables: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """Return the `evidence`: for each of `aspects` the numbers of the known `claims` that cover it, ascending."""
    aspects, claims = variables["aspects"], variables["claims"]
    return {"evidence": lists.read_number_lists(text, _TOPIC_IDS, _ALIGNED_NAMES, aspects, claims)}


@reader
def parse_importance(text: str, variables: Mapping[str, Any]) -> dict[str, list[Digit]]:
    """Return `relevance` and `salience`: a `Digit` for each of `facts`, in their order.

    Other ids are passed over. Raises `Unparsable` for a fact without both ratings from 1 to 5, and for one with two
    that differ.
    """
    facts = variables["facts"]
    found = find_records(text, [name for names in SCALES.values() for name in names])
    rated = _rated_lines(text, len(facts)) if found is None else _rated_records(text, found[0], facts)
    if found is not None:
        with suppress(Unparsable):
            rated += _rated_lines(found[1], 0)
    ratings: dict[int, tuple[Digit, ...]] = {}
    for number, digits in rated:
        if number < 1:
            raise Unparsable("the number 0")
        said = [digit.value for digit in ratings.setdefault(number, digits)]
        if said != [digit.value for digit in digits]:
            raise Unparsable("two ratings of one fact")
    if any(number not in ratings for number in range(1, len(facts) + 1)):
        raise Unparsable("a fact without ratings")
    return {scale: [ratings[n][place] for n in range(1, len(facts) + 1)] for place, scale in enumerate(SCALES)}


def _rated_records(text: str, records: list[Any], facts: list[str]) -> list[tuple[int, tuple[Digit, ...]]]:
    numbers, rated = [], []
    for each in records:
        names = ("id", "factid", "fact", "factnumber")
        number = place_of_record(each, names, facts) if isinstance(each, dict) else None
        if number is None:
            raise Unparsable("ratings without the number of a fact")
        try:
            ratings = [lists.rating_of_value(get_field(each, scale)) for scale in SCALES.values()]
        except Unparsable:
            if number > len(facts):
                continue
            raise
        numbers.append(number)
        rated.append(ratings)
    columns = [lists.digits_of_fields(text, scale, [row[n] for row in rated]) for n, scale in enumerate(SCALES)]
    return list(zip(numbers, zip(*columns, strict=True), strict=True))


def _rated_lines(text: str, count: int) -> list[tuple[int, tuple[Digit, ...]]]:
    """Return the ratings of the lines that name both scales; lines without numbers are as many as the facts."""
    numbers: list[int | None] = []
    rated = []
    for start, line in lines_with_places(text):
        if not all(scale in line.casefold() for scale in SCALES):
            continue
        found = {each["scale"].casefold(): each for each in _LINE_RATING.finditer(line)}
        if len(found) < len(SCALES) or len(_LINE_RATING.findall(line)) > len(SCALES):
            raise Unparsable("a line without two ratings from 1 to 5")
        number = _FACT_LINE.match(line)
        numbers.append(int(number["id"]) if number else None)
        rated.append(tuple(Digit(int(found[s]["digit"]), start + found[s].start("digit")) for s in SCALES))
    if numbers == [None] * count:
        numbers = list(range(1, count + 1))
    if None in numbers:
        raise Unparsable("ratings without the number of a fact")
    return [(number or 0, digits) for number, digits in zip(numbers, rated, strict=True)]


@reader
def parse_covering(text: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return `covered`, and `claims`: the numbers of the known `claims` that cover the fact, ascending.

    Raises `Unparsable` for no label, for objects that disagree, for COVERED without a known claim, and for NOT_COVERED
    with one.
    """
    claims = variables["claims"]
    found = find_records(text, ("covered", *_COVERING_NAMES, *_EVIDENCE_NAMES))
    if found and not any(isinstance(each, dict) for each in found[0]):
        found = None
    rest = found[1] if found else ""
    if labels_in_lines(rest, _COVERINGS, ()) or any(map(_COVERING_LINE.fullmatch, rest.split("\n"))):
        raise Unparsable("JSON and a label outside of it")
    said = {_covering_of(each, claims) for each in found[0]} if found else {_covering_in_lines(text, claims)}
    if len(said) != 1:
        raise Unparsable("objects that disagree")
    covered, numbers = said.pop()
    if covered != bool(numbers):
        raise Unparsable("COVERED without a known claim, or NOT_COVERED with claims")
    return {"covered": covered, "claims": list(numbers)}


def _covering_of(value: Any, claims: list[str]) -> tuple[bool, tuple[int, ...]]:
    if not isinstance(value, dict):
        raise Unparsable("no label")
    said = [get_field(value, _COVERING_NAMES), value.get("covered")]
    labels = {_COVERINGS.read(str(each)) for each in said if each is not None}
    if len(labels) != 1 or None in labels:
        raise Unparsable("no label, or two")
    return labels == {_COVERED}, tuple(numbers_of_value(get_field(value, _EVIDENCE_NAMES), len(claims), claims)[0])


def _covering_in_lines(text: str, claims: list[str]) -> tuple[bool, tuple[int, ...]]:
    """Return the only label, with the numbers on its line. If that line has none, use the other lines."""
    found = [each for _, line in lines_with_places(text) if (each := _COVERING_LINE.fullmatch(line))]
    if not found and set(labels_in_lines(text, _COVERINGS, ())) == {_NOT_COVERED}:
        return False, ()
    if len(found) != 1:
        raise Unparsable("no object with a label")
    numbers = found[0]["numbers"] or lists.numbers_in_lines(text)
    return not found[0]["not"], tuple(numbers_of_value(numbers, len(claims))[0])


_RATED = r'\{"id": \d+, "relevance": [1-5], "salience": [1-5]\}'
EXTRACT_CLAIMS = lists.list_stage(
    "extract_claims",
    ("text",),
    "claims",
    lists.texts_named(lists.CLAIM_NAMES, may_be_plain=True),
    form=lines_of(r"(?![-*•] ).+", "claim"),
    # The facts of `extract_atoms` without a bullet and a type
    figures=Figures(FACTSCORE, completion=LinearSize(slope=1.73), things=LinearSize(slope=0.158)),
    max_tokens=8_192,
)
GENERATE_ASPECTS = lists.list_stage(
    "generate_aspects",
    ("query",),
    "aspects",
    lists.texts_named(lists.TOPIC_NAMES),
    field="topics",
    form=lines_of(r'\{"topic": ".+"\}', '{"topic": "..."}'),
    # Long and short queries have equally many aspects
    figures=Figures(WRITTEN, completion=LinearSize(64.0), things=LinearSize(5.7)),
)
ALIGN_CLAIMS = StageDefinition(
    "align_claims",
    ("query", "aspects", "claims"),
    parse_alignment,
    pa.schema({"evidence": pa.list_(lists.NUMBERS)}),
    schema=record(covered=listed(record(topic_id=number_of("aspects"), evidence=listed(number_of("claims"))))),
    form=lines_of(r'\{"topic_id": \d+, "evidence": \[[\d, ]*\]\}', '{"topic_id": n, "evidence": [n, ...]}'),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.3)),
    max_tokens=8_192,
)
EXTRACT_FACTS = lists.list_stage(
    "extract_facts",
    ("text",),
    "facts",
    lists.texts_named(lists.FACT_NAMES, may_be_plain=True),
    form=lines_of("- .+", "- fact"),
    # The facts of `extract_claims` with bullets
    figures=Figures(FACTSCORE, completion=LinearSize(slope=1.81), things=LinearSize(slope=0.158)),
    max_tokens=8_192,
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
    pa.schema(dict.fromkeys(SCALES, pa.list_(pa.float64()))),
    schema=record(ratings=listed(record(id=number_of("facts"), relevance=RATING, salience=RATING))),
    form=OutputFormat(
        'a JSON list of one {"id": n, "relevance": n, "salience": n} for each fact',
        re.compile(rf"\[\s*{_RATED}(?:,\s*{_RATED})*\s*\]"),
    ),
    rated=True,
    figures=Figures(WRITTEN, completion=LinearSize(slope=1.09)),
    max_tokens=8_192,
)
VERIFY_CLAIM = label_stage(
    "verify_claim",
    ("claim", "evidence"),
    VERDICTS,
    _VERDICTS,
    "verdict",
    figures=Figures(WRITTEN, completion=LinearSize(14.0)),
)
CHECK_COVERAGE = StageDefinition(
    "check_coverage",
    ("fact", "claims"),
    parse_covering,
    pa.schema({"covered": pa.bool_(), "claims": lists.NUMBERS}),
    schema=record(label=one_of(("COVERED", "NOT_COVERED")), evidence_claim_ids=listed(number_of("claims"))),
    form=OutputFormat(
        '{"label": "COVERED" or "NOT_COVERED", "evidence_claim_ids": [n, ...]}',
        re.compile(r'\{"label": "(?:NOT_)?COVERED", "evidence_claim_ids": \[[\d, ]*\]\}'),
    ),
    figures=Figures(WRITTEN, completion=LinearSize(16.0)),
)
