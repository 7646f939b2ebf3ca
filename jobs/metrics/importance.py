"""Importance-aware precision and recall ("Beyond Precision", 2026; methods, section 12)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import Rows
from untold.jobs.metrics import base, reference_facts, verified_claims
from untold.jobs.metrics.grounded_claims import CLAIM, ENTAILMENT, chunk_name, claim_id, claim_rows
from untold.jobs.metrics.judging import CLASSIFY_LISTS
from untold.jobs.metrics.panel import COVERED, ask_judges, vote_rows
from untold.jobs.metrics.settings import ImportanceSettings
from untold.jobs.metrics.summaries import Extraction, all_highest, assume_texts
from untold.jobs.metrics.views import FactView
from untold.jobs.retrieval.sources import STAGE as EMBED
from untold.jobs.retrieval.sources import assumed_results
from untold.jobs.run_tables import RunTables, connect_tables, quoted
from untold.jobs.settings.model import Settings
from untold.jobs.summary.score_counts import Row, fetch_rows
from untold.udfs.facts.claim_verdicts import SUPPORTED, number_claims, window_batches
from untold.udfs.facts.importance_measures import (
    CLAIMS,
    F1,
    FACTS,
    PRECISION,
    RATES,
    RECALL,
    WEIGHTED,
    Weighting,
    conclude_batches,
    names_of_measures,
)
from untold.udfs.samples.conversion import EITHER

EXTRACT_CLAIMS, CHECK = "extract_claims", "check_coverage"
EXTRACT_OF_SENTENCE = "extract_verifiable_claims"
EXTRACTING: Mapping[str, Extraction] = {
    reference_facts.EXTRACT: Extraction("facts"),
    EXTRACT_CLAIMS: Extraction("claims"),
    EXTRACT_OF_SENTENCE: Extraction("claims", "sentence", ("query", "before", "after")),
}


def stages(settings: Settings) -> tuple[str, ...]:
    """Return the stages in order. Given references need none of the first."""
    found = (*reference_facts.stages_of(settings), extracting_stage(settings))
    return (*found, verified_claims.verifying_stage(settings), CHECK)


def extracting_stage(settings: Settings) -> str:
    """Return the stage that extracts the claims of responses."""
    return EXTRACT_OF_SENTENCE if settings.importance.claims == "window" else EXTRACT_CLAIMS


def assume(settings: Settings) -> base.Assumptions:
    """Assume the maximum number of facts and claims without duplicates, and check all facts.

    All facts have the highest ratings, so that they are kept. Vectors and relations are empty.
    """
    judged = {
        EMBED: assumed_results()[EMBED],
        reference_facts.RATE: {
            "relevance": all_highest("facts"),
            "salience": all_highest("facts"),
            "weighted": F.lit(True),
        },
        reference_facts.RELATE: {"relation": F.lit(None).cast("string")},
        verified_claims.VERIFY: {"relation": F.lit(SUPPORTED)},
        CLASSIFY_LISTS: {"relations": F.transform("hypotheses", lambda _: F.lit(ENTAILMENT))},
        CHECK: {"covered": F.lit(True), "claims": F.array().cast("array<int>")},
    }
    return assume_texts(settings, EXTRACTING, judged)


NAME = "importance"


def unknown_bounds(settings: Settings) -> base.Bounds:
    """Return the bounds of a sample without results. Counts have no upper bound."""
    return base.bounds_of(names_of_measures(settings.importance.ks), CLAIMS, FACTS)


def _statement_rows(known: DataFrame) -> DataFrame:
    """Return the table `statements`: the kept facts and the others, each with the claims that cover it."""
    by_number = F.map_from_entries(F.transform("coverage", lambda one: F.struct(one["number"], one)))
    facts = known.select("sample_id", by_number.alias("coverage"), F.explode("facts").alias("fact"))
    checked = F.try_element_at("coverage", F.col("number"))
    claims = F.transform(checked["claims"], lambda position: claim_id(NAME, position))
    found = {"statement_id": claim_id(NAME, "number"), "covered": checked["covered"], "claims": claims}
    return base.contract_rows("statements", NAME, facts.select("sample_id", "coverage", "fact.*"), **found)


def _chunk_rows(
    evidence: reference_facts.Evidence, verified: verified_claims.VerifiedClaims, source: str | None
) -> DataFrame:
    """Return the table `chunks`: all retrieved chunks, or the chunks of contexts that verify a claim."""
    if source == "contexts":
        named = verified.chunks
    else:
        chunks = evidence.chunks.select(F.explode("chunks").alias("one")).select("one.*")
        named = chunks.withColumn("chunk_id", chunk_name(source)).select(*verified_claims.CHUNK)
    return named.dropDuplicates(["chunk_id"])


# The measure of all claims by the measure of a sample
SHARES = {name: f"{verdict}_share" for name, verdict in RATES.items()}
CLAIM_TO_FACT = "claim_to_fact"


def pool_measures(run: RunTables) -> list[dict[str, Any]]:
    """Return rows of `measures_summary` of a run: `SHARES` and `CLAIM_TO_FACT` of all samples and of each system.

    The mean of a share is over judged claims. mean_low and mean_high count all unjudged claims against it and for it.
    `defined` is the number of samples with judged claims. There is no interval, because the claims of a response are
    not independent.
    """
    rates = [f"max(value_low) filter (measure = {quoted(name)}) as {name}" for name in RATES]
    # A share is a number of claims over their total
    counts = [f"sum(round({name} * of_claims)) filter (judging) as {name}" for name in RATES]
    sums = fetch_rows(
        connect_tables([run], ["measures", "scores"]),
        f"""with samples as (
                select sample_id, {", ".join(rates)},
                    max(value_high) filter (measure = {quoted(PRECISION)}) as high,
                    max(value) filter (measure = {quoted(CLAIMS)}) as of_claims,
                    max(value) filter (measure = {quoted(FACTS)}) as of_facts,
                    coalesce(of_claims > 0 and {PRECISION} is not null, false) as judging,
                    of_claims is not null and of_facts is not null as known
                from measures where metric = {quoted(NAME)} group by sample_id)
            select if(grouping(system) = 1, 'overall', 'system') as level, system, count(*) as n,
                count_if(judging) as judging, sum(of_claims) filter (judging) as claims,
                sum(round((high - {PRECISION}) * of_claims)) filter (judging) as unjudged, {", ".join(counts)},
                count_if(known) as counted, sum(of_claims) filter (known) as stated,
                sum(of_facts) filter (known) as facts
            from samples join scores using (sample_id) where metric = {quoted(NAME)}
            group by grouping sets ((), (system))
            having n > 0 and (level = 'overall' or system is not null) order by level, system""",
    )
    return [pooled for group in sums for pooled in _pooled(group)]


def _pooled(sums: Row) -> Iterator[dict[str, Any]]:
    claims, unjudged = sums["claims"] or 0, sums["unjudged"] or 0
    ratio = _share(sums["stated"] or 0, sums["facts"] or 0)
    yield _row(CLAIM_TO_FACT, sums, sums["counted"], ratio)
    for name, share in SHARES.items():
        part = sums[name] or 0
        ends = _share(part, claims - unjudged), _share(part, claims), _share(part + unjudged, claims)
        yield _row(share, sums, sums["judging"], *ends)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _row(
    measure: str, sums: Row, defined: int, mean: float | None, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    group = {name: sums[name] for name in ("level", "system", "n")}
    ends = {"ci_low": None, "ci_high": None, "mean_low": low, "mean_high": high}
    return {"metric": NAME, "measure": measure, **group, "defined": defined, "mean": mean, **ends}


CLAIMS_OF_SAMPLE = "array<struct<position: long, text: string, verdict: string>>"
# The text around a claim in the shipped prompt
AROUND_A_CLAIM = '<claim id="12"></claim>\n'
TABLES = ("statements", "scores", "measures", "claims", "evidence", "chunks", "failures")


def needs(settings: Settings) -> tuple[str, ...]:
    """Return the columns that samples must have: contexts if facts come from them, or references."""
    return ("query", "response", *reference_facts.needed_facts(settings))


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Return the tables `TABLES` of valid samples (columns of the table `samples`).

    Samples of one query share facts, duplicates and ratings. A sample without facts or claims is not judged. A missing
    verdict leaves values with bounds.
    """
    of_owners, calls = base.StageCalls(NAME, tools, key="owner"), base.StageCalls(NAME, tools)
    owners = reference_facts.find_owners(reference_facts.without_unwanted(samples), tools, settings)
    evidence = reference_facts.find_evidence(owners, tools, settings, settings.importance.documents)
    facts = reference_facts.find_reference_facts(owners, evidence, of_owners, settings)
    shared = owners.owned.join(facts, on="owner", how="inner")
    extracted = _extract(_responses(samples, shared, settings), calls, settings)
    claims = tools.keep(base.map_rows(extracted.select("sample_id", "claims"), number_claims), "claims")
    verified = verified_claims.verify_claims(claims, owners, evidence, tools, settings)
    gathered = tools.keep(_gather(samples, shared, extracted, calls.incomplete(), verified.claims), "gathered")
    facts_to_check, fact = _to_check(gathered, settings), ("sample_id", "number")
    coverage = ask_judges(lambda own: own.ask(CHECK, facts_to_check), tools, settings, fact, "covered", COVERED)
    checked = calls.record(CHECK, coverage)
    concluded = tools.keep(_conclude(gathered, checked, settings), "concluded")
    known = gathered.select("sample_id", "lost", "waiting", "facts", "left_out")
    judged = base.with_status(samples, known, concluded)
    failures = reference_facts.failures_of_owners(of_owners, owners, evidence).unionByName(calls.failures())
    return {
        "statements": _statement_rows(judged.where(base.is_judged())),
        # Dropped are the facts above `importance.max_facts`
        "scores": base.measured_scores(judged, NAME, WEIGHTED, F.col("left_out")),
        "measures": base.measure_rows(judged, NAME, unknown_bounds(settings)),
        "claims": claim_rows(NAME, claims, verified.claims),
        "evidence": verified_claims.evidence_rows(NAME, verified),
        "chunks": _chunk_rows(evidence, verified, settings.knowledge.source),
        "failures": failures.unionByName(base.shared_failures(NAME, verified.claims, verified.failures, *CLAIM)),
        **_votes(verified, checked, settings),
    }


