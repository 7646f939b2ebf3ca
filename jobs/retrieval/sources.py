"""Look up queries in the sources of knowledge of a run: an index, the web, or the contexts of the sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import OUTCOME, has_failed
from untold.jobs.run.folders import Counted, Workspace
from untold.jobs.run.manifest import read_manifest
from untold.jobs.run.session import map_rows, spark_schema, task_slots
from untold.jobs.settings.model import Settings
from untold.jobs.settings.sections import IndexSettings
from untold.udfs.errors import UserError
from untold.udfs.llm.keys import Stage
from untold.udfs.retrieval.chunks import chunk_contexts
from untold.udfs.retrieval.index_table import SEARCHED, Catalog, SearchTask, read_catalog, search_table
from untold.udfs.retrieval.ranking import rank_contexts, retrievers_of
from untold.udfs.storage import absolute


class UnusableIndexError(UserError):
    """A folder without a searchable index. The message has the remedy."""


def catalog_in(manifest: Mapping[str, Any] | None, index: str) -> Catalog | None:
    """Return the index in a manifest, None if there is no manifest or the first build has not ended.

    Raises UnusableIndexError for an index in the format of an earlier version.
    """
    plain = None if manifest is None else manifest.get("index")
    if plain is None:
        return None
    try:
        return read_catalog(plain)
    except (KeyError, TypeError) as error:
        reason = "was built by an earlier version of Untold" if "shards" in plain else "has a damaged manifest"
        raise UnusableIndexError(f"{index} {reason}. Build the index again with --overwrite") from error


def open_catalog(index: str) -> Catalog:
    """Return the index in a folder. While a build is running, this is the index before it.

    Raises UnusableIndexError if there is none.
    """
    manifest = read_manifest(index)
    if manifest is None:
        raise UnusableIndexError(f"{index} has no index. Build one with untold index --input CORPUS --output {index}")
    found = catalog_in(manifest, index)
    if found is None:
        raise UnusableIndexError(f"{index} has an incomplete index; start untold index again to continue")
    return found


def check_model(index: str, catalog: Catalog, model: str) -> None:
    """Raise UnusableIndexError for vectors of another embedding model, which cannot be compared."""
    if catalog.making.model != model:
        raise UnusableIndexError(
            f"{index} was built with another embedding model or other embedding settings. "
            "Restore embeddings.*, or search with --retriever bm25"
        )


# The rows of a table that one task reads
ROWS_OF_A_TASK = 100_000


def row_ranges(spark: SparkSession, rows: int) -> DataFrame:
    """Return start and count of ranges that cover so many rows. Each range is one task."""
    parts = -(-rows // ROWS_OF_A_TASK)
    start = (F.col("id") * ROWS_OF_A_TASK).alias("start")
    return spark.range(0, parts, 1, max(parts, 1)).select(start, F.lit(ROWS_OF_A_TASK).alias("count"))


STAGE = "embed_text"
# Sends the requests of a stage for rows, and keeps some of their columns: `Tools.ask`, or `ask` of a runner
Ask = Callable[[str, DataFrame, tuple[str, ...]], DataFrame]


def embed(ask: Ask, rows: DataFrame, kind: str, key: str) -> DataFrame:
    """Return `key`, vector array<float> of length 1, request_id, error_type, error.

    rows: `key` and text. kind: `query` or `document`.
    """
    wanted = rows.select(key, "text", F.lit(kind).alias("kind"))
    return ask(STAGE, wanted, (key,)).select(key, "vector", *OUTCOME)


WEB = "web_search"
# Half of a SHA-256. Two of a billion texts do not share it
KEY_CHARACTERS = 32
# The length of an average English word with a space
WORD = "wordly "
# A noncharacter of Unicode, so that an assumed chunk has no completion in the store
MARK = "\uffff"
# One row per hit. `stage` is the failed stage of a query without hits
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
    """Return the key of the text of a query."""
    return F.substring(F.sha2(F.col(column), 256), 1, KEY_CHARACTERS)


def stages_of_knowledge(settings: Settings) -> tuple[str, ...]:
    """Return the stages that a lookup needs under these settings."""
    if settings.knowledge.source == "web":
        return (WEB,)
    return () if settings.knowledge.retriever == "bm25" else (STAGE,)


def open_knowledge(settings: Settings, stages: Mapping[str, Stage]) -> Catalog | None:
    """Return the index of the settings, None for other sources. Raises UnusableIndexError for an unusable index.

    Its digest is part of the identity of an output, so it is opened before the first request.
    """
    if settings.knowledge.source != "index":
        return None
    if settings.knowledge.index is None:
        raise UnusableIndexError("knowledge.source=index needs an index. Use --set knowledge.index=DIR")
    place = absolute(settings.knowledge.index)
    catalog = open_catalog(place)
    if STAGE in stages:
        check_model(place, catalog, stages[STAGE].digest)
    return catalog


def assumed_results() -> dict[str, Mapping[str, Column]]:
    """Return the assumed results of these stages for a plan: nothing, because `assumed_hits` has the hits."""
    hits = "array<struct<id: string, text: string>>"
    return {STAGE: {"vector": F.lit(None).cast("array<float>")}, WEB: {"hits": F.lit(None).cast(hits)}}


def assumed_hits(rows: DataFrame, settings: Settings, k: int | None) -> DataFrame:
    """Return `rows` with the largest number of hits, each with the length of the longest chunk."""
    most = k or settings.knowledge.top_k
    ranked = rows.withColumn("rank", F.explode(F.sequence(F.lit(1), F.lit(most))))
    # Requests with equal texts are sent once, but two queries may find different chunks
    number = F.concat_ws(MARK, F.hex(F.xxhash64("query")), F.col("rank").cast("string"))
    text = F.concat(F.repeat(F.lit(WORD), settings.index.chunk_words), F.lit(MARK), number)
    given = {"rank": F.col("rank"), "chunk_id": F.concat(F.lit(MARK), F.col("rank").cast("string")), "text": text}
    hits = [given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in FOUND.items()]
    return ranked.select(*rows.columns, *hits)


def context_chunks(samples: DataFrame, settings: IndexSettings) -> DataFrame:
    """Return the columns of `CONTEXT_CHUNKS`, one row per chunk.

    samples: sample_id, contexts array<struct<id, text>>.
    """
    contexts = samples.select("sample_id", F.explode("contexts").alias("context")).select(
        "sample_id", F.col("context.id").alias("document_id"), F.col("context.text").alias("text")
    )
    return map_rows(contexts, chunk_contexts, words=settings.chunk_words, overlap=settings.chunk_overlap)


class SearchError(UserError):
    """A damaged index, or queries without vectors. The message has the remedy."""


def search_index(steps: Workspace, ask: Ask, task: SearchTask, queries: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the hits, and the queries without a vector (query, request_id, error_type, error).

    queries: query (a key) and text, each text once. Hits: query, rank (long, from 1), chunk_id, similarity,
    document_id, title, url, text. Raises SearchError for a damaged index.
    """
    embedded, lost = _embed_queries(steps, ask, task, queries)
    spread = embedded.repartition(task_slots(steps.spark), "query")
    found = spread.mapInArrow(partial(search_table, task=task), spark_schema(SEARCHED))
    damage = Counted({"error": F.max("error")})
    hits = steps.keep(found, "hits", damage)
    if damage["error"] is not None:
        raise SearchError(damage["error"])
    return hits.drop("error"), lost


