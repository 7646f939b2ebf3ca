"""Test the atoms of a sample: the nodes, the sources of each node, and the numbers of the nodes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.facts.nodes import gather_atoms, normalise

Unit = tuple[str, str]


def passage(
    position: int | None, *atoms: str, ratings: list[float] | None = None, units: list[Unit] | None = None
) -> Any:
    """Return a context with extracted and unchanged atoms. A response has no position."""
    extracted = units if units is not None else [(text, "Fact") for text in atoms]
    return {
        "position": position,
        "context_id": None if position is None else f"c{position}",
        "units": [{"text": text, "unit_type": kind} for text, kind in extracted],
        "statements": list(atoms),
        "ratings": None if position is None else ratings or [5.0] * len(atoms),
    }


def gather(*passages: Any) -> dict[str, Any]:
    batch = pa.RecordBatch.from_pylist([{"sample_id": "s", "passages": list(passages)}])
    (found,) = gather_atoms(iter([batch]), metric="nli", unit_types=("Fact", "Claim"), threshold=3.5)
    (row,) = found.to_pylist()
    return dict(row)


def atom(row: dict[str, Any], text: str) -> dict[str, Any]:
    (found,) = [atom for atom in row["atoms"] if atom["text"] == text]
    return dict(found)


def sources(atom: dict[str, Any]) -> list[str]:
    return [source["id"] for source in atom["sources"]]


@pytest.mark.parametrize(
    "text",
    [
        "The sky is blue.",
        "the  sky\tis\u00a0blue",
        '"The sky is blue."',
        '"The sky is blue".',
        "“THE SKY IS BLUE”",
        "«The sky is blue.»",
        "Ｔｈｅ sky is blue。",
    ],
)
def test_forms_of_one_atom_are_equal(text: str) -> None:
    assert normalise(text) == "the sky is blue"


@pytest.mark.parametrize("text", ["The sky is blue!", "The sky is blue?", "The sky, is blue.", "The sky is blue..", ""])
def test_other_marks_make_another_atom(text: str) -> None:
    assert normalise(text) != "the sky is blue"


@given(st.text())
def test_any_text_can_be_normalised(text: str) -> None:
    assert normalise(text) == normalise(" " + text + "\n")


def test_nodes_with_a_context_source_come_first() -> None:
    row = gather(passage(0, "a", "b"), passage(1, "c"), passage(None, "r", "b"))
    assert (row["texts"], row["contexts"], row["responses"]) == (["a", "b", "c", "r"], 3, 1)
    assert [(a["text"], a["node"], a["origin"]) for a in row["atoms"]] == [
        ("a", 0, "context"),
        ("b", 1, "both"),
        ("c", 2, "context"),
        ("r", 3, "response"),
    ]


def test_a_node_has_all_its_sources_in_the_order_of_the_contexts() -> None:
    row = gather(passage(0, "a"), passage(1, "b", "A."), passage(2, "a"))
    assert sources(atom(row, "a")) == ["c0", "c1", "c2"]
    assert atom(row, "a")["frequency"] == 3


def test_a_source_counts_only_if_its_own_rating_passed() -> None:
    row = gather(passage(0, "a", ratings=[3.4]), passage(1, "a", ratings=[3.5]))
    assert (sources(atom(row, "a")), atom(row, "a")["rating"]) == (["c1"], 3.5)


def test_what_is_rated_too_low_is_kept_out_of_the_graph_and_shown() -> None:
    row = gather(passage(0, "a", "b", ratings=[5.0, 1.0]), passage(None))
    low = atom(row, "b")
    assert (low["kept"], low["node"], low["rating"], sources(low)) == (False, None, 1.0, ["c0"])
    assert (row["texts"], row["contexts"]) == (["a"], 1)


def test_atoms_of_the_response_are_kept_with_any_rating_in_a_context() -> None:
    row = gather(passage(0, "a", ratings=[1.0]), passage(None, "a"))
    said = atom(row, "a")
    assert (said["kept"], said["origin"], sources(said), said["rating"]) == (True, "response", [], 1.0)
    assert (row["contexts"], row["responses"]) == (0, 1)


def test_units_of_other_types_are_shown_and_not_used() -> None:
    row = gather(passage(0, "a", units=[("a", "Claim"), ("Who?", "Question"), ("About a.", "Meta Statement")]))
    assert [(a["text"], a["unit_type"], a["kept"]) for a in row["atoms"]] == [
        ("a", "Claim", True),
        ("Who?", "Question", False),
        ("About a.", "Meta Statement", False),
    ]


def test_the_text_of_a_node_is_its_most_frequent_form_in_the_contexts() -> None:
    row = gather(passage(0, "X is", "x is.", "x is."), passage(None, "X IS", "X IS", "X IS"))
    assert row["texts"] == ["x is."]


def test_the_context_nodes_do_not_depend_on_the_response() -> None:
    contexts = [passage(0, "a", "b"), passage(1, "B", "c", ratings=[4.0, 2.0])]
    rows = [gather(*contexts, passage(None, *said)) for said in (["A", "z"], ["q"], [])]
    assert len({row["contexts_key"] for row in rows}) == 1
    assert {tuple(row["texts"][: row["contexts"]]) for row in rows} == {("a", "b")}


def test_revision_keeps_unit_types_by_text_then_by_place() -> None:
    units = [("It is a.", "Claim"), ("b", "Fact"), ("c", "Claim")]
    row = gather(passage(0, "X is a.", "b", "c", units=units))
    assert [atom["unit_type"] for atom in row["atoms"]] == ["Claim", "Fact", "Claim"]


def test_a_split_unit_has_a_type_only_if_all_parts_have_the_same_type() -> None:
    mixed = gather(passage(0, "a", "b", "c", units=[("a and b", "Fact"), ("c", "Claim")]))
    assert [atom["unit_type"] for atom in mixed["atoms"]] == [None, None, "Claim"]
    same = gather(passage(0, "a", "b", units=[("a and b", "Fact")]))
    assert [atom["unit_type"] for atom in same["atoms"]] == ["Fact", "Fact"]
