"""Relations from any source to statements: `untold condense`. Methods, section 5; tables as in the contract."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.inputs.files import AS_THEY_ARE, ReadOptions
from untold.jobs.inputs.options import CondenseOptions
from untold.jobs.inputs.samples import fingerprint
from untold.jobs.inputs.texts import UnreadableTableError, as_text, describe_unreadable, read_table
from untold.jobs.metrics.condensing import Condensed, Condenser
from untold.jobs.run import manifest
from untold.jobs.run.folders import Workspace
from untold.jobs.run.manifest import OutputError
from untold.jobs.run.outcome import Ending
from untold.jobs.run.output import Output, shown
from untold.jobs.run.session import open_session
from untold.jobs.run.terminal import amount, page_of, print_lines, table
from untold.jobs.run_tables import find_table
from untold.jobs.settings.model import Settings
from untold.jobs.tables import ATOMS, ORDER, SCORES, STATEMENTS
from untold.udfs.errors import UserError, aside, near_misses, shorten
from untold.udfs.redaction import redact

METRIC = "condense"
# Relations that are an edge from premise to hypothesis, and those that are one the other way; the rest are known and
# make no edge. The names are those of the tables of nli and qa (docs/contract.md, "Tables")
FORWARD = ("entailment", "implied", "equivalent", "first_implies_second")
BACKWARD = ("equivalent", "second_implies_first")
UNORDERED = ("equivalent", "first_implies_second", "second_implies_first", "contradictory")
RELATION_VALUES = tuple(dict.fromkeys((*FORWARD, *BACKWARD, *UNORDERED, "contradiction", "neutral")))
ORIGINS = ("context", "response", "both")
# What a graph is named by: the relations of one sample under one metric
GROUPS = ("sample_id", "metric")
RELATION_NEEDS = ("premise_id", "hypothesis_id", "relation")
NODE_NEEDS = ("id", "text", "origin")
FREQUENCY = "frequency"
# Examples that a message shows
SHOWN = 3
TABLES = {"statements": STATEMENTS, "atoms": ATOMS, "scores": SCORES}


class RelationsError(UserError):
    """Relations or nodes that cannot be condensed. The message is one line that says what is wrong and how often."""


@dataclass(frozen=True, kw_only=True)
class CondenseRequest(CondenseOptions):
    """What `untold condense` was asked to do."""

    settings: Settings
    read: ReadOptions = AS_THEY_ARE


def condense(request: CondenseRequest) -> dict[str, int]:
    """Writes statements, atoms, scores and a manifest, and gives what was counted.

    Raises RelationsError for input that cannot be condensed, OutputError for an output that is there already.

    Counts: graphs, ok, partial, no_statements, statements, covered, basis, nodes, relations. No model is asked, so that
    the scores are of the relations as they are given. Methods, section 5.
    """
    with Output(request.output, tuple(TABLES), request.overwrite, inputs=[request.relations, request.nodes]) as output:
        _check_output(request)
        return _condense(output, request, output.workspace(open_session(request.settings)))


def _condense(output: Output, request: CondenseRequest, steps: Workspace) -> dict[str, int]:
    """Reads, claims, condenses and writes: the manifest is begun once the whole input was checked."""
    relations, nodes = _read_input(steps, request)
    prints = {"relations": fingerprint(relations), "nodes": fingerprint(nodes)}
    # By content and not by path: the same relations from another place are the same run
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
    """Raises OutputError where the output holds a run, or tables of another origin, and is not to be replaced."""
    there = [manifest.NAME] if manifest.read_manifest(request.output) is not None else []
    found = [*there, *(name for name in TABLES if find_table(request.output, name) is not None)]
    if found and not request.overwrite:
        raise OutputError(
            f"{request.output} holds {', '.join(found)} already; give another --output, or --overwrite to replace"
        )


def _read_input(steps: Workspace, request: CondenseRequest) -> tuple[DataFrame, DataFrame]:
    """Relations (graph, sample_id, metric, premise_id, hypothesis_id, relation) and nodes, both checked and kept.

    nodes: columns of `merge_nodes`. A null relation is a pair that was not judged. Raises RelationsError.
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
    # What is no number becomes 0, which the check below refuses with how many there are
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
    """The rows of the files, the known columns as text. Raises RelationsError for missing columns, with near misses."""
    try:
        rows = read_table(spark, path, options)
    except UnreadableTableError as error:
        raise RelationsError(str(error)) from error
    missing = [name for name in required if name not in rows.columns]
    if missing:
        parts = [f"no column `{name}`{aside(near_misses(name, rows.columns))}" for name in missing]
        raise RelationsError(f"{path}: {', and '.join(parts)}. It has {', '.join(sorted(rows.columns))}")
    return as_text(rows, (*required, *GROUPS, FREQUENCY))