def _votes(verified: verified_claims.VerifiedClaims, checked: DataFrame, settings: Settings) -> dict[str, DataFrame]:
    """Return the table `votes` on claims (with their chunks for lists) and on facts, or no table without a panel."""
    stating = verified.claims.select("sample_id", "position", *CLAIM)
    claims = stating.join(verified.judged, on=list(CLAIM), how="inner")
    chunk = ("chunk_id",) if "chunk_id" in claims.columns else ()
    found = [
        vote_rows(NAME, verified_claims.verifying_stage(settings), claims, "position", *chunk),
        vote_rows(NAME, CHECK, checked, "number"),
    ]
    return {"votes": reduce(DataFrame.unionByName, [one["votes"] for one in found])} if found[0] else {}


def _responses(samples: DataFrame, shared: DataFrame, settings: Settings) -> DataFrame:
    """Return sample_id, query, text: the responses of samples with known facts.

    A blank response has no claims and no request. A sample without a relevant context has no further request.
    """
    known = ~F.col("lost") & ~F.col("waiting")
    if settings.knowledge.source == "contexts":
        known = known & F.col("has_texts")
    stated = samples.where(~base.is_blank("response")).select("sample_id", "query", F.col("response").alias("text"))
    return stated.join(shared.where(known).select("sample_id"), on="sample_id", how="left_semi")


