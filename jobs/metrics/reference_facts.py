"""The facts that an answer to each query ought to give: extracted, merged, rated and ranked, once for all its samples.

"Beyond Precision" 2026; methods, section 12. Frames are of owners (`untold.jobs.metrics.shared_evidence`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.graph.condensation import condense_batches
from untold.jobs.asking.requests import Rows
from untold.jobs.metrics.base import Tools
from untold.jobs.metrics.contexts import STAGE as SUMMARISE
from untold.jobs.metrics.contexts import summarise_contexts
from untold.jobs.metrics.grounded_claims import chunk_name
from untold.jobs.metrics.shared_evidence import Evidence, Owners, complete_alone, incomplete_owners
from untold.jobs.retrieval.sources import STAGE as EMBED
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.facts.importance_measures import RANKED, rank_batches
from untold.udfs.facts.reference_facts import (
    FACTS,
    FOUND,
    PAIRS,
    PASSAGES,
    TO_RATE,
    batch_facts,
    cut_texts,
    gather_facts,
    merge_classes,
    merge_near,
    pair_near,
)

EXTRACT, RELATE, RATE = "extract_facts", "classify_relation", "rate_importance"
ENTAILMENT = "entailment"
# Of the 6,962 pairs of statements that K-QA has for one question 1,463 are near enough to be asked about
NEAR_SHARE = 0.21
CLASSES = (
    "graph string, classes array<struct<node: long, statement: long, representative: boolean, covered: boolean, "
    "in_basis: boolean>>, covered long, uncovered long, low double, high double"
)


@dataclass(frozen=True)
class ReferenceFacts:
    """ranked: columns of `RANKED`, a row an owner whose facts are known; left_out: owner, left_out, beyond the cap.

    texts: owner, those that facts were extracted or given of; incomplete: owner, lost, waiting; asked: by stage its
    results, with the column owner.
    """

    ranked: DataFrame
    left_out: DataFrame
    texts: DataFrame
    incomplete: DataFrame
    asked: Mapping[str, DataFrame]


def find_reference_facts(owners: Owners, evidence: Evidence, tools: Tools, settings: Settings) -> ReferenceFacts:
    """The ranked facts of each owner: those of its texts, merged, or those that it was given, rated where need be."""
    mined = owners.owners.where(F.col("given").isNull())
    texts, asked = find_texts(mined, evidence, tools, settings)
    passages = texts.mapInArrow(partial(cut_texts, words=settings.importance.passage_words), spark_schema(PASSAGES))
    place = ("owner", "place", "passage", "source")
    asked[EXTRACT] = tools.ask(EXTRACT, passages, carry=place)
    searched = _searched(mined, evidence)
    known = incomplete_owners(*searched, *asked.values())
    found = tools.keep(_found(asked[EXTRACT], known, settings), "found-facts")
    merged, judged = _merge(found, tools, settings)
    asked |= judged
    facts = merged.unionByName(_given(owners.owners))
    to_rate = owners.owners.select("owner", "query").join(facts, on="owner", how="inner")
    for stage in judged.values():
        to_rate = complete_alone(to_rate, stage)
    to_rate = tools.keep(to_rate, "merged-facts")
    prompts = to_rate.mapInArrow(partial(batch_facts, most=settings.importance.batch), spark_schema(TO_RATE))
    asked[RATE] = tools.ask(RATE, prompts, carry=("owner", "batch"))
    with_texts = texts.select("owner").unionByName(_given(owners.owners).select("owner")).distinct()
    incomplete = tools.keep(incomplete_owners(*searched, *asked.values()), "incomplete-owners")
    ranked = tools.keep(_rank(to_rate, asked[RATE], settings), "ranked-facts")
    return ReferenceFacts(
        ranked, found.select("owner", "left_out"), tools.keep(with_texts, "owners-with-texts"), incomplete, asked
    )


def find_texts(
    owners: DataFrame, evidence: Evidence, tools: Tools, settings: Settings
) -> tuple[DataFrame, dict[str, DataFrame]]:
    """owner, place, source, text of what facts or nuggets are taken from, and what was asked for that by stage.

    Contexts are condensed as for every metric; chunks that were found are as they are.
    """
    if settings.knowledge.source != "contexts":
        chunks = evidence.chunks.join(owners.select("owner"), on="owner", how="left_semi")
        exploded = chunks.select("owner", F.posexplode("chunks").alias("place", "chunk")).select(
            "owner", F.col("place").cast("long").alias("place"), "chunk.chunk_id", "chunk.text"
        )
        named = exploded.withColumn("source", chunk_name(settings.knowledge.source))
        return tools.keep(named.select("owner", "place", "source", "text"), "texts"), {}
    samples = owners.select(F.col("owner").alias("sample_id"), "query", "contexts")
    contexts = summarise_contexts(samples, tools.ask, summarise=settings.summarise_contexts)
    condensed = contexts.withColumnRenamed("sample_id", "owner")
    texts = condensed.where(F.col("summary").isNotNull()).select(
        "owner",
        F.col("position").cast("long").alias("place"),
        F.col("context_id").alias("source"),
        F.col("summary").alias("text"),
    )
    asked = {SUMMARISE: condensed} if settings.summarise_contexts else {}
    return complete_alone(texts, condensed), asked


def _searched(owners: DataFrame, evidence: Evidence) -> list[DataFrame]:
    """What was looked up for these owners, whose facts are taken from it."""
    return [] if evidence.hits is None else [evidence.hits.join(owners.select("owner"), on="owner", how="left_semi")]


def _found(extracted: DataFrame, incomplete: DataFrame, settings: Settings) -> DataFrame:
    """The columns of `FOUND`, a row an owner of whom all texts are known."""
    passage = F.struct("place", "passage", "source", "facts")
    by_owner = extracted.groupBy("owner").agg(F.array_sort(F.collect_list(passage)).alias("passages"))
    whole = by_owner.join(incomplete.select("owner"), on="owner", how="left_anti")
    gather = partial(gather_facts, most=settings.importance.max_facts)
    return whole.mapInArrow(gather, spark_schema(FOUND))


def _given(owners: DataFrame) -> DataFrame:
    """The columns of `FACTS` of the owners that bring references: as they are, each a fact."""
    null = F.lit(None).cast("array<string>")
    one = F.transform(
        "given",
        lambda item: F.struct(
            item["reference_id"].alias("reference_id"),
            item["text"].alias("text"),
            item["anchor"].alias("anchor"),
            null.alias("sources"),
            null.alias("members"),
            item["weight"].alias("weight"),
        ),
    )
    schema = spark_schema(FACTS)
    given = owners.where(F.col("given").isNotNull())
    return given.select("owner", one.cast(schema["facts"].dataType).alias("facts"))


def _merge(found: DataFrame, tools: Tools, settings: Settings) -> tuple[DataFrame, dict[str, DataFrame]]:
    """The columns of `FACTS`, near-duplicates merged as `importance.duplicates` says, and what was asked for that.

    An owner of whom a vector or a relation is missing is left as if nothing were near: its sample is not rated.
    """
    own = settings.importance
    if own.duplicates == "none":
        alone = found.withColumn("classes", F.lit(None).cast("array<struct<node: long>>"))
        return alone.mapInArrow(merge_classes, spark_schema(FACTS)), {}
    embedded = tools.ask(EMBED, _to_embed(found), carry=("owner", "place"))
    by_owner = embedded.groupBy("owner").agg(
        F.transform(F.array_sort(F.collect_list(F.struct("place", "vector"))), lambda one: one["vector"]).alias(
            "vectors"
        )
    )
    ready = tools.keep(found.join(by_owner, on="owner", how="left"), "facts-with-vectors")
    asked = {EMBED: embedded}
    if own.duplicates != "entailed":
        merge = partial(merge_near, method=own.duplicates, threshold=own.duplicate_distance)
        return ready.mapInArrow(merge, spark_schema(FACTS)), asked
    asked[RELATE] = tools.ask(RELATE, _near_pairs(ready), carry=())
    classes = _classes(found, asked[RELATE])
    return found.join(classes, on="owner", how="left").mapInArrow(merge_classes, spark_schema(FACTS)), asked


def _to_embed(found: DataFrame) -> DataFrame:
    """owner, place, text, kind: the facts of owners that have several."""
    several = found.where(F.size("found") > 1).select("owner", F.posexplode("found").alias("place", "fact"))
    return several.select("owner", "place", F.col("fact.text").alias("text"), F.lit("document").alias("kind"))


def _near_pairs(ready: DataFrame) -> Rows:
    """The ordered pairs of near facts as requests: owner, source, target, premise, hypothesis.

    In a plan that knows no vector any two facts of an owner may be near.
    """
    pairs = ready.mapInArrow(pair_near, spark_schema(PAIRS))
    facts = ready.select("owner", F.posexplode("found").alias("place", "fact")).select(
        "owner", F.col("place").cast("long").alias("place"), F.col("fact.text").alias("text")
    )
    premises = facts.select("owner", F.col("place").alias("source"), F.col("text").alias("premise"))
    hypotheses = facts.select("owner", F.col("place").alias("target"), F.col("text").alias("hypothesis"))
    rows = pairs.join(premises, on=["owner", "source"], how="inner").join(
        hypotheses, on=["owner", "target"], how="inner"
    )
    size = F.size("found").cast("long")
    longest = F.array_max(F.transform("found", lambda one: F.octet_length(one["text"])))
    pairs_of, both = size * (size - 1), F.coalesce(2 * longest, F.lit(0)).alias("bytes")
    bound = ready.select(pairs_of.alias("requests"), both)
    likely = ready.select(F.round(NEAR_SHARE * pairs_of).cast("long").alias("requests"), both)
    return Rows(rows, ("owner", "source", "target"), bound, likely)


def _classes(found: DataFrame, related: DataFrame) -> DataFrame:
    """owner, classes: the strong components of the entailments among an owner's facts (methods, section 5)."""
    node = F.transform(
        "found",
        lambda one, place: F.struct(
            place.cast("long").alias("node"),
            F.lit(True).alias("context"),
            F.lit(False).alias("response"),
            one["frequency"].alias("frequency"),
        ),
    )
    entailed = related.where(F.col("relation") == ENTAILMENT)
    edges = entailed.groupBy("owner").agg(
        F.collect_list(F.struct("source", "target", F.lit(True).alias("judged"))).alias("edges")
    )
    graphs = found.select(F.col("owner").alias("graph"), node.alias("nodes"), "owner").join(
        edges, on="owner", how="left"
    )
    condensed = graphs.select("graph", "nodes", "edges").mapInArrow(condense_batches, CLASSES)
    return condensed.select(F.col("graph").alias("owner"), "classes")


def _rank(facts: DataFrame, rated: DataFrame, settings: Settings) -> DataFrame:
    """The columns of `RANKED`, a row an owner of whom all ratings are known."""
    own = settings.importance
    prompt = F.struct("batch", "relevance", "salience")
    ratings = rated.groupBy("owner").agg(F.array_sort(F.collect_list(prompt)).alias("ratings"))
    both = complete_alone(facts, rated).join(ratings, on="owner", how="left")
    rank = partial(rank_batches, relevance_weight=own.relevance_weight, min_weight=own.min_weight, top=own.top_k)
    return both.mapInArrow(rank, spark_schema(RANKED))
