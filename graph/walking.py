"""Paths walked task by task, for graphs too large for one task: what seeds lead to, and what lies behind cycles.

Each task follows all paths within its own range of edges, so that the rounds are as many as paths change ranges, where
a round for each edge of a path would make a deep graph as slow as it is deep.
"""

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


class Workspace(Protocol):
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

    workspace: Workspace
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
