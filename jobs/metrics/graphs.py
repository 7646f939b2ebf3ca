"""Compute passages, the tables of a condensed graph, and conflicts for the metrics with a fact graph.

A conflict is two statements that contradict each other. A response conveys both of them, one or none (methods,
section 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.graph.distributed import Condensed
from untold.graph.views import CONTRADICTIONS, COVERAGE, NUMBER, ONE_SIDED
from untold.jobs.inference.stage.requests import is_unasked
from untold.jobs.metrics import base
from untold.jobs.metrics.settings import NliSettings, QaSettings
from untold.jobs.metrics.summaries import is_ready
from untold.jobs.settings.model import Settings
from untold.udfs.facts.importance_measures import Weighting
from untold.udfs.facts.nodes import ANSWER_FORM

MEASURES: base.Bounds = {NUMBER: (None, None), COVERAGE: (0.0, 1.0), ONE_SIDED: (0.0, 1.0)}
SIDES = ("first", "second")


def contradicting_statements(relations: DataFrame, members: DataFrame) -> DataFrame:
    """Return the distinct pairs of statements with contradicting members: sample_id, first, second.

    The columns of `relations` are sample_id, source, target, relation. The columns of `members` are sample_id,
    node, statement (null without a statement). Statements have numbers, and `first` is the smaller one.
    """
    found = relations.where(F.col("relation").isin(*CONTRADICTIONS)).select("sample_id", "source", "target")
    places = members.where(F.col("statement").isNotNull()).select("sample_id", "node", "statement")
    for end in ("source", "target"):
        of_end = places.select("sample_id", F.col("node").alias(end), F.col("statement").alias(f"of_{end}"))
        found = found.join(of_end, on=["sample_id", end], how="inner")
    pairs = found.where(F.col("of_source") != F.col("of_target"))
    ends = "of_source", "of_target"
    return pairs.select("sample_id", F.least(*ends).alias("first"), F.greatest(*ends).alias("second")).distinct()


def conflict_rows(metric: str, pairs: DataFrame, statements: DataFrame) -> DataFrame:
    """Return the table `conflicts` (docs/contract.md, "Tables").

    The columns of `pairs` are sample_id and the numbers first and second of statements. The columns of `statements` are
    sample_id, statement, statement_id, text, covered, sources.
    """
    both = reduce(lambda rows, side: _with_side(rows, side, statements), SIDES, pairs)
    coverage = (
        F.when(F.col("first_covered").isNull() | F.col("second_covered").isNull(), F.lit(None))
        .when(F.col("first_covered") & F.col("second_covered"), "both")
        .when(F.col("first_covered"), "first")
        .when(F.col("second_covered"), "second")
        .otherwise("neither")
    )
    return base.contract_rows("conflicts", metric, both, coverage=coverage)


def _with_side(pairs: DataFrame, side: str, statements: DataFrame) -> DataFrame:
    """Add the id, text, sources and coverage of the statement of a side to the pairs."""
    told = statements.select(
        "sample_id",
        F.col("statement").alias(f"{side}_statement"),
        F.col("statement_id").alias(f"{side}_id"),
        F.col("text").alias(side),
        F.col("sources").alias(f"{side}_sources"),
        F.col("covered").alias(f"{side}_covered"),
    )
    named = pairs.withColumnRenamed(side, f"{side}_statement")
    return named.join(told, on=["sample_id", f"{side}_statement"], how="inner")


def conflict_measures(metric: str, scores: DataFrame, conflicts: DataFrame) -> DataFrame:
    """Return rows of the table `measures`: `MEASURES` of each sample, from the tables `scores` and `conflicts`.

    A missing relation can have any value, so the shares of a partial sample are between 0 and 1.
    """
    counts = conflicts.groupBy("sample_id").agg(
        F.count("*").alias(NUMBER),
        F.count("coverage").alias("judged"),
        F.count_if(F.col("coverage") == "both").alias(COVERAGE),
        F.count_if(F.col("coverage").isin(*SIDES)).alias(ONE_SIDED),
    )
    rows = scores.select("sample_id", "status").join(counts, on="sample_id", how="left")
    number, null = F.coalesce(NUMBER, F.lit(0)).cast("double"), F.lit(None).cast("double")
    measures: dict[str, tuple[Column, Column, Column]] = {NUMBER: (number, null, null)}
    for name in (COVERAGE, ONE_SIDED):
        share = F.try_divide(F.col(name), F.col("judged"))
        low, high = (F.when(F.col("status") == "partial", F.lit(end)).otherwise(share) for end in MEASURES[name])
        measures[name] = (share, low, high)
    return base.measure_rows(rows.withColumn("measures", base.measure_structs(measures)), metric, MEASURES)


def passages(samples: DataFrame, prepared: DataFrame) -> DataFrame:
    """Return the texts of a metric: sample_id, query, position, context_id, text.

    A sample with known contexts has its summarised contexts and its response (position null). Blank texts have no row.
    """
    ready = samples.select("sample_id", "query", "response").join(
        prepared.where(is_ready()), on="sample_id", how="inner"
    )
    # The fields have the same names as in `kept`, because Spark only concatenates arrays of equal structs
    answer = F.struct(
        F.lit(None).cast("int").alias("position"),
        F.lit(None).cast("string").alias("context_id"),
        F.col("response").alias("summary"),
    )
    texts = ready.select("sample_id", "query", F.explode(F.concat("kept", F.array(answer))).alias("text"))
    # A sample with an empty response keeps its contexts, which nothing covers
    return texts.where(F.length(F.trim("text.summary")) > 0).select(
        "sample_id",
        "query",
        F.col("text.position").alias("position"),
        F.col("text.context_id").alias("context_id"),
        F.col("text.summary").alias("text"),
    )


# The k of recall@k over statements by relevance
KS = (5, 10, 20, 50)
GRAPH_TABLES = ("atoms", "relations", "statements", "conflicts", "scores", "measures", "failures")


@dataclass(frozen=True)
class PairJudgements:
    """The results of a metric with fact graphs, from which `conclude` makes tables."""

    incomplete: DataFrame  # from `StageCalls.incomplete`, without the relations
    left_out: DataFrame  # per sample with a graph: sample_id, and left_out, the number of pairs above the limit
    atoms: DataFrame  # rows of `SAMPLE_NODES`
    relations: DataFrame  # sample_id, source, target, judged_by, request_id, relation, error_type, error
    condensed: Condensed
    # sample_id, node and its relevance, if statements are weighed by it
    relevances: DataFrame | None = None


def weighting(settings: Settings, own: NliSettings | QaSettings) -> Weighting:
    """Return the weights of the statements of a metric. A missing relation may change any statement."""
    return Weighting(settings.sources.weights, KS if own.weighted else (), whole_range=True)


def in_order(*columns: str) -> Column:
    """Return the aggregate of the passages of a sample: the contexts in order, then the response.

    The column is passages array<struct<is_response, position, context_id, *columns>>.
    """
    # is_response leads, because the response's position is null and null sorts first
    passage = F.struct(F.col("position").isNull().alias("is_response"), "position", "context_id", *columns)
    return F.array_sort(F.collect_list(passage)).alias("passages")


def graph_nodes(atoms: DataFrame) -> DataFrame:
    """Return the nodes of the graphs of samples for `Condenser.condense`, from rows of `SAMPLE_NODES`.

    Columns: graph (the sample_id), node long, context, response boolean, frequency long. A sample without a context
    node has no graph and no statement. Filtered atoms have a null node and no graph.
    """
    return (
        atoms.where(F.col("contexts") > 0)
        .select("sample_id", F.explode("atoms").alias("atom"))
        .where(F.col("atom.node").isNotNull())
        .select(
            F.col("sample_id").alias("graph"),
            *(F.col(f"atom.{name}").alias(name) for name in ("node", "context", "response", "frequency")),
        )
    )


def _place_members(found: PairJudgements) -> DataFrame:
    """Return one row per atom: sample_id, the fields of `NODE_TYPE`, the columns of its class, and its relevance.

    The join is a left join, because filtered atoms and samples without a graph have a row in the table `atoms`, but no
    class.
    """
    rows = found.atoms.select("sample_id", F.explode("atoms").alias("atom")).select("sample_id", "atom.*")
    classes = found.condensed.classes.select(
        F.col("graph").alias("sample_id"), "node", "statement", "representative", "covered", "in_basis"
    )
    members = rows.join(classes, on=["sample_id", "node"], how="left")
    if found.relevances is None:
        return members.withColumn("relevance", F.lit(None).cast("double"))
    return members.join(found.relevances, on=["sample_id", "node"], how="left")


def _statement_id(metric: str) -> Column:
    """Return `<sample_id>:<metric>:<n>` with n from 1, or null for atoms without a statement."""
    return F.when(
        F.col("statement").isNotNull(),
        F.concat_ws(":", "sample_id", F.lit(metric), (F.col("statement") + 1).cast("string")),
    )


def _context_ids(sources: Column | str) -> Column:
    """Return the distinct ids of sources in the order of the contexts.

    The position in struct<position, id> sorts the sources. The ids would sort as texts, 10 before 2.
    """
    return F.array_distinct(F.transform(F.array_sort(sources), lambda source: source["id"]))


def _stated() -> Column:
    """Return the text of an atom in statements: an answer follows its question, `Q: <question> A: <answer>`."""
    answered = F.format_string(ANSWER_FORM, "question", "text")
    return F.when(F.col("question").isNull(), F.col("text")).otherwise(answered)


def _atom_rows(metric: str, members: DataFrame) -> DataFrame:
    """Return the table `atoms` (docs/contract.md, "Tables"). Filtered atoms have `kept` false and no statement_id."""
    named = {"sources": _context_ids("sources"), "statement_id": _statement_id(metric)}
    return base.contract_rows("atoms", metric, members, **named)


def _statements(metric: str, members: DataFrame) -> DataFrame:
    """Return the rows of the table `statements` with their numbers: the classes of atoms with a context atom.

    All rows of a class have the same `covered` and `in_basis`. The text is the text of the representative, and
    `members` are all texts in the order of their nodes.
    """
    shown = members.where(F.col("statement").isNotNull()).withColumn("stated", _stated())
    found = shown.groupBy("sample_id", "statement").agg(
        # One member of a class is its representative; max passes over the nulls of the others
        F.max(F.when(F.col("representative"), F.col("stated"))).alias("text"),
        *(F.max(name).alias(name) for name in ("covered", "in_basis", "relevance")),
        F.flatten(F.collect_list("sources")).alias("sources"),
        F.array_sort(F.collect_list(F.struct("node", "stated"))).alias("members"),
    )
    texts = F.array_distinct(F.transform("members", lambda member: member["stated"]))
    named = {"statement_id": _statement_id(metric), "sources": _context_ids("sources"), "members": texts}
    return found.withColumns(named)


def _relation_rows(metric: str, atoms: DataFrame, relations: DataFrame) -> DataFrame:
    """Return the table `relations` (docs/contract.md, "Tables"), with ids of atoms in place of numbers of nodes.

    `SAMPLE_NODES` begins with the nodes of the graph in their order, so the number of a node is its index.
    """
    ids = atoms.select("sample_id", F.transform("atoms", lambda atom: atom["atom_id"]).alias("ids"))
    named = {
        column: F.get("ids", F.col(end).cast("int"))
        for column, end in (("premise_id", "source"), ("hypothesis_id", "target"))
    }
    return base.contract_rows("relations", metric, relations.join(ids, on="sample_id", how="inner"), **named)


def _score_rows(metric: str, samples: DataFrame, found: PairJudgements) -> DataFrame:
    """Return the table `scores` with one row per sample (docs/contract.md, "Scores" and "Bounds").

    All joins are left joins. A sample without `left_out` has no graph and no statement, and a sample without a row in
    `judged` has no pair. A relation that failed, or that is above the limit of pairs, counts as unjudged.
    """
    judged = found.relations.groupBy("sample_id").agg(
        F.count_if(F.col("relation").isNull()).alias("failed"), F.max(is_unasked()).alias("waiting")
    )
    left_out = found.left_out.select("sample_id", "left_out")
    counts = found.condensed.counts.withColumnRenamed("graph", "sample_id")
    unjudged = F.coalesce("left_out", F.lit(0)) + F.coalesce("failed", F.lit(0))
    with_counts = base.with_status(
        samples,
        found.incomplete,
        left_out,
        judged,
        counts,
        empty=F.col("left_out").isNull(),
        partial=unjudged > 0,
    )
    return with_counts.withColumn("unjudged", unjudged).select(*base.score_columns(metric))


def conclude_graphs(calls: base.StageCalls, samples: DataFrame, found: PairJudgements) -> base.Tables:
    """Return the tables `GRAPH_TABLES` of a metric from its condensed graphs.

    Two tables read `members`, so they are kept.
    """
    metric = calls.metric
    members = calls.tools.keep(_place_members(found), "members")
    statements, scores = _statements(metric, members), _score_rows(metric, samples, found)
    conflicts = conflict_rows(metric, contradicting_statements(found.relations, members), statements)
    return {
        "statements": base.contract_rows("statements", metric, statements),
        "conflicts": conflicts,
        "scores": scores,
        "measures": conflict_measures(metric, scores, conflicts),
        "failures": calls.failures(),
        "atoms": _atom_rows(metric, members),
        "relations": _relation_rows(metric, found.atoms, found.relations),
    }
