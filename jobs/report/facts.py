"""The fact graph of a sample as numbers: statements in their order, then atoms of none, and what is between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from untold.graph.views import CONTRADICTIONS, ENTAILMENTS, Row

# More nodes and lines are not told apart on any screen
MAX_NODES, MAX_EDGES = 150, 1_000
ENTAILS, CONTRADICTS = 0, 1
Edge = tuple[int, int, int]


def fact_edges(
    statements: Sequence[Row], atoms: Iterable[Row], relations: Iterable[Row]
) -> tuple[list[Row], list[Edge]]:
    """The atoms that are in no statement, and the relations as (from, to, kind).

    Nodes are numbered: statements as given, then those atoms. Relations within a statement, and what is neither
    entailment nor contradiction, give nothing; kind is `ENTAILS` or `CONTRADICTS`, and a contradiction has no
    direction. The graph is the condensation that `untold show` draws.
    """
    numbers = {row["statement_id"]: number for number, row in enumerate(statements)}
    kept = [row for row in atoms if row.get("kept") is not False]
    alone = sorted((row for row in kept if row["statement_id"] not in numbers), key=lambda row: row["atom_id"])
    places = {row["atom_id"]: numbers[row["statement_id"]] for row in kept if row["statement_id"] in numbers}
    places |= {row["atom_id"]: len(numbers) + place for place, row in enumerate(alone)}
    edges: set[Edge] = set()
    for row in relations:
        first, second = places.get(row["premise_id"]), places.get(row["hypothesis_id"])
        if first is not None and second is not None and first != second:
            edges.update(_edges(first, second, row["relation"]))
    return alone, sorted(edges)


def _edges(first: int, second: int, relation: str) -> Iterable[Edge]:
    forth, back = ENTAILMENTS.get(relation, (False, False))
    if forth:
        yield first, second, ENTAILS
    if back:
        yield second, first, ENTAILS
    if relation in CONTRADICTIONS:
        yield min(first, second), max(first, second), CONTRADICTS
