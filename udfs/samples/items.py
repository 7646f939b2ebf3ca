"""Aspects and references of a sample: what a response ought to cover, given as texts or as objects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from untold.udfs.samples.values import finite, id_of, load_json, text_of

# What a column of them keeps of each; weights and whatever explains a label mean nothing for an aspect
ASPECT_FIELDS = ("id", "text", "labels")
REFERENCE_FIELDS = ("id", "text", "anchor", "weight", "labels", "covered_by", "importance")
IMPORTANCES = ("vital", "okay")
# Other names of the text of an item. An item with several of them is refused
TEXT_NAMES = ("page_content", "pageContent", "content", "contents", "passage", "segment", "body", "chunk")
SHOWN_FIELDS = 5
WEIGHTS = ("weight", "points")


@dataclass(frozen=True)
class Item:
    """An aspect or a reference: its id, its text, and what else is known of it.

    `anchor`: the name or short phrase that it is about; `weight`: how much it matters, below 0 if it is unwanted;
    `labels`: what each annotator said of it (None: nothing); `covered_by`: texts of the facts that cover it;
    `importance`: one of `IMPORTANCES`. None where not given. The id is None where one text stands for all references:
    it is yet to be cut.
    """

    id: str | None
    text: str
    anchor: str | None = None
    weight: float | None = None
    labels: tuple[str | None, ...] | None = None
    covered_by: tuple[str, ...] | None = None
    importance: str | None = None


def normalise_aspects(value: Any) -> list[dict[str, Any]] | None:
    """Aspects as [{id, text, labels}], null as None. Raises ValueError that says what is wrong, without the text.

    >>> normalise_aspects(["cost", {"id": 7, "text": "safety", "labels": [True, "no"]}])
    [{'id': '1', 'text': 'cost', 'labels': None}, {'id': '7', 'text': 'safety', 'labels': ['true', 'no']}]
    """
    return None if finite(value) is None else _as_rows(read_items(value, "aspect"), ASPECT_FIELDS)


def normalise_references(value: Any) -> list[dict[str, Any]] | None:
    """References as rows of `REFERENCE_FIELDS`, null as None; one text alone is one row without an id.

    Raises ValueError that says what is wrong, without the text.

    >>> [(one["id"], one["weight"]) for one in normalise_references(["one", {"text": "two", "weight": 0.5}])]
    [('1', None), ('2', 0.5)]
    >>> [(one["id"], one["text"]) for one in normalise_references("One. Two.")]
    [(None, 'One. Two.')]
    """
    if finite(value) is None:
        return None
    items = [Item(None, value)] if isinstance(value, str) else read_items(value, "reference")
    return _as_rows(items, REFERENCE_FIELDS)


def items_of_json(text: str | None) -> list[Item]:
    """The items of JSON text, in which one without an id has its place for one; null is no items.

    Raises ValueError that says what is wrong, without the text.

    >>> items_of_json('["one", {"id": "b", "text": "two", "labels": "yes"}]')[1].labels
    ('yes',)
    """
    if text is None:
        return []
    try:
        value = load_json(text)
    except (ValueError, RecursionError):
        raise ValueError("items is no JSON list") from None
    return [] if value is None else read_items(value, "item")


def read_items(value: Any, one: str) -> list[Item]:
    """The items of a list of texts or objects; `one` is what an item is called where something is wrong with it.

    An id that is missing, null or empty is the 1-based position. Labels of any type become text; a single one needs no
    list. Raises ValueError that says what is wrong, without the text.

    >>> read_items([{"text": "two", "labels": [True, None]}], "reference")[0].labels
    ('true', None)
    """
    return [_item(name, text, item, f"{one} {place}") for place, name, text, item in named_texts(value, one)]


def named_texts(value: Any, one: str) -> list[tuple[int, str, str, Any]]:
    """Of each item of a list its 1-based position, its id, its text, and the item itself.

    Raises ValueError that says what is wrong, without the text; `one` is what an item is called there.
    """
    if not isinstance(value, list):
        raise ValueError(f"{one}s is no list")
    found: list[tuple[int, str, str, Any]] = []
    seen: dict[str, int] = {}
    for position, item in enumerate(value, start=1):
        named = isinstance(item, dict)
        text, name = map(finite, (_text_in(item), item.get("id")) if named else (item, None))
        where = f"{one} {position}"
        if text is None:
            raise ValueError(f"{where} has no text{_advice(item)}" if named else f"{where} is null")
        if isinstance(text, list | tuple | set | dict) or isinstance(name, list | dict):
            raise ValueError(f"{where} is neither text nor an object of id and text")
        identifier = id_of(name) or str(position)
        # Sources and verdicts name items by their ids alone: with two of one, nobody could say which is meant
        if identifier in seen:
            raise ValueError(f"{one}s {seen[identifier]} and {position} have one id")
        seen[identifier] = position
        found.append((position, identifier, cast(str, text_of(text)), item))
    return found


def _text_in(item: Mapping[str, Any]) -> Any:
    """Return the text of an object, which LangChain, LlamaIndex and others keep under another name than `text`."""
    if finite(item.get("text")) is not None:
        return item["text"]
    texts = [item[name] for name in TEXT_NAMES if isinstance(item.get(name), str)]
    return texts[0] if len(texts) == 1 else None


def _advice(item: Mapping[str, Any]) -> str:
    """Return the fields of an object that may be its text, as the end of a message."""
    texts = [f"`{name}`" for name, value in item.items() if isinstance(value, str) and name not in ("id", "text")]
    return f"; rename {' or '.join(texts[:SHOWN_FIELDS])} to `text`" if texts else ""


def _as_rows(items: Sequence[Item], fields: Sequence[str]) -> list[dict[str, Any]]:
    rows = [asdict(item) for item in items]
    return [{name: list(row[name]) if isinstance(row[name], tuple) else row[name] for name in fields} for row in rows]


def _item(name: str, text: str, item: Any, where: str) -> Item:
    known: Mapping[str, Any] = item if isinstance(item, dict) else {}
    anchor = finite(known.get("anchor"))
    if isinstance(anchor, list | dict):
        raise ValueError(f"anchor of {where} is no text")
    covered_by = _texts(known.get("covered_by"), f"covered_by of {where}")
    if covered_by is not None and None in covered_by:
        raise ValueError(f"covered_by of {where} has a null")
    return Item(
        name,
        text,
        text_of(anchor) or None,
        _weight(_weight_in(known, where), where),
        _texts(known.get("labels"), f"labels of {where}"),
        cast(tuple[str, ...] | None, covered_by),
        _importance(known.get("importance"), where),
    )


def _weight_in(known: Mapping[str, Any], where: str) -> Any:
    """Return `weight`, or `points` as HealthBench has it. Raises ValueError for two that differ."""
    weights = [known[name] for name in WEIGHTS if known.get(name) is not None]
    if len(weights) == len(WEIGHTS) and weights[0] != weights[1]:
        raise ValueError(f"{where} has a weight and points that differ; keep one of them")
    return weights[0] if weights else None


def _importance(value: Any, where: str) -> str | None:
    """An importance, in whatever case. Raises ValueError for what is none."""
    text = (text_of(finite(value)) or "").strip().lower()
    if text and text not in IMPORTANCES:
        raise ValueError(f"importance of {where} is neither {' nor '.join(IMPORTANCES)}")
    return text or None


def _texts(value: Any, what: str) -> tuple[str | None, ...] | None:
    """What stands in a list, as texts; a single one may stand without its list."""
    if finite(value) is None:
        return None
    several = value if isinstance(value, list) else [value]
    if any(isinstance(one, list | dict) for one in several):
        raise ValueError(f"{what} are no texts")
    return tuple(text_of(finite(one)) for one in several)


def _weight(value: Any, where: str) -> float | None:
    """A weight, which a file of text may have as text. Raises ValueError for what is no finite number."""
    if value is None:
        return None
    try:
        weight = math.nan if isinstance(value, bool | list | dict) else float(value)
    except (ValueError, OverflowError):
        weight = math.nan
    if not math.isfinite(weight):
        raise ValueError(f"weight of {where} is no finite number")
    return weight
