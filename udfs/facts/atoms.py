"""The atoms of a sample, gathered from its passages as the nodes of its fact graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from untold.udfs.facts.nodes import SAMPLE_NODES, Node, normalise, number_nodes
from untold.udfs.llm.keys import canonical_json

# 128 bits, as the keys of requests have.
_KEY_BYTES = 16

SAMPLE_ATOMS = SAMPLE_NODES.append(pa.field("texts", pa.list_(pa.string()))).append(
    pa.field("contexts_key", pa.string())
)


def gather_atoms(
    batches: Iterator[pa.RecordBatch], *, metric: str, unit_types: tuple[str, ...], threshold: float
) -> Iterator[pa.RecordBatch]:
    """The atoms of samples, for `mapInArrow`: one row of `SAMPLE_ATOMS` a sample.

    In: sample_id; passages list<struct<position int32 (null for the response), context_id, units list<struct<text,
    unit_type>>, statements list<string>, ratings list<double>>>, the contexts in order, then the response. `units` are
    what was extracted, `statements` what became of those of `unit_types`, `ratings` null for the response.
    Out: atoms, the nodes of the graph first: the `contexts` with a context source, then the `responses` others, each in
    order of first appearance; after them, with a null node, what was rated below `threshold` or is of another type.
    `texts` are those of the nodes; `contexts_key` hashes the texts of the nodes with a context source.
    """
    for batch in batches:
        rows = [_gather(row["sample_id"], metric, row["passages"], unit_types, threshold) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, schema=SAMPLE_ATOMS)


def _gather(
    sample_id: str, metric: str, passages: Sequence[Mapping[str, Any]], unit_types: tuple[str, ...], threshold: float
) -> dict[str, Any]:
    """The row of `SAMPLE_ATOMS` of one sample."""
    nodes: dict[str, Node] = {}
    for passage in passages:
        _add_statements(nodes, passage, unit_types, threshold)
    # After all statements: a unit that another passage states as one that goes on is that node, and no other.
    others: dict[str, Node] = {}
    for passage in passages:
        _add_other_units(others, nodes, passage, unit_types)
    row, kept = number_nodes(sample_id, metric, nodes.values(), list(others.values()))
    texts = [node.text for node in kept]
    return {**row, "texts": texts, "contexts_key": _hash_texts(texts[: row["contexts"]])}


def _add_statements(
    nodes: dict[str, Node], passage: Mapping[str, Any], unit_types: tuple[str, ...], threshold: float
) -> None:
    """Adds what became of a passage's units; statements of the response have no rating, and all pass."""
    statements = passage["statements"] or []
    units = [unit for unit in passage["units"] or [] if unit["unit_type"] in unit_types]
    types = _types_of(statements, units)
    position, context_id = passage["position"], passage["context_id"]
    ratings = passage["ratings"] if position is not None else [None] * len(statements)
    # Strict: statements and ratings of one passage come from two stages, and a shift would rate the wrong ones.
    for text, unit_type, rating in zip(statements, types, ratings or [], strict=True):
        node = nodes.setdefault(normalise(text), Node(unit_type))
        node.add(text, position, context_id, rating, passes=rating is None or rating >= threshold)


def _types_of(statements: Sequence[str], units: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """The unit type of each revised statement: by its text, by its place if none was split, else null if they vary."""
    by_text = {normalise(unit["text"]): unit["unit_type"] for unit in units}
    kinds = {unit["unit_type"] for unit in units}
    common = kinds.pop() if len(kinds) == 1 else None
    placed = [unit["unit_type"] for unit in units] if len(units) == len(statements) else [common] * len(statements)
    return [by_text.get(normalise(text), kind) for text, kind in zip(statements, placed, strict=True)]


def _add_other_units(
    others: dict[str, Node], nodes: Mapping[str, Node], passage: Mapping[str, Any], unit_types: tuple[str, ...]
) -> None:
    """Adds the units of types that do not go on: they are shown in `atoms`, and never asked about."""
    for unit in passage["units"] or []:
        key = normalise(unit["text"])
        if unit["unit_type"] in unit_types or key in nodes:
            continue
        node = others.setdefault(key, Node(unit["unit_type"], wanted=False))
        node.add(unit["text"], passage["position"], passage["context_id"], None, passes=False)


def _hash_texts(texts: Iterable[str]) -> str:
    """32 hex characters over texts in their order, which is part of the key: pairs are named by places."""
    return blake2b(canonical_json(list(texts)).encode("utf-8"), digest_size=_KEY_BYTES).hexdigest()
