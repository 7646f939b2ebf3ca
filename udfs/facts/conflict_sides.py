"""Sides of conflicts that a judge listed, found again among the statements of a sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from untold.udfs.facts.nodes import normalise

SIDES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("statement", pa.int64()),
        ("text", pa.string()),
        ("sources", pa.list_(pa.string())),
        ("place", pa.int64()),
        ("covered", pa.bool_()),
    ]
)


def find_sides(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The sides of conflicts, for `mapInArrow`: rows of `SIDES`, the sides of the n-th conflict 2n and 2n + 1.

    In: sample_id; context_ids list<string>; conflicts list<struct<first, second: struct<text, sources list<int>>>>,
    sources counted from 1; statements list<struct<text, covered>>. `place` is that of the statement with an equal text,
    from 1, and `covered` what that is; both are null where there is none.
    """
    for batch in batches:
        rows = [side for row in batch.to_pylist() for side in _sides_of(row)]
        yield pa.RecordBatch.from_pylist(rows, schema=SIDES)


def _sides_of(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    known = {normalise(one["text"]): (place, one["covered"]) for place, one in enumerate(row["statements"], start=1)}
    sides = [conflict[name] for conflict in row["conflicts"] for name in ("first", "second")]
    for number, side in enumerate(sides):
        place, covered = known.get(normalise(side["text"]), (None, None))
        sources = [row["context_ids"][source - 1] for source in side["sources"]]
        yield {
            "sample_id": row["sample_id"],
            "statement": number,
            "text": side["text"],
            "sources": sources,
            "place": place,
            "covered": covered,
        }
