"""Test the aspects and references in files, and the errors for invalid values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from untold.udfs.samples.items import (
    REFERENCE_FIELDS,
    items_of_json,
    normalise_aspects,
    normalise_references,
    read_items,
)


def item_of(identifier: str, text: str, **fields: Any) -> dict[str, Any]:
    return {**dict.fromkeys(REFERENCE_FIELDS), "id": identifier, "text": text, **fields}


GIVEN = [
    "cost",
    {"id": 7, "text": "safety", "labels": ["yes", None, 1, True], "weight": 0.5, "anchor": "", "note": "kept nowhere"},
    {"text": 3, "id": "", "anchor": "three", "weight": "1", "covered_by": ["a fact", 2], "importance": " Vital "},
]
READ = [
    item_of("1", "cost"),
    item_of("7", "safety", weight=0.5, labels=["yes", None, "1", "true"]),
    item_of("3", "3", anchor="three", weight=1.0, covered_by=["a fact", "2"], importance="vital"),
]


def test_items_have_ids_by_place_and_labels_as_text() -> None:
    assert items_of_json(json.dumps(GIVEN)) == READ


def test_references_keep_all_fields_and_aspects_the_given_fields() -> None:
    references, aspects = normalise_references(GIVEN), normalise_aspects(GIVEN)
    assert references is not None
    assert references[2] == {
        "id": "3",
        "text": "3",
        "anchor": "three",
        "weight": 1.0,
        "labels": None,
        "covered_by": ["a fact", "2"],
        "importance": "vital",
    }
    assert aspects == [{name: one[name] for name in ("id", "text", "labels")} for one in references]


def test_a_single_text_is_a_reference_that_is_cut_later() -> None:
    read = normalise_references("One. Two.")
    assert read == [dict.fromkeys(REFERENCE_FIELDS) | {"id": None, "text": "One. Two."}]
    with pytest.raises(ValueError, match=r"^aspects is not a list$"):
        normalise_aspects("One. Two.")


def test_one_label_needs_no_list_and_a_missing_value_has_no_items() -> None:
    assert items_of_json('[{"text": "a", "labels": 0}]') == [item_of("1", "a", labels=["0"])]
    assert items_of_json(None) == items_of_json("null") == items_of_json("[]") == []
    assert (normalise_references(None), normalise_references([])) == (None, [])


def test_the_missing_values_of_a_data_frame_are_missing() -> None:
    nan = float("nan")
    assert read_items([{"text": "a", "id": nan, "anchor": nan, "labels": [nan, "x"]}], "item") == [
        item_of("1", "a", labels=[None, "x"])
    ]
    assert read_items([{"text": "a", "labels": nan}], "item") == [item_of("1", "a")]
    with pytest.raises(ValueError, match=r"^item 1 is null$"):
        read_items([nan], "item")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"text": "a"}, "items is not a list"),
        ([None], "item 1 is null"),
        (["a", {"id": "1"}], "item 2 has no text"),
        ([{"id": ["1"], "text": "a"}], "item 1 is neither text nor an object of id and text"),
        (["a", {"id": "1", "text": "b"}], "items 1 and 2 have one id"),
        ([{"text": "a", "labels": {"yes": 1}}], "labels of item 1 are not texts"),
        ([{"text": "a", "labels": [["yes"]]}], "labels of item 1 are not texts"),
        ([{"text": "a", "anchor": ["b"]}], "anchor of item 1 is not a text"),
        ([{"text": "a", "importance": "high"}], "importance of item 1 is neither vital nor okay"),
        ([{"text": "a", "covered_by": ["b", None]}], "covered_by of item 1 has a null"),
        *(([{"text": "a", "weight": weight}], "weight of item 1 is not a finite number") for weight in ("x", [])),
        ([{"text": "a", "weight": True}], "weight of item 1 is not a finite number"),
        ([{"text": "a", "weight": "1e999"}], "weight of item 1 is not a finite number"),
    ],
)
def test_an_invalid_item_is_reported_without_its_text(given: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}$"):
        items_of_json(json.dumps(given))


def test_text_without_json_has_no_items() -> None:
    with pytest.raises(ValueError, match=r"^items is not a JSON list$"):
        items_of_json("{")
