"""Test the pairs of methods, section 2: their keys equal the keys of the stage, and batches and caps limit their
number.
"""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.facts.pairs import BATCH_ROWS, PAIRS, ask_all, generate_pairs, leave_out
from untold.udfs.llm.keys import PairKeys, Stage

STAGE = Stage("classify_relation", ("premise", "hypothesis"), "m", "{{ premise }} {{ hypothesis }}")


def owner(name: str, contexts: int, responses: int, **counts: int) -> dict[str, Any]:
    crossing = contexts * responses
    return {
        "owner": name,
        "texts": [f"{name} {number}" for number in range(contexts + responses)],
        "contexts": contexts,
        "to_contexts": crossing,
        "between_contexts": contexts * (contexts - 1),
        "to_responses": crossing,
        **counts,
    }


def generate(*owners: dict[str, Any], choose: Any = ask_all) -> list[pa.RecordBatch]:
    return list(generate_pairs(iter([pa.RecordBatch.from_pylist(list(owners))]), STAGE, choose))


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, PAIRS).to_pylist()
    return rows


def expected_pairs(contexts: int, responses: int) -> set[tuple[int, int]]:
    size = contexts + responses
    return {(a, b) for a in range(size) for b in range(size) if a != b and (a < contexts or b < contexts)}


@given(st.integers(0, 7), st.integers(0, 7))
def test_pairs_are_all_that_have_a_context_atom_once(contexts: int, responses: int) -> None:
    rows = rows_of(generate(owner("o", contexts, responses)))
    found = [(row["source"], row["target"]) for row in rows]
    assert len(found) == len(set(found)) == 2 * contexts * responses + contexts * (contexts - 1)
    assert set(found) == expected_pairs(contexts, responses)


@given(st.lists(st.text(max_size=8), min_size=2, max_size=4), st.booleans())
def test_keys_equal_the_keys_of_the_stage(texts: list[str], turned: bool) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    variables = ("hypothesis", "premise") if turned else ("premise", "hypothesis")
    stage = Stage("classify_relation", variables, "m", "t")
    keys = PairKeys(stage, texts)
    for first in range(len(texts)):
        for second in range(len(texts)):
            asked = {variables[0]: texts[first], variables[1]: texts[second]}
            assert keys.request_id(first, second) == stage.request_id(asked)


def test_rows_carry_the_key_of_their_texts() -> None:
    rows = rows_of(generate(owner("one", 2, 1), owner("two", 1, 1)))
    assert {row["owner"] for row in rows} == {"one", "two"}
    for row in rows:
        texts = {"premise": f"{row['owner']} {row['source']}", "hypothesis": f"{row['owner']} {row['target']}"}
        assert row["request_id"] == STAGE.request_id(texts)


def test_implied_pairs_have_no_key_and_others_no_row() -> None:
    def choose(_: Any) -> Any:
        return lambda source, target: (target == 0, target == 1)

    rows = rows_of(generate(owner("o", 3, 0), choose=choose))
    assert {(row["target"], row["request_id"] is None) for row in rows} == {(0, False), (1, True)}


def test_a_large_sample_comes_in_bounded_batches() -> None:
    batches = generate(owner("o", 400, 10))
    assert max(batch.num_rows for batch in batches) <= 2 * BATCH_ROWS
    assert sum(batch.num_rows for batch in batches) == 2 * 400 * 10 + 400 * 399


def test_small_samples_share_a_batch() -> None:
    assert len(generate(*[owner(f"o{number}", 2, 1) for number in range(500)])) == 1


@pytest.mark.parametrize(("contexts", "responses"), [(1, 1), (1, 3), (3, 1), (4, 3), (5, 0), (2, 2)])
def test_what_a_cap_leaves_out_is_reached_as_if_by_an_edge_a_pair(contexts: int, responses: int) -> None:
    kinds = ("to_contexts", "between_contexts", "to_responses")
    most = owner("o", contexts, responses)
    total = sum(most[kind] for kind in kinds)
    for cap in range(total):
        counts, room = {}, cap
        for kind in kinds:
            counts[kind] = min(most[kind], room)
            room -= counts[kind]
        judged = {
            (row["source"], row["target"]) for row in rows_of(generate(owner("o", contexts, responses, **counts)))
        }
        missing = expected_pairs(contexts, responses) - judged
        assert (len(judged), len(missing)) == (cap, total - cap)
        batch = pa.RecordBatch.from_pylist([{"graph": "o", "contexts": contexts, "responses": responses, **counts}])
        rows = pa.Table.from_batches(leave_out(iter([batch]))).to_pylist()
        edges = [(row["source"], row["target"]) for row in rows if row["node"] is None]
        joints = {row["node"] for row in rows} - {None}
        size = contexts + responses
        assert joints.isdisjoint(range(size))
        assert closure(edges, size) == closure(missing, size)
        assert len(edges) <= 6 * size


def closure(edges: Any, size: int) -> set[tuple[int, int]]:
    graph: Any = nx.DiGraph(list(edges))
    graph.add_nodes_from(range(size))
    return {(a, b) for a in range(size) for b in nx.descendants(graph, a) if b < size}


def test_every_choice_of_all_sends_every_pair() -> None:
    asked, implied = ask_all({})(np.arange(3), np.arange(3))
    assert (asked.all(), implied.any()) == (True, False)
