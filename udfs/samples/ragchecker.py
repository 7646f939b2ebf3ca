"""RAGChecker's files: one object whose `results` are answers with the passages that were retrieved for them.

Ru et al. 2024. A result has query_id, query, gt_answer, response and retrieved_context, a list of doc_id and text. The
claims and relations that RAGChecker adds are the column `claim_checks`; its metrics are carried along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from untold.udfs.samples.checks import FIELDS
from untold.udfs.samples.file_records import FileRecord, Unit, UnreadableFileError, read_text
from untold.udfs.samples.values import canonical, load_json

FILES = "*.json*"
RESULTS = "results"


def read_results(unit: Unit) -> Iterator[FileRecord]:
    """The results of a file as samples: `retrieved_context` as contexts, `gt_answer` as references and ground truth.

    Raises UnreadableFileError for a file that is no object with a list of results.
    """
    text = read_text(unit)
    try:
        value = load_json(text)
    except (ValueError, RecursionError):
        value = None
    results = value.get(RESULTS) if isinstance(value, dict) else None
    if not isinstance(results, list):
        raise UnreadableFileError("no JSON object with a list `results`; give a file of RAGChecker as it is")
    for row, result in enumerate(results, start=1):
        yield _record(result, row)


def _record(result: Any, row: int) -> FileRecord:
    if not isinstance(result, dict):
        return FileRecord(problem="no JSON object", raw=canonical(result), row=row)
    values = dict(result)
    contexts, answer = values.pop("retrieved_context", None), values.pop("gt_answer", None)
    checks = {name: values.pop(name) for fields in FIELDS.values() for name in fields if name in values}
    given = {"contexts": _contexts(contexts), "references": answer, "ground_truth": answer}
    named = {"sample_id": values["query_id"]} if values.get("query_id") not in (None, "") else {}
    return FileRecord({**named, **values, **given, **({"claim_checks": checks} if checks else {})}, row=row)


def _contexts(passages: Any) -> Any:
    """The passages named by their documents; by their places where two are of one document."""
    if not isinstance(passages, list) or not all(isinstance(one, Mapping) for one in passages):
        return passages
    names = [one.get("doc_id") for one in passages]
    named = len(set(map(str, names))) == len(names)
    return [{"id": name if named else None, "text": one.get("text")} for name, one in zip(names, passages, strict=True)]
