"""Embed texts by a local model, and run the stages of local models in Spark's tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from time import monotonic
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from untold.udfs.llm.keys import Stage, canonical_json
from untold.udfs.llm.store_files import Completion, completions_table, write_file
from untold.udfs.retrieval.classifying import TOO_LONG, find_for, open_classifier
from untold.udfs.retrieval.local_models import (
    MINILM,
    LocalModelFileError,
    ModelFiles,
    OnnxModel,
    check_files,
    find_in_folder,
    find_minilm,
)

Pooling = Literal["mean", "cls"]


def find_model(name: str) -> ModelFiles:
    """Return the files of an embedding model: `minilm`, or a folder with `model.onnx` and `tokenizer.json`.

    Raises LocalModelFileError for missing files, with one line that has the remedy.
    """
    return find_minilm() if name == MINILM else find_in_folder(name)


class Embedder:
    """Compute the vectors of texts with one thread. The vector of a text does not depend on its batch.

    `pooling` is the mean of the last hidden states over all tokens, or the state of the first token (`cls`). Texts are
    cut to `max_tokens` tokens. Loading takes a second. Raises LocalModelFileError for files of another kind.
    """

    def __init__(self, files: ModelFiles, pooling: Pooling = "mean", max_tokens: int = 256) -> None:
        self._model = OnnxModel(files, max_tokens, truncate="longest_first")
        self._pooling = pooling
        self._path = files.model

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return vectors of shape [texts, dimension], neither normalised nor checked (`vector_error`)."""
        vectors: NDArray[np.float32] | None = None
        for places, states in self._model.run(self._model.tokenizer.encode_batch(list(texts))):
            if states.ndim != 3:
                raise LocalModelFileError(f"{self._path} does not return hidden states [texts, tokens, dimension]")
            if vectors is None:
                vectors = np.empty((len(texts), states.shape[2]), dtype=np.float32)
            # The texts of a group have equal lengths, so there is no padding
            vectors[places] = states.mean(axis=1, dtype=np.float32) if self._pooling == "mean" else states[:, 0]
        return np.empty((0, 0), dtype=np.float32) if vectors is None else vectors


def prefixes_template(query: str, document: str) -> str:
    """Return the template of `embed_text`: the prefix of each kind as JSON, null for an empty one."""
    return canonical_json({"query": query or None, "document": document or None})


