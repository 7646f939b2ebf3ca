"""Verify claims with the evidence of their samples: a claim with its nearest chunks, or a chunk with several claims.

"Beyond Precision" 2026; methods, section 12. Samples with the same evidence share the verdict of a claim.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import OUTCOME, has_failed, is_unasked
from untold.jobs.metrics.base import Tools, contract_rows, map_rows
from untold.jobs.metrics.grounded_claims import CLAIM, ENTAILMENT, chunk_name, claim_id, judge_lists, lost_claims
from untold.jobs.metrics.judging import CLASSIFY_LISTS
from untold.jobs.metrics.panel import ask_judges, weaker
from untold.jobs.metrics.reference_facts import Evidence, Owners
from untold.jobs.retrieval.sources import STAGE as EMBED
from untold.jobs.retrieval.sources import query_key
from untold.jobs.settings.model import Settings
from untold.udfs.facts.claim_verdicts import CONTRADICTED, CONTRADICTION, NOT_SUPPORTED, SUPPORTED
from untold.udfs.retrieval.ranking import rank_contexts

VERIFY = "verify_claim"
VERDICTS = weaker(NOT_SUPPORTED, SUPPORTED, CONTRADICTED)
# More than any array of Spark has
ALL_CHUNKS = 2**31 - 1
CHUNK = ("chunk_id", "document_id", "url", "text")
SHOWN = (
    "array<struct<rank: long, chunk_id: string, document_id: string, url: string, text: string, similarity: double>>"
)


@dataclass(frozen=True)
class VerifiedClaims:
    """The results of claims.

    Attributes:
        claims: sample_id, position, text, owner, claim_key, verdict, judged (false if the claim gets no verdict),
            waiting, and the chunks of its request by rank: shown array<struct<rank, chunk_id, similarity>>, and their
            ids as evidence.
        chunks: chunk_id, document_id, url, text: the shown chunks, a row per claim.
        failures: owner, claim_key, stage, `OUTCOME`.
        judged: the verdicts with `CLAIM`, by claim, or by claim and chunk for lists.
    """

    claims: DataFrame
    chunks: DataFrame
    failures: DataFrame
    judged: DataFrame


def verify_claims(
    claims: DataFrame, owners: Owners, evidence: Evidence, tools: Tools, settings: Settings
) -> VerifiedClaims:
    """Verify the claims of samples (sample_id, position, text, with distinct texts per sample) with their evidence.

    A request has the `importance.evidence_chunks` nearest chunks of a claim, most similar first, or all chunks in their
    order if there are no more or the setting is null. A claim without a chunk is not supported. With given references
    and without contexts, claims are not judged. A claim without its search, vector or verdict has no verdict.
    """
    most, source = settings.importance.evidence_chunks or ALL_CHUNKS, settings.knowledge.source
    keyed = claims.join(owners.owned, on="sample_id", how="inner").withColumn("claim_key", query_key("text"))
    known = _known_evidence(owners, evidence, most, source)
    looked_up = keyed.dropDuplicates(list(CLAIM)).select(*CLAIM, "text").join(known, on="owner", how="inner")
    distinct = tools.keep(looked_up, "distinct-claims")
    chosen, embedded = _nearest(distinct.where(F.col("chunks") > most), evidence, most, tools)
    found = distinct.join(chosen, on=list(CLAIM), how="left").withColumn("shown", _shown(source))
    ready = tools.keep(found, "claims-with-evidence")
    if settings.importance.judgement == "lists":
        asked = judge_lists(_in_pairs(ready), tools, settings, settings.importance.list_size)
        relations = _united(asked)
    else:
        rows = _to_verify(ready)
        asked = ask_judges(lambda own: own.ask(VERIFY, rows, CLAIM), tools, settings, CLAIM, "relation", VERDICTS)
        relations = asked.select(*CLAIM, "relation", is_unasked().alias("unanswered"))
    judged = keyed.join(_verdicts(ready, relations), on=list(CLAIM), how="left")
    chunks = ready.select(F.explode("shown").alias("one")).select(*(f"one.{name}" for name in CHUNK))
    failures = embedded.unionByName(lost_claims(asked, verifying_stage(settings)))
    return VerifiedClaims(tools.keep(judged, "verified-claims"), chunks, failures, asked)


def verifying_stage(settings: Settings) -> str:
    """Return the stage that verifies claims."""
    return CLASSIFY_LISTS if settings.importance.judgement == "lists" else VERIFY


def _known_evidence(owners: Owners, evidence: Evidence, most: int, source: str | None) -> DataFrame:
    """Return owner, chunks (their number), first (the first `most` of them), judged, missed, waiting: a row per owner.

    judged: true if claims get verdicts. missed: the search failed. waiting: the search was not sent.
    """
    judged = F.lit(True)
    if source == "contexts":
        judged = F.col("given").isNull() | (F.coalesce(F.size("contexts"), F.lit(0)) > 0)
    flags = owners.owners.select("owner", judged.alias("judged"))
    few = evidence.chunks.select("owner", F.size("chunks").alias("chunks"), F.slice("chunks", 1, most).alias("first"))
    found = flags.join(few, on="owner", how="left")
    if evidence.hits is None:
        return found.withColumns({"missed": F.lit(False), "waiting": F.lit(False)})
    searches = evidence.hits.groupBy("owner").agg(
        F.max(has_failed()).alias("missed"), F.max(is_unasked()).alias("waiting")
    )
    return found.join(searches, on="owner", how="left")


def _nearest(claims: DataFrame, evidence: Evidence, most: int, tools: Tools) -> tuple[DataFrame, DataFrame]:
    """Return the nearest chunks of claims of owners with more than `most` chunks, and the failures.

    The first frame has owner, claim_key, nearest (`SHOWN`, null without a vector), unplaced (a vector failed) and
    unasked (a vector was not requested). All chunks of the owner need a vector. The second frame has owner, claim_key,
    stage and `OUTCOME`.

    claims: owner, claim_key, text.
    """
    queries = claims.select(*CLAIM, "text")
    of_claims = evidence.chunks.join(queries.select("owner").distinct(), on="owner", how="left_semi")
    chunks = tools.keep(of_claims.select("owner", F.explode("chunks").alias("one")), "evidence-chunks")
    pieces, wanted = _embedded(chunks.select("owner", "one.*"), queries, tools)
    lost = pieces.groupBy("owner").agg(F.max(has_failed()).alias("broken"), F.max(is_unasked()).alias("left"))
    flags = wanted.join(lost, on="owner", how="left").select(
        *CLAIM, (has_failed() | F.col("broken")).alias("unplaced"), (is_unasked() | F.col("left")).alias("unasked")
    )
    broken = pieces.where(has_failed()).select("owner", F.lit(EMBED).alias("stage"), *OUTCOME)
    of_chunks = queries.select(*CLAIM).join(broken, on="owner", how="inner")
    nearest = flags.join(_ranked(pieces, wanted, most), on=list(CLAIM), how="left")
    return nearest, of_chunks.unionByName(lost_claims(wanted, EMBED))


def _ranked(pieces: DataFrame, wanted: DataFrame, most: int) -> DataFrame:
    """Return owner, claim_key, nearest: the claims with a vector whose owner has the vectors of all chunks.

    The vectors of a plan are null.
    """
    has = F.col("vector").isNotNull()
    chunk = F.struct("chunk_id", "document_id", "text", "vector")
    by_owner = pieces.groupBy("owner").agg(F.collect_list(chunk).alias("chunks"), F.bool_and(has).alias("whole"))
    query = F.struct(F.col("claim_key").alias("query"), "text", "vector")
    with_queries = wanted.where(has).groupBy("owner").agg(F.collect_list(query).alias("queries"))
    both = by_owner.where("whole").join(with_queries, on="owner", how="inner")
    named = both.select(F.col("owner").alias("sample_id"), "chunks", "queries")
    ranked = map_rows(named, rank_contexts, k=most, retrievers=("dense",))
    named = ranked.withColumnsRenamed({"sample_id": "owner", "query": "claim_key"})
    one = F.struct("rank", "chunk_id", "document_id", "url", "text", "similarity")
    return (
        named.join(pieces.select("owner", "chunk_id", "url"), on=["owner", "chunk_id"], how="left")
        .groupBy(*CLAIM)
        .agg(F.array_sort(F.collect_list(one)).alias("nearest"))
    )


def _embedded(chunks: DataFrame, claims: DataFrame, tools: Tools) -> tuple[DataFrame, DataFrame]:
    """Return the chunks and the claims with their vectors and `OUTCOME`. They share a stage."""
    documents = chunks.select("owner", F.col("chunk_id").alias("key"), "text", F.lit("document").alias("kind"))
    queries = claims.select("owner", F.col("claim_key").alias("key"), "text", F.lit("query").alias("kind"))
    asked = tools.ask(EMBED, documents.unionByName(queries), carry=("owner", "key", "kind"))

    def of_kind(kind: str, key: str) -> DataFrame:
        rows = asked.where(F.col("kind") == kind)
        return rows.select("owner", F.col("key").alias(key), "vector", *OUTCOME)

    pieces = chunks.join(of_kind("document", "chunk_id"), on=["owner", "chunk_id"], how="inner")
    return pieces, claims.join(of_kind("query", "claim_key"), on=list(CLAIM), how="inner")


def _shown(source: str | None) -> Column:
    """Return the chunks of the request of a claim: the nearest chunks, or all if there are not more than the limit.

    A plan without vectors uses the first chunks.
    """
    first = F.transform(
        "first",
        lambda one, place: F.struct(
            (place + 1).cast("long").alias("rank"),
            *(one[name].alias(name) for name in ("chunk_id", "document_id", "url", "text")),
            F.lit(None).cast("double").alias("similarity"),
        ),
    ).cast(SHOWN)
    missing = F.coalesce(F.col("unplaced") | F.col("unasked"), F.lit(False))
    shown = F.coalesce(F.col("nearest").cast(SHOWN), first)
    named = F.transform(shown, lambda one: one.withField("chunk_id", chunk_name(source, one["chunk_id"], one["text"])))
    return F.when(F.col("judged") & ~missing, named)


def _to_verify(ready: DataFrame) -> DataFrame:
    """Return owner, claim_key, claim, evidence: the texts of the claims with chunks."""
    return ready.where(F.size("shown") > 0).select(
        *CLAIM, F.col("text").alias("claim"), F.transform("shown", lambda one: one["text"]).alias("evidence")
    )


def _in_pairs(ready: DataFrame) -> DataFrame:
    """Return each claim with each of its chunks, for `judge_lists`."""
    pairs = ready.select(*CLAIM, F.col("text").alias("hypothesis"), F.explode("shown").alias("one"))
    return pairs.select(*CLAIM, "hypothesis", "one.*").withColumnRenamed("text", "premise").drop("url")


def _united(pairs: DataFrame) -> DataFrame:
    """Return owner, claim_key, relation, unanswered: the verdict of each claim over its judged chunks.

    A claim is supported if a chunk entails it. Otherwise it is null if a chunk is unjudged, contradicted if a chunk
    contradicts it, and not supported in all other cases.
    """
    has = {name: F.max(F.col("relation") == name) for name in (ENTAILMENT, CONTRADICTION)}
    verdict = (
        F.when(has[ENTAILMENT], SUPPORTED)
        .when(F.max(F.col("relation").isNull()), F.lit(None))
        .when(has[CONTRADICTION], CONTRADICTED)
        .otherwise(NOT_SUPPORTED)
    )
    return pairs.groupBy(*CLAIM).agg(
        verdict.alias("relation"), (verdict.isNull() & F.max(is_unasked())).alias("unanswered")
    )


def _verdicts(ready: DataFrame, relations: DataFrame) -> DataFrame:
    """Return owner, claim_key, verdict, judged, waiting, shown, evidence: a row per distinct claim."""
    missed, waiting, unanswered, unasked = (
        F.coalesce(name, F.lit(False)) for name in ("missed", "waiting", "unanswered", "unasked")
    )
    nothing = F.col("judged") & (F.coalesce("chunks", F.lit(0)) == 0) & ~missed & ~waiting
    verdict = F.when(nothing, F.lit(NOT_SUPPORTED)).otherwise(F.col("relation"))
    # Each sample with the claim has such a row, so it contains no texts
    shown = F.transform("shown", lambda one: one.dropFields("document_id", "url", "text"))
    return ready.join(relations, on=list(CLAIM), how="left").select(
        *CLAIM,
        verdict.alias("verdict"),
        "judged",
        (waiting | unanswered | unasked).alias("waiting"),
        shown.alias("shown"),
        F.transform("shown", lambda one: one["chunk_id"]).alias("evidence"),
    )


def evidence_rows(metric: str, verified: VerifiedClaims) -> DataFrame:
    """Return the table `evidence`: each chunk of the request of a claim, with the verdict of the claim."""
    shown = verified.claims.select("sample_id", "position", F.col("verdict").alias("relation"), F.inline("shown"))
    return contract_rows("evidence", metric, shown, claim_id=claim_id(metric))
