"""The fact graph of one sample as a networkx DiGraph. Dejl et al. 2025; methods, section 5.

Rows are mappings with the columns of the tables `atoms`, `relations` and `statements`, for one sample and one metric. A
node has the attributes `label`, `text`, `sources` (tuple of context ids), `kind` (`covered`, `uncovered`, `response` or
`context`), `basis` and `response` (the response states the statement itself). An edge has `entailment` (premise to
hypothesis), `contradiction` or both, or `states` (context to statement).
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

ENTAILMENTS = {  # whether the relation is an edge from the first to the second atom, and from the second to the first
    "entailment": (True, False),
    "equivalent": (True, True),
    "first_implies_second": (True, False),
    "second_implies_first": (False, True),
}
CONTRADICTIONS = ("contradiction", "contradictory")
# The measures of the conflicts of a sample, which are pairs of contradicting statements
NUMBER, COVERAGE, ONE_SIDED = CONFLICT_MEASURES = ("conflicts", "conflict_coverage", "one_sided")
DRAWN_RELATIONS = (*ENTAILMENTS, *CONTRADICTIONS)
FORMATS = ("svg", "png")  # of pictures
_FRIENDLY_FORMATS = "\u200c\u200d\u200e\u200f\u00ad\u061c"  # joiners and marks that scripts need


def one_line(text: str) -> str:
    r"""Return the text on one line, without characters that terminals, pictures or XML do not show as text.

    White space is collapsed. Control characters, lone surrogates, noncharacters and signs that change the writing
    direction become U+FFFD.

    >>> one_line("two\n  lines\x07")
    'two lines�'
    """
    return "".join(_visible(character) for character in " ".join(text.split()))


def _visible(character: str) -> str:
    """Return the character, or U+FFFD for an invisible character or a noncharacter."""
    category, point = unicodedata.category(character), ord(character)
    # Format characters reverse or hide parts of a line. Characters that some scripts need are kept
    hidden = category in ("Cc", "Cs", "Zl", "Zp") or (category == "Cf" and character not in _FRIENDLY_FORMATS)
    return "\ufffd" if hidden or point & 0xFFFE == 0xFFFE or 0xFDD0 <= point <= 0xFDEF else character


def order_statements(statements: Iterable[Row]) -> list[Row]:
    """Return the uncovered statements, then the covered ones, each by rank, the basis first, then by statement_id.

    All pictures and lists number statements in this order, so a statement has the same number everywhere.

    >>> rows = [{"statement_id": f"s:qa:{n}", "covered": n == 2, "in_basis": n == 10} for n in (2, 9, 10)]
    >>> [row["statement_id"] for row in order_statements(rows)]
    ['s:qa:10', 's:qa:9', 's:qa:2']
    """
    return sorted(
        statements,
        key=lambda row: (
            bool(row["covered"]),
            row.get("rank") or 0,
            not row.get("in_basis"),
            *_natural(row["statement_id"]),
        ),
    )


def _natural(name: str | None) -> tuple[str, int, str]:
    """Return a sort key with `s:nli:9` before `s:nli:10`. Names with equal numbers are sorted by name."""
    # A user's id may end in thousands of digits, and int() refuses more than 4,300. 18 digits are enough
    head, digits = re.fullmatch(r"(.*?)([0-9]{0,18})", name or "", re.DOTALL).groups()  # type: ignore[union-attr]
    return head, int(digits or 0), name or ""


def raw_graph(atoms: Iterable[Row], relations: Iterable[Row], statements: Iterable[Row]) -> Graph:
    """Return the graph of the atoms, with a node per kept atom, named by its atom_id.

    Atoms of the response have the kind `response`, and the others the kind of their statement. Labels are `n` or `n.k`
    for the k-th atom of the n-th statement of `order_statements`, and `R1`, `R2`, ... for atoms without a statement.
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
    """Return the condensation: a node per statement, by statement_id, and a node per atom without one, by atom_id.

    Labels are the numbers of `order_statements`, and `R1`, `R2`, ... for the atoms. Edges within a statement are
    removed.
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
    """Return a graph of statements and the contexts that state them, for a metric without a fact graph (e2e).

    The name of a statement is its statement_id, and the name of a context (a mapping with `id` and `text`) is
    `("context", id)`. Contexts without statements are left out. The labels `C1`, `C2`, ... follow the order of
    contexts. Texts begin with the context ids, unless these are the same numbers.
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
    """Return a graph of aspects and the claims that cover them (icat), from the tables `statements` and `claims`.

    A claim has the kind `response`, its claim_id as name, and the label `R` with its position. Claims that cover no
    aspect have no edge.
    """
    graph = _empty()
    ordered = order_statements(statements)
    for number, row in enumerate(ordered, 1):
        graph.add_node(row["statement_id"], **_statement(row, number, response=False))
    for row in sorted(claims, key=lambda row: row["position"]):
        sources = tuple(row.get("evidence") or ())
        # Pairs, because the id of an aspect may be the same text
        graph.add_node(("claim", row["claim_id"]), **_node(f"R{row['position']}", row["text"], "response", sources))
    for row in ordered:
        for name in row.get("claims") or ():
            if ("claim", name) in graph:
                graph.add_edge(("claim", name), row["statement_id"], states=True)
    return graph


