"""Nuggets of a query and their support in a response (AutoNuggetizer; docs/methods.md, section 17).

Pradeep et al. 2025. A request has ten nuggets. Nuggets without a clear label are requested again.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.metrics import base, citations, reference_facts, summaries
from untold.jobs.metrics.grounded_claims import covered_statements
from untold.jobs.metrics.judging import NumberedList
from untold.jobs.metrics.panel import ordered, vote_rows
from untold.jobs.metrics.settings import NuggetsSettings
from untold.jobs.metrics.views import NuggetView
from untold.jobs.settings.model import Settings, SettingsError
from untold.udfs.facts import nugget_measures
from untold.udfs.facts.citation_measures import support_batches
from untold.udfs.storage import absolute

NAME = "nuggets"
# In their order
CREATE, RATE, ASSIGN = ("create_nuggets", "rate_nuggets", "assign_nuggets")
LISTED = 10
_RATED = NumberedList(RATE, LISTED, {"nuggets": "text"}, {"labels": "label"})
_SUPPORTS = ordered(*nugget_measures.SUPPORTS)
_ASSIGNED = NumberedList(ASSIGN, LISTED, {"nuggets": "text"}, {"labels": "label", "reasons": "reason"})
_NUGGET = "array<struct<reference_id: string, text: string, weight: double, importance: string>>"


def stages(settings: Settings) -> tuple[str, ...]:
    """Return the stages in order. Given nuggets need no creation."""
    own = (CREATE, RATE, ASSIGN, *((citations.JUDGE,) if settings.nuggets.supported else ()))
    return summaries.stages_with_contexts(settings, *own) if settings.knowledge.source == "contexts" else own


def judged_stages(settings: Settings) -> tuple[str, ...]:
    """Return the stage that assigns nuggets. Raises SettingsError for supported nuggets, which have no panel."""
    if settings.nuggets.supported:
        raise SettingsError("judges: nuggets.supported has no panel. Remove judges, or set nuggets.supported=false")
    return (ASSIGN,)


def needs(settings: Settings) -> tuple[str, ...]:
    """Return the required columns: the topic for nuggets of a file, else the source of the nuggets."""
    if settings.nuggets.file is not None:
        return ("query", "response", "query_id")
    return ("query", "response", *reference_facts.needed_facts(settings))


def digests(settings: Settings) -> dict[str, str]:
    """Return the digest of the file of nuggets, if it is set, and of cited sources, if the metric reads them.

    Raises UserError for an unusable file.
    """
    file = settings.nuggets.file
    found = {} if file is None else {"nuggets.file": nugget_measures.digest_of_nuggets(absolute(file))}
    return found | (citations.digests(settings) if settings.nuggets.supported else {})


def bounds(settings: Settings) -> base.Bounds:
    """Return the bounds of a sample without results. Counts have no upper bound."""
    names = nugget_measures.names_of_measures(supported=settings.nuggets.supported)
    return base.bounds_of(names, nugget_measures.NUGGETS, nugget_measures.VITAL_NUGGETS)


def assume(settings: Settings) -> base.Assumptions:
    """Assume the maximum number of nuggets, all of them vital, and a clear label for each."""
    labelled = {
        **citations.assume(settings).results,
        RATE: _RATED.assumed(nugget_measures.VITAL),
        ASSIGN: _ASSIGNED.assumed(nugget_measures.SUPPORT),
    }
    created = summaries.Extraction("nuggets", "query", ("texts",), settings.nuggets.max_generated)
    return summaries.assume_texts(settings, {CREATE: created}, labelled)


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Return the tables of valid samples (columns of the table `samples`).

    Responses to one query share nuggets and their importance. A sample without nuggets or ratings is not judged. A
    missing label leaves values with bounds.
    """
    samples = _with_file(samples, settings)
    shared, calls = base.StageCalls(NAME, tools, key="owner"), base.StageCalls(NAME, tools)
    owners = reference_facts.find_owners(samples, tools, settings)
    given = owners.owners.where(F.col("given").isNotNull())
    mined = reference_facts.Owners(owners.owned, owners.owners.where(F.col("given").isNull()))
    evidence = reference_facts.find_evidence(mined, tools, settings, documents=None)
    searched = [] if evidence.hits is None else [evidence.hits]
    texts = reference_facts.find_texts(mined.owners, evidence, shared, settings)
    created = _create(texts, searched, mined.owners, shared, settings)
    nuggets = tools.keep(created.unionByName(_given(given, settings)), "nuggets")
    rated = shared.record(RATE, _RATED.ask(tools, _to_rate(nuggets), "owner"))
    incomplete = tools.keep(shared.incomplete(*searched), "incomplete-owners")
    ranked = tools.keep(_rank(shared.complete(nuggets, RATE), rated, settings), "ranked-nuggets")
    listed = samples.join(owners.owned, on="sample_id", how="inner").join(ranked, on="owner", how="inner")
    labels = _ASSIGNED.judge(tools, settings, _SUPPORTS, _to_assign(listed), "sample_id")
    assigned = calls.record(ASSIGN, tools.keep(labels, "assigned"))
    supported = _in_supported_text(listed, assigned, calls, settings) if settings.nuggets.supported else None
    concluded = tools.keep(_conclude(listed, assigned, supported, settings), "concluded")
    partly = (F.col("unjudged") > 0) | F.col("lost_support")
    judged = base.with_status(samples, owners.owned, incomplete, concluded, partial=partly)
    failures = reference_facts.failures_of_owners(shared, owners, evidence)
    return {
        "statements": covered_statements(judged.where(base.is_judged()), NAME),
        "scores": base.measured_scores(judged, NAME, settings.nuggets.score, F.col("left_out")),
        "measures": base.measure_rows(judged, NAME, bounds(settings)),
        "failures": failures.unionByName(calls.failures()),
        **vote_rows(NAME, ASSIGN, assigned, "number"),
    }


