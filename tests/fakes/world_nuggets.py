"""Worlds for nuggets: those of `ImportanceWorld`, some of whose references say how important they are."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.fakes.world_importance import ImportanceWorld


class NuggetWorld(ImportanceWorld):
    """A world whose samples bring contexts, or references with, with some, or without importance or weights."""

    def __init__(self, seed: int, judge: str = "closed", ids: bool = False) -> None:
        super().__init__(seed, judge, ids)
        random = Random(f"nuggets/{seed}")
        if isinstance(self.references, list):
            self.references = [_rated(random, one, seed) for one in self.references]


def nugget_worlds(count: int, judge: str = "closed", first: int = 0) -> list[NuggetWorld]:
    """Worlds of successive seeds; contexts of every other one have ids of their own."""
    return [NuggetWorld(seed, judge, ids=seed % 2 == 1) for seed in range(first, first + count)]


def _rated(random: Random, reference: Any, seed: int) -> Any:
    """In half of the worlds two of three references say what they are."""
    if seed % 4 < 2 or random.random() < 1 / 3:
        return reference
    named = reference if isinstance(reference, dict) else {"text": reference}
    return {**named, "importance": random.choice(["vital", "okay", "VITAL"])}
