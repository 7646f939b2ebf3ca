"""Test the questions and answers of a sample: the nodes, the sources of each node, and the compared pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.arrow import ROWS_PER_BATCH
from untold.udfs.facts.nodes import gather_answers, gather_questions, normalise, pair_answers

QUESTIONS = ["Where?", "When?"]
Answered = Sequence[tuple[str, float]]


def passage(position: int | None, where: Answered = (), when: Answered = ()) -> dict[str, Any]:
    """Return the answers of a context to the two questions, with confidences. A response has no position."""
    answered = (where, when)
    return {
        "position": position,
        "context_id": None if position is None else f"c{position}",
        "answers": [[text for text, _ in answers] for answers in answered],
        "confidences": [[confidence for _, confidence in answers] for answers in answered],
    }


def gather(*passages: dict[str, Any]) -> dict[str, Any]:
    batch = pa.RecordBatch.from_pylist([{"sample_id": "s", "questions": QUESTIONS, "passages": list(passages)}])
    (found,) = gather_answers(iter([batch]), metric="qa", threshold=2.0)
    (row,) = found.to_pylist()
    return dict(row)


def answer(row: dict[str, Any], text: str) -> dict[str, Any]:
    (found,) = [atom for atom in row["atoms"] if atom["text"] == text]
    return dict(found)


def pairs(nodes: Iterable[tuple[str, str, bool]], *, resolve: bool = False) -> list[dict[str, Any]]:
    """Return the pairs of the given nodes. A node is a question, a text, and a flag for a context."""
    known = [
        {"node": number, "question": question, "text": text, "context": context}
        for number, (question, text, context) in enumerate(nodes)
    ]
    batch = pa.RecordBatch.from_pylist([{"sample_id": "s", "nodes": known}])
    return [row for found in pair_answers(iter([batch]), resolve=resolve) for row in found.to_pylist()]


def test_questions_are_gathered_in_order_and_each_once() -> None:
    passages = [{"questions": ["Where?", "When?"]}, {"questions": None}, {"questions": ["“where?”", "Who?"]}]
    batch = pa.RecordBatch.from_pylist([{"sample_id": "s", "query": "What?", "passages": passages}])
    (found,) = gather_questions(iter([batch]))
    assert found.to_pylist() == [{"sample_id": "s", "query": "What?", "questions": ["Where?", "When?", "Who?"]}]


def test_one_answer_to_one_question_is_one_node_with_all_its_sources() -> None:
    row = gather(passage(0, [("Lyon", 5.0)]), passage(2, [("“lyon.”", 3.0)]), passage(None, [("LYON", 4.0)]))
    node = answer(row, "Lyon")
    assert [source["id"] for source in node["sources"]] == ["c0", "c2"]
    assert (node["origin"], node["frequency"], node["rating"], node["question"]) == ("both", 3, 5.0, "Where?")
    assert (row["contexts"], row["responses"]) == (1, 0)


def test_one_text_answers_two_questions_as_two_nodes() -> None:
    row = gather(passage(0, [("1912", 5.0)], [("1912", 5.0)]))
    assert [(atom["question"], atom["node"]) for atom in row["atoms"]] == [("Where?", 0), ("When?", 1)]


def test_a_passage_with_low_confidence_is_not_a_source() -> None:
    row = gather(passage(0, [("Lyon", 1.9)]), passage(1, [("Lyon", 2.0)]), passage(None, [("Lyon", 1.0)]))
    node = answer(row, "Lyon")
    assert ([source["id"] for source in node["sources"]], node["origin"]) == (["c1"], "context")


def test_the_response_needs_confidence_too() -> None:
    row = gather(passage(0, [("Lyon", 5.0)]), passage(None, [("Turin", 1.9), ("Osaka", 2.0)]))
    assert (answer(row, "Turin")["kept"], answer(row, "Turin")["node"]) == (False, None)
    assert (answer(row, "Osaka")["kept"], answer(row, "Osaka")["origin"]) == (True, "response")


def test_an_answer_that_only_the_response_supports_enough_is_the_responses() -> None:
    row = gather(passage(0, [("Turin", 1.0)]), passage(None, [("turin", 5.0)]))
    node = answer(row, "Turin")
    assert (node["origin"], node["sources"], row["contexts"], row["responses"]) == ("response", [], 0, 1)


def test_each_pair_is_compared_once_in_code_point_order() -> None:
    found = pairs([("Where?", "b", True), ("Where?", "a", True), ("Where?", "C", False)])
    assert [(row["source"], row["target"], row["first"], row["second"]) for row in found] == [
        (1, 0, "a", "b"),
        (2, 0, "C", "b"),
        (2, 1, "C", "a"),
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from(QUESTIONS), st.text(max_size=3), st.booleans()),
        unique_by=lambda node: (node[0], normalise(node[1])),
        max_size=8,
    )
)
def test_pairs_have_one_question_and_at_least_one_context(nodes: list[tuple[str, str, bool]]) -> None:
    wanted = {
        frozenset((first, second))
        for first, second in combinations(range(len(nodes)), 2)
        if nodes[first][0] == nodes[second][0] and (nodes[first][2] or nodes[second][2])
    }
    found = pairs(nodes)
    assert len(found) == len(wanted)
    assert {frozenset((row["source"], row["target"])) for row in found} == wanted
    assert all(row["first"] <= row["second"] and nodes[row["source"]][1] == row["first"] for row in found)


def test_a_sample_of_many_answers_comes_in_bounded_batches() -> None:
    nodes = [{"node": number, "question": "Where?", "text": f"t{number:04d}", "context": True} for number in range(300)]
    batch = pa.RecordBatch.from_pylist([{"sample_id": "s", "nodes": nodes}])
    sizes = [len(found) for found in pair_answers(iter([batch]), resolve=False)]
    assert sum(sizes) == 300 * 299 // 2
    assert max(sizes) <= ROWS_PER_BATCH


@pytest.mark.parametrize(
    ("first", "second", "settled"),
    [
        ("14,800 km", "8,000 nmi", "equivalent"),
        ("5 km", "6 km", "contradictory"),
        ("5 kg", "5 km", None),
        ("25 %", "more than 23 %", None),
        ("1999", "2001", None),
        ("Lyon", "Turin", None),
    ],
)
def test_plain_quantities_need_no_model_with_the_tool(first: str, second: str, settled: str | None) -> None:
    (row,) = pairs([("How much?", first, True), ("How much?", second, False)], resolve=True)
    assert row["settled"] == settled
    (unresolved,) = pairs([("How much?", first, True), ("How much?", second, False)])
    assert unresolved["settled"] is None
