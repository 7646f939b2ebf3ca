"""The facts that an answer to each query ought to give: extracted, merged, rated and ranked, once for all its samples.

"Beyond Precision" 2026; methods, section 12. Frames are of owners: what samples of one query and one source share,
their facts and their evidence, is worked out once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.graph.condensation import condense_batches
from untold.jobs.inference.stage.requests import Rows, failure_rows, has_failed, incomplete_samples
from untold.jobs.metrics.base import Tools
from untold.jobs.metrics.grounded_claims import chunk_name
from untold.jobs.metrics.summaries import STAGE as SUMMARISE
from untold.jobs.metrics.summaries import summarise_contexts
from untold.jobs.retrieval.sources import OUTCOME
from untold.jobs.retrieval.sources import STAGE as EMBED
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.facts.claim_verdicts import EVIDENCE, choose_evidence, chunk_evidence
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
from untold.udfs.retrieval.terms import decimals_of
from untold.udfs.samples.conversion import EITHER

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


def needed_facts(settings: Settings) -> tuple[str, ...]:
    """Return the column that facts come from. The judge cannot rate facts, so they must be given."""
    if settings.llm.is_judge:
        return ("references",)
    return (EITHER,) if settings.knowledge.source == "contexts" else ()


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
    facts = merged.unionByName(_given_facts(owners.owners))
    to_rate = owners.owners.select("owner", "query").join(facts, on="owner", how="inner")
    for stage in judged.values():
        to_rate = complete_alone(to_rate, stage)
    to_rate = tools.keep(to_rate, "merged-facts")
    prompts = to_rate.mapInArrow(partial(batch_facts, most=settings.importance.batch), spark_schema(TO_RATE))
    asked[RATE] = tools.ask(RATE, prompts, carry=("owner", "batch"))
    with_texts = texts.select("owner").unionByName(_given_facts(owners.owners).select("owner")).distinct()
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


def _given_facts(owners: DataFrame) -> DataFrame:
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
    expected = ready.select(F.round(NEAR_SHARE * pairs_of).cast("long").alias("requests"), both)
    return Rows(rows, ("owner", "source", "target"), bound, expected)


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
