"""ELI5-Category: questions in one file, their contexts in another, the two joined by q_id (methods, section 8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from untold.udfs.samples.adapters import Adapter
from untold.udfs.samples.file_records import FileRecord
from untold.udfs.samples.values import canonical, text_of

CARRIED = ("category", "selftext")


def _question(record: FileRecord, _: int) -> list[FileRecord]:
    """A question: its title is the query. What elaborates on it (selftext) is carried along, and no part of it."""
    return [_named(record, {"query": record.values.get("title"), **_some(record.values, CARRIED)})]


def _contexts(record: FileRecord, _: int) -> list[FileRecord]:
    """The contexts of a question, and nothing else of their row."""
    return [_named(record, _some(record.values, ("contexts",)))]


def _some(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Those of the named values that there are; what is absent stays absent, and is not null."""
    return {name: values[name] for name in names if name in values}


def _named(record: FileRecord, values: Mapping[str, Any]) -> FileRecord:
    """The values as a record named by the q_id of the record that they are from."""
    if record.problem:
        return record
    name = text_of(record.values.get("q_id"))
    if not name:
        return FileRecord(problem="q_id is null or empty", raw=canonical(record.values))
    return FileRecord({**values, "sample_id": name})


QUESTIONS = Adapter(required=("q_id", "title"), expand=_question)
CONTEXTS = Adapter(required=("q_id", "contexts"), expand=_contexts)
