"""Which source of knowledge a run looks facts up in, and what that asks; imports nothing that searches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.retrieval.catalogs import UnusableIndexError, check_model, open_catalog
from untold.jobs.retrieval.vectors import OUTCOME, STAGE
from untold.jobs.run.output import absolute
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.jobs.settings.retrieval import IndexSettings
from untold.udfs.llm.keys import Stage
from untold.udfs.retrieval.catalog import Catalog
from untold.udfs.retrieval.cutting import CONTEXT_CHUNKS, chunk_contexts

WEB = "web_search"
# Half of a sha2-256: no two texts of a billion have one
KEY_CHARACTERS = 32
# As long as words of English are, with the space behind
WORD = "wordly "
# Keeps what stands in for a chunk from being one that the store knows (a noncharacter of Unicode)
MARK = "\uffff"
# A row a hit; `stage` is what failed where something did
FOUND = {
    "rank": "long",
    "chunk_id": "string",
    "document_id": "string",
    "url": "string",
    "text": "string",
    "similarity": "double",
    "stage": "string",
    **dict.fromkeys(OUTCOME, "string"),
}


def query_key(column: str) -> Column:
    """The key of a query's text."""
    return F.substring(F.sha2(F.col(column), 256), 1, KEY_CHARACTERS)


def stages_of_knowledge(settings: Settings) -> tuple[str, ...]:
    """The stages that looking something up asks under these settings."""
    if settings.knowledge.source == "web":
        return (WEB,)
    return () if settings.knowledge.retriever == "bm25" else (STAGE,)


def open_knowledge(settings: Settings, stages: Mapping[str, Stage]) -> Catalog | None:
    """The index that the settings name; None for other sources. Raises UnusableIndexError for one that cannot be used.

    To be called before anything is paid for: its digest is part of what an output is of.
    """
    if settings.knowledge.source != "index":
        return None
    if settings.knowledge.index is None:
        raise UnusableIndexError("knowledge.index: not set, and knowledge.source is index: --set knowledge.index=DIR")
    place = absolute(settings.knowledge.index)
    catalog = open_catalog(place)
    if STAGE in stages:
        check_model(place, catalog, stages[STAGE].digest)
    return catalog


def assumed_results() -> dict[str, Mapping[str, Column]]:
    """What a plan takes the answers of these stages to be: nothing, as their hits are assumed by `assumed_hits`."""
    hits = "array<struct<id: string, text: string>>"
    return {STAGE: {"vector": F.lit(None).cast("array<float>")}, WEB: {"hits": F.lit(None).cast(hits)}}


def assumed_hits(rows: DataFrame, settings: Settings, k: int | None) -> DataFrame:
    """The columns of `rows`, and those of as many hits as there may be, each as long as a chunk may be."""
    most = k or settings.knowledge.top_k
    ranked = rows.withColumn("rank", F.explode(F.sequence(F.lit(1), F.lit(most))))
    # What is made of a text alone is asked once: two queries may find different ones
    number = F.concat_ws(MARK, F.hex(F.xxhash64("query")), F.col("rank").cast("string"))
    text = F.concat(F.repeat(F.lit(WORD), settings.index.chunk_words), F.lit(MARK), number)
    given = {"rank": F.col("rank"), "chunk_id": F.concat(F.lit(MARK), F.col("rank").cast("string")), "text": text}
    hits = [given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in FOUND.items()]
    return ranked.select(*rows.columns, *hits)


def context_chunks(samples: DataFrame, settings: IndexSettings) -> DataFrame:
    """The columns of `CONTEXT_CHUNKS`, a row a chunk. samples: sample_id, contexts array<struct<id, text>>."""
    contexts = samples.select("sample_id", F.explode("contexts").alias("context")).select(
        "sample_id", F.col("context.id").alias("document_id"), F.col("context.text").alias("text")
    )
    cut = partial(chunk_contexts, words=settings.chunk_words, overlap=settings.chunk_overlap)
    return contexts.mapInArrow(cut, spark_schema(CONTEXT_CHUNKS))
