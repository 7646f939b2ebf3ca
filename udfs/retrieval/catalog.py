"""What an index is made of, as its manifest says it: how texts were cut and embedded, and its shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any

SHARDS, DEAD, COARSE, MAKING = "shards", "tombstones", "coarse.faiss", "coarse.json"


@dataclass(frozen=True)
class ShardEntry:
    """A shard and what of it counts no more: `tombstones` is the name of the file that says which chunks these are."""

    name: str
    chunks: int
    texts: int
    tokens: int
    size: int
    dead: int = 0
    dead_tokens: int = 0
    tombstones: str | None = None


@dataclass(frozen=True)
class Making:
    """How the chunks of an index became what it is: any other value makes another shard of the same chunks.

    `model` is the identity of the embedding, `lists` 0 for an exact index, `training` a hash of what its lists were
    trained on; `dimension` that of its vectors.
    """

    words: int
    overlap: int
    model: str
    codec: str
    lists: int
    training: str
    dimension: int

    def __str__(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Catalog:
    """An index: how it was made, and its shards by name."""

    making: Making
    documents: int
    shards: tuple[ShardEntry, ...]

    @property
    def chunks(self) -> int:
        """The living chunks."""
        return sum(shard.chunks - shard.dead for shard in self.shards)

    @property
    def mean_length(self) -> float:
        """The mean length of the living chunks, in tokens."""
        return sum(shard.tokens - shard.dead_tokens for shard in self.shards) / max(self.chunks, 1)

    @property
    def digest(self) -> str:
        """A hash of all that a search can find: two indexes of one digest give the same hits."""
        living = sorted((shard.name, shard.tombstones or "") for shard in self.shards)
        return blake2b(json.dumps([str(self.making), living]).encode(), digest_size=16).hexdigest()

    def plain(self) -> dict[str, Any]:
        """The catalog as JSON."""
        return {"digest": self.digest, "chunks": self.chunks, **asdict(self)}


def read_catalog(plain: Mapping[str, Any]) -> Catalog:
    """A catalog from what `plain` gave. Raises KeyError or TypeError for anything else."""
    shards = tuple(ShardEntry(**shard) for shard in plain["shards"])
    return Catalog(Making(**plain["making"]), plain["documents"], shards)


def with_dead(shard: ShardEntry, tombstones: str, dead: int, dead_tokens: int) -> ShardEntry:
    """The shard with other tombstones."""
    return replace(shard, tombstones=tombstones, dead=dead, dead_tokens=dead_tokens)
