"""Q&A comprehensiveness (Dejl et al. 2025; docs/methods.md, sections 3 and 5) with questions, answers and a fact graph.

`nodes` are numbers within a sample, and answers with a context source come first. An answer belongs to one question.
Answers to a question are compared in pairs, or an answer is compared with a list of other answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import Rows
from untold.jobs.metrics import base, graphs, summaries
from untold.jobs.metrics.judging import LIST, NumberedList, gather_items
from untold.jobs.metrics.settings import QaSettings
from untold.jobs.metrics.summaries import all_highest, made_up, size_of_things, tokens_of, value_of, whole
from untold.jobs.settings.model import Settings
from untold.udfs.facts.nodes import gather_answers, gather_questions, pair_answers
from untold.udfs.facts.pairs import MODEL

COMPARE, COMPARE_LISTS = "compare_answers", "compare_many"
PAIR = ("sample_id", "source", "target")
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


def compare_answers(atoms: DataFrame, tools: base.Tools, settings: QaSettings) -> DataFrame:
    """Return sample_id, source, target, judged_by, request_id, relation, error_type, error: one row per pair.

    atoms: rows of `SAMPLE_NODES`. judged_by and request_id are null for pairs that the resolver settled.
    """
    pairs = tools.keep(_pairs(atoms, resolve=settings.quantity_tool == "resolve"), "pairs")
    # A pair of plain quantities that the resolver settled has no request
    to_ask = pairs.where(F.col("settled").isNull())
    in_lists = settings.judgement == "lists"
    sizes = partial(_sizes, size=settings.list_size if in_lists else None)
    requests = partial(Rows, bound=sizes(_most_answers(atoms)), expected=sizes(_expected_answers(atoms)))
    if in_lists:
        compared = _compare_in_lists(to_ask, tools, settings.list_size, requests)
    else:
        compared = tools.ask(COMPARE, requests(to_ask, PAIR))
    return _relations(compared.withColumn("judged_by", F.lit(LIST if in_lists else MODEL)), pairs)


def _compare_in_lists(pairs: DataFrame, tools: base.Tools, size: int, requests: Callable[..., Rows]) -> DataFrame:
    """Return the columns of `PAIR`, request_id, relation, error_type, error.

    The model compares the head with the other answers of its pairs. `leads` is true if the head is the first of a pair.
    """
    is_first = F.col("head") == F.col("source")
    answer = F.when(is_first, F.col("first")).otherwise(F.col("second"))
    other = F.when(is_first, F.col("second")).otherwise(F.col("first"))
    of_other = F.when(is_first, F.col("target")).otherwise(F.col("source")).alias("node")
    keys = ("sample_id", "head", "question", "answer")
    lists = gather_items(tools, pairs.withColumn("answer", answer), keys, other, of_other, is_first.alias("leads"))
    stage = NumberedList(COMPARE_LISTS, size, {"others": "text"}, {"relations": "relation"})
    found = stage.ask(tools, lists, "sample_id", "head", requests=requests).select("*", "number.*")
    # The table has the relation of the first to the second
    leads, head, node, relation = (F.col(name) for name in ("leads", "head", "node", "relation"))
    swapped = F.coalesce(*(F.when(relation == one, F.lit(turned)) for one, turned in SWAPPED.items()), relation)
    named = {
        "source": F.when(leads, head).otherwise(node),
        "target": F.when(leads, node).otherwise(head),
        "relation": F.when(leads, relation).otherwise(swapped),
    }
    return found.withColumns(named)


def _pairs(atoms: DataFrame, *, resolve: bool) -> DataFrame:
    """Return rows of `PAIRS`: each unordered pair of answers to a question once.

    With `resolve`, `settled` is the relation of two plain quantities that need no model. It is null for other pairs.
    """
    in_graph = F.filter("atoms", lambda atom: atom["node"].isNotNull())
    nodes = F.transform(
        in_graph, lambda atom: F.struct(*(atom[name].alias(name) for name in ("node", "question", "text", "context")))
    )
    rows = atoms.where(F.col("contexts") > 0).select("sample_id", nodes.alias("nodes"))
    return base.map_rows(rows, pair_answers, resolve=resolve)


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
        full = F.floor((contexts - 1) / size)
        among = size * full * (full + 1) / 2 + (contexts - 1 - size * full) * (full + 1)
        requests = F.greatest(among, F.lit(0)) + responses * F.ceil(contexts / size)
        shown = F.lit(1) + F.least(F.lit(size), contexts)
    length = shown * F.col("longest") + F.col("asked")
    return answers.select(requests.cast("long").alias("requests"), length.alias("bytes"))


def _relations(compared: DataFrame, pairs: DataFrame) -> DataFrame:
    """Return the columns of `compare_answers` of requested and settled pairs."""
    settled = pairs.where(F.col("settled").isNotNull()).withColumn("relation", F.col("settled"))
    unknown = dict.fromkeys(("judged_by", "request_id", "error_type", "error"), F.lit(None).cast("string"))
    columns = (*PAIR, "judged_by", "request_id", "relation", "error_type", "error")
    return compared.select(*columns).unionByName(settled.withColumns(unknown).select(*columns))


NAME = "qa"
# In their order
MINE, REFINE, ANSWER = ("mine_questions", "refine_questions", "answer_questions")
# The fewest words of a question and of an answer, for an upper bound of their number
WORDS_OF_A_QUESTION = 3
WORDS_OF_AN_ANSWER = 1


def stages(settings: Settings) -> tuple[str, ...]:
    """Return the stages in order."""
    return summaries.stages_with_contexts(settings, MINE, REFINE, ANSWER, stage_of(settings.qa))


def assume(settings: Settings) -> base.Assumptions:
    """Assume the maximum number of questions and answers, all with the highest ratings and confidences."""
    answers = summaries.different_texts(WORDS_OF_AN_ANSWER)
    questions = F.transform("questions", lambda text: F.concat(text, F.lit(summaries.MARK)))
    confidences = _all_to_the_first(all_highest(answers))
    results = {
        **summaries.assumed_summaries(),
        MINE: {"questions": F.concat(F.array("query"), summaries.different_texts(WORDS_OF_A_QUESTION))},
        REFINE: {"questions": questions, "ratings": all_highest("questions"), "weighted": F.lit(True)},
        ANSWER: {"answers": _all_to_the_first(answers), "confidences": confidences, "weighted": F.lit(True)},
        **assumed_comparisons(),
    }
    return base.Assumptions(settings, results, expected=partial(_expected, settings))


def _expected(settings: Settings, figures: summaries.StageFigures) -> dict[str, Mapping[str, Column]]:
    """Return the average number of questions and answers that pass."""
    mine, refine, answer = (figures[stage] for stage in (MINE, REFINE, ANSWER))
    mined, listed, of_both = tokens_of("query", "text"), tokens_of("query", "questions"), tokens_of("text", "questions")
    relevant = value_of(refine.things, listed) * refine.passing(settings.thresholds.relevance)
    refined = summaries.rewritten("questions", whole(relevant, "query", "questions"))
    # Equal answers of several texts make a single node
    sure = value_of(answer.things, of_both) * answer.passing(settings.thresholds.confidence) * answer.distinct
    size, mean = size_of_things(answer, of_both), sure / F.size("questions")
    answers = F.transform("questions", lambda question: made_up(whole(mean, "text", question), size, "text", question))
    count = whole(value_of(mine.things, mined), "query", "text")
    return {
        **summaries.expected_summaries(figures),
        MINE: {"questions": made_up(count, size_of_things(mine, mined), "text", "query")},
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


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Return the tables `GRAPH_TABLES` of valid samples (columns of the table `samples`).

    Dejl et al. 2025; methods, section 3. A sample with a missing text has no further requests. A missing comparison
    leaves a score with bounds.
    """
    calls = base.StageCalls(NAME, tools)
    contexts = calls.record(summaries.STAGE, tools.contexts())
    texts = graphs.passages(samples, summaries.gather_contexts(contexts))
    of_response = settings.qa.questions == "all"
    to_mine = texts if of_response else texts.where(F.col("position").isNotNull())
    mined = calls.ask(MINE, to_mine, carry=("sample_id", "position", "context_id"))
    refined = calls.ask(REFINE, _questions_to_refine(calls.complete(mined, MINE), samples))
    passed = tools.keep(_passed_questions(refined, settings.thresholds.relevance), "questions")
    to_answer = texts.join(passed, on="sample_id", how="inner")
    answered = calls.ask(ANSWER, to_answer, carry=("sample_id", "position", "context_id"))
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
    return base.map_rows(rows, gather_questions).where(F.size("questions") > 0)


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


def _gather_answers(answered: DataFrame, passed: DataFrame, threshold: float) -> DataFrame:
    """Return the columns of `SAMPLE_NODES`, one row per sample of `answered`.

    threshold: `thresholds.confidence`, 1 to 5.
    """
    gathered = answered.groupBy("sample_id").agg(graphs.in_order("answers", "confidences"))
    rows = gathered.join(passed, on="sample_id", how="inner").select("sample_id", "questions", "passages")
    return base.map_rows(rows, gather_answers, metric=NAME, threshold=threshold)


def _edges(relations: DataFrame) -> DataFrame:
    """Return the entailments for `Condenser.condense`, with unjudged edges in both directions for missing relations."""
    relation, judged = F.col("relation"), F.col("relation").isNotNull().alias("judged")
    graph = F.col("sample_id").alias("graph")
    forward = relations.where(relation.isNull() | relation.isin("equivalent", "first_implies_second"))
    # A missing comparison could have any relation
    backward = relations.where(relation.isNull() | relation.isin("equivalent", "second_implies_first"))
    turned = backward.select(graph, F.col("target").alias("source"), F.col("source").alias("target"), judged)
    return forward.select(graph, "source", "target", judged).unionByName(turned)


METRIC = base.Metric(
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