def _embed_queries(steps: Workspace, ask: Ask, task: SearchTask, queries: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return query, text and vector of the searchable queries, and the other queries."""
    if "dense" not in task.retrievers:
        nothing = ", ".join(f"{name} string" for name in ("query", *OUTCOME))
        return queries.select("query", "text"), steps.spark.createDataFrame([], nothing)
    vectors = steps.keep(embed(ask, queries, "query", "query"), "vectors")
    has = F.col("error_type").isNull()
    found = queries.join(vectors.where(has).select("query", "vector"), on="query", how="inner")
    return found.select("query", "text", "vector"), vectors.where(~has).drop("vector")


def distinct_queries(queries: DataFrame, column: str) -> DataFrame:
    """Return query (a key) and text: each text of a column once."""
    return queries.select(query_key(column).alias("query"), F.col(column).alias("text")).dropDuplicates(["query"])


@dataclass(frozen=True)
class Knowledge:
    """Look up queries for the metrics of a run. `samples`: sample_id, contexts; `catalog`: knowledge.index."""

    settings: Settings
    steps: Workspace
    ask: Ask
    samples: DataFrame
    catalog: Catalog | None = None

    def retrieve(self, rows: DataFrame, k: int | None = None) -> DataFrame:
        """Return the columns of `rows`, and `FOUND`: one row per hit, with the rank from 1.

        rows: query, sample_id for the source `contexts`, and any other columns. A row without hits has one row of
        nulls. A row with a failed or missing request has one row with stage, request_id, error_type and error per
        request. `k` is knowledge.top_k by default.
        """
        most = k or self.settings.knowledge.top_k
        source = self.settings.knowledge.source
        keyed = rows.withColumn("key", query_key("query"))
        keys = ["sample_id", "key"] if source == "contexts" else ["key"]
        looks = {"index": self._in_index, "web": self._on_the_web, "contexts": self._in_contexts}
        look = looks[source or "contexts"]
        found, lost = (one.select(*keys, *(_of(one, name) for name in FOUND)) for one in look(keyed, most))
        return self.steps.keep(keyed.join(found.unionByName(lost), on=keys, how="left").drop("key"), "retrieved")

    @property
    def _retrievers(self) -> tuple[str, ...]:
        return retrievers_of(self.settings.knowledge.retriever)

    def _in_index(self, rows: DataFrame, k: int) -> tuple[DataFrame, DataFrame]:
        """Return key and hits in the index, and key and the failures."""
        own = self.settings.knowledge
        assert self.catalog is not None
        assert own.index is not None
        # Tasks may run in other folders than the command
        index = absolute(own.index)
        task = SearchTask(index, self.catalog.version, self._retrievers, k, self.settings.index.nprobe)
        found, lost = search_index(self.steps, self.ask, task, distinct_queries(rows, "query"))
        stage = F.lit(STAGE).alias("stage")
        return found.withColumnRenamed("query", "key"), lost.select(F.col("query").alias("key"), stage, *OUTCOME)

    def _on_the_web(self, rows: DataFrame, k: int) -> tuple[DataFrame, DataFrame]:
        """Return key and hits of the web search, in its order, and key and the failures."""
        asked = distinct_queries(rows, "query").select(F.col("query").alias("key"), F.col("text").alias("query"))
        answered = self.ask(WEB, asked.withColumn("count", F.lit(k)), ("key",))
        hits = answered.select("key", F.posexplode("hits").alias("position", "hit"))
        rank = (F.col("position") + 1).cast("long").alias("rank")
        names = [F.col("hit.id").alias(name) for name in ("chunk_id", "document_id", "url")]
        found = hits.where(F.col("position") < k).select("key", rank, *names, F.col("hit.text").alias("text"))
        failed = answered.where(F.col("error_type").isNotNull())
        return found, failed.select("key", F.lit(WEB).alias("stage"), *OUTCOME)

    def _in_contexts(self, rows: DataFrame, k: int) -> tuple[DataFrame, DataFrame]:
        """Return sample_id, key and hits in the sample's own contexts, and sample_id, key and the failures."""
        queries = self.steps.keep(rows.select("sample_id", "key", F.col("query").alias("text")).distinct(), "queries")
        chunks = self._chunks(queries)
        texts, asked = self._vectors(chunks, "document", "text_id"), self._vectors(queries, "query", "key")
        pieces = self.steps.keep(chunks.join(texts, on="text_id", how="left"), "pieces")
        wanted = self.steps.keep(queries.join(asked, on="key", how="left"), "wanted")
        has = F.col("error_type").isNull()
        chunk = F.struct("chunk_id", "document_id", "text", "vector")
        query = F.struct(F.col("key").alias("query"), "text", "vector")
        by_sample = pieces.where(has).groupBy("sample_id").agg(F.collect_list(chunk).alias("chunks"))
        with_queries = wanted.where(has).groupBy("sample_id").agg(F.collect_list(query).alias("queries"))
        broken = _missing(pieces.where(~has), "sample_id")
        # A sample with a chunk without a vector is not searched at all
        both = by_sample.join(with_queries, on="sample_id", how="inner").join(broken, on="sample_id", how="left_anti")
        ranked = map_rows(both, rank_contexts, k=k, retrievers=self._retrievers)
        found = ranked.withColumnRenamed("query", "key")
        of_chunks = queries.select("sample_id", "key").join(broken, on="sample_id", how="inner")
        return found, of_chunks.unionByName(_missing(wanted.where(~has), "sample_id", "key"))

    def _chunks(self, queries: DataFrame) -> DataFrame:
        """Return the chunks of the contexts of the samples with queries."""
        with_queries = self.samples.join(queries.select("sample_id").distinct(), on="sample_id", how="left_semi")
        return self.steps.keep(context_chunks(with_queries, self.settings.index), "context-chunks")

    def _vectors(self, rows: DataFrame, kind: str, key: str) -> DataFrame:
        """Return key, vector and outcome of each distinct text. They are null if no retriever compares vectors."""
        distinct = rows.select(key, "text").dropDuplicates([key])
        if "dense" in self._retrievers:
            return embed(self.ask, distinct, kind, key)
        nothing = [F.lit(None).cast("string").alias(name) for name in OUTCOME]
        return distinct.select(key, F.lit(None).cast("array<float>").alias("vector"), *nothing)


def _missing(rows: DataFrame, *keys: str) -> DataFrame:
    """Return the keys, the stage and the outcome of each missing request. Unsent requests count as one."""
    request = F.when(has_failed(), F.col("request_id")).alias("request_id")
    return rows.select(*keys, F.lit(STAGE).alias("stage"), request, "error_type", "error").distinct()


def _of(frame: DataFrame, name: str) -> Column:
    """Return a column of `FOUND`, null if the frame lacks it."""
    column = F.col(name) if name in frame.columns else F.lit(None)
    return column.cast(FOUND[name]).alias(name)
