"""The tables of the metric importance, made of what it has found out about its samples (docs/contract.md, "Tables")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.results import failure_rows, has_failed
from untold.jobs.metrics.base import JUDGED, Tables, measure_rows, measured_scores, status_of
from untold.jobs.metrics.grounded_claims import CLAIM, chunk_name, claim_id, claim_rows
from untold.jobs.metrics.reference_facts import Evidence, Owners, ReferenceFacts, owners_failures
from untold.jobs.metrics.verified_claims import CHUNK, Verified, evidence_rows
from untold.jobs.retrieval.sources import OUTCOME
from untold.jobs.settings.model import Settings
from untold.udfs.facts.importance_measures import CLAIMS, FACTS, WEIGHTED, names_of_measures

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
    verified: Verified
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
