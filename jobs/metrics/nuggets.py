"""Nuggets (Pradeep et al. 2025, AutoNuggetizer; docs/methods.md, section 17): what an answer should state, which of it
is vital, and how much of it the response supports.

Labels are asked for ten nuggets a request; what a completion leaves open is asked again as relations of lists are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import failure_rows, has_failed, is_unasked
from untold.jobs.metrics import base, reference_facts, summaries
from untold.jobs.metrics.graphs import LONGEST_ATOM
from untold.jobs.metrics.grounded_claims import covered_statements
from untold.jobs.metrics.judging import NumberedList
from untold.jobs.metrics.settings import NuggetsSettings
from untold.jobs.metrics.views import NuggetView
from untold.jobs.retrieval.sources import OUTCOME
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.facts import nugget_measures
from untold.udfs.storage import absolute

NAME = "nuggets"
# In the order in which they are asked
CREATE, RATE, ASSIGN = ("create_nuggets", "rate_nuggets", "assign_nuggets")
LISTED = 10
_RATED = NumberedList(RATE, LISTED, {"nuggets": "text"}, {"labels": "label"})
_ASSIGNED = NumberedList(ASSIGN, LISTED, {"nuggets": "text"}, {"labels": "label", "reasons": "reason"})
# Of a sample of which nothing is known: shares may be anything, and counts have no upper end
UNKNOWN: Mapping[str, tuple[float | None, float | None]] = {
    name: (None, None) if name in (nugget_measures.NUGGETS, nugget_measures.VITAL_NUGGETS) else (0.0, 1.0)
    for name in nugget_measures.MEASURES
}
OF_NUGGETS = ("weight", "rank", "kept", "importance", "support", "reason")
_NUGGET = "array<struct<reference_id: string, text: string, importance: string, weight: double>>"


def stages(settings: Settings) -> tuple[str, ...]:
    """The stages that the metric may ask, in order. Given nuggets need no stage before the last two."""
    own = (CREATE, RATE, ASSIGN)
    return summaries.stages_with_contexts(settings, *own) if settings.knowledge.source == "contexts" else own


def needs(settings: Settings) -> tuple[str, ...]:
    """The columns that samples must have: the topic, where a file has the nuggets, else what they are made of."""
    if settings.nuggets.file is not None:
        return ("query", "response", "query_id")
    return ("query", "response", *reference_facts.needed_facts(settings))


def digests(settings: Settings) -> dict[str, str]:
    """The digest of the file of nuggets, where there is one. Raises NuggetsError for a file that cannot be used."""
    file = settings.nuggets.file
    return {} if file is None else {"nuggets.file": nugget_measures.digest_of_nuggets(absolute(file))}


def assume(settings: Settings) -> base.Assumptions:
    """As many nuggets as there may be, all vital, and a clear label for each."""
    query = F.substring("query", 1, LONGEST_ATOM)
    most = F.transform(
        summaries.numbers(F.lit(settings.nuggets.max_generated)),
        lambda number: F.concat(number, F.lit(summaries.MARK), query),
    )
    results = {**summaries.assumed_summaries(), CREATE: {"nuggets": most}, **_labelled()}
    return base.Assumptions(
        settings, {name: results[name] for name in stages(settings)}, expected=partial(_expected, settings)
    )


def _labelled() -> dict[str, Mapping[str, Column]]:
    return {
        RATE: {"labels": _all(nugget_measures.VITAL)},
        ASSIGN: {"labels": _all(nugget_measures.SUPPORT), "reasons": _all(None)},
    }


def _all(label: str | None) -> Column:
    return F.transform("nuggets", lambda _: F.lit(label).cast("string"))


def _expected(settings: Settings, figures: summaries.StageFigures) -> dict[str, Mapping[str, Column]]:
    """As many nuggets as the figures have."""
    tokens = summaries.tokens_of("query", "texts")
    count = F.least(
        summaries.whole(summaries.value_of(figures[CREATE].things, tokens), "query"),
        F.lit(settings.nuggets.max_generated),
    )
    created = summaries.made_up(count, summaries.size_of_things(figures[CREATE], tokens), "query")
    return {**summaries.expected_summaries(figures), CREATE: {"nuggets": created}, **_labelled()}


@dataclass(frozen=True)
class _NuggetResults:
    """What the metric has found out about its samples, before tables are made of it.

    incomplete: owner, lost, waiting; of_owners: by stage its results, with the column owner; assigned: sample_id,
    number, label and the errors of `OUTCOME`; concluded: the columns of `CONCLUDED`.
    """

    owners: reference_facts.Owners
    evidence: reference_facts.Evidence
    incomplete: DataFrame
    of_owners: Mapping[str, DataFrame]
    assigned: DataFrame
    concluded: DataFrame


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Scores valid samples (columns of the table `samples`): the tables of `METRIC`.

    Responses to one query share nuggets and their importance. A sample whose nuggets or ratings were lost is not judged
    any further; an assignment that was lost leaves values with bounds.
    """
    samples = _with_file(samples, settings)
    owners = reference_facts.find_owners(samples, tools, settings)
    given = owners.owners.where(F.col("given").isNotNull())
    mined = reference_facts.Owners(owners.owned, owners.owners.where(F.col("given").isNull()))
    evidence = reference_facts.find_evidence(mined, tools, settings, documents=None)
    texts, asked = reference_facts.find_texts(mined.owners, evidence, tools, settings)
    searched = [] if evidence.hits is None else [evidence.hits]
    known = reference_facts.incomplete_owners(*searched, *asked.values()) if searched or asked else None
    created, asked[CREATE] = _create(texts, known, mined.owners, tools, settings)
    nuggets = tools.keep(created.unionByName(_given(given, settings)), "nuggets")
    asked[RATE] = _RATED.ask(tools, _to_rate(nuggets), "owner")
    incomplete = tools.keep(reference_facts.incomplete_owners(*searched, *asked.values()), "incomplete-owners")
    ranked = tools.keep(_rank(nuggets, asked[RATE], settings), "ranked-nuggets")
    shared = samples.join(owners.owned, on="sample_id", how="inner").join(ranked, on="owner", how="inner")
    assigned = tools.keep(_ASSIGNED.ask(tools, _to_assign(shared), "sample_id"), "assigned")
    concluded = tools.keep(_conclude(shared, assigned, settings), "concluded")
    return _tables(samples, _NuggetResults(owners, evidence, incomplete, asked, assigned, concluded), settings)


