"""Condense relations from any source to statements: `untold condense` (methods, section 5)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.inputs.files import AS_THEY_ARE, ReadOptions
from untold.jobs.inputs.options import CondenseOptions
from untold.jobs.inputs.reading import read_table
from untold.jobs.inputs.samples import fingerprint
from untold.jobs.metrics.base import contract_rows, score_columns, status_of
from untold.jobs.metrics.condensing import Condensed, Condenser
from untold.jobs.run import manifest
from untold.jobs.run.folders import Workspace
from untold.jobs.run.manifest import OutputError
from untold.jobs.run.outcome import Ending
from untold.jobs.run.output import ORDER, Output, shown
from untold.jobs.run.session import open_session
from untold.jobs.run.terminal import amount, page_of, print_lines, table
from untold.jobs.run_tables import find_table
from untold.jobs.settings.model import Settings
from untold.jobs.tables import ATOMS, SCORES, STATEMENTS
from untold.udfs.errors import UserError, aside, near_misses, shorten
from untold.udfs.redaction import redact

METRIC = "condense"
# The relations with an edge from premise to hypothesis, and the relations with the reverse edge. The other relations
# have no edge. The tables of nli and qa have these names (docs/contract.md, "Tables")
FORWARD = ("entailment", "implied", "equivalent", "first_implies_second")
BACKWARD = ("equivalent", "second_implies_first")
UNORDERED = ("equivalent", "first_implies_second", "second_implies_first", "contradictory")
RELATION_VALUES = tuple(dict.fromkeys((*FORWARD, *BACKWARD, *UNORDERED, "contradiction", "neutral")))
ORIGINS = ("context", "response", "both")
# A graph has the relations of one sample and one metric
GROUPS = ("sample_id", "metric")
RELATION_NEEDS = ("premise_id", "hypothesis_id", "relation")
NODE_NEEDS = ("id", "text", "origin")
FREQUENCY = "frequency"
# The number of examples in a message
SHOWN = 3
TABLES = {"statements": STATEMENTS, "atoms": ATOMS, "scores": SCORES}


class RelationsError(UserError):
    """The relations or nodes cannot be condensed. The message is one line with the problem and its frequency."""


@dataclass(frozen=True, kw_only=True)
class CondenseRequest(CondenseOptions):
    """The options of `untold condense`, its settings, and the options of the reader."""

    settings: Settings
    read: ReadOptions = AS_THEY_ARE


def condense(request: CondenseRequest) -> dict[str, int]:
    """Write statements, atoms, scores and a manifest, and return the counts.

    The counts are graphs, ok, partial, no_statements, statements, covered, basis, nodes and relations. No model is
    used. Raises RelationsError for invalid input and OutputError for an existing output. Methods, section 5.
    """
    with Output(request.output, tuple(TABLES), request.overwrite, inputs=[request.relations, request.nodes]) as output:
        _check_output(request)
        return _condense(output, request, output.workspace(open_session(request.settings)))


def _condense(output: Output, request: CondenseRequest, steps: Workspace) -> dict[str, int]:
    """Read, check and condense the input, and write the tables. The manifest starts after the checks."""
    relations, nodes = _read_input(steps, request)
    prints = {"relations": fingerprint(relations), "nodes": fingerprint(nodes)}
    # The same relations from another path are the same run
    output.claim({"input": prints, "metrics": [METRIC]})
    given = {"relations": request.relations, "nodes": request.nodes, "fingerprints": prints}
    output.begin(shown(request.settings), metrics=[METRIC], input=given, counts={})
    vertices = nodes.select("graph", "node", "context", "response", "frequency")
    edges = steps.keep(find_edges(relations), "edges")
    condensed = Condenser(request.settings, steps.within("graphs")).condense(vertices, edges)
    counts = _write_tables(output, make_tables(relations, nodes, condensed))
    counts |= {"nodes": steps.count(nodes), "relations": steps.count(relations)}
    output.end(Ending(), counts=counts)
    return counts


def _check_output(request: CondenseRequest) -> None:
    """Raise OutputError for an output with a run or with other tables, without `overwrite`."""
    there = [manifest.NAME] if manifest.read_manifest(request.output) is not None else []
    found = [*there, *(name for name in TABLES if find_table(request.output, name) is not None)]
    if found and not request.overwrite:
        raise OutputError(
            f"{request.output} holds {', '.join(found)} already; give another --output, or --overwrite to replace"
        )


def _read_input(steps: Workspace, request: CondenseRequest) -> tuple[DataFrame, DataFrame]:
    """Return the checked relations and nodes. A pair with a null relation is not judged.

    Relations: graph, sample_id, metric, premise_id, hypothesis_id, relation. Nodes: the columns of `merge_nodes`.
    Raises RelationsError for invalid input.
    """
    spark = steps.spark
    raw = _read_rows(spark, request.relations, RELATION_NEEDS, request.read)
    relations = _keep_rows(steps, request.relations, _with_graph(raw, "premise_id", "hypothesis_id", "relation"))
    _check_values(request.relations, relations, "relation", RELATION_VALUES)
    _check_present(request.relations, relations, ("premise_id", "hypothesis_id"))
    if request.nodes is None:
        return relations, steps.keep(nodes_of(relations))
    read = _read_rows(spark, request.nodes, NODE_NEEDS, request.read)
    _check_groups(request, raw.columns, read.columns)
    if "frequency" not in read.columns:
        read = read.withColumn("frequency", F.lit(None))
    # The check of the nodes rejects 0, which replaces a text that is no number
    number = F.when(F.col("frequency").isNull(), 1).otherwise(
        F.coalesce(F.expr("try_cast(frequency as bigint)"), F.lit(0))
    )
    numbered = read.withColumn("frequency", number)
    if all(name in read.columns for name in GROUPS if name in raw.columns):
        named = _with_graph(numbered, "id", "text", "origin", "frequency")
    else:
        named = place_nodes(numbered, relations)
    rows = _keep_rows(steps, request.nodes, named)
    _check_nodes(steps, request.nodes, rows)
    nodes = steps.keep(merge_nodes(rows))
    _check_ends(steps, request, relations, nodes)
    return relations, nodes


def _read_rows(spark: SparkSession, path: str, required: Sequence[str], options: ReadOptions) -> DataFrame:
    """Return the rows of files with the known columns as text. Raises RelationsError for missing columns."""
    rows, columns = read_table(spark, path, (*required, *GROUPS, FREQUENCY), options)
    missing = [name for name in required if name not in columns]
    if missing:
        parts = [f"no column `{name}`{aside(near_misses(name, columns))}" for name in missing]
        raise RelationsError(f"{path}: {', and '.join(parts)}. It has {', '.join(columns)}")
    return rows


def _keep_rows(steps: Workspace, path: str, rows: DataFrame) -> DataFrame:
    """Return the rows after one reading. Raises RelationsError for unreadable files and for files without rows."""
    try:
        kept = steps.keep(rows)
    except PySparkException as error:
        raise RelationsError(f"{path}: one of its files cannot be read ({error.getCondition()})") from error
    if not steps.count(kept):
        raise RelationsError(f"{path} has no rows")
    return kept


def _with_graph(rows: DataFrame, *columns: str) -> DataFrame:
    """Return graph, sample_id, metric and these columns. `graph` is the name of the graph of a row."""
    sample = F.col("sample_id") if "sample_id" in rows.columns else F.lit(None).cast("string")
    metric = F.coalesce("metric", F.lit(METRIC)) if "metric" in rows.columns else F.lit(METRIC)
    named = rows.withColumn("sample_id", sample).withColumn("metric", metric)
    # JSON keeps pairs of names apart. Rows with a null sample_id are one graph
    return named.select(F.to_json(F.array("sample_id", "metric")).alias("graph"), *GROUPS, *columns)


def _check_groups(request: CondenseRequest, relations: Sequence[str], nodes: Sequence[str]) -> None:
    """Raise RelationsError if the nodes have a column of graphs that the relations lack."""
    for name in GROUPS:
        if name in nodes and name not in relations:
            raise RelationsError(
                f"{request.nodes} has the column `{name}`, and {request.relations} does not have it. Write it to both, "
                "or only to the relations"
            )


def _check_values(path: str, rows: DataFrame, column: str, known: Sequence[str]) -> None:
    """Raise RelationsError for unknown values except null. The message has the most frequent values."""
    counted = rows.where(F.col(column).isNotNull() & ~F.col(column).isin(*known)).groupBy(column).count()
    found = counted.orderBy(F.desc("count"), column).limit(SHOWN + 1).collect()
    if found:
        parts = [
            f"`{shorten(row[column])}`{aside(near_misses(row[column], known))} in {row['count']:,} rows"
            for row in found[:SHOWN]
        ]
        more = ", and others" if len(found) > SHOWN else ""
        raise RelationsError(f"{path}: unknown {column} {', '.join(parts)}{more}. It must be one of {', '.join(known)}")


def _check_present(path: str, rows: DataFrame, columns: Sequence[str]) -> None:
    """Raise RelationsError for null values in these columns, with their numbers."""
    counts = rows.agg(*[F.count_if(F.col(name).isNull()) for name in columns], F.count("*")).collect()[0]
    lacking = [f"`{name}` in {count:,}" for name, count in zip(columns, counts, strict=False) if count]
    if lacking:
        raise RelationsError(f"{path} has no {' and no '.join(lacking)} of {counts[-1]:,} rows. Add them")


def _check_nodes(steps: Workspace, path: str, rows: DataFrame) -> None:
    """Raise RelationsError for unknown origins, missing values, frequencies below 1, and an id with two texts."""
    _check_values(path, rows, "origin", ORIGINS)
    _check_present(path, rows, ("id", "text", "origin"))
    if wrong := steps.count(rows.where("frequency < 1")):
        raise RelationsError(f"{path}: `frequency` must be a positive integer ({amount(wrong, 'row')} without one)")
    ids = rows.groupBy("graph", "id").agg(F.count_distinct("text").alias("texts")).where("texts > 1").select("id")
    several = steps.keep(ids)
    if count := steps.count(several):
        # In order, so that one input has one message
        named = several.distinct().orderBy("id").limit(SHOWN).collect()
        examples = ", ".join(f"`{shorten(row['id'])}`" for row in named)
        raise RelationsError(
            f"{path}: {amount(count, 'id has', 'ids have')} different texts ({examples}). Give each node a unique id"
        )


def _check_ends(steps: Workspace, request: CondenseRequest, relations: DataFrame, nodes: DataFrame) -> None:
    """Raise RelationsError for ids that are not among the nodes, with ids that differ only by case or space."""
    ends = _ends(relations).select("graph", F.col("id").alias("node"))
    lost = steps.keep(ends.join(nodes.select("graph", "node"), on=["graph", "node"], how="left_anti"))
    if not (count := steps.count(lost)):
        return
    folded = F.regexp_replace(F.lower("node"), r"[\s_-]+", "").alias("folded")
    known = nodes.select("graph", F.col("node").alias("near"), folded)
    near = lost.select("*", folded).join(known, on=["graph", "folded"], how="left")
    nearest = near.groupBy("node").agg(F.min("near").alias("near"))
    shown = nearest.orderBy(F.isnull("near"), "node").limit(SHOWN).collect()
    parts = [f"`{shorten(row['node'])}`{aside([row['near']] if row['near'] else [])}" for row in shown]
    raise RelationsError(
        f"{request.relations}: {amount(count, 'id is', 'ids are')} missing in the nodes of {request.nodes}: "
        f"{', '.join(parts)}{', ...' if count > len(shown) else ''}. Add them, or remove --nodes"
    )


def place_nodes(nodes: DataFrame, relations: DataFrame) -> DataFrame:
    """Return nodes without a graph once in each graph whose relations name them, as `merge_nodes` reads them.

    nodes: id, text, origin, frequency, and at most one of sample_id and metric.
    """
    shared = [name for name in ("id", *GROUPS) if name in nodes.columns]
    found = nodes.join(_ends(relations), on=shared, how="inner")
    return found.select("graph", *GROUPS, "id", "text", "origin", "frequency")


def nodes_of(relations: DataFrame) -> DataFrame:
    """Return the nodes of relations without a file of nodes: nodes of contexts with their ids as texts."""
    return merge_nodes(
        _ends(relations).select(
            "*", F.col("id").alias("text"), F.lit("context").alias("origin"), F.lit(1).alias("frequency")
        )
    )


def _ends(relations: DataFrame) -> DataFrame:
    """Return the ids of relations: graph, sample_id, metric, id."""
    return relations.select("graph", *GROUPS, F.explode(F.array("premise_id", "hypothesis_id")).alias("id")).distinct()


def merge_nodes(rows: DataFrame) -> DataFrame:
    """Return one row per node with all its origins.

    rows: graph, sample_id, metric, id, text, origin, frequency. Columns: graph, sample_id, metric, node, text, context,
    response, frequency.
    """
    return rows.groupBy("graph", *GROUPS, F.col("id").alias("node")).agg(
        # Rows with the same id have the same text
        F.min("text").alias("text"),
        F.bool_or(F.col("origin").isin("context", "both")).alias("context"),
        F.bool_or(F.col("origin").isin("response", "both")).alias("response"),
        F.max("frequency").cast("long").alias("frequency"),
    )


def find_edges(relations: DataFrame) -> DataFrame:
    """Return the edges graph, source, target, judged: entailments, and unjudged pairs.

    An unjudged pair has one edge if the metric has relations of nli, and two edges if it has relations of qa, which are
    relations of unordered pairs.
    """
    # A pair without a relation has the kind of the other pairs of the metric
    unordered = F.bool_or(F.col("relation").isin(*UNORDERED) | (F.col("metric") == "qa"))
    kinds = relations.groupBy("metric").agg(F.coalesce(unordered, F.lit(False)).alias("unordered"))
    unjudged = F.col("relation").isNull()
    forward = F.col("relation").isin(*FORWARD) | unjudged
    backward = F.col("relation").isin(*BACKWARD) | (unjudged & F.col("unordered"))
    edges = F.array(
        F.when(forward, F.struct(F.col("premise_id").alias("source"), F.col("hypothesis_id").alias("target"))),
        F.when(backward, F.struct(F.col("hypothesis_id").alias("source"), F.col("premise_id").alias("target"))),
    )
    # There are only a few metrics
    both = relations.join(F.broadcast(kinds), on="metric", how="inner")
    return (
        both.select("graph", (~unjudged).alias("judged"), F.explode(F.array_compact(edges)).alias("edge"))
        .select("graph", "edge.source", "edge.target", "judged")
        .distinct()
    )


def make_tables(relations: DataFrame, nodes: DataFrame, condensed: Condensed) -> dict[str, DataFrame]:
    """Return the tables statements, atoms and scores with the columns of the contract."""
    members = nodes.join(condensed.classes, on=["graph", "node"], how="inner")
    pairs = relations.where(F.col("relation").isNull()).select("graph", "premise_id", "hypothesis_id").distinct()
    unjudged = pairs.groupBy("graph").agg(F.count("*").alias("unjudged"))
    graphs = nodes.select("graph", *GROUPS).distinct()
    scores = graphs.join(condensed.counts, on="graph", how="inner").join(unjudged, on="graph", how="left")
    return {"statements": _statements(members), "atoms": _atoms(members), "scores": _scores(scores)}


def _statements(members: DataFrame) -> DataFrame:
    """Return the table `statements`. The id of a statement is the first node of its class. Its sources are unknown."""
    found = members.where(F.col("statement").isNotNull())
    classes = found.groupBy(*GROUPS, F.col("statement").alias("statement_id")).agg(
        F.max(F.when(F.col("representative"), F.col("text"))).alias("text"),
        F.bool_or("covered").alias("covered"),
        F.bool_or("in_basis").alias("in_basis"),
        F.array_sort(F.collect_set("text")).alias("members"),
    )
    return contract_rows("statements", F.col("metric"), classes)


def _atoms(members: DataFrame) -> DataFrame:
    """Return the table `atoms` with every node."""
    origin = F.when(F.col("context") & F.col("response"), "both").when(F.col("context"), "context")
    columns = {
        "atom_id": F.col("node"),
        "origin": F.when(F.col("response") & ~F.col("context"), "response").otherwise(origin),
        "kept": F.lit(True),
        "statement_id": F.col("statement"),
    }
    return contract_rows("atoms", F.col("metric"), members, **columns)


def _scores(counted: DataFrame) -> DataFrame:
    """Return the table `scores`, one row per graph. A repeated pair without a relation counts once."""
    empty = F.col("covered") + F.col("uncovered") == 0
    never = F.lit(False)
    status = status_of(lost=never, waiting=never, empty=empty, partial=F.coalesce("unjudged", F.lit(0)) > 0)
    named = counted.withColumns({"system": F.lit(None).cast("string"), "status": status})
    return named.select(*score_columns(F.col("metric")))


def _write_tables(output: Output, tables: Mapping[str, DataFrame]) -> dict[str, int]:
    """Write the tables in the order of `TABLES`, and return their counts by name."""
    written = {name: output.write(name, tables[name], order=ORDER[name], schema=TABLES[name]) for name in TABLES}
    counted = written["statements"].agg(F.count("*"), F.count_if("covered"), F.count_if("in_basis")).collect()[0]
    statuses = {row["status"]: row["count"] for row in written["scores"].groupBy("status").count().collect()}
    names = ("statements", "covered", "basis")
    return {
        "graphs": sum(statuses.values()),
        **{status: statuses.get(status, 0) for status in ("ok", "partial", "no_statements")},
        **dict(zip(names, counted, strict=True)),
    }


def show_counts(counts: Mapping[str, int], output: str) -> None:
    """Print the counts and the path of the tables."""
    rows = {
        "graphs": counts["graphs"],
        "  partly judged": counts["partial"],
        "  without statements": counts["no_statements"],
        "nodes": counts["nodes"],
        "relations": counts["relations"],
        "statements": counts["statements"],
        "  covered": counts["covered"],
        "  uncovered": counts["statements"] - counts["covered"],
        "  in the basis": counts["basis"],
    }
    cells = [[name, f"{value:,}"] for name, value in rows.items()]
    print_lines([*table(["", "count"], cells, page_of(sys.stdout)), redact(f"results: {output}")])
