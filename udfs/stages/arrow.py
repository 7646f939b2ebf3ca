"""Stages over Arrow batches, for `mapInArrow`: request ids, parsed completions, sizes of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from untold.udfs.facts.nodes import normalise
from untold.udfs.llm.keys import CLASSIFYING, Stage
from untold.udfs.llm.templates import compile_prompt
from untold.udfs.llm.text_models import pair_texts
from untold.udfs.llm.usage import estimate_tokens
from untold.udfs.ratings import weigh
from untold.udfs.retrieval.embedding import embedding_inputs, normalised
from untold.udfs.stages import definition_of
from untold.udfs.stages.definitions import ExtractedItem, StageDefinition, Unparsable, read_as
from untold.udfs.stages.non_answers import example_names

LEAKED = "leaked_example"
TOKENS = "tokens"  # the estimated tokens of a request's prompt
UNASKED = "unasked"  # the error type of a request that has no completion and no failure yet


def add_request_ids(
    batches: Iterator[pa.RecordBatch], stage: Stage, *, measured: bool = False
) -> Iterator[pa.RecordBatch]:
    """Appends the column request_id, from the columns named after the stage's variables; `measured`: and tokens.

    tokens: the estimated prompt tokens of the row's request, none of a web search.
    """
    measure = _measuring(stage) if measured else None
    for batch in batches:
        variables = batch.select(list(stage.variables)).to_pylist()
        columns = {"request_id": pa.array([stage.request_id(row) for row in variables], pa.string())}
        if measure is not None:
            columns[TOKENS] = pa.array(measure(variables), pa.int64())
        yield pa.RecordBatch.from_arrays([*batch.columns, *columns.values()], [*batch.schema.names, *columns])


def make_parser(stage: Stage, keys: tuple[str, ...]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What makes results of completions: columns `keys`, request_id, the stage's results, error_type, error.

    Of a stage with `items` also leaked_example: how many were dropped, because they are of the template's examples.
    """
    if "vector" in definition_of(stage.name).output.names:
        return partial(read_vectors, keys=keys)
    # A local model has no prompt, and its completions are in the form of the schema
    names, structured = example_names(stage.template), bool(stage.structured) or not stage.has_prompt
    return partial(parse_completions, stage=stage.name, keys=keys, names=names, structured=structured)


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


