"""The model server's handling of a schema: the same answer as JSON, an error, or an unusable response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json import dumps
from typing import Any

from jsonschema import Draft202012Validator

from tests.fakes.answers import Payload, Said
from untold.udfs.ratings import Digit
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import Unparsable

SUPPORT_LABELS = {"full": "full_support", "partial": "partial_support", "none": "no_support"}
REFUSAL = {"message": "Unknown parameter: 'response_format'.", "type": "invalid_request_error"}
Row = Mapping[str, Any]


def schema_of(body: Mapping[str, Any]) -> Any:
    """Return the schema of a request, or None."""
    named = (body.get("response_format") or {}).get("json_schema") or {}
    return named.get("schema") or body.get("guided_json")


def as_json(said: Said, payload: Payload, schema: Any) -> Said:
    """Return the answer as JSON of the schema, with its odds at the same ratings. Unparsable answers are unchanged.

    Raises LookupError (a 400 of the server) for an answer that does not fit the schema.
    """
    stage = payload["stage"]
    try:
        row = STAGES[stage].parse(said.text, payload)
    except Unparsable:
        return said
    value = _VALUES[stage](row)
    if "reasoning" in schema["properties"]:
        value = {"reasoning": "One by one.", **value}
    parts: list[str] = []
    odds: dict[int, Any] = {}
    _write(value, said, parts, odds)
    validator = Draft202012Validator(schema)
    validator.check_schema(schema)
    errors = list(validator.iter_errors(_plain(value)))
    if errors:
        raise LookupError(errors[0].message)
    return Said("".join(parts), odds)


def _write(value: Any, said: Said, parts: list[str], odds: dict[int, Any]) -> None:
    """Append the JSON of a value, and store the odds of rating digits at their new positions."""
    if isinstance(value, Digit):
        if value.offset in said.odds:
            odds[sum(map(len, parts))] = said.odds[value.offset]
        parts.append(str(value.value))
    elif isinstance(value, Mapping):
        for sign, (name, each) in zip(["{", *[", "] * len(value)], value.items(), strict=False):
            parts.append(f"{sign}{dumps(name)}: ")
            _write(each, said, parts, odds)
        parts.append("}" if value else "{}")
    elif isinstance(value, list):
        parts.append("[")
        for place, each in enumerate(value):
            parts.append(", " if place else "")
            _write(each, said, parts, odds)
        parts.append("]")
    else:
        parts.append(dumps(value, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Digit):
        return value.value
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return list(map(_plain, value)) if isinstance(value, list) else value


def _rows(**columns: Any) -> list[dict[str, Any]]:
    """Return an object for each index of the lists, numbered from 1."""
    return [
        {"id": number, **dict(zip(columns, values, strict=True))}
        for number, values in enumerate(zip(*columns.values(), strict=True), start=1)
    ]


def _aligned(found: list[list[int]], left: str, right: str) -> list[dict[str, Any]]:
    return [{left: number, right: of} for number, of in enumerate(found, start=1) if of]


def _numbered(labels: list[str | None]) -> dict[str, Any]:
    return {"labels": [{"number": number, "label": label} for number, label in enumerate(labels, start=1) if label]}


def _statements(row: Row, covered: bool) -> list[dict[str, Any]]:
    found = [one for one in row["statements"] if one["covered"] is covered]
    return [{"statement": one["text"], "sources": one["sources"]} for one in found]


def _listed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"relations": [one for one in _rows(relation=row["relations"]) if one["relation"]]}


def _answers(row: Row) -> list[dict[str, Any]]:
    pairs = (zip(*each, strict=True) for each in zip(row["answers"], row["confidences"], strict=True))
    return _rows(answers=[[{"answer": text, "confidence": digit} for text, digit in each] for each in pairs])


_VALUES: dict[str, Callable[[Row], dict[str, Any]]] = {
    "summarise_context": lambda row: {"summary": row["summary"]},
    "evaluate_coverage": lambda row: {
        "covered_statements": _statements(row, True),
        "uncovered_statements": _statements(row, False),
    },
    "extract_atoms": lambda row: {
        "atoms": [{"unit": atom["text"], "type": atom["unit_type"]} for atom in row["atoms"]]
    },
    "list_conflicts": lambda row: {
        "conflicts": [
            {
                f"{side}{name}": one[side][field]
                for side in ("first", "second")
                for name, field in (("", "text"), ("_sources", "sources"))
            }
            for one in row["conflicts"]
        ]
    },
    "cover_sides": lambda row: {"labels": _rows(label=["covered" if one else "uncovered" for one in row["covered"]])},
    "revise_atoms": lambda row: {"statements": row["atoms"]},
    "rate_relevance": lambda row: {"ratings": _rows(relevance=row["ratings"])},
    "classify_relation": lambda row: {"relation": row["relation"]},
    **dict.fromkeys(("classify_relations", "check_claims"), lambda row: _listed(row)),
    "mine_questions": lambda row: {"questions": row["questions"]},
    "refine_questions": lambda row: {
        "questions": [
            {"question": text, "relevance": digit} for text, digit in zip(row["questions"], row["ratings"], strict=True)
        ]
    },
    "answer_questions": lambda row: {"answers": _answers(row)},
    "compare_answers": lambda row: {"relation": row["relation"]},
    "compare_many": lambda row: _listed(row),
    **dict.fromkeys(("extract_claims", "extract_verifiable_claims"), lambda row: {"claims": row["claims"]}),
    "generate_aspects": lambda row: {"topics": row["aspects"]},
    "align_claims": lambda row: {"covered": _aligned(row["evidence"], "topic_id", "evidence")},
    "extract_facts": lambda row: {"facts": row["facts"]},
    "rate_importance": lambda row: {"ratings": _rows(relevance=row["relevance"], salience=row["salience"])},
    "verify_claim": lambda row: {"verdict": row["relation"]},
    "check_coverage": lambda row: {
        "label": "COVERED" if row["covered"] else "NOT_COVERED",
        "evidence_claim_ids": row["claims"],
    },
    "resolve_coreference": lambda row: {"facts": _rows(fact=row["facts"])},
    "match_one": lambda row: {"label": "Match" if row["matched"] else "No Match"},
    "match_many": lambda row: {"candidates": row["candidates"]},
    "match_holistic": lambda row: {"entailed": _aligned(row["candidates"], "reference", "candidates")},
    "create_nuggets": lambda row: {"nuggets": row["nuggets"]},
    "rate_nuggets": lambda row: _numbered(row["labels"]),
    "assign_nuggets": lambda row: _numbered(row["labels"]),
    "judge_criteria": lambda row: {
        "verdicts": [
            {"number": number, "reason": reason or "", "label": label}
            for number, (label, reason) in enumerate(zip(row["verdicts"], row["reasons"], strict=True), start=1)
            if label
        ]
    },
    "judge_support": lambda row: {
        "labels": [
            {"number": number, "reason": reason or "", "label": SUPPORT_LABELS[label]}
            for number, (label, reason) in enumerate(zip(row["supports"], row["reasons"], strict=True), start=1)
            if label
        ]
    },
    "judge_relevancy": lambda row: {
        "labels": [
            {"number": number, "reason": reason or "", "label": label}
            for number, (label, reason) in enumerate(zip(row["labels"], row["reasons"], strict=True), start=1)
            if label
        ]
    },
    "restate_answer": lambda row: {"statement": row["statement"]},
}
