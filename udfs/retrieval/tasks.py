"""Stages answered within Spark's tasks, by models that run there: requests in, rows of completions in files out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any
from uuid import uuid4

import pyarrow as pa

from untold.udfs.llm.keys import Stage
from untold.udfs.llm.segments import Completion, completions_table, write_file
from untold.udfs.retrieval.embedding import (
    TOO_LONG,
    embedding_inputs,
    find_for,
    find_model,
    flaw,
    open_classifier,
    open_embedder,
)
from untold.udfs.retrieval.local_models import check_files

# Enough that many are of one length and run together (local_models), few enough that a flush is never late for long
GROUP_ROWS = 256
# A vector of 384 numbers and its names are some 2 KB
FILE_ROWS = 4096
COUNTS = pa.schema([("done", pa.int64()), ("failed", pa.int64())])

Row = Mapping[str, Any]
Answers = Callable[[Sequence[Row]], Sequence[Completion]]


def answer_in_task(
    batches: Iterator[pa.RecordBatch], stage: Stage, folder: str, run: str, flush: float
) -> Iterator[pa.RecordBatch]:
    """Answers the requests of a partition (request_id and the stage's variables) and writes them into the folder.

    Gives one row of `COUNTS` a batch. Files appear whole, every `flush` seconds: what a killed task had written is not
    done again. A task that Spark runs twice writes the same answers twice, of which readers take one. Raises
    LocalModelFileError where this worker has not the model that the stage's digest is of.
    """
    answers = _ANSWERING[stage.name](stage)
    for batch in batches:
        rows, done, failed, began = batch.to_pylist(), 0, 0, monotonic()
        held: list[Completion] = []
        for first in range(0, len(rows), GROUP_ROWS):
            group, asked = rows[first : first + GROUP_ROWS], monotonic()
            found = answers(group)
            held += [replace(row, seconds=(monotonic() - asked) / len(group)) for row in found]
            if len(held) >= FILE_ROWS or monotonic() - began >= flush or first + GROUP_ROWS >= len(rows):
                done, failed = done + len(held), failed + sum(row.error_type is not None for row in held)
                stamped = [_stamped(row, stage, run) for row in held]
                # A name of its own: two attempts at one task may write at one time
                write_file(f"{folder}/{run}-{stage.name}-task-{uuid4().hex}.parquet", completions_table(stamped))
                held, began = [], monotonic()
        yield pa.RecordBatch.from_pylist([{"done": done, "failed": failed}], COUNTS)


def _stamped(row: Completion, stage: Stage, run: str) -> Completion:
    """A row as it is stored: what answered it, when, and in which start."""
    return replace(row, model=stage.model, attempts=1, answered_at=datetime.now(UTC), run_id=run)


def _embedding(stage: Stage) -> Answers:
    """Vectors by the model of `embeddings.model`; one with a flaw is `bad_body`, as from an endpoint."""
    files = find_model(stage.model)
    check_files(files, stage)
    embedder = open_embedder(files, stage.extra_body["pooling"], stage.extra_body["max_tokens"])

    def answers(rows: Sequence[Row]) -> list[Completion]:
        vectors = embedder.embed(embedding_inputs(stage, rows))
        found = []
        for row, vector in zip(rows, vectors, strict=True):
            wrong = flaw(vector)
            good = Completion(row["request_id"], vector=vector)
            found.append(Completion(row["request_id"], error_type="bad_body", error=wrong) if wrong else good)
        return found

    return answers


def _classifying(stage: Stage) -> Answers:
    """Probabilities by the classifier of `grounding.verifier`, as JSON by relation."""
    classifier = open_classifier(find_for(stage))

    def answers(rows: Sequence[Row]) -> list[Completion]:
        pairs = [(row["premise"], row["hypothesis"]) for row in rows]
        return [
            Completion(row["request_id"], text=json.dumps(one))
            if one is not None
            else Completion(row["request_id"], error_type="truncated", error=TOO_LONG)
            for row, one in zip(rows, classifier.classify(pairs), strict=True)
        ]

    return answers


_ANSWERING: Mapping[str, Callable[[Stage], Answers]] = {
    "embed_text": _embedding,
    "classify_entailment": _classifying,
}
