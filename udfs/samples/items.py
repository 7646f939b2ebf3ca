"""Read the aspects, references, ground truth and rubric of a sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from untold.udfs.samples.values import finite, first_of, id_of, load_json, object_of, text_of

# The fields of aspects and references. Weights and other explanations do not apply to aspects
ASPECT_FIELDS = ("id", "text", "labels")
REFERENCE_FIELDS = ("id", "text", "anchor", "weight", "labels", "covered_by", "importance")
IMPORTANCES = ("vital", "okay")
# Other names for the text of an item. An item with more than one of these names is refused
TEXT_NAMES = ("page_content", "pageContent", "content", "contents", "passage", "segment", "body", "chunk")
SHOWN_FIELDS = 5
WEIGHTS = ("weight", "points")

Item = dict[str, Any]
"""An aspect or a reference as a row of `REFERENCE_FIELDS`.

`anchor` is the name or short phrase of its subject. `weight` is its importance, below 0 if it is unwanted. `labels` are
the labels of the annotators (None: no label). `covered_by` are the texts of the facts that cover it. `importance` is
one of `IMPORTANCES`. Missing fields are None. The id is None if one text contains all references and is not cut yet.
"""


def normalise_aspects(value: Any) -> list[dict[str, Any]] | None:
    """Return aspects as [{id, text, labels}], None for null. Raises ValueError with the problem, without the text.

    >>> normalise_aspects(["cost", {"id": 7, "text": "safety", "labels": [True, "no"]}])
    [{'id': '1', 'text': 'cost', 'labels': None}, {'id': '7', 'text': 'safety', 'labels': ['true', 'no']}]
    """
    if finite(value) is None:
        return None
    return [{name: one[name] for name in ASPECT_FIELDS} for one in read_items(value, "aspect")]


def normalise_references(value: Any) -> list[Item] | None:
    """Return references as rows of `REFERENCE_FIELDS`, None for null. A single text is one row without an id.

    Raises ValueError with the problem, without the text.

    >>> [(one["id"], one["weight"]) for one in normalise_references(["one", {"text": "two", "weight": 0.5}])]
    [('1', None), ('2', 0.5)]
    >>> [(one["id"], one["text"]) for one in normalise_references("One. Two.")]
    [(None, 'One. Two.')]
    """
    if finite(value) is None:
        return None
    if isinstance(value, str):
        return [{**dict.fromkeys(REFERENCE_FIELDS), "text": value}]
    return read_items(value, "reference")


def items_of_json(text: str | None) -> list[Item]:
    """Return the items of JSON text. An item without an id gets its position. Null is an empty list.

    Raises ValueError with the problem, without the text.

    >>> items_of_json('["one", {"id": "b", "text": "two", "labels": "yes"}]')[1]["labels"]
    ['yes']
    """
    if text is None:
        return []
    try:
        value = load_json(text)
    except (ValueError, RecursionError):
        raise ValueError("items is not a JSON list") from None
    return [] if value is None else read_items(value, "item")


def read_items(value: Any, one: str) -> list[Item]:
    """Return the items of a list of texts or objects. `one` is the name of an item in messages.

    A missing, null or empty id becomes the 1-based position. Labels of any type become text, and a single label need
    not be in a list. Raises ValueError with the problem, without the text.

    >>> read_items([{"text": "two", "labels": [True, None]}], "reference")[0]["labels"]
    ['true', None]
    """
    return [_item(name, text, item, f"{one} {place}") for place, name, text, item in named_texts(value, one)]


def named_texts(value: Any, one: str, many: str | None = None) -> list[tuple[int, str, str, Any]]:
    """Return for each item of a list its 1-based position, its id, its text, and the item.

    Raises ValueError with the problem, without the text. `one` is the name of an item in messages, and `many` its
    plural.
    """
    many = many or f"{one}s"
    if not isinstance(value, list):
        raise ValueError(f"{many} is not a list")
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
        # Sources and verdicts refer to items by id, so duplicates would be ambiguous
        if identifier in seen:
            raise ValueError(f"{many} {seen[identifier]} and {position} have one id")
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


def text_field(value: Any, what: str) -> str | None:
    """Return a field as text, None for null and an empty text. Raises ValueError for a list or an object."""
    if isinstance(value, list | dict):
        raise ValueError(f"{what} is not a text")
    return text_of(value) or None


def _item(name: str, text: str, item: Any, where: str) -> Item:
    known = object_of(item)
    anchor = text_field(known.get("anchor"), f"anchor of {where}")
    covered_by = _texts(known.get("covered_by"), f"covered_by of {where}")
    if covered_by is not None and None in covered_by:
        raise ValueError(f"covered_by of {where} has a null")
    return {
        "id": name,
        "text": text,
        "anchor": anchor,
        "weight": _weight_in(known, where),
        "labels": _texts(known.get("labels"), f"labels of {where}"),
        "covered_by": covered_by,
        "importance": _importance(known.get("importance"), where),
    }


def _weight_in(known: Mapping[str, Any], where: str) -> float | None:
    """Return `weight`, or `points` as in HealthBench. Raises ValueError if they differ."""
    weights = [known[name] for name in WEIGHTS if known.get(name) is not None]
    if len(weights) == len(WEIGHTS) and weights[0] != weights[1]:
        raise ValueError(f"{where} has a weight and points that differ; keep one of them")
    return _weight(weights[0], where) if weights else None


def _importance(value: Any, where: str) -> str | None:
    """Return an importance, in any case. Raises ValueError for another value."""
    text = (text_of(finite(value)) or "").strip().lower()
    if text and text not in IMPORTANCES:
        raise ValueError(f"importance of {where} is neither {' nor '.join(IMPORTANCES)}")
    return text or None


def _texts(value: Any, what: str) -> list[str | None] | None:
    """Return the values of a list as texts. A single value need not be in a list."""
    if finite(value) is None:
        return None
    several = value if isinstance(value, list) else [value]
    if any(isinstance(one, list | dict) for one in several):
        raise ValueError(f"{what} are not texts")
    return [text_of(finite(one)) for one in several]


def _weight(value: Any, where: str) -> float | None:
    """Return a weight, which may be text in a text file. Raises ValueError unless it is a finite number."""
    if value is None:
        return None
    try:
        weight = math.nan if isinstance(value, bool | list | dict) else float(value)
    except (ValueError, OverflowError):
        weight = math.nan
    if not math.isfinite(weight):
        raise ValueError(f"weight of {where} is not a finite number")
    return weight


# Larger points leave no digits for the others in a sum
MOST_POINTS = 1e12
MOST_LEVELS = 20
LEVEL_LABELS, LEVEL_TEXTS = ("label", "grade", "name"), ("text", "description")


def normalise_rubric(value: Any) -> list[dict[str, Any]] | None:
    """Return criteria as rows of id, text, points, dimension, tags, levels and labels of people, None for null.

    The text may be named `criterion`, points `weight`, and the dimension `axis`. Without any points each criterion has
    1. Levels are {label, text, share}. Without shares they are in ascending order, from 0 to 1. Raises ValueError with
    the problem, without the text.

    >>> normalise_rubric(["Names a dose", {"criterion": "Rambles"}])[1]["points"]
    1.0
    >>> normalise_rubric([{"text": "Is clear", "points": 5, "levels": ["poor", "fair", "good"]}])[0]["levels"][1]
    {'label': 'fair', 'text': None, 'share': 0.5}
    """
    if finite(value) is None:
        return None
    if not isinstance(value, list):
        raise ValueError("rubric is not a list of criteria")
    renamed = [
        {**one, "text": one.get("text", one.get("criterion"))} if isinstance(one, dict) else one for one in value
    ]
    rows = [_criterion(*one) for one in named_texts(renamed, "criterion", "criteria")]
    without = [place for place, row in enumerate(rows, start=1) if row["points"] is None]
    if 0 < len(without) < len(rows):
        raise ValueError(f"criterion {without[0]} has no points, but others have; give it points")
    return [{**row, "points": 1.0} for row in rows] if without else rows


def _criterion(place: int, name: str, text: str, item: Any) -> dict[str, Any]:
    known = object_of(item)
    where = f"criterion {place}"
    if not text.strip():
        raise ValueError(f"{where} has no text")
    points = _weight_in(known, where)
    if points is not None and abs(points) > MOST_POINTS:
        raise ValueError(f"points of {where} are not a number from -{MOST_POINTS:g} to {MOST_POINTS:g}")
    return {
        "id": name,
        "text": text,
        "points": points,
        "dimension": text_field(known.get("dimension", known.get("axis")), f"dimension of {where}"),
        "tags": [one for one in _texts(known.get("tags"), f"tags of {where}") or () if one is not None],
        "levels": _levels(known.get("levels"), where),
        "labels": [one for one in _texts(known.get("labels"), f"labels of {where}") or () if one is not None],
    }


def _levels(value: Any, where: str) -> list[dict[str, Any]]:
    """Return the grade levels of a criterion, [] without any. Raises ValueError for ambiguous levels."""
    if finite(value) in (None, []):
        return []
    if not isinstance(value, list) or not 2 <= len(value) <= MOST_LEVELS:
        raise ValueError(f"levels of {where} are not a list of 2 to {MOST_LEVELS}")
    levels = [_level(one, f"level {place} of {where}") for place, one in enumerate(value, start=1)]
    if len({level["label"] for level in levels}) < len(levels):
        raise ValueError(f"two levels of {where} have one label")
    if any((level["share"] is None) != (levels[0]["share"] is None) for level in levels):
        raise ValueError(f"some levels of {where} have no share; give all levels a share, or none")
    steps = len(levels) - 1
    shares = [place / steps if level["share"] is None else level["share"] for place, level in enumerate(levels)]
    return [{**level, "share": share} for level, share in zip(levels, shares, strict=True)]


def _level(value: Any, where: str) -> dict[str, Any]:
    known = value if isinstance(value, dict) else {"label": value}
    label, text = first_of(known, LEVEL_LABELS), first_of(known, LEVEL_TEXTS)
    label, text = (text, None) if label is None else (label, text)
    if label is None or isinstance(label, list | dict) or isinstance(text, list | dict) or not text_of(label):
        raise ValueError(f"{where} has no label")
    share = _weight(known.get("share"), where)
    if share is not None and not 0 <= share <= 1:
        raise ValueError(f"share of {where} is not from 0 to 1")
    return {"label": text_of(label), "text": text_of(text), "share": share}


RESPONSE, TRUTH = SIDES = ("response", "ground_truth")
# The fields of `claim_checks` by side: claims, their relations to the other side's text, and to each context
FIELDS = {
    RESPONSE: ("response_claims", "answer2response", "retrieved2response"),
    TRUTH: ("gt_answer_claims", "response2answer", "retrieved2answer"),
}
LABELS = ("entailment", "neutral", "contradiction")
# The label of a checker without a judgement. The claim does not count as entailed
ABSTAIN = "abstain"
Checks = Mapping[str, Any] | None
Relations = Sequence[str | None]


def normalise_ground_truth(value: Any) -> dict[str, Any] | None:
    """Return a ground truth as {text, claims}, None for null. If there are only claims, the text is their lines.

    Raises ValueError with the problem, without the text.

    >>> normalise_ground_truth("Bees make honey.")
    {'text': 'Bees make honey.', 'claims': None}
    >>> normalise_ground_truth(["Bees make honey.", "Ice floats."])["text"]
    'Bees make honey.\\nIce floats.'
    """
    if finite(value) is None:
        return None
    fields = value if isinstance(value, dict) else {"claims" if isinstance(value, list) else "text": value}
    claims = _claims(fields.get("claims"), "claims of ground_truth")
    text = finite(fields.get("text"))
    if isinstance(text, list | dict) or (text is None and claims is None):
        raise ValueError("ground_truth is neither text nor a list of claims")
    return {"text": "\n".join(claims or ()) if text is None else text_of(text), "claims": claims}


def normalise_checks(value: Any) -> dict[str, Any] | None:
    """Return the fields of RAGChecker's results by name, null if missing, with labels in lower case.

    Claims in parts, such as its triplets, become one text. Raises ValueError with the problem, without a text.
    """
    if finite(value) is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("claim_checks is not an object")
    found: dict[str, Any] = {}
    for claims, whole, retrieved in FIELDS.values():
        found[claims] = _claims(value.get(claims), claims)
        found[whole] = _labels(value.get(whole), whole)
        rows = value.get(retrieved)
        if rows is not None and not isinstance(rows, list):
            raise ValueError(f"{retrieved} is not a list")
        found[retrieved] = None if rows is None else [_labels(row, retrieved) or [] for row in rows]
        for name in (whole, retrieved):
            count, wanted = len(found[name] or ()), len(found[claims] or ())
            if found[name] is not None and count != wanted:
                raise ValueError(f"{name} has the length {count:,}, but {claims} has {wanted:,}")
        if found[claims] is None:
            # Without claims, the relations do not apply to the claims that will be extracted
            found[whole] = found[retrieved] = None
    return found


def check_contexts(checks: Checks, contexts: Sequence[Any]) -> str | None:
    """Return the problem if a claim has another number of relations to contexts than there are contexts, or None."""
    for name in ("retrieved2response", "retrieved2answer"):
        for row in (checks or {}).get(name) or ():
            if len(row) != len(contexts):
                return f"a row of {name} has the length {len(row):,}, but contexts has {len(contexts):,}"
    return None


def given_claims(checks: Checks, truth: Mapping[str, Any] | None, side: str) -> list[str] | None:
    """Return the claims of a side in a sample, or None if they must be extracted."""
    claims: list[str] | None = (checks or {}).get(FIELDS[side][0])
    return (truth or {}).get("claims") if claims is None and side == TRUTH else claims


def given_relations(checks: Checks, side: str) -> tuple[Relations | None, Sequence[Relations] | None]:
    """Return the given relations of a side's claims: to the other text, and to the contexts."""
    _, whole, retrieved = FIELDS[side]
    return (checks or {}).get(whole), (checks or {}).get(retrieved)


def _claims(value: Any, what: str) -> list[str] | None:
    if finite(value) is None:
        return None
    if not isinstance(value, list):
        raise ValueError(f"{what} is not a list")
    texts = [" ".join(map(str, one)) if isinstance(one, list) else text_of(one) for one in value]
    if any(text is None for text in texts) or any(isinstance(one, dict) for one in value):
        raise ValueError(f"{what} has an item that is not a text")
    return [text for text in texts if text is not None]


def _labels(value: Any, what: str) -> list[str | None] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError(f"{what} is not a list")
    labels = [None if finite(one) is None else str(one).lower() for one in value]
    if any(label not in (*LABELS, ABSTAIN, None) for label in labels):
        raise ValueError(f"{what} has a relation that is none of {', '.join(LABELS)}")
    return ["neutral" if label == ABSTAIN else label for label in labels]
