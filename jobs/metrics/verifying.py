"""Claims verified against the evidence of their samples: one request a claim, which sees the nearest chunks together.

"Beyond Precision" 2026; methods, section 12. A claim is verified once for all samples that share their evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.asking.lost import has_failed, is_unasked
from jobs.metrics.base import Tools
from jobs.metrics.claims import chunk_name, claim_id
from jobs.metrics.owners import Evidence, Owners
from jobs.retrieval.sources import query_key
from jobs.retrieval.vectors import OUTCOME
from jobs.retrieval.vectors import STAGE as EMBED
from jobs.run.session import spark_schema
from jobs.settings.model import Settings
from udfs.facts.claims import NOT_SUPPORTED
from udfs.retrieval.contexts import RANKED, rank_contexts

VERIFY = "verify_claim"
CLAIM = ("owner", "claim_key")
SHOWN = (
    "array<struct<rank: long, chunk_id: string, document_id: string, url: string, text: string, similarity: double>>"
)


@dataclass(frozen=True)
class Verified:
    """What became of claims.

    claims: sample_id, position, text, owner, claim_key, verdict, judged, whether it is to have one, waiting, and shown,
    the chunks that it was held against (`SHOWN`, chunk_ids as in the table `chunks`), null where it was not to be;
    failures: owner, claim_key, stage, `OUTCOME`.
    """

    claims: DataFrame
    failures: DataFrame


def verify_claims(claims: DataFrame, owners: Owners, evidence: Evidence, tools: Tools, settings: Settings) -> Verified:
    """Verifies the claims of samples (sample_id, position, text; a text once a sample) against their owners' evidence.

    Each is shown the `importance.evidence_chunks` chunks nearest to it, most similar first, or all of them in their
    order where there are no more. Where nothing was found a claim is not supported; where references are given and
    there are no contexts, claims are not judged. A claim whose search, vector or verdict was lost has none.
    """
    keyed = claims.join(owners.owned, on="sample_id", how="inner").withColumn("claim_key", query_key("text"))
    looked_up = _with_evidence(keyed.dropDuplicates(list(CLAIM)), owners, evidence, settings)
    distinct = tools.keep(looked_up, "distinct-claims")
    most = settings.importance.evidence_chunks
    nearest, embedded = _nearest(distinct.where(F.size("chunks") > most), most, tools)
    found = distinct.join(nearest, on=list(CLAIM), how="left").withColumn(
        "shown", _shown(most, settings.knowledge.source)
    )
    ready = tools.keep(found, "claims-with-evidence")
    asked = tools.ask(VERIFY, _to_verify(ready), carry=CLAIM)
    verdicts = _verdicts(ready, asked)
    judged = keyed.join(verdicts, on=list(CLAIM), how="left")
    failures = embedded.unionByName(_failed(asked, VERIFY, *CLAIM))
    return Verified(tools.keep(judged, "verified-claims"), failures)


def _with_evidence(claims: DataFrame, owners: Owners, evidence: Evidence, settings: Settings) -> DataFrame:
    """owner, claim_key, text, chunks; judged, whether it is to have a verdict; missed, waiting, what its search is."""
    if settings.knowledge.source == "contexts":
        judged = F.col("given").isNull() | (F.size("contexts") > 0)
    else:
        judged = F.lit(True)
    flags = owners.owners.select("owner", F.coalesce(judged, F.lit(False)).alias("judged"))
    found = claims.select(*CLAIM, "text").join(flags, on="owner", how="inner")
    found = found.join(evidence.chunks, on="owner", how="left")
    if evidence.hits is None:
        return found.withColumns({"missed": F.lit(False), "waiting": F.lit(False)})
    searches = evidence.hits.groupBy("owner").agg(
        F.max(has_failed()).alias("missed"), F.max(is_unasked()).alias("waiting")
    )
    return found.join(searches, on="owner", how="left")


def _nearest(claims: DataFrame, most: int, tools: Tools) -> tuple[DataFrame, DataFrame]:
    """The claims' nearest chunks, and what failed on the way.

    First: owner, claim_key, nearest (of `SHOWN`, null where vectors are missing), unplaced, whether one failed, and
    unasked, whether one was not asked. claims: owner, claim_key, text, chunks, more than `most` of them. A claim of an
    owner that lacks the vector of a chunk is not looked up among the others.
    """
    queries = claims.select(*CLAIM, "text")
    chunks = (
        claims.select("owner", "chunks").dropDuplicates(["owner"]).select("owner", F.explode("chunks").alias("one"))
    )
    placed = tools.keep(chunks.select("owner", "one.*"), "evidence-chunks")
    documents = tools.ask(EMBED, placed.select("*", F.lit("document").alias("kind")), carry=("owner", "chunk_id"))
    asked = tools.ask(EMBED, queries.select("*", F.lit("query").alias("kind")), carry=CLAIM)
    chunk = F.struct("chunk_id", "document_id", "text", "vector")
    pieces = placed.join(documents, on=["owner", "chunk_id"], how="inner")
    whole = F.bool_and(F.col("vector").isNotNull()).alias("whole")
    by_owner = pieces.groupBy("owner").agg(
        F.collect_list(chunk).alias("chunks"),
        whole,
        F.max(has_failed()).alias("broken"),
        F.max(is_unasked()).alias("left"),
    )
    wanted = queries.join(asked, on=list(CLAIM), how="inner").where(F.col("vector").isNotNull())
    query = F.struct(F.col("claim_key").alias("query"), "text", "vector")
    of_owner = wanted.groupBy("owner").agg(F.collect_list(query).alias("queries"))
    both = by_owner.where("whole").join(of_owner, on="owner", how="inner")
    rank = partial(rank_contexts, k=most, retrievers=("dense",))
    ranked = both.select(F.col("owner").alias("sample_id"), "chunks", "queries").mapInArrow(rank, spark_schema(RANKED))
    named = ranked.withColumnsRenamed({"sample_id": "owner", "query": "claim_key"})
    urls = placed.select("owner", "chunk_id", "url")
    one = F.struct("rank", "chunk_id", "document_id", "url", "text", "similarity")
    nearest = (
        named.join(urls, on=["owner", "chunk_id"], how="left")
        .groupBy(*CLAIM)
        .agg(F.array_sort(F.collect_list(one)).alias("nearest"))
    )
    flags = asked.select(*CLAIM, has_failed().alias("own_lost"), is_unasked().alias("own_left")).join(
        by_owner.select("owner", "broken", "left"), on="owner", how="left"
    )
    outcome = flags.select(
        *CLAIM,
        (F.col("own_lost") | F.coalesce("broken", F.lit(False))).alias("unplaced"),
        (F.col("own_left") | F.coalesce("left", F.lit(False))).alias("unasked"),
    )
    of_chunks = queries.select(*CLAIM).join(_failed(documents, EMBED, "owner"), on="owner", how="inner")
    return outcome.join(nearest, on=list(CLAIM), how="left"), of_chunks.unionByName(_failed(asked, EMBED, *CLAIM))


def _shown(most: int, source: str | None) -> Column:
    """The chunks that a claim is shown: all where there are no more than `most`, else the nearest.

    In a plan that knows no vector so many of them stand for the nearest.
    """
    first = F.transform(
        F.slice("chunks", 1, most),
        lambda one, place: F.struct(
            (place + 1).cast("long").alias("rank"),
            one["chunk_id"].alias("chunk_id"),
            one["document_id"].alias("document_id"),
            one["url"].alias("url"),
            one["text"].alias("text"),
            F.lit(None).cast("double").alias("similarity"),
        ),
    ).cast(SHOWN)
    missing = F.coalesce(F.col("unplaced") | F.col("unasked"), F.lit(False))
    is_shown = F.col("judged") & ~missing
    shown = F.coalesce(F.col("nearest").cast(SHOWN), first)
    named = F.transform(shown, lambda one: one.withField("chunk_id", chunk_name(source, one["chunk_id"], one["text"])))
    return F.when(is_shown, named)


def _to_verify(ready: DataFrame) -> DataFrame:
    """owner, claim_key, claim, evidence: the texts of the claims that are shown something."""
    return ready.where(F.size("shown") > 0).select(
        *CLAIM, F.col("text").alias("claim"), F.transform("shown", lambda one: one["text"]).alias("evidence")
    )


def _verdicts(ready: DataFrame, asked: DataFrame) -> DataFrame:
    """owner, claim_key, verdict, judged, waiting, shown: a row a distinct claim."""
    relations = asked.select(*CLAIM, "relation", is_unasked().alias("unanswered"))
    missed, waiting, unanswered, unasked = (
        F.coalesce(name, F.lit(False)) for name in ("missed", "waiting", "unanswered", "unasked")
    )
    nothing = F.col("judged") & (F.coalesce(F.size("chunks"), F.lit(0)) == 0) & ~missed & ~waiting
    verdict = F.when(nothing, F.lit(NOT_SUPPORTED)).otherwise(F.col("relation"))
    both = ready.join(relations, on=list(CLAIM), how="left")
    return both.select(
        *CLAIM, verdict.alias("verdict"), "judged", (waiting | unanswered | unasked).alias("waiting"), "shown"
    )


def _failed(asked: DataFrame, stage: str, *keys: str) -> DataFrame:
    return asked.where(has_failed()).select(*keys, F.lit(stage).alias("stage"), *OUTCOME)


def evidence_rows(metric: str, verified: Verified) -> DataFrame:
    """The table `evidence`: each chunk that a claim was shown, with the claim's verdict."""
    shown = verified.claims.select("sample_id", "position", "verdict", F.explode("shown").alias("one"))
    return shown.select(
        "sample_id",
        F.lit(metric).alias("metric"),
        claim_id(metric).alias("claim_id"),
        "one.chunk_id",
        "one.rank",
        "one.similarity",
        F.col("verdict").alias("relation"),
        F.lit(None).cast("double").alias("probability"),
    )
