"""What the metrics with a fact graph share: passages, tables of a condensed graph, and conflicts (methods, section 5).

A conflict is two statements that contradict each other; a response conveys both of them, one or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.graph.distributed import Condensed
from untold.graph.views import CONTRADICTIONS
from untold.jobs.inference.stage.requests import failure_rows, is_unasked
from untold.jobs.metrics.base import Bounds, Tables, Tools, measure_rows, score_columns, status_of
from untold.jobs.metrics.summaries import MARK, is_ready
from untold.udfs.facts.nodes import ANSWER_FORM

NUMBER, COVERAGE, ONE_SIDED = "conflicts", "conflict_coverage", "one_sided"
MEASURES: Bounds = {NUMBER: (None, None), COVERAGE: (0.0, 1.0), ONE_SIDED: (0.0, 1.0)}
SIDES = ("first", "second")


def contradicting_statements(relations: DataFrame, members: DataFrame) -> DataFrame:
    """Columns sample_id, first, second: different statements with members that contradict each other, each pair once.

    relations: sample_id, source, target, relation; members: sample_id, node, statement, null for no statement. A
    statement is named by its number, and `first` is the smaller one.
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
    """The table `conflicts` (docs/contract.md, "Tables").

    pairs: sample_id, first, second, which name statements; statements: sample_id, statement, statement_id, text,
    covered, sources.
    """
    both = reduce(lambda rows, side: _with_side(rows, side, statements), SIDES, pairs)
    coverage = (
        F.when(F.col("first_covered").isNull() | F.col("second_covered").isNull(), F.lit(None))
        .when(F.col("first_covered") & F.col("second_covered"), "both")
        .when(F.col("first_covered"), "first")
        .when(F.col("second_covered"), "second")
        .otherwise("neither")
    )
    columns = ("first_id", "second_id", "first", "second", "first_sources", "second_sources")
    return both.select("sample_id", F.lit(metric).alias("metric"), *columns, coverage.alias("coverage"))


def _with_side(pairs: DataFrame, side: str, statements: DataFrame) -> DataFrame:
    """The pairs with id, text, sources and coverage of the statement that a side names."""
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
    """Rows of the table `measures`: `MEASURES` of each sample, from the tables `scores` and `conflicts`.

    A relation that is missing may be any, so that the shares of a partial sample lie between 0 and 1.
    """
    counts = conflicts.groupBy("sample_id").agg(
        F.count("*").alias(NUMBER),
        F.count("coverage").alias("judged"),
        F.count_if(F.col("coverage") == "both").alias(COVERAGE),
        F.count_if(F.col("coverage").isin(*SIDES)).alias(ONE_SIDED),
    )
    rows = scores.select("sample_id", "status").join(counts, on="sample_id", how="left")
    number, null = F.coalesce(NUMBER, F.lit(0)).cast("double"), F.lit(None).cast("double")
    measures = [_measure(NUMBER, number, null, null)]
    for name in (COVERAGE, ONE_SIDED):
        share = F.try_divide(F.col(name), F.col("judged"))
        ends = (F.when(F.col("status") == "partial", F.lit(end)).otherwise(share) for end in MEASURES[name])
        measures.append(_measure(name, share, *ends))
    return measure_rows(rows.withColumn("measures", F.array(*measures)), metric, MEASURES)


def _measure(name: str, value: Column, low: Column, high: Column) -> Column:
    columns = {"value": value, "value_low": low, "value_high": high}
    return F.struct(F.lit(name).alias("measure"), *(value.alias(column) for column, value in columns.items()))


def passages(samples: DataFrame, prepared: DataFrame) -> DataFrame:
    """Columns sample_id, query, position, context_id, text: the texts that the metric reads.

    They are the summarised contexts and the response (position null) of each sample all of whose contexts are known. A
    blank text says nothing and is not asked for.
    """
    ready = samples.select("sample_id", "query", "response").join(
        prepared.where(is_ready()), on="sample_id", how="inner"
    )
    # Named as the fields of `kept`: arrays concatenate only where their structs are alike
    answer = F.struct(
        F.lit(None).cast("int").alias("position"),
        F.lit(None).cast("string").alias("context_id"),
        F.col("response").alias("summary"),
    )
    texts = ready.select("sample_id", "query", F.explode(F.concat("kept", F.array(answer))).alias("text"))
    # An empty response loses its passage here, not its sample: its contexts are scored, and nothing covers them
    return texts.where(F.length(F.trim("text.summary")) > 0).select(
        "sample_id",
        "query",
        F.col("text.position").alias("position"),
        F.col("text.context_id").alias("context_id"),
        F.col("text.summary").alias("text"),
    )


