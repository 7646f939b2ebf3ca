"""Test the facts from passages: how they are collected, merged, put into prompts and rated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.facts.importance_measures import rank_batches
from untold.udfs.facts.reference_facts import (
    FACTS,
    FOUND,
    batch_facts,
    cut_texts,
    gather_facts,
    merge_classes,
    merge_near,
    pair_near,
    sizes_of_batches,
)

PASSAGE = pa.struct(
    [("place", pa.int64()), ("passage", pa.int64()), ("source", pa.string()), ("facts", pa.list_(pa.string()))]
)
PASSAGES = pa.schema([("owner", pa.string()), ("passages", pa.list_(PASSAGE))])
VECTORS = FOUND.append(pa.field("vectors", pa.list_(pa.list_(pa.float32()))))
CLASS = pa.struct([("node", pa.int64()), ("statement", pa.int64()), ("representative", pa.bool_())])
CLASSES = FOUND.append(pa.field("classes", pa.list_(CLASS)))
RATING = pa.struct([("batch", pa.int64()), ("relevance", pa.list_(pa.float64())), ("salience", pa.list_(pa.float64()))])


def one(function: Any, row: dict[str, Any], schema: pa.Schema, **options: Any) -> dict[str, Any]:
    (found,) = rows_of(function, row, schema, **options)
    return found


def rows_of(function: Any, row: dict[str, Any], schema: pa.Schema, **options: Any) -> list[dict[str, Any]]:
    batches = function([pa.RecordBatch.from_pylist([row], schema)], **options)
    return [found for batch in batches for found in batch.to_pylist()]


def gathered(*passages: tuple[int, str, Sequence[str]], most: int = 9) -> dict[str, Any]:
    given_passages = [
        {"place": place, "passage": 0, "source": source, "facts": list(facts)} for place, source, facts in passages
    ]
    return one(gather_facts, {"owner": "o", "passages": given_passages}, PASSAGES, most=most)


def found_of(*texts: str) -> list[dict[str, Any]]:
    return [
        {"text": text, "sources": [{"place": -at, "id": f"c{at}"}], "frequency": 1} for at, text in enumerate(texts)
    ]


def test_equal_facts_are_merged_in_their_most_frequent_form_with_all_sources() -> None:
    found = gathered(
        (0, "a", ["Bees sing.", "Ice floats."]), (1, "b", ["bees  sing", "ICE FLOATS"]), (2, "a2", ["bees sing"])
    )["found"]
    assert [(fact["text"], fact["frequency"]) for fact in found] == [("Bees sing.", 3), ("Ice floats.", 2)]
    assert [[source["id"] for source in fact["sources"]] for fact in found] == [["a", "b", "a2"], ["a", "b"]]
    again = gathered((0, "a", ["Bees sing."]), (1, "b", ["bees sing"]), (2, "c", ["bees sing"]))
    assert again["found"][0]["text"] == "bees sing"


def test_a_cap_keeps_the_facts_that_appear_first_and_counts_the_others() -> None:
    found = gathered((0, "a", ["one", "two", "three"]), (1, "b", ["four", "one"]), most=2)
    assert [fact["text"] for fact in found["found"]] == ["one", "two"]
    assert found["left_out"] == 2
    # The remaining facts also have their later sources
    assert [source["id"] for source in found["found"][0]["sources"]] == ["a", "b"]


def test_near_facts_are_merged_by_their_medoid_in_the_order_of_first_appearance() -> None:
    row = {"owner": "o", "found": found_of("old boats", "tea", "boats old", "the old boats"), "left_out": 0}
    vectors = [[1.0, 0.0], [0.0, 1.0], [0.96, 0.28], [0.995, 0.0998749]]
    merged = one(merge_near, {**row, "vectors": vectors}, VECTORS, method="words", threshold=0.1)
    assert [(fact["text"], fact["members"], fact["sources"]) for fact in merged["facts"]] == [
        # The order is the order of the texts with the facts, not the order of the facts
        ("the old boats", ["old boats", "boats old", "the old boats"], ["c3", "c2", "c0"]),
        ("tea", ["tea"], ["c1"]),
    ]
    assert all(fact["weight"] is fact["reference_id"] is None for fact in merged["facts"])


@pytest.mark.parametrize("vectors", [None, [[1.0, 0.0], None]])
def test_without_vectors_no_fact_is_near_another(vectors: Any) -> None:
    row = {"owner": "o", "found": found_of("boats", "boats too"), "left_out": 0, "vectors": vectors}
    merged = one(merge_near, row, VECTORS, method="distance", threshold=2.0)
    assert [fact["members"] for fact in merged["facts"]] == [["boats"], ["boats too"]]
    assert rows_of(pair_near, row, VECTORS) == []


def test_near_pairs_are_sent_in_both_directions() -> None:
    row = {"owner": "o", "found": found_of("a", "b", "c"), "left_out": 0}
    vectors = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
    pairs = rows_of(pair_near, {**row, "vectors": vectors}, VECTORS)
    assert [(pair["source"], pair["target"]) for pair in pairs] == [(0, 1), (1, 0)]


def test_classes_of_a_graph_are_facts_by_their_representative() -> None:
    classes = [
        {"node": 0, "statement": 0, "representative": False},
        {"node": 1, "statement": 1, "representative": True},
        {"node": 2, "statement": 0, "representative": True},
    ]
    row = {"owner": "o", "found": found_of("a", "b", "c"), "left_out": 0}
    merged = one(merge_classes, {**row, "classes": classes}, CLASSES)
    assert [(fact["text"], fact["members"]) for fact in merged["facts"]] == [("c", ["a", "c"]), ("b", ["b"])]
    alone = one(merge_classes, {**row, "classes": None}, CLASSES)
    assert [fact["text"] for fact in alone["facts"]] == ["a", "b", "c"]


@given(st.integers(0, 300), st.integers(1, 60))
def test_prompts_are_as_few_as_can_be_and_nearly_equal(count: int, most: int) -> None:
    sizes = sizes_of_batches(count, most)
    assert sum(sizes) == count
    assert len(sizes) == -(-count // most)
    assert not sizes or (max(sizes) <= most and max(sizes) - min(sizes) <= 1)


@given(st.lists(st.none() | st.just(0.5), max_size=9), st.integers(1, 4))
def test_ratings_are_assigned_to_the_rated_facts(weights: list[float | None], most: int) -> None:
    facts = [{"text": f"fact {number}", "weight": weight} for number, weight in enumerate(weights)]
    schema = FACTS.append(pa.field("query", pa.string()))
    prompts = rows_of(batch_facts, {"owner": "o", "query": "q", "facts": facts}, schema, most=most)
    assert [fact for prompt in prompts for fact in prompt["facts"]] == [
        fact["text"] for fact in facts if fact["weight"] is None
    ]
    ratings = [
        {
            "batch": prompt["batch"],
            "relevance": [1.0 + int(fact.split()[1]) / 9 for fact in prompt["facts"]],
            "salience": [2.0 for _ in prompt["facts"]],
        }
        for prompt in prompts
    ]
    row = {"owner": "o", "facts": facts, "ratings": ratings or None}
    ranked = one(
        *(rank_batches, row, FACTS.append(pa.field("ratings", pa.list_(RATING)))),
        relevance_weight=0.5,
        min_weight=None,
        top=None,
    )
    assert ranked["rated"] == (0.5 not in weights)
    for number, (fact, weight) in enumerate(zip(ranked["facts"], weights, strict=True)):
        assert (fact["number"], fact["text"]) == (number + 1, f"fact {number}")
        assert fact["relevance"] == (1.0 + number / 9 if weight is None else None)
        assert weight is None or fact["weight"] == weight


def test_texts_are_cut_into_passages_of_their_place() -> None:
    schema = pa.schema([("owner", pa.string()), ("place", pa.int64()), ("source", pa.string()), ("text", pa.string())])
    row = {"owner": "o", "place": 3, "source": "c", "text": "Ada sails. She owns a boat."}
    found = rows_of(cut_texts, row, schema, words=4)
    assert [(one["place"], one["passage"], one["source"], one["text"]) for one in found] == [
        (3, 0, "c", "Ada sails."),
        (3, 1, "c", "She owns a boat."),
    ]
