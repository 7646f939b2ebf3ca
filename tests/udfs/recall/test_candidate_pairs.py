"""Test the candidates of a sample by vectors. A fact without a vector is not treated as a distant fact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from untold.udfs.recall.concluding import DOCUMENT, OUTCOME, PREPARED, QUERY, find_by_vectors
from untold.udfs.recall.sample_facts import Options

EMBEDDED = pa.struct(
    [
        ("kind", pa.string()),
        ("number", pa.int64()),
        ("vector", pa.list_(pa.float32())),
        ("waiting", pa.bool_()),
    ]
)
SCHEMA = pa.schema([*PREPARED, ("outcomes", pa.list_(OUTCOME)), ("embedded", pa.list_(EMBEDDED))])
Vector = list[float] | None
EAST, NORTH, NEAR_EAST = [1.0, 0.0], [0.0, 1.0], [0.8, 0.6]


def open_references(references: Sequence[Vector], generated: Sequence[Vector]) -> list[dict[str, Any]]:
    """Return the rows of `OPEN` for a sample of facts with these vectors. None is a failed vector."""
    sides = ((QUERY, references), (DOCUMENT, generated))
    row = {
        "sample_id": "a",
        "references": [{"number": number, "text": f"r{number}"} for number in range(1, len(references) + 1)],
        "generated": [{"position": position, "text": f"g{position}"} for position in range(1, len(generated) + 1)],
        "pairs": [],
        "embedded": [
            {"kind": kind, "number": number, "vector": vector, "waiting": False}
            for kind, vectors in sides
            for number, vector in enumerate(vectors, start=1)
        ],
    }
    batch = pa.RecordBatch.from_pylist([row], schema=SCHEMA)
    return [found for one in find_by_vectors([batch], Options()) for found in one.to_pylist()]


def test_candidates_are_the_nearest_from_the_threshold_on() -> None:
    (found,) = open_references([EAST], [NORTH, NEAR_EAST, EAST])
    assert [(pair["position"], pair["cosine"]) for pair in found["pairs"]] == [(3, 1.0), (2, 0.8)]
    assert (found["candidates"], found["lost"]) == (["g3", "g2"], False)


@pytest.mark.parametrize(
    ("references", "generated", "positions", "lost"),
    [
        ([EAST], [None, EAST], [2], True),
        ([EAST], [None], [], True),
        ([EAST], [None, None], [], True),
        ([None], [EAST], [], True),
        ([None], [None], [], True),
    ],
    ids=["a fact", "the only fact", "all facts", "the reference", "everything"],
)
def test_what_has_no_vector_leaves_its_reference_open(
    references: list[Vector], generated: list[Vector], positions: list[int], lost: bool
) -> None:
    (found,) = open_references(references, generated)
    assert (found["positions"], found["lost"]) == (positions, lost)
