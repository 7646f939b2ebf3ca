"""Condense fact graphs with SciPy: a whole Arrow batch of graphs as one block-diagonal matrix.

Dejl et al. 2025; methods, section 5. Strongly connected components with a context node are the statements. Statements
that a response node reaches are covered. The basis contains the uncovered statements that no other uncovered statement
reaches.

Waves order the requests, because earlier answers imply later ones: a pair whose premise already reaches its hypothesis
along judged entailments changes no component, no coverage and no basis. The first wave sends one direction of each pair
between contexts, about half of these pairs. The second wave sends the pairs that the first does not imply, and relates
response atoms to the ends of the graph so far, because one entailment there implies most others. The third wave sends
the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Nodes:
    """The nodes of many graphs, graph by graph, each in order of first appearance.

    `graph` int64[n] ascending: the number of a node's graph. `context`, `response` bool[n]: the node occurs there
    (both, one or neither). `frequency` int64[n]: number of occurrences. `graphs`: number of graphs, including graphs
    without nodes.
    """

    graph: Indices
    context: Flags
    response: Flags
    frequency: Indices
    graphs: int

    def __len__(self) -> int:
        return len(self.graph)


@dataclass(frozen=True)
class Classes:
    """The classes of n nodes: arrays of length n.

    `component` int64: the first node of its strongly connected component. `statement` bool: the component has a context
    node. `representative` bool: one context node per statement, the most frequent, then the first. `covered` bool: a
    response node reaches it. `in_basis` bool: it is uncovered and no other uncovered statement reaches it.
    """

    component: Indices
    statement: Flags
    representative: Flags
    covered: Flags
    in_basis: Flags


def find_classes(nodes: Nodes, source: Indices, target: Indices) -> Classes:
    """Condense graphs with edges from node `source[i]` to node `target[i]`. Loops and duplicates have no effect.

    The cost is linear in nodes and edges: one search for strong components, one or two for reachability. Arrays have
    the type int64.

    In the example, node 0 entails node 1, and the response states neither. Adding node 0 would cover both, so the basis
    is node 0.

    >>> both, neither = np.array([True, True]), np.array([False, False])
    >>> nodes = Nodes(np.zeros(2, dtype=int), context=both, response=neither, frequency=np.ones(2, dtype=int), graphs=1)
    >>> find_classes(nodes, np.array([0]), np.array([1])).in_basis.tolist()
    [True, False]
    """
    component, reached = _solve(nodes, source, target)
    statement = _any_of(component, nodes.context)
    covered = statement & reached
    followed = _follow(component, statement, reached, source, target)
    in_basis = statement & ~reached & ~followed
    return Classes(component, statement, _representatives(nodes, component), covered, in_basis)


def count_statements(nodes: Nodes, classes: Classes) -> tuple[Indices, Indices]:
    """Return the numbers of covered and of uncovered statements of each graph."""
    heads = classes.statement & (classes.component == np.arange(len(nodes)))
    return _count(nodes, heads & classes.covered), _count(nodes, heads & ~classes.covered)


def find_bounds(nodes: Nodes, judged: Classes, source: Indices, target: Indices) -> tuple[Numbers, Numbers]:
    """Return the lowest and highest score of each graph, NaN without statements. `source`, `target` hold all pairs.

    `judged` is the graph L of the judged edges. U also has the unjudged pairs as edges. a counts components of U with a
    context node covered in L, b components of L with one covered in U, c components of U with one uncovered in U, and d
    components of L with one uncovered in L. Every graph between L and U scores from a / (a + d) to b / (b + c).

    docs/contract.md, "Bounds", has the formula for all possible results of the unjudged pairs.
    """
    component, reached = _solve(nodes, source, target)
    context, covered = nodes.context, judged.covered
    a = _count_components(nodes, component, context & covered)
    b = _count_components(nodes, judged.component, context & reached)
    c = _count_components(nodes, component, context & ~reached)
    d = _count_components(nodes, judged.component, context & ~covered)
    return _share(a, d), _share(b, c)


def _solve(nodes: Nodes, source: Indices, target: Indices) -> tuple[Indices, Flags]:
    """Return the component of each node, named by its first node, and a flag for nodes that a response node reaches."""
    size = len(nodes)
    matrix = _matrix(size, source, target, np.flatnonzero(nodes.response))
    _, labels = connected_components(matrix, directed=True, connection="strong")
    first = np.empty(size + 1, dtype=np.int64)
    # Written from the last node to the first, so the first node of each label remains
    first[labels[::-1]] = np.arange(size, -1, -1)
    return first[labels[:size]], _reach(matrix)


def _matrix(size: int, source: Indices, target: Indices, seeds: Indices) -> Any:
    """Return the edges of nodes 0 to size - 1, and from a node `size` to the seeds: csr_array[size + 1, size + 1].

    The additional node makes reachability from all seeds in all graphs a single search.
    """
    rows = np.concatenate([source, np.full(len(seeds), size)])
    columns = np.concatenate([target, seeds])
    # Duplicate edges add up to weights above 1, which neither components nor breadth-first order use
    return csr_array((np.ones(len(rows)), (rows, columns)), shape=(size + 1, size + 1))


def _reach(matrix: Any) -> Flags:
    """Return a flag for each node that the last node of a `_matrix` reaches."""
    size = matrix.shape[0] - 1
    reached = np.zeros(size + 1, dtype=bool)
    reached[breadth_first_order(matrix, size, directed=True, return_predecessors=False)] = True
    return reached[:size]


def _follow(component: Indices, statement: Flags, reached: Flags, source: Indices, target: Indices) -> Flags:
    """Return a flag for nodes with a component that another uncovered statement reaches, along any path."""
    leaving = (statement & ~reached)[source]
    first, second = component[source[leaving]], component[target[leaving]]
    followed = np.zeros(len(component), dtype=bool)
    followed[second[first != second]] = True
    # A path between uncovered statements may continue through classes that are neither statements nor reached. Without
    # such classes, edges are enough: everything after a reached class is reached, and a statement on the path reaches
    # the target itself
    if not (statement | reached).all():
        matrix = _matrix(len(component), component[source], component[target], np.flatnonzero(followed))
        followed = _reach(matrix)
    return followed[component]


def _representatives(nodes: Nodes, component: Indices) -> Flags:
    """Flag the most frequent context node of each class that has one, the first on a tie."""
    members = np.flatnonzero(nodes.context)
    most = np.zeros(len(nodes), dtype=np.int64)
    np.maximum.at(most, component[members], nodes.frequency[members])
    # Reversed, so that the first of equally frequent nodes is written last and remains
    candidates = members[nodes.frequency[members] == most[component[members]]][::-1]
    chosen = np.full(len(nodes), -1, dtype=np.int64)
    chosen[component[candidates]] = candidates
    flags = np.zeros(len(nodes), dtype=bool)
    flags[chosen[chosen >= 0]] = True
    return flags


def _any_of(component: Indices, flags: Flags) -> Flags:
    """Return a flag for nodes with a component that has a flagged node."""
    found = np.zeros(len(component), dtype=bool)
    found[component[flags]] = True
    return found[component]


def _count_components(nodes: Nodes, component: Indices, flags: Flags) -> Indices:
    """Return the number of components with a flagged node per graph."""
    heads = np.zeros(len(nodes), dtype=bool)
    heads[component[flags]] = True
    return _count(nodes, heads)


def _count(nodes: Nodes, flags: Flags) -> Indices:
    """Return the number of flagged nodes per graph: int64[graphs], 0 for a graph without nodes."""
    return np.bincount(nodes.graph[flags], minlength=nodes.graphs)


def _share(part: Indices, rest: Indices) -> Numbers:
    """Return part / (part + rest) per graph, NaN for 0 / 0: a graph without statements has no score."""
    whole = part + rest
    share: Numbers = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return share


# The result of `condense_batches`, by the type of the nodes: long for graphs of samples, string for graphs of a user
CONDENSED = (
    "graph string, classes array<struct<node: {0}, statement: {0}, representative: boolean, covered: boolean, "
    "in_basis: boolean>>, covered long, uncovered long, low double, high double"
)


def condense_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Condense graphs, one row per graph, for `mapInArrow`.

    Input: graph string; nodes list<struct<node, context bool, response bool, frequency int64>> sorted by node (int64 or
    string); edges list<struct<source, target, judged bool>>, null or empty without edges. A judged edge is an
    entailment, premise to hypothesis. An unjudged edge is a pair without a judgement and only widens the bounds.
    Output: graph; classes list<struct<node, statement, representative, covered, in_basis>>, one per node in their
    order, with the first node of its class as `statement` (null if the class is not a statement); covered, uncovered
    int64; low, high double, null without statements. Raises ValueError for an edge to a node outside its graph.
    """
    for batch in batches:
        yield condense_batch(batch)


