"""One run per metric over a small symbolic world, with samples that fail and responses that are empty."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fakes.model_server import ModelServer
from tests.fakes.world import worlds
from tests.golden.tables import Tables, read_tables
from tests.golden.workshop import Workshop
from tests.runs.harness import Row
from tests.runs.worlds import with_kinds

ATTEMPTS = {"llm.max_attempts": 1}


def statement_samples(first: int, count: int = 8) -> list[Row]:
    """Return two samples per world, and one sample with an empty response."""
    known = [*worlds(count - 1, ids=True, first=first), *worlds(1, first=first + count - 1)]
    samples = [with_kinds(sample) for world in known for sample in world.samples(2)]
    return [*samples, {**samples[0], "sample_id": "empty", "response": ""}]


def faults(samples: Sequence[Row], refused: str, truncated: str) -> list[dict[str, Any]]:
    """Return two rules: a refused request of the last but one sample, and a truncated completion of the last sample."""
    victims = [sample["response"] for sample in samples if sample["response"].strip()][-2:]
    deeds = zip((refused, truncated), victims, ({"status": 400}, "length"), strict=True)
    return [{"when": {"stage": stage, "contains": json.dumps(text)[1:-1]}, "do": deed} for stage, text, deed in deeds]


def score_e2e(workshop: Workshop) -> Path:
    """Return the output of a run of e2e."""
    samples = statement_samples(0)
    with ModelServer("world_closed", faults(samples, "evaluate_coverage", "evaluate_coverage")) as server:
        return workshop.score("e2e", server, samples, "e2e", ATTEMPTS)


def freeze_e2e(workshop: Workshop) -> Tables:
    """Return the tables of a run of e2e."""
    return read_tables(score_e2e(workshop))
