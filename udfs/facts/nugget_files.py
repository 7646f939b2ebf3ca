"""Nuggets by topic, as nuggetizer writes them: JSON Lines of qid, query and nuggets (text, importance, assignment)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

import pyarrow as pa

from untold.udfs.errors import UserError
from untold.udfs.samples.batches import in_batches
from untold.udfs.samples.file_records import READ_ERRORS
from untold.udfs.samples.files import open_text
from untold.udfs.samples.items import normalise_references
from untold.udfs.samples.tool_files import references_of
from untold.udfs.samples.values import canonical, load_json, text_of

_TEXTS = pa.list_(pa.string())
REFERENCE = pa.struct(
    [
        *((name, pa.string()) for name in ("id", "text", "anchor")),
        ("weight", pa.float64()),
        ("labels", _TEXTS),
        ("covered_by", _TEXTS),
        ("importance", pa.string()),
    ]
)
# Samples may have columns of any plain name
TOPIC, OF_TOPIC = "_topic_of_nuggets", "_nuggets_of_topic"
GIVEN = pa.schema([("query_id", pa.string()), (TOPIC, pa.string()), (OF_TOPIC, pa.list_(REFERENCE))])


class NuggetsError(UserError):
    """A file of nuggets that cannot be read. The message names file and line, and never what stands there."""


def read_nuggets(path: str) -> Iterator[dict[str, Any]]:
    """Rows of `GIVEN`, one a line. Raises NuggetsError for a line of another form, and for a topic twice."""
    seen: set[str] = set()
    try:
        with open_text(path) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    row = load_json(line)
                    name, nuggets = text_of(row["qid"]), normalise_references(references_of(row["nuggets"]))
                except (ValueError, LookupError, TypeError, RecursionError):
                    name = nuggets = None
                if not name or nuggets is None or name in seen:
                    why = "has a qid that stands above" if name in seen else "is no object of qid and nuggets"
                    raise NuggetsError(f"{path}: line {number} {why}; mend the line, or check nuggets.file")
                seen.add(name)
                yield {"query_id": name, TOPIC: text_of(row.get("query")), OF_TOPIC: nuggets}
    except READ_ERRORS as error:
        raise NuggetsError(f"{path}: cannot be read ({type(error).__name__}); check nuggets.file") from error


def digest_of_nuggets(path: str) -> str:
    """32 hex characters of the nuggets by topic: what an output belongs to. Raises as `read_nuggets`."""
    found = canonical(sorted(read_nuggets(path), key=itemgetter("query_id")))
    return hashlib.blake2b(found.encode("utf-8", "replace"), digest_size=16).hexdigest()


def given_nuggets(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns of `GIVEN`, a row a topic; from the paths of files (column path)."""
    for batch in batches:
        for path in batch.column("path").to_pylist():
            yield from in_batches(read_nuggets(path), GIVEN)
