"""Requests and seconds a sample where nli asks pairs and where it asks lists, at 0.2 s a call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import run_job
from tests.fakes.model_server import ModelServer

STAGES = ("classify_relation", "classify_relations")
# As many atoms as `docs/methods.md`, section 2, has in its example, and responses to a query
RESPONSE_ATOMS, CONTEXT_ATOMS, RESPONSES = 20, 40, 5
PUBLISHED = 2 * RESPONSE_ATOMS * CONTEXT_ATOMS + CONTEXT_ATOMS * (CONTEXT_ATOMS - 1)
QUERIES = 1
LATENCY = 0.2  # seconds
FORMS = ("pairs", "lists")
# Times as many requests as published
GOAL = 30.0


def measure(options: Options) -> list[Figure]:
    """Whole jobs over `requests` queries, each form with a store of its own."""
    samples = make_samples(options.requests or QUERIES)
    with TemporaryDirectory(prefix="untold-") as name:
        folder = Path(name)
        asked = {form: _run(folder, samples, form) for form in FORMS}
    figures = [Figure("published, no sample shares a pair", (PUBLISHED,), "requests a sample")]
    for form, (requests, seconds) in asked.items():
        figures.append(Figure(form, (requests / len(samples),), "requests a sample"))
        figures.append(Figure(f"{form}, whole job", (seconds / len(samples),), "seconds a sample"))
    lists = asked["lists"][0] / len(samples)
    return [*figures, Figure("published / lists", (PUBLISHED / lists,), at_least=GOAL)]


def make_samples(queries: int) -> list[dict[str, Any]]:
    """Samples whose sentences are as many atoms of one subject, all of them different and relevant."""
    samples = []
    for number in range(queries):
        subject = f"Ada Mill{_letters(number)}"
        sentences = [
            f"{subject} owns exactly {boats} boats."
            for boats in range(1, CONTEXT_ATOMS + RESPONSES * RESPONSE_ATOMS + 1)
        ]
        own = sentences[CONTEXT_ATOMS:]
        for place in range(RESPONSES):
            response = own[place * RESPONSE_ATOMS : (place + 1) * RESPONSE_ATOMS]
            samples.append(
                {
                    "query": f"What is known of the fleet of {subject}?",
                    "contexts": [" ".join(sentences[:CONTEXT_ATOMS])],
                    "response": " ".join(response),
                    "system": f"system {place}",
                }
            )
    return samples


def _letters(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def _run(folder: Path, samples: Sequence[dict[str, Any]], form: str) -> tuple[int, float]:
    """Relations that a whole job asks for, and its seconds."""
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples), encoding="utf-8")
    with ModelServer(answer="world_closed", latency=LATENCY) as server:
        ran = run_job(server, path, folder / "job", f"nli.judgement={form}", metric="nli")
        return sum(map(server.count, STAGES)), ran.seconds
