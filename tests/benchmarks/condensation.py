"""Measure condensed graphs per second and core in Spark: with SciPy in batches, and with two slower methods."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from os import cpu_count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.benchmarks.figures import Figure, Options
from untold.graph.condensation import condense_batch
from untold.jobs.run.session import open_session
from untold.jobs.settings.model import Settings

NODES, EDGES, RESPONSES = 30, 60, 10
GOAL_RATE = 100_000
# The limit for a linear method: the rate at the most graphs over the rate at the fewest
GOAL_LINEAR = 0.8
PAIRS = 3
# The slower methods use fewer graphs: a second of SciPy is a minute for them
GRAPHS_BY_NETWORKX = 10_000
GRAPHS_IN_GROUPS = 5_000
GRAPHS_OF_A_FILE = 10_000
UNIT = "graphs/s/core"
TIMED = "graphs long, seconds double, covered long, uncovered long"
MEMBER = pa.struct([("node", pa.int64()), ("context", pa.bool_()), ("response", pa.bool_()), ("frequency", pa.int64())])
PAIR = pa.struct([("source", pa.int64()), ("target", pa.int64()), ("judged", pa.bool_())])
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Timed:
    """The number of condensed graphs, the seconds of one core, and the statements."""

    graphs: int
    seconds: float
    statements: tuple[int, int]

    @property
    def rate(self) -> float:
        """Return graphs per second."""
        return self.graphs / self.seconds


def measure(options: Options) -> list[Figure]:
    """Measure all methods in turn, repeatedly, on the same graphs. Raises RuntimeError if two methods differ."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    sizes, pairs = sorted(options.graphs), options.pairs or PAIRS
    few, grouped = min(GRAPHS_BY_NETWORKX, sizes[-1]), min(GRAPHS_IN_GROUPS, sizes[-1])
    with TemporaryDirectory(prefix="untold-") as place, open_session(Settings(), "untold-benchmarks") as spark:
        folders = {size: write_graphs(Path(place) / f"{size}", size) for size in {*sizes, few, grouped}}
        rows = {size: str(folder) for size, folder in folders.items()}
        flat = str(Path(place) / "flat")
        flatten(spark.read.parquet(rows[grouped])).write.parquet(flat)
        steps: dict[str, Callable[[], Timed]] = {
            **{f"SciPy step, {size:,} graphs": partial(time_scipy, spark, rows[size]) for size in sizes},
            f"SciPy step, the {few:,} of networkx": partial(time_scipy, spark, rows[few]),
            f"networkx, {few:,} graphs": partial(time_networkx, spark, rows[few]),
            f"collect_list and mapInArrow, {grouped:,} graphs": partial(time_collected, spark, flat),
            f"applyInArrow a graph, {grouped:,} graphs": partial(time_groups, spark, flat),
        }
        for name in list(steps)[len(sizes) :]:  # the first time warms the JVM and its workers
            steps[name]()
        turns = [{name: step() for name, step in steps.items()} for _ in range(pairs)]
    return _figures(turns, len(sizes))


def _figures(turns: list[dict[str, Timed]], sizes: int) -> list[Figure]:
    names = list(turns[0])
    scipy, networkx, collected, groups = names[sizes:]
    for turn in turns:
        _check(turn, scipy, networkx)
        _check(turn, collected, groups)
    return [
        *(Figure(name, _rates(turns, name), UNIT, at_least=GOAL_RATE) for name in names[:sizes]),
        _ratio(turns, "linear: rate at the most / the fewest graphs", names[sizes - 1], names[0], GOAL_LINEAR),
        *(Figure(name, _rates(turns, name), UNIT) for name in names[sizes:]),
        _ratio(turns, "SciPy step / networkx", scipy, networkx),
        _ratio(turns, "collect_list and mapInArrow / applyInArrow", collected, groups),
    ]


def _check(turn: dict[str, Timed], first: str, second: str) -> None:
    if turn[first].statements != turn[second].statements:
        raise RuntimeError(f"{first} and {second} do not agree on the statements: the figures would be off")


def _rates(turns: list[dict[str, Timed]], name: str) -> tuple[float, ...]:
    return tuple(turn[name].rate for turn in turns)


def _ratio(turns: list[dict[str, Timed]], name: str, above: str, below: str, goal: float | None = None) -> Figure:
    return Figure(name, tuple(turn[above].rate / turn[below].rate for turn in turns), at_least=goal)


# The graphs: created once, in the format of `condense_batches`


def write_graphs(folder: Path, count: int) -> Path:
    """Write `count` random graphs, one per row, in files of `GRAPHS_OF_A_FILE`. Equal counts have equal graphs."""
    folder.mkdir()
    for first in range(0, count, GRAPHS_OF_A_FILE):
        table = make_graphs(first, min(GRAPHS_OF_A_FILE, count - first))
        pq.write_table(table, folder / f"{first:08}.parquet", compression="zstd")
    return folder


