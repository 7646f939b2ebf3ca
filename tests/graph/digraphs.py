"""Digraphs for tests: strategies, families of graphs, and the expected results from networkx."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import networkx as nx
import pyarrow as pa
from hypothesis import strategies as st

Name = int | str
Quotient = Any


class Node(NamedTuple):
    node: Name
    context: bool
    response: bool
    frequency: int = 1


class Edge(NamedTuple):
    source: Name
    target: Name
    judged: bool = True


class Membership(NamedTuple):
    node: Name
    statement: Name | None
    representative: bool
    covered: bool
    in_basis: bool


class Counts(NamedTuple):
    covered: int
    uncovered: int
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Digraph:
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


class Expected(NamedTuple):
    classes: tuple[Membership, ...]
    counts: Counts


@dataclass(frozen=True)
class _Condensed:
    """The components of one graph: the component of each node, the quotient, and the kinds of the components."""

    component: Mapping[Name, int]
    quotient: Quotient
    statements: frozenset[int]
    covered: frozenset[int]


def oracle(nodes: Sequence[Node], edges: Sequence[Edge]) -> Expected:
    """Return the classes in node order and the counts of a graph, by networkx (methods, section 5)."""
    lower = _condense(nodes, [edge for edge in edges if edge.judged])
    upper = _condense(nodes, edges)
    basis = _basis(lower)
    representatives = _representatives(nodes, lower)
    smallest: dict[int, Name] = {}
    for node in sorted(nodes):
        smallest.setdefault(lower.component[node.node], node.node)
    classes = []
    for name in sorted(node.node for node in nodes):
        number = lower.component[name]
        if number not in lower.statements:
            classes.append(Membership(name, None, False, False, False))
            continue
        chosen = representatives[number] == name
        classes.append(Membership(name, smallest[number], chosen, number in lower.covered, number in basis))
    covered = len(lower.statements & lower.covered)
    uncovered = len(lower.statements - lower.covered)
    return Expected(tuple(classes), Counts(covered, uncovered, *_bounds(nodes, lower, upper)))


def _condense(nodes: Sequence[Node], edges: Sequence[Edge]) -> _Condensed:
    graph: Any = nx.DiGraph()
    graph.add_nodes_from(node.node for node in nodes)
    graph.add_edges_from((edge.source, edge.target) for edge in edges)
    quotient = nx.condensation(graph)
    component = quotient.graph["mapping"]
    reached = {component[node.node] for node in nodes if node.response}
    for number in nx.topological_sort(quotient):
        if any(previous in reached for previous in quotient.predecessors(number)):
            reached.add(number)
    statements = frozenset(component[node.node] for node in nodes if node.context)
    return _Condensed(component, quotient, statements, frozenset(reached))


def _basis(graph: _Condensed) -> set[int]:
    """Return the uncovered statements that cannot be reached from another uncovered statement."""
    uncovered = graph.statements - graph.covered
    missing: set[int] = set()
    for number in nx.topological_sort(graph.quotient):
        if any(previous in uncovered or previous in missing for previous in graph.quotient.predecessors(number)):
            missing.add(number)
    return set(uncovered - missing)


def _representatives(nodes: Sequence[Node], graph: _Condensed) -> dict[int, Name]:
    chosen: dict[int, Name] = {}
    for node in sorted(nodes, key=lambda node: (-node.frequency, node.node)):
        if node.context:
            chosen.setdefault(graph.component[node.node], node.node)
    return chosen


def _bounds(nodes: Sequence[Node], lower: _Condensed, upper: _Condensed) -> tuple[float | None, float | None]:
    contexts = [(lower.component[node.node], upper.component[node.node]) for node in nodes if node.context]
    if not contexts:
        return None, None
    a = len({above for below, above in contexts if below in lower.covered})
    b = len({below for below, above in contexts if above in upper.covered})
    c = len({above for _, above in contexts if above not in upper.covered})
    d = len({below for below, _ in contexts if below not in lower.covered})
    return a / (a + d), b / (b + c)


# Families


def chain_of_two_cycles(length: int, *, response: int | None = None) -> Digraph:
    """Return a row of 2-cycles with an edge from each to the next.

    GraphFrames returns wrong components if it stops early.
    """
    nodes = tuple(Node(n, n != response, n == response) for n in range(2 * length))
    pairs = [pair for n in range(0, 2 * length, 2) for pair in ((n, n + 1), (n + 1, n), (n + 1, n + 2))]
    return Digraph(nodes, tuple(Edge(*pair) for pair in pairs[:-1]))


def path(length: int, *, response: int | None = None) -> Digraph:
    nodes = tuple(Node(n, n != response, n == response) for n in range(length))
    return Digraph(nodes, tuple(Edge(n, n + 1) for n in range(length - 1)))


def cycle(length: int, *, response: int | None = None) -> Digraph:
    nodes = tuple(Node(n, n != response, n == response) for n in range(length))
    return Digraph(nodes, tuple(Edge(n, (n + 1) % length) for n in range(length)))


def chain_of_cycles(sizes: Sequence[int], *, response: int | None = None) -> Digraph:
    """Return a row of cycles with the given sizes. An edge leads from each cycle to the next."""
    total = sum(sizes)
    nodes = tuple(Node(n, n != response, n == response) for n in range(total))
    edges, start = [], 0
    for size in sizes:
        edges += [Edge(start + n, start + (n + 1) % size) for n in range(size)]
        edges.append(Edge(start + size - 1, start + size))
        start += size
    return Digraph(nodes, tuple(edges[:-1]))


def nested_cycles(depth: int) -> Digraph:
    """Return one component that contracts step by step: a contracted 2-cycle creates the next 2-cycle."""
    edges = [Edge(0, 1), Edge(1, 0)]
    for n in range(2, depth + 2):
        edges += [Edge(n - 1, n), Edge(n, 0)]
    return Digraph(tuple(Node(n, True, n == 0) for n in range(depth + 2)), tuple(edges))


def petals(number: int, length: int) -> Digraph:
    """Return cycles that share node 0. They are one component, and no edge has a reversed twin."""
    size = 1 + number * (length - 1)
    edges: list[Edge] = []
    for start in range(1, size, length - 1):
        around = [0, *range(start, start + length - 1), 0]
        edges += [Edge(*pair) for pair in pairwise(around)]
    return Digraph(tuple(Node(n, True, False) for n in range(size)), tuple(edges))


def random_digraph(seed: int, *, nodes: int, edges: int, unjudged: int = 0) -> Digraph:
    """Return a seeded graph with origins of all kinds, frequencies from 1 to 3, self-loops and repeated edges."""
    chance = random.Random(seed)
    members = tuple(Node(n, chance.random() < 0.7, chance.random() < 0.15, chance.randint(1, 3)) for n in range(nodes))
    pairs = [
        Edge(chance.randrange(nodes), chance.randrange(nodes), judged=number < edges)
        for number in range(edges + unjudged)
    ]
    chance.shuffle(pairs)
    return Digraph(members, tuple(pairs))


SELF_LOOPS = Digraph(
    (Node(0, True, False), Node(1, False, True), Node(2, True, False)), (Edge(0, 0), Edge(1, 1), Edge(1, 2), Edge(2, 2))
)
DUPLICATES = Digraph(
    (Node(0, True, False, 1), Node(1, True, False, 2), Node(2, True, True, 1)),
    (Edge(0, 1), Edge(0, 1), Edge(1, 0), Edge(1, 0), Edge(0, 2), Edge(0, 2), Edge(0, 2, False)),
)
ISOLATED = Digraph((Node(0, True, False), Node(1, False, True), Node(2, True, True), Node(3, False, False)), ())
ALL_RESPONSE = Digraph(tuple(Node(n, False, True) for n in range(3)), (Edge(0, 1), Edge(1, 0), Edge(1, 2)))
ALL_CONTEXT = Digraph(tuple(Node(n, True, False) for n in range(4)), (Edge(0, 1), Edge(1, 0), Edge(1, 2), Edge(3, 2)))
THROUGH_BOOKKEEPING = Digraph(
    (Node(0, True, False), Node(1, False, False), Node(2, False, False), Node(3, True, False), Node(4, False, False)),
    (Edge(0, 1), Edge(1, 2), Edge(2, 3), Edge(4, 0)),
)
UNJUDGED = Digraph(
    (Node(0, False, True), Node(1, True, False), Node(2, True, False), Node(3, True, False)),
    (Edge(1, 2), Edge(0, 1, False), Edge(2, 1, False), Edge(2, 3, False)),
)

FAMILIES: dict[str, Digraph] = {
    "chain of one 2-cycle": chain_of_two_cycles(1),
    "chain of twenty 2-cycles": chain_of_two_cycles(20, response=20),
    "chain of cycles": chain_of_cycles([3, 1, 5, 2, 9], response=4),
    "nested cycles": nested_cycles(12),
    "path": path(30, response=20),
    "path without response": path(12),
    "cycle": cycle(30, response=7),
    "cycle without response": cycle(11),
    "self-loops": SELF_LOOPS,
    "duplicates": DUPLICATES,
    "isolated": ISOLATED,
    "all response": ALL_RESPONSE,
    "all context": ALL_CONTEXT,
    "through bookkeeping nodes": THROUGH_BOOKKEEPING,
    "unjudged": UNJUDGED,
    "one node": Digraph((Node(0, True, False),), ()),
    **{f"random {seed}": random_digraph(seed, nodes=25, edges=40, unjudged=seed * 5) for seed in range(4)},
}


def as_strings(graph: Digraph) -> Digraph:
    """Return the same graph with string names in the same order. Some of the names are not ASCII."""
    names = {node.node: f"{chr(0xE9)}{int(node.node):06}" for node in graph.nodes}
    return Digraph(
        tuple(node._replace(node=names[node.node]) for node in graph.nodes),
        tuple(Edge(names[edge.source], names[edge.target], edge.judged) for edge in graph.edges),
    )


# Strategies


@st.composite
def digraphs(draw: st.DrawFn, *, max_nodes: int = 8, unjudged: bool = True) -> Digraph:
    """Draw a graph with at least one node and any origins.

    Its edges include self-loops, repetitions and unjudged pairs.
    """
    size = draw(st.integers(1, max_nodes))
    nodes = draw(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 3)), min_size=size, max_size=size))
    member = st.integers(0, size - 1)
    judged = st.booleans() if unjudged else st.just(True)
    edges = draw(st.lists(st.builds(Edge, member, member, judged), max_size=3 * size))
    return Digraph(tuple(Node(number, *node) for number, node in enumerate(nodes)), tuple(edges))


def named_digraphs(*, max_graphs: int = 20, max_nodes: int = 8) -> st.SearchStrategy[dict[str, Digraph]]:
    """Draw many named graphs, so that one Spark job or Arrow batch tests them all."""
    graphs = st.lists(digraphs(max_nodes=max_nodes), min_size=1, max_size=max_graphs)
    return graphs.map(lambda found: {f"graph {number}": graph for number, graph in enumerate(found)})


# The rows and batches of the graph layer


def node_rows(graphs: Mapping[str, Digraph]) -> list[tuple[Any, ...]]:
    """Return the rows of `nodes`: graph, node, context, response, frequency."""
    return [(name, *node) for name, graph in graphs.items() for node in graph.nodes]


def edge_rows(graphs: Mapping[str, Digraph]) -> list[tuple[Any, ...]]:
    """Return the rows of `edges`: graph, source, target, judged."""
    return [(name, *edge) for name, graph in graphs.items() for edge in graph.edges]


def expected_rows(graphs: Mapping[str, Digraph]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the sorted rows of the classes and of the counts, as computed by the oracle."""
    found = {name: oracle(graph.nodes, graph.edges) for name, graph in graphs.items()}
    classes = [(name, *row) for name, expected in found.items() for row in expected.classes]
    return sorted(classes, key=lambda row: row[:2]), sorted(
        (name, *expected.counts) for name, expected in found.items()
    )


