"""Compute request ids, results and prompt sizes of a stage over Arrow batches, for `mapInArrow`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from untold.udfs.errors import UserError
from untold.udfs.facts.nodes import normalise
from untold.udfs.llm.keys import CLASSIFYING, Stage
from untold.udfs.llm.templates import compile_prompt
from untold.udfs.llm.text_models import pair_texts
from untold.udfs.llm.usage import estimate_tokens
from untold.udfs.ratings import weigh, with_leaves
from untold.udfs.retrieval.embedding import embedding_inputs, normalised
from untold.udfs.stages import MASKS, definition_of
from untold.udfs.stages import UNASKED as UNASKED
from untold.udfs.stages.definitions import ExtractedItem, StageDefinition, Unparsable, read_as
from untold.udfs.stages.non_answers import example_names, texts_of

LEAKED = "leaked_example"
TOKENS = "tokens"  # the estimated tokens of a request's prompt


def add_request_ids(
    batches: Iterator[pa.RecordBatch], stage: Stage, *, measured: bool = False
) -> Iterator[pa.RecordBatch]:
    """Add the column request_id, from the columns with the names of the variables of the stage.

    `measured` also adds tokens: the estimated prompt tokens of the request, 0 for a web search.
    """
    measure = _measuring(stage) if measured else None
    for batch in batches:
        variables = batch.select(list(stage.variables)).to_pylist()
        columns = {"request_id": pa.array([stage.request_id(row) for row in variables], pa.string())}
        if measure is not None:
            columns[TOKENS] = pa.array(measure(variables), pa.int64())
        yield pa.RecordBatch.from_arrays([*batch.columns, *columns.values()], [*batch.schema.names, *columns])


class MaskError(UserError):
    """A mask that does not return one text for each text."""


def mask_columns(batches: Iterator[pa.RecordBatch], stage: Stage, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with the masked texts of these columns, at any depth. Raises MaskError."""
    mask = stage.mask[0] if stage.mask else ""
    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        found = {name: columns[name].to_pylist() for name in names}
        texts = list(dict.fromkeys(texts_of(found.values())))
        masked = list(MASKS[mask].function(texts)) if texts else []
        if len(masked) != len(texts) or not all(isinstance(one, str) for one in masked):
            raise MaskError(f"llm.mask: {mask} does not return one text for each of {len(texts):,} texts")
        replaced = with_leaves(found, partial(_masked, dict(zip(texts, masked, strict=True))))
        columns |= {name: pa.array(values, columns[name].type) for name, values in replaced.items()}
        yield pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _masked(masked: Mapping[str, str], leaf: Any) -> Any:
    return masked[leaf] if isinstance(leaf, str) else leaf


def make_parser(stage: Stage, keys: tuple[str, ...]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function from completions to results: `keys`, request_id, the results of the stage, error_type, error.

    A stage with `items` also has leaked_example: the number of dropped items from the examples of the template.
    """
    if "vector" in definition_of(stage.name).output.names:
        return partial(read_vectors, keys=keys)
    # A local model has no prompt, and its completions are in the form of the schema
    names, structured = example_names(stage.template), bool(stage.structured) or not stage.has_prompt
    return partial(parse_completions, stage=stage.name, keys=keys, names=names, structured=structured)


def read_vectors(batches: Iterator[pa.RecordBatch], keys: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield the columns `keys`, request_id, vector (of length 1, null after an error), error_type and error.

    A batch has the keys, request_id, vector_of_completion, error_type and error. The request of a row without a vector
    and an error was not sent.
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
    """Return the usable vectors divided by their lengths, null for others. All usable vectors have one dimension."""
    chosen = vectors.filter(usable)
    if not len(chosen):
        return pa.nulls(len(vectors), pa.list_(pa.float32()))
    rows = normalised(chosen.flatten().to_numpy(zero_copy_only=False).reshape(len(chosen), -1))
    dimension = rows.shape[1]
    ends = np.cumsum(usable.to_numpy(zero_copy_only=False).astype(np.int32) * dimension)
    # A null offset at the beginning of a list makes it null
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
    """Yield the columns `keys`, request_id, the results of the stage, error_type, error, and leaked_example.

    A batch has the keys, the variables that the parser of the stage reads, request_id, text_of_completion,
    alternatives, error_type and error. A row without a text and an error has the error_type `unasked`.
    """
    definition = definition_of(stage)
    fields, counted = list(definition.results), [LEAKED] if definition.items else []
    said = {"text_of_completion", "error_type", "error"}
    wanted = {*definition.variables, *said, *(["alternatives"] if definition.rated else [])}
    for batch in batches:
        read = batch.select([name for name in batch.schema.names if name in wanted])
        # Without variables, each distinct text is parsed once, because a million relations are a few words
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
    """Return the distinct rows of a batch of texts, and for each row of the batch the index of its distinct row."""
    codes = [column.dictionary_encode(null_encoding="encode").indices.to_numpy() for column in batch.columns]
    _, first, places = np.unique(np.stack(codes), axis=1, return_index=True, return_inverse=True)
    return batch.take(pa.array(first)), pa.array(places.ravel())


def _parse(
    row: Mapping[str, Any], definition: StageDefinition, names: tuple[str, ...], structured: bool
) -> Mapping[str, Any]:
    """Return the results of a completion with ratings weighed by the alternatives, or error_type and error."""
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
        # A parser of another package can raise any error. One bad row must not stop a run, and its text is not shown
        return {"error_type": "unparsable", "error": f"the parser failed ({type(error).__name__})"}


def read_things(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the columns of the batches with the items of a completion, `ratings` and `texts`, in place of `text`.

    A batch has the columns stage and text. `texts` are hashes of the texts of items, equal for texts of one node
    (`udfs.facts.nodes.normalise`). Both are null for a stage without a reader, and for an unreadable completion.
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
        # A reader lacks the variables, so it can fail on a completion that a parser can read
        return None


def _hash(text: str) -> int:
    # The hash of Python differs between workers
    return int.from_bytes(
        blake2b(normalise(text).encode("utf-8", "replace"), digest_size=8).digest(), "big", signed=True
    )


def measure_prompts(batches: Iterator[pa.RecordBatch], stage: Stage) -> Iterator[pa.RecordBatch]:
    """Yield the column tokens: the estimated prompt tokens of the request of each row, 0 for a web search."""
    measure = _measuring(stage)
    for batch in batches:
        tokens = measure(batch.select(list(stage.variables)).to_pylist())
        yield pa.RecordBatch.from_arrays([pa.array(tokens, pa.int64())], [TOKENS])


def _measuring(stage: Stage) -> Callable[[Sequence[Mapping[str, Any]]], Sequence[int]]:
    """Return the function from the variables of requests to the estimated tokens of their prompts."""

    def measure_lookups(rows: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        texts = embedding_inputs(stage, rows) if stage.api == "embeddings" else []
        texts = pair_texts(stage, rows) if stage.api in CLASSIFYING else texts
        return [estimate_tokens(len(text.encode("utf-8"))) for text in texts] or [0] * len(rows)

    def measure(row: Mapping[str, Any]) -> int:
        try:
            return estimate_tokens(characters(row))
        except Exception:
            # After an error of the template, the row has no call and no cost
            return 0

    if not stage.has_prompt:
        return measure_lookups
    characters = compile_prompt(stage.template, api=stage.api, name=stage.name).characters
    return lambda rows: list(map(measure, rows))