def embedding_inputs(stage: Stage, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the inputs of the model for rows of text and kind: the prefix of the kind, then the text.

    >>> stage = Stage("embed_text", ("text", "kind"), "m", prefixes_template("query: ", ""))
    >>> embedding_inputs(stage, [{"text": "a", "kind": "query"}, {"text": "b", "kind": "document"}])
    ['query: a', 'b']
    """
    prefixes: Mapping[str, str] = json.loads(stage.template)
    return [f"{prefixes.get(row['kind'], '')}{row['text']}" for row in rows]


@lru_cache(maxsize=2)
def open_embedder(files: ModelFiles, pooling: Pooling, max_tokens: int) -> Embedder:
    """Return an embedder. A worker process caches it for its next task."""
    return Embedder(files, pooling, max_tokens)


def vector_error(vector: NDArray[np.float32], dimension: int | None = None) -> str | None:
    """Return the error of a vector that is empty, zero, not finite, or not of the length `dimension`, otherwise None.

    >>> vector_error(np.zeros(2)), vector_error(np.ones(1), dimension=2), vector_error(np.ones(2))
    ('the vector is zero', 'the vector has 1 dimensions, not 2', None)
    """
    if len(vector) != dimension and (dimension is not None or not len(vector)):
        return f"the vector has {len(vector)} dimensions" + (f", not {dimension}" if dimension is not None else "")
    if not np.isfinite(vector).all():
        return "the vector has values that are not numbers"
    return None if vector.any() else "the vector is zero"


def normalised(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows scaled to length 1, float32 [n, dimension], so that inner products are cosines.

    No row may be zero. Lengths are computed in double precision, because squares of values below 1e-23 or above 1e19
    leave the range of single precision.
    """
    exact = vectors.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    rows: NDArray[np.float32] = (exact / lengths).astype(np.float32)
    return rows


BERTSCORE = ("bertscore_precision", "bertscore_recall", "bertscore_f1")
MAX_TOKENS = 512  # the positions of BERT; longer texts are cut
# The number of cached texts: all responses to a query have the same reference
KEPT_TEXTS = 32
States = tuple[NDArray[np.float64], NDArray[np.bool_]]


class TokenScorer:
    """Compute BERTScore of pairs of texts with one thread. Raises LocalModelFileError for files of another kind.

    Source: Zhang et al. 2020 with equal weights, without rescaling. Precision is the mean over the response's tokens of
    their largest cosine with a token of the reference. Recall exchanges the two texts, and F1 is the harmonic mean.
    [CLS] and [SEP] can be matched, but have no weight, as in the authors' code.
    """

    def __init__(self, files: ModelFiles) -> None:
        self._model = OnnxModel(files, MAX_TOKENS, truncate="longest_first")
        self._states = lru_cache(KEPT_TEXTS)(self._find_states)

    def score(self, response: str, reference: str) -> Mapping[str, float]:
        """Return the values of `BERTSCORE` by name, from -1 to 1, and 0 if a text has no token."""
        return dict(zip(BERTSCORE, match_states(self._states(response), self._states(reference)), strict=True))

    def _find_states(self, text: str) -> States:
        """Return the states of the tokens as rows of length 1, and a mask of the tokens of the text."""
        encoding = self._model.tokenizer.encode(text)
        (_, states), *_ = self._model.run([encoding])
        rows = states[0].astype(np.float64)
        # A zero state has the cosine 0 with every state
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        return rows, np.array(encoding.special_tokens_mask) == 0


def match_states(response: States, reference: States) -> tuple[float, float, float]:
    """Return precision, recall and F1 of two texts from their states, float64[tokens, dimension], and masks."""
    (states, own), (others, theirs) = response, reference
    if not (own.any() and theirs.any()):
        return 0.0, 0.0, 0.0
    cosines = states @ others.T
    precision, recall = float(cosines.max(axis=1)[own].mean()), float(cosines.max(axis=0)[theirs].mean())
    both = precision + recall
    return precision, recall, 2 * precision * recall / both if both else 0.0


# Large groups have many texts of equal length, which run together. Small groups delay a flush less
GROUP_ROWS = 256
# A row with a vector of 384 numbers has about 2 KB
FILE_ROWS = 4096
COUNTS = pa.schema([("done", pa.int64()), ("failed", pa.int64())])

Row = Mapping[str, Any]
Answers = Callable[[Sequence[Row]], Sequence[Completion]]
Answering = Callable[[Stage], Answers]


def answer_in_task(
    batches: Iterator[pa.RecordBatch],
    stage: Stage,
    folder: str,
    run: str,
    flush: float,
    answering: Mapping[str, Answering] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Answer the requests of a partition (request_id and the stage's variables) and write them into the folder.

    Yields one row of `COUNTS` per batch. A complete file is written every `flush` seconds. A task that Spark runs twice
    writes the same completions twice, and readers use one of them. `answering` has the models by stage, by default
    `LOCAL_ANSWERS`. Raises LocalModelFileError if the model of this worker differs from the stage's.
    """
    answers = (answering or LOCAL_ANSWERS)[stage.name](stage)
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
                # Two attempts of one task may write at the same time, so the name is random
                write_file(f"{folder}/{run}-{stage.name}-task-{uuid4().hex}.parquet", completions_table(stamped))
                held, began = [], monotonic()
        yield pa.RecordBatch.from_pylist([{"done": done, "failed": failed}], COUNTS)


def _stamped(row: Completion, stage: Stage, run: str) -> Completion:
    """Return the row with its model, time and run."""
    return replace(row, model=stage.model, attempts=1, answered_at=datetime.now(UTC), run_id=run)


def _embedding(stage: Stage) -> Answers:
    """Return a function that embeds texts by `embeddings.model`. An invalid vector has the error `bad_body`."""
    files = find_model(stage.model)
    check_files(files, stage)
    embedder = open_embedder(files, stage.extra_body["pooling"], stage.extra_body["max_tokens"])

    def answers(rows: Sequence[Row]) -> list[Completion]:
        vectors = embedder.embed(embedding_inputs(stage, rows))
        found = []
        for row, vector in zip(rows, vectors, strict=True):
            wrong = vector_error(vector)
            good = Completion(row["request_id"], vector=vector)
            found.append(Completion(row["request_id"], error_type="bad_body", error=wrong) if wrong else good)
        return found

    return answers


def _classifying(stage: Stage) -> Answers:
    """Return a function that classifies pairs by `grounding.verifier`. A completion has the probabilities as JSON."""
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


LOCAL_ANSWERS: Mapping[str, Answering] = {
    "embed_text": _embedding,
    "classify_entailment": _classifying,
}
