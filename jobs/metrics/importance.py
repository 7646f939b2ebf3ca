"""Importance-aware precision and recall ("Beyond Precision: Importance-Aware Recall for Factuality Evaluation in
Long-Form LLM Generation", 2026; docs/methods.md, section 12): which facts an answer should give, how much each matters,
and what of the answer holds.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.requests import Rows
from untold.jobs.asking.results import has_failed, is_unasked
from untold.jobs.metrics.base import Metric, Tables, Tools, is_blank
from untold.jobs.metrics.importance_plan import CHECK, assume, extracting_stage, stages, stages_of_facts
from untold.jobs.metrics.importance_pooled import pool_measures
from untold.jobs.metrics.importance_tables import NAME, ImportanceFindings, make_tables, unknown_bounds
from untold.jobs.metrics.reference_facts import (
    Owners,
    ReferenceFacts,
    find_evidence,
    find_owners,
    find_reference_facts,
    without_unwanted,
)
from untold.jobs.metrics.sample_lines import FactView
from untold.jobs.metrics.settings import ImportanceSettings
from untold.jobs.metrics.verified_claims import verify_claims
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.facts.claim_verdicts import CLAIMS, WINDOWS, number_claims, window_batches
from untold.udfs.facts.importance_measures import CONCLUDED, F1, PRECISION, RECALL, WEIGHTED, conclude_batches
from untold.udfs.samples.conversion import EITHER

CLAIMS_OF_SAMPLE = "array<struct<position: long, text: string, verdict: string>>"
# What the shipped prompt has around each
AROUND_A_CLAIM = '<claim id="12"></claim>\n'
TABLES = ("statements", "scores", "measures", "claims", "evidence", "chunks", "failures")


def needs(settings: Settings) -> tuple[str, ...]:
    """The columns that samples must have: contexts, where they are what facts are taken from, or references instead."""
    return ("query", "response", *((EITHER,) if settings.knowledge.source == "contexts" else ()))


def score(samples: DataFrame, tools: Tools, settings: Settings) -> Tables:
    """Scores valid samples (columns of the table `samples`): the tables of `TABLES`.

    What samples share is asked once: facts, their duplicates and ratings for all responses to one query. A sample whose
    facts or claims were lost is not judged any further; a verdict that was lost leaves values with bounds.
    """
    owners = find_owners(without_unwanted(samples), tools, settings)
    evidence = find_evidence(owners, tools, settings, settings.importance.documents)
    facts = find_reference_facts(owners, evidence, tools, settings)
    shared = tools.keep(_shared(owners, facts), "shared")
    answered, extracted = _extract(_responses(samples, shared, settings), tools, settings)
    numbered = extracted.select("sample_id", "claims").mapInArrow(number_claims, spark_schema(CLAIMS))
    claims = tools.keep(numbered, "claims")
    verified = verify_claims(claims, owners, evidence, tools, settings)
    gathered = tools.keep(_gather(samples, shared, facts, extracted, verified.claims), "gathered")
    checked = tools.ask(CHECK, _to_check(gathered, settings))
    concluded = tools.keep(_conclude(gathered, checked, settings), "concluded")
    asked = {extracting_stage(settings): answered, CHECK: checked}
    return make_tables(
        samples, ImportanceFindings(owners, evidence, facts, claims, verified, gathered, concluded, asked), settings
    )


def _shared(owners: Owners, facts: ReferenceFacts) -> DataFrame:
    """sample_id, owner; lost, waiting: whether its facts were; has_texts: whether there was anything to take them from.

    Left joins: an owner whose facts are whole is not in `incomplete`.
    """
    texts = facts.texts.withColumn("has_texts", F.lit(True))
    return (
        owners.owned.join(facts.incomplete, on="owner", how="left")
        .join(texts, on="owner", how="left")
        .withColumns({name: F.coalesce(name, F.lit(False)) for name in ("lost", "waiting", "has_texts")})
    )


def _responses(samples: DataFrame, shared: DataFrame, settings: Settings) -> DataFrame:
    """sample_id, query, text: the responses whose facts are known. A blank one says nothing and is not asked for.

    Without contexts, or where none says anything about the query, nothing further is asked of a sample.
    """
    known = ~F.col("lost") & ~F.col("waiting")
    if settings.knowledge.source == "contexts":
        known = known & F.col("has_texts")
    stated = samples.where(~is_blank("response")).select("sample_id", "query", F.col("response").alias("text"))
    return stated.join(shared.where(known).select("sample_id"), on="sample_id", how="left_semi")


def _extract(responses: DataFrame, tools: Tools, settings: Settings) -> tuple[DataFrame, DataFrame]:
    """Return the results of the stage for claims, and per sample: sample_id, claims, unread, unextracted.

    A response is one request, or one per sentence. Claims are null if a request failed (`unread`) or was not sent
    (`unextracted`).
    """
    windows = responses.mapInArrow(window_batches, spark_schema(WINDOWS))
    requests = windows if settings.importance.claims == "window" else responses.withColumn("number", F.lit(1))
    asked = tools.ask(extracting_stage(settings), requests, carry=("sample_id", "number"))
    found = asked.groupBy("sample_id").agg(
        F.array_sort(F.collect_list(F.struct("number", "claims")))["claims"].alias("claims"),
        F.max(has_failed()).alias("unread"),
        F.max(is_unasked()).alias("unextracted"),
    )
    claims = F.when(~F.col("unread") & ~F.col("unextracted"), F.flatten("claims"))
    return asked, found.withColumn("claims", claims)


def _gather(
    samples: DataFrame, shared: DataFrame, facts: ReferenceFacts, extracted: DataFrame, claims: DataFrame
) -> DataFrame:
    """What is known of each sample before its facts are checked.

    sample_id; facts, rated (null where facts are not known); claims array<struct<position, text, verdict>> in order,
    null where they were not asked for or were lost; judged, whether claims are to have verdicts; lost, unasked.
    """
    one = F.struct("position", "text", "verdict")
    stated = claims.groupBy("sample_id").agg(
        F.array_sort(F.collect_list(one)).alias("stated"),
        F.bool_and("judged").alias("judged"),
        F.max("waiting").alias("unverified"),
    )
    blank = is_blank("response")
    outcome = extracted.select("sample_id", "unread", "unextracted", F.lit(True).alias("extracted"))
    joined = (
        samples.select("sample_id", blank.alias("blank"))
        .join(shared, on="sample_id", how="inner")
        .join(facts.ranked, on="owner", how="left")
        .join(outcome, on="sample_id", how="left")
        .join(stated, on="sample_id", how="left")
    )
    unread, unextracted, unverified = (
        F.coalesce(name, F.lit(False)) for name in ("unread", "unextracted", "unverified")
    )
    has_read = F.col("blank") | (F.col("extracted") & ~unread & ~unextracted)
    nothing = F.array().cast(CLAIMS_OF_SAMPLE)
    return joined.select(
        "sample_id",
        "owner",
        "facts",
        "rated",
        F.when(has_read, F.coalesce(F.col("stated").cast(CLAIMS_OF_SAMPLE), nothing)).alias("claims"),
        F.coalesce("judged", F.lit(True)).alias("judged"),
        (F.col("lost") | unread).alias("lost"),
        (F.col("waiting") | unextracted | unverified).alias("waiting"),
    )


def _to_check(gathered: DataFrame, settings: Settings) -> Rows:
    """The facts that an answer ought to give as requests, with the texts of all its claims: sample_id, number, fact,
    claims.

    A plan that knows neither facts nor claims only counts them: as many as texts can have, each fact beside all claims,
    are gigabytes a sample.
    """
    known = gathered.where(~F.col("lost") & (F.size("claims") > 0))
    texts = F.transform("claims", lambda claim: claim["text"])
    kept = F.filter("facts", lambda fact: fact["kept"])
    rows = known.select("sample_id", texts.alias("claims"), F.explode(kept).alias("one")).select(
        "sample_id", F.col("one.number").alias("number"), F.col("one.text").alias("fact"), "claims"
    )
    longest = F.array_max(F.transform(kept, lambda fact: F.octet_length(fact["text"])))
    size = F.coalesce(longest, F.lit(0)) + F.octet_length(F.concat_ws(AROUND_A_CLAIM, texts))
    bound = known.select(F.greatest(F.size(kept), F.lit(0)).cast("long").alias("requests"), size.alias("bytes"))
    return Rows(
        rows, ("sample_id", "number"), bound, bound, made_of=(*stages_of_facts(settings), extracting_stage(settings))
    )


def _conclude(gathered: DataFrame, checked: DataFrame, settings: Settings) -> DataFrame:
    """The columns of `CONCLUDED`, and unchecked: whether some fact was not asked for."""
    numbers = F.transform("claims", lambda number: number.cast("long"))
    one = F.struct("number", "covered", numbers.alias("claims"))
    by_sample = checked.groupBy("sample_id").agg(
        F.collect_list(one).alias("checked"), F.max(is_unasked()).alias("unchecked")
    )
    rows = gathered.select("sample_id", "facts", "rated", "claims", "judged").join(
        by_sample, on="sample_id", how="left"
    )
    conclude = partial(conclude_batches, ks=tuple(settings.importance.ks))
    concluded = rows.drop("unchecked").mapInArrow(conclude, spark_schema(CONCLUDED))
    return concluded.join(by_sample.select("sample_id", "unchecked"), on="sample_id", how="left")


METRIC = Metric(
    name=NAME,
    stages=stages,
    score=score,
    assume=assume,
    sections={NAME: ImportanceSettings},
    settings=(NAME, "summarise_contexts"),
    tables=TABLES,
    needs=needs,
    retrieves=True,
    reads=("references",),
    unknown=unknown_bounds,
    looks_in=EITHER,
    pooled=pool_measures,
    zeroed=(PRECISION, RECALL, WEIGHTED, F1),
    dropped="facts beyond importance.max_facts, which were left out",
    view=FactView,
)
