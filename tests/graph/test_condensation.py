from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.examples import examples
from tests.graph.digraphs import (
    FAMILIES,
    Digraph,
    Edge,
    Node,
    as_strings,
    chain_of_cycles,
    chain_of_two_cycles,
    cycle,
    digraphs,
    edge_rows,
    expected_rows,
    from_batches,
    named_digraphs,
    node_rows,
    oracle,
    path,
    random_digraph,
    to_batch,
)
from untold.graph.condensation import condense_batch, condense_batches

OUTPUT = """
    graph string,
    classes array<struct<node: NODE, statement: NODE, representative: boolean, covered: boolean, in_basis: boolean>>,
    covered long, uncovered long, low double, high double
"""
LARGE = {
    "path": path(10_000, response=5_000),
    "path from its end": path(10_000, response=9_999),
    "path without response": path(10_000),
    "cycle": cycle(10_000, response=77),
    "cycle without response": cycle(10_000),
    "chain of 2-cycles": chain_of_two_cycles(5_000, response=4_000),
    "chain of cycles": chain_of_cycles([3, 50, 1, 400] * 20, response=4_000),
    "random, sparse": random_digraph(1, nodes=10_000, edges=9_000, unjudged=500),
    "random, dense": random_digraph(2, nodes=2_000, edges=40_000, unjudged=2_000),
}


def condense(graphs: Mapping[str, Digraph], node_type: pa.DataType | None = None) -> Any:
    return from_batches(list(condense_batches(iter([to_batch(graphs, node_type)]))))


def only(graph: Digraph) -> dict[str, Any]:
    (row,) = condense_batch(to_batch({"only": graph})).to_pylist()
    return row


def reversed_pairs(pairs: Iterable[Edge]) -> list[Edge]:
    return [Edge(pair.target, pair.source, pair.judged) for pair in pairs]


@pytest.mark.gate
@examples(300)
@given(named_digraphs())
def test_a_batch_of_graphs_equals_networkx_for_each_graph(graphs: dict[str, Digraph]) -> None:
    assert condense(graphs) == expected_rows(graphs)


@examples(100)
@given(named_digraphs(max_graphs=5))
def test_nodes_may_have_names(graphs: dict[str, Digraph]) -> None:
    named = {name: as_strings(graph) for name, graph in graphs.items()}
    assert condense(named, pa.string()) == expected_rows(named)


@examples(100)
@given(named_digraphs(max_graphs=5), st.lists(st.integers(-1_000, 2**62), min_size=8, max_size=8, unique=True))
def test_nodes_may_have_any_numbers(graphs: dict[str, Digraph], numbers: list[int]) -> None:
    numbers = sorted(numbers)
    renumbered = {
        name: Digraph(
            tuple(node._replace(node=numbers[int(node.node)]) for node in graph.nodes),
            tuple(Edge(numbers[int(edge.source)], numbers[int(edge.target)], edge.judged) for edge in graph.edges),
        )
        for name, graph in graphs.items()
    }
    assert condense(renumbered) == expected_rows(renumbered)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_of_graphs_equals_networkx(name: str) -> None:
    family = {name: FAMILIES[name]}
    assert condense(family) == expected_rows(family)
    named = {name: as_strings(FAMILIES[name])}
    assert condense(named, pa.string()) == expected_rows(named)


@pytest.mark.parametrize("seed", range(10))
def test_seeded_graphs_equal_networkx(seed: int) -> None:
    chance = random.Random(seed)
    graphs = {
        f"{number}": random_digraph(
            chance.randrange(10**9),
            nodes=chance.randint(1, 60),
            edges=chance.randint(0, 120),
            unjudged=chance.choice([0, 0, 20]),
        )
        for number in range(50)
    }
    assert condense(graphs) == expected_rows(graphs)


@pytest.mark.parametrize("name", LARGE)
def test_a_large_graph_equals_networkx(name: str) -> None:
    large = {name: LARGE[name]}
    assert condense(large) == expected_rows(large)


@pytest.mark.gate
def test_large_and_small_graphs_share_a_batch() -> None:
    graphs = {**FAMILIES, **LARGE, **{f"{name} again": graph for name, graph in FAMILIES.items()}}
    assert condense(graphs) == expected_rows(graphs)


