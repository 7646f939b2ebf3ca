"""Sides of listed conflicts among the statements of a sample."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from untold.udfs.facts.nodes import SIDES, find_sides


def side(text: str, *sources: int) -> dict[str, Any]:
    return {"text": text, "sources": list(sources)}


def test_a_side_is_the_statement_of_an_equal_text_and_else_is_yet_to_be_covered() -> None:
    conflicts = [
        {"first": side("It is 4 m high", 1, 3), "second": side("It is 5 m high.", 2)},
        {"first": side("It stands.", 1), "second": side("  it FELL", 3)},
    ]
    statements = [{"text": "It is 5 m high", "covered": False}, {"text": "It fell.", "covered": True}]
    row = {"sample_id": "s", "context_ids": ["a", "b", "c"], "conflicts": conflicts, "statements": statements}
    (found,) = find_sides(iter([pa.RecordBatch.from_pylist([row])]))
    assert [tuple(one.values())[1:] for one in found.to_pylist()] == [
        (0, "It is 4 m high", ["a", "c"], None, None),
        (1, "It is 5 m high.", ["b"], 1, False),
        (2, "It stands.", ["a"], None, None),
        (3, "  it FELL", ["c"], 2, True),
    ]


def test_no_conflict_has_no_side() -> None:
    schema = pa.schema([("sample_id", pa.string())])
    row = {"sample_id": "s", "context_ids": ["a"], "conflicts": [], "statements": []}
    assert schema.names == ["sample_id"]
    found = pa.Table.from_batches(find_sides(iter([pa.RecordBatch.from_pylist([row])])), SIDES)
    assert found.num_rows == 0