def _with_graph(rows: DataFrame, *columns: str) -> DataFrame:
    """The columns after sample_id, metric and graph, which names the graph that a row belongs to."""
    sample = F.col("sample_id") if "sample_id" in rows.columns else F.lit(None).cast("string")
    metric = F.coalesce("metric", F.lit(METRIC)) if "metric" in rows.columns else F.lit(METRIC)
    named = rows.withColumn("sample_id", sample).withColumn("metric", metric)
    # As JSON, so that no two pairs of names run together into one; a null sample_id is a graph of its own
    return named.select(F.to_json(F.array("sample_id", "metric")).alias("graph"), *GROUPS, *columns)


def _keep_rows(steps: Workspace, path: str, rows: DataFrame) -> DataFrame:
    """The rows, read once. Raises RelationsError for files that break while they are read, and for none."""
    try:
        kept = steps.keep(rows)
    except PySparkException as error:
        raise RelationsError(describe_unreadable(path, error)) from error
    if not steps.count(kept):
        raise RelationsError(f"{path} has no rows")
    return kept


def _check_groups(request: CondenseRequest, relations: Sequence[str], nodes: Sequence[str]) -> None:
    """Raises RelationsError where nodes tell graphs apart by a column that the relations do not have."""
    for name in GROUPS:
        if name in nodes and name not in relations:
            raise RelationsError(
                f"{request.nodes} has the column `{name}`, and {request.relations} does not have it. Write it to both, "
                "or only to the relations"
            )


def _check_values(path: str, rows: DataFrame, column: str, known: Sequence[str]) -> None:
    """Raises RelationsError for values that are not known; null is left to others.

    The most frequent come first, and their number is bounded: values are texts of any kind.
    """
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
    """Raises RelationsError where one of these columns is null, with how often each is."""
    counts = rows.agg(*[F.count_if(F.col(name).isNull()) for name in columns], F.count("*")).collect()[0]
    lacking = [f"`{name}` in {count:,}" for name, count in zip(columns, counts, strict=False) if count]
    if lacking:
        raise RelationsError(f"{path} has no {' and no '.join(lacking)} of {counts[-1]:,} rows. Add them")


def _check_nodes(steps: Workspace, path: str, rows: DataFrame) -> None:
    """Raises RelationsError for unknown origins, missing columns, frequencies below 1 and two texts of one id."""
    _check_values(path, rows, "origin", ORIGINS)
    _check_present(path, rows, ("id", "text", "origin"))
    if wrong := steps.count(rows.where("frequency < 1")):
        raise RelationsError(f"{path}: `frequency` must be a positive integer ({amount(wrong, 'row')} without one)")
    texts = rows.groupBy("graph", "id").agg(F.min("text").alias("low"), F.max("text").alias("high"))
    several = steps.keep(texts.where("low <> high").select("id"))
    if count := steps.count(several):
        raise RelationsError(
            f"{path}: {amount(count, 'id has', 'ids have')} different texts ({_examples(several)}). "
            "Give each node a unique id"
        )


