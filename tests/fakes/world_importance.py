"""Worlds for importance-aware recall: those of `World`, some of whose samples bring the references themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from random import Random
from typing import Any

from tests.fakes.expected_icat import Chunk, cut
from tests.fakes.facts import summarise
from tests.fakes.world import World, _some

Sample = Mapping[str, Any]
KINDS = ("mined", "mined", "rated", "weighed", "mixed", "alone", "one")
"""What samples of a world bring: contexts alone, or references without, with, or with some weights, and references
without contexts, or a single one."""


class ImportanceWorld:
    """One query, its contexts, any number of responses, and what its samples bring (`kind`): of the seed alone."""

    def __init__(self, seed: int, judge: str = "closed", ids: bool = False) -> None:
        self._world, random = World(seed, judge, ids), Random(f"importance/{seed}")
        self.seed, self.kind, self.query = seed, KINDS[seed % len(KINDS)], self._world.query
        self.references = None if self.kind == "mined" else _references(random, self._world, self.kind)

    def samples(self, responses: int = 1) -> list[dict[str, Any]]:
        """A sample for each response, with `references`, null where facts are to be mined."""
        # No contexts are none of any kind: an empty list, or null where references stand in for them
        none = {"contexts": [] if self.seed % 2 else None}
        more = {"references": self.references} | (none if self.kind == "alone" else {})
        return [sample | more for sample in self._world.samples(responses)]


def importance_worlds(count: int, judge: str = "closed", first: int = 0) -> list[ImportanceWorld]:
    """Worlds of successive seeds; contexts of every other one have ids of their own."""
    return [ImportanceWorld(seed, judge, ids=seed % 2 == 1) for seed in range(first, first + count)]


def _references(random: Random, world: World, kind: str) -> Any:
    texts = [_some(random, world.leaves).sentence(0) for _ in range(random.randint(1, 6))]
    if kind == "one":
        return texts[0]
    found: list[Any] = []
    for number, text in enumerate(texts):
        weighed = kind == "weighed" or (kind == "mixed" and random.random() < 0.5)
        weight = {"weight": random.choice([0, 0.25, 0.5, 1, 2.5])} if weighed else {}
        named = {"id": f"R{number}", "anchor": text.split()[0]} if random.random() < 0.5 else {}
        found.append({"text": text, **named, **weight} if weight or named else text)
    return found


def texts_of(sample: Sample, *, condensed: bool = True) -> list[tuple[str, str]]:
    """The id and the text of each context that says something of the query; all as they are where not condensed."""
    said = ((name, summarise(text) if condensed else text) for name, text in contexts_of(sample))
    return [(name, text) for name, text in said if text]


def chunks_of(sample: Sample, words: int = 128, overlap: int = 32) -> list[Chunk]:
    """The chunks of the contexts in order, named as the table `chunks` names them."""
    found = []
    for name, text in contexts_of(sample):
        for chunk in cut({"document_id": name, "text": text}, words, overlap):
            digest = sha256(chunk.text.encode()).hexdigest()[:16]
            found.append(Chunk(f"{chunk.chunk_id}@{digest}", name, chunk.text))
    return found


def contexts_of(sample: Sample) -> Sequence[tuple[str, str]]:
    """(id, text) of each context."""
    return [
        (str(number), one) if isinstance(one, str) else (one["id"], one["text"])
        for number, one in enumerate(sample["contexts"] or (), start=1)
    ]
