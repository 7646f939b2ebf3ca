"""Compare the distributed condensation with SciPy and networkx. The components under test are too fine on purpose."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import SparkSession

from tests.graph.digraphs import (
    FAMILIES,
    Digraph,
    as_strings,
    chain_of_cycles,
    chain_of_two_cycles,
    cycle,
    edge_rows,
    expected_rows,
    from_batches,
    named_digraphs,
    node_rows,
    path,
    petals,
    random_digraph,
    to_batch,
)
from tests.graph.standin import CoarseComponents, FineComponents, StuckComponents, has_graphframes
from untold.graph.condensation import condense_batches
from untold.graph.distributed import Components, Condensation, CondensationError
from untold.jobs.metrics.condensing import Condenser, GraphFramesComponents, GraphFramesError
from untold.jobs.run.folders import Workspace
from untold.jobs.settings.model import GraphSettings, Settings

NODES = "graph string, node {}, context boolean, response boolean, frequency long"
EDGES = "graph string, source {}, target {}, judged boolean"
LIMIT = 25

Rows = list[tuple[Any, ...]]


def condense(
    spark: SparkSession,
    folder: Path,
    graphs: Mapping[str, Digraph],
    components: Components | None,
    *,
    limit: int = LIMIT,
    method: str = "graphframes",
    kind: str = "long",
) -> tuple[Rows, Rows]:
    """Return the sorted rows of the classes and of the counts that the condenser computes."""
    given = Settings(graph=GraphSettings(method=method, max_edges_in_task=limit))  # type: ignore[arg-type]
    work = folder / f"work-{len(list(folder.iterdir()))}"
    nodes = spark.createDataFrame(node_rows(graphs), NODES.format(kind))
    edges = spark.createDataFrame(edge_rows(graphs), EDGES.format(kind, kind))
    found = Condenser(given, Workspace(spark, str(work)), components).condense(nodes, edges)
    classes = found.classes.select("graph", "node", "statement", "representative", "covered", "in_basis").collect()
    counts = found.counts.select("graph", "covered", "uncovered", "low", "high").collect()
    assert not list(work.glob("*-condensation")), "steps are deleted"
    return sorted(map(tuple, classes), key=lambda row: row[:2]), sorted(map(tuple, counts))


LARGE = {
    "chain of cycles": chain_of_cycles([2, 5, 3, 4] * 3, response=11),
    "petals": petals(6, 6),
    **{name: FAMILIES[name] for name in ("chain of twenty 2-cycles", "path", "cycle")},
}
SMALL = {
    name: FAMILIES[name] for name in ("through bookkeeping nodes", "unjudged", "isolated", "duplicates", "random 3")
}


@pytest.mark.slow
def test_equals_scipy_and_networkx(spark: SparkSession, tmp_path: Path) -> None:
    graphs = {**LARGE, **SMALL}
    components = FineComponents(found=100)
    found = condense(spark, tmp_path, graphs, components)
    assert found == expected_rows(graphs)
    assert found == from_batches(list(condense_batches(iter([to_batch(graphs)]))))
    assert components.asked.count("strong") > 1, "one call was not enough"
    assert components.held == 0, "what the components held is released"


@pytest.mark.gate
@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graphs=named_digraphs(max_graphs=60, max_nodes=9))
def test_equals_networkx_for_any_digraph(spark: SparkSession, tmp_path: Path, graphs: dict[str, Digraph]) -> None:
    found = condense(spark, tmp_path, graphs, FineComponents(found=100), limit=20)
    assert found == expected_rows(graphs)


def test_the_condenser_sends_small_graphs_to_tasks(spark: SparkSession, tmp_path: Path) -> None:
    graphs = {
        **{name: as_strings(FAMILIES[name]) for name in ("isolated", "duplicates", "chain of one 2-cycle", "unjudged")},
        "large": as_strings(chain_of_cycles([3, 4], response=0)),
    }
    components = FineComponents()
    found = condense(spark, tmp_path, graphs, components, limit=7, method="auto", kind="string")
    assert found == expected_rows(graphs)
    assert components.asked == ["weak", "strong"]


@pytest.mark.parametrize("method", ["auto", "local"])
def test_the_condenser_uses_no_library_if_all_graphs_are_small(
    spark: SparkSession, tmp_path: Path, method: str
) -> None:
    limit = 1 if method == "local" else 1000
    found = condense(spark, tmp_path, FAMILIES, None, limit=limit, method=method)
    assert found == expected_rows(FAMILIES)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("components", "graph", "message"),
    [
        (CoarseComponents(), chain_of_cycles([5, 4]), "nodes are in a class whose other nodes they do not entail"),
        (StuckComponents(), cycle(9), "found no class in a graph with cycles"),
    ],
)
def test_wrong_components_are_found_out(
    spark: SparkSession, tmp_path: Path, components: Components, graph: Digraph, message: str
) -> None:
    with pytest.raises(GraphFramesError, match=message):
        condense(spark, tmp_path, {"graph": graph}, components, limit=4)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 0, 0, 3, 3, 5], None),
        ([0, 0, 0, 3, 4, 5], "a cycle of components remains"),
        ([0, 0, 0, 3, 3, 3], "1 nodes are in a class"),
        ([0, 0, 0, 0, 0, 5], "2 nodes are in a class"),
    ],
)
@pytest.mark.parametrize("limit", [3, 100])
def test_verification(spark: SparkSession, tmp_path: Path, labels: list[int], message: str | None, limit: int) -> None:
    steps = Workspace(spark, str(tmp_path / "steps"))
    condensation = Condensation(FineComponents(), steps, limit)
    named = spark.createDataFrame(pa.table({"id": range(6), "component": labels}))
    graph = chain_of_cycles([3, 2, 1])
    pairs = [(edge.source, edge.target) for edge in graph.edges if edge.source != edge.target]
    edges = spark.createDataFrame(pa.table(dict(zip(("source", "target"), zip(*pairs, strict=True), strict=True))))
    between = {(labels[source], labels[target]) for source, target in pairs if labels[source] != labels[target]}
    quotient = spark.createDataFrame(list(between), "source long, target long")
    if message is None:
        condensation.verify(named, edges, quotient)
        return
    with pytest.raises(CondensationError, match=message):
        condensation.verify(named, edges, quotient)


def test_an_edge_to_no_node_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    graph = path(4)
    with pytest.raises(ValueError, match="1 edges have an end that is not a node"):
        condense(spark, tmp_path, {"graph": replace(graph, nodes=graph.nodes[:3])}, FineComponents())


def test_missing_jar_is_one_line_with_the_remedies(spark: SparkSession, tmp_path: Path) -> None:
    if has_graphframes(spark):
        pytest.skip("this session has GraphFrames")
    with pytest.raises(GraphFramesError) as raised:
        condense(spark, tmp_path, {"graph": cycle(9)}, None, limit=4, method="auto")
    message = str(raised.value)
    for part in ("graphframes-spark4_2.13:0.12.2", "spark.jars.packages", "graph.jar", "UNTOLD_GRAPHFRAMES_JAR"):
        assert part in message
    assert "\n" not in message


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_equals_networkx_at_any_limit(spark: SparkSession, tmp_path: Path, limit: int) -> None:
    graphs = {**FAMILIES, **LARGE}
    assert condense(spark, tmp_path, graphs, FineComponents(found=100), limit=limit) == expected_rows(graphs)


@pytest.mark.slow
def test_deep_graphs_are_walked_task_by_task(spark: SparkSession, tmp_path: Path) -> None:
    graphs = {
        "path": path(10_000, response=5_000),
        "cycle": cycle(10_000),
        "chain": chain_of_two_cycles(5_000, response=5_000),
        "random": random_digraph(7, nodes=5_000, edges=7_000),
    }
    assert condense(spark, tmp_path, graphs, FineComponents(shortest=20_000), limit=4_000) == expected_rows(graphs)


@pytest.fixture
def real(spark: SparkSession, tmp_path: Path) -> GraphFramesComponents:
    """Return the components of the library if its jar is on the class path of the session."""
    if not has_graphframes(spark):
        named = os.environ.get("UNTOLD_GRAPHFRAMES_JAR")
        pytest.skip(f"GraphFrames is not on the class path (UNTOLD_GRAPHFRAMES_JAR is {named})")
    return GraphFramesComponents(spark, Settings(), str(tmp_path / "checkpoints"))


@pytest.mark.graphframes
def test_graphframes_equals_networkx(spark: SparkSession, tmp_path: Path, real: GraphFramesComponents) -> None:
    before = set(spark.sparkContext._jsc.getPersistentRDDs())  # type: ignore[attr-defined]
    graphs = {**LARGE, **SMALL}
    assert condense(spark, tmp_path, graphs, real) == expected_rows(graphs)
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) == before  # type: ignore[attr-defined]


@pytest.mark.graphframes
def test_graphframes_components(spark: SparkSession, tmp_path: Path, real: GraphFramesComponents) -> None:
    """The weak components are exact. The strong components are never too coarse and never empty on a cyclic graph."""
    steps = Workspace(spark, str(tmp_path / "steps"))
    graph = chain_of_cycles([3, 4, 2])
    table = pa.table({"src": [edge.source for edge in graph.edges], "dst": [edge.target for edge in graph.edges]})
    edges = steps.keep(spark.createDataFrame(table))
    vertices = steps.keep(spark.createDataFrame(pa.table({"id": [node.node for node in graph.nodes]})))
    assert len({row["component"] for row in steps.keep(real.weak(vertices, edges)).collect()}) == 1
    real.release()
    found = {row["id"]: row["component"] for row in steps.keep(real.strong(vertices, edges)).collect()}
    real.release()
    parts = {frozenset(id for id in found if found[id] == component) for component in found.values()}
    assert all(any(part <= whole for whole in ({0, 1, 2}, {3, 4, 5, 6}, {7, 8})) for part in parts)
    assert len(parts) < len(found)
    assert (
        Condensation(real, steps, 1).find_components(vertices, steps.keep(edges.toDF("source", "target"))).count() == 9
    )


@pytest.mark.slow
@pytest.mark.graphframes
def test_graphframes_frees_its_own_data_only(spark: SparkSession, tmp_path: Path, real: GraphFramesComponents) -> None:
    """Twenty calls keep no data in memory, except for the results that the test keeps between call and release."""
    steps = Workspace(spark, str(tmp_path / "steps"), in_memory=True)
    graph = chain_of_cycles([3, 2])
    table = pa.table({"src": [edge.source for edge in graph.edges], "dst": [edge.target for edge in graph.edges]})
    edges = steps.keep(spark.createDataFrame(table))
    vertices = steps.keep(spark.createDataFrame(pa.table({"id": [node.node for node in graph.nodes]})))
    cached = vertices.selectExpr("id + 1 AS id").cache()
    site = spark.sparkContext.getLocalProperty("callSite.short")
    before, sizes, kept = _persisted(spark), [], []
    for call in range(20):
        found = (real.strong if call % 2 else real.weak)(vertices, edges)
        # The first action on a frame of the user runs while the result of the library is in memory
        assert cached.count() == 5
        kept.append(steps.keep(found.select("id", "component")))
        assert len(_persisted(spark)) > len(before) + len(kept) + 1
        real.release()
        sizes.append(len(_persisted(spark)) - len(before) - len(kept))
    assert sizes == [1] * 20, "the cached frame only"
    assert [frame.count() for frame in kept] == [5] * 20, "local checkpoints are still there"
    assert cached.is_cached
    cached.unpersist()
    assert spark.sparkContext.getLocalProperty("callSite.short") == site
    # A kept result has five rows and needs less than 2 kB
    assert sum(_persisted(spark).values()) - sum(before.values()) < 20 * 2000


def _persisted(spark: SparkSession) -> dict[int, int]:
    """Return the bytes in memory and on disk of each persistent RDD, by its id."""
    context = spark.sparkContext._jsc
    stored = {info.id(): info.memSize() + info.diskSize() for info in context.sc().getRDDStorageInfo()}  # type: ignore[attr-defined]
    return {number: stored.get(number, 0) for number in context.getPersistentRDDs()}  # type: ignore[attr-defined]