def _with_file(samples: DataFrame, settings: Settings) -> DataFrame:
    """Return the samples with the queries and nuggets of `nuggets.file` by query_id, instead of their own."""
    if settings.nuggets.file is None:
        return samples
    path = samples.sparkSession.createDataFrame([(absolute(settings.nuggets.file),)], "path string")
    joined = samples.join(base.map_rows(path, nugget_measures.given_nuggets), on="query_id", how="left")
    own = ("references",) if "references" in samples.columns else ()
    replaced = {
        "query": F.coalesce(nugget_measures.TOPIC, "query"),
        "references": F.coalesce(nugget_measures.OF_TOPIC, *own),
    }
    return joined.withColumns(replaced).drop(nugget_measures.TOPIC, nugget_measures.OF_TOPIC)


def _given(owners: DataFrame, settings: Settings) -> DataFrame:
    """Return owner, query, nuggets: the given nuggets with their importance, or with the importance of their weight."""
    least = settings.nuggets.vital_weight

    def one(item: Column) -> Column:
        weight = item["weight"]
        by_weight = F.when(weight >= least, nugget_measures.VITAL).when(weight < least, nugget_measures.OKAY)
        return item.dropFields("anchor").withField("importance", F.coalesce(item["importance"], by_weight))

    # The cast is by position, so the fields have the order of `_NUGGET`
    return owners.select("owner", "query", F.transform("given", one).cast(_NUGGET).alias("nuggets"))


def _create(
    texts: DataFrame,
    searched: Sequence[DataFrame],
    owners: DataFrame,
    calls: base.StageCalls,
    settings: Settings,
) -> DataFrame:
    """Return owner, query, nuggets: the owners with completions for all their windows.

    The windows of an owner have one request after the other, each with the nuggets of the earlier windows. The owners
    run in parallel. texts: owner, place, text. searched: results of retrieval, which may be incomplete.
    """
    own, tools = settings.nuggets, calls.tools
    in_order = F.array_sort(F.collect_list(F.struct("place", "text")))
    by_owner = texts.groupBy("owner").agg(F.transform(in_order, lambda one: one["text"]).alias("texts"))
    state = calls.complete(owners.select("owner", "query").join(by_owner, on="owner", how="left"))
    for hits in searched:
        missing = hits.where(F.col("error_type").isNotNull()).select("owner")
        state = state.join(missing, on="owner", how="left_anti")
    state = tools.keep(state.withColumn("nuggets", F.array().cast("array<string>")), "texts-of-owners")
    for first in range(0, _most_texts(owners, settings), own.window):
        window = F.slice("texts", first + 1, own.window).alias("texts")
        rows = state.where(F.size("texts") > first).select(
            "owner", "query", window, "nuggets", F.lit(own.max_generated).alias("most")
        )
        created = calls.ask(CREATE, rows)
        updated = F.slice(F.array_distinct("nuggets"), 1, own.max_generated).alias("updated")
        joined = calls.complete(state, CREATE).join(created.select("owner", updated), on="owner", how="left")
        state = tools.keep(
            joined.withColumn("nuggets", F.coalesce("updated", "nuggets")).drop("updated"), "created-nuggets"
        )
    nothing = F.lit(None)
    one = F.transform("nuggets", lambda text: F.struct(nothing, text, nothing, nothing)).cast(_NUGGET)
    return state.select("owner", "query", one.alias("nuggets"))


