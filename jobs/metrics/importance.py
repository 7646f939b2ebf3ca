"""Importance-aware precision and recall ("Beyond Precision", 2026; methods, section 12)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial, reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import OUTCOME, Rows, has_failed, is_unasked
from untold.jobs.metrics.base import (
    Assumptions,
    Metric,
    StageCalls,
    Tables,
    Tools,
    collect,
    conclude,
    is_blank,
    is_judged,
    measure_rows,
    measured_scores,
    with_status,
)
from untold.jobs.metrics.graphs import different_texts
from untold.jobs.metrics.grounded_claims import CLAIM, ENTAILMENT, chunk_name, claim_id, claim_rows
from untold.jobs.metrics.judging import CLASSIFY_LISTS
from untold.jobs.metrics.panel import COVERED, ask_judges, vote_rows
from untold.jobs.metrics.reference_facts import EXTRACT as EXTRACT_FACTS
from untold.jobs.metrics.reference_facts import (
    RATE,
    RELATE,
    Evidence,
    Owners,
    ReferenceFacts,
    failures_of_owners,
    find_evidence,
    find_owners,
    find_reference_facts,
    needed_facts,
    without_unwanted,
)
from untold.jobs.metrics.settings import ImportanceSettings
from untold.jobs.metrics.summaries import STAGE as SUMMARISE
from untold.jobs.metrics.summaries import (
    StageFigures,
    all_highest,
    assumed_summaries,
    expected_summaries,
    expected_texts,
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
from untold.jobs.retrieval.sources import STAGE as EMBED
from untold.jobs.retrieval.sources import assumed_results
from untold.jobs.run.session import spark_schema
from untold.jobs.run_tables import RunTables, connect_tables, quoted
from untold.jobs.settings.model import Settings
from untold.jobs.summary.score_counts import Row, fetch_rows
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
    Weighting,
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
# The fewest words of a statement, for an upper bound of the number of statements
WORDS_OF_A_STATEMENT = 2


def stages(settings: Settings) -> tuple[str, ...]:
    """Return the stages in order. Given references need none of the first."""
    return (*stages_of_facts(settings), extracting_stage(settings), verifying_stage(settings), CHECK)


def extracting_stage(settings: Settings) -> str:
    """Return the stage that extracts the claims of responses."""
    return EXTRACT_OF_SENTENCE if settings.importance.claims == "window" else EXTRACT_CLAIMS


def stages_of_facts(settings: Settings) -> tuple[str, ...]:
    """Return the stages of the facts and their weights."""
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
    """Assume the maximum number of facts and claims without duplicates, and check all facts."""
    found = {
        stage: {name: different_texts(WORDS_OF_A_STATEMENT, text)} for stage, (name, text, *_) in EXTRACTING.items()
    }
    everything = {**assumed_summaries(), **found, **_judged()}
    return Assumptions(settings, {name: everything[name] for name in stages(settings)}, expected=_expected)


def _judged() -> dict[str, Mapping[str, Column]]:
    """Return the highest ratings, so that all facts are kept, and empty vectors and relations."""
    return {
        EMBED: assumed_results()[EMBED],
        RATE: {"relevance": all_highest("facts"), "salience": all_highest("facts"), "weighted": F.lit(True)},
        RELATE: {"relation": F.lit(None).cast("string")},
        VERIFY: {"relation": F.lit(SUPPORTED)},
        CLASSIFY_LISTS: {"relations": F.transform("hypotheses", lambda _: F.lit(ENTAILMENT))},
        CHECK: {"covered": F.lit(True), "claims": F.array().cast("array<int>")},
    }


def _expected(figures: StageFigures) -> dict[str, Mapping[str, Column]]:
    """Return the average number of facts and claims of a text."""
    found: dict[str, Mapping[str, Column]] = dict(_judged())
    for stage, (name, text, *others) in EXTRACTING.items():
        if stage in figures:
            found[stage] = {name: expected_texts(figures[stage], text, *others)}
    return {**expected_summaries(figures), **found}


NAME = "importance"


def unknown_bounds(settings: Settings) -> dict[str, tuple[float | None, float | None]]:
    """Return the bounds of a sample without results. Counts have no upper bound."""
    names = names_of_measures(settings.importance.ks)
    return {name: (None, None) if name in (CLAIMS, FACTS) else (0.0, 1.0) for name in names}


def _statement_rows(known: DataFrame) -> DataFrame:
    """Return the table `statements`: the kept facts and the others, each with the claims that cover it."""
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


def _claim_rows(claims: DataFrame, verified: VerifiedClaims) -> DataFrame:
    """Return the table `claims`: all extracted claims, each with the ids of its chunks by rank."""
    shown = F.transform("shown", lambda one: one["chunk_id"])
    exploded = verified.claims.select("sample_id", "position", "verdict", shown.alias("evidence"))
    return claim_rows(NAME, claims, exploded)


def _chunk_rows(evidence: Evidence, verified: VerifiedClaims, source: str | None) -> DataFrame:
    """Return the table `chunks`: all retrieved chunks, or the chunks of contexts that verify a claim."""
    if source == "contexts":
        named = verified.chunks
    else:
        chunks = evidence.chunks.select(F.explode("chunks").alias("one")).select("one.*")
        named = chunks.withColumn("chunk_id", chunk_name(source)).select(*CHUNK)
    return named.dropDuplicates(["chunk_id"])


def _claim_failures(verified: VerifiedClaims) -> DataFrame:
    """Return the rows of `failures` of claims, for each sample with the claim."""
    stating = verified.claims.select("sample_id", *CLAIM)
    lost = stating.join(verified.failures, on=list(CLAIM), how="inner")
    return lost.select("sample_id", F.lit(NAME).alias("metric"), "stage", *OUTCOME).distinct()


# The measure of all claims by the measure of a sample
SHARES = {name: f"{verdict}_share" for name, verdict in RATES.items()}
CLAIM_TO_FACT = "claim_to_fact"
_SUMS = ("n", "judging", "claims", "unjudged", *RATES, "counted", "stated", "facts")


def pool_measures(run: RunTables) -> list[dict[str, Any]]:
    """Return rows of `measures_summary` of a run: `SHARES` and `CLAIM_TO_FACT` of all samples and of each system.

    The mean of a share is over judged claims. mean_low and mean_high count all unjudged claims against it and for it.
    `defined` is the number of samples with judged claims. There is no interval, because the claims of a response are
    not independent.
    """
    sums = _sums_of_systems(run)
    named = sorted((row for row in sums if row["system"] is not None), key=lambda row: row["system"])
    groups = [_total(sums), *named] if sums else []
    return [pooled for group in groups for pooled in _pooled(group)]


def _sums_of_systems(run: RunTables) -> list[dict[str, Any]]:
    """Return system and the columns of `_SUMS`: a row per system. A share is a number of claims over their total."""
    rates = [f"max(value_low) filter (measure = {quoted(name)}) as {name}" for name in RATES]
    counts = [f"sum(round({name} * of_claims)) filter (judging) as {name}" for name in RATES]
    return fetch_rows(
        connect_tables([run], ["measures", "scores"]),
        f"""with samples as (
                select sample_id, {", ".join(rates)},
                    max(value_high) filter (measure = {quoted(PRECISION)}) as high,
                    max(value) filter (measure = {quoted(CLAIMS)}) as of_claims,
                    max(value) filter (measure = {quoted(FACTS)}) as of_facts,
                    coalesce(of_claims > 0 and {PRECISION} is not null, false) as judging,
                    of_claims is not null and of_facts is not null as known
                from measures where metric = {quoted(NAME)} group by sample_id)
            select system, count(*) as n, count_if(judging) as judging, sum(of_claims) filter (judging) as claims,
                sum(round((high - {PRECISION}) * of_claims)) filter (judging) as unjudged, {", ".join(counts)},
                count_if(known) as counted, sum(of_claims) filter (known) as stated,
                sum(of_facts) filter (known) as facts
            from samples join scores using (sample_id) where metric = {quoted(NAME)} group by system""",
    )


def _total(sums: Iterable[Row]) -> dict[str, Any]:
    """Return the sums over all samples, including samples without a system."""
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
# The text around a claim in the shipped prompt
AROUND_A_CLAIM = '<claim id="12"></claim>\n'
TABLES = ("statements", "scores", "measures", "claims", "evidence", "chunks", "failures")


def needs(settings: Settings) -> tuple[str, ...]:
    """Return the columns that samples must have: contexts if facts come from them, or references."""
    return ("query", "response", *needed_facts(settings))


def score(samples: DataFrame, tools: Tools, settings: Settings) -> Tables:
    """Return the tables `TABLES` of valid samples (columns of the table `samples`).

    Samples of one query share facts, duplicates and ratings. A sample without facts or claims is not judged. A missing
    verdict leaves values with bounds.
    """
    of_owners, calls = StageCalls(NAME, tools, key="owner"), StageCalls(NAME, tools)
    owners = find_owners(without_unwanted(samples), tools, settings)
    evidence = find_evidence(owners, tools, settings, settings.importance.documents)
    facts = find_reference_facts(owners, evidence, of_owners, settings)
    shared = tools.keep(_shared(owners, facts), "shared")
    extracted = _extract(_responses(samples, shared, settings), calls, settings)
    numbered = extracted.select("sample_id", "claims").mapInArrow(number_claims, spark_schema(CLAIM_SCHEMA))
    claims = tools.keep(numbered, "claims")
    verified = verify_claims(claims, owners, evidence, tools, settings)
    gathered = tools.keep(_gather(samples, shared, facts, extracted, verified.claims), "gathered")
    facts_to_check, fact = _to_check(gathered, settings), ("sample_id", "number")
    coverage = ask_judges(lambda own: own.ask(CHECK, facts_to_check), tools, settings, fact, "covered", COVERED)
    checked = calls.record(CHECK, coverage)
    concluded = tools.keep(_conclude(gathered, checked, settings), "concluded")
    known = gathered.select("sample_id", "owner", "lost", "waiting", "facts")
    judged = with_status(samples, known, concluded, facts.left_out)
    failures = failures_of_owners(of_owners, owners, evidence).unionByName(calls.failures())
    return {
        "statements": _statement_rows(judged.where(is_judged())),
        # Dropped are the facts above `importance.max_facts`
        "scores": measured_scores(judged, NAME, WEIGHTED, F.col("left_out")),
        "measures": measure_rows(judged, NAME, unknown_bounds(settings)),
        "claims": _claim_rows(claims, verified),
        "evidence": evidence_rows(NAME, verified),
        "chunks": _chunk_rows(evidence, verified, settings.knowledge.source),
        "failures": failures.unionByName(_claim_failures(verified)),
        **_votes(verified, checked, settings),
    }


def _votes(verified: VerifiedClaims, checked: DataFrame, settings: Settings) -> dict[str, DataFrame]:
    """Return the table `votes` on claims (with their chunks for lists) and on facts, or no table without a panel."""
    stating = verified.claims.select("sample_id", "position", *CLAIM)
    claims = stating.join(verified.judged, on=list(CLAIM), how="inner")
    chunk = ("chunk_id",) if "chunk_id" in claims.columns else ()
    found = [
        vote_rows(NAME, verifying_stage(settings), claims, "position", *chunk),
        vote_rows(NAME, CHECK, checked, "number"),
    ]
    return {"votes": reduce(DataFrame.unionByName, [one["votes"] for one in found])} if found[0] else {}


def _shared(owners: Owners, facts: ReferenceFacts) -> DataFrame:
    """Return sample_id, owner, has_texts (the owner has texts or given facts), and lost and waiting of its facts."""
    texts = facts.texts.withColumn("has_texts", F.lit(True))
    return (
        owners.owned.join(facts.incomplete, on="owner", how="left")
        .join(texts, on="owner", how="left")
        .withColumns({name: F.coalesce(name, F.lit(False)) for name in ("lost", "waiting", "has_texts")})
    )


def _responses(samples: DataFrame, shared: DataFrame, settings: Settings) -> DataFrame:
    """Return sample_id, query, text: the responses of samples with known facts.

    A blank response has no claims and no request. A sample without a relevant context has no further request.
    """
    known = ~F.col("lost") & ~F.col("waiting")
    if settings.knowledge.source == "contexts":
        known = known & F.col("has_texts")
    stated = samples.where(~is_blank("response")).select("sample_id", "query", F.col("response").alias("text"))
    return stated.join(shared.where(known).select("sample_id"), on="sample_id", how="left_semi")


def _extract(responses: DataFrame, calls: StageCalls, settings: Settings) -> DataFrame:
    """Return sample_id, claims, unread, unextracted: one row per response.

    A response is one request, or one per sentence. Claims are null if a request failed (`unread`) or was not sent
    (`unextracted`).
    """
    windows = responses.mapInArrow(window_batches, spark_schema(WINDOWS))
    requests = windows if settings.importance.claims == "window" else responses.withColumn("number", F.lit(1))
    extracted = calls.ask(extracting_stage(settings), requests, carry=("sample_id", "number"))
    found = extracted.groupBy("sample_id").agg(
        F.array_sort(F.collect_list(F.struct("number", "claims")))["claims"].alias("claims"),
        F.max(has_failed()).alias("unread"),
        F.max(is_unasked()).alias("unextracted"),
    )
    claims = F.when(~F.col("unread") & ~F.col("unextracted"), F.flatten("claims"))
    return found.withColumn("claims", claims)


def _gather(
    samples: DataFrame, shared: DataFrame, facts: ReferenceFacts, extracted: DataFrame, claims: DataFrame
) -> DataFrame:
    """Return the state of each sample before its facts are checked.

    The columns are sample_id, owner, facts and rated (null without facts), claims array<struct<position, text,
    verdict>> in order (null if they are missing), judged (claims get verdicts), lost and waiting.
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
    return Rows(
        rows, ("sample_id", "number"), bound, bound, made_of=(*stages_of_facts(settings), extracting_stage(settings))
    )


def _conclude(gathered: DataFrame, checked: DataFrame, settings: Settings) -> DataFrame:
    """Return the columns of `CONCLUDED`, and waiting: true if a fact was not requested."""
    numbers = F.transform("claims", lambda number: number.cast("long"))
    of_facts = collect(checked, "checked", "number", "covered", numbers.alias("claims"))
    rows = gathered.select("sample_id", "facts", "rated", "claims", "judged")
    function = partial(conclude_batches, ks=tuple(settings.importance.ks))
    return conclude(rows.join(of_facts, on="sample_id", how="left"), function, CONCLUDED)


METRIC = Metric(
    name=NAME,
    stages=stages,
    score=score,
    assume=assume,
    sections={NAME: ImportanceSettings},
    judged=lambda settings: (verifying_stage(settings), CHECK),
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