def _check_ends(steps: Workspace, request: CondenseRequest, relations: DataFrame, nodes: DataFrame) -> None:
    """Raises RelationsError for relations whose ids are not among the nodes, with ids that differ by case or space."""
    ends = _ends(relations).select("graph", F.col("id").alias("node"))
    lost = steps.keep(ends.join(nodes.select("graph", "node"), on=["graph", "node"], how="left_anti"))
    if not (count := steps.count(lost)):
        return
    folded = nodes.select("graph", F.col("node").alias("near"), _folded("node").alias("folded"))
    near = lost.withColumn("folded", _folded("node")).join(folded, on=["graph", "folded"], how="left")
    shown = (
        near.groupBy("node").agg(F.min("near").alias("near")).orderBy(F.isnull("near"), "node").limit(SHOWN).collect()
    )
    parts = [f"`{shorten(row['node'])}`{aside([row['near']] if row['near'] else [])}" for row in shown]
    raise RelationsError(
        f"{request.relations}: {amount(count, 'id is', 'ids are')} missing in the nodes of {request.nodes}: "
        f"{', '.join(parts)}{', ...' if count > len(shown) else ''}. Add them, or remove --nodes"
    )


def _folded(column: str) -> Column:
    """A text by which ids that differ by case, spaces, `_` and `-` are equal."""
    return F.regexp_replace(F.lower(column), r"[\s_-]+", "")


def _examples(ids: DataFrame) -> str:
    """Some ids as a message shows them, the first in order, so that one input has one message."""
    shown = [row["id"] for row in ids.select("id").distinct().orderBy("id").limit(SHOWN).collect()]
    return ", ".join(f"`{shorten(name)}`" for name in shown)


def place_nodes(nodes: DataFrame, relations: DataFrame) -> DataFrame:
    """Nodes that do not say which graph they are of, once in each graph whose relations name them, and in no other.

    nodes: id, text, origin, frequency, and at most one of sample_id and metric. Columns: as `merge_nodes` reads them.
    """
    shared = [name for name in ("id", *GROUPS) if name in nodes.columns]
    found = nodes.join(_ends(relations), on=shared, how="inner")
    return found.select("graph", *GROUPS, "id", "text", "origin", "frequency")


def nodes_of(relations: DataFrame) -> DataFrame:
    """The nodes that relations alone speak of: all of the contexts, with their ids as texts. Columns: `merge_nodes`."""
    return merge_nodes(
        _ends(relations).select(
            "*", F.col("id").alias("text"), F.lit("context").alias("origin"), F.lit(1).alias("frequency")
        )
    )


def _ends(relations: DataFrame) -> DataFrame:
    """graph, sample_id, metric, id: the ids that relations speak of."""
    return relations.select("graph", *GROUPS, F.explode(F.array("premise_id", "hypothesis_id")).alias("id")).distinct()


def merge_nodes(rows: DataFrame) -> DataFrame:
    """graph, sample_id, metric, node, text, context, response, frequency: a row a node, of all origins that rows give.

    rows: graph, sample_id, metric, id, text, origin, frequency.
    """
    return rows.groupBy("graph", *GROUPS, F.col("id").alias("node")).agg(
        # Rows of one id have one text, as was checked
        F.min("text").alias("text"),
        F.bool_or(F.col("origin").isin("context", "both")).alias("context"),
        F.bool_or(F.col("origin").isin("response", "both")).alias("response"),
        F.max("frequency").cast("long").alias("frequency"),
    )


