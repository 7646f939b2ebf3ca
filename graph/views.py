"""One sample's fact graph as a networkx DiGraph. Dejl et al. 2025; methods, section 5.

Rows are mappings with the columns of the tables `atoms`, `relations` and `statements`, of one sample and one metric.
A node of a graph here has the attributes `label`, `text`, `sources` (tuple of context ids), `kind` (`covered`,
`uncovered`, `response` or `context`), `basis` and `response` (a statement that the response states itself); an edge has
one or both of `entailment` (premise to hypothesis) and `contradiction`, or `states` (context to statement).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import networkx as nx

Row = Mapping[str, Any]
Graph: TypeAlias = "nx.DiGraph[Hashable]"

ENTAILMENTS = {  # whether it is an edge from the first to the second atom, and back
    "entailment": (True, False),
    "equivalent": (True, True),
    "first_implies_second": (True, False),
    "second_implies_first": (False, True),
}
CONTRADICTIONS = ("contradiction", "contradictory")
DRAWN_RELATIONS = (*ENTAILMENTS, *CONTRADICTIONS)
FORMATS = ("svg", "png")  # of pictures
_FRIENDLY_FORMATS = "\u200c\u200d\u200e\u200f\u00ad\u061c"  # joiners and marks that scripts need


def one_line(text: str) -> str:
    r"""The text on one line, without what a terminal, a picture or XML would not show as text.

    White space is collapsed. Control characters, lone surrogates, noncharacters and what turns the direction of writing
    around become U+FFFD.

    >>> one_line("two\n  lines\x07")
    'two lines�'
    """
    return "".join(_visible(character) for character in " ".join(text.split()))


def _visible(character: str) -> str:
    """The character, or U+FFFD for one that is shown as no text, noncharacters included."""
    category, point = unicodedata.category(character), ord(character)
    # Marks of format turn a line around or hide a part of it; those that some scripts cannot be written without stay.
    hidden = category in ("Cc", "Cs", "Zl", "Zp") or (category == "Cf" and character not in _FRIENDLY_FORMATS)
    return "\ufffd" if hidden or point & 0xFFFE == 0xFFFE or 0xFDD0 <= point <= 0xFDEF else character


def order_statements(statements: Iterable[Row]) -> list[Row]:
    """What is missing first, the basis at its head, then what is covered; each by rank where statements have one, then
    by statement_id, numbers as numbers.

    The order is that of the numbers in every picture and list, so that a statement has one number everywhere.

    >>> rows = [{"statement_id": f"s:qa:{n}", "covered": n == 2, "in_basis": n == 10} for n in (2, 9, 10)]
    >>> [row["statement_id"] for row in order_statements(rows)]
    ['s:qa:10', 's:qa:9', 's:qa:2']
    """
    return sorted(
        statements,
        key=lambda row: (
            bool(row["covered"]),
            not row.get("in_basis"),
            row.get("rank") or 0,
            *_natural(row["statement_id"]),
        ),
    )


def _natural(name: str | None) -> tuple[str, int, str]:
    """A key of order by which `s:nli:9` comes before `s:nli:10`; of names with equal numbers, by the name."""
    # A user's id may end in thousands of digits, of which int() refuses more than 4,300; nobody counts beyond 18.
    head, digits = re.fullmatch(r"(.*?)([0-9]{0,18})", name or "", re.DOTALL).groups()  # type: ignore[union-attr]
    return head, int(digits or 0), name or ""


def raw_graph(atoms: Iterable[Row], relations: Iterable[Row], statements: Iterable[Row]) -> Graph:
    """The graph of the atoms, one node an atom that was kept, named by its atom_id.

    Atoms of the response are of kind `response`, the others of the kind of their statement. Labels are `n` or `n.k` for
    the k-th atom of the n-th statement of `order_statements`, `R1`, `R2`, ... for atoms that are in no statement.
    """
    numbered = {row["statement_id"]: (number, row) for number, row in enumerate(order_statements(statements), 1)}
    graph = _empty()
    alone = []
    for members in _group(atoms, numbered).values():
        if members[0].get("statement_id") not in numbered:
            alone += members
            continue
        number, statement = numbered[members[0]["statement_id"]]
        for place, atom in enumerate(members, 1):
            label = f"{number}.{place}" if len(members) > 1 else str(number)
            kind = "response" if atom["origin"] == "response" else _kind(statement)
            graph.add_node(atom["atom_id"], **_atom(atom, label, kind, basis=bool(statement.get("in_basis"))))
    _add_alone(graph, alone)
    _add_relations(graph, relations, {str(name): name for name in graph})
    return graph


def condensed_graph(atoms: Iterable[Row], relations: Iterable[Row], statements: Iterable[Row]) -> Graph:
    """The condensation: one node a statement, named by its statement_id, and one an atom that is in none, by atom_id.

    Labels are the numbers of `order_statements`, and `R1`, `R2`, ... for the atoms. Edges within a statement are gone.
    """
    graph = _empty()
    ordered = order_statements(statements)
    kept = _group(atoms, {row["statement_id"]: (number, row) for number, row in enumerate(ordered, 1)})
    for number, row in enumerate(ordered, 1):
        stated = any(atom["origin"] != "context" for atom in kept.get(row["statement_id"], ()))
        graph.add_node(row["statement_id"], **_statement(row, number, response=stated))
    place = {atom["atom_id"]: name for name, members in kept.items() for atom in members if name in graph}
    alone = [atom for name, members in kept.items() if name not in graph for atom in members]
    _add_alone(graph, alone)
    _add_relations(graph, relations, place | {atom["atom_id"]: atom["atom_id"] for atom in alone})
    return graph


def sources_graph(statements: Iterable[Row], contexts: Iterable[Row]) -> Graph:
    """Statements and the contexts that state them, for a metric that has no fact graph (e2e).

    A statement is named by its statement_id, a context (a mapping with `id` and `text`) by `("context", id)`; contexts
    that state nothing are left out. `C1`, `C2`, ... are the contexts as they were given; their texts begin with their
    ids, unless these are the same numbers.
    """
    graph = _empty()
    texts = {row["id"]: row["text"] or "" for row in contexts}
    ordered = order_statements(statements)
    named = dict.fromkeys([*texts, *(source for row in ordered for source in row.get("sources") or ())])
    labels = {source: f"C{number}" for number, source in enumerate(named, 1)}
    for number, row in enumerate(ordered, 1):
        node = _statement(row, number, response=False)
        graph.add_node(row["statement_id"], **{**node, "sources": tuple(labels[one] for one in node["sources"])})
    stated = [(source, row["statement_id"]) for row in ordered for source in row.get("sources") or ()]
    for source in (one for one in named if one in dict(stated)):
        before = "" if labels[source] == f"C{source}" else f"{source}: "
        text = f"{before}{texts.get(source, '')}"
        graph.add_node(("context", source), **_node(labels[source], text, "context", (source,)))
    graph.add_edges_from(((("context", source), name) for source, name in stated), states=True)
    return graph


def claims_graph(statements: Iterable[Row], claims: Iterable[Row]) -> Graph:
    """Aspects and the claims that cover them (icat): rows of the tables `statements` and `claims`.

    A claim is of kind `response`, named by its claim_id and labelled `R` and its position; those that cover nothing
    stand alone.
    """
    graph = _empty()
    ordered = order_statements(statements)
    for number, row in enumerate(ordered, 1):
        graph.add_node(row["statement_id"], **_statement(row, number, response=False))
    for row in sorted(claims, key=lambda row: row["position"]):
        sources = tuple(row.get("evidence") or ())
        # Pairs, as an aspect's id may be the same text
        graph.add_node(("claim", row["claim_id"]), **_node(f"R{row['position']}", row["text"], "response", sources))
    for row in ordered:
        for name in row.get("claims") or ():
            if ("claim", name) in graph:
                graph.add_edge(("claim", name), row["statement_id"], states=True)
    return graph


def _empty() -> Graph:
    """A graph without nodes."""
    # Here, as whoever shows texts alone may have no networkx
    import networkx as nx

    return nx.DiGraph()


def _group(atoms: Iterable[Row], numbered: Mapping[str, tuple[int, Row]]) -> dict[str | None, list[Row]]:
    """The kept atoms by statement, in the order of the statements; those in none under None, last."""
    kept = [atom for atom in atoms if atom.get("kept") is not False]
    last = len(numbered) + 1
    ranked = [(numbered.get(atom.get("statement_id") or "", (last,))[0], atom) for atom in kept]
    groups: dict[str | None, list[Row]] = {}
    for rank, atom in sorted(ranked, key=lambda pair: (pair[0], *_natural(pair[1]["atom_id"]))):
        groups.setdefault(atom["statement_id"] if rank < last else None, []).append(atom)
    return groups


def _kind(statement: Row) -> str:
    """Whether a statement is `covered` or `uncovered`."""
    return "covered" if statement["covered"] else "uncovered"


def _statement(row: Row, number: int, *, response: bool) -> dict[str, Any]:
    """The attributes of a statement's node, labelled by its number. `response`: the response states it itself."""
    sources = tuple(row.get("sources") or ())
    basis = bool(row.get("in_basis"))
    return _node(str(number), row["text"], _kind(row), sources, basis=basis, response=response)


