"""Condense graphs that are too large for one task, by DataFrames. The rows equal those of `condensation`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.graph.condensation import Classes, Nodes, find_classes

IDS = "id long"
LABELS = "id long, component long"
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
Walk = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_NO_IDS = np.zeros(0, dtype=np.int64)


class StepStore(Protocol):
    """A store for the results of steps. Stored results cut the lineage, so plans do not grow with the rounds.

    It is a protocol, because the location of a step belongs to a run, and this package is independent of runs.
    """

    def keep(self, frame: DataFrame, name: str = "step") -> DataFrame:
        """Return the same rows, computed once and stored under this name."""

    def count(self, frame: DataFrame) -> int:
        """Return the number of rows. For results of `keep` it is free."""


def _as_part(edges: DataFrame) -> DataFrame:
    """Return all edges as one part: source, target, part."""
    return edges.select("source", "target", F.lit(0).alias("part"))


def solve_apart(edges: DataFrame) -> DataFrame:
    """Return the strong components of weak components: weak, source, target -> id, component (the smallest id).

    All edges of a weak component become one row, so each component must fit a task.
    """
    grouped = edges.groupBy("weak").agg(F.collect_list(F.struct("source", "target")).alias("edges"))
    return grouped.select("edges").mapInArrow(_components_of_batches, LABELS)


def flag(name: str) -> Column:
    """Return the column as boolean, with null as false."""
    return F.coalesce(name, F.lit(False)).alias(name)


def turned(edges: DataFrame) -> DataFrame:
    """Return the reversed edges: source, target."""
    return edges.select(F.col("target").alias("source"), F.col("source").alias("target"))


def _spread_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the ids that marked sources reach along the edges of this task: source, target, marked -> id."""
    ids, source, target, marked = _read_edges(batches)
    if not marked.any():
        return
    seeds = np.zeros(len(ids), dtype=bool)
    seeds[source[marked]] = True
    yield _as_batch(ids[_classes(seeds, source, target).covered & ~seeds])


def _peel_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the targets that a cycle of this task or a marked outside source reaches: source, target, marked -> id.

    All edges into a target are in one task, so a source that is also a target here is judged here.
    """
    ids, source, target, marked = _read_edges(batches)
    # Another task judges a source that is not a target here. It is a root in this task while it is marked
    own, roots = np.zeros(len(ids), dtype=bool), np.zeros(len(ids), dtype=bool)
    own[target] = True
    source, target = source[marked], target[marked]
    component = _classes(roots, source, target).component
    roots[source] = True
    roots = (roots & ~own) | (np.bincount(component, minlength=len(ids)) > 1)[component]
    yield _as_batch(ids[_classes(roots, source, target).covered & own])


def _components_of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield strong components of disjoint graphs, one per row: edges list<struct<source, target>> -> id, component."""
    for batch in batches:
        edges = batch.column("edges").flatten()
        ids, source, target = _renumber(*(edges.field(name).to_numpy() for name in ("source", "target")))
        component = _classes(np.zeros(len(ids), dtype=bool), source, target).component
        yield pa.RecordBatch.from_pydict({"id": pa.array(ids), "component": pa.array(ids[component])})


def _read_edges(batches: Iterator[pa.RecordBatch]) -> tuple[Indices, Indices, Indices, Flags]:
    """Return the sorted ids of a task, its edges as positions in them, and a flag for edges with a marked source."""
    found = [[batch.column(n).to_numpy(zero_copy_only=False) for n in range(3)] for batch in batches]
    if not found:
        return _NO_IDS, _NO_IDS, _NO_IDS, _NO_IDS.astype(bool)
    source, target, marked = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return *_renumber(source, target), marked.astype(bool)


def _renumber(source: Indices, target: Indices) -> tuple[Indices, Indices, Indices]:
    """Return the ids of edges, ascending, and both ends of each edge as positions in them."""
    ids, positions = np.unique(np.concatenate([source, target]), return_inverse=True)
    return ids, positions[: len(source)], positions[len(source) :]


