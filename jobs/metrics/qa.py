"""Q&A comprehensiveness (Dejl et al. 2025; docs/methods.md, sections 3 and 5) with questions, answers and a fact graph.

`nodes` are numbers within a sample, and answers with a context source come first. An answer belongs to one question.
Answers to a question are compared in pairs, or an answer is compared with a list of other answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import Rows
from untold.jobs.metrics import graphs
from untold.jobs.metrics.base import Assumptions, Metric, StageCalls, Tables, Tools
from untold.jobs.metrics.judging import LIST, ask_in_lists, cut_in_lists, listed_pairs, texts_of_items
from untold.jobs.metrics.settings import QaSettings
from untold.jobs.metrics.summaries import (
    MARK,
    StageFigures,
    all_highest,
    assumed_summaries,
    expected_summaries,
    gather_contexts,
    made_up,
    rewritten,
    size_of_things,
    stages_with_contexts,
    tokens_of,
    value_of,
    whole,
)
from untold.jobs.metrics.summaries import STAGE as SUMMARISE
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.facts.nodes import (
    PAIRS,
    SAMPLE_NODES,
    SAMPLE_QUESTIONS,
    gather_answers,
    gather_questions,
    pair_answers,
)
from untold.udfs.facts.pairs import MODEL

COMPARE, COMPARE_LISTS = "compare_answers", "compare_many"
PAIR = ("sample_id", "source", "target")
LISTED = ("sample_id", "head", "listed_nodes")
SWAPPED = {"first_implies_second": "second_implies_first", "second_implies_first": "first_implies_second"}


def assumed_comparisons() -> dict[str, Mapping[str, Column]]:
    """Return the assumed output of comparisons, with a relation for each answer of a list."""
    return {
        COMPARE: {"relation": F.lit(None)},
        COMPARE_LISTS: {"relations": F.transform("others", lambda _: F.lit("neutral"))},
    }


def stage_of(settings: QaSettings) -> str:
    """Return the stage that compares answers."""
    return COMPARE_LISTS if settings.judgement == "lists" else COMPARE


def compare_answers(atoms: DataFrame, tools: Tools, settings: QaSettings) -> DataFrame:
    """Return sample_id, source, target, judged_by, request_id, relation, error_type, error: one row per pair.

    atoms: rows of `SAMPLE_NODES`. judged_by and request_id are null for pairs that the resolver settled.
    """
    pairs = tools.keep(_pairs(atoms, resolve=settings.quantity_tool == "resolve"), "pairs")
    # A pair of plain quantities that the resolver settled has no request
    to_ask = pairs.where(F.col("settled").isNull())
    in_lists = settings.judgement == "lists"
    sizes = partial(_sizes, size=settings.list_size if in_lists else None)
    requests = partial(Rows, bound=sizes(_most_answers(atoms)), expected=sizes(_expected_answers(atoms)))

    def ask(again: DataFrame | None, size: int) -> DataFrame:
        if again is None:
            return _ask_lists(tools, requests(_lists(to_ask, size), LISTED))
        left = tools.keep(to_ask.join(again, on=list(PAIR), how="left_semi"), "open-pairs")
        return _ask_lists(tools, Rows(_lists(left, size), LISTED))

    compared = ask_in_lists(ask, settings.list_size) if in_lists else tools.ask(COMPARE, requests(to_ask, PAIR))
    return _relations(compared.withColumn("judged_by", F.lit(LIST if in_lists else MODEL)), pairs)


def _lists(pairs: DataFrame, size: int) -> DataFrame:
    """Return the columns of `LISTED`, question, answer, others: the answers to compare with each head, sorted.

    listed_nodes: the node of each other answer, and `leads`, true if the head is the first of the pair.
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
    """Return the columns of `PAIR`, request_id, relation, error_type, error, and listed, the size of the list."""
    pairs = listed_pairs(tools.ask(COMPARE_LISTS, lists), "listed_nodes", "other")
    leads, head, other = F.col("other.leads"), F.col("head"), F.col("other.node")
    # The model compares the head with the other answer, and the table has the relation of the first to the second
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
    """Return rows of `PAIRS`: each unordered pair of answers to a question once.

    With `resolve`, `settled` is the relation of two plain quantities that need no model. It is null for other pairs.
    """
    in_graph = F.filter("atoms", lambda atom: atom["node"].isNotNull())
    nodes = F.transform(
        in_graph, lambda atom: F.struct(*(atom[name].alias(name) for name in ("node", "question", "text", "context")))
    )
    rows = atoms.where(F.col("contexts") > 0).select("sample_id", nodes.alias("nodes"))
    return rows.mapInArrow(partial(pair_answers, resolve=resolve), spark_schema(PAIRS))


