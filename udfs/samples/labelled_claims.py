"""Claims with evidence and what people say of them, as samples: the claim is the response, evidence its contexts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from untold.udfs.samples import expertqa, factscore
from untold.udfs.samples.adapters import LINES, Adapter, read_lines
from untold.udfs.samples.file_records import FileRecord
from untold.udfs.samples.values import canonical, finite, load_json

# What claims need once they are samples; what a claim was said in answer to nobody reads
NEEDS = ("response", "contexts")
COLUMNS = ("claim", "evidence", "label")


def _as_sample(record: FileRecord, _: int = 0) -> list[FileRecord]:
    """A row of claim, evidence and label as a sample; one without a claim or a label is a problem of its own."""
    if record.problem:
        return [record]
    values = dict(record.values)
    claim, evidence = values.pop("claim", None), values.pop("evidence", None)
    missing = [name for name, value in (("claim", claim), ("label", values.get("label"))) if finite(value) is None]
    if missing:
        return [FileRecord(problem=f"{' and '.join(missing)} is null", raw=canonical(record.values))]
    return [FileRecord({**values, "response": claim, "contexts": _texts(evidence)})]


def _texts(evidence: Any) -> Any:
    """Evidence as a list: a list or JSON of one as it is, one text as its only element, nothing as the empty list.

    >>> _texts("one text"), _texts('["a", "b"]'), _texts(None)
    (['one text'], ['a', 'b'], [])
    """
    if finite(evidence) is None:
        return []
    if not isinstance(evidence, str):
        return evidence
    try:
        read = load_json(evidence)
    except (ValueError, RecursionError):
        return [evidence]
    return read if isinstance(read, list) else [evidence]


def _each(expand: Callable[[FileRecord, int], list[FileRecord]], record: FileRecord, row: int) -> list[FileRecord]:
    return [sample for claim in expand(record, row) for sample in _as_sample(claim)]


PLAIN = "claims"
CLAIM_FORMATS: dict[str, Adapter] = {
    PLAIN: Adapter(COLUMNS, _as_sample, by_row=False, optional=("sample_id", "query_id", "query", "system")),
    "expertqa": Adapter(expertqa.REQUIRED, partial(_each, expertqa.claims), LINES, read_lines),
    "factscore": Adapter((), _as_sample, factscore.FILES, factscore.read_claims),
}
"""Layouts of labelled claims."""
