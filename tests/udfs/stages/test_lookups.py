"""Test the results of stages that need no language model: stored vectors, hits, and the output of a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.llm.keys import Stage
from untold.udfs.retrieval.embedding import normalised, prefixes_template
from untold.udfs.stages import LOOKUPS, STAGES, definition_of
from untold.udfs.stages.arrow import make_parser, measure_prompts
from untold.udfs.stages.definitions import Unparsable

ROW = pa.schema(
    [
        ("id", pa.int64()),
        ("request_id", pa.string()),
        ("vector_of_completion", pa.list_(pa.float32())),
        ("error_type", pa.string()),
        ("error", pa.string()),
    ]
)
EMBED = Stage("embed_text", LOOKUPS["embed_text"].variables, "m", template="", api="embeddings")
numbers = st.floats(-1e6, 1e6, width=32).filter(lambda number: abs(number) > 1e-6)
vectors = st.lists(numbers, min_size=3, max_size=3)
outcomes = st.one_of(vectors, st.none(), st.sampled_from(["bad_body", "http_400"]))


def read(given: list[Any], parts: int = 1) -> list[dict[str, Any]]:
    """Return the parsed rows of these outcomes: a vector, None, or an error type."""
    rows = [
        {
            "id": number,
            "request_id": f"r{number}",
            "vector_of_completion": one if isinstance(one, list) else None,
            "error_type": one if isinstance(one, str) else None,
            "error": "why" if isinstance(one, str) else None,
        }
        for number, one in enumerate(given)
    ]
    batches = pa.Table.from_pylist(rows, ROW).to_batches(max_chunksize=max(1, len(rows) // parts))
    found = pa.Table.from_batches(make_parser(EMBED, ("id",))(iter(batches)))
    assert found.schema.names == ["id", "request_id", "vector", "error_type", "error"]
    assert found.schema.field("vector").type == pa.list_(pa.float32())
    return found.to_pylist()


@given(st.lists(outcomes, min_size=1, max_size=12), st.integers(1, 4))
def test_vectors_are_read_with_length_one_and_other_rows_have_no_vector(given: list[Any], parts: int) -> None:
    for one, row in zip(given, read(given, parts), strict=True):
        if isinstance(one, list):
            expected = normalised(np.array([one], np.float32))[0].tolist()
            assert (row["vector"], row["error_type"]) == (expected, None)
        else:
            assert (row["vector"], row["error_type"]) == (None, one or "unasked")
            assert row["error"] == ("why" if one else None)


def test_a_sliced_batch_is_read_without_the_rows_before_it() -> None:
    """A batch can be a slice of a larger array, and the parser must not read the rows before the slice."""
    rows = [{"id": n, "request_id": str(n), "vector_of_completion": [float(n), 0.0]} for n in range(1, 6)]
    batch = pa.Table.from_pylist(rows, ROW).to_batches()[0].slice(2, 2)
    (found,) = make_parser(EMBED, ("id",))(iter([batch]))
    assert found.to_pylist()[0] == {"id": 3, "request_id": "3", "vector": [1, 0], "error_type": None, "error": None}


def test_lookups_are_stages_without_templates_and_are_found_by_name() -> None:
    assert not set(LOOKUPS) & set(STAGES)
    assert {name: definition_of(name).variables for name in LOOKUPS} == {
        "embed_text": ("text", "kind"),
        "web_search": ("query", "count"),
        "classify_entailment": ("premise", "hypothesis"),
    }


@pytest.mark.parametrize("stage", ["embed_text", "web_search"])
def test_a_text_without_an_answer_is_unparsable(stage: str) -> None:
    with pytest.raises(Unparsable):
        definition_of(stage).parse("<html>", {})


def test_the_tokens_of_a_text_are_estimated_with_its_prefix_and_a_search_has_none() -> None:
    embed = Stage("embed_text", ("text", "kind"), "m", prefixes_template("", "p" * 40), api="embeddings")
    rows = pa.RecordBatch.from_pylist([{"text": "t" * 40, "kind": kind} for kind in ("query", "document")])
    (batch,) = measure_prompts(iter([rows]), embed)
    assert batch.column("tokens").to_pylist() == [11, 21]
    search = Stage("web_search", ("query", "count"), "brave", "", api="search")
    (batch,) = measure_prompts(iter([pa.RecordBatch.from_pylist([{"query": "q", "count": 1}])]), search)
    assert batch.column("tokens").to_pylist() == [0]