def _classes(seeds: Flags, source: Indices, target: Indices) -> Classes:
    """Return the classes of one graph with all nodes as context. `covered` marks the nodes that the seeds reach."""
    size = len(seeds)
    ones = np.ones(size, dtype=np.int64)
    return find_classes(Nodes(ones * 0, ones.astype(bool), seeds, ones, 1), source, target)


def _as_batch(ids: Indices) -> pa.RecordBatch:
    """Return the ids as a batch of `IDS`."""
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})


class CondensationError(RuntimeError):
    """A condensation that did not finish, or failed verification. Its results are never used."""


class Components(Protocol):
    """Components of a graph: vertices (id long), edges (src, dst long) -> id, component long, of any value.

    Vertices of one component have the same value. Call `release` after storing a result, because GraphFrames persists
    its results and does not free them.
    """

    def weak(self, vertices: DataFrame, edges: DataFrame) -> DataFrame:
        """Return the weak components, exactly."""

    def strong(self, vertices: DataFrame, edges: DataFrame) -> DataFrame:
        """Return the strong components, or parts of them."""

    def release(self) -> None:
        """Free the memory of the last result."""


@dataclass(frozen=True)
class Condensed:
    """The rows of a condensation.

    `classes`: graph, node, statement, representative, covered, in_basis; a row per node, with a null `statement` if its
    class has no context node. `counts`: graph, covered, uncovered long, low, high double (null without statements).
    """

    classes: DataFrame
    counts: DataFrame


@dataclass(frozen=True)
class Solution:
    """`vertices`: id, component (the smallest id of its class), reached. `quotient`: source, target between classes.

    `reached` is true if a path of any length from a response vertex reaches the class.
    """

    vertices: DataFrame
    quotient: DataFrame


