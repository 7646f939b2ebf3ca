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
    """Where results of steps are computed: lineage ends there, so that plans do not grow with the rounds.

    It is a protocol, because where to keep a step belongs to a run, which this package does not know.
    """

    def keep(self, frame: DataFrame, name: str = "step") -> DataFrame:
        """The same rows, computed once, in a place named for what they are."""

    def count(self, frame: DataFrame) -> int:
        """The number of rows; costs nothing for what `keep` gave."""


@dataclass(frozen=True)
class Walker:
    """Walks the edges of a graph of any size. `limit`: the most edges that one task takes."""

    workspace: StepStore
    limit: int

    def spread(self, seeds: DataFrame, edges: DataFrame, size: int) -> DataFrame:
        """The ids that paths from the seeds (id) lead to along `size` edges (source, target), and the seeds.

        ids are those of the vertices. A round follows all paths within each range of edges; rounds end when none finds
        an id.
        """
        reached = seeds.select("id").distinct()
        if not size:
            return reached
        if size <= self.limit:
            found = self._run_parts(_as_part(edges), 1, reached, _spread_batches)
            return self.workspace.keep(reached.unionByName(found).distinct())
        # Ids are in the order of graphs: by source, edges of a graph lie together and paths change ranges seldom. By
        # target too, so that the edges of one hub can be divided.
        reached, walked = self.workspace.keep(reached), self._divide(edges, size, "source", "target")
        while True:
            found = self._run_parts(walked, self._parts(size), reached, _spread_batches)
            fresh = self.workspace.keep(found.join(reached, on="id", how="left_anti"))
            if not self.workspace.count(fresh):
                return reached
            reached = self.workspace.keep(reached.unionByName(fresh))

    def find_core(self, edges: DataFrame) -> DataFrame:
        """The edges on cycles and between them.

        What leads to no cycle and what no cycle leads to is a class by itself: peeled from both sides, it is not asked
        for.
        """
        after = self.workspace.keep(self.peel(edges, self.workspace.count(edges)))
        return self.workspace.keep(turned(self.peel(turned(after), self.workspace.count(after))))

    def peel(self, edges: DataFrame, size: int) -> DataFrame:
        """Of `size` edges (source, target) those that a cycle leads to or that lie on one."""
        # By target alone: a task can judge a node only where it has all edges that enter it.
        walked = _as_part(edges) if size <= self.limit else self._divide(edges, size, "target")
        alive = walked.select(F.col("target").alias("id")).distinct()
        if size <= self.limit:
            alive = self._run_parts(walked, 1, alive, _peel_batches)
        else:
            alive = self._peel_parts(walked, self._parts(size), self.workspace.keep(alive))
        sources = alive.select(F.col("id").alias("source"))
        return walked.join(sources, on="source", how="left_semi").select("source", "target")

    def _peel_parts(self, walked: DataFrame, parts: int, alive: DataFrame) -> DataFrame:
        """The ids (id) that are still entered when rounds change nothing; they only ever become fewer, so a count
        tells.
        """
        before, left = -1, self.workspace.count(alive)
        while left not in (0, before):
            alive = self.workspace.keep(self._run_parts(walked, parts, alive, _peel_batches))
            before, left = left, self.workspace.count(alive)
        return alive

    def _parts(self, size: int) -> int:
        """How many ranges of at most `limit` edges so many are."""
        return -(-size // self.limit)

    def _divide(self, edges: DataFrame, size: int, *by: str) -> DataFrame:
        """source, target, part: the edges in ranges of `by` that fit a task each."""
        divided = edges.repartitionByRange(self._parts(size), *by)
        return self.workspace.keep(divided.select("source", "target", F.spark_partition_id().alias("part")))

    def _run_parts(self, edges: DataFrame, parts: int, marked: DataFrame, run: Walk) -> DataFrame:
        """The distinct ids that `run` gives for the parts, told which sources are among `marked` (id)."""
        marks = marked.select(F.col("id").alias("source"), F.lit(True).alias("marked"))
        flagged = edges.join(marks, on="source", how="left").select("part", "source", "target", flag("marked"))
        # By the number itself: with its hash, two ranges might meet in one task and be over the limit.
        placed = flagged.repartitionById(parts, "part").select("source", "target", "marked")
        return placed.mapInArrow(run, IDS).distinct()


def _as_part(edges: DataFrame) -> DataFrame:
    """source, target, part: all edges in one part."""
    return edges.select("source", "target", F.lit(0).alias("part"))


def solve_apart(edges: DataFrame) -> DataFrame:
    """Strong components of weak ones: weak, source, target -> id, component (the smallest id of its class).

    All edges of a weak component become one row, so each of these has to fit a task.
    """
    grouped = edges.groupBy("weak").agg(F.collect_list(F.struct("source", "target")).alias("edges"))
    return grouped.select("edges").mapInArrow(_components_of_batches, LABELS)


def flag(name: str) -> Column:
    """The column as boolean, null as false."""
    return F.coalesce(name, F.lit(False)).alias(name)


def turned(edges: DataFrame) -> DataFrame:
    """The edges the other way around: source, target."""
    return edges.select(F.col("target").alias("source"), F.col("source").alias("target"))


def _spread_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The ids that marked sources lead to by the edges of this task: source, target, marked -> id."""
    ids, source, target, marked = _read_edges(batches)
    if not marked.any():
        return
    seeds = np.zeros(len(ids), dtype=bool)
    seeds[source[marked]] = True
    yield _as_batch(ids[_classes(seeds, source, target).covered & ~seeds])


def _peel_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The targets that a cycle of this task or a marked source of another leads to: source, target, marked -> id.

    All edges into a target are in one task, so that a source which is a target here is judged here.
    """
    ids, source, target, marked = _read_edges(batches)
    # A source that is no target of this task is judged by another: it is a root here for as long as it is marked.
    own, roots = np.zeros(len(ids), dtype=bool), np.zeros(len(ids), dtype=bool)
    own[target] = True
    source, target = source[marked], target[marked]
    component = _classes(roots, source, target).component
    roots[source] = True
    roots = (roots & ~own) | (np.bincount(component, minlength=len(ids)) > 1)[component]
    yield _as_batch(ids[_classes(roots, source, target).covered & own])


def _components_of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Strong components of disjoint graphs, a row each: edges list<struct<source, target>> -> id, component."""
    for batch in batches:
        edges = batch.column("edges").flatten()
        ids, source, target = _renumber(*(edges.field(name).to_numpy() for name in ("source", "target")))
        component = _classes(np.zeros(len(ids), dtype=bool), source, target).component
        yield pa.RecordBatch.from_pydict({"id": pa.array(ids), "component": pa.array(ids[component])})


def _read_edges(batches: Iterator[pa.RecordBatch]) -> tuple[Indices, Indices, Indices, Flags]:
    """The ids of a task, sorted, its edges by their positions, and whether each edge's source is marked."""
    found = [[batch.column(n).to_numpy(zero_copy_only=False) for n in range(3)] for batch in batches]
    if not found:
        return _NO_IDS, _NO_IDS, _NO_IDS, _NO_IDS.astype(bool)
    source, target, marked = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return *_renumber(source, target), marked.astype(bool)


def _renumber(source: Indices, target: Indices) -> tuple[Indices, Indices, Indices]:
    """The ids of some edges ascending, and both ends of each as positions among them."""
    ids, positions = np.unique(np.concatenate([source, target]), return_inverse=True)
    return ids, positions[: len(source)], positions[len(source) :]


def _classes(seeds: Flags, source: Indices, target: Indices) -> Classes:
    """The classes of one graph whose nodes all count as context; `covered` is what the seeds reach."""
    size = len(seeds)
    ones = np.ones(size, dtype=np.int64)
    return find_classes(Nodes(ones * 0, ones.astype(bool), seeds, ones, 1), source, target)


def _as_batch(ids: Indices) -> pa.RecordBatch:
    """The ids as a batch of `IDS`."""
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})


