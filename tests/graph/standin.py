"""A test double for the two algorithms of GraphFrames. Like the library, it can return components that are too fine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import networkx as nx
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession


def has_graphframes(spark: SparkSession) -> bool:
    """Return True if the class path of the session has the GraphFrames jar."""
    loader = spark.sparkContext._jvm.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
    return loader.getResource("org/graphframes/GraphFrame.class") is not None


@dataclass
class FineComponents:
    """Return exact weak components and at most `found` strong components in each call.

    The size of the strong components is at most `shortest`. The component values are not node ids, so that no code can
    rely on them. `asked` records the calls, and `held` contains the results that are not released yet.
    """

    found: int = 1
    shortest: int = 2
    asked: list[str] = field(default_factory=list)
    held: int = 0

    def weak(self, vertices: DataFrame, edges: DataFrame) -> DataFrame:
        graph = _collect(vertices, edges)
        return self._answer("weak", vertices, [sorted(part) for part in nx.weakly_connected_components(graph)])

    def strong(self, vertices: DataFrame, edges: DataFrame) -> DataFrame:
        graph = _collect(vertices, edges)
        parts = sorted(sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1)
        whole = [cut for part in parts[: self.found] for cut in self._cut(graph, part)]
        merged = {node for part in whole for node in part}
        return self._answer("strong", vertices, [*whole, *([node] for node in graph if node not in merged)])

    def release(self) -> None:
        self.held = 0

    def _cut(self, graph: nx.DiGraph, part: list[int]) -> list[list[int]]:
        """Return a small component unchanged, and one of the shortest cycles of a large component."""
        return [part] if len(part) <= self.shortest else [_cycle_through(graph.subgraph(part), part[0])]

    def _answer(self, asked: str, vertices: DataFrame, parts: list[list[int]]) -> DataFrame:
        self.asked.append(asked)
        self.held += 1
        rows = [(node, -1 - number) for number, part in enumerate(parts) for node in part]
        ids, components = zip(*rows, strict=True)
        return vertices.sparkSession.createDataFrame(pa.table({"id": ids, "component": components}))


@dataclass
class CoarseComponents(FineComponents):
    """Return each weak component as a strong component."""

    def strong(self, vertices: DataFrame, edges: DataFrame) -> DataFrame:
        return self.weak(vertices, edges)


@dataclass
class StuckComponents(FineComponents):
    """Return no strong components."""

    def strong(self, vertices: DataFrame, edges: DataFrame) -> DataFrame:
        return self._answer("strong", vertices, [[node] for node in _collect(vertices, edges)])


def _collect(vertices: DataFrame, edges: DataFrame) -> nx.DiGraph:
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(row["id"] for row in vertices.collect())
    graph.add_edges_from((row["src"], row["dst"]) for row in edges.collect())
    return graph


def _cycle_through(graph: nx.DiGraph, start: int) -> list[int]:
    """Return the nodes of a shortest cycle through a node."""
    before: dict[int, int] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for following in sorted(graph.successors(node)):
            if following == start:
                found = [node]
                while found[-1] != start:
                    found.append(before[found[-1]])
                return found
            if following not in before:
                before[following] = node
                queue.append(following)
    raise ValueError(f"the node {start} is not on a cycle")
