"""Aspects and references as files give them, and what cannot be one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from udfs.samples.items import Item, normalise_items

GIVEN = ["cost", {"id": 7, "text": "safety", "labels": ["yes", None, 1, True], "weight": 0.5}, {"text": 3, "id": ""}]
READ = [Item("1", "cost"), Item("7", "safety", ("yes", None, "1", "true")), Item("3", "3")]


@pytest.mark.parametrize("given", [GIVEN, json.dumps(GIVEN)], ids=["list", "text"])
def test_items_have_ids_by_place_and_labels_as_text(given: Any) -> None:
    assert normalise_items(given) == READ


def test_one_label_needs_no_list_and_nothing_is_no_items() -> None:
    assert normalise_items([{"text": "a", "labels": 0}]) == [Item("1", "a", ("0",))]
    assert normalise_items(None) == normalise_items("null") == normalise_items([]) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{", "it is no JSON list"),
        ({"text": "a"}, "it is no list"),
        ([None], "item 1 is neither text nor an object of id and text"),
        (["a", {"id": "1"}], "item 2 is neither text nor an object of id and text"),
        ([{"id": ["1"], "text": "a"}], "item 1 is neither text nor an object of id and text"),
        (["a", {"id": "1", "text": "b"}], "items 1 and 2 have one id"),
    ],
)
def test_what_is_no_item_is_said_without_its_text(given: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}$"):
        normalise_items(given)
