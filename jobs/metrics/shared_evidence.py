"""Whose facts and whose evidence: what samples of one query and one source share, so that it is worked out once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.results import failure_rows, has_failed, incomplete_samples
from untold.jobs.metrics.base import Tools
from untold.jobs.retrieval.sources import OUTCOME
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.facts.passages import EVIDENCE, choose_evidence, chunk_evidence
from untold.udfs.retrieval.ranking import decimals_of

# Half of a sha2-256: no two texts of a billion have one
KEY_CHARACTERS = 32
# The only one of the references where a lone text is given
FIRST_ID = "1"
GIVEN = "array<struct<reference_id: string, text: string, anchor: string, weight: double, importance: string>>"


@dataclass(frozen=True)
class Owners:
    """owned: sample_id, owner, the first sample_id of those that share it; owners: owner, query, contexts, given.

    `given` array<struct<reference_id, text, anchor, weight, importance>>, null where there are none. Contexts that are
    no source are null.
    """

    owned: DataFrame
    owners: DataFrame


def find_owners(samples: DataFrame, tools: Tools, settings: Settings) -> Owners:
    """Who owns what samples share: those of one query, one list of references, and one list of contexts."""
    of_contexts = settings.knowledge.source == "contexts"
    contexts = F.col("contexts") if of_contexts else F.lit(None).cast("array<struct<id: string, text: string>>")
    shared = samples.select("sample_id", "query", contexts.alias("contexts"), _given(samples).alias("given"))
    key = F.substring(F.sha2(F.to_json(F.struct("query", "contexts", "given")), 256), 1, KEY_CHARACTERS)
    keyed = tools.keep(shared.select("sample_id", key.alias("key")), "keyed-samples")
    first = keyed.groupBy("key").agg(F.min("sample_id").alias("owner"))
    owned = tools.keep(keyed.join(first, on="key", how="inner").select("sample_id", "owner"), "owned-samples")
    owners = shared.withColumnRenamed("sample_id", "owner").join(first.select("owner"), on="owner", how="left_semi")
    return Owners(owned, tools.keep(owners, "owners"))


def without_unwanted(samples: DataFrame) -> DataFrame:
    """The samples without references of negative weight, which a response should not state."""
    if "references" not in samples.columns:
        return samples
    is_wanted = F.filter("references", lambda one: F.coalesce(one["weight"], F.lit(0.0)) >= 0)
    return samples.withColumn("references", is_wanted)


def _given(samples: DataFrame) -> Column:
    """The references that a sample brings, null where it brings none."""
    if "references" not in samples.columns:
        return F.lit(None).cast(GIVEN)
    items = F.transform(
        "references",
        lambda one: F.struct(
            F.coalesce(one["id"], F.lit(FIRST_ID)).alias("reference_id"),
            one["text"].alias("text"),
            one["anchor"].alias("anchor"),
            one["weight"].cast("double").alias("weight"),
            one["importance"].alias("importance"),
        ),
    )
    return F.when(F.size("references") > 0, items).cast(GIVEN)


@dataclass(frozen=True)
class Evidence:
    """What owners' facts are taken from and claims verified against.

    chunks: owner, chunks array<struct<chunk_id, document_id, url, text>>, empty where nothing was found; hits: what was
    looked up, with what failed (owner, stage, `OUTCOME`), None where contexts are the source.
    """

    chunks: DataFrame
    hits: DataFrame | None = None


def find_evidence(owners: Owners, tools: Tools, settings: Settings, documents: int | None) -> Evidence:
    """The evidence of each owner: chunks of its contexts in order, or those found for its query.

    Of an index those of the best so many `documents`, None for all; of the web all hits, in their order.
    """
    source = settings.knowledge.source
    if source == "contexts":
        cut = partial(chunk_evidence, words=settings.index.chunk_words, overlap=settings.index.chunk_overlap)
        return Evidence(owners.owners.select("owner", "contexts").mapInArrow(cut, spark_schema(EVIDENCE)))
    queries = owners.owners.select(F.col("owner").alias("sample_id"), "query")
    hits = tools.retrieve(queries).withColumnRenamed("sample_id", "owner")
    found = F.when(F.col("rank").isNotNull(), F.struct("rank", "chunk_id", "document_id", "url", "text", "similarity"))
    # collect_list passes over the nulls of queries that found nothing
    by_owner = hits.groupBy("owner").agg(F.collect_list(found).alias("hits"))
    retriever = settings.knowledge.retriever
    choose = partial(
        choose_evidence, documents=documents if source == "index" else None, decimals=decimals_of(retriever)
    )
    return Evidence(tools.keep(by_owner.mapInArrow(choose, spark_schema(EVIDENCE)), "evidence"), hits)


def incomplete_owners(*asked: DataFrame) -> DataFrame:
    """Columns owner, lost, waiting: the owners that a stage failed, or was not asked, for."""
    renamed = (rows.withColumnRenamed("owner", "sample_id") for rows in asked)
    return incomplete_samples(*renamed).withColumnRenamed("sample_id", "owner")


def complete_alone(rows: DataFrame, asked: DataFrame) -> DataFrame:
    """The rows of owners that a stage left nothing of unanswered."""
    incomplete = asked.where(F.col("error_type").isNotNull()).select("owner").distinct()
    return rows.join(incomplete, on="owner", how="left_anti")


def owners_failures(metric: str, owned: DataFrame, asked: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of `failures` of what was asked for owners, for every sample that shares it; by stage its results."""
    rows = [
        owned.join(frame.where(has_failed()).select("owner", *OUTCOME), on="owner", how="inner")
        for frame in asked.values()
    ]
    named = [failure_rows(metric, stage, frame) for stage, frame in zip(asked, rows, strict=True)]
    return reduce(DataFrame.unionByName, named)