def _extract(responses: DataFrame, calls: base.StageCalls, settings: Settings) -> DataFrame:
    """Return sample_id, claims: one row per response.

    A response is one request, or one per sentence. Claims are null if a request failed or was not sent.
    """
    windows = base.map_rows(responses, window_batches)
    requests = windows if settings.importance.claims == "window" else responses.withColumn("number", F.lit(1))
    extracted = calls.ask(extracting_stage(settings), requests, carry=("sample_id", "number"))
    claims = F.flatten(F.array_sort(F.collect_list(F.struct("number", "claims")))["claims"])
    is_whole = F.bool_and(F.col("error_type").isNull())
    return extracted.groupBy("sample_id").agg(F.when(is_whole, claims).alias("claims"))


def _gather(
    samples: DataFrame, shared: DataFrame, extracted: DataFrame, incomplete: DataFrame, claims: DataFrame
) -> DataFrame:
    """Return the state of each sample before its facts are checked.

    The columns are sample_id, facts, rated and left_out (null without facts), claims array<struct<position, text,
    verdict>> in order (null if they are missing), judged (claims get verdicts), lost and waiting.
    """
    one = F.struct("position", "text", "verdict")
    stated = claims.groupBy("sample_id").agg(
        F.array_sort(F.collect_list(one)).alias("stated"),
        F.bool_and("judged").alias("judged"),
        F.max("waiting").alias("unverified"),
    )
    joined = (
        samples.select("sample_id", base.is_blank("response").alias("blank"))
        .join(shared, on="sample_id", how="inner")
        .join(extracted.select("sample_id", F.col("claims").isNotNull().alias("read")), on="sample_id", how="left")
        .join(incomplete.withColumnsRenamed({"lost": "unread", "waiting": "unasked"}), on="sample_id", how="left")
        .join(stated, on="sample_id", how="left")
    )
    unread, unasked, unverified = (F.coalesce(name, F.lit(False)) for name in ("unread", "unasked", "unverified"))
    has_read = F.col("blank") | F.col("read")
    nothing = F.array().cast(CLAIMS_OF_SAMPLE)
    return joined.select(
        *("sample_id", "facts", "rated", "left_out"),
        F.when(has_read, F.coalesce(F.col("stated").cast(CLAIMS_OF_SAMPLE), nothing)).alias("claims"),
        F.coalesce("judged", F.lit(True)).alias("judged"),
        (F.col("lost") | unread).alias("lost"),
        (F.col("waiting") | unasked | unverified).alias("waiting"),
    )