def _atom(row: Row, label: str, kind: str, *, basis: bool = False) -> dict[str, Any]:
    """The attributes of an atom's node; an answer is shown with its question, without which it says nothing."""
    question = row.get("question")
    text = row["text"] if question is None else f"Q: {question} A: {row['text']}"
    return _node(label, text, kind, tuple(row.get("sources") or ()), basis=basis, response=row["origin"] == "both")


def _node(
    label: str, text: str, kind: str, sources: tuple[str, ...], *, basis: bool = False, response: bool = False
) -> dict[str, Any]:
    """The attributes of a node, all of them, so that whoever draws it need not ask which there are."""
    return {
        "label": label,
        "text": text or "",
        "kind": kind,
        "sources": sources,
        "basis": basis,
        "response": response,
    }


def _add_alone(graph: Graph, atoms: Sequence[Row]) -> None:
    """Atoms that are in no statement: of the response, or of contexts where the sample could not be scored."""
    for number, atom in enumerate(atoms, 1):
        kind = "context" if atom["origin"] == "context" else "response"
        letter = "A" if kind == "context" else "R"
        graph.add_node(atom["atom_id"], **_atom(atom, f"{letter}{number}", kind))


def _add_relations(graph: Graph, relations: Iterable[Row], place: Mapping[str, Hashable]) -> None:
    """Adds what the relations say between the nodes that hold their atoms; neutral and implied ones add nothing."""
    # Tables have no order: the edges, and with them the bytes of the picture, shall not depend on how Spark wrote them.
    for row in sorted(relations, key=lambda row: (row["premise_id"], row["hypothesis_id"])):
        first, second = place.get(row["premise_id"]), place.get(row["hypothesis_id"])
        if first is None or second is None or first == second:
            continue
        forth, back = ENTAILMENTS.get(row["relation"], (False, False))
        if forth:
            graph.add_edge(first, second, entailment=True)
        if back:
            graph.add_edge(second, first, entailment=True)
        if row["relation"] in CONTRADICTIONS:
            graph.add_edge(first, second, contradiction=True)