def find_edges(relations: DataFrame) -> DataFrame:
    """graph, source, target, judged: entailments, and pairs without a relation as not judged.

    The latter run one way, as they are given, where the metric's relations have nli's names; they run both ways where
    they have qa's, which are relations of unordered pairs.
    """
    # By metric and not by row: a pair without a relation does not say of which kind it is
    unordered = F.bool_or(F.col("relation").isin(*UNORDERED) | (F.col("metric") == "qa"))
    kinds = relations.groupBy("metric").agg(F.coalesce(unordered, F.lit(False)).alias("unordered"))
    unjudged = F.col("relation").isNull()
    forward = F.col("relation").isin(*FORWARD) | unjudged
    backward = F.col("relation").isin(*BACKWARD) | (unjudged & F.col("unordered"))
    edges = F.array(
        F.when(forward, F.struct(F.col("premise_id").alias("source"), F.col("hypothesis_id").alias("target"))),
        F.when(backward, F.struct(F.col("hypothesis_id").alias("source"), F.col("premise_id").alias("target"))),
    )
    # A handful of metrics
    both = relations.join(F.broadcast(kinds), on="metric", how="inner")
    return (
        both.select("graph", (~unjudged).alias("judged"), F.explode(F.array_compact(edges)).alias("edge"))
        .select("graph", "edge.source", "edge.target", "judged")
        .distinct()
    )


def make_tables(relations: DataFrame, nodes: DataFrame, condensed: Condensed) -> dict[str, DataFrame]:
    """The tables statements, atoms and scores, with the columns of the contract."""
    members = nodes.join(condensed.classes, on=["graph", "node"], how="inner")
    pairs = relations.where(F.col("relation").isNull()).select("graph", "premise_id", "hypothesis_id").distinct()
    unjudged = pairs.groupBy("graph").agg(F.count("*").alias("unjudged"))
    graphs = nodes.select("graph", *GROUPS).distinct()
    scores = graphs.join(condensed.counts, on="graph", how="inner").join(unjudged, on="graph", how="left")
    return {"statements": _statements(members), "atoms": _atoms(members), "scores": _scores(scores)}


def _statements(members: DataFrame) -> DataFrame:
    """The table `statements`: an id is that of the first node of its class; sources are not known."""
    found = members.where(F.col("statement").isNotNull())
    return found.groupBy(*GROUPS, F.col("statement").alias("statement_id")).agg(
        F.max(F.when(F.col("representative"), F.col("text"))).alias("text"),
        F.bool_or("covered").alias("covered"),
        F.bool_or("in_basis").alias("in_basis"),
        F.lit(None).cast("array<string>").alias("sources"),
        F.array_sort(F.collect_set("text")).alias("members"),
    )


def _atoms(members: DataFrame) -> DataFrame:
    """The table `atoms`: every node, none of them filtered."""
    origin = F.when(F.col("context") & F.col("response"), "both").when(F.col("context"), "context")
    return members.select(
        *GROUPS,
        F.col("node").alias("atom_id"),
        "text",
        F.lit(None).cast("string").alias("question"),
        F.when(F.col("response") & ~F.col("context"), "response").otherwise(origin).alias("origin"),
        F.lit(None).cast("array<string>").alias("sources"),
        F.lit(None).cast("string").alias("unit_type"),
        F.lit(None).cast("double").alias("rating"),
        F.lit(True).alias("kept"),
        F.col("statement").alias("statement_id"),
    )


def _scores(counted: DataFrame) -> DataFrame:
    """The table `scores`, a row a graph (docs/contract.md, "Scores" and "Bounds").

    `condensed.counts` has the bounds; a pair given twice without a relation counts once.
    """
    total = F.col("covered") + F.col("uncovered")
    unjudged = F.coalesce("unjudged", F.lit(0).cast("long"))
    status = F.when(total == 0, "no_statements").when(unjudged > 0, "partial").otherwise("ok")
    return counted.select(
        *GROUPS,
        F.lit(None).cast("string").alias("system"),
        F.try_divide("covered", total).alias("score"),
        F.col("low").alias("score_low"),
        F.col("high").alias("score_high"),
        "covered",
        "uncovered",
        unjudged.alias("unjudged"),
        F.lit(0).cast("long").alias("dropped"),
        status.alias("status"),
    )


def _write_tables(output: Output, tables: Mapping[str, DataFrame]) -> dict[str, int]:
    """Writes the tables in the order of `TABLES`, and gives what is counted of them, by name."""
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
    """Prints what was counted and where the tables are."""
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