def _with_file(samples: DataFrame, settings: Settings) -> DataFrame:
    """The samples with the queries and nuggets of `nuggets.file`, joined by query_id, in place of their own."""
    if settings.nuggets.file is None:
        return samples
    path = samples.sparkSession.createDataFrame([(absolute(settings.nuggets.file),)], "path string")
    joined = samples.join(
        path.mapInArrow(nugget_measures.given_nuggets, spark_schema(nugget_measures.GIVEN)), on="query_id", how="left"
    )
    own = ("references",) if "references" in samples.columns else ()
    replaced = {
        "query": F.coalesce(nugget_measures.TOPIC, "query"),
        "references": F.coalesce(nugget_measures.OF_TOPIC, *own),
    }
    return joined.withColumns(replaced).drop(nugget_measures.TOPIC, nugget_measures.OF_TOPIC)


def _given(owners: DataFrame, settings: Settings) -> DataFrame:
    """owner, query, nuggets: those given, with the importance that they have or that their weight says."""
    least = settings.nuggets.vital_weight

    def one(item: Column) -> Column:
        weight = item["weight"]
        by_weight = F.when(weight >= least, nugget_measures.VITAL).when(weight < least, nugget_measures.OKAY)
        importance = F.coalesce(item["importance"], by_weight).alias("importance")
        return F.struct(
            item["reference_id"].alias("reference_id"), item["text"].alias("text"), importance, weight.alias("weight")
        )

    return owners.select("owner", "query", F.transform("given", one).cast(_NUGGET).alias("nuggets"))


def _create(
    texts: DataFrame, incomplete: DataFrame | None, owners: DataFrame, tools: base.Tools, settings: Settings
) -> tuple[DataFrame, DataFrame]:
    """owner, query, nuggets of those owners whose windows were all answered; and the results of all windows.

    Windows of one owner are asked one after the other, each with the nuggets of those before; those of all owners at
    once. texts: owner, place, text.
    """
    own = settings.nuggets
    in_order = F.array_sort(F.collect_list(F.struct("place", "text")))
    by_owner = texts.groupBy("owner").agg(F.transform(in_order, lambda one: one["text"]).alias("texts"))
    state = owners.select("owner", "query").join(by_owner, on="owner", how="left")
    if incomplete is not None:
        state = state.join(incomplete.select("owner"), on="owner", how="left_anti")
    state = tools.keep(state.withColumn("nuggets", F.array().cast("array<string>")), "texts-of-owners")
    rounds = []
    for first in range(0, _most_texts(owners, settings), own.window):
        window = F.slice("texts", first + 1, own.window).alias("texts")
        rows = state.where(F.size("texts") > first).select(
            "owner", "query", window, "nuggets", F.lit(own.max_generated).alias("most")
        )
        answered = tools.ask(CREATE, rows, carry=("owner",))
        rounds.append(answered)
        updated = F.slice(F.array_distinct("nuggets"), 1, own.max_generated).alias("updated")
        joined = reference_facts.complete_alone(state, answered).join(
            answered.select("owner", updated), on="owner", how="left"
        )
        state = tools.keep(
            joined.withColumn("nuggets", F.coalesce("updated", "nuggets")).drop("updated"), "created-nuggets"
        )
    nothing = F.lit(None)
    one = F.transform("nuggets", lambda text: F.struct(nothing, text, nothing, nothing)).cast(_NUGGET)
    return state.select("owner", "query", one.alias("nuggets")), reduce(DataFrame.unionByName, rounds)


