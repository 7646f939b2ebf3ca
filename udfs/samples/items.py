"""Aspects and references of a sample: what a response ought to cover, given as texts or as objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from udfs.samples.values import load_json, text_of


@dataclass(frozen=True)
class Item:
    """An aspect or a reference: its id, its text, and what each annotator said of it (None: nothing)."""

    id: str
    text: str
    labels: tuple[str | None, ...] = ()


def normalise_items(value: Any) -> list[Item]:
    """The items of a list, or of JSON text of one: strings, or objects of id, text, labels and whatever else.

    An id that is missing, null or empty is the 1-based position. Labels of any type become text. Null is no items.
    Raises ValueError that says what is wrong, without the text.

    >>> normalise_items(["one", {"id": "b", "text": "two", "labels": [True, None]}])[1]
    Item(id='b', text='two', labels=('true', None))
    """
    given = _list_of(value)
    items = [_item(one, place) for place, one in enumerate(given, start=1)]
    seen: dict[str, int] = {}
    for place, item in enumerate(items, start=1):
        # Verdicts name items by their ids alone
        if item.id in seen:
            raise ValueError(f"items {seen[item.id]} and {place} have one id")
        seen[item.id] = place
    return items


def _list_of(value: Any) -> Sequence[Any]:
    if isinstance(value, str):
        try:
            value = load_json(value)
        except (ValueError, RecursionError):
            raise ValueError("it is no JSON list") from None
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError("it is no list")
    return value


def _item(value: Any, place: int) -> Item:
    known = value if isinstance(value, dict) else {"text": value}
    text, name, labels = known.get("text"), known.get("id"), known.get("labels")
    if text is None or isinstance(text, list | dict) or isinstance(name, list | dict):
        raise ValueError(f"item {place} is neither text nor an object of id and text")
    # A single annotator's label may stand without its list
    several = labels if isinstance(labels, list) else [] if labels is None else [labels]
    return Item(text_of(name) or str(place), cast(str, text_of(text)), tuple(text_of(label) for label in several))
