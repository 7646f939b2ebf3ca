"""What makes an index on Spark's workers: batches of Arrow to batches of Arrow, and files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from untold.udfs.retrieval import dense
from untold.udfs.retrieval.catalog import CHUNKS, COARSE, DEAD, MAKING, IndexParameters
from untold.udfs.retrieval.shards import (
    DamagedShardError,
    ShardFacts,
    ShardName,
    ShardWriter,
    coarse_of,
    groups_by,
    is_whole,
    open_shard,
    place_to_write,
    read_facts,
    rows_of,
    shard_folder,
    write_dead,
)
from untold.udfs.storage import StoragePath

NAMED = pa.schema([("shard", pa.int32()), ("name", pa.string()), ("chunks", pa.int64())])
BUILT = pa.schema(
    [("name", pa.string()), ("chunks", pa.int64()), ("texts", pa.int64()), ("tokens", pa.int64()), ("size", pa.int64())]
)
LIVING = pa.schema(
    [
        ("name", pa.string()),
        ("position", pa.int32()),
        *((name, pa.string()) for name in ("document_id", "content")),
        ("chunks", pa.int32()),
        ("error", pa.string()),
    ]
)
BURIED = pa.schema(
    [("name", pa.string()), ("tombstones", pa.string()), ("dead", pa.int64()), ("dead_tokens", pa.int64())]
)


def name_shards(batches: Iterable[pa.RecordBatch], making: str) -> Iterator[pa.RecordBatch]:
    """Columns of `NAMED`, a row a shard, from shard and the columns of `CHUNKS`, sorted by shard and chunk_id."""
    for shard, parts in groups_by(batches, "shard"):
        name = ShardName(making)
        for part in parts:
            for chunk in zip(*(part.column(column).to_pylist() for column in CHUNKS.names), strict=True):
                name.add(chunk)
        yield pa.RecordBatch.from_pylist([{"shard": shard, "name": str(name), "chunks": name.chunks}], NAMED)


def build_shards(batches: Iterable[pa.RecordBatch], index: str, names: Mapping[int, str]) -> Iterator[pa.RecordBatch]:
    """Columns of `BUILT`, a row a shard written into an index.

    batches: shard, the columns of `CHUNKS`, vector list<float>, sorted by shard and chunk_id. `names` by shard.
    """
    dense.use_one_thread()
    for shard, parts in groups_by(batches, "shard"):
        name = names[shard]
        with coarse_of(index) as coarse, place_to_write(index, name) as folder:
            with ShardWriter(folder, coarse) as writer:
                for part in parts:
                    writer.add(part)
                facts = writer.finish()
        yield pa.RecordBatch.from_pylist([_described(name, facts)], BUILT)


def describe_shard(index: str, name: str) -> dict[str, Any] | None:
    """A row of `BUILT` for a shard that is there and whole; None for any other."""
    folder = shard_folder(index, name)
    if not is_whole(folder):
        return None
    return _described(name, read_facts(folder))


def _described(name: str, facts: ShardFacts) -> dict[str, Any]:
    """A row of `BUILT`."""
    counts = {"chunks": facts.chunks, "texts": facts.texts, "tokens": facts.tokens}
    return {"name": name, **counts, "size": facts.size}


def write_coarse(
    batches: Iterable[pa.RecordBatch], index: str, making: IndexParameters, vectors: int
) -> Iterator[pa.RecordBatch]:
    """Writes the empty index that every shard begins as, trained on all vectors given where it has lists.

    batches: vector list<float>, so many as `vectors`, in the order that is to be trained on. Gives one row: `bytes`.
    """
    found = np.empty((vectors, making.dimension), np.float32)
    filled = 0
    for batch in batches:
        rows = rows_of(batch.column("vector"))
        found[filled : filled + len(rows)] = rows
        filled += len(rows)
    if making.lists:
        made = dense.train_lists(found[:filled], making.lists, making.codec)
    else:
        made = dense.make_exact(making.dimension)
    content = dense.bytes_of(made)
    (StoragePath(index) / COARSE).write_bytes(content)
    # After it: a file whose making is not said is made again
    (StoragePath(index) / MAKING).write_bytes(str(making).encode())
    yield pa.RecordBatch.from_pydict({"bytes": pa.array([len(content)], pa.int64())})


def is_begun(index: str, making: IndexParameters) -> bool:
    """Whether what every shard begins as is there, and was made in this way."""
    try:
        return (StoragePath(index) / MAKING).read_bytes() == str(making).encode()
    except OSError:
        return False


def list_living(batches: Iterable[pa.RecordBatch], index: str, cache: str) -> Iterator[pa.RecordBatch]:
    """Columns of `LIVING`: the living chunks of shards (name, tombstones), by their positions.

    A shard that is damaged is one row with `error` alone.
    """
    for batch in batches:
        for shard in batch.to_pylist():
            try:
                yield from _living_of(shard["name"], shard["tombstones"], index, cache)
            except DamagedShardError as error:
                yield pa.RecordBatch.from_pylist([{"name": shard["name"], "error": str(error)}], LIVING)


def _living_of(name: str, tombstones: str | None, index: str, cache: str) -> Iterator[pa.RecordBatch]:
    shard = open_shard(index, name, tombstones, cache)
    living = shard.is_living()
    for start, batch in shard.chunks(["document_id", "content", "chunks"]):
        positions = np.arange(start, start + batch.num_rows, dtype=np.int32)
        columns = [
            pa.array([name] * batch.num_rows, pa.string()),
            pa.array(positions),
            *batch.columns,
            pa.nulls(batch.num_rows, pa.string()),
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=LIVING)
        yield rows.filter(pa.array(living[positions]))


def write_tombstones(batches: Iterable[pa.RecordBatch], index: str, cache: str) -> Iterator[pa.RecordBatch]:
    """Columns of `BURIED`: tombstones written for shards. batches: name, tombstones (those before), positions."""
    for batch in batches:
        for shard in batch.to_pylist():
            before = open_shard(index, shard["name"], shard["tombstones"], cache)
            dead = np.union1d(before.dead, np.array(shard["positions"], np.int32)).astype(np.int32)
            file = write_dead(f"{index}/{DEAD}", shard["name"], dead)
            tokens = before.facts.tokens - open_shard(index, shard["name"], file, cache).living()[1]
            buried = {"name": shard["name"], "tombstones": file, "dead": len(dead), "dead_tokens": tokens}
            yield pa.RecordBatch.from_pylist([buried], BURIED)


@dataclass(frozen=True)
class Spread:
    """How chunks are spread over shards of nearly one size, in whatever order they are ranked.

    >>> Spread(10, 4).shards, Spread(10, 4).size
    (3, 4)
    """

    chunks: int
    most: int

    @property
    def shards(self) -> int:
        """How many shards it takes."""
        return -(-self.chunks // self.most)

    @property
    def size(self) -> int:
        """The chunks of each shard but the last."""
        return -(-self.chunks // max(self.shards, 1))


def starts_of(counts: Mapping[int, int]) -> Sequence[tuple[int, int]]:
    """For each bucket, in their order, how many chunks lie in those before it.

    >>> starts_of({7: 2, 3: 5})
    [(3, 0), (7, 5)]
    """
    starts, before = [], 0
    for bucket in sorted(counts):
        starts.append((bucket, before))
        before += counts[bucket]
    return starts
