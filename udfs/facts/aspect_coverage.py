"""Score a sample by ICAT: grounded claims, the aspects that they cover, bounds, and annotated subtopics of documents.

Samarinas et al. 2025. C are the claims of the response, C_T the claims that the knowledge source grounds, and u the
ungrounded claims with a lost judgement.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from untold.udfs.errors import UserError
from untold.udfs.facts.claim_verdicts import SUPPORTED, distinct_texts
from untold.udfs.samples.batches import in_batches
from untold.udfs.samples.file_records import READ_ERRORS
from untold.udfs.samples.files import open_text
from untold.udfs.samples.values import load_json, text_of

NAMES = ("query_id", "subtopic_id", "doc_id", "relevance")
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
ANNOTATIONS = pa.schema([(name, pa.string()) for name in ("topic", "subtopic", "document")])
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
    try:
        with open_text(path) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    *named, relevance = read(line)
                    relevant = float(relevance) > 0
                except (ValueError, TypeError, KeyError, RecursionError):
                    raise QrelsError(f"{path} line {number}: {_expected(path)}") from None
                if relevant:
                    yield Annotation(*named)
    except READ_ERRORS as error:
        raise QrelsError(f"{path} cannot be read ({type(error).__name__}). Check icat.qrels") from error


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


def annotated_documents(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the annotations that count, as columns of `ANNOTATIONS`, from the paths of files (column path)."""
    for batch in batches:
        for path in batch.column("path").to_pylist():
            yield from in_batches(map(vars, read_qrels(path)), ANNOTATIONS)


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

ASPECT = pa.struct([("reference_id", pa.string()), ("text", pa.string())])
ASPECTS = pa.schema([("sample_id", pa.string()), ("aspects", pa.list_(ASPECT))])
MEASURE = pa.struct(
    [("measure", pa.string()), ("value", pa.float64()), ("value_low", pa.float64()), ("value_high", pa.float64())]
)
COUNTS = [*((name, pa.int64()) for name in ("covered", "uncovered", "unjudged")), ("empty", pa.bool_())]
_STATEMENT = pa.struct(
    [
        ("number", pa.int64()),
        ("reference_id", pa.string()),
        ("text", pa.string()),
        ("covered", pa.bool_()),
        ("claims", pa.list_(pa.int64())),
    ]
)
CONCLUDED = pa.schema(
    [
        ("sample_id", pa.string()),
        ("measures", pa.list_(MEASURE)),
        ("statements", pa.list_(_STATEMENT)),
        *COUNTS,
    ]
)


@dataclass(frozen=True)
class Claim:
    """A claim for coverage: its number from 1, its verdict, and the subtopics of its document."""

    position: int
    verdict: str | None
    unjudged: bool = False
    subtopics: tuple[str, ...] = ()


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


def measure_list(measures: Mapping[str, BoundedValue]) -> list[dict[str, Any]]:
    """Return the rows of `MEASURE`, one per measure."""
    return [
        {"measure": name, "value": one.value, "value_low": one.low, "value_high": one.high}
        for name, one in measures.items()
    ]


def icat_score(fact: float | None, coverage: float | None, beta: float) -> float | None:
    """ICAT_beta = (1 + beta^2) S_fact S_coverage / (beta^2 S_fact + S_coverage). None if either is, 0 if both are 0.

    >>> icat_score(0.5, 1.0, 1.0), icat_score(0.0, 0.0, 1.0), icat_score(None, 0.0, 1.0)
    (0.6666666666666666, 0.0, None)
    """
    if fact is None or coverage is None:
        return None
    # The result is also 0 if only one is 0. Tested first, because the square of a tiny beta is 0 and would divide 0 by
    # 0
    if not fact or not coverage:
        return 0.0
    square = beta * beta
    return (1 + square) * fact * coverage / (square * fact + coverage)


