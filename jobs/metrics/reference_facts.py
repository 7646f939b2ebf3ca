"""Extract, merge, rate and rank the facts that a response to a query should state.

"Beyond Precision" 2026; methods, section 12. Samples with the same query and source have one owner, and share facts and
evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.graph.condensation import CONDENSED, condense_batches
from untold.jobs.inference.stage.requests import OUTCOME, Rows, has_failed
from untold.jobs.metrics.base import StageCalls, Tools, map_rows, shared_failures
from untold.jobs.metrics.grounded_claims import chunk_name
from untold.jobs.metrics.summaries import STAGE as SUMMARISE
from untold.jobs.metrics.summaries import summarise_contexts
from untold.jobs.retrieval.sources import STAGE as EMBED
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.facts.claim_verdicts import choose_evidence, chunk_evidence
from untold.udfs.facts.importance_measures import rank_batches
from untold.udfs.facts.reference_facts import (
    FACTS,
    batch_facts,
    cut_texts,
    gather_facts,
    merge_classes,
    merge_near,
    pair_near,
)
from untold.udfs.retrieval.ranking import decimals_of
from untold.udfs.samples.conversion import EITHER

# Half of a SHA-256. A billion texts have different keys
KEY_CHARACTERS = 32
# The id of a single reference that is given as a text
FIRST_ID = "1"
GIVEN = "array<struct<reference_id: string, text: string, anchor: string, weight: double, importance: string>>"


@dataclass(frozen=True)
class Owners:
    """The owners of shared results.

    Attributes:
        owned: sample_id and owner, the first sample_id with the same query, contexts and references.
        owners: owner, query, contexts, and given array<struct<reference_id, text, anchor, weight, importance>>. `given`
            is null without references. `contexts` is null if facts do not come from contexts.
    """

    owned: DataFrame
    owners: DataFrame


def find_owners(samples: DataFrame, tools: Tools, settings: Settings) -> Owners:
    """Return the owners of samples: one per query, list of references, and list of contexts."""
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
    """Return the samples without their references of negative weight, which a response should not state."""
    if "references" not in samples.columns:
        return samples
    is_wanted = F.filter("references", lambda one: F.coalesce(one["weight"], F.lit(0.0)) >= 0)
    return samples.withColumn("references", is_wanted)


def _given(samples: DataFrame) -> Column:
    """Return the references of a sample, or null if it has none."""
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
    """The texts that facts come from and that claims are verified with.

    Attributes:
        chunks: owner, chunks array<struct<chunk_id, document_id, url, text>>. An array is empty without a hit.
        hits: the results of retrieval with owner, stage and `OUTCOME`. None if the contexts are the source.
    """

    chunks: DataFrame
    hits: DataFrame | None = None


def find_evidence(owners: Owners, tools: Tools, settings: Settings, documents: int | None) -> Evidence:
    """Return the evidence of each owner: the chunks of its contexts in order, or the retrieved chunks of its query.

    documents: the number of documents of an index, best first, None for all. All hits of the web are used in order.
    """
    source = settings.knowledge.source
    if source == "contexts":
        contexts, index = owners.owners.select("owner", "contexts"), settings.index
        return Evidence(map_rows(contexts, chunk_evidence, words=index.chunk_words, overlap=index.chunk_overlap))
    queries = owners.owners.select(F.col("owner").alias("sample_id"), "query")
    hits = tools.retrieve(queries).withColumnRenamed("sample_id", "owner")
    found = F.when(F.col("rank").isNotNull(), F.struct("rank", "chunk_id", "document_id", "url", "text", "similarity"))
    # collect_list skips the nulls of queries without a hit
    by_owner = hits.groupBy("owner").agg(F.collect_list(found).alias("hits"))
    most, decimals = documents if source == "index" else None, decimals_of(settings.knowledge.retriever)
    chosen = map_rows(by_owner, choose_evidence, documents=most, decimals=decimals)
    return Evidence(tools.keep(chosen, "evidence"), hits)


def failures_of_owners(calls: StageCalls, owners: Owners, evidence: Evidence) -> DataFrame:
    """Return the rows of `failures` of shared results and of retrieval, for each sample that shares them."""
    failures = calls.failures(owners.owned)
    if evidence.hits is None:
        return failures
    lost = evidence.hits.where(has_failed()).select("owner", "stage", *OUTCOME)
    return failures.unionByName(shared_failures(calls.metric, owners.owned, lost, "owner"))


def needed_facts(settings: Settings) -> tuple[str, ...]:
    """Return the column that facts come from. The judge cannot rate facts, so they must be given."""
    if settings.llm.is_judge:
        return ("references",)
    return (EITHER,) if settings.knowledge.source == "contexts" else ()


EXTRACT, RELATE, RATE = "extract_facts", "classify_relation", "rate_importance"
ENTAILMENT = "entailment"
# K-QA has 6,962 pairs of statements of one question, and 1,463 of them are near enough for a request
NEAR_SHARE = 0.21


def stages_of(settings: Settings) -> tuple[str, ...]:
    """Return the stages of the facts and their weights."""
    condense = settings.summarise_contexts and settings.knowledge.source == "contexts"
    relate = settings.importance.duplicates == "entailed"
    return (*((SUMMARISE,) if condense else ()), EXTRACT, EMBED, *((RELATE,) if relate else ()), RATE)


def find_reference_facts(owners: Owners, evidence: Evidence, calls: StageCalls, settings: Settings) -> DataFrame:
    """Return the ranked facts of each owner: the merged facts of its texts, or its given facts, rated if necessary.

    The columns are owner, facts and rated (of `RANKED`, null without known facts), left_out (the number of facts above
    `importance.max_facts`), has_texts (the owner has a text or given facts), lost and waiting. calls: the calls of
    owners.
    """
    tools, given = calls.tools, _given_facts(owners.owners)
    mined = owners.owners.where(F.col("given").isNull())
    texts = find_texts(mined, evidence, calls, settings)
    passages = map_rows(texts, cut_texts, words=settings.importance.passage_words)
    extracted = calls.ask(EXTRACT, passages, carry=("owner", "place", "passage", "source"))
    searched = _searched(mined, evidence)
    found = tools.keep(_found(extracted, calls.incomplete(*searched), settings), "found-facts")
    facts = _merge(found, calls, settings).unionByName(given)
    queries = owners.owners.select("owner", "query")
    to_rate = tools.keep(calls.complete(queries.join(facts, on="owner", how="inner"), EMBED, RELATE), "merged-facts")
    prompts = map_rows(to_rate, batch_facts, most=settings.importance.batch)
    rated = calls.ask(RATE, prompts, carry=("owner", "batch"))
    with_texts = texts.select("owner").unionByName(given.select("owner")).distinct()
    ranked = _rank(calls.complete(to_rate, RATE), rated, settings)
    known = (
        found.select("owner", "left_out"),
        ranked,
        calls.incomplete(*searched),
        with_texts.withColumn("has_texts", F.lit(True)),
    )
    joined = reduce(lambda rows, more: rows.join(more, on="owner", how="left"), known, owners.owners.select("owner"))
    flags = {name: F.coalesce(name, F.lit(False)) for name in ("lost", "waiting", "has_texts")}
    return tools.keep(joined.withColumns(flags), "ranked-facts")


def find_texts(owners: DataFrame, evidence: Evidence, calls: StageCalls, settings: Settings) -> DataFrame:
    """Return owner, place, source, text: the texts that facts or nuggets come from.

    Contexts are summarised as for every metric. Retrieved chunks are not changed.
    """
    tools = calls.tools
    if settings.knowledge.source != "contexts":
        chunks = evidence.chunks.join(owners.select("owner"), on="owner", how="left_semi")
        exploded = chunks.select("owner", F.posexplode("chunks").alias("place", "chunk")).select(
            "owner", F.col("place").cast("long").alias("place"), "chunk.chunk_id", "chunk.text"
        )
        named = exploded.withColumn("source", chunk_name(settings.knowledge.source))
        return tools.keep(named.select("owner", "place", "source", "text"), "texts")
    samples = owners.select(F.col("owner").alias("sample_id"), "query", "contexts")
    contexts = summarise_contexts(samples, tools.ask, summarise=settings.summarise_contexts)
    condensed = contexts.withColumnRenamed("sample_id", "owner")
    texts = condensed.where(F.col("summary").isNotNull()).select(
        "owner",
        F.col("position").cast("long").alias("place"),
        F.col("context_id").alias("source"),
        F.col("summary").alias("text"),
    )
    if settings.summarise_contexts:
        calls.record(SUMMARISE, condensed)
    return calls.complete(texts, SUMMARISE)


def _searched(owners: DataFrame, evidence: Evidence) -> list[DataFrame]:
    """Return the results of retrieval for these owners, none if the contexts are the source."""
    return [] if evidence.hits is None else [evidence.hits.join(owners.select("owner"), on="owner", how="left_semi")]


def _found(extracted: DataFrame, incomplete: DataFrame, settings: Settings) -> DataFrame:
    """Return the columns of `FOUND`, one row per owner with all texts."""
    passage = F.struct("place", "passage", "source", "facts")
    by_owner = extracted.groupBy("owner").agg(F.array_sort(F.collect_list(passage)).alias("passages"))
    whole = by_owner.join(incomplete.select("owner"), on="owner", how="left_anti")
    return map_rows(whole, gather_facts, most=settings.importance.max_facts)


def _given_facts(owners: DataFrame) -> DataFrame:
    """Return the columns of `FACTS` of the owners with references. Each reference is a fact."""
    null = F.lit(None).cast("array<string>")
    one = F.transform(
        "given",
        lambda item: item.dropFields("importance").withField("sources", null).withField("members", null),
    )
    given = owners.where(F.col("given").isNotNull())
    # The cast is by position, so the fields have the order of `FACTS`
    return given.select("owner", one.cast(spark_schema(FACTS)["facts"].dataType).alias("facts"))


def _merge(found: DataFrame, calls: StageCalls, settings: Settings) -> DataFrame:
    """Return the columns of `FACTS`, with duplicates merged by the rule `importance.duplicates`.

    The facts of an owner without a vector or a relation are not merged, and its samples are not rated.
    """
    own = settings.importance
    if own.duplicates == "none":
        alone = found.withColumn("classes", F.lit(None).cast("array<struct<node: long>>"))
        return map_rows(alone, merge_classes)
    embedded = calls.ask(EMBED, _to_embed(found), carry=("owner", "place"))
    by_owner = embedded.groupBy("owner").agg(
        F.transform(F.array_sort(F.collect_list(F.struct("place", "vector"))), lambda one: one["vector"]).alias(
            "vectors"
        )
    )
    ready = calls.tools.keep(found.join(by_owner, on="owner", how="left"), "facts-with-vectors")
    if own.duplicates != "entailed":
        return map_rows(ready, merge_near, method=own.duplicates, threshold=own.duplicate_distance)
    classes = _classes(found, calls.ask(RELATE, _near_pairs(ready), carry=()))
    return map_rows(found.join(classes, on="owner", how="left"), merge_classes)


def _to_embed(found: DataFrame) -> DataFrame:
    """Return owner, place, text, kind: the facts of owners with several facts."""
    several = found.where(F.size("found") > 1).select("owner", F.posexplode("found").alias("place", "fact"))
    return several.select("owner", "place", F.col("fact.text").alias("text"), F.lit("document").alias("kind"))


def _near_pairs(ready: DataFrame) -> Rows:
    """Return the ordered pairs of near facts as requests: owner, source, target, premise, hypothesis.

    Without vectors, a plan assumes that any two facts of an owner may be near.
    """
    pairs = map_rows(ready, pair_near)
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
    """Return owner, classes: the strong components of the entailments among the facts (methods, section 5)."""
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
    condensed = graphs.select("graph", "nodes", "edges").mapInArrow(condense_batches, CONDENSED.format("long"))
    return condensed.select(F.col("graph").alias("owner"), "classes")


def _rank(facts: DataFrame, rated: DataFrame, settings: Settings) -> DataFrame:
    """Return the columns of `RANKED`, one row per owner of `facts`."""
    own = settings.importance
    prompt = F.struct("batch", "relevance", "salience")
    ratings = rated.groupBy("owner").agg(F.array_sort(F.collect_list(prompt)).alias("ratings"))
    both = facts.join(ratings, on="owner", how="left")
    return map_rows(both, rank_batches, own.relevance_weight, own.min_weight, own.top_k)