def _most_texts(owners: DataFrame, settings: Settings) -> int:
    """How many texts an owner may have, whatever summaries leave of them; 1 at least, as a stage is asked."""
    if settings.knowledge.source != "contexts":
        return settings.knowledge.top_k
    longest = owners.agg(F.max(F.size("contexts"))).first()
    return max(1, (longest and longest[0]) or 1)


def _to_rate(nuggets: DataFrame) -> DataFrame:
    """owner, query, listed array<struct<number, text>>: the nuggets without importance, by place from 1."""
    placed = F.transform(
        "nuggets",
        lambda one, place: F.struct(
            (place + 1).alias("number"), one["text"].alias("text"), one["importance"].alias("importance")
        ),
    )
    return nuggets.select("owner", "query", F.filter(placed, lambda one: one["importance"].isNull()).alias("listed"))


def _rank(nuggets: DataFrame, rated: DataFrame, settings: Settings) -> DataFrame:
    """The columns of `RANKED`, a row an owner of whom all is known."""
    by_owner = rated.groupBy("owner").agg(F.collect_list(F.struct("number", "label")).alias("rated"))
    both = reference_facts.complete_alone(nuggets.drop("query"), rated).join(by_owner, on="owner", how="left")
    return both.mapInArrow(
        partial(nugget_measures.rank_batches, keep=settings.nuggets.top_k), spark_schema(nugget_measures.RANKED)
    )


def _to_assign(shared: DataFrame) -> DataFrame:
    """sample_id, query, response, listed: the nuggets that count. A blank response supports none, unasked."""
    kept = F.filter("nuggets", lambda one: one["kept"])
    return shared.where(~base.is_blank("response")).select("sample_id", "query", "response", kept.alias("listed"))


def _conclude(shared: DataFrame, assigned: DataFrame, settings: Settings) -> DataFrame:
    """The columns of `CONCLUDED`, and unassigned: whether some nugget was not asked for."""
    by_sample = assigned.groupBy("sample_id").agg(
        F.collect_list(F.struct("number", "label", "reason")).alias("assigned"), F.max(is_unasked()).alias("unassigned")
    )
    rows = shared.select("sample_id", base.is_blank("response").alias("blank"), "nuggets").join(
        by_sample, on="sample_id", how="left"
    )
    conclude = partial(nugget_measures.conclude_batches, score=settings.nuggets.score)
    concluded = rows.drop("unassigned").mapInArrow(conclude, spark_schema(nugget_measures.CONCLUDED))
    return concluded.join(by_sample.select("sample_id", "unassigned"), on="sample_id", how="left")


def _tables(samples: DataFrame, found: _NuggetResults, settings: Settings) -> base.Tables:
    judged = _with_status(samples, found)
    failures = [
        reference_facts.owners_failures(NAME, found.owners.owned, found.of_owners),
        failure_rows(NAME, ASSIGN, found.assigned),
    ]
    if found.evidence.hits is not None:
        searches = found.owners.owned.join(found.evidence.hits.where(has_failed()), on="owner", how="inner")
        failures.append(searches.select("sample_id", F.lit(NAME).alias("metric"), "stage", *OUTCOME).distinct())
    return {
        "statements": covered_statements(judged.where(F.col("status").isin(*base.JUDGED)), NAME, *OF_NUGGETS),
        "scores": base.measured_scores(judged, NAME, settings.nuggets.score, F.col("left_out")),
        "measures": base.measure_rows(judged, NAME, UNKNOWN),
        "failures": reduce(DataFrame.unionByName, failures),
    }


def _with_status(samples: DataFrame, found: _NuggetResults) -> DataFrame:
    """sample_id, system, status, and the columns of `CONCLUDED`: a row a sample (docs/contract.md, "Scores")."""
    joined = (
        samples.select("sample_id", "system")
        .join(found.owners.owned, on="sample_id", how="left")
        .join(found.incomplete, on="owner", how="left")
        .join(found.concluded, on="sample_id", how="left")
    )
    waiting = F.col("waiting") | F.col("unassigned")
    status = base.status_of(lost=F.col("lost"), waiting=waiting, empty=F.col("empty"), partial=F.col("unjudged") > 0)
    return joined.withColumn("status", status)


METRIC = base.Metric(
    name=NAME,
    stages=stages,
    score=score,
    assume=assume,
    sections={NAME: NuggetsSettings},
    settings=(NAME, "summarise_contexts"),
    tables=("statements", "scores", "measures", "failures"),
    needs=needs,
    retrieves=True,
    looks_in=None,
    reads=("query_id", "references"),
    unknown=UNKNOWN,
    zeroed=(nugget_measures.STRICT_VITAL, nugget_measures.OF_VITAL),
    digests=digests,
    dropped="nuggets beyond nuggets.top_k or with a weight below 0, which were left out; --metric rubric scores what "
    "a response should avoid",
    view=NuggetView,
)