def _most_texts(owners: DataFrame, settings: Settings) -> int:
    """Return the maximum number of texts of an owner, at least 1."""
    if settings.knowledge.source != "contexts":
        return settings.knowledge.top_k
    longest = owners.agg(F.max(F.size("contexts"))).first()
    return max(1, (longest and longest[0]) or 1)


def _to_rate(nuggets: DataFrame) -> DataFrame:
    """Return owner, query, listed array<struct<number, text>>: the nuggets without importance, numbered from 1."""
    placed = F.transform(
        "nuggets",
        lambda one, place: F.struct(
            (place + 1).alias("number"), one["text"].alias("text"), one["importance"].alias("importance")
        ),
    )
    return nuggets.select("owner", "query", F.filter(placed, lambda one: one["importance"].isNull()).alias("listed"))


def _rank(nuggets: DataFrame, rated: DataFrame, settings: Settings) -> DataFrame:
    """Return the columns of `RANKED`, one row per owner of `nuggets`."""
    by_owner = rated.groupBy("owner").agg(F.collect_list(F.struct("number", "label")).alias("rated"))
    both = nuggets.drop("query").join(by_owner, on="owner", how="left")
    return base.map_rows(both, nugget_measures.rank_batches, keep=settings.nuggets.top_k)


def _to_assign(shared: DataFrame) -> DataFrame:
    """Return sample_id, query, response, listed: the kept nuggets. A blank response supports none without a request."""
    kept = F.filter("nuggets", lambda one: one["kept"])
    return shared.where(~base.is_blank("response")).select("sample_id", "query", "response", kept.alias("listed"))


def _in_supported_text(listed: DataFrame, assigned: DataFrame, calls: base.StageCalls, settings: Settings) -> DataFrame:
    """Judge the nuggets by the sentences with a supporting citation, joined: `SUPPORTED` and labels, a row per sample.

    The columns are also labels array<struct<number, label>>, and waiting. The response supports at least as much as a
    part of it, so nuggets that it does not support need no request.
    """
    tools = calls.tools
    sentences, _ = citations.judge_sentences(listed, calls, settings)
    texts = tools.keep(base.conclude(sentences, support_batches), "supported-texts")
    stated = F.col("label") != nugget_measures.NOT_SUPPORT
    numbers = assigned.where(stated).groupBy("sample_id").agg(F.collect_list("number").alias("stated"))
    rows = _to_assign(listed).drop("response").join(numbers, on="sample_id", how="inner")
    rows = rows.join(texts.withColumnRenamed("supported_text", "response"), on="sample_id", how="inner")
    wanted = F.filter("listed", lambda one: F.array_contains("stated", one["number"]))
    rows = rows.where(~base.is_blank("response")).select("sample_id", "query", "response", wanted.alias("listed"))
    again = calls.record(ASSIGN, tools.keep(_ASSIGNED.ask(tools, rows, "sample_id"), "assigned-again"))
    labels = base.collect(again, "labels", "number", "label").withColumnRenamed("waiting", "later")
    both = texts.join(labels, on="sample_id", how="left")
    waiting = F.coalesce("waiting", F.lit(False)) | F.coalesce("later", F.lit(False))
    return both.withColumn("waiting", waiting).drop("later")


def _conclude(shared: DataFrame, assigned: DataFrame, supported: DataFrame | None, settings: Settings) -> DataFrame:
    """Return the columns of `CONCLUDED`, and waiting: true if the label of a nugget was not requested."""
    rows = shared.select("sample_id", base.is_blank("response").alias("blank"), "nuggets")
    rows = rows.join(base.collect(assigned, "assigned", "number", "label", "reason"), on="sample_id", how="left")
    if supported is not None:
        rows = rows.withColumnRenamed("waiting", "first").join(supported, on="sample_id", how="left")
        rows = rows.withColumn("waiting", F.coalesce("first", F.lit(False)) | F.col("waiting")).drop("first")
    return base.conclude(rows, nugget_measures.conclude_batches, score=settings.nuggets.score)


METRIC = base.Metric(
    name=NAME,
    stages=stages,
    score=score,
    assume=assume,
    sections={NAME: NuggetsSettings},
    judged=judged_stages,
    settings=(NAME, "summarise_contexts", "citations", "index"),
    tables=("statements", "scores", "measures", "failures"),
    needs=needs,
    retrieves=True,
    looks_in=None,
    reads=("query_id", "references"),
    reads_more=lambda settings: ("citations",) if settings.nuggets.supported else (),
    unknown=bounds,
    zeroed=nugget_measures.OF_VITALS,
    digests=digests,
    dropped="nuggets beyond nuggets.top_k or with a weight below 0, which were left out; --metric rubric scores what "
    "a response should avoid",
    view=NuggetView,
)
