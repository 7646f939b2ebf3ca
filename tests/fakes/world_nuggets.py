"""Worlds for nuggets. They extend `ImportanceWorld`, and some references have an importance."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.fakes.world_importance import ImportanceWorld


class NuggetWorld(ImportanceWorld):
    """A world with samples that have contexts, or references with, with some, or without importance or weights."""

    def __init__(self, seed: int, judge: str = "closed", ids: bool = False) -> None:
        super().__init__(seed, judge, ids)
        random = Random(f"nuggets/{seed}")
        if isinstance(self.references, list):
            self.references = [_rated(random, one, seed) for one in self.references]


def nugget_worlds(count: int, judge: str = "closed", first: int = 0) -> list[NuggetWorld]:
    """Return worlds with successive seeds. The contexts of every second world have ids."""
    return [NuggetWorld(seed, judge, ids=seed % 2 == 1) for seed in range(first, first + count)]


def _rated(random: Random, reference: Any, seed: int) -> Any:
    """Return a reference with an importance for two of three references in half of the worlds."""
    if seed % 4 < 2 or random.random() < 1 / 3:
        return reference
    named = reference if isinstance(reference, dict) else {"text": reference}
    return {**named, "importance": random.choice(["vital", "okay", "VITAL"])}