@dataclass(frozen=True)
class Condensation:
    """Condenses graphs of any size. `limit` is the maximum number of edges per task.

    `components` only receives the rest of a graph without mutual edges, small weak components and vertices outside
    cycles. Its rounds have a fixed cost, measured at 19 s for 40 nodes on two cores.
    """

    components: Components
    workspace: StepStore
    limit: int

    def condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """Return the result of `condensation.condense_batches` as rows.

        nodes: graph string, node long or string, context, response boolean, frequency long. edges: graph, source,
        target, judged boolean. Raises ValueError for an edge to a node outside its graph, and CondensationError for
        incomplete or wrong components.
        """
        members = self.workspace.keep(_number(nodes), "numbered-nodes")
        pairs = self._find_pairs(members, edges)
        lower = self.solve(members.select("id", "response"), pairs.where("judged").select("source", "target"))
        upper = self._solve_bounds(members, pairs, lower.vertices)
        rows = self.workspace.keep(_join_solutions(members, lower.vertices, upper), "solved-nodes")
        return Condensed(self._find_classes(rows, lower.quotient), _count_statements(rows))

    def solve(self, vertices: DataFrame, edges: DataFrame) -> Solution:
        """Solve a graph. vertices: id, response; edges: source, target. Raises CondensationError after verification."""
        links = self.workspace.keep(_tidy(edges), "links")
        labels = self.find_components(vertices.select("id"), links)
        quotient = self.workspace.keep(_relabel(links, labels), "quotient")
        # Verify first, because components that are too fine lead to plausible but wrong scores
        self.verify(labels, links, quotient)
        responses = vertices.where("response").select("id")
        seeds = labels.join(responses, on="id", how="left_semi").select(F.col("component").alias("id"))
        found = self.spread(seeds, quotient, self.workspace.count(quotient))
        reached = found.select(F.col("id").alias("component"), F.lit(True).alias("reached"))
        solved = labels.join(reached, on="component", how="left").select("id", "component", flag("reached"))
        return Solution(self.workspace.keep(solved, "solution"), quotient)

    def find_components(self, vertices: DataFrame, edges: DataFrame) -> DataFrame:
        """Return the strong components before verification: id, component (the smallest id of its class).

        vertices: id; edges: source, target, no loops. Mutual edges are contracted first. Weak components that fit a
        task are solved in one task. The others are reduced to their cycles, solved and contracted, repeatedly.
        """
        labels = vertices.select("id", F.col("id").alias("component"))
        # Classes of mutual edges are weak components, which are exact. Most classes of more than one text are of this
        # kind
        mutual, remaining = self._find_mutual(edges), edges
        if self.workspace.count(mutual):
            labels, remaining = self._contract(labels, edges, self._merge_mutual(mutual))
        if not self.workspace.count(remaining):
            return labels
        weak = self._take(self.components.weak(_ends(remaining), _as_graph(remaining)))
        # Repeat: remove vertices outside cycles, then find and contract classes. Each search finds at least one class,
        # so the loop ends
        on_cycles = False
        while True:
            small, large = self._split(remaining, weak)
            if self.workspace.count(small):
                labels = self.workspace.keep(_compose(labels, solve_apart(small)), "labels")
            if not self.workspace.count(large):
                return labels
            if on_cycles:
                labels, remaining = self._contract(labels, large, self._ask_strong(large))
            else:
                remaining = self.find_core(large)
            on_cycles = not on_cycles

    def verify(self, labels: DataFrame, edges: DataFrame, quotient: DataFrame) -> None:
        """Raise CondensationError unless classes are strongly connected and their quotient has no cycle.

        labels: id, component; edges: source, target; quotient: the edges between classes.

        An algorithm that stops early can violate this: GraphFrames with 5 iterations returned 36 classes instead of 20
        for a chain of twenty cycles of two nodes. The cost is linear in the edges, with one round per change of task
        along paths.
        """
        # A class of one node is strongly connected. The walks in a larger class start from its head
        members = labels.where("id <> component")
        within = self.workspace.keep(_within(edges, labels), "links-within-classes")
        size, heads = self.workspace.count(within), members.select(F.col("component").alias("id"))
        apart = [
            members.join(self.spread(heads, walked, size), on="id", how="left_anti")
            for walked in (within, turned(within))
        ]
        if lost := self.workspace.count(apart[0].unionByName(apart[1]).distinct()):
            raise CondensationError(f"{lost:,} nodes are in a class whose other nodes they do not entail in turn")
        if self.workspace.count(self.peel(quotient, self.workspace.count(quotient)).limit(1)):
            raise CondensationError("the strongly connected components are incomplete: a cycle of components remains")

    def _find_pairs(self, members: DataFrame, edges: DataFrame) -> DataFrame:
        """Return source, target, judged, by ids."""
        found = edges
        for end in ("source", "target"):
            # A left join, so that ends without a node are counted and not dropped
            ids = members.select("graph", F.col("node").alias(end), F.col("id").alias(f"{end}_id"))
            found = found.join(ids, on=["graph", end], how="left")
        judged = F.coalesce("judged", F.lit(False)).alias("judged")
        pairs = self.workspace.keep(
            found.select(F.col("source_id").alias("source"), F.col("target_id").alias("target"), judged)
        )
        if lost := self.workspace.count(pairs.where("source is null or target is null")):
            raise ValueError(f"{lost:,} edges have an end that is not a node of their graph")
        return pairs

    def _solve_bounds(self, members: DataFrame, pairs: DataFrame, lower: DataFrame) -> DataFrame:
        """Return the vertices of the solution that includes unjudged pairs, starting from the classes without them."""
        if not self.workspace.count(pairs.where("not judged").limit(1)):
            return lower
        labels = lower.select("id", "component")
        responses = members.select("id", "response").join(labels, on="id", how="inner")
        heads = responses.groupBy(F.col("component").alias("id")).agg(F.bool_or("response").alias("response"))
        upper = self.solve(heads, _relabel(pairs.select("source", "target"), labels)).vertices
        above = upper.select(F.col("id").alias("component"), F.col("component").alias("above"), "reached")
        whole = labels.join(above, on="component", how="inner")
        return whole.select("id", F.col("above").alias("component"), "reached")

    def _find_mutual(self, edges: DataFrame) -> DataFrame:
        """Return the edges that also exist in reverse, one per pair."""
        twins = turned(edges.where("source > target"))
        return self.workspace.keep(edges.join(twins, on=["source", "target"], how="inner"), "mutual-links")

    def _merge_mutual(self, mutual: DataFrame) -> DataFrame:
        """Return the classes of mutual edges: id, component."""
        if self.workspace.count(mutual) > self.limit:
            return self._take(self.components.weak(_ends(mutual), _as_graph(mutual)))
        both = mutual.unionByName(turned(mutual))
        return solve_apart(both.select(F.lit(0).alias("weak"), "source", "target"))

    def _ask_strong(self, edges: DataFrame) -> DataFrame:
        """Return classes of a graph with all edges on cycles or between cycles: id, component.

        Raises CondensationError if no class has two nodes, because contraction would then loop forever.
        """
        found = self._take(self.components.strong(_ends(edges), _as_graph(edges)))
        if not self.workspace.count(found.where("id <> component").limit(1)):
            raise CondensationError("strong components found no class in a graph with cycles. Raise the iterations")
        return found

    def _take(self, found: DataFrame) -> DataFrame:
        """Store a result of `components`, with each component named by its smallest id."""
        kept = self.workspace.keep(_smallest(found))
        self.components.release()
        return kept

    def _contract(self, labels: DataFrame, edges: DataFrame, found: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Return labels and edges after contraction of the classes `found` (id, component)."""
        return self.workspace.keep(_compose(labels, found)), self.workspace.keep(_relabel(edges, found))

    def _split(self, edges: DataFrame, weak: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Return the edges of weak components that fit a task, and the other edges: weak, source, target."""
        whole = weak.select(F.col("id").alias("source"), F.col("component").alias("weak"))
        marked = edges.join(whole, on="source", how="left").select("weak", "source", "target")
        sizes = marked.groupBy("weak").agg(F.count("*").alias("size"))
        sized = self.workspace.keep(marked.join(sizes, on="weak", how="inner"))
        fits = F.col("size") <= self.limit
        return sized.where(fits).drop("size"), self.workspace.keep(sized.where(~fits).drop("size"))

    def _find_classes(self, rows: DataFrame, quotient: DataFrame) -> DataFrame:
        """Return the rows of classes. rows: see `_join_solutions`; quotient: source, target between classes."""
        heads = self.workspace.keep(_describe_classes(rows), "classes")
        entered = self._find_entered(heads, quotient)
        marks = entered.select(F.col("id").alias("lower"), F.lit(True).alias("entered"))
        whole = rows.select("graph", "id", "node", "lower").join(heads, on="lower", how="inner")
        is_statement = F.col("statement").isNotNull()
        return whole.join(marks, on="lower", how="left").select(
            "graph",
            "node",
            "statement",
            (is_statement & (F.col("id") == F.col("chosen"))).alias("representative"),
            (is_statement & F.col("reached")).alias("covered"),
            (is_statement & ~F.col("reached") & F.col("entered").isNull()).alias("in_basis"),
        )

    def _find_entered(self, heads: DataFrame, quotient: DataFrame) -> DataFrame:
        """Return the ids of classes that another uncovered statement reaches.

        Paths continue through classes that are not statements. After a statement they count as paths of that statement.
        """
        missing = heads.where("not reached")
        kinds = missing.select(F.col("lower").alias("source"), F.col("statement").isNotNull().alias("is_statement"))
        leaving = self.workspace.keep(quotient.join(kinds, on="source", how="inner"))
        first = leaving.where("is_statement").select(F.col("target").alias("id"))
        between = leaving.where("not is_statement")
        return self.spread(first, between, self.workspace.count(between))

    def spread(self, seeds: DataFrame, edges: DataFrame, size: int) -> DataFrame:
        """Return the seeds (id) and the ids that paths from them reach along `size` edges (source, target).

        A round follows all paths within each range of edges. Rounds end when no range finds a new id.
        """
        reached = seeds.select("id").distinct()
        if not size:
            return reached
        if size <= self.limit:
            found = self._run_parts(_as_part(edges), 1, reached, _spread_batches)
            return self.workspace.keep(reached.unionByName(found).distinct())
        # Ids follow the order of graphs. A range by source keeps the edges of a graph together, so paths rarely change
        # ranges. The target divides the edges of one hub
        reached, walked = self.workspace.keep(reached), self._divide(edges, size, "source", "target")
        while True:
            found = self._run_parts(walked, self._parts(size), reached, _spread_batches)
            fresh = self.workspace.keep(found.join(reached, on="id", how="left_anti"))
            if not self.workspace.count(fresh):
                return reached
            reached = self.workspace.keep(reached.unionByName(fresh))

    def find_core(self, edges: DataFrame) -> DataFrame:
        """Return the edges on cycles and between cycles.

        A vertex that cannot reach a cycle, or cannot be reached from one, is its own component. Both kinds are removed
        before the component search.
        """
        after = self.workspace.keep(self.peel(edges, self.workspace.count(edges)))
        return self.workspace.keep(turned(self.peel(turned(after), self.workspace.count(after))))

    def peel(self, edges: DataFrame, size: int) -> DataFrame:
        """Return those of `size` edges (source, target) that are on a cycle or reachable from one."""
        # By target only: a task can judge a node only if it has all edges that enter it
        walked = _as_part(edges) if size <= self.limit else self._divide(edges, size, "target")
        alive = walked.select(F.col("target").alias("id")).distinct()
        if size <= self.limit:
            alive = self._run_parts(walked, 1, alive, _peel_batches)
        else:
            alive = self._peel_parts(walked, self._parts(size), self.workspace.keep(alive))
        sources = alive.select(F.col("id").alias("source"))
        return walked.join(sources, on="source", how="left_semi").select("source", "target")

    def _peel_parts(self, walked: DataFrame, parts: int, alive: DataFrame) -> DataFrame:
        """Return the ids (id) that still have an incoming edge when a round changes nothing. Rounds only remove ids."""
        before, left = -1, self.workspace.count(alive)
        while left not in (0, before):
            alive = self.workspace.keep(self._run_parts(walked, parts, alive, _peel_batches))
            before, left = left, self.workspace.count(alive)
        return alive

    def _parts(self, size: int) -> int:
        """Return the number of ranges of at most `limit` edges."""
        return -(-size // self.limit)

    def _divide(self, edges: DataFrame, size: int, *by: str) -> DataFrame:
        """Return the edges in ranges of `by` that fit a task: source, target, part."""
        divided = edges.repartitionByRange(self._parts(size), *by)
        return self.workspace.keep(divided.select("source", "target", F.spark_partition_id().alias("part")))

    def _run_parts(self, edges: DataFrame, parts: int, marked: DataFrame, run: Walk) -> DataFrame:
        """Return the distinct ids that `run` returns for the parts. Sources in `marked` (id) are marked."""
        marks = marked.select(F.col("id").alias("source"), F.lit(True).alias("marked"))
        flagged = edges.join(marks, on="source", how="left").select("part", "source", "target", flag("marked"))
        # By the number itself: with a hash, two ranges could be in one task and exceed the limit
        placed = flagged.repartitionById(parts, "part").select("source", "target", "marked")
        return placed.mapInArrow(run, IDS).distinct()


def _number(nodes: DataFrame) -> DataFrame:
    """Return the nodes with long ids in the order of (graph, node), null flags as false, a null frequency as 1."""
    return nodes.orderBy("graph", "node").select(
        # Ascending over sorted partitions, with gaps. The smallest id of a class is its first node, as in
        # `condensation`
        F.monotonically_increasing_id().alias("id"),
        "graph",
        "node",
        flag("context"),
        flag("response"),
        F.coalesce("frequency", F.lit(1).cast("long")).alias("frequency"),
    )


def _tidy(edges: DataFrame) -> DataFrame:
    """Return source, target without loops and duplicates, which change no class and slow down each round."""
    return edges.where("source <> target").select("source", "target").distinct()


def _ends(edges: DataFrame) -> DataFrame:
    """Return the vertices of edges: id."""
    return edges.select(F.explode(F.array("source", "target")).alias("id")).distinct()


def _as_graph(edges: DataFrame) -> DataFrame:
    """Return the edges with the column names of GraphFrames."""
    return edges.select(F.col("source").alias("src"), F.col("target").alias("dst"))


def _smallest(found: DataFrame) -> DataFrame:
    """Return id, component with each component named by its smallest id."""
    heads = found.groupBy("component").agg(F.min("id").alias("head"))
    return found.join(heads, on="component", how="inner").select("id", F.col("head").alias("component"))


def _compose(labels: DataFrame, found: DataFrame) -> DataFrame:
    """Return the labels (id, component) after the merges in `found` (id, component)."""
    merged = found.select(F.col("id").alias("component"), F.col("component").alias("into"))
    whole = labels.join(merged, on="component", how="left")
    return whole.select("id", F.coalesce("into", "component").alias("component"))


def _relabel(edges: DataFrame, labels: DataFrame) -> DataFrame:
    """Return edges between components, without loops and duplicates. Ends without a label are unchanged."""
    moved = edges.select("source", "target")
    for end in ("source", "target"):
        names = labels.select(F.col("id").alias(end), F.col("component").alias("into"))
        other = "target" if end == "source" else "source"
        moved = moved.join(names, on=end, how="left").select(other, F.coalesce("into", end).alias(end))
    return _tidy(moved)


def _within(edges: DataFrame, labels: DataFrame) -> DataFrame:
    """Return the edges between nodes of one class."""
    named = edges
    for end in ("source", "target"):
        names = labels.select(F.col("id").alias(end), F.col("component").alias(f"{end}_class"))
        named = named.join(names, on=end, how="inner")
    return named.where("source_class = target_class").select("source", "target")


def _join_solutions(members: DataFrame, lower: DataFrame, upper: DataFrame) -> DataFrame:
    """Return graph, id, node, context, frequency, and both solutions: lower, reached, upper, upper_reached.

    The lower solution excludes unjudged pairs, and the upper solution includes them.
    """
    below = lower.select("id", F.col("component").alias("lower"), "reached")
    above = upper.select("id", F.col("component").alias("upper"), F.col("reached").alias("upper_reached"))
    whole = members.join(below, on="id", how="inner").join(above, on="id", how="inner")
    columns = ("graph", "id", "node", "context", "frequency", "lower", "reached", "upper", "upper_reached")
    return whole.select(*columns)


def _describe_classes(rows: DataFrame) -> DataFrame:
    """Return lower, reached, statement (the smallest node, null without a context node), chosen (representative id)."""
    # The least struct is the most frequent node, then the first. It is null for other nodes, and null is never the
    # minimum
    rank = F.when(F.col("context"), F.struct((-F.col("frequency")).alias("rank"), "id"))
    return rows.groupBy("lower").agg(
        F.bool_or("reached").alias("reached"),
        F.when(F.bool_or("context"), F.min("node")).alias("statement"),
        F.min(rank).getField("id").alias("chosen"),
    )


def _count_statements(rows: DataFrame) -> DataFrame:
    """Return the rows of counts, with the bounds a / (a + d) and b / (b + c) of the contract."""
    below, above = F.col("reached"), F.col("upper_reached")
    counted = rows.groupBy("graph").agg(
        F.count_distinct(F.when(F.col("context") & below, F.col("upper"))).alias("a"),
        F.count_distinct(F.when(F.col("context") & above, F.col("lower"))).alias("b"),
        F.count_distinct(F.when(F.col("context") & ~above, F.col("upper"))).alias("c"),
        F.count_distinct(F.when(F.col("context") & ~below, F.col("lower"))).alias("d"),
        F.count_distinct(F.when(F.col("context") & below, F.col("lower"))).alias("covered"),
    )
    return counted.select(
        "graph",
        "covered",
        F.col("d").alias("uncovered"),
        F.try_divide("a", F.col("a") + F.col("d")).alias("low"),
        F.try_divide("b", F.col("b") + F.col("c")).alias("high"),
    )
