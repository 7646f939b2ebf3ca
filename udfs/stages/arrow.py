"""Stages over Arrow batches, for `mapInArrow`: request ids, parsed completions, sizes of prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from udfs.llm.keys import Stage
from udfs.llm.templates import compile_prompt
from udfs.llm.tokens import estimate_tokens
from udfs.ratings import weigh
from udfs.stages import definition_of
from udfs.stages.definitions import StageDefinition, Unparsable

UNASKED = "unasked"


def add_request_ids(batches: Iterator[pa.RecordBatch], stage: Stage) -> Iterator[pa.RecordBatch]:
    """Appends the column request_id, from the columns named after the stage's variables."""
    for batch in batches:
        variables = batch.select(list(stage.variables)).to_pylist()
        ids = pa.array([stage.request_id(row) for row in variables], pa.string())
        yield pa.RecordBatch.from_arrays([*batch.columns, ids], [*batch.schema.names, "request_id"])


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
    """Column tokens: the estimated prompt tokens of each row's request."""
    prompt = compile_prompt(stage.template, api=stage.api, name=stage.name)
    for batch in batches:
        tokens = [_measure(prompt.characters, row) for row in batch.select(list(stage.variables)).to_pylist()]
        yield pa.RecordBatch.from_arrays([pa.array(tokens, pa.int64())], ["tokens"])


def _measure(characters: Any, row: Mapping[str, Any]) -> int:
    try:
        return estimate_tokens(characters(row))
    except Exception:
        return 0
