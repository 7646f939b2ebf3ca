"""The nodes of a sample's fact graph: texts that are equal after normalisation are one node, with all its sources.

They are gathered from the atoms of the sample's passages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from untold.udfs.llm.keys import canonical_json
from untold.udfs.texts import compatible

# Pairs as languages set them: English, German (both ways around), French, Swedish, and the backticks of code.
_QUOTES = frozenset({'""', "''", "“”", "‘’", "„“", "‚‘", "«»", "»«", "‹›", "””", "’’", "„”", "``"})
_FULL_STOPS = ".。।۔"

ANSWER_FORM = "Q: %s A: %s"
"""How statements show an answer together with its question."""

SOURCE_TYPE = pa.struct([pa.field("position", pa.int32()), pa.field("id", pa.string())])
NODE_TYPE = pa.struct(
    [
        pa.field("atom_id", pa.string()),
        pa.field("node", pa.int64()),
        pa.field("question", pa.string()),
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
SAMPLE_NODES = pa.schema(
    [
        pa.field("sample_id", pa.string()),
        pa.field("atoms", pa.list_(NODE_TYPE)),
        pa.field("contexts", pa.int64()),
        pa.field("responses", pa.int64()),
    ]
)


def normalise(text: str) -> str:
    """What texts are compared by: NFKC, single spaces, without outer quotes and final full stop, case folded.

    Two texts that differ in no more are one node, without a model being asked.

    >>> normalise(" “The  Seine.” "), normalise("THE SEINE")
    ('the seine', 'the seine')
    """
    plain = " ".join(compatible(text).split())
    stopped = _without_stop(plain)
    bare = _without_quotes(stopped)
    # A full stop goes once, outside of the quotes or within.
    if bare != stopped and stopped == plain:
        bare = _without_stop(bare)
    # Last, as it may lengthen a text: "ß" becomes "ss".
    return bare.casefold()


def _without_stop(text: str) -> str:
    """The text without one full stop, of any script, at its end."""
    return text[:-1].rstrip() if text[-1:] in _FULL_STOPS else text


def _without_quotes(text: str) -> str:
    """The text without one pair of quotes around it."""
    return text[1:-1].strip() if len(text) > 2 and text[0] + text[-1] in _QUOTES else text


@dataclass
class Node:
    """An atom, or an answer to a question, and where it occurs.

    It passes from a context, or from the response, where its own rating there is high enough. `wanted`: whether what
    is of its unit type goes on at all.
    """

    unit_type: str | None = None
    question: str | None = None
    wanted: bool = True
    in_contexts: Counter[str] = field(default_factory=Counter)
    in_response: Counter[str] = field(default_factory=Counter)
    sources: dict[int, str] = field(default_factory=dict)
    passed: dict[int, str] = field(default_factory=dict)
    response_passed: bool = False
    ratings: list[float] = field(default_factory=list)

    def add(
        self, text: str, position: int | None, context_id: str | None, rating: float | None, *, passes: bool
    ) -> None:
        """Adds an occurrence: in the context at that position, or in the response, which has none."""
        self.ratings += [] if rating is None else [rating]
        if position is None:
            self.in_response[text] += 1
            self.response_passed |= passes
            return
        self.in_contexts[text] += 1
        self.sources[position] = context_id or ""
        if passes:
            self.passed[position] = context_id or ""

    @property
    def kept(self) -> bool:
        """Whether it is in the graph."""
        return self.wanted and bool(self.passed or self.response_passed)

    @cached_property
    def text(self) -> str:
        """Its most frequent form, among the contexts' where there are any, so that no response changes it."""
        return (self.in_contexts or self.in_response).most_common(1)[0][0]

    def to_row(self, atom_id: str, number: int | None) -> dict[str, Any]:
        """A value of `NODE_TYPE`."""
        # Where it is in the graph, only by where it passed; what did not pass is shown with all its places.
        sources = self.passed if self.kept else self.sources
        context, response = bool(sources), self.response_passed if self.kept else bool(self.in_response)
        return {
            "atom_id": atom_id,
            "node": number,
            "question": self.question,
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


def number_nodes(
    sample_id: str, metric: str, found: Iterable[Node], others: Sequence[Node] = ()
) -> tuple[dict[str, Any], list[Node]]:
    """The row of `SAMPLE_NODES` of a sample, and the nodes of its graph in their order.

    These come first among `atoms`: the `contexts` with a context source, then the `responses` others, each in order of
    first appearance; after them, with a null node, what did not pass, and `others`.
    """
    nodes = list(found)
    from_contexts = [node for node in nodes if node.kept and node.passed]
    from_response = [node for node in nodes if node.kept and not node.passed]
    kept = [*from_contexts, *from_response]
    dropped = [*(node for node in nodes if not node.kept), *others]
    numbered = [*enumerate(kept), *((None, node) for node in dropped)]
    rows = [
        node.to_row(f"{sample_id}:{metric}:{place}", number) for place, (number, node) in enumerate(numbered, start=1)
    ]
    row = {"sample_id": sample_id, "atoms": rows, "contexts": len(from_contexts), "responses": len(from_response)}
    return row, kept


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