def condense_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Condense one batch of `condense_batches`."""
    rows, sizes = _flatten(batch.column("nodes"))
    nodes = _read_nodes(rows, sizes)
    source, target, judged = _read_edges(batch.column("edges"), rows.field("node"), nodes)
    classes = find_classes(nodes, source[judged], target[judged])
    covered, uncovered = count_statements(nodes, classes)
    if judged.all():
        low = high = _share(covered, uncovered)
    else:
        low, high = find_bounds(nodes, classes, source, target)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    return pa.RecordBatch.from_pydict(
        {
            "graph": batch.column("graph"),
            "classes": pa.ListArray.from_arrays(offsets, _class_rows(rows.field("node"), classes)),
            # NaN becomes null here. In Spark it would turn every mean over the column into NaN
            "covered": pa.array(covered, pa.int64()),
            "uncovered": pa.array(uncovered, pa.int64()),
            "low": pa.array(low, pa.float64(), from_pandas=True),
            "high": pa.array(high, pa.float64(), from_pandas=True),
        }
    )


def _flatten(lists: Any) -> tuple[pa.StructArray, Indices]:
    """Return the values of a list column without gaps, and the number of values of each row."""
    return lists.flatten(), _numpy(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)


def _numpy(array: Any) -> NDArray[Any]:
    """Return the values as a NumPy array: a copy for booleans, which Arrow packs into bits, and for nulls."""
    result: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return result


def _read_nodes(rows: pa.StructArray, sizes: Indices) -> Nodes:
    """Return the nodes of a batch, graph by graph. A null flag is false, a null frequency 1."""
    return Nodes(
        graph=np.repeat(np.arange(len(sizes)), sizes),
        context=_flags(rows.field("context")),
        response=_flags(rows.field("response")),
        frequency=_numpy(pc.fill_null(rows.field("frequency").cast(pa.int64()), 1)),
        graphs=len(sizes),
    )


def _flags(column: Any) -> Flags:
    """Return the column as bool, with null as false."""
    return _numpy(pc.fill_null(column, False)).astype(bool)


def _read_edges(lists: Any, node: Any, nodes: Nodes) -> tuple[Indices, Indices, Flags]:
    """Return the numbers of the nodes at both ends of edges, and whether each edge was judged."""
    rows, sizes = _flatten(lists)
    graph = np.repeat(np.arange(len(sizes)), sizes)
    source, target = (_positions(node, nodes, rows.field(name), graph) for name in ("source", "target"))
    return source, target, _flags(rows.field("judged"))


def _positions(node: Any, nodes: Nodes, wanted: Any, graph: Indices) -> Indices:
    """Return the positions of the wanted nodes in their graphs. Raises ValueError for a missing node."""
    sizes = np.bincount(nodes.graph, minlength=nodes.graphs)
    starts = np.cumsum(sizes) - sizes
    numbers = np.arange(len(nodes)) - starts[nodes.graph]
    # Untold's nodes are numbered from 0 in each graph. Nodes of a user's graphs may have any names
    if pa.types.is_integer(node.type) and np.array_equal(_numpy(node), numbers):
        sought = _numpy(wanted).astype(np.int64)
        found = pa.array(starts[graph] + sought, mask=(sought < 0) | (sought >= sizes[graph]))
    else:
        found = pc.index_in(_prefixed(wanted, graph), value_set=_prefixed(node, nodes.graph))
    if found.null_count:
        raise ValueError(f"{found.null_count:,} ends of edges are not nodes of their graph")
    return _numpy(found).astype(np.int64)


def _prefixed(values: Any, graph: Indices) -> Any:
    """Return values that differ between graphs: the graph's number, a colon, the value.

    The number ends at the first colon, so different pairs of graph and value have different texts, for any value.
    """
    return pc.binary_join_element_wise(pa.array(graph).cast(pa.string()), values.cast(pa.string()), ":")


def _class_rows(node: Any, classes: Classes) -> pa.StructArray:
    """Return the structs of `classes`, one per node. `statement` is the first node of its class, or null."""
    first = pa.array(classes.component, mask=~classes.statement)
    columns = {
        "node": node,
        "statement": node.take(first),
        "representative": pa.array(classes.representative),
        "covered": pa.array(classes.covered),
        "in_basis": pa.array(classes.in_basis),
    }
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


FIRST_CONTEXTS, OTHER_CONTEXTS = "contexts-1", "contexts-2"
RESPONSE_ENDS, OTHER_RESPONSES = "response-2", "response-3"

Places = NDArray[np.int64]
Choice = Callable[[Places, Places], tuple[Flags, Flags]]
Edges = Sequence[Mapping[str, int]]


def choose_by_wave(owner: Mapping[str, Any]) -> Choice:
    """Return a function that decides for pairs (source, target) which are sent now and which are implied.

    owner: part, one of this module's four; contexts, the number of context atoms, which come first; texts, one per
    node; first: the entailments of `FIRST_CONTEXTS`, used by the two parts of the second wave and by the third; known:
    all entailments so far, used by the third. Edges are {source, target}.

    An implied pair is a row without a request, because its edge would not change reachability (methods, section 2).
    """
    contexts, size = owner["contexts"], len(owner["texts"])
    if owner["part"] == FIRST_CONTEXTS:
        return lambda source, target: (_is_first(source, target, contexts), np.zeros(len(source), dtype=bool))
    if owner["part"] == OTHER_CONTEXTS:
        reach = reachable(contexts, owner["first"] or ())
        return lambda source, target: _split(~_is_first(source, target, contexts), reach[source, target])
    heads, tails = _ends(contexts, owner["first"] or ())
    if owner["part"] == RESPONSE_ENDS:
        return lambda source, target: (_is_end(source, target, heads, tails), np.zeros(len(source), dtype=bool))
    reach = reachable(size, owner["known"] or ())
    return lambda source, target: _split(~_is_end(source, target, heads, tails), reach[source, target])


def reachable(size: int, edges: Edges) -> Flags:
    """Return bool[size, size]: True if edges lead from the first node to the second. Every node reaches itself.

    There is one search per node with edges. The result has `size` squared bytes, 25 MB for 5,000 atoms.

    >>> reachable(3, [{"source": 0, "target": 1}, {"source": 1, "target": 2}]).astype(int).tolist()
    [[1, 1, 1], [0, 1, 1], [0, 0, 1]]
    """
    reach = np.eye(size, dtype=bool)
    matrix = _edge_matrix(size, edges)
    for source in np.flatnonzero(np.diff(matrix.indptr)).tolist():
        reach[source, breadth_first_order(matrix, source, directed=True, return_predecessors=False)] = True
    return reach


def _split(wanted: Flags, implied: Flags) -> tuple[Flags, Flags]:
    """Return the wanted pairs to send, and the wanted pairs that are implied."""
    return wanted & ~implied, wanted & implied


def _is_first(source: Places, target: Places, contexts: int) -> Flags:
    """Choose one direction of each pair, so that each node is equally often premise and hypothesis.

    The choice is by distance on a circle of the nodes, so the first wave covers every node.
    """
    # With an even number of nodes, opposite nodes have the same distance both ways, so both directions are sent
    first: Flags = (target - source) % contexts <= contexts // 2
    return first


def _ends(contexts: int, edges: Edges) -> tuple[Flags, Flags]:
    """Return one node of every class without incoming edges (heads), and of every class without outgoing edges (tails).

    A node that entails a head entails everything that follows from it. If a tail entails a node, so do all its
    ancestors.
    """
    matrix = _edge_matrix(contexts, edges)
    _, labels = connected_components(matrix, directed=True, connection="strong")
    chosen = np.zeros(contexts, dtype=bool)
    chosen[np.unique(labels, return_index=True)[1]] = True
    source, target = _columns(edges)
    across = labels[source] != labels[target]
    entered, left = (np.isin(labels, labels[side[across]]) for side in (target, source))
    return chosen & ~entered, chosen & ~left


def _is_end(source: Places, target: Places, heads: Flags, tails: Flags) -> Flags:
    """Return a flag for pairs of a response atom and a context atom that lead to a head or come from a tail."""
    contexts = len(heads)
    into, out_of = target < contexts, source < contexts
    return (into & heads[np.where(into, target, 0)]) | (out_of & tails[np.where(out_of, source, 0)])


def _edge_matrix(size: int, edges: Edges) -> csr_array:
    """Return the bool adjacency of nodes 0 to size - 1, as csr_array[size, size]."""
    source, target = _columns(edges)
    return csr_array((np.ones(len(source)), (source, target)), shape=(size, size))


def _columns(edges: Iterable[Mapping[str, int]]) -> tuple[Places, Places]:
    """Return the sources and targets of edges: int64 each, empty without edges."""
    # Without edges, NumPy would create one axis instead of two
    pairs = np.array([(edge["source"], edge["target"]) for edge in edges], dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