def make_graphs(first: int, count: int) -> pa.Table:
    """Return graph, nodes, edges. `RESPONSES` of the nodes belong to the response, the others to contexts."""
    chance = np.random.default_rng(first)
    node = np.tile(np.arange(NODES), count)
    members = [node, node >= RESPONSES, node < RESPONSES, np.ones(len(node), dtype=np.int64)]
    ends = [chance.integers(0, NODES, EDGES * count) for _ in range(2)]
    return pa.table(
        {
            "graph": pa.array([f"{number:08}" for number in range(first, first + count)]),
            "nodes": _lists(MEMBER, members, NODES, count),
            "edges": _lists(PAIR, [*ends, np.ones(EDGES * count, dtype=bool)], EDGES, count),
        }
    )


def _lists(kind: Any, columns: list[Any], length: int, count: int) -> Any:
    values = pa.StructArray.from_arrays([pa.array(column) for column in columns], fields=list(kind))
    return pa.ListArray.from_arrays(pa.array(np.arange(count + 1) * length, pa.int32()), values)


def flatten(rows: DataFrame) -> DataFrame:
    """Return one row per node and one per edge: graph, member, pair, with null for the other."""
    members = rows.select("graph", F.explode("nodes").alias("member"))
    pairs = rows.select("graph", F.explode("edges").alias("pair"))
    return members.unionByName(pairs, allowMissingColumns=True).select("graph", "member", "pair")


# The methods


def time_scipy(spark: SparkSession, rows: str) -> Timed:
    """Measure only the step: the sum of the seconds of tasks in `condense_batch`."""
    return _sum(spark.read.parquet(rows).mapInArrow(_timed(condense_batch), TIMED))


def time_networkx(spark: SparkSession, rows: str) -> Timed:
    """Measure single graphs at the same point: the sum of the seconds from Python values to statements."""
    return _sum(spark.read.parquet(rows).mapInArrow(_timed(condense_by_networkx), TIMED))


def time_collected(spark: SparkSession, flat: str) -> Timed:
    """Measure the whole job from rows of nodes and edges to statements: groups by built-ins, then batches of graphs."""
    gathered = (
        spark.read.parquet(flat)
        .groupBy("graph")
        .agg(F.array_sort(F.collect_list("member")).alias("nodes"), F.collect_list("pair").alias("edges"))
    )
    return _whole(gathered.mapInArrow(_timed(condense_batch), TIMED))


def time_groups(spark: SparkSession, flat: str) -> Timed:
    """Measure the same job with one call of `condense_batch` per graph."""

    def condense_group(group: pa.Table) -> pa.Table:
        columns = {
            "graph": group["graph"].slice(0, 1),
            "nodes": _as_list(group, "member"),
            "edges": _as_list(group, "pair"),
        }
        (batch,) = pa.table(columns).combine_chunks().to_batches()
        return pa.Table.from_batches(list(_timed(condense_batch)(iter([batch]))))

    return _whole(spark.read.parquet(flat).groupBy("graph").applyInArrow(condense_group, TIMED))


def _as_list(group: pa.Table, name: str) -> Any:
    values = group[name].combine_chunks().drop_null()
    if name == "member":
        values = values.take(pc.sort_indices(values.field("node")))
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def _timed(condense: Callable[[pa.RecordBatch], Any]) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        for batch in batches:
            began = process_time()
            found = condense(batch)
            seconds = process_time() - began
            sums = [pc.sum(found.column(name)).as_py() for name in ("covered", "uncovered")]
            row = [batch.num_rows, seconds, *(total or 0 for total in sums)]
            yield pa.record_batch([pa.array([value]) for value in row], ["graphs", "seconds", "covered", "uncovered"])

    return run


def condense_by_networkx(batch: pa.RecordBatch) -> Any:
    """Return the statements of every graph of a batch: columns covered, uncovered, basis."""
    counts = [_condense_one(row["nodes"], row["edges"]) for row in batch.to_pylist()]
    return pa.table(
        {name: [row[place] for row in counts] for place, name in enumerate(("covered", "uncovered", "basis"))}
    )


def _condense_one(nodes: list[dict[str, Any]], edges: list[dict[str, Any]]) -> tuple[int, int, int]:
    graph = nx.DiGraph()
    graph.add_nodes_from(node["node"] for node in nodes)
    graph.add_edges_from((edge["source"], edge["target"]) for edge in edges)
    quotient = nx.condensation(graph)
    component = quotient.graph["mapping"]
    reached = {component[node["node"]] for node in nodes if node["response"]}
    for number in nx.topological_sort(quotient):
        if any(before in reached for before in quotient.predecessors(number)):
            reached.add(number)
    statements = {component[node["node"]] for node in nodes if node["context"]}
    uncovered = statements - reached
    basis = [number for number in uncovered if not any(before in uncovered for before in quotient.predecessors(number))]
    return len(statements & reached), len(uncovered), len(basis)


def _sum(timed: DataFrame) -> Timed:
    row = timed.agg(*(F.sum(name).alias(name) for name in timed.columns)).first()
    assert row is not None
    return Timed(row["graphs"], row["seconds"], (row["covered"], row["uncovered"]))


def _whole(timed: DataFrame) -> Timed:
    """Return the result with the seconds of the whole job times its cores."""
    began = perf_counter()
    summed = _sum(timed)
    cores = min(cpu_count() or 1, timed.sparkSession.sparkContext.defaultParallelism)
    return Timed(summed.graphs, (perf_counter() - began) * cores, summed.statements)
