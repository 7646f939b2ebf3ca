"""Importance-aware precision and recall ("Beyond Precision", 2026; methods, section 12)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import Rows, failure_rows, has_failed, is_unasked
from untold.jobs.metrics.base import (
    JUDGED,
    Assumptions,
    Metric,
    Tables,
    Tools,
    is_blank,
    measure_rows,
    measured_scores,
    status_of,
)
from untold.jobs.metrics.graphs import different_texts
from untold.jobs.metrics.grounded_claims import CLAIM, ENTAILMENT, chunk_name, claim_id, claim_rows
from untold.jobs.metrics.judging import CLASSIFY_LISTS
from untold.jobs.metrics.reference_facts import EXTRACT as EXTRACT_FACTS
from untold.jobs.metrics.reference_facts import (
    RATE,
    RELATE,
    Evidence,
    Owners,
    ReferenceFacts,
    find_evidence,
    find_owners,
    find_reference_facts,
    needed_facts,
    owners_failures,
    without_unwanted,
)
from untold.jobs.metrics.settings import ImportanceSettings
from untold.jobs.metrics.summaries import STAGE as SUMMARISE
from untold.jobs.metrics.summaries import (
    StageFigures,
    all_highest,
    assumed_summaries,
    expected_summaries,
    made_up,
    size_of_things,
    tokens_of,
    value_of,
    whole,
)
from untold.jobs.metrics.verified_claims import (
    CHUNK,
    VERIFY,
    VerifiedClaims,
    evidence_rows,
    verify_claims,
    verifying_stage,
)
from untold.jobs.metrics.views import FactView
from untold.jobs.retrieval.sources import OUTCOME, assumed_results
from untold.jobs.retrieval.sources import STAGE as EMBED
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.facts.claim_verdicts import CLAIM_SCHEMA, SUPPORTED, WINDOWS, number_claims, window_batches
from untold.udfs.facts.importance_measures import (
    CLAIMS,
    CONCLUDED,
    F1,
    FACTS,
    PRECISION,
    RATES,
    RECALL,
    WEIGHTED,
    conclude_batches,
    names_of_measures,
)
from untold.udfs.samples.conversion import EITHER

EXTRACT_CLAIMS, CHECK = "extract_claims", "check_coverage"
EXTRACT_OF_SENTENCE = "extract_verifiable_claims"
# The output list, its source text and the other variables of each stage that extracts
EXTRACTING: Mapping[str, tuple[str, ...]] = {
    EXTRACT_FACTS: ("facts", "text"),
    EXTRACT_CLAIMS: ("claims", "text"),
    EXTRACT_OF_SENTENCE: ("claims", "sentence", "query", "before", "after"),
}
# A statement takes two words at least, so that no text has more than half its words
WORDS_OF_A_STATEMENT = 2


def stages(settings: Settings) -> tuple[str, ...]:
    """The stages that the metric may ask, in order. Given references need none of the first."""
    return (*stages_of_facts(settings), extracting_stage(settings), verifying_stage(settings), CHECK)


def extracting_stage(settings: Settings) -> str:
    """Return the stage that extracts the claims of responses."""
    return EXTRACT_OF_SENTENCE if settings.importance.claims == "window" else EXTRACT_CLAIMS


def stages_of_facts(settings: Settings) -> tuple[str, ...]:
    """Those whose answers facts and their weights are made of."""
    condense = settings.summarise_contexts and settings.knowledge.source == "contexts"
    relate = settings.importance.duplicates == "entailed"
    return (
        *((SUMMARISE,) if condense else ()),
        EXTRACT_FACTS,
        EMBED,
        *((RELATE,) if relate else ()),
        RATE,
    )


def assume(settings: Settings) -> Assumptions:
    """As many facts and claims as texts can have, none of them near another, and all facts to be checked."""
    found = {
        stage: {name: different_texts(WORDS_OF_A_STATEMENT, text)} for stage, (name, text, *_) in EXTRACTING.items()
    }
    everything = {**assumed_summaries(), **found, **_judged()}
    return Assumptions(settings, {name: everything[name] for name in stages(settings)}, expected=_expected)


def _judged() -> dict[str, Mapping[str, Column]]:
    """Of ratings the highest, so that facts are kept; nothing is asked of what vectors, relations and verdicts say."""
    return {
        EMBED: assumed_results()[EMBED],
        RATE: {"relevance": all_highest("facts"), "salience": all_highest("facts"), "weighted": F.lit(True)},
        RELATE: {"relation": F.lit(None).cast("string")},
        VERIFY: {"relation": F.lit(SUPPORTED)},
        CLASSIFY_LISTS: {"relations": F.transform("hypotheses", lambda _: F.lit(ENTAILMENT))},
        CHECK: {"covered": F.lit(True), "claims": F.array().cast("array<int>")},
    }


def _expected(figures: StageFigures) -> dict[str, Mapping[str, Column]]:
    """As many facts and claims as the figures have of a text. That few facts are near each other no figure says."""
    found: dict[str, Mapping[str, Column]] = dict(_judged())
    for stage, (name, text, *others) in EXTRACTING.items():
        if stage in figures:
            tokens = tokens_of(text, *others)
            count = whole(value_of(figures[stage].things, tokens), text)
            found[stage] = {name: made_up(count, size_of_things(figures[stage], tokens), text)}
    return {**expected_summaries(figures), **found}


NAME = "importance"


@dataclass(frozen=True)
class ImportanceFindings:
    """What the metric has found out about its samples, before tables are made of it.

    claims: sample_id, position, text, all that were extracted; gathered: a row a sample, with lost, waiting, facts;
    concluded: the columns of `CONCLUDED`, and unchecked; asked: by stage its results, with the column sample_id.
    """

    owners: Owners
    evidence: Evidence
    facts: ReferenceFacts
    claims: DataFrame
    verified: VerifiedClaims
    gathered: DataFrame
    concluded: DataFrame
    asked: Mapping[str, DataFrame]


def unknown_bounds(settings: Settings) -> dict[str, tuple[float | None, float | None]]:
    """Of a sample of which nothing is known: rates may be anything, and counts have no upper end."""
    names = names_of_measures(settings.importance.ks)
    return {name: (None, None) if name in (CLAIMS, FACTS) else (0.0, 1.0) for name in names}


def make_tables(samples: DataFrame, found: ImportanceFindings, settings: Settings) -> Tables:
    """The tables, from samples (columns of the table `samples`)."""
    judged = _with_status(samples, found)
    source = settings.knowledge.source
    return {
        "statements": _statement_rows(judged),
        # Dropped are the facts beyond `importance.max_facts`
        "scores": measured_scores(judged, NAME, WEIGHTED, F.col("left_out")),
        "measures": measure_rows(judged, NAME, unknown_bounds(settings)),
        "claims": _claim_rows(found),
        "evidence": evidence_rows(NAME, found.verified),
        "chunks": _chunk_rows(found, source),
        "failures": _failures(found),
    }


def _with_status(samples: DataFrame, found: ImportanceFindings) -> DataFrame:
    """sample_id, system, status, facts, and the columns of `CONCLUDED`: a row a sample (docs/contract.md, "Scores")."""
    joined = (
        samples.select("sample_id", "system")
        .join(found.gathered.select("sample_id", "owner", "lost", "waiting", "facts"), on="sample_id", how="left")
        .join(found.concluded, on="sample_id", how="left")
        .join(found.facts.left_out, on="owner", how="left")
    )
    waiting = F.col("waiting") | F.coalesce("unchecked", F.lit(False))
    status = status_of(lost=F.col("lost"), waiting=waiting, empty=F.col("empty"), partial=F.col("unjudged") > 0)
    return joined.withColumn("status", status)


def _statement_rows(judged: DataFrame) -> DataFrame:
    """The table `statements`: the facts, those that are not kept too, each with the claims that cover it."""
    known = judged.where(F.col("status").isin(*JUDGED))
    by_number = F.map_from_arrays(
        F.transform("coverage", lambda one: one["number"]), F.transform("coverage", lambda one: one)
    )
    facts = known.select("sample_id", by_number.alias("coverage"), F.explode("facts").alias("fact"))
    checked = F.try_element_at("coverage", F.col("fact.number"))
    claims = F.transform(checked["claims"], lambda position: claim_id(NAME, position))
    of_fact = (
        "text",
        "reference_id",
        "anchor",
        "sources",
        "members",
        "relevance",
        "salience",
        "weight",
        "rank",
        "kept",
    )
    return facts.select(
        "sample_id",
        F.lit(NAME).alias("metric"),
        claim_id(NAME, F.col("fact.number")).alias("statement_id"),
        checked["covered"].alias("covered"),
        F.lit(None).cast("boolean").alias("in_basis"),
        claims.alias("claims"),
        *(F.col(f"fact.{name}").alias(name) for name in of_fact),
    )


def _claim_rows(found: ImportanceFindings) -> DataFrame:
    """The table `claims`: all that were extracted, each with the ids of the chunks that it was shown, by rank."""
    shown = F.transform("shown", lambda one: one["chunk_id"])
    exploded = found.verified.claims.select("sample_id", "position", "verdict", shown.alias("evidence"))
    return claim_rows(NAME, found.claims, exploded)


def _chunk_rows(found: ImportanceFindings, source: str | None) -> DataFrame:
    """The table `chunks`: of an index or the web all that was found; of contexts what claims were shown."""
    if source == "contexts":
        named = found.verified.chunks
    else:
        chunks = found.evidence.chunks.select(F.explode("chunks").alias("one")).select("one.*")
        named = chunks.withColumn("chunk_id", chunk_name(source)).select(*CHUNK)
    return named.dropDuplicates(["chunk_id"])


def _failures(found: ImportanceFindings) -> DataFrame:
    """The rows of `failures`: of what owners share, of claims, and of samples."""
    owned = found.owners.owned
    shared = owners_failures(NAME, owned, found.facts.asked)
    own = [failure_rows(NAME, stage, rows) for stage, rows in found.asked.items()]
    stating = found.verified.claims.select("sample_id", *CLAIM)
    columns = ("sample_id", F.lit(NAME).alias("metric"), "stage", *OUTCOME)
    of_claims = stating.join(found.verified.failures, on=list(CLAIM), how="inner").select(*columns).distinct()
    rows = [shared, *own, of_claims]
    if found.evidence.hits is not None:
        searches = owned.join(found.evidence.hits.where(has_failed()), on="owner", how="inner")
        rows.append(searches.select(*columns).distinct())
    return reduce(DataFrame.unionByName, rows)


# By the measure of a sample, that of all claims
SHARES = {name: f"{verdict}_share" for name, verdict in RATES.items()}
CLAIM_TO_FACT = "claim_to_fact"
_SUMS = ("n", "judging", "claims", "unjudged", *RATES, "counted", "stated", "facts")
Row = Mapping[str, Any]


def pool_measures(measures: DataFrame, scores: DataFrame) -> list[dict[str, Any]]:
    """Rows of `measures_summary`: `SHARES` and `CLAIM_TO_FACT`, of all samples and of each system.

    measures, scores: the tables. Of a share mean is over the judged claims, mean_low and mean_high are with all
    unjudged ones against and for it, and `defined` are the samples with claims that were to be judged. None has an
    interval, as claims of one response are not independent. One row a system reaches the driver.
    """
    sums = [row.asDict() for row in _sums_of_systems(measures, scores).collect()]
    named = sorted((row for row in sums if row["system"] is not None), key=lambda row: row["system"])
    groups = [_total(sums), *named] if sums else []
    return [pooled for group in groups for pooled in _pooled(group)]


def _sums_of_systems(measures: DataFrame, scores: DataFrame) -> DataFrame:
    """system, and the columns of `_SUMS`: a row a system."""
    own = measures.where(F.col("metric") == NAME)

    def column(name: str, of: str) -> Column:
        return F.max(F.when(F.col("measure") == name, F.col(of)))

    rates = [column(name, "value_low").alias(name) for name in RATES]
    samples = own.groupBy("sample_id").agg(
        *rates,
        column(PRECISION, "value_high").alias("high"),
        column(CLAIMS, "value").alias("of_claims"),
        column(FACTS, "value").alias("of_facts"),
    )
    systems = scores.where(F.col("metric") == NAME).select("sample_id", "system")
    judging = (F.col("of_claims") > 0) & F.col(PRECISION).isNotNull()
    known = F.col("of_claims").isNotNull() & F.col("of_facts").isNotNull()

    def count(share: Column) -> Column:
        # Shares are of whole numbers of claims
        return F.sum(F.when(judging, F.round(share * F.col("of_claims"))))

    return (
        samples.join(systems, on="sample_id", how="inner")
        .groupBy("system")
        .agg(
            F.count("*").alias("n"),
            F.count_if(judging).alias("judging"),
            F.sum(F.when(judging, F.col("of_claims"))).alias("claims"),
            count(F.col("high") - F.col(PRECISION)).alias("unjudged"),
            *(count(F.col(name)).alias(name) for name in RATES),
            F.count_if(known).alias("counted"),
            F.sum(F.when(known, F.col("of_claims"))).alias("stated"),
            F.sum(F.when(known, F.col("of_facts"))).alias("facts"),
        )
    )


def _total(sums: Iterable[Row]) -> dict[str, Any]:
    """The sums over all samples, those without a system too."""
    rows = list(sums)
    return {"system": None, **{name: sum(row[name] or 0 for row in rows) for name in _SUMS}}


def _pooled(sums: Row) -> Iterator[dict[str, Any]]:
    claims, unjudged = sums["claims"] or 0, sums["unjudged"] or 0
    ratio = _share(sums["stated"] or 0, sums["facts"] or 0)
    yield _row(CLAIM_TO_FACT, sums, sums["counted"], (ratio, None, None))
    for name, share in SHARES.items():
        part = sums[name] or 0
        ends = _share(part, claims - unjudged), _share(part, claims), _share(part + unjudged, claims)
        yield _row(share, sums, sums["judging"], ends)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _row(
    measure: str, sums: Row, defined: int, ends: tuple[float | None, float | None, float | None]
) -> dict[str, Any]:
    return {
        "metric": NAME,
        "measure": measure,
        "level": "overall" if sums["system"] is None else "system",
        "system": sums["system"],
        "n": sums["n"],
        "defined": defined,
        "mean": ends[0],
        "ci_low": None,
        "ci_high": None,
        "mean_low": ends[1],
        "mean_high": ends[2],
    }


CLAIMS_OF_SAMPLE = "array<struct<position: long, text: string, verdict: string>>"
# What the shipped prompt has around each
AROUND_A_CLAIM = '<claim id="12"></claim>\n'
TABLES = ("statements", "scores", "measures", "claims", "evidence", "chunks", "failures")


def needs(settings: Settings) -> tuple[str, ...]:
    """Return the columns that samples must have: contexts if facts come from them, or references."""
    return ("query", "response", *needed_facts(settings))


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
    numbered = extracted.select("sample_id", "claims").mapInArrow(number_claims, spark_schema(CLAIM_SCHEMA))
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
