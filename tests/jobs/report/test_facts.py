from __future__ import annotations

from typing import Any

from untold.graph.views import condensed_graph
from untold.jobs.report.answers import CONTRADICTS, ENTAILS, fact_edges

STATEMENTS = [{"statement_id": name, "text": name, "covered": False} for name in ("s1", "s2")]


def atom(name: str, statement: str | None, origin: str = "context", **others: Any) -> dict[str, Any]:
    return {"atom_id": name, "statement_id": statement, "origin": origin, "text": name, **others}


ATOMS = [atom("a", "s1"), atom("b", "s1"), atom("c", "s2"), atom("r", None, "response"), atom("x", None, kept=False)]
RELATIONS = [
    {"premise_id": "a", "hypothesis_id": "b", "relation": "entailment"},
    {"premise_id": "b", "hypothesis_id": "c", "relation": "first_implies_second"},
    {"premise_id": "c", "hypothesis_id": "a", "relation": "contradiction"},
    {"premise_id": "r", "hypothesis_id": "c", "relation": "equivalent"},
    {"premise_id": "a", "hypothesis_id": "x", "relation": "entailment"},
    {"premise_id": "r", "hypothesis_id": "a", "relation": "neutral"},
]


def test_relations_are_between_statements_and_atoms_of_none() -> None:
    alone, edges = fact_edges(STATEMENTS, ATOMS, RELATIONS)
    assert [row["atom_id"] for row in alone] == ["r"]
    assert edges == [(0, 1, ENTAILS), (0, 1, CONTRADICTS), (1, 2, ENTAILS), (2, 1, ENTAILS)]


def test_the_graph_equals_the_graph_of_show() -> None:
    alone, edges = fact_edges(STATEMENTS, ATOMS, RELATIONS)
    names = [*(row["statement_id"] for row in STATEMENTS), *(row["atom_id"] for row in alone)]
    drawn = condensed_graph(ATOMS, RELATIONS, STATEMENTS)
    assert set(drawn) == set(names)
    for kind, name in ((ENTAILS, "entailment"), (CONTRADICTS, "contradiction")):
        ours = {frozenset((names[a], names[b])) if kind else (names[a], names[b]) for a, b, own in edges if own == kind}
        theirs = {frozenset((a, b)) if kind else (a, b) for a, b, found in drawn.edges(data=True) if found.get(name)}
        assert ours == theirs
