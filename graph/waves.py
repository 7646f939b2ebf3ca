"""Which pairs to ask in which wave, so that what earlier answers imply need not be asked.

A pair whose premise already reaches its hypothesis along judged entailments adds nothing to reachability, and so
changes no component, no coverage and no basis. Of the pairs between contexts, the first wave asks about half, one
direction of each; the second asks what these do not imply, and relates response atoms to the ends of the graph so far,
where one entailment implies most others; the third asks what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

FIRST_CONTEXTS, OTHER_CONTEXTS = "contexts-1", "contexts-2"
RESPONSE_ENDS, OTHER_RESPONSES = "response-2", "response-3"

Places = NDArray[np.int64]
Flags = NDArray[np.bool_]
Choice = Callable[[Places, Places], tuple[Flags, Flags]]
Edges = Sequence[Mapping[str, int]]


def choose_by_wave(owner: Mapping[str, Any]) -> Choice:
    """Says of pairs (source, target) of an owner which are asked now and which are implied.

    owner: part, one of this module's four; contexts, the number of context atoms, which come first; texts, one a node;
    first: the entailments of `FIRST_CONTEXTS`, read by the two parts of the second wave and again by the third; known:
    all entailments so far, read by the third. Edges are {source, target}.

    An implied pair is a row without a request: the edge it would add changes no reachability (methods, section 2).
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
    """bool[size, size]: whether edges lead from the first node to the second; every node reaches itself.

    A search a node that has edges; `size` squared bytes, 25 MB for 5,000 atoms.

    >>> reachable(3, [{"source": 0, "target": 1}, {"source": 1, "target": 2}]).astype(int).tolist()
    [[1, 1, 1], [0, 1, 1], [0, 0, 1]]
    """
    reach = np.eye(size, dtype=bool)
    matrix = _matrix(size, edges)
    for source in np.flatnonzero(np.diff(matrix.indptr)).tolist():
        reach[source, breadth_first_order(matrix, source, directed=True, return_predecessors=False)] = True
    return reach


def _split(wanted: Flags, implied: Flags) -> tuple[Flags, Flags]:
    """Of the wanted pairs those to ask, and those that are implied."""
    return wanted & ~implied, wanted & implied


def _is_first(source: Places, target: Places, contexts: int) -> Flags:
    """One direction of each pair, each node in as many pairs as premise as in others as hypothesis.

    By distance on a circle of the nodes: the first wave tells something about every node.
    """
    # Of an even number of nodes, two opposite ones are as far from each other either way: both directions are asked.
    first: Flags = (target - source) % contexts <= contexts // 2
    return first


def _ends(contexts: int, edges: Edges) -> tuple[Flags, Flags]:
    """For every class that nothing enters (a head), and for every class that nothing leaves (a tail), one of its nodes.

    What entails a head entails all that follows from it; what a tail entails, all that leads there entails too.
    """
    matrix = _matrix(contexts, edges)
    _, labels = connected_components(matrix, directed=True, connection="strong")
    chosen = np.zeros(contexts, dtype=bool)
    chosen[np.unique(labels, return_index=True)[1]] = True
    source, target = _columns(edges)
    across = labels[source] != labels[target]
    entered, left = (np.isin(labels, labels[side[across]]) for side in (target, source))
    return chosen & ~entered, chosen & ~left


def _is_end(source: Places, target: Places, heads: Flags, tails: Flags) -> Flags:
    """Whether a pair of a response atom and a context atom leads to a head or comes from a tail."""
    contexts = len(heads)
    into, out_of = target < contexts, source < contexts
    return (into & heads[np.where(into, target, 0)]) | (out_of & tails[np.where(out_of, source, 0)])


def _matrix(size: int, edges: Edges) -> csr_array:
    """bool adjacency of nodes 0 to size - 1, as csr_array[size, size]."""
    source, target = _columns(edges)
    return csr_array((np.ones(len(source)), (source, target)), shape=(size, size))


def _columns(edges: Iterable[Mapping[str, int]]) -> tuple[Places, Places]:
    """The sources and targets of edges: int64 each, empty arrays for no edge."""
    # Of no edges NumPy would make one axis, not two.
    pairs = np.array([(edge["source"], edge["target"]) for edge in edges], dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
