"""ExpertQA: questions of experts, answers of several systems cut into claims, and what the experts say of each claim.

Malaviya et al. 2024. A row is a question with one answer (`answers`: system -> answer_string, claims, ...); one answer
may stand in several files. A claim has claim_string, evidence (texts, each behind the address that it is from), support
(Complete, Partial, Incomplete, Missing, N/A), informativeness and correctness.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from untold.udfs.samples.file_records import FileRecord, RowError
from untold.udfs.samples.values import canonical, text_of

REQUIRED = ("question", "answers")
# A claim is worth repeating where it says something on the question, and is true
RELEVANT = ("Very relevant", "A bit relevant")
CORRECT = ("Definitely correct", "Probably correct")
VERDICTS = {"Complete": "supported", "Partial": "not_supported", "Incomplete": "not_supported"}
# 64 bits: no two answers of a billion have one id
ID_CHARACTERS = 16


def answers(record: FileRecord, _: int) -> list[FileRecord]:
    """The answers of a row as samples, their relevant and correct claims as references.

    Contexts are the distinct texts of evidence of all claims, `field` is the expert's. A reference's id is its claim's
    place in the answer, from 1. What was answered before is the response; `untold generate` answers anew.
    """
    return [record] if record.problem else [_sample(record.values, *one) for one in _answers(record.values)]


def claims(record: FileRecord, _: int) -> list[FileRecord]:
    """The claims of a row that have evidence and were judged against it: claim, evidence, label.

    Support that is Complete is `supported`, Partial and Incomplete are `not_supported`. sample_id is that of the
    answer, and the claim's place in it.
    """
    if record.problem:
        return [record]
    return [
        FileRecord(
            {
                "sample_id": f"{_answer_id(record.values, system)}-{place}",
                "query_id": _answer_id(record.values, system),
                "query": record.values.get("question"),
                "system": system,
                "claim": claim.get("claim_string"),
                "evidence": claim["evidence"],
                "label": VERDICTS[claim["support"]],
            }
        )
        for system, answer in _answers(record.values)
        for place, claim in _claims(answer)
        if claim.get("evidence") and claim.get("support") in VERDICTS
    ]


def _answers(values: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    given = values.get("answers")
    if not given or not isinstance(given, dict) or not all(isinstance(answer, dict) for answer in given.values()):
        raise RowError("`answers` needs one object per system; correct it")
    yield from given.items()


def _claims(answer: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The claims of an answer, numbered from 1."""
    for place, claim in enumerate(answer.get("claims") or [], start=1):
        if isinstance(claim, dict):
            yield place, claim


def _answer_id(values: Mapping[str, Any], system: str) -> str:
    """The id of an answer: rows have none, and one row stands in several files."""
    text = canonical([text_of(values.get("question")), system])
    return hashlib.sha256(text.encode()).hexdigest()[:ID_CHARACTERS]


def _sample(values: Mapping[str, Any], system: str, answer: Mapping[str, Any]) -> FileRecord:
    evidence = [text for _, claim in _claims(answer) for text in claim.get("evidence") or []]
    references = [
        {"id": str(place), "text": claim.get("claim_string")}
        for place, claim in _claims(answer)
        if claim.get("informativeness") in RELEVANT and claim.get("correctness") in CORRECT
    ]
    metadata = values.get("metadata")
    return FileRecord(
        {
            "sample_id": _answer_id(values, system),
            "query": values.get("question"),
            "response": answer.get("answer_string"),
            "contexts": list(dict.fromkeys(evidence)),
            "system": system,
            "field": metadata.get("field") if isinstance(metadata, dict) else None,
            "references": references,
        }
    )
