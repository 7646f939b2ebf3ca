"""Queries to ranked chunks of an index, over DataFrames: every shard is a task, and what they find is merged."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.retrieval.sources import query_key
from untold.jobs.retrieval.vectors import OUTCOME, Ask, embed
from untold.jobs.run.session import spark_schema
from untold.jobs.run.workspace import Counted, Workspace, write_parquet
from untold.udfs.errors import UserError
from untold.udfs.retrieval import searching
from untold.udfs.retrieval.catalog import Catalog
from untold.udfs.retrieval.dense import Probing
from untold.udfs.retrieval.searching import FREQUENCIES, HITS, MERGED, READ, Searching


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
        asked = Searching(
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

    def _frequencies(self, asked: Searching, queries: DataFrame) -> str:
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