def factuality(grounded: int, unjudged: int, claims: int) -> BoundedValue:
    """Return S_fact over the judged claims, with bounds |C_T| / |C| and (|C_T| + u) / |C|, None without claims.

    If no claim is judged, the value is None, and the bounds are 0 and 1.

    >>> factuality(1, 1, 4)
    BoundedValue(value=0.3333333333333333, low=0.25, high=0.5)
    """
    if not claims:
        return UNDEFINED
    judged = claims - unjudged
    return BoundedValue(grounded / judged if judged else None, grounded / claims, (grounded + unjudged) / claims)


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
    """Return the measures of a sample by name. ICAT increases in both parts, so their bounds are its bounds."""
    fact, coverage = factuality(grounded, unjudged, claims), coverage_of(covered, unjudged, aspects)
    ends = [icat_score(getattr(fact, end), getattr(coverage, end), beta) for end in ("value", "low", "high")]
    number = float(claims)
    return {FACT: fact, COVERAGE: coverage, ICAT: BoundedValue(*ends), CLAIMS: BoundedValue(number, number, number)}


def first_aspects(texts: Iterable[str], most: int) -> list[str]:
    """Return the first `most` generated aspects, without duplicates. The most important aspects are first.

    >>> first_aspects(["Cost", "cost.", "Safety", "History"], 3)
    ['Cost', 'Safety']
    """
    return distinct_texts(list(texts)[:most])


def choose_aspects(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Yield columns of `ASPECTS`: the given aspects, otherwise the generated aspects.

    batches: sample_id, given list<struct<id, text>>, generated list<string>; null if missing.
    """
    for batch in batches:
        rows = [{"sample_id": row["sample_id"], "aspects": _choose(row, most)} for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, ASPECTS)


def _choose(row: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
    if row["given"]:
        return [{"reference_id": one["id"], "text": one["text"]} for one in row["given"]]
    return [{"reference_id": None, "text": text} for text in first_aspects(row["generated"] or (), most)]


def align_by_documents(references: Sequence[str | None], claims: Iterable[Claim]) -> list[list[int]]:
    """Return for each aspect the positions of the grounded claims with a document annotated for it (ICAT-M)."""
    grounded = [claim for claim in claims if claim.verdict == SUPPORTED]
    return [[claim.position for claim in grounded if reference in claim.subtopics] for reference in references]


def align_by_numbers(evidence: Sequence[Sequence[int]], claims: Iterable[Claim]) -> list[list[int]]:
    """Return for each aspect the positions of its claims. `evidence` numbers only grounded claims, as in prompts."""
    grounded = [claim.position for claim in claims if claim.verdict == SUPPORTED]
    return [[grounded[number - 1] for number in numbers] for numbers in evidence]


def conclude_samples(batches: Iterable[pa.RecordBatch], *, beta: float, by_documents: bool) -> Iterator[pa.RecordBatch]:
    """Yield columns of `CONCLUDED`, a row per sample.

    batches: sample_id, claims list<struct<position, verdict, unjudged, subtopics>>, aspects list<struct<reference_id,
    text>>, evidence list<list<int>>, null if no alignment was requested. `empty`: there is no claim or no aspect. Do
    not use the row of a sample without claims, aspects or alignment.
    """
    for batch in batches:
        rows = [_conclude(row, beta, by_documents=by_documents) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, CONCLUDED)


def _conclude(row: Mapping[str, Any], beta: float, *, by_documents: bool) -> dict[str, Any]:
    claims = sorted((_claim(one) for one in row["claims"] or ()), key=lambda claim: claim.position)
    aspects = row["aspects"] or []
    if by_documents:
        covering = align_by_documents([one["reference_id"] for one in aspects], claims)
    else:
        covering = align_by_numbers(row["evidence"] or [[] for _ in aspects], claims)
    grounded = sum(claim.verdict == SUPPORTED for claim in claims)
    unjudged = sum(claim.unjudged for claim in claims)
    covered = sum(map(bool, covering))
    measures = measures_of(grounded, unjudged, len(claims), covered, len(aspects), beta)
    return {
        "sample_id": row["sample_id"],
        "measures": measure_list(measures),
        "statements": [
            {**aspect, "number": number, "covered": bool(positions), "claims": positions}
            for number, (aspect, positions) in enumerate(zip(aspects, covering, strict=True), start=1)
        ],
        "covered": covered,
        "uncovered": len(aspects) - covered,
        "unjudged": unjudged,
        "empty": not claims or not aspects,
    }


def _claim(row: Mapping[str, Any]) -> Claim:
    return Claim(row["position"], row["verdict"], bool(row["unjudged"]), tuple(row["subtopics"] or ()))
