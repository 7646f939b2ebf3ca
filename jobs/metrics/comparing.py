"""How the relations of qa are had: answers to one question in pairs, or an answer with a list of others."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.requests import Rows
from untold.jobs.metrics.base import Tools
from untold.jobs.metrics.lists import LIST, ask_in_lists, cut_in_lists, listed_pairs, texts_of_items
from untold.jobs.metrics.settings import QaSettings
from untold.jobs.run.session import spark_schema
from untold.udfs.facts.answers import PAIRS, pair_answers
from untold.udfs.facts.pairs import MODEL

COMPARE, COMPARE_LISTS = "compare_answers", "compare_many"
PAIR = ("sample_id", "source", "target")
LISTED = ("sample_id", "head", "listed_nodes")
SWAPPED = {"first_implies_second": "second_implies_first", "second_implies_first": "first_implies_second"}


def assumed_comparisons() -> dict[str, Mapping[str, Column]]:
    """What comparing gives in a plan: a relation for each answer of a list, as none is asked again."""
    return {
        COMPARE: {"relation": F.lit(None)},
        COMPARE_LISTS: {"relations": F.transform("others", lambda _: F.lit("neutral"))},
    }


def stage_of(settings: QaSettings) -> str:
    """The stage that compares answers."""
    return COMPARE_LISTS if settings.judgement == "lists" else COMPARE


def compare_answers(atoms: DataFrame, tools: Tools, settings: QaSettings) -> DataFrame:
    """Columns sample_id, source, target, judged_by, request_id, relation, error_type, error: pairs asked and settled.

    atoms: rows of `SAMPLE_NODES`. judged_by and request_id are null for what was settled without the model.
    """
    pairs = tools.keep(_pairs(atoms, resolve=settings.quantity_tool == "resolve"), "pairs")
    # A pair of plain quantities that the resolver settled needs no model, and has no request
    to_ask = pairs.where(F.col("settled").isNull())
    in_lists = settings.judgement == "lists"
    sizes = partial(_sizes, size=settings.list_size if in_lists else None)
    requests = partial(Rows, bound=sizes(_most_answers(atoms)), likely=sizes(_likely_answers(atoms)))

    def ask(again: DataFrame | None, size: int) -> DataFrame:
        if again is None:
            return _ask_lists(tools, requests(_lists(to_ask, size), LISTED))
        left = tools.keep(to_ask.join(again, on=list(PAIR), how="left_semi"), "open-pairs")
        return _ask_lists(tools, Rows(_lists(left, size), LISTED))

    compared = ask_in_lists(ask, settings.list_size) if in_lists else tools.ask(COMPARE, requests(to_ask, PAIR))
    return _relations(compared.withColumn("judged_by", F.lit(LIST if in_lists else MODEL)), pairs)


def _lists(pairs: DataFrame, size: int) -> DataFrame:
    """Columns of `LISTED`, question, answer, others: the answers that each head is held against, in code point order.

    listed_nodes: of each other answer its node, and whether the head is the pair's first.
    """
    leads = F.col("head") == F.col("source")
    other = F.struct(
        F.when(leads, F.col("second")).otherwise(F.col("first")).alias("text"),
        F.when(leads, F.col("target")).otherwise(F.col("source")).alias("node"),
        leads.alias("leads"),
    )
    answer = F.when(leads, F.col("first")).otherwise(F.col("second"))
    lists = cut_in_lists(pairs.withColumn("answer", answer), ("sample_id", "head", "question", "answer"), other, size)
    nodes = F.transform("items", lambda one: F.struct(one["node"].alias("node"), one["leads"].alias("leads")))
    return lists.select(
        "sample_id", "head", nodes.alias("listed_nodes"), "question", "answer", texts_of_items().alias("others")
    )


def _ask_lists(tools: Tools, lists: Rows) -> DataFrame:
    """The columns of `PAIR`, request_id, relation, error_type, error, and listed: of how many others the list was."""
    pairs = listed_pairs(tools.ask(COMPARE_LISTS, lists), "listed_nodes", "other")
    leads, head, other = F.col("other.leads"), F.col("head"), F.col("other.node")
    # Of the head to the other, and the table has it of the first to the second
    relation = F.col("relation")
    swapped = F.coalesce(*(F.when(relation == one, F.lit(turned)) for one, turned in SWAPPED.items()), relation)
    return pairs.select(
        "sample_id",
        F.when(leads, head).otherwise(other).alias("source"),
        F.when(leads, other).otherwise(head).alias("target"),
        "request_id",
        F.when(leads, relation).otherwise(swapped).alias("relation"),
        "error_type",
        "error",
        "listed",
    )


def _pairs(atoms: DataFrame, *, resolve: bool) -> DataFrame:
    """Rows of `PAIRS`: the answers to compare, each unordered pair to one question once.

    With `resolve`, `settled` is the relation of two plain quantities that can be told without the model; else null.
    """
    in_graph = F.filter("atoms", lambda atom: atom["node"].isNotNull())
    nodes = F.transform(
        in_graph, lambda atom: F.struct(*(atom[name].alias(name) for name in ("node", "question", "text", "context")))
    )
    rows = atoms.where(F.col("contexts") > 0).select("sample_id", nodes.alias("nodes"))
    return rows.mapInArrow(partial(pair_answers, resolve=resolve), spark_schema(PAIRS))


def _most_answers(atoms: DataFrame) -> DataFrame:
    """Columns contexts, responses, longest, asked: of a sample, were all its answers to one question, and how long.

    For a plan after unanswered questions. longest and asked: bytes of the longest answer and question.
    """
    longest = F.array_max(F.transform("atoms", lambda atom: F.octet_length(atom["text"])))
    asked = F.array_max(F.transform("atoms", lambda atom: F.octet_length(atom["question"])))
    some = atoms.where(F.col("contexts") > 0)
    return some.select("contexts", "responses", longest.alias("longest"), asked.alias("asked"))


def _likely_answers(atoms: DataFrame) -> DataFrame:
    """The same of each question, were no other answers to come."""
    nodes = atoms.where(F.col("contexts") > 0).select("sample_id", F.explode("atoms").alias("atom"))
    return (
        nodes.where(F.col("atom.node").isNotNull())
        .groupBy("sample_id", F.col("atom.question").alias("question"))
        .agg(
            F.count_if("atom.context").alias("contexts"),
            F.count_if(~F.col("atom.context")).alias("responses"),
            F.max(F.octet_length("atom.text")).alias("longest"),
        )
        .withColumn("asked", F.octet_length("question"))
    )


def _sizes(answers: DataFrame, size: int | None) -> DataFrame:
    """Columns requests, bytes: how many requests compare the answers to a question, and how long each is at most.

    C·(C − 1) / 2 + C·R pairs of C answers of contexts and R others. In lists of n, an answer of contexts is held
    against those behind it, ⌈1 / n⌉ + ... + ⌈(C − 1) / n⌉, and each other one against all C.
    """
    contexts, responses = F.col("contexts"), F.col("responses")
    if size is None:
        requests = contexts * (contexts - 1) / 2 + contexts * responses
        shown: Column = F.lit(2)
    else:
        whole = F.floor((contexts - 1) / size)
        among = size * whole * (whole + 1) / 2 + (contexts - 1 - size * whole) * (whole + 1)
        requests = F.greatest(among, F.lit(0)) + responses * F.ceil(contexts / size)
        shown = F.lit(1) + F.least(F.lit(size), contexts)
    length = shown * F.col("longest") + F.col("asked")
    return answers.select(requests.cast("long").alias("requests"), length.alias("bytes"))


def _relations(compared: DataFrame, pairs: DataFrame) -> DataFrame:
    """Columns sample_id, source, target, judged_by, request_id, relation, error_type, error: pairs asked and settled.

    judged_by and request_id are null for what was settled without the model.
    """
    nothing = [F.lit(None).cast("string").alias(name) for name in ("error_type", "error")]
    settled = pairs.where(F.col("settled").isNotNull()).select(
        "sample_id",
        "source",
        "target",
        F.lit(None).cast("string").alias("judged_by"),
        F.lit(None).cast("string").alias("request_id"),
        F.col("settled").alias("relation"),
        *nothing,
    )
    return compared.select(*settled.columns).unionByName(settled)
