"""Which documents are annotated with which subtopics of a topic: a file as TREC has them, or JSON Lines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from untold.udfs.errors import UserError
from untold.udfs.samples.batches import in_batches
from untold.udfs.samples.file_records import READ_ERRORS
from untold.udfs.samples.files import open_text
from untold.udfs.samples.values import load_json, text_of

NAMES = ("query_id", "subtopic_id", "doc_id", "relevance")
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
ANNOTATIONS = pa.schema([(name, pa.string()) for name in ("topic", "subtopic", "document")])
# 128 bits, as the keys of requests have
_DIGEST_BYTES = 16


class QrelsError(UserError):
    """A file of annotations that cannot be read. The message names file and line, and never what stands there."""


@dataclass(frozen=True)
class Annotation:
    """A document that is relevant to a subtopic of a topic."""

    topic: str
    subtopic: str
    document: str


def read_qrels(path: str) -> Iterator[Annotation]:
    """The annotations of a file whose relevance is above 0. Blank lines say nothing.

    Lines `topic subtopic document relevance`; or JSON Lines (by the name's ending, .gz apart) with query_id,
    subtopic_id, doc_id and relevance. Raises QrelsError for a file that cannot be read and a line of another form.
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
        raise QrelsError(f"{path}: cannot be read ({type(error).__name__}); check icat.qrels") from error


def is_json(path: str) -> bool:
    """Whether a file is JSON Lines, by its name."""
    return path.lower().removesuffix(".gz").endswith(JSON_ENDINGS)


def digest_of_qrels(path: str) -> str:
    """32 hex characters of the annotations in any order: what an output under them belongs to. Raises as `read_qrels`.

    A sum of hashes, so that a file of any length takes no memory.
    """
    hashes = (
        hashlib.blake2b("\n".join((one.topic, one.subtopic, one.document)).encode(), digest_size=_DIGEST_BYTES)
        for one in read_qrels(path)
    )
    total = sum(int.from_bytes(one.digest(), "big") for one in hashes)
    return f"{total % 2 ** (8 * _DIGEST_BYTES):0{2 * _DIGEST_BYTES}x}"


def annotated_documents(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns of `ANNOTATIONS`, a row an annotation that counts; from the paths of files (column path)."""
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
    return f"not of the form `{form}`; mend the line, or check icat.qrels"