def test_a_hundred_thousand_samples_fit_one_batch() -> None:
    some = {f"{seed}": random_digraph(seed, nodes=6, edges=8, unjudged=seed % 3) for seed in range(200)}
    few = to_batch(some)
    expected_classes, expected_counts = expected_rows(some)
    order = pa.array([number % len(some) for number in range(100_000)])
    got = condense_batch(pa.record_batch(pa.table(few).take(order).combine_chunks().to_batches()[0]))
    assert got.num_rows == 100_000
    assert from_batches([got.slice(99_800)]) == (expected_classes, expected_counts)
    again = pa.table(got.slice(99_800)).take(order).drop_columns("graph")
    assert pa.table(got).drop_columns("graph").equals(again)


# The published example (methods, section 5). The paper shows the edges in a figure only, so the list is our own.
A0, C0, C1, C2, C3, C4, C5 = range(7)
PUBLISHED = Digraph(
    (Node(A0, False, True), *(Node(number, True, False) for number in (C0, C1, C2, C3, C4, C5))),
    (
        Edge(C0, C2),  # "confirmed that it does not work" and "does not work" entail each other
        Edge(C2, C0),
        Edge(C1, C3),  # "claimed that it would no longer be supported" and "would no longer be supported" too
        Edge(C3, C1),
        Edge(A0, C4),  # the atom "works on" entails both "is available for" and "runs on"
        Edge(A0, C5),
        Edge(C5, C4),
    ),
)


def test_the_published_example() -> None:
    row = only(PUBLISHED)
    assert {
        member["node"]: (member["statement"], member["covered"], member["in_basis"]) for member in row["classes"]
    } == {
        A0: (None, False, False),
        C0: (C0, False, True),
        C1: (C1, False, True),
        C2: (C0, False, True),
        C3: (C1, False, True),
        C4: (C4, True, False),
        C5: (C5, True, False),
    }
    assert (row["covered"], row["uncovered"], row["low"], row["high"]) == (2, 2, 0.5, 0.5)


def test_the_basis_of_the_published_example_leads_where_only_one_way_is_entailed() -> None:
    one_way = Digraph(PUBLISHED.nodes, tuple(edge for edge in PUBLISHED.edges if edge != Edge(C3, C1)))
    row = only(one_way)
    assert [member["node"] for member in row["classes"] if member["in_basis"]] == [C0, C1, C2]
    assert row["uncovered"] == 3


def test_the_most_frequent_context_node_represents_and_the_first_of_equals() -> None:
    nodes = (Node(0, False, True, 9), Node(1, True, False, 2), Node(2, True, True, 3), Node(3, True, False, 3))
    edges = (Edge(0, 1), Edge(1, 2), Edge(2, 3), Edge(3, 0))
    row = only(Digraph(nodes, edges))
    assert [member["node"] for member in row["classes"] if member["representative"]] == [2]
    assert {member["statement"] for member in row["classes"]} == {0}


def test_a_bookkeeping_node_neither_states_nor_keeps_out_of_the_basis() -> None:
    nodes = (Node(0, False, False), Node(1, True, False), Node(2, False, False), Node(3, True, False))
    row = only(Digraph(nodes, (Edge(0, 1), Edge(1, 2), Edge(2, 3))))
    assert [member["statement"] for member in row["classes"]] == [None, 1, None, 3]
    assert [member["node"] for member in row["classes"] if member["in_basis"]] == [1]


# Bounds: the score is within the bounds for all possible labels of the unjudged pairs


def score_of(nodes: Sequence[Node], edges: Iterable[Edge]) -> float | None:
    counts = oracle(nodes, [edge._replace(judged=True) for edge in edges]).counts
    total = counts.covered + counts.uncovered
    return counts.covered / total if total else None


def assert_bounds_hold(graph: Digraph, completions: Iterable[Sequence[Edge]]) -> None:
    row = only(graph)
    judged = [edge for edge in graph.edges if edge.judged]
    for completion in completions:
        score = score_of(graph.nodes, [*judged, *completion])
        if score is None:
            assert row["low"] is row["high"] is None
        else:
            assert 0 <= row["low"] <= score <= row["high"] <= 1


def subsets(pairs: Sequence[Edge]) -> Iterable[list[Edge]]:
    for kept in product([False, True], repeat=len(pairs)):
        yield [pair for pair, keep in zip(pairs, kept, strict=True) if keep]


