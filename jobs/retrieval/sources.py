"""The sources of knowledge of a run: an index, the web, or the contexts of the sample."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import has_failed
from untold.jobs.run.folders import Counted, Workspace, write_parquet
from untold.jobs.run.manifest import read_manifest
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.jobs.settings.sections import IndexSettings
from untold.udfs.errors import UserError
from untold.udfs.llm.keys import Stage
from untold.udfs.retrieval import searching
from untold.udfs.retrieval.catalog import CONTEXT_CHUNKS, Catalog, chunk_contexts, read_catalog
from untold.udfs.retrieval.dense import Probing
from untold.udfs.retrieval.searching import FREQUENCIES, HITS, MERGED, RANKED, READ, SearchTask, rank_contexts
from untold.udfs.storage import absolute


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
        raise UnusableIndexError(f"{index} has no index. Build one with untold index --input CORPUS --output {index}")
    try:
        found = catalog_in(manifest)
    except (KeyError, TypeError) as error:
        raise UnusableIndexError(f"{index}/manifest.json is damaged; build the index again with --overwrite") from error
    if found is None:
        raise UnusableIndexError(f"{index} has an incomplete index; start untold index again to continue")
    return found


def check_model(index: str, catalog: Catalog, model: str) -> None:
    """Raises UnusableIndexError for vectors of another model, which could be compared with nothing."""
    if catalog.making.model != model:
        raise UnusableIndexError(
            f"{index} was built with another embedding model or other embedding settings. "
            "Restore embeddings.*, or search with --retriever bm25"
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
        raise UnusableIndexError("knowledge.source=index needs an index. Use --set knowledge.index=DIR")
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


class SearchError(UserError):
    """A shard that cannot be searched, or queries without vectors. The message says what to do."""


@dataclass(frozen=True)
class Searcher:
    """Searches one index. `retriever`: dense, bm25 or hybrid; `probing`: how far a search by vectors looks."""

    steps: Workspace
    index: str
    catalog: Catalog
    ask: Ask
    cache: str
    k: int
    retriever: str = "dense"
    probing: Probing = field(default_factory=Probing)

    @property
    def retrievers(self) -> tuple[str, ...]:
        """The retrievers that are asked."""
        return ("dense", "bm25") if self.retriever == "hybrid" else (self.retriever,)

    def search(self, queries: DataFrame) -> tuple[DataFrame, DataFrame]:
        """The hits, and the queries that have no vector (query, request_id, error_type, error).

        queries: query (a key) and text, each text once. Hits: query, rank (long, from 1), chunk_id, similarity,
        document_id, title, url, text. Raises SearchError for a damaged shard, in its one line.
        """
        embedded, lost = self._embed(queries)
        asked = SearchTask(
            index=self.index,
            cache=self.cache,
            queries=self._kept(embedded, "queries"),
            retrievers=self.retrievers,
            k=self.k,
            probing=self.probing,
            tombstones={shard.name: shard.tombstones for shard in self.catalog.shards},
            chunks=self.catalog.chunks,
            mean_length=self.catalog.mean_length,
        )
        if "bm25" in self.retrievers:
            asked = replace(asked, frequencies=self._frequencies(asked, embedded))
        found = self._task_a_shard(partial(searching.search_shards, searching=asked), HITS, "hits")
        columns = ("retriever", "similarity", "chunk_id", "shard", "position")
        lists = found.groupBy("query").agg(F.collect_list(F.struct(*columns)).alias("hits"))
        merged = lists.mapInArrow(partial(searching.merge_hits, k=self.k, fused=asked.fused), spark_schema(MERGED))
        by_shard = merged.repartition("shard").sortWithinPartitions("shard")
        read = by_shard.mapInArrow(partial(searching.read_hits, searching=asked), spark_schema(READ))
        return self._checked(read, "read"), lost

    def _embed(self, queries: DataFrame) -> tuple[DataFrame, DataFrame]:
        """query, text, vector of the queries that can be asked, and those that cannot."""
        if "dense" not in self.retrievers:
            nothing = ", ".join(f"{name} string" for name in ("query", *OUTCOME))
            return queries, self.steps.spark.createDataFrame([], nothing)
        vectors = self.steps.keep(embed(self.ask, queries, "query", "query"), "vectors")
        has = F.col("error_type").isNull()
        asked = queries.join(vectors.where(has).select("query", "vector"), on="query", how="inner")
        return asked, vectors.where(~has).drop("vector")

    def _frequencies(self, asked: SearchTask, queries: DataFrame) -> str:
        """Where it is written in how many living chunks each term of the queries is."""
        terms = queries.select("text").mapInArrow(searching.terms_of, "term string").distinct()
        path = self._kept(terms, "terms")
        counting = partial(searching.count_terms, searching=asked, terms=path)
        counted = self._task_a_shard(counting, FREQUENCIES, "counted")
        return self._kept(counted.groupBy("term").agg(F.sum("frequency").alias("frequency")), "frequencies")

    def _task_a_shard(self, work: object, schema: pa.Schema, name: str) -> DataFrame:
        """What a function of the names of shards gives for all of them, each in a task of its own."""
        names = [(number, shard.name) for number, shard in enumerate(self.catalog.shards)]
        # By number: round robin begins anywhere in each partition, so that tasks would have several shards, or none
        numbered = self.steps.spark.createDataFrame(names, "task int, name string")
        shards = numbered.repartitionById(len(names), "task").select("name")
        return self._checked(shards.mapInArrow(work, spark_schema(schema)), name)  # type: ignore[arg-type]

    def _checked(self, frame: DataFrame, name: str) -> DataFrame:
        """The rows, kept, without the column error. Raises SearchError where one of them has one."""
        damage = Counted({"error": F.max("error")})
        kept = self.steps.keep(frame, name, damage)
        if damage["error"] is not None:
            raise SearchError(damage["error"])
        return kept.drop("error")

    def _kept(self, frame: DataFrame, name: str) -> str:
        """Where the rows of a frame are written, for tasks to read as they need."""
        path = self.steps.path(name)
        write_parquet(frame, path)
        return path


def distinct_queries(queries: DataFrame, column: str) -> DataFrame:
    """query (a key) and text: each text of a column once."""
    return queries.select(query_key(column).alias("query"), F.col(column).alias("text")).dropDuplicates(["query"])


@dataclass(frozen=True)
class Knowledge:
    """Looks queries up for the metrics of a run. `samples`: sample_id, contexts; `catalog`: of a source `index`."""

    settings: Settings
    steps: Workspace
    ask: Ask
    samples: DataFrame
    catalog: Catalog | None = None

    def retrieve(self, rows: DataFrame, k: int | None = None) -> DataFrame:
        """The columns of `rows`, and `FOUND`: a row a hit, in the order of rank from 1.

        rows: query, of the source `contexts` sample_id too, and whatever else. A row that found nothing has one row of
        nulls; one whose looking up failed, or was not asked, has one with stage, request_id, error_type and error for
        each request that it lacks.
        `k` is knowledge.top_k where it is not given.
        """
        most = k or self.settings.knowledge.top_k
        source = self.settings.knowledge.source
        keyed = rows.withColumn("key", query_key("query"))
        keys = ["sample_id", "key"] if source == "contexts" else ["key"]
        looks = {"index": self._in_index, "web": self._on_the_web, "contexts": self._in_contexts}
        look = looks[source or "contexts"]
        found, lost = look(keyed, most)
        columns = [*(F.col(name) for name in keys), *(_of(found, name) for name in FOUND)]
        missed = [*(F.col(name) for name in keys), *(_of(lost, name) for name in FOUND)]
        everything = found.select(*columns).unionByName(lost.select(*missed))
        return self.steps.keep(keyed.join(everything, on=keys, how="left").drop("key"), "retrieved")

    @property
    def _retrievers(self) -> Sequence[str]:
        retriever = self.settings.knowledge.retriever
        return ("dense", "bm25") if retriever == "hybrid" else (retriever,)

    def _in_index(self, rows: DataFrame, k: int) -> tuple[DataFrame, DataFrame]:
        """key and hits in the index, key and what failed."""
        settings = self.settings
        assert self.catalog is not None
        assert settings.knowledge.index is not None
        searcher = Searcher(
            self.steps,
            # Tasks may run in other folders than the command
            absolute(settings.knowledge.index),
            self.catalog,
            self.ask,
            cache_of(settings),
            k,
            settings.knowledge.retriever,
            Probing(settings.index.nprobe),
        )
        found, lost = searcher.search(distinct_queries(rows, "query"))
        stage = F.lit(STAGE).alias("stage")
        return found.withColumnRenamed("query", "key"), lost.select(F.col("query").alias("key"), stage, *OUTCOME)

    def _on_the_web(self, rows: DataFrame, k: int) -> tuple[DataFrame, DataFrame]:
        """key and hits of the web search, in its order; key and what failed."""
        asked = distinct_queries(rows, "query").select(F.col("query").alias("key"), F.col("text").alias("query"))
        answered = self.ask(WEB, asked.withColumn("count", F.lit(k)), ("key",))
        hits = answered.select("key", F.posexplode("hits").alias("position", "hit"))
        rank = (F.col("position") + 1).cast("long").alias("rank")
        names = [F.col("hit.id").alias(name) for name in ("chunk_id", "document_id", "url")]
        found = hits.where(F.col("position") < k).select("key", rank, *names, F.col("hit.text").alias("text"))
        failed = answered.where(F.col("error_type").isNotNull())
        return found, failed.select("key", F.lit(WEB).alias("stage"), *OUTCOME)

    def _in_contexts(self, rows: DataFrame, k: int) -> tuple[DataFrame, DataFrame]:
        """sample_id, key and hits in the sample's own contexts; sample_id, key and what failed."""
        queries = self.steps.keep(rows.select("sample_id", "key", F.col("query").alias("text")).distinct(), "queries")
        chunks = self._chunks(queries)
        texts, asked = (
            self._vectors(chunks, "document", "text_id"),
            self._vectors(queries, "query", "key"),
        )
        pieces = self.steps.keep(chunks.join(texts, on="text_id", how="left"), "pieces")
        wanted = self.steps.keep(queries.join(asked, on="key", how="left"), "wanted")
        has = F.col("error_type").isNull()
        chunk = F.struct("chunk_id", "document_id", "text", "vector")
        query = F.struct(F.col("key").alias("query"), "text", "vector")
        by_sample = pieces.where(has).groupBy("sample_id").agg(F.collect_list(chunk).alias("chunks"))
        with_queries = wanted.where(has).groupBy("sample_id").agg(F.collect_list(query).alias("queries"))
        broken = _missing(pieces.where(~has), "sample_id")
        # A sample with a chunk that has no vector is not looked through in part
        both = by_sample.join(with_queries, on="sample_id", how="inner").join(broken, on="sample_id", how="left_anti")
        rank = partial(rank_contexts, k=k, retrievers=self._retrievers)
        found = both.mapInArrow(rank, spark_schema(RANKED)).withColumnRenamed("query", "key")
        of_chunks = queries.select("sample_id", "key").join(broken, on="sample_id", how="inner")
        return found, of_chunks.unionByName(_missing(wanted.where(~has), "sample_id", "key"))

    def _chunks(self, queries: DataFrame) -> DataFrame:
        """The chunks of the contexts of the samples that ask something."""
        with_queries = self.samples.join(queries.select("sample_id").distinct(), on="sample_id", how="left_semi")
        return self.steps.keep(context_chunks(with_queries, self.settings.index), "context-chunks")

    def _vectors(self, rows: DataFrame, kind: str, key: str) -> DataFrame:
        """The key, vector and outcome of each distinct text; all null where no retriever compares vectors."""
        distinct = rows.select(key, "text").dropDuplicates([key])
        if "dense" in self._retrievers:
            return embed(self.ask, distinct, kind, key)
        nothing = [F.lit(None).cast("string").alias(name) for name in OUTCOME]
        return distinct.select(key, F.lit(None).cast("array<float>").alias("vector"), *nothing)


def _missing(rows: DataFrame, *keys: str) -> DataFrame:
    """The keys, stage, and what each of the requests that rows lack came to; all that were never asked as one."""
    request = F.when(has_failed(), F.col("request_id")).alias("request_id")
    return rows.select(*keys, F.lit(STAGE).alias("stage"), request, "error_type", "error").distinct()


def _of(frame: DataFrame, name: str) -> Column:
    """A column of `FOUND`; null where the frame has none."""
    column = F.col(name) if name in frame.columns else F.lit(None)
    return column.cast(FOUND[name]).alias(name)
