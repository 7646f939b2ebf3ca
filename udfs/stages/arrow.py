"""Stages over Arrow batches, for `mapInArrow`: request ids, parsed completions, sizes of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.llm.keys import Stage
from udfs.llm.templates import compile_prompt
from udfs.llm.tokens import estimate_tokens
from udfs.ratings import weigh
from udfs.retrieval.embedding import embedding_inputs, normalised
from udfs.stages import LOOKUPS, definition_of
from udfs.stages.definitions import StageDefinition, Unparsable

UNASKED = "unasked"


def add_request_ids(batches: Iterator[pa.RecordBatch], stage: Stage) -> Iterator[pa.RecordBatch]:
    """Appends the column request_id, from the columns named after the stage's variables."""
    for batch in batches:
        variables = batch.select(list(stage.variables)).to_pylist()
        ids = pa.array([stage.request_id(row) for row in variables], pa.string())
        yield pa.RecordBatch.from_arrays([*batch.columns, ids], [*batch.schema.names, "request_id"])


def reading_of(stage: str, keys: tuple[str, ...]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What makes results of completions: columns `keys`, request_id, the stage's output, error_type, error."""
    if "vector" in definition_of(stage).output.names:
        return partial(read_vectors, keys=keys)
    return partial(parse_completions, stage=stage, keys=keys)


def read_vectors(batches: Iterator[pa.RecordBatch], keys: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Columns `keys`, request_id, vector (of length 1, null where there is an error), error_type and error.

    A batch has the keys, request_id, vector_of_completion, error_type and error. A row without both was not asked.
    """
    for batch in batches:
        errors, known = batch.column("error_type"), batch.column("vector_of_completion").is_valid()
        usable = pc.and_(known, errors.is_null())
        kind = pc.if_else(pc.or_(known, errors.is_valid()), errors, pa.scalar(UNASKED, pa.string()))
        vectors = _of_length_one(batch.column("vector_of_completion"), usable)
        kept = [batch.column(name) for name in (*keys, "request_id")]
        names = [*keys, "request_id", "vector", "error_type", "error"]
        yield pa.RecordBatch.from_arrays([*kept, vectors, kind, batch.column("error")], names)


def _of_length_one(vectors: pa.ListArray, usable: pa.BooleanArray) -> pa.ListArray:
    """Those vectors that are usable, each divided by its length; null elsewhere. All usable ones have one dimension."""
    chosen = vectors.filter(usable)
    if not len(chosen):
        return pa.nulls(len(vectors), pa.list_(pa.float32()))
    rows = normalised(chosen.flatten().to_numpy(zero_copy_only=False).reshape(len(chosen), -1))
    dimension = rows.shape[1]
    ends = np.cumsum(usable.to_numpy(zero_copy_only=False).astype(np.int32) * dimension)
    # A null offset makes a null list; it stands at a list's beginning
    offsets = pa.array([0, *ends.tolist()], pa.int32(), mask=np.append(~usable.to_numpy(zero_copy_only=False), False))
    return pa.ListArray.from_arrays(offsets, pa.array(rows.ravel(), pa.float32()))


def parse_completions(batches: Iterator[pa.RecordBatch], stage: str, keys: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Columns `keys`, request_id, the stage's output, error_type and error.

    A batch has the keys, what the stage's parser reads of its variables, request_id, text_of_completion, alternatives,
    error_type and error. A row without text and without error was not asked: error_type `unasked`.
    """
    definition = definition_of(stage)
    fields = list(definition.results)
    wanted = {*definition.variables, "text_of_completion", "error_type", "error"}
    wanted |= {"alternatives"} if definition.rated else set()
    for batch in batches:
        read = [name for name in batch.schema.names if name in wanted]
        rows = [_parse(row, definition) for row in batch.select(read).to_pylist()]
        columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in fields]
        errors = [pa.array([row.get(name) for row in rows], pa.string()) for name in ("error_type", "error")]
        kept = [batch.column(name) for name in (*keys, "request_id")]
        names = [*keys, "request_id", *(field.name for field in fields), "error_type", "error"]
        yield pa.RecordBatch.from_arrays([*kept, *columns, *errors], names)


def _parse(row: Mapping[str, Any], definition: StageDefinition) -> Mapping[str, Any]:
    completion, error_type = row["text_of_completion"], row["error_type"]
    if error_type is not None:
        return {"error_type": error_type, "error": row["error"]}
    if completion is None:
        return {"error_type": UNASKED}
    try:
        output = definition.parse(completion, row)
        if not definition.rated:
            return output
        ratings, weighted = weigh(output, row["alternatives"])
        return {**ratings, "weighted": weighted}
    except Unparsable as error:
        return {"error_type": "unparsable", "error": str(error)}
    except Exception as error:
        return {"error_type": "unparsable", "error": f"the parser failed ({type(error).__name__})"}


def measure_prompts(batches: Iterator[pa.RecordBatch], stage: Stage) -> Iterator[pa.RecordBatch]:
    """Column tokens: the estimated prompt tokens of each row's request, none of a web search."""
    if stage.name in LOOKUPS:
        yield from _measure_lookups(batches, stage)
        return
    prompt = compile_prompt(stage.template, api=stage.api, name=stage.name)
    for batch in batches:
        tokens = [_measure(prompt.characters, row) for row in batch.select(list(stage.variables)).to_pylist()]
        yield pa.RecordBatch.from_arrays([pa.array(tokens, pa.int64())], ["tokens"])


def _measure_lookups(batches: Iterator[pa.RecordBatch], stage: Stage) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = batch.select(list(stage.variables)).to_pylist()
        texts = embedding_inputs(stage, rows) if stage.api == "embeddings" else []
        tokens = [estimate_tokens(len(text.encode("utf-8"))) for text in texts] or [0] * len(rows)
        yield pa.RecordBatch.from_arrays([pa.array(tokens, pa.int64())], ["tokens"])


def _measure(characters: Any, row: Mapping[str, Any]) -> int:
    try:
        return estimate_tokens(characters(row))
    except Exception:
        return 0