@examples(200)
@given(digraphs(max_nodes=6))
def test_every_completion_scores_within_the_bounds(graph: Digraph) -> None:
    unjudged = [edge for edge in graph.edges if not edge.judged][:6]
    graph = Digraph(graph.nodes, (*(edge for edge in graph.edges if edge.judged), *unjudged))
    assert_bounds_hold(graph, subsets(unjudged))


@pytest.mark.parametrize("seed", range(60))
def test_every_completion_of_a_random_graph_scores_within_the_bounds(seed: int) -> None:
    chance = random.Random(seed)
    graph = random_digraph(seed, nodes=chance.randint(3, 7), edges=chance.randint(1, 9), unjudged=chance.randint(1, 6))
    assert_bounds_hold(graph, subsets([edge for edge in graph.edges if not edge.judged]))


@pytest.mark.parametrize("seed", range(40))
def test_an_unjudged_pair_of_answers_may_turn_out_either_way(seed: int) -> None:
    drawn = random_digraph(seed, nodes=5, edges=5, unjudged=3)
    pairs = [edge for edge in drawn.edges if not edge.judged]
    graph = Digraph(drawn.nodes, (*drawn.edges, *reversed_pairs(pairs)))
    assert_bounds_hold(graph, subsets([*pairs, *reversed_pairs(pairs)]))


@pytest.mark.parametrize("seed", range(20))
def test_without_unjudged_pairs_the_bounds_are_the_score(seed: int) -> None:
    graph = random_digraph(seed, nodes=12, edges=20)
    row = only(graph)
    assert row["low"] == row["high"] == score_of(graph.nodes, graph.edges)


def test_bounds_can_be_on_both_sides_of_the_score() -> None:
    nodes = (Node(0, False, True), Node(1, True, False), Node(2, True, False), Node(3, True, False))
    unjudged = (Edge(1, 2, False), Edge(2, 1, False), Edge(0, 3, False))
    row = only(Digraph(nodes, (Edge(0, 1), Edge(0, 2), *unjudged)))
    assert (row["covered"], row["uncovered"]) == (2, 1)
    assert (row["low"], row["high"]) == (1 / 2, 1)


def test_a_graph_with_unjudged_pairs_changes_no_other() -> None:
    graphs = {name: FAMILIES[name] for name in ("path", "unjudged", "all context", "all response")}
    alone = {name: condense({name: graph}) for name, graph in graphs.items()}
    classes, counts = condense(graphs)
    assert classes == sorted(row for found, _ in alone.values() for row in found)
    assert counts == sorted(row for _, found in alone.values() for row in found)


# The result is canonical: it does not depend on the order of the rows, the batches or the partitions


def serialised(batches: Sequence[pa.RecordBatch]) -> bytes:
    table = pa.Table.from_batches(list(batches)).sort_by("graph").combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


@examples(50)
@given(named_digraphs(max_graphs=8), st.randoms(use_true_random=False), st.integers(1, 8))
def test_no_order_and_no_batch_size_changes_a_byte(
    graphs: dict[str, Digraph], chance: random.Random, size: int
) -> None:
    names = chance.sample(list(graphs), len(graphs))
    shuffled = {
        name: Digraph(graphs[name].nodes, tuple(chance.sample(graphs[name].edges, len(graphs[name].edges))))
        for name in names
    }
    parts = [to_batch(dict(list(shuffled.items())[start : start + size])) for start in range(0, len(names), size)]
    whole = to_batch(shuffled)
    slices = [whole.slice(start, size) for start in range(0, len(names), size)]
    expected = serialised(list(condense_batches(iter([to_batch(graphs)]))))
    assert serialised(list(condense_batches(iter(parts)))) == expected
    assert serialised(list(condense_batches(iter(slices)))) == expected


def gather(nodes: DataFrame, edges: DataFrame) -> DataFrame:
    """Return one row per graph with sorted nodes and unsorted edges. The edges are null if the graph has no edges."""
    members = nodes.groupBy("graph").agg(
        F.array_sort(F.collect_list(F.struct("node", "context", "response", "frequency"))).alias("nodes")
    )
    between = edges.groupBy("graph").agg(F.collect_list(F.struct("source", "target", "judged")).alias("edges"))
    return members.join(between, on="graph", how="left").select("graph", "nodes", "edges")


