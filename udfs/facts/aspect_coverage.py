"""Score a sample by ICAT: grounded claims, the aspects that they cover, bounds, and annotated subtopics of documents.

Samarinas et al. 2025. C are the claims of the response, C_T the claims that the knowledge source grounds, and u the
ungrounded claims with a lost judgement.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from operator import itemgetter
from typing import Any

from untold.udfs.arrow import FLAG, FLOAT, NUMBER, TEXT, Row, columns, over_rows, struct
from untold.udfs.errors import UserError
from untold.udfs.facts.claim_verdicts import SUPPORTED, distinct_texts
from untold.udfs.samples.file_records import READ_ERRORS
from untold.udfs.samples.files import open_text
from untold.udfs.samples.values import load_json, text_of

NAMES = ("query_id", "subtopic_id", "doc_id", "relevance")
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
ANNOTATIONS = columns(topic=TEXT, subtopic=TEXT, document=TEXT)
# 128 bits, as in the keys of requests
_DIGEST_BYTES = 16


class QrelsError(UserError):
    """An unreadable file of annotations. The message has the file and line, and never their content."""


@dataclass(frozen=True)
class Annotation:
    """A document that is relevant to a subtopic of a topic."""

    topic: str
    subtopic: str
    document: str


def read_qrels(path: str) -> Iterator[Annotation]:
    """Yield the annotations of a file with a relevance above 0. Blank lines are skipped.

    The lines are `topic subtopic document relevance`. JSON Lines (by the name's ending, without .gz) have query_id,
    subtopic_id, doc_id and relevance. Raises QrelsError for an unreadable file and for a line in another format.
    """
    read = _of_json if is_json(path) else _of_columns
    for number, line in numbered_lines(path, QrelsError, "icat.qrels"):
        try:
            *named, relevance = read(line)
            relevant = float(relevance) > 0
        except (ValueError, TypeError, KeyError, RecursionError):
            raise QrelsError(f"{path} line {number}: {_expected(path)}") from None
        if relevant:
            yield Annotation(*named)


def numbered_lines(path: str, fault: type[UserError], setting: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not blank, with their numbers. Raises `fault` for an unreadable file."""
    try:
        with open_text(path) as lines:
            yield from ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    except READ_ERRORS as error:
        raise fault(f"{path} cannot be read ({type(error).__name__}). Check {setting}") from error


def is_json(path: str) -> bool:
    """Return True if a file is JSON Lines, by its name."""
    return path.lower().removesuffix(".gz").endswith(JSON_ENDINGS)


def digest_of_qrels(path: str) -> str:
    """Return 32 hex characters of the annotations in any order, for the identity of outputs. Raises as `read_qrels`.

    The digest is a sum of hashes, so its memory does not depend on the file.
    """
    hashes = (
        hashlib.blake2b("\n".join((one.topic, one.subtopic, one.document)).encode(), digest_size=_DIGEST_BYTES)
        for one in read_qrels(path)
    )
    total = sum(int.from_bytes(one.digest(), "big") for one in hashes)
    return f"{total % 2 ** (8 * _DIGEST_BYTES):0{2 * _DIGEST_BYTES}x}"


@over_rows(ANNOTATIONS)
def annotated_documents(row: Row) -> Iterator[Row]:
    """Yield the annotations that count, as columns of `ANNOTATIONS`, from the paths of files (column path)."""
    return map(vars, read_qrels(row["path"]))


def _of_columns(line: str) -> list[str]:
    topic, subtopic, document, relevance = line.split()
    return [topic, subtopic, document, relevance]


def _of_json(line: str) -> list[str]:
    found = load_json(line)
    values = [text_of(found[name]) for name in NAMES]
    if any(value is None for value in values):
        raise ValueError
    return [str(value) for value in values]


def _expected(path: str) -> str:
    form = f"a JSON object with {', '.join(NAMES)}" if is_json(path) else "topic subtopic document relevance"
    return f"not in the format `{form}`. Fix the line, or check icat.qrels"


FACT, COVERAGE, ICAT, CLAIMS = MEASURES = ("s_fact", "s_coverage", "icat", "claims")

ASPECT = struct(reference_id=TEXT, text=TEXT)
ASPECTS = columns(sample_id=TEXT, aspects=[ASPECT])
MEASURE = struct(measure=TEXT, value=FLOAT, value_low=FLOAT, value_high=FLOAT)
# The columns that the conclusions of all metrics have. A metric adds its own
CONCLUSION = columns(sample_id=TEXT, measures=[MEASURE], covered=NUMBER, uncovered=NUMBER, unjudged=NUMBER, empty=FLAG)
_STATEMENT = struct(number=NUMBER, reference_id=TEXT, text=TEXT, covered=FLAG, claims=[NUMBER])
CONCLUDED = columns(CONCLUSION, statements=[_STATEMENT])


@dataclass(frozen=True)
class BoundedValue:
    """A value with the bounds that unjudged parts allow. All are None if undefined."""

    value: float | None
    low: float | None
    high: float | None

    @classmethod
    def exact(cls, value: float | None) -> BoundedValue:
        """Return a value without unjudged parts, which is its own bounds."""
        return cls(value, value, value)


UNDEFINED = BoundedValue.exact(None)
UNKNOWN = BoundedValue(None, 0.0, 1.0)
"""A share of which all parts are unjudged."""


def conclusion(
    row: Row, measures: Mapping[str, BoundedValue], covered: Sequence[bool | None], *, empty: bool = False
) -> dict[str, Any]:
    """Return the columns of `CONCLUSION`. covered: a flag per statement of the sample, None if it is unjudged.

    A metric with other unjudged parts replaces `unjudged`.
    """
    return {
        "sample_id": row["sample_id"],
        "measures": measure_list(measures),
        "covered": covered.count(True),
        "uncovered": covered.count(False),
        "unjudged": covered.count(None),
        "empty": empty,
    }


def measure_list(measures: Mapping[str, BoundedValue]) -> list[dict[str, Any]]:
    """Return the rows of `MEASURE`, one per measure."""
    return [
        {"measure": name, "value": one.value, "value_low": one.low, "value_high": one.high}
        for name, one in measures.items()
    ]


def share_of(flags: Sequence[bool | None], weights: Sequence[float] | None = None) -> BoundedValue:
    """Return the weighted share of true flags over the judged, with bounds for all unjudged flags false and true.

    It is undefined without weight. If no flag is judged, it has no value, and the bounds are 0 and 1.

    >>> share_of([True, None, False, False])
    BoundedValue(value=0.3333333333333333, low=0.25, high=0.5)
    """
    sized = list(zip(flags, weights or [1.0] * len(flags), strict=True))

    def total(*kinds: bool | None) -> float:
        # Exact except for the last rounding, so the order of facts does not matter and a part never exceeds the whole
        return fsum(weight for flag, weight in sized if flag in kinds)

    whole, judged = total(True, False, None), total(True, False)
    if not whole:
        return UNDEFINED
    return BoundedValue(total(True) / judged if judged else None, total(True) / whole, total(True, None) / whole)


def f_score(precision: float | None, recall: float | None, beta: float = 1.0) -> float | None:
    """Return (1 + beta^2) P R / (beta^2 P + R). None if either is, 0 if both are 0.

    >>> f_score(0.5, 1.0), f_score(0.0, 0.0), f_score(None, 0.0)
    (0.6666666666666666, 0.0, None)
    """
    if precision is None or recall is None:
        return None
    # The result is also 0 if only one is 0. Tested first, because the square of a tiny beta is 0 and would divide 0 by
    # 0
    if not precision or not recall:
        return 0.0
    square = beta * beta
    return (1 + square) * precision * recall / (square * precision + recall)


def f_of(precision: BoundedValue, recall: BoundedValue, beta: float = 1.0) -> BoundedValue:
    """Return the F score of the values, of the lows and of the highs. It increases in both."""
    ends = [f_score(getattr(precision, end), getattr(recall, end), beta) for end in ("value", "low", "high")]
    return BoundedValue(*ends)


def coverage_of(covered: int, unjudged: int, aspects: int) -> BoundedValue:
    """Return S_coverage, None without aspects. Unjudged claims could cover all aspects, so they raise the upper bound.

    >>> coverage_of(1, 0, 4), coverage_of(1, 2, 4)
    (BoundedValue(value=0.25, low=0.25, high=0.25), BoundedValue(value=0.25, low=0.25, high=1.0))
    """
    if not aspects:
        return UNDEFINED
    value = covered / aspects
    return BoundedValue(value, value, 1.0 if unjudged else value)


def measures_of(
    grounded: int, unjudged: int, claims: int, covered: int, aspects: int, beta: float
) -> dict[str, BoundedValue]:
    """Return the measures of a sample by name: S_fact over the judged claims, S_coverage, and ICAT_beta of both."""
    fact = share_of([True] * grounded + [None] * unjudged + [False] * (claims - grounded - unjudged))
    coverage = coverage_of(covered, unjudged, aspects)
    number = BoundedValue.exact(float(claims))
    return {FACT: fact, COVERAGE: coverage, ICAT: f_of(fact, coverage, beta), CLAIMS: number}


def first_aspects(texts: Iterable[str], most: int) -> list[str]:
    """Return the first `most` generated aspects, without duplicates. The most important aspects are first.

    >>> first_aspects(["Cost", "cost.", "Safety", "History"], 3)
    ['Cost', 'Safety']
    """
    return distinct_texts(list(texts)[:most])


@over_rows(ASPECTS)
def choose_aspects(row: Row, most: int) -> Row:
    """Return columns of `ASPECTS`: the given aspects, otherwise the generated aspects.

    row: sample_id, given list<struct<id, text>>, generated list<string>; null if missing.
    """
    aspects = [{"reference_id": one["id"], "text": one["text"]} for one in row["given"] or ()]
    generated = [{"text": text} for text in first_aspects(row["generated"] or (), most)]
    return {"sample_id": row["sample_id"], "aspects": aspects or generated}


@over_rows(CONCLUDED)
def conclude_samples(row: Row, *, beta: float, by_documents: bool) -> Row:
    """Return columns of `CONCLUDED`. `empty`: there is no claim or no aspect.

    row: sample_id, claims list<struct<position, verdict, unjudged, subtopics>>, aspects list<struct<reference_id,
    text>>, evidence list<list<int>>, null if no alignment was requested. `evidence` numbers only grounded claims, as in
    prompts. `by_documents`: an aspect has the grounded claims with a document annotated for it (ICAT-M). Do not use the
    row of a sample without claims, aspects or alignment.
    """
    claims = sorted(row["claims"] or (), key=itemgetter("position"))
    aspects = row["aspects"] or []
    grounded = [claim for claim in claims if claim["verdict"] == SUPPORTED]
    if by_documents:
        names = [one["reference_id"] for one in aspects]
        aligned = ([claim for claim in grounded if name in (claim["subtopics"] or ())] for name in names)
    else:
        numbers = row["evidence"] or [[] for _ in aspects]
        aligned = ([grounded[number - 1] for number in several] for several in numbers)
    covering = [[claim["position"] for claim in found] for found in aligned]
    flags = [bool(positions) for positions in covering]
    unjudged = sum(bool(claim["unjudged"]) for claim in claims)
    measures = measures_of(len(grounded), unjudged, len(claims), sum(flags), len(aspects), beta)
    return {
        **conclusion(row, measures, flags, empty=not claims or not aspects),
        "unjudged": unjudged,
        "statements": [
            {**aspect, "number": number, "covered": covered, "claims": positions}
            for number, (aspect, covered, positions) in enumerate(zip(aspects, flags, covering, strict=True), start=1)
        ],
    }
