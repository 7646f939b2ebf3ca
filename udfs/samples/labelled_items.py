"""Batches of samples -> batches of their labelled items, and of how alike response and items look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from untold.udfs.retrieval.embedding import BERTSCORE, TokenScorer
from untold.udfs.retrieval.local_models import ModelFiles
from untold.udfs.samples.items import items_of_json
from untold.udfs.statistics.surface import SURFACE, surface_scores, word_overlap

_TEXTS = pa.list_(pa.string())
_ITEM = pa.struct([("id", pa.string()), ("text", pa.string()), ("labels", _TEXTS), ("covered_by", _TEXTS)])
ITEMS = pa.schema([("sample_id", pa.string()), ("items", pa.list_(_ITEM)), ("error", pa.string())])
OVERLAPS = pa.schema([("sample_id", pa.string()), ("reference_id", pa.string()), ("overlap", pa.float64())])


def baseline_names(model: ModelFiles | None) -> tuple[str, ...]:
    """The baselines that can be had, with a local embedding model or without."""
    return SURFACE if model is None else (*SURFACE, *BERTSCORE)


def baseline_schema(names: Iterable[str]) -> pa.Schema:
    """The columns of `baseline_batches`: sample_id, then a double a baseline."""
    return pa.schema([("sample_id", pa.string()), *((name, pa.float64()) for name in names)])


def item_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The columns of `ITEMS` of sample_id and items, JSON text; error says why a row's items are null."""
    for batch in batches:
        yield pa.RecordBatch.from_pylist([_items_row(row) for row in batch.to_pylist()], ITEMS)


def _items_row(row: Mapping[str, Any]) -> dict[str, Any]:
    try:
        items = items_of_json(row["items"])
    except ValueError as error:
        return {"sample_id": row["sample_id"], "error": str(error)}
    shown = [
        {"id": one.id, "text": one.text, "labels": one.labels or (), "covered_by": one.covered_by} for one in items
    ]
    return {"sample_id": row["sample_id"], "items": shown}


def overlap_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The columns of `OVERLAPS` of sample_id, response and items, a row an item: how its words are in the response."""
    for batch in batches:
        rows = [
            {
                "sample_id": row["sample_id"],
                "reference_id": item["id"],
                "overlap": word_overlap(item["text"], row["response"]),
            }
            for row in batch.to_pylist()
            for item in (row["items"] or ())
            if row["response"] is not None
        ]
        yield pa.RecordBatch.from_pylist(rows, OVERLAPS)


def baseline_batches(batches: Iterable[pa.RecordBatch], model: ModelFiles | None) -> Iterator[pa.RecordBatch]:
    """The columns of `baseline_schema` of sample_id, response and reference, both text; a null response is all null."""
    names = baseline_names(model)
    for batch in batches:
        rows = [_baseline_row(row, names, model) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, baseline_schema(names))


def _baseline_row(row: Mapping[str, Any], names: tuple[str, ...], model: ModelFiles | None) -> dict[str, Any]:
    response, reference = row["response"], row["reference"]
    if response is None:
        return {"sample_id": row["sample_id"], **dict.fromkeys(names)}
    found = surface_scores(response, reference)
    states = {} if model is None else _scorer(model).score(response, reference)
    return {"sample_id": row["sample_id"], **found, **states}


@lru_cache(maxsize=1)
def _scorer(model: ModelFiles) -> TokenScorer:
    """One that a worker process keeps, so that its next task opens none."""
    return TokenScorer(model)
