"""Worlds for importance-aware recall: worlds of `World`, in which some samples have references."""

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
"""The data of a world's samples: only contexts, references without, with, or with some weights, references without
contexts, or a single reference.
"""


class ImportanceWorld:
    """A query, its contexts, responses, and the data of its samples (`kind`), determined only by the seed."""

    def __init__(self, seed: int, judge: str = "closed", ids: bool = False) -> None:
        self._world, random = World(seed, judge, ids), Random(f"importance/{seed}")
        self.seed, self.kind, self.query = seed, KINDS[seed % len(KINDS)], self._world.query
        self.references = None if self.kind == "mined" else _references(random, self._world, self.kind)

    def samples(self, responses: int = 1) -> list[dict[str, Any]]:
        """Return a sample for each response, with `references`, null if facts must be extracted."""
        # Both forms of missing contexts: an empty list, or null if references replace them
        none = {"contexts": [] if self.seed % 2 else None}
        more = {"references": self.references} | (none if self.kind == "alone" else {})
        return [sample | more for sample in self._world.samples(responses)]


def importance_worlds(count: int, judge: str = "closed", first: int = 0) -> list[ImportanceWorld]:
    """Return worlds with successive seeds. The contexts of every second world have ids."""
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
    """Return id and text of each context with relevant content, or of all unchanged contexts if not condensed."""
    said = ((name, summarise(text) if condensed else text) for name, text in contexts_of(sample))
    return [(name, text) for name, text in said if text]


def chunks_of(sample: Sample, words: int = 128, overlap: int = 32) -> list[Chunk]:
    """Return the chunks of the contexts in order, with their ids in the table `chunks`."""
    found = []
    for name, text in contexts_of(sample):
        for chunk in cut({"document_id": name, "text": text}, words, overlap):
            digest = sha256(chunk.text.encode()).hexdigest()[:16]
            found.append(Chunk(f"{chunk.chunk_id}@{digest}", name, chunk.text))
    return found


def contexts_of(sample: Sample) -> Sequence[tuple[str, str]]:
    """Return (id, text) of each context."""
    return [
        (str(number), one) if isinstance(one, str) else (one["id"], one["text"])
        for number, one in enumerate(sample["contexts"] or (), start=1)
    ]