def parse_completions(
    batches: Iterator[pa.RecordBatch],
    stage: str,
    keys: tuple[str, ...],
    names: tuple[str, ...] = (),
    *,
    structured: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Columns `keys`, request_id, the stage's results, error_type and error, and leaked_example (`make_parser`).

    A batch has the keys, what the stage's parser reads of its variables, request_id, text_of_completion, alternatives,
    error_type and error. A row without text and without error was not asked: error_type `unasked`.
    """
    definition = definition_of(stage)
    fields, counted = list(definition.results), [LEAKED] if definition.items else []
    said = {"text_of_completion", "error_type", "error"}
    wanted = {*definition.variables, *said, *(["alternatives"] if definition.rated else [])}
    for batch in batches:
        read = batch.select([name for name in batch.schema.names if name in wanted])
        # What is read without a variable is read once: a million relations are a few words
        read, places = _distinct(read) if said.issuperset(read.schema.names) else (read, None)
        rows = [_parse(row, definition, names, structured) for row in read.to_pylist()]
        columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in fields]
        columns += [pa.array([row.get(name) for row in rows], pa.string()) for name in ("error_type", "error")]
        columns += [pa.array([row.get(name) for row in rows], pa.int64()) for name in counted]
        kept = [batch.column(name) for name in (*keys, "request_id")]
        heads = [*keys, "request_id", *(field.name for field in fields), "error_type", "error", *counted]
        columns = columns if places is None else [column.take(places) for column in columns]
        yield pa.RecordBatch.from_arrays([*kept, *columns], heads)


def _distinct(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
    """The distinct rows of a batch of texts, and for each row of the batch which of them it is."""
    codes = [column.dictionary_encode(null_encoding="encode").indices.to_numpy() for column in batch.columns]
    _, first, places = np.unique(np.stack(codes), axis=1, return_index=True, return_inverse=True)
    return batch.take(pa.array(first)), pa.array(places.ravel())


def _parse(
    row: Mapping[str, Any], definition: StageDefinition, names: tuple[str, ...], structured: bool
) -> Mapping[str, Any]:
    """The row of a completion: its stage's results, ratings weighed by the alternatives, or error_type and error."""
    completion, error_type = row["text_of_completion"], row["error_type"]
    if error_type is not None:
        return {"error_type": error_type, "error": row["error"]}
    if completion is None:
        return {"error_type": UNASKED}
    try:
        variables = {name: row[name] for name in definition.variables if name in row}
        output, leaked = definition.accept(completion, variables, names)
        read = read_as(completion, definition.schema if structured else None, definition.form, variables)
        found = {**output, LEAKED: leaked, "read_as": read}
        if not definition.rated:
            return found
        ratings, weighted = weigh(found, row["alternatives"])
        return {**ratings, "weighted": weighted}
    except Unparsable as error:
        return {"error_type": error.error_type, "error": str(error)}
    except Exception as error:
        # A parser of another package may fail in any way; one bad row never stops a run, and its text is not shown
        return {"error_type": "unparsable", "error": f"the parser failed ({type(error).__name__})"}


def read_things(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The columns that a batch has, with `ratings` and `texts` in place of `text`: the things of the completion.

    Columns stage and text are read. `texts` are hashes of the things' texts, equal where these are one node
    (`udfs.facts.nodes.normalise`). Both are null where a stage has no reader, or that cannot read the completion.
    """
    for batch in batches:
        kept = [name for name in batch.schema.names if name != "text"]
        rows = [_read_things(row["stage"], row["text"]) for row in batch.select(["stage", "text"]).to_pylist()]
        ratings = [None if row is None else [thing.rating for thing in row] for row in rows]
        texts = [None if row is None else [_hash(thing.text) for thing in row] for row in rows]
        read = [pa.array(ratings, pa.list_(pa.float64())), pa.array(texts, pa.list_(pa.int64()))]
        yield pa.RecordBatch.from_arrays([*map(batch.column, kept), *read], [*kept, "ratings", "texts"])


def _read_things(stage: str, text: str | None) -> Sequence[ExtractedItem] | None:
    read = definition_of(stage).things
    try:
        return None if read is None or text is None else read(text)
    except Exception:
        # A reader may trip over what a parser, which knows the variables, can read
        return None


def _hash(text: str) -> int:
    # Python's own differs from worker to worker
    return int.from_bytes(
        blake2b(normalise(text).encode("utf-8", "replace"), digest_size=8).digest(), "big", signed=True
    )


def measure_prompts(batches: Iterator[pa.RecordBatch], stage: Stage) -> Iterator[pa.RecordBatch]:
    """Column tokens: the estimated prompt tokens of each row's request, none of a web search."""
    measure = _measuring(stage)
    for batch in batches:
        tokens = measure(batch.select(list(stage.variables)).to_pylist())
        yield pa.RecordBatch.from_arrays([pa.array(tokens, pa.int64())], [TOKENS])


def _measuring(stage: Stage) -> Callable[[Sequence[Mapping[str, Any]]], Sequence[int]]:
    """From the variables of requests to the estimated tokens of their prompts."""
    if not stage.has_prompt:
        return partial(_measure_lookups, stage)
    characters = compile_prompt(stage.template, api=stage.api, name=stage.name).characters
    return lambda rows: [_measure(characters, row) for row in rows]


def _measure_lookups(stage: Stage, rows: Sequence[Mapping[str, Any]]) -> Sequence[int]:
    texts = embedding_inputs(stage, rows) if stage.api == "embeddings" else []
    texts = pair_texts(stage, rows) if stage.api in CLASSIFYING else texts
    return [estimate_tokens(len(text.encode("utf-8"))) for text in texts] or [0] * len(rows)


def _measure(characters: Any, row: Mapping[str, Any]) -> int:
    """The estimated prompt tokens of one request."""
    try:
        return estimate_tokens(characters(row))
    except Exception:
        # A template that fails on a row costs nothing: the row fails when it is asked
        return 0
