"""The atoms of a sample: texts that are equal after normalisation are one node, with all its sources."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from udfs.llm.keys import canonical_json

METRIC = "nli"
_QUOTES = frozenset({'""', "''", "“”", "‘’", "„“", "‚‘", "«»", "»«", "‹›", "””", "’’", "„”", "``"})
_FULL_STOPS = ".。"
_KEY_BYTES = 16

SOURCE_TYPE = pa.struct([pa.field("position", pa.int32()), pa.field("id", pa.string())])
ATOM_TYPE = pa.struct(
    [
        pa.field("atom_id", pa.string()),
        pa.field("node", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("context", pa.bool_()),
        pa.field("response", pa.bool_()),
        pa.field("frequency", pa.int64()),
        pa.field("origin", pa.string()),
        pa.field("sources", pa.list_(SOURCE_TYPE)),
        pa.field("unit_type", pa.string()),
        pa.field("rating", pa.float64()),
        pa.field("kept", pa.bool_()),
    ]
)
SAMPLE_ATOMS = pa.schema(
    [
        pa.field("sample_id", pa.string()),
        pa.field("atoms", pa.list_(ATOM_TYPE)),
        pa.field("texts", pa.list_(pa.string())),
        pa.field("contexts", pa.int64()),
        pa.field("responses", pa.int64()),
        pa.field("contexts_key", pa.string()),
    ]
)


def normalise(text: str) -> str:
    """What atoms are compared by: NFKC, single spaces, without outer quotes and final full stop, case folded."""
    plain = " ".join(unicodedata.normalize("NFKC", text).split())
    stopped = _without_stop(plain)
    bare = _without_quotes(stopped)
    if bare != stopped and stopped == plain:
        bare = _without_stop(bare)
    return bare.casefold()


def _without_stop(text: str) -> str:
    return text[:-1].rstrip() if text[-1:] in _FULL_STOPS else text


def _without_quotes(text: str) -> str:
    return text[1:-1].strip() if len(text) > 2 and text[0] + text[-1] in _QUOTES else text


@dataclass
class _Node:
    """An atom and where it occurs. A context passes where the atom's own rating there is high enough.

    `wanted`: whether units of its type go on at all.
    """

    unit_type: str | None
    wanted: bool = True
    in_contexts: Counter[str] = field(default_factory=Counter)
    in_response: Counter[str] = field(default_factory=Counter)
    sources: dict[int, str] = field(default_factory=dict)
    passed: dict[int, str] = field(default_factory=dict)
    ratings: list[float] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        return self.wanted and bool(self.passed or self.in_response)

    @cached_property
    def text(self) -> str:
        """Its most frequent form, among the contexts' where there are any, so that no response changes it."""
        return (self.in_contexts or self.in_response).most_common(1)[0][0]

    def to_row(self, atom_id: str, number: int | None) -> dict[str, Any]:
        sources = self.passed if self.kept else self.sources
        context, response = bool(sources), bool(self.in_response)
        return {
            "atom_id": atom_id,
            "node": number,
            "text": self.text,
            "context": context,
            "response": response,
            "frequency": self.in_contexts.total() + self.in_response.total(),
            "origin": "both" if context and response else "response" if response else "context",
            "sources": [{"position": position, "id": source} for position, source in sorted(sources.items())],
            "unit_type": self.unit_type,
            "rating": max(self.ratings, default=None),
            "kept": self.kept,
        }


def gather_atoms(
    batches: Iterator[pa.RecordBatch], unit_types: tuple[str, ...], threshold: float
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
        rows = [_gather(row["sample_id"], row["passages"], unit_types, threshold) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, schema=SAMPLE_ATOMS)


def _gather(
    sample_id: str, passages: Sequence[Mapping[str, Any]], unit_types: tuple[str, ...], threshold: float
) -> dict[str, Any]:
    nodes: dict[str, _Node] = {}
    for passage in passages:
        _add_statements(nodes, passage, unit_types, threshold)
    others: dict[str, _Node] = {}
    for passage in passages:
        _add_other_units(others, nodes, passage, unit_types)
    from_contexts = [node for node in nodes.values() if node.passed]
    from_response = [node for node in nodes.values() if node.kept and not node.passed]
    kept = [*from_contexts, *from_response]
    dropped = [*(node for node in nodes.values() if not node.kept), *others.values()]
    numbered = [*enumerate(kept), *((None, node) for node in dropped)]
    names = (f"{sample_id}:{METRIC}:{place}" for place in range(1, len(numbered) + 1))
    return {
        "sample_id": sample_id,
        "atoms": [node.to_row(name, number) for name, (number, node) in zip(names, numbered, strict=True)],
        "texts": [node.text for node in kept],
        "contexts": len(from_contexts),
        "responses": len(from_response),
        "contexts_key": _hash_texts([node.text for node in from_contexts]),
    }


def _add_statements(
    nodes: dict[str, _Node], passage: Mapping[str, Any], unit_types: tuple[str, ...], threshold: float
) -> None:
    statements = passage["statements"] or []
    units = [unit for unit in passage["units"] or [] if unit["unit_type"] in unit_types]
    types = _types_of(statements, units)
    position, context_id = passage["position"], passage["context_id"]
    ratings = passage["ratings"] if position is not None else [None] * len(statements)
    for text, unit_type, rating in zip(statements, types, ratings or [], strict=True):
        node = nodes.setdefault(normalise(text), _Node(unit_type))
        if position is None:
            node.in_response[text] += 1
            continue
        node.in_contexts[text] += 1
        node.sources[position] = context_id
        node.ratings.append(rating)
        if rating >= threshold:
            node.passed[position] = context_id


def _types_of(statements: Sequence[str], units: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """The unit type of each revised statement: by its text, by its place if none was split, else null if they vary."""
    by_text = {normalise(unit["text"]): unit["unit_type"] for unit in units}
    kinds = {unit["unit_type"] for unit in units}
    common = kinds.pop() if len(kinds) == 1 else None
    placed = [unit["unit_type"] for unit in units] if len(units) == len(statements) else [common] * len(statements)
    return [by_text.get(normalise(text), kind) for text, kind in zip(statements, placed, strict=True)]


def _add_other_units(
    others: dict[str, _Node], nodes: Mapping[str, _Node], passage: Mapping[str, Any], unit_types: tuple[str, ...]
) -> None:
    position = passage["position"]
    for unit in passage["units"] or []:
        key = normalise(unit["text"])
        if unit["unit_type"] in unit_types or key in nodes:
            continue
        node = others.setdefault(key, _Node(unit["unit_type"], wanted=False))
        (node.in_response if position is None else node.in_contexts)[unit["text"]] += 1
        if position is not None:
            node.sources[position] = passage["context_id"]


def _hash_texts(texts: Iterable[str]) -> str:
    return blake2b(canonical_json(list(texts)).encode("utf-8"), digest_size=_KEY_BYTES).hexdigest()