# Characters of an atom or answer in a plan, which few are over; were each as long as its whole text, a plan's tokens
# would grow with the square of the text's length
LONGEST_ATOM = 300
GRAPH_TABLES = ("atoms", "relations", "statements", "conflicts", "scores", "measures", "failures")


@dataclass(frozen=True)
class PairJudgements:
    """What a metric with fact graphs has found out about its samples, before tables are made of it.

    prepared: what `gather_contexts` gives; incomplete: what `incomplete_samples` gives; left_out: a row a sample with a
    graph, with the column left_out, how many of its pairs a cap left out; atoms: rows of `SAMPLE_NODES`; relations:
    sample_id, source, target, judged_by, request_id, relation, error_type, error; `asked`: by stage its results.
    """

    prepared: DataFrame
    incomplete: DataFrame
    left_out: DataFrame
    atoms: DataFrame
    relations: DataFrame
    condensed: Condensed
    asked: Mapping[str, DataFrame]


def different_texts(words: int, of: str = "text") -> Column:
    """What a plan takes a text to be split into: one for so many of its words, each beginning as it does.

    Each carries its number between marks, so that no two are one node and no pair of them is one request. words: the
    fewest words that one takes, so that the count is an upper bound. Reads the column `of`.
    """
    count = F.ceil(F.size(F.split(F.trim(of), r"\s+")) / words).cast("int")
    text = F.substring(of, 1, LONGEST_ATOM)
    return F.transform(
        F.sequence(F.lit(1), count),
        lambda number: F.concat(F.lit(MARK), number.cast("string"), F.lit(MARK), text),
    )


def in_order(*columns: str) -> Column:
    """The passages of a sample, gathered from its rows: the contexts in order, then the response.

    Column passages array<struct<is_response, position, context_id, *columns>>, to be aggregated by sample_id.
    """
    # is_response leads, because the response's position is null and null sorts first
    passage = F.struct(F.col("position").isNull().alias("is_response"), "position", "context_id", *columns)
    return F.array_sort(F.collect_list(passage)).alias("passages")


