"""Search for claims in a source of knowledge and judge them. Samarinas et al. 2025; methods, section 11.

Samples with the same claim share its requests. The key of a claim is the hash of its text (`claim_key`) and its
`owner`: the sample if the chunks come from its own contexts, otherwise an empty text. A model judges pairs or lists of
claims and chunks, or a classifier judges pairs (methods, section 10).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.call_settings import RELATION
from untold.jobs.inference.stage.requests import OUTCOME, has_failed, is_unasked, outcomes
from untold.jobs.metrics import judging
from untold.jobs.metrics.base import Tools, contract_rows, map_rows, shared_failures
from untold.jobs.metrics.panel import RELATIONS, ask_judges, vote_rows, votes_in
from untold.jobs.retrieval.sources import query_key
from untold.jobs.settings.model import Settings
from untold.udfs.errors import UserError
from untold.udfs.facts.claim_verdicts import judge_claims, waves_of

ENTAILMENT = "entailment"


def grounding_stage(settings: Settings, *, in_lists: bool = False) -> str:
    """Return the stage of `grounding.verifier`. Raises UserError for lists of a classifier, which judges pairs."""
    if in_lists and settings.grounding.verifier != RELATION:
        raise UserError("icat.judgement=lists asks a model, and grounding.verifier is a classifier; set one of the two")
    if in_lists:
        return judging.CLASSIFY_LISTS
    return judging.CLASSIFY if settings.grounding.verifier == RELATION else "classify_entailment"


def ground(pairs: DataFrame, tools: Tools, settings: Settings, carry: Iterable[str] = ()) -> DataFrame:
    """Return `carry`, relation, probability, grounded and `OUTCOME` of pairs of a premise and a hypothesis.

    A panel adds votes.

    `classify_relation` grounds a claim with the relation `entailment`, and its probability is null. A classifier
    grounds a claim with a probability of entailment of at least `grounding.threshold`. The results of a failed request
    are null.
    """
    stage, kept = grounding_stage(settings), tuple(carry)
    judged = ask_judges(lambda own: own.ask(stage, pairs, carry=kept), tools, settings, kept, "relation", RELATIONS)
    if stage == judging.CLASSIFY:
        judged = judged.withColumn("probability", F.lit(None).cast("double"))
        grounds = F.col("relation") == ENTAILMENT
    else:
        grounds = F.col("probability") >= settings.grounding.threshold
    return judged.select(*kept, "relation", "probability", grounds.alias("grounded"), *OUTCOME, *votes_in(judged))


CLAIM = ("owner", "claim_key")
# The columns of a pair before it is judged
JUDGED = (*CLAIM, "chunk_id", "document_id", "rank", "similarity")
# Digits of a text's hash in the id of a chunk. A billion texts with the same context id have different digits
TEXT_CHARACTERS = 16


@dataclass(frozen=True)
class GroundedClaims:
    """The results of claims.

    Attributes:
        claims: sample_id, position, text, owner, claim_key, verdict, evidence, document_id, unjudged, waiting.
        pairs: owner, claim_key, chunk_id, document_id, rank, similarity, request_id, relation, probability, grounded,
            error_type, error.
        hits: owner, claim_key, query and `jobs.retrieval.sources.FOUND`, with the chunk_id of the table `chunks`.
    """

    claims: DataFrame
    pairs: DataFrame
    hits: DataFrame


def ground_claims(
    claims: DataFrame, tools: Tools, settings: Settings, *, early_stop: bool, list_size: int | None = None
) -> GroundedClaims:
    """Search for the claims and judge them with the chunks.

    claims: sample_id, position, text, with distinct texts per sample. list_size: the maximum number of claims of a
    sample in a request with one chunk, None for pairs.
    """
    of_sample = settings.knowledge.source == "contexts" or list_size is not None
    whose = F.col("sample_id") if of_sample else F.lit("")
    keyed = claims.select("*", whose.alias("owner"), query_key("text").alias("claim_key"))
    distinct = keyed.dropDuplicates(list(CLAIM))
    queries = distinct.select(F.col("owner").alias("sample_id"), "claim_key", F.col("text").alias("query"))
    found = tools.retrieve(queries).withColumnRenamed("sample_id", "owner")
    hits = found.withColumn("chunk_id", chunk_name(settings.knowledge.source))
    pairs = _judge_pairs(hits, tools, settings, early_stop=early_stop, list_size=list_size)
    verdicts = tools.keep(_verdicts(hits, pairs), "verdicts")
    judged = keyed.join(verdicts, on=list(CLAIM), how="left")
    return GroundedClaims(tools.keep(judged, "judged-claims"), pairs, hits)


def chunk_name(source: str | None, chunk_id: Column | None = None, text: Column | None = None) -> Column:
    """Return the id of a chunk, which is unique in the whole output. By default, it uses the columns chunk_id and text.

    The ids of an index are unique. Contexts of several samples may have the same id, and a web page may have different
    text for another query, so their ids include the hash of the text.
    """
    named, said = F.col("chunk_id") if chunk_id is None else chunk_id, F.col("text") if text is None else text
    if source == "index":
        return named
    return F.concat(named, F.lit("@"), F.substring(F.sha2(said, 256), 1, TEXT_CHARACTERS))


def _judge_pairs(
    hits: DataFrame, tools: Tools, settings: Settings, *, early_stop: bool, list_size: int | None
) -> DataFrame:
    """Return the judged pairs. With `early_stop`, they are judged in waves that skip the grounded claims."""
    asked = (F.col("text").alias("premise"), F.col("query").alias("hypothesis"))
    left = hits.where(F.col("rank").isNotNull()).select(*JUDGED, *asked)
    judged = []
    for first, last in waves_of(settings.knowledge.top_k, early_stop=early_stop):
        wave = left.where(F.col("rank").between(first, last))
        if list_size is None:
            judged.append(ground(wave, tools, settings, carry=JUDGED))
        else:
            judged.append(judge_lists(wave, tools, settings, list_size))
        grounded = judged[-1].where("grounded").select(*CLAIM).distinct()
        left = left.join(grounded, on=list(CLAIM), how="left_anti")
    return reduce(DataFrame.unionByName, judged)


def judge_lists(pairs: DataFrame, tools: Tools, settings: Settings, size: int) -> DataFrame:
    """Return the columns of `ground`, with pairs in lists: a chunk with at most `size` claims of its owner.

    pairs: the columns of `JUDGED`, premise and hypothesis.
    """
    of_claim = ("claim_key", "document_id", "rank", "similarity")
    lists = judging.gather_items(tools, pairs, ("owner", "chunk_id", "premise"), F.col("hypothesis"), *of_claim)
    stage = judging.NumberedList(judging.CLASSIFY_LISTS, size, {"hypotheses": "text"}, {"relations": "relation"})
    judged = stage.judge(tools, settings, RELATIONS, lists, "owner", "chunk_id").select("*", "number.*")
    grounds = (F.col("relation") == ENTAILMENT).alias("grounded")
    unknown = F.lit(None).cast("double").alias("probability")
    return judged.select(*JUDGED, "relation", unknown, grounds, *OUTCOME, *votes_in(judged))


def _verdicts(hits: DataFrame, pairs: DataFrame) -> DataFrame:
    """Return the columns of `VERDICTS`, a row per claim. A claim without a hit has no pair."""
    flags = F.max(has_failed()).alias("lost"), F.max(is_unasked()).alias("waiting")
    looked_up = hits.groupBy(*CLAIM).agg(*flags)
    one = F.struct("rank", "chunk_id", "document_id", "relation", "grounded", is_unasked().alias("waiting"))
    judged = pairs.groupBy(*CLAIM).agg(F.collect_list(one).alias("judged"))
    both = looked_up.join(judged, on=list(CLAIM), how="left")
    return map_rows(both, judge_claims)


def claim_id(metric: str, position: str | Column = "position") -> Column:
    """Return `<sample_id>:<metric>:<position>`."""
    place = F.col(position) if isinstance(position, str) else position
    return F.concat_ws(":", "sample_id", F.lit(metric), place.cast("string"))


def covered_statements(known: DataFrame, metric: str) -> DataFrame:
    """Return the table `statements` of aspects or references, each with the claims that cover it.

    known: sample_id, statements array<struct<number, text, covered, claims array<position>, ...>>, with further columns
    of the table.
    """
    rows = known.select("sample_id", F.inline("statements"))
    claims = F.transform("claims", lambda position: claim_id(metric, position))
    return contract_rows("statements", metric, rows, statement_id=claim_id(metric, "number"), claims=claims)


def claim_rows(metric: str, claims: DataFrame, judged: DataFrame) -> DataFrame:
    """Return the table `claims`: all extracted claims. An unjudged claim has no verdict.

    claims: sample_id, position, text. judged: the judged claims, with verdict and evidence.
    """
    found = judged.select("sample_id", "position", "verdict", "evidence")
    joined = claims.join(found, on=["sample_id", "position"], how="left")
    evidence = F.coalesce("evidence", F.array().cast("array<string>"))
    return contract_rows("claims", metric, joined, claim_id=claim_id(metric), evidence=evidence)


def pair_votes(metric: str, stage: str, found: GroundedClaims) -> dict[str, DataFrame]:
    """Return the table `votes` of pairs, for every sample with the claim. The id is the claim_id and the chunk_id."""
    stated = found.claims.select("sample_id", "position", *CLAIM)
    return vote_rows(metric, stage, stated.join(found.pairs, on=list(CLAIM), how="inner"), "position", "chunk_id")


def evidence_rows(metric: str, found: GroundedClaims) -> DataFrame:
    """Return the table `evidence`: each pair, for every sample with the claim."""
    stated = found.claims.select("sample_id", "position", *CLAIM)
    rows = stated.join(found.pairs, on=list(CLAIM), how="inner")
    return contract_rows("evidence", metric, rows, claim_id=claim_id(metric))


def chunk_rows(hits: DataFrame) -> DataFrame:
    """Return the table `chunks`: all retrieved chunks, judged or not."""
    found = hits.where(F.col("rank").isNotNull())
    return found.select("chunk_id", "document_id", "url", "text").dropDuplicates(["chunk_id"])


def claim_failures(metric: str, stage: str, found: GroundedClaims) -> DataFrame:
    """Return the rows of `failures` of searches and of judging (`stage`), for every sample with the claim."""
    lookups = found.hits.where(has_failed()).select(*CLAIM, "stage", *OUTCOME)
    lost = lookups.unionByName(lost_claims(found.pairs, stage))
    return shared_failures(metric, found.claims, lost, *CLAIM)


def lost_claims(asked: DataFrame, stage: str) -> DataFrame:
    """Return owner, claim_key, stage, `OUTCOME` of the failed requests of claims."""
    return outcomes(asked, *CLAIM).where(has_failed()).select(*CLAIM, F.lit(stage).alias("stage"), *OUTCOME)
