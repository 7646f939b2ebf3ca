"""FActScore's human data: biographies by three models, cut into atomic facts that people held against Wikipedia.

Min et al. 2023. A file a model, named after it, a row a biography: input, output, topic, cat, and annotations, null
where the model declined; of each sentence of it human-atomic-facts, null where the sentence is beside the point, each
labelled S (supported), NS (not supported) or IR (irrelevant).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

from untold.udfs.samples.file_records import READERS, FileRecord, Unit, UnreadableFileError, converted

FILES = "*.jsonl"
VERDICTS = {"S": "supported", "NS": "not_supported"}


def read_claims(unit: Unit) -> Iterator[FileRecord]:
    """The facts of a model's biographies that are supported or not: claim, evidence, label.

    sample_id is `<row>-<model>-<place>`, the row from 0 and the place among the biography's facts from 1. There is no
    evidence: Wikipedia's texts are no part of the data set. Irrelevant facts are no claims on the topic, as published.
    Raises UnreadableFileError where rows have no annotations.
    """
    system = PurePosixPath(unit.path).stem
    for row, record in enumerate(READERS["lines"](replace(unit, kind="lines"))):
        if record.problem:
            yield record
        elif "annotations" not in record.values:
            raise UnreadableFileError("no `annotations`; give the human data of FActScore as it is published")
        else:
            name = f"{row}-{system}"
            for claim in converted(partial(_claims, name, system), record):
                yield replace(claim, row=record.row)


def _claims(name: str, system: str, record: FileRecord) -> Iterator[FileRecord]:
    values = record.values
    sentences = values["annotations"] or []
    facts = [fact for sentence in sentences for fact in sentence.get("human-atomic-facts") or []]
    for place, fact in enumerate(facts, start=1):
        if fact.get("label") in VERDICTS:
            yield FileRecord(
                {
                    "sample_id": f"{name}-{place}",
                    "query_id": name,
                    "query": values.get("input"),
                    "system": system,
                    "claim": fact.get("text"),
                    "evidence": [],
                    "label": VERDICTS[fact["label"]],
                }
            )
