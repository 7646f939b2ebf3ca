"""The source of knowledge of a run, indexes by their folders, and the stage that embeds texts. Imports no search."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.run.manifest import read_manifest
from untold.jobs.run.output import absolute
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.jobs.settings.retrieval import IndexSettings
from untold.udfs.errors import UserError
from untold.udfs.llm.keys import Stage
from untold.udfs.retrieval.catalog import Catalog, read_catalog
from untold.udfs.retrieval.cutting import CONTEXT_CHUNKS, chunk_contexts


class UnusableIndexError(UserError):
    """A folder that is no index to search in. The message says what to do."""


def catalog_in(manifest: Mapping[str, Any] | None) -> Catalog | None:
    """The index that a manifest names; None for a build that never came to its end."""
    plain = None if manifest is None else manifest.get("index")
    return None if plain is None else read_catalog(plain)


def open_catalog(index: str) -> Catalog:
    """The index of a folder, as it was when it was last whole: one that is grown meanwhile stays searchable.

    Raises UnusableIndexError where there is none.
    """
    manifest = read_manifest(index)
    if manifest is None:
        raise UnusableIndexError(f"{index} holds no index; make one with: untold index --input CORPUS --output {index}")
    try:
        found = catalog_in(manifest)
    except (KeyError, TypeError) as error:
        raise UnusableIndexError(f"{index}/manifest.json is damaged; make the index anew with --overwrite") from error
    if found is None:
        raise UnusableIndexError(f"{index} holds no whole index; start untold index again, it goes on where it was")
    return found


def check_model(index: str, catalog: Catalog, model: str) -> None:
    """Raises UnusableIndexError for vectors of another model, which could be compared with nothing."""
    if catalog.making.model != model:
        raise UnusableIndexError(
            f"{index} was made with another embedding model or other settings of it; "
            "set embeddings.* as they were, or search with --retriever bm25"
        )


def cache_of(settings: Settings) -> str:
    """Where each machine keeps copies of shards that lie on no local disk."""
    return settings.index.cache or os.path.join(tempfile.gettempdir(), "untold-index")


STAGE = "embed_text"
# What asking gives beside the vector
OUTCOME = ("request_id", "error_type", "error")


# What asks a stage for rows, and which columns are carried: `untold.jobs.metrics.base.Tools.ask`, or that of a runner
Ask = Callable[[str, DataFrame, tuple[str, ...]], DataFrame]


def embed(ask: Ask, rows: DataFrame, kind: str, key: str) -> DataFrame:
    """Columns `key`, vector array<float> of length 1, request_id, error_type, error.

    rows: `key` and text; kind: `query` for what is looked for, `document` for what is looked in.
    """
    wanted = rows.select(key, "text", F.lit(kind).alias("kind"))
    return ask(STAGE, wanted, (key,)).select(key, "vector", *OUTCOME)


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