def to_batch(graphs: Mapping[str, Digraph], node_type: pa.DataType | None = None) -> pa.RecordBatch:
    """Return the input of `condense_batches`: one row per graph, with sorted nodes."""
    kind = node_type or pa.int64()
    member = pa.struct([("node", kind), ("context", pa.bool_()), ("response", pa.bool_()), ("frequency", pa.int64())])
    edge = pa.struct([("source", kind), ("target", kind), ("judged", pa.bool_())])
    nodes = [[node._asdict() for node in sorted(graph.nodes)] for graph in graphs.values()]
    edges = [[edge._asdict() for edge in graph.edges] for graph in graphs.values()]
    return pa.record_batch(
        {
            "graph": pa.array(list(graphs), pa.string()),
            "nodes": pa.array(nodes, pa.list_(member)),
            "edges": pa.array(edges, pa.list_(edge)),
        }
    )


def from_batches(batches: Sequence[pa.RecordBatch]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the rows of the classes and of the counts in batches, in the order of `expected_rows`."""
    classes, counts = [], []
    for batch in batches:
        for row in batch.to_pylist():
            classes += [(row["graph"], *(member[name] for name in Membership._fields)) for member in row["classes"]]
            counts.append((row["graph"], *(row[name] for name in Counts._fields)))
    return sorted(classes, key=lambda row: row[:2]), sorted(counts)
