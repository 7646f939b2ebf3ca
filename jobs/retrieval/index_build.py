"""Build and grow the shards of an index: keep what is unchanged, bury what is gone, cut, embed and write what is new.

Each step is a table of the run's workspace. Names of shards are known before their files, so that a build that was
killed goes on behind the last shard that it finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from untold.jobs.inputs.samples import fingerprint
from untold.jobs.retrieval.sources import STAGE, Ask, embed
from untold.jobs.run.folders import Counted, Workspace
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.sections import IndexSettings
from untold.jobs.tables import FAILURES
from untold.udfs.errors import UserError
from untold.udfs.retrieval import building, catalog
from untold.udfs.retrieval.building import BUILT, BURIED, LIVING, NAMED, Spread, describe_shard, starts_of
from untold.udfs.retrieval.catalog import CHUNKS, Catalog, IndexParameters, ShardEntry, with_dead
from untold.udfs.retrieval.dense import TRAINED_ON, count_lists
from untold.udfs.stages.arrow import UNASKED

# A shard is dissolved once so much of it is dead: until then its dead are passed over at little cost
DEAD_SHARE = 0.1


@dataclass(frozen=True)
class IndexDiff:
    """What stays of an index: shards by name, how many chunks of each die now, and of each chunk whether it lives.

    `states`: name, position, document_id, stays. `damaged`: why some shards cannot stay, a line each.
    """

    shards: Mapping[str, ShardEntry] = field(default_factory=dict)
    dying: Mapping[str, int] = field(default_factory=dict)
    states: DataFrame | None = None
    damaged: tuple[str, ...] = ()

    @property
    def chunks(self) -> int:
        """The chunks that stay."""
        return sum(shard.chunks - shard.dead - self.dying.get(name, 0) for name, shard in self.shards.items())


def find_kept(steps: Workspace, index: str, cache: str, before: Catalog | None, documents: DataFrame) -> IndexDiff:
    """What of an index stays under these documents (document_id, content).

    Shards that are damaged do not stay, nor those of which `DEAD_SHARE` is dead: their documents are new again.
    """
    if before is None or not before.shards:
        return IndexDiff()
    numbered = _number(steps, before.shards)
    shards = numbered.repartitionById(len(before.shards), "task").select("name", "tombstones")
    damage = Counted({"errors": F.collect_set("error")})
    listing = partial(building.list_living, index=index, cache=cache)
    living = steps.keep(shards.mapInArrow(listing, spark_schema(LIVING)), "living", damage)
    there = documents.select("document_id", "content", F.lit(True).alias("there"))
    stays = F.coalesce("there", F.lit(False)).alias("stays")
    joined = living.join(there, on=["document_id", "content"], how="left")
    columns = ("name", "position", "document_id", "chunks", "error")
    states = steps.keep(joined.select(*columns, stays), "states")
    found = _count(states)
    whole = {shard.name: shard for shard in before.shards if shard.name in found and not found[shard.name]["error"]}
    kept = {
        name: shard for name, shard in whole.items() if shard.dead + found[name]["dying"] < DEAD_SHARE * shard.chunks
    }
    if len(kept) < len(before.shards):
        states = steps.keep(_with_whole_documents(states, kept), "whole-documents")
        found = _count(states)
    return IndexDiff(kept, {name: found[name]["dying"] for name in kept}, states, tuple(sorted(damage["errors"])))


def _count(states: DataFrame) -> Mapping[str, Row]:
    """By the name of a shard how many of its chunks die, and what is wrong with it."""
    counts = states.groupBy("name").agg(F.count_if(~F.col("stays")).alias("dying"), F.max("error").alias("error"))
    return {row["name"]: row for row in counts.collect()}


def _with_whole_documents(states: DataFrame, kept: Iterable[str]) -> DataFrame:
    """The states, where a document of which some chunks lie in shards that go stays in none: it is made anew whole."""
    there = states.where(F.col("stays") & _is_of(kept)).groupBy("document_id")
    whole = there.agg((F.count(F.lit(1)) == F.max("chunks")).alias("whole"))
    joined = states.join(whole, on="document_id", how="left")
    stays = F.col("stays") & F.coalesce("whole", F.lit(False))
    return joined.withColumn("stays", stays).select(*states.columns)


def exclude_unchanged(documents: DataFrame, kept: IndexDiff) -> DataFrame:
    """The documents that are in no shard that stays."""
    if kept.states is None:
        return documents
    there = kept.states.where(F.col("stays") & _is_of(kept.shards))
    return documents.join(there.select("document_id").distinct(), on="document_id", how="left_anti")


def write_tombstones(steps: Workspace, index: str, cache: str, kept: IndexDiff) -> list[ShardEntry]:
    """The shards that stay, with tombstones for what of them counts no more."""
    dying = {name for name, count in kept.dying.items() if count}
    if kept.states is None or not dying:
        return list(kept.shards.values())
    before = _number(steps, [kept.shards[name] for name in sorted(dying)])
    gone = kept.states.where(~F.col("stays") & _is_of(dying)).groupBy("name")
    positions = gone.agg(F.array_sort(F.collect_list("position")).alias("positions"))
    given = F.broadcast(before).join(positions, on="name", how="inner").repartitionById(len(dying), "task")
    write = partial(building.write_tombstones, index=index, cache=cache)
    written = given.select("name", "tombstones", "positions").mapInArrow(write, spark_schema(BURIED)).collect()
    buried = {row["name"]: with_dead(kept.shards[row["name"]], *row[1:]) for row in written}
    return [buried.get(name, shard) for name, shard in kept.shards.items()]


def _number(steps: Workspace, shards: Sequence[ShardEntry]) -> DataFrame:
    """task, name, tombstones: each shard with the number of a task of its own; round robin could give one several."""
    rows = [(number, shard.name, shard.tombstones) for number, shard in enumerate(shards)]
    return steps.spark.createDataFrame(rows, "task int, name string, tombstones string")


def _is_of(names: Iterable[str]) -> Column:
    return F.col("name").isin(sorted(names))


# Sixteen bits of a hash: few enough counts for a driver, and buckets of some 1,500 chunks in a corpus of 10^8
BUCKET_DIGITS = 4


class CorpusError(UserError):
    """A corpus that makes no index. The message says what to do."""


@dataclass(frozen=True)
class IndexBuild:
    """What became of a corpus: the index, and rows of `failures` of documents that are not in it.

    `catalog` None: asking for vectors ended before all were there, or there is nothing to search in, as `nothing` says
    in one line. `failed`: documents; `new`: chunks that are in no shard from before; `built`: shards that were written.
    `damaged`: a line each shard that was made anew for it.
    """

    catalog: Catalog | None
    failures: DataFrame
    failed: int
    new: int = 0
    built: int = 0
    damaged: tuple[str, ...] = ()
    nothing: str | None = None


@dataclass(frozen=True)
class _Embedded:
    """Chunks of which every text has a vector, the vectors (text_id, vector, ...), and documents that failed."""

    chunks: DataFrame
    vectors: DataFrame
    failures: DataFrame
    failed: int
    waiting: int


@dataclass(frozen=True)
class Maker:
    """Makes and grows an index. `model`: the identity of the vectors that `ask` gives; `cache`: for remote shards."""

    steps: Workspace
    index: str
    settings: IndexSettings
    model: str
    ask: Ask
    cache: str

    def make(self, documents: DataFrame, count: int, before: Catalog | None) -> IndexBuild:
        """The index of so many documents (document_id, title, url, text, content), grown from the one before.

        Raises CorpusError for a corpus without a word.
        """
        if before is not None and not building.is_begun(self.index, before.making):
            # Without what its shards began as none can be added; the same ones are found again by their names
            before = None
        kept = find_kept(self.steps, self.index, self.cache, before, documents)
        chunks = self._cut(exclude_unchanged(documents, kept))
        if before is not None and self._outgrows(before, kept, chunks):
            # Every vector moves into a list: no shard can stay, but nothing is embedded twice
            before, kept, chunks = None, IndexDiff(damaged=kept.damaged), self._cut(documents)
        new = self.steps.count(chunks)
        if not kept.chunks + new:
            raise CorpusError("cannot build an index, because no document of the corpus has a word")
        embedded = self._embed(chunks)
        if embedded.waiting:
            return IndexBuild(None, embedded.failures, embedded.failed, damaged=kept.damaged)
        making = before.making if before is not None and kept.shards else self._begin(embedded)
        shards = {} if making is None else self._build(making, embedded)
        found = {shard.name: shard for shard in write_tombstones(self.steps, self.index, self.cache, kept)} | shards
        if making is None or not found:
            nothing = "no index was built, because no text of the corpus could be embedded. See the table failures"
            return IndexBuild(None, embedded.failures, embedded.failed, damaged=kept.damaged, nothing=nothing)
        catalog = Catalog(making, count - embedded.failed, tuple(found[name] for name in sorted(found)))
        return IndexBuild(catalog, embedded.failures, embedded.failed, new, len(shards), kept.damaged)

    def _cut(self, documents: DataFrame) -> DataFrame:
        """The chunks of documents: the columns of `CHUNKS`."""
        cut = partial(catalog.chunk_documents, words=self.settings.chunk_words, overlap=self.settings.chunk_overlap)
        wanted = documents.select("document_id", "title", "url", "content", "text")
        return self.steps.keep(wanted.mapInArrow(cut, spark_schema(CHUNKS)), "chunks")

    def _outgrows(self, before: Catalog, kept: IndexDiff, chunks: DataFrame) -> bool:
        """Whether an exact index becomes one of lists."""
        return not before.making.lists and kept.chunks + self.steps.count(chunks) > self.settings.exact_chunks

    def _embed(self, chunks: DataFrame) -> _Embedded:
        """The chunks with their vectors; documents of which one has none are left out whole."""
        texts = chunks.select("text_id", "text").dropDuplicates(["text_id"])
        counts = Counted({"failed": F.count_if(_has_failed()), "waiting": F.count_if(_is_waiting())})
        vectors = self.steps.keep(embed(self.ask, texts, "document", "text_id"), "vectors", counts)
        if not counts["failed"]:
            nothing = self.steps.spark.createDataFrame([], spark_schema(FAILURES))
            return _Embedded(chunks, vectors, nothing, 0, counts["waiting"])
        wrong = chunks.select("document_id", "text_id").join(vectors.where(_has_failed()), on="text_id", how="inner")
        failures = self.steps.keep(wrong.select(*_failure_columns()).distinct(), "failures")
        documents = failures.select(F.col("sample_id").alias("document_id")).distinct()
        whole = self.steps.keep(chunks.join(documents, on="document_id", how="left_anti"), "whole")
        return _Embedded(whole, vectors, failures, documents.count(), counts["waiting"])

    def _begin(self, embedded: _Embedded) -> IndexParameters | None:
        """How a first build is made, and the file that every shard of it begins as; None without a vector."""
        total = self.steps.count(embedded.chunks)
        vectors = embedded.vectors.where(F.col("vector").isNotNull())
        first = vectors.select(F.size("vector")).first()
        if first is None or not total:
            return None
        lists = count_lists(total) if total > self.settings.exact_chunks else 0
        # The texts with the smallest hashes: a draw that needs no order of the corpus
        least = vectors.select("text_id", "vector").orderBy("text_id").limit(TRAINED_ON * lists)
        drawn = self.steps.keep(least, "trained-on")
        if self.steps.count(drawn) < lists:
            # Fewer texts than lists: k-means needs one a list, and a codec some beside the centre to learn from
            lists = max(self.steps.count(drawn) // TRAINED_ON, 1)
        codec = self.settings.codec if lists else "flat"
        training = fingerprint(drawn.select("text_id")) if lists else ""
        cut = (self.settings.chunk_words, self.settings.chunk_overlap)
        making = IndexParameters(*cut, self.model, codec, lists, training, dimension=int(first[0]))
        if not building.is_begun(self.index, making):
            write = partial(building.write_coarse, index=self.index, making=making, vectors=self.steps.count(drawn))
            if lists:
                # One task: k-means is one loop over all that it learns from
                ordered = drawn.coalesce(1).sortWithinPartitions("text_id")
                ordered.mapInArrow(write, "bytes long").collect()
            else:
                # Nothing to learn, and of no rows Spark makes no task
                list(write([]))
        return making

    def _build(self, making: IndexParameters, embedded: _Embedded) -> dict[str, ShardEntry]:
        """The new shards by name; those that a killed build finished are taken as they are."""
        chunks = self.steps.keep(self._spread(embedded.chunks), "spread")
        spread = Spread(self.steps.count(chunks), self.settings.chunks_per_shard)
        if not spread.chunks:
            return {}
        naming = partial(building.name_shards, making=str(making))
        named = _by_shard(chunks, spread.shards).mapInArrow(naming, spark_schema(NAMED)).collect()
        names = {row["shard"]: row["name"] for row in named}
        there = {shard: describe_shard(self.index, name) for shard, name in names.items()}
        missing = [shard for shard, found in there.items() if found is None]
        entries = [ShardEntry(**found) for found in there.values() if found is not None]
        if missing:
            entries += self._write(chunks.where(F.col("shard").isin(missing)), embedded.vectors, names, spread)
        return {entry.name: entry for entry in entries}

    def _write(self, chunks: DataFrame, vectors: DataFrame, names: dict[int, str], spread: Spread) -> list[ShardEntry]:
        """Writes shards, each in one task."""
        rows = chunks.join(vectors.select("text_id", "vector"), on="text_id", how="inner")
        columns = ["shard", *CHUNKS.names, "vector"]
        write = partial(building.build_shards, index=self.index, names=names)
        written = _by_shard(rows.select(*columns), spread.shards).mapInArrow(write, spark_schema(BUILT))
        return [ShardEntry(**row.asDict()) for row in written.collect()]

    def _spread(self, chunks: DataFrame) -> DataFrame:
        """The chunks, each with its shard: in the order of their documents' hashes, cut into equal parts.

        By rank and not by remainder, so that no shard has more than it may; the order needs no sort of everything.
        """
        spread = Spread(self.steps.count(chunks), self.settings.chunks_per_shard)
        if spread.shards <= 1:
            return chunks.withColumn("shard", F.lit(0))
        key = F.sha2("document_id", 256)
        bucket = F.conv(F.substring(key, 1, BUCKET_DIGITS), 16, 10).cast(T.IntegerType())
        keyed = chunks.withColumns({"key": key, "bucket": bucket})
        counts = {row["bucket"]: row["count"] for row in keyed.groupBy("bucket").count().collect()}
        starts = self.steps.spark.createDataFrame(starts_of(counts), "bucket int, start long")
        within = Window.partitionBy("bucket").orderBy("key", "chunk_id")
        rank = F.col("start") + F.row_number().over(within) - 1
        ranked = keyed.join(F.broadcast(starts), on="bucket", how="inner").withColumn("rank", rank)
        shard = F.floor(F.col("rank") / F.lit(spread.size)).cast(T.IntegerType())
        return ranked.withColumn("shard", shard).select(*chunks.columns, "shard")


def _by_shard(rows: DataFrame, shards: int) -> DataFrame:
    """The rows with each shard in one task, in the order of its chunks."""
    return rows.repartitionById(shards, F.col("shard")).sortWithinPartitions("shard", "chunk_id")


def _is_waiting() -> Column:
    return F.coalesce(F.col("error_type") == UNASKED, F.lit(False))


def _has_failed() -> Column:
    return F.col("error_type").isNotNull() & ~_is_waiting()


def _failure_columns() -> list[Column]:
    """Columns of the table `failures` for documents: whose text has no vector, and why."""
    own = {"sample_id": F.col("document_id"), "metric": F.lit(None).cast("string"), "stage": F.lit(STAGE)}
    return [own.get(name, F.col(name)).alias(name) for name in FAILURES.names]