class CondensationError(RuntimeError):
    """A condensation that did not come to its end, or that verification refused. It is never used."""


class Components(Protocol):
    """Components of a graph: vertices (id long), edges (src, dst long) -> id, component long, of any value.

    Two vertices of one component have one value. `release` frees what the last answer holds, once it was kept:
    GraphFrames persists its results and leaves them to the caller.
    """

    def weak(self, vertices: DataFrame, edges: DataFrame) -> DataFrame:
        """Weak components, exact."""

    def strong(self, vertices: DataFrame, edges: DataFrame) -> DataFrame:
        """Strong components, or parts of them."""

    def release(self) -> None:
        """Frees what the last answer holds."""


@dataclass(frozen=True)
class Condensed:
    """The rows of a condensation.

    `classes`: graph, node, statement, representative, covered, in_basis; a row a node, `statement` null where its class
    holds no context node. `counts`: graph, covered, uncovered long, low, high double (null without statements).
    """

    classes: DataFrame
    counts: DataFrame


@dataclass(frozen=True)
class Solution:
    """`vertices`: id, component (the smallest id of its class), reached; `quotient`: source, target between classes.

    `reached`: whether a response vertex reaches the class, by a path of any length.
    """

    vertices: DataFrame
    quotient: DataFrame


@dataclass(frozen=True)
class Condensation:
    """Condenses graphs of any size. `limit`: the most edges that one task takes.

    `components` is asked only for what is left of a graph when mutual edges, small weak components and what lies on no
    cycle are gone: its rounds have a fixed cost, measured at 19 s for 40 nodes on two cores.
    """

    components: Components
    workspace: StepStore
    limit: int

    @property
    def _walker(self) -> Walker:
        """What follows paths, within the same limit and in the same workspace."""
        return Walker(self.workspace, self.limit)

    def condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """What `condensation.condense_batches` gives, as rows.

        nodes: graph string, node long or string, context, response boolean, frequency long. edges: graph, source,
        target, judged boolean. Raises ValueError for an edge to a node that its graph does not have, and
        CondensationError where the components do not come to an end or are wrong.
        """
        members = self.workspace.keep(_number(nodes), "numbered-nodes")
        pairs = self._find_pairs(members, edges)
        lower = self.solve(members.select("id", "response"), pairs.where("judged").select("source", "target"))
        upper = self._solve_bounds(members, pairs, lower.vertices)
        rows = self.workspace.keep(_join_solutions(members, lower.vertices, upper), "solved-nodes")
        return Condensed(self._find_classes(rows, lower.quotient), _count_statements(rows))

    def solve(self, vertices: DataFrame, edges: DataFrame) -> Solution:
        """vertices: id, response; edges: source, target. Raises CondensationError for what verification refuses."""
        links = self.workspace.keep(_tidy(edges), "links")
        labels = self.find_components(vertices.select("id"), links)
        quotient = self.workspace.keep(_relabel(links, labels), "quotient")
        # Before anything is derived from the labels: too fine ones give plausible scores that are wrong.
        self.verify(labels, links, quotient)
        responses = vertices.where("response").select("id")
        seeds = labels.join(responses, on="id", how="left_semi").select(F.col("component").alias("id"))
        found = self._walker.spread(seeds, quotient, self.workspace.count(quotient))
        reached = found.select(F.col("id").alias("component"), F.lit(True).alias("reached"))
        solved = labels.join(reached, on="component", how="left").select("id", "component", flag("reached"))
        return Solution(self.workspace.keep(solved, "solution"), quotient)

    def find_components(self, vertices: DataFrame, edges: DataFrame) -> DataFrame:
        """Strong components, not yet verified: id, component (the smallest id of its class).

        vertices: id; edges: source, target, no loops. Mutual edges are contracted first; then weak components that fit
        a task are solved in one, and the rest by the strong components of what is on cycles, again and again.
        """
        labels = vertices.select("id", F.col("id").alias("component"))
        # What entails each other is one class, so classes of mutual edges are weak components, which are exact;
        # most classes of more than one text are of that kind.
        mutual, remaining = self._find_mutual(edges), edges
        if self.workspace.count(mutual):
            labels, remaining = self._contract(labels, edges, self._merge_mutual(mutual))
        if not self.workspace.count(remaining):
            return labels
        weak = self._take(self.components.weak(_ends(remaining), _as_graph(remaining)))
        # By turns: what lies on no cycle is peeled off, what is left is asked for classes and contracted, and that
        # again. Each round of asking finds a class at least, so there is an end.
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
                remaining = self._walker.find_core(large)
            on_cycles = not on_cycles

    def verify(self, labels: DataFrame, edges: DataFrame, quotient: DataFrame) -> None:
        """Raises CondensationError unless classes are strongly connected and their quotient has no cycle.

        labels: id, component; edges: source, target; quotient: the edges between classes.

        As an algorithm that stops early would have it: a chain of twenty cycles of two nodes came back as 36 classes
        instead of 20 (GraphFrames, 5 iterations). Linear in the edges, by as many rounds as paths change tasks.
        """
        # A class of one node is strongly connected by itself; the head of a larger one stands for it on both walks.
        members = labels.where("id <> component")
        within = self.workspace.keep(_within(edges, labels), "links-within-classes")
        size, heads = self.workspace.count(within), members.select(F.col("component").alias("id"))
        apart = [
            members.join(self._walker.spread(heads, walked, size), on="id", how="left_anti")
            for walked in (within, turned(within))
        ]
        if lost := self.workspace.count(apart[0].unionByName(apart[1]).distinct()):
            raise CondensationError(f"{lost:,} nodes are in a class whose other nodes they do not entail in turn")
        if self.workspace.count(self._walker.peel(quotient, self.workspace.count(quotient)).limit(1)):
            raise CondensationError("the strongly connected components are incomplete: a cycle of components remains")

    def _find_pairs(self, members: DataFrame, edges: DataFrame) -> DataFrame:
        """source, target, judged, by ids."""
        found = edges
        for end in ("source", "target"):
            # A left join below: an end without a node shall be counted and named, not lost.
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
        """The vertices of the solution with unjudged pairs as edges too, which starts from the classes without them."""
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
        """The edges that have a turned twin, each such pair once."""
        twins = turned(edges.where("source > target"))
        return self.workspace.keep(edges.join(twins, on=["source", "target"], how="inner"), "mutual-links")

    def _merge_mutual(self, mutual: DataFrame) -> DataFrame:
        """Classes of mutual edges alone: id, component."""
        if self.workspace.count(mutual) > self.limit:
            return self._take(self.components.weak(_ends(mutual), _as_graph(mutual)))
        both = mutual.unionByName(turned(mutual))
        return solve_apart(both.select(F.lit(0).alias("weak"), "source", "target"))

    def _ask_strong(self, edges: DataFrame) -> DataFrame:
        """Classes of a graph whose every edge is on a cycle or between two: id, component.

        Raises CondensationError where none has two nodes: contracting them would change nothing, for ever.
        """
        found = self._take(self.components.strong(_ends(edges), _as_graph(edges)))
        if not self.workspace.count(found.where("id <> component").limit(1)):
            raise CondensationError("strong components found no class in a graph with cycles. Raise the iterations")
        return found

    def _take(self, found: DataFrame) -> DataFrame:
        """An answer of `components`, each component named by its smallest id."""
        kept = self.workspace.keep(_smallest(found))
        self.components.release()
        return kept

    def _contract(self, labels: DataFrame, edges: DataFrame, found: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Labels and edges after the classes `found` (id, component) became one vertex each."""
        return self.workspace.keep(_compose(labels, found)), self.workspace.keep(_relabel(edges, found))

    def _split(self, edges: DataFrame, weak: DataFrame) -> tuple[DataFrame, DataFrame]:
        """weak, source, target: the edges of weak components that fit a task, and those of the others."""
        whole = weak.select(F.col("id").alias("source"), F.col("component").alias("weak"))
        marked = edges.join(whole, on="source", how="left").select("weak", "source", "target")
        sizes = marked.groupBy("weak").agg(F.count("*").alias("size"))
        sized = self.workspace.keep(marked.join(sizes, on="weak", how="inner"))
        fits = F.col("size") <= self.limit
        return sized.where(fits).drop("size"), self.workspace.keep(sized.where(~fits).drop("size"))

    def _find_classes(self, rows: DataFrame, quotient: DataFrame) -> DataFrame:
        """The rows of classes. rows: see `_join_solutions`; quotient: source, target between classes."""
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
        """Ids of the classes that an uncovered statement other than themselves reaches.

        Paths go on through classes that are no statements; from a statement on they are that statement's own.
        """
        missing = heads.where("not reached")
        kinds = missing.select(F.col("lower").alias("source"), F.col("statement").isNotNull().alias("is_statement"))
        leaving = self.workspace.keep(quotient.join(kinds, on="source", how="inner"))
        first = leaving.where("is_statement").select(F.col("target").alias("id"))
        between = leaving.where("not is_statement")
        return self._walker.spread(first, between, self.workspace.count(between))


def _number(nodes: DataFrame) -> DataFrame:
    """The nodes with long ids in the order of (graph, node), null flags false, a null frequency 1."""
    return nodes.orderBy("graph", "node").select(
        # Ascending over sorted partitions, with gaps: the smallest id of a class is its first node, as in
        # `condensation`.
        F.monotonically_increasing_id().alias("id"),
        "graph",
        "node",
        flag("context"),
        flag("response"),
        F.coalesce("frequency", F.lit(1).cast("long")).alias("frequency"),
    )


def _tidy(edges: DataFrame) -> DataFrame:
    """source, target without loops and repetitions: neither changes a class, and each round would carry both."""
    return edges.where("source <> target").select("source", "target").distinct()


def _ends(edges: DataFrame) -> DataFrame:
    """The vertices of edges: id."""
    return edges.select(F.explode(F.array("source", "target")).alias("id")).distinct()


def _as_graph(edges: DataFrame) -> DataFrame:
    """The edges by the names that GraphFrames asks for."""
    return edges.select(F.col("source").alias("src"), F.col("target").alias("dst"))


def _smallest(found: DataFrame) -> DataFrame:
    """id, component with each component named by its smallest id."""
    heads = found.groupBy("component").agg(F.min("id").alias("head"))
    return found.join(heads, on="component", how="inner").select("id", F.col("head").alias("component"))


def _compose(labels: DataFrame, found: DataFrame) -> DataFrame:
    """Labels (id, component) after components were merged as `found` (id, component) says."""
    merged = found.select(F.col("id").alias("component"), F.col("component").alias("into"))
    whole = labels.join(merged, on="component", how="left")
    return whole.select("id", F.coalesce("into", "component").alias("component"))


def _relabel(edges: DataFrame, labels: DataFrame) -> DataFrame:
    """Edges between components, without loops and repetitions; ends without a label stay as they are."""
    moved = edges.select("source", "target")
    for end in ("source", "target"):
        names = labels.select(F.col("id").alias(end), F.col("component").alias("into"))
        other = "target" if end == "source" else "source"
        moved = moved.join(names, on=end, how="left").select(other, F.coalesce("into", end).alias(end))
    return _tidy(moved)


def _within(edges: DataFrame, labels: DataFrame) -> DataFrame:
    """The edges between nodes of one class."""
    named = edges
    for end in ("source", "target"):
        names = labels.select(F.col("id").alias(end), F.col("component").alias(f"{end}_class"))
        named = named.join(names, on=end, how="inner")
    return named.where("source_class = target_class").select("source", "target")


def _join_solutions(members: DataFrame, lower: DataFrame, upper: DataFrame) -> DataFrame:
    """graph, id, node, context, frequency; lower, reached: class without, upper, upper_reached: with unjudged pairs."""
    below = lower.select("id", F.col("component").alias("lower"), "reached")
    above = upper.select("id", F.col("component").alias("upper"), F.col("reached").alias("upper_reached"))
    whole = members.join(below, on="id", how="inner").join(above, on="id", how="inner")
    columns = ("graph", "id", "node", "context", "frequency", "lower", "reached", "upper", "upper_reached")
    return whole.select(*columns)


def _describe_classes(rows: DataFrame) -> DataFrame:
    """lower, reached, statement (the smallest node; null without a context node), chosen (id of the representative)."""
    # The least struct: the most frequent node, then the one that comes first. Null, so never least, for other nodes.
    rank = F.when(F.col("context"), F.struct((-F.col("frequency")).alias("rank"), "id"))
    return rows.groupBy("lower").agg(
        F.bool_or("reached").alias("reached"),
        F.when(F.bool_or("context"), F.min("node")).alias("statement"),
        F.min(rank).getField("id").alias("chosen"),
    )


def _count_statements(rows: DataFrame) -> DataFrame:
    """The rows of counts, with the bounds a / (a + d) and b / (b + c) of the contract."""
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
