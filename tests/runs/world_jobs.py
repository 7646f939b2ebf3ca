"""Whole jobs over the samples of symbolic worlds, with the model server that knows these worlds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.model_server import ModelServer
from tests.runs.harness import Ended, Row, write_samples
from tests.runs.here import RunHere


@dataclass(frozen=True)
class WorldJob:
    """A finished job: its server, its samples and their file, its output, and its end."""

    server: ModelServer
    samples: list[Row]
    path: Path
    output: Path
    ended: Ended


@contextmanager
def run_worlds(
    run_here: RunHere, folder: Path, samples: list[Row], *flags: str, settings: Mapping[str, Any], answer: str = "world"
) -> Iterator[WorldJob]:
    """Run a job over the samples and yield it while its server runs."""
    path = write_samples(folder / "samples.jsonl", samples)
    with ModelServer(answer=answer) as server:
        ended = run_here(server, path, folder / "out", *flags, settings=settings)
        yield WorldJob(server, samples, path, folder / "out", ended)
