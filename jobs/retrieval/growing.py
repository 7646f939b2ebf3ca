"""What of an index stays when its corpus changed: documents that are there as they were, and which chunks die."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from untold.jobs.run.session import spark_schema
from untold.jobs.run.workspace import Counted, Workspace
from untold.udfs.retrieval import building
from untold.udfs.retrieval.building import BURIED, LIVING
from untold.udfs.retrieval.catalog import Catalog, ShardEntry, with_dead

# A shard is dissolved once so much of it is dead: until then its dead are passed over at little cost
DEAD_SHARE = 0.1


@dataclass(frozen=True)
class Kept:
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


def find_kept(steps: Workspace, index: str, cache: str, before: Catalog | None, documents: DataFrame) -> Kept:
    """What of an index stays under these documents (document_id, content).

    Shards that are damaged do not stay, nor those of which `DEAD_SHARE` is dead: their documents are new again.
    """
    if before is None or not before.shards:
        return Kept()
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
    return Kept(kept, {name: found[name]["dying"] for name in kept}, states, tuple(sorted(damage["errors"])))


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


def without_kept(documents: DataFrame, kept: Kept) -> DataFrame:
    """The documents that are in no shard that stays."""
    if kept.states is None:
        return documents
    there = kept.states.where(F.col("stays") & _is_of(kept.shards))
    return documents.join(there.select("document_id").distinct(), on="document_id", how="left_anti")


def bury(steps: Workspace, index: str, cache: str, kept: Kept) -> list[ShardEntry]:
    """The shards that stay, with tombstones for what of them counts no more."""
    dying = {name for name, count in kept.dying.items() if count}
    if kept.states is None or not dying:
        return list(kept.shards.values())
    before = _number(steps, [kept.shards[name] for name in sorted(dying)])
    gone = kept.states.where(~F.col("stays") & _is_of(dying)).groupBy("name")
    positions = gone.agg(F.array_sort(F.collect_list("position")).alias("positions"))
    given = F.broadcast(before).join(positions, on="name", how="inner").repartitionById(len(dying), "task")
    write = partial(building.bury, index=index, cache=cache)
    written = given.select("name", "tombstones", "positions").mapInArrow(write, spark_schema(BURIED)).collect()
    buried = {row["name"]: with_dead(kept.shards[row["name"]], *row[1:]) for row in written}
    return [buried.get(name, shard) for name, shard in kept.shards.items()]


def _number(steps: Workspace, shards: Sequence[ShardEntry]) -> DataFrame:
    """task, name, tombstones: each shard with the number of a task of its own; round robin could give one several."""
    rows = [(number, shard.name, shard.tombstones) for number, shard in enumerate(shards)]
    return steps.spark.createDataFrame(rows, "task int, name string, tombstones string")


def _is_of(names: Iterable[str]) -> Column:
    return F.col("name").isin(sorted(names))