def _empty() -> Graph:
    """Return a graph without nodes."""
    # Imported here because text-only output works without networkx
    import networkx as nx

    return nx.DiGraph()


def _group(atoms: Iterable[Row], numbered: Mapping[str, tuple[int, Row]]) -> dict[str | None, list[Row]]:
    """Return the kept atoms by statement, in the order of the statements. Atoms without one are last, under None."""
    kept = [atom for atom in atoms if atom.get("kept") is not False]
    last = len(numbered) + 1
    ranked = [(numbered.get(atom.get("statement_id") or "", (last,))[0], atom) for atom in kept]
    groups: dict[str | None, list[Row]] = {}
    for rank, atom in sorted(ranked, key=lambda pair: (pair[0], *_natural(pair[1]["atom_id"]))):
        groups.setdefault(atom["statement_id"] if rank < last else None, []).append(atom)
    return groups


def _kind(statement: Row) -> str:
    """Return `covered` or `uncovered`."""
    return "covered" if statement["covered"] else "uncovered"


def _statement(row: Row, number: int, *, response: bool) -> dict[str, Any]:
    """Return the attributes of a statement's node, labelled by its number. `response`: the response states it."""
    sources = tuple(row.get("sources") or ())
    basis = bool(row.get("in_basis"))
    return _node(str(number), row["text"], _kind(row), sources, basis=basis, response=response)


def _atom(row: Row, label: str, kind: str, *, basis: bool = False) -> dict[str, Any]:
    """Return the attributes of an atom's node. An answer includes its question, which gives it a meaning."""
    question = row.get("question")
    text = row["text"] if question is None else f"Q: {question} A: {row['text']}"
    return _node(label, text, kind, tuple(row.get("sources") or ()), basis=basis, response=row["origin"] == "both")


def _node(
    label: str, text: str, kind: str, sources: tuple[str, ...], *, basis: bool = False, response: bool = False
) -> dict[str, Any]:
    """Return all attributes of a node, so that drawing code needs no defaults."""
    return {
        "label": label,
        "text": text or "",
        "kind": kind,
        "sources": sources,
        "basis": basis,
        "response": response,
    }


def _add_alone(graph: Graph, atoms: Sequence[Row]) -> None:
    """Add atoms without a statement: of the response, or of contexts if the sample could not be scored."""
    for number, atom in enumerate(atoms, 1):
        kind = "context" if atom["origin"] == "context" else "response"
        letter = "A" if kind == "context" else "R"
        graph.add_node(atom["atom_id"], **_atom(atom, f"{letter}{number}", kind))


def _add_relations(graph: Graph, relations: Iterable[Row], place: Mapping[str, Hashable]) -> None:
    """Add an edge per relation between the nodes of its atoms. Neutral and implied relations add none."""
    # Tables have no order. Sorted edges make the bytes of the picture independent of Spark's order
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