def _most_answers(atoms: DataFrame) -> DataFrame:
    """Return contexts, responses, longest, asked: the answers of each sample as if all had the same question.

    A plan with missing completions needs this upper bound. longest and asked: bytes of the longest answer and question.
    """
    longest = F.array_max(F.transform("atoms", lambda atom: F.octet_length(atom["text"])))
    asked = F.array_max(F.transform("atoms", lambda atom: F.octet_length(atom["question"])))
    some = atoms.where(F.col("contexts") > 0)
    return some.select("contexts", "responses", longest.alias("longest"), asked.alias("asked"))


def _expected_answers(atoms: DataFrame) -> DataFrame:
    """Return the columns of `_most_answers` for each question with its present answers."""
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
    """Return requests, bytes: the number of requests that compare the answers to a question, and their maximum length.

    C answers of contexts and R other answers make C·(C - 1) / 2 + C·R pairs. In lists of n, an answer of contexts is
    compared with the later ones, ⌈1 / n⌉ + ... + ⌈(C - 1) / n⌉ lists, and each other answer with all C.
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
    """Return the columns of `compare_answers` of requested and settled pairs."""
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


NAME = "qa"
# In their order
MINE, REFINE, ANSWER = ("mine_questions", "refine_questions", "answer_questions")
# The fewest words of a question and of an answer, for an upper bound of their number
WORDS_OF_A_QUESTION = 3
WORDS_OF_AN_ANSWER = 1


def stages(settings: Settings) -> tuple[str, ...]:
    """Return the stages in order."""
    return stages_with_contexts(settings, MINE, REFINE, ANSWER, stage_of(settings.qa))


def assume(settings: Settings) -> Assumptions:
    """Assume the maximum number of questions and answers, all with the highest ratings and confidences."""
    answers = graphs.different_texts(WORDS_OF_AN_ANSWER)
    results = {
        **assumed_summaries(),
        MINE: {"questions": F.concat(F.array("query"), graphs.different_texts(WORDS_OF_A_QUESTION))},
        REFINE: {
            "questions": F.transform("questions", lambda text: F.concat(text, F.lit(MARK))),
            "ratings": F.transform("questions", lambda _: F.lit(5.0)),
            "weighted": F.lit(True),
        },
        ANSWER: {
            "answers": _all_to_the_first(answers),
            "confidences": _all_to_the_first(F.transform(answers, lambda _: F.lit(5.0))),
            "weighted": F.lit(True),
        },
        **assumed_comparisons(),
    }
    return Assumptions(settings, results, expected=partial(_expected, settings))


def _expected(settings: Settings, figures: StageFigures) -> dict[str, Mapping[str, Column]]:
    """Return the average number of questions and answers that pass."""
    mined, listed, of_both = tokens_of("query", "text"), tokens_of("query", "questions"), tokens_of("text", "questions")
    relevant = value_of(figures[REFINE].things, listed) * figures[REFINE].passing(settings.thresholds.relevance)
    refined = rewritten("questions", whole(relevant, "query", "questions"))
    sure = value_of(figures[ANSWER].things, of_both) * figures[ANSWER].passing(settings.thresholds.confidence)
    # Equal answers of several texts make a single node
    sure = sure * figures[ANSWER].distinct
    size = size_of_things(figures[ANSWER], of_both)
    mean = sure / F.size("questions")
    answers = F.transform("questions", lambda question: made_up(whole(mean, "text", question), size, "text", question))
    count = whole(value_of(figures[MINE].things, mined), "query", "text")
    return {
        **expected_summaries(figures),
        MINE: {"questions": made_up(count, size_of_things(figures[MINE], mined), "text", "query")},
        REFINE: {"questions": refined, "ratings": all_highest(refined), "weighted": F.lit(True)},
        ANSWER: {"answers": answers, "confidences": F.transform(answers, all_highest), "weighted": F.lit(True)},
        **assumed_comparisons(),
    }


def _all_to_the_first(items: Column) -> Column:
    """Return the items as the answers to the first question, and no answers to the others.

    This makes the most pairs, because only answers to the same question make a pair. Reads the column questions,
    array<string>.
    """
    # An empty slice has the type of the items
    nothing = F.transform(F.slice("questions", 2, F.size("questions")), lambda _: F.slice(items, 1, 0))
    return F.concat(F.array(items), nothing)


def score(samples: DataFrame, tools: Tools, settings: Settings) -> Tables:
    """Return the tables `GRAPH_TABLES` of valid samples (columns of the table `samples`).

    Dejl et al. 2025; methods, section 3. A sample with a missing text has no further requests. A missing comparison
    leaves a score with bounds.
    """
    calls = StageCalls(NAME, tools)
    contexts = calls.record(SUMMARISE, tools.contexts())
    texts = graphs.passages(samples, gather_contexts(contexts))
    of_response = settings.qa.questions == "all"
    to_mine = texts if of_response else texts.where(F.col("position").isNotNull())
    mined = calls.ask(MINE, to_mine, carry=("sample_id", "position", "context_id"))
    refined = calls.ask(REFINE, _questions_to_refine(calls.complete(mined, MINE), samples))
    passed = tools.keep(_passed_questions(refined, settings.thresholds.relevance), "questions")
    answered = calls.ask(ANSWER, _questions_to_answer(texts, passed), carry=("sample_id", "position", "context_id"))
    incomplete = calls.incomplete()
    complete = calls.complete(answered, ANSWER)
    atoms = tools.keep(_gather_answers(complete, passed, settings.thresholds.confidence), "atoms")
    relations = tools.keep(compare_answers(atoms, tools, settings.qa), "relations")
    calls.record(stage_of(settings.qa), relations)
    condensed = tools.condense(graphs.graph_nodes(atoms), _edges(relations))
    # Pairs of answers have no limit, because only answers to the same question make a pair
    with_graph = atoms.where(F.col("contexts") > 0).select("sample_id", F.lit(0).alias("left_out"))
    relevances = _relevances(atoms, passed) if settings.qa.weighted else None
    found = graphs.PairJudgements(incomplete, with_graph, atoms, relations, condensed, relevances)
    return graphs.conclude_graphs(calls, samples, found)


def _questions_to_refine(mined: DataFrame, samples: DataFrame) -> DataFrame:
    """Return sample_id, query, questions: all distinct questions of a sample, if there are any.

    They are refined together, because questions of different texts may be the same.
    """
    queries = samples.select("sample_id", "query")
    gathered = mined.groupBy("sample_id").agg(graphs.in_order("questions"))
    rows = gathered.join(queries, on="sample_id", how="inner").select("sample_id", "query", "passages")
    distinct = rows.mapInArrow(gather_questions, spark_schema(SAMPLE_QUESTIONS))
    return distinct.where(F.size("questions") > 0)


def _passed_questions(refined: DataFrame, threshold: float) -> DataFrame:
    """Return sample_id, questions, relevances: the questions with a rating of at least `threshold`, from 1 to 5."""
    rated = F.filter(F.arrays_zip("questions", "ratings"), lambda each: each["ratings"] >= threshold)
    passed = refined.where(F.col("error_type").isNull()).select("sample_id", rated.alias("rated"))
    return passed.where(F.size("rated") > 0).select(
        "sample_id", F.col("rated.questions").alias("questions"), F.col("rated.ratings").alias("relevances")
    )


def _relevances(atoms: DataFrame, passed: DataFrame) -> DataFrame:
    """Return sample_id, node, relevance: the rating of the question of each answer."""
    answers = atoms.select("sample_id", F.explode("atoms").alias("atom"))
    nodes = answers.select("sample_id", "atom.node", "atom.question")
    zipped = passed.select("sample_id", F.inline(F.arrays_zip("questions", "relevances")))
    rated = zipped.withColumnsRenamed({"questions": "question", "relevances": "relevance"})
    return nodes.join(rated, on=["sample_id", "question"], how="inner").select("sample_id", "node", "relevance")


def _questions_to_answer(texts: DataFrame, passed: DataFrame) -> DataFrame:
    """Return a row per passage, with all questions of its sample."""
    rows = texts.join(passed, on="sample_id", how="inner")
    return rows.select("sample_id", "position", "context_id", "text", "questions")


def _gather_answers(answered: DataFrame, passed: DataFrame, threshold: float) -> DataFrame:
    """Return the columns of `SAMPLE_NODES`, one row per sample of `answered`.

    threshold: `thresholds.confidence`, 1 to 5.
    """
    gathered = answered.groupBy("sample_id").agg(graphs.in_order("answers", "confidences"))
    rows = gathered.join(passed, on="sample_id", how="inner").select("sample_id", "questions", "passages")
    return rows.mapInArrow(partial(gather_answers, metric=NAME, threshold=threshold), spark_schema(SAMPLE_NODES))


def _edges(relations: DataFrame) -> DataFrame:
    """Return the entailments for `Condenser.condense`, with unjudged edges in both directions for missing relations."""
    relation, judged = F.col("relation"), F.col("relation").isNotNull().alias("judged")
    graph = F.col("sample_id").alias("graph")
    forward = relations.where(relation.isNull() | relation.isin("equivalent", "first_implies_second"))
    # A missing comparison could have any relation
    backward = relations.where(relation.isNull() | relation.isin("equivalent", "second_implies_first"))
    turned = backward.select(graph, F.col("target").alias("source"), F.col("source").alias("target"), judged)
    return forward.select(graph, "source", "target", judged).unionByName(turned)


METRIC = Metric(
    name=NAME,
    stages=stages,
    score=score,
    assume=assume,
    sections={NAME: QaSettings},
    tables=graphs.GRAPH_TABLES,
    settings=("summarise_contexts", NAME, "thresholds", "graph"),
    unknown=graphs.MEASURES,
    weighting=lambda settings: graphs.weighting(settings, settings.qa),
)
