"""Q&A comprehensiveness (Dejl et al. 2025; methods, sections 3 and 5): questions, answers, and the fact graph of these.

`nodes` are numbers within a sample: the answers with a context source first. An answer belongs to one question.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.metrics.base import MetricResult, Tools, incomplete_samples
from jobs.metrics.contexts import STAGE as SUMMARISE
from jobs.metrics.contexts import gather_contexts
from jobs.metrics.graphs import conclude, graph_nodes, in_order, leave_complete, passages
from jobs.run.session import spark_schema
from jobs.settings.model import Settings
from udfs.facts.answers import METRIC as METRIC
from udfs.facts.answers import PAIRS, SAMPLE_QUESTIONS, gather_answers, gather_questions, pair_answers
from udfs.facts.nodes import SAMPLE_NODES

STAGES = ("mine_questions", "refine_questions", "answer_questions", "compare_answers")


def stages(settings: Settings) -> tuple[str, ...]:
    """The stages that the metric asks, in order."""
    return (SUMMARISE, *STAGES) if settings.summarise_contexts else STAGES


def score(samples: DataFrame, contexts: DataFrame, tools: Tools, settings: Settings) -> MetricResult:
    """Scores valid samples (columns of the table `samples`) from their condensed contexts."""
    prepared = gather_contexts(contexts)
    texts = passages(samples, prepared)
    of_response = settings.qa.questions == "all"
    mined = tools.ask("mine_questions", texts if of_response else texts.where(F.col("position").isNotNull()))
    refined = tools.ask("refine_questions", _questions_to_refine(mined, samples))
    passed = tools.keep("questions", _passed_questions(refined, settings.thresholds.relevance))
    answered = tools.ask("answer_questions", _questions_to_answer(texts, passed))
    incomplete = incomplete_samples(mined, refined, answered)
    atoms = tools.keep("atoms", _gather_answers(answered, passed, settings.thresholds.confidence))
    pairs = tools.keep("pairs", _pairs(atoms, resolve=settings.qa.quantity_tool == "resolve"))
    open_pairs = pairs.where(F.col("settled").isNull()).drop("settled")
    compared = tools.ask("compare_answers", open_pairs, bound=_bound(atoms))
    relations = tools.keep("relations", _relations(compared, pairs))
    condensed = tools.condense(graph_nodes(atoms), _edges(relations))
    with_graph = atoms.where(F.col("contexts") > 0).select("sample_id", F.lit(0).alias("left_out"))
    results = (contexts, mined, refined, answered, relations)
    asked = dict(zip((SUMMARISE, *STAGES), results, strict=True))
    return conclude(METRIC, samples, prepared, incomplete, with_graph, atoms, relations, condensed, tools, asked)


def _questions_to_refine(mined: DataFrame, samples: DataFrame) -> DataFrame:
    """Columns sample_id, query, questions: all questions mined for a sample, where there are any."""
    queries = samples.select("sample_id", "query")
    gathered = leave_complete(mined, mined).groupBy("sample_id").agg(in_order("questions"))
    rows = gathered.join(queries, on="sample_id", how="inner").select("sample_id", "query", "passages")
    distinct = rows.mapInArrow(gather_questions, spark_schema(SAMPLE_QUESTIONS))
    return distinct.where(F.size("questions") > 0)


def _passed_questions(refined: DataFrame, threshold: float) -> DataFrame:
    """Columns sample_id, questions: those that are relevant enough, where there are any."""
    rated = F.arrays_zip("questions", "ratings")
    passed = F.transform(F.filter(rated, lambda each: each["ratings"] >= threshold), lambda each: each["questions"])
    known = refined.where(F.col("error_type").isNull())
    return known.select("sample_id", passed.alias("questions")).where(F.size("questions") > 0)


def _questions_to_answer(texts: DataFrame, passed: DataFrame) -> DataFrame:
    rows = texts.join(passed, on="sample_id", how="inner")
    return rows.select("sample_id", "position", "context_id", "text", "questions")


def _gather_answers(answered: DataFrame, passed: DataFrame, threshold: float) -> DataFrame:
    """One row of `SAMPLE_NODES` a sample that has been answered for in full."""
    gathered = leave_complete(answered, answered).groupBy("sample_id").agg(in_order("answers", "confidences"))
    rows = gathered.join(passed, on="sample_id", how="inner").select("sample_id", "questions", "passages")
    return rows.mapInArrow(partial(gather_answers, threshold=threshold), spark_schema(SAMPLE_NODES))


def _pairs(atoms: DataFrame, *, resolve: bool) -> DataFrame:
    """Rows of `PAIRS`."""
    in_graph = F.filter("atoms", lambda atom: atom["node"].isNotNull())
    nodes = F.transform(
        in_graph, lambda atom: F.struct(*(atom[name].alias(name) for name in ("node", "question", "text", "context")))
    )
    rows = atoms.where(F.col("contexts") > 0).select("sample_id", nodes.alias("nodes"))
    return rows.mapInArrow(partial(pair_answers, resolve=resolve), spark_schema(PAIRS))


def _bound(atoms: DataFrame) -> DataFrame:
    """Columns requests, bytes: how many pairs a sample can have, were all answers to one question, and how long."""
    longest = F.array_max(F.transform("atoms", lambda atom: F.octet_length(atom["text"])))
    asked = F.array_max(F.transform("atoms", lambda atom: F.octet_length(atom["question"])))
    pairs = F.col("contexts") * (F.col("contexts") - 1) / 2 + F.col("contexts") * F.col("responses")
    return atoms.where(F.col("contexts") > 0).select(
        pairs.cast("long").alias("requests"), (2 * longest + asked).alias("bytes")
    )


def _relations(compared: DataFrame, pairs: DataFrame) -> DataFrame:
    """Columns sample_id, source, target, request_id, relation, error_type, error: pairs asked for and pairs settled."""
    nothing = [F.lit(None).cast("string").alias(name) for name in ("error_type", "error")]
    settled = pairs.where(F.col("settled").isNotNull()).select(
        "sample_id",
        "source",
        "target",
        F.lit(None).cast("string").alias("request_id"),
        F.col("settled").alias("relation"),
        *nothing,
    )
    return compared.select(*settled.columns).unionByName(settled)


def _edges(relations: DataFrame) -> DataFrame:
    """Entailments from what implies to what is implied, for `Condenser.condense`; both ways where none was judged."""
    relation, judged = F.col("relation"), F.col("relation").isNotNull().alias("judged")
    graph = F.col("sample_id").alias("graph")
    forward = relations.where(relation.isNull() | relation.isin("equivalent", "first_implies_second"))
    backward = relations.where(relation.isNull() | relation.isin("equivalent", "second_implies_first"))
    turned = backward.select(graph, F.col("target").alias("source"), F.col("source").alias("target"), judged)
    return forward.select(graph, "source", "target", judged).unionByName(turned)