def graph_nodes(atoms: DataFrame) -> DataFrame:
    """The nodes of the samples' graphs, for `Condenser.condense`, from rows of `SAMPLE_NODES`.

    Columns graph (the sample_id), node long, context, response boolean, frequency long. A sample without a context node
    has no graph, as it has no statement; atoms that were filtered have a null node and are in no graph.
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


def _place_members(atoms: DataFrame, classes: DataFrame) -> DataFrame:
    """One row an atom: sample_id, the fields of `NODE_TYPE`, and what its class is.

    Left join: filtered atoms and samples without a graph have no class, and yet a row in the table `atoms`.
    """
    rows = atoms.select("sample_id", F.explode("atoms").alias("atom")).select("sample_id", "atom.*")
    found = classes.select(
        F.col("graph").alias("sample_id"), "node", "statement", "representative", "covered", "in_basis"
    )
    return rows.join(found, on=["sample_id", "node"], how="left")


def _statement_id(metric: str) -> Column:
    """`<sample_id>:<metric>:<n>`, n from 1; null for atoms that are of no statement."""
    return F.when(
        F.col("statement").isNotNull(),
        F.concat_ws(":", "sample_id", F.lit(metric), (F.col("statement") + 1).cast("string")),
    )


def _context_ids(sources: Column | str) -> Column:
    """The ids of sources, each once, in the order of the contexts.

    Sources are struct<position, id> and sort by position; ids alone would sort as texts, 10 before 2.
    """
    return F.array_distinct(F.transform(F.array_sort(sources), lambda source: source["id"]))


def _stated() -> Column:
    """An atom as statements show it: an answer together with its question, `Q: <question> A: <answer>`."""
    answered = F.format_string(ANSWER_FORM, "question", "text")
    return F.when(F.col("question").isNull(), F.col("text")).otherwise(answered)


def _atom_rows(metric: str, members: DataFrame) -> DataFrame:
    """The table `atoms` (docs/contract.md, "Tables"): filtered ones too, with `kept` false and no statement_id."""
    return members.select(
        "sample_id",
        F.lit(metric).alias("metric"),
        "atom_id",
        "text",
        "question",
        "origin",
        _context_ids("sources").alias("sources"),
        "unit_type",
        "rating",
        "kept",
        _statement_id(metric).alias("statement_id"),
    )


def _statements(metric: str, members: DataFrame) -> DataFrame:
    """The classes of atoms that hold a context atom: the table `statements`, and their numbers.

    `covered` and `in_basis` are of the class and alike in all its rows; the text is its representative's, and `members`
    are all its texts in the order of their nodes.
    """
    shown = members.where(F.col("statement").isNotNull()).withColumn("stated", _stated())
    return (
        shown.groupBy("sample_id", "statement")
        .agg(
            # One member of a class is its representative; max passes over the nulls of the others
            F.max(F.when(F.col("representative"), F.col("stated"))).alias("text"),
            F.max("covered").alias("covered"),
            F.max("in_basis").alias("in_basis"),
            F.flatten(F.collect_list("sources")).alias("sources"),
            F.array_sort(F.collect_list(F.struct("node", "stated"))).alias("members"),
        )
        .select(
            "sample_id",
            "statement",
            F.lit(metric).alias("metric"),
            _statement_id(metric).alias("statement_id"),
            "text",
            "covered",
            "in_basis",
            _context_ids("sources").alias("sources"),
            F.array_distinct(F.transform("members", lambda member: member["stated"])).alias("members"),
        )
    )


def _relation_rows(metric: str, atoms: DataFrame, relations: DataFrame) -> DataFrame:
    """The table `relations` (docs/contract.md, "Tables"): the numbers of nodes become ids of atoms.

    `SAMPLE_NODES` lists the nodes of the graph first and in their order, so that a node's number is its place.
    """
    ids = atoms.select("sample_id", F.transform("atoms", lambda atom: atom["atom_id"]).alias("ids"))
    return relations.join(ids, on="sample_id", how="inner").select(
        "sample_id",
        F.lit(metric).alias("metric"),
        F.get("ids", F.col("source").cast("int")).alias("premise_id"),
        F.get("ids", F.col("target").cast("int")).alias("hypothesis_id"),
        "relation",
        "judged_by",
    )


def _score_rows(metric: str, samples: DataFrame, found: PairJudgements) -> DataFrame:
    """The table `scores`: a row a sample (docs/contract.md, "Scores" and "Bounds").

    Left joins, as what is missing says something: without `left_out` a sample has no graph, hence no statement, and
    without a row in `judged` it has no pair. A relation that failed, or that a cap left out, counts as unjudged.
    """
    judged = found.relations.groupBy("sample_id").agg(
        F.count_if(F.col("relation").isNull()).alias("failed"), F.max(is_unasked()).alias("unasked")
    )
    later = found.incomplete.withColumnsRenamed({"lost": "lost_later", "waiting": "waiting_later"})
    joined = (
        samples.select("sample_id", "system")
        .join(found.prepared.select("sample_id", "lost", "waiting"), on="sample_id", how="left")
        .join(later, on="sample_id", how="left")
        .join(found.left_out.select("sample_id", "left_out"), on="sample_id", how="left")
        .join(judged, on="sample_id", how="left")
        .join(found.condensed.counts.withColumnRenamed("graph", "sample_id"), on="sample_id", how="left")
    )
    unjudged = F.coalesce("left_out", F.lit(0)) + F.coalesce("failed", F.lit(0))
    status = status_of(
        lost=F.col("lost") | F.col("lost_later"),
        waiting=F.col("waiting") | F.col("waiting_later") | F.col("unasked"),
        empty=F.col("left_out").isNull(),
        partial=F.col("unjudged") > 0,
    )
    with_status = joined.withColumn("unjudged", unjudged).withColumn("status", status)
    return with_status.select(*score_columns(metric))


def conclude(metric: str, samples: DataFrame, found: PairJudgements, tools: Tools) -> Tables:
    """The tables of a metric once its graphs are condensed: `GRAPH_TABLES`.

    `members` feed two tables and are kept; each failed request is told under the stage that asked it.
    """
    members = tools.keep(_place_members(found.atoms, found.condensed.classes), "members")
    failures = [failure_rows(metric, stage, rows) for stage, rows in found.asked.items()]
    statements, scores = _statements(metric, members), _score_rows(metric, samples, found)
    conflicts = conflict_rows(metric, contradicting_statements(found.relations, members), statements)
    return {
        "statements": statements.drop("statement"),
        "conflicts": conflicts,
        "scores": scores,
        "measures": conflict_measures(metric, scores, conflicts),
        "failures": reduce(DataFrame.unionByName, failures),
        "atoms": _atom_rows(metric, members),
        "relations": _relation_rows(metric, found.atoms, found.relations),
    }