def _to_check(gathered: DataFrame, settings: Settings) -> Rows:
    """Return the kept facts as requests with the texts of all claims: sample_id, number, fact, claims.

    A plan without facts and claims only counts the requests, because the largest possible texts need gigabytes per
    sample.
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
    made_of = (*reference_facts.stages_of(settings), extracting_stage(settings))
    return Rows(rows, ("sample_id", "number"), bound, bound, made_of)


def _conclude(gathered: DataFrame, checked: DataFrame, settings: Settings) -> DataFrame:
    """Return the columns of `CONCLUDED`, and waiting: true if a fact was not requested."""
    numbers = F.transform("claims", lambda number: number.cast("long"))
    of_facts = base.collect(checked, "checked", "number", "covered", numbers.alias("claims"))
    rows = gathered.select("sample_id", "facts", "rated", "claims", "judged")
    both = rows.join(of_facts, on="sample_id", how="left")
    return base.conclude(both, conclude_batches, ks=tuple(settings.importance.ks))


METRIC = base.Metric(
    name=NAME,
    stages=stages,
    score=score,
    assume=assume,
    sections={NAME: ImportanceSettings},
    judged=lambda settings: (verified_claims.verifying_stage(settings), CHECK),
    settings=(NAME, "summarise_contexts"),
    tables=TABLES,
    needs=needs,
    retrieves=True,
    reads=("references",),
    unknown=unknown_bounds,
    weighting=lambda settings: Weighting(settings.sources.weights),
    looks_in=EITHER,
    pooled=pool_measures,
    supported_share=PRECISION,
    zeroed=(PRECISION, RECALL, WEIGHTED, F1),
    dropped="facts beyond importance.max_facts, which were left out",
    view=FactView,
)