@pytest.mark.gate
@pytest.mark.parametrize(("node", "partitions", "batch"), [("long", 1, 10_000), ("long", 5, 2), ("string", 3, 3)])
def test_no_partitioning_of_spark_changes_a_byte(spark: SparkSession, node: str, partitions: int, batch: int) -> None:
    graphs = {name: as_strings(FAMILIES[name]) if node == "string" else FAMILIES[name] for name in sorted(FAMILIES)}
    chance = random.Random(partitions)
    nodes = chance.sample(node_rows(graphs), len(node_rows(graphs)))
    edges = chance.sample(edge_rows(graphs), len(edge_rows(graphs)))
    gathered = gather(
        spark.createDataFrame(nodes, f"graph string, node {node}, context boolean, response boolean, frequency long"),
        spark.createDataFrame(edges, f"graph string, source {node}, target {node}, judged boolean"),
    )
    records = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(records)
    spark.conf.set(records, batch)
    try:
        table = gathered.repartition(partitions).mapInArrow(condense_batches, OUTPUT.replace("NODE", node)).toArrow()
    finally:
        spark.conf.set(records, before)
    whole = to_batch(graphs, pa.string() if node == "string" else pa.int64())
    expected = pa.Table.from_batches([condense_batch(whole)]).cast(table.schema)
    assert from_batches(table.to_batches()) == expected_rows(graphs)
    assert serialised(table.to_batches()) == serialised(expected.to_batches())


# Other columns and types in a batch


def test_lists_may_be_null_or_empty() -> None:
    full = to_batch({"a": Digraph((Node(0, True, False),), ()), "b": Digraph((), ())})
    nothing = pa.nulls(2, full.schema.field("edges").type)
    for edges in (full.column("edges"), nothing):
        rows = condense_batch(pa.record_batch({**columns(full), "edges": edges})).to_pylist()
        assert [(len(row["classes"]), row["covered"], row["uncovered"], row["low"], row["high"]) for row in rows] == [
            (1, 0, 1, 0.0, 0.0),
            (0, 0, 0, None, None),
        ]


def columns(batch: pa.RecordBatch) -> dict[str, Any]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def test_a_batch_without_rows_has_a_batch_as_its_result() -> None:
    (batch,) = condense_batches(iter([to_batch(FAMILIES).slice(0, 0)]))
    assert batch.num_rows == 0
    assert batch.schema.equals(condense_batch(to_batch(FAMILIES)).schema)


def test_undefined_scores_are_null_and_never_nan() -> None:
    counts = condense_batch(to_batch({"none": FAMILIES["all response"], "some": FAMILIES["unjudged"]}))
    for name in ("low", "high"):
        assert counts.column(name).null_count == 1
        assert not pc.any(pc.is_nan(counts.column(name))).as_py()


@pytest.mark.parametrize("edge", [Edge(0, 2), Edge(2, 0), Edge(-1, 0), Edge(0, -1), Edge(0, 7, judged=False)])
@pytest.mark.parametrize("numbers", [range(10), range(-1, 9)])
def test_an_edge_to_a_node_of_another_graph_is_an_error(edge: Edge, numbers: range) -> None:
    broken = Digraph((Node(0, True, False), Node(1, True, False)), (edge,))
    other = Digraph(tuple(Node(number, True, False) for number in numbers), ())
    with pytest.raises(ValueError, match="1 ends of edges are not nodes of their graph"):
        condense({"broken": broken, "other": other})


def test_an_edge_to_a_name_of_another_graph_is_an_error() -> None:
    broken = Digraph((Node("a", True, False),), (Edge("a", "b"),))
    with pytest.raises(ValueError, match="1 ends of edges are not nodes of their graph"):
        condense({"broken": broken, "other": Digraph((Node("b", True, False),), ())}, pa.string())


def test_names_that_look_like_those_of_another_graph_stay_apart() -> None:
    names = ("0", "0:0", "1:0", ":", "", "1")
    graph = Digraph(tuple(Node(name, True, name == "1") for name in names), (Edge("1", "0:0"), Edge("0", "1:0")))
    graphs = {f"{number}": graph for number in range(12)}
    assert condense(graphs, pa.string()) == expected_rows(graphs)
