"""Whole jobs over the samples of symbolic worlds, with the model server that knows these worlds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

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


Ends = tuple[float | None, float | None, float | None]
"""A value with its bounds."""


class ExpectedMeasures(Protocol):
    """The result of brute force for a sample. `counts`: covered, uncovered and unjudged."""

    @property
    def status(self) -> str: ...

    @property
    def counts(self) -> tuple[int, int, int]: ...

    @property
    def measures(self) -> Mapping[str, Ends]: ...


def assert_measured(score: Row, measures: Sequence[Row], expected: ExpectedMeasures, bounds: Ends) -> None:
    """Compare a row of `scores` and the measures of its sample with brute force. `bounds`: the expected score."""
    name = score["sample_id"]
    counts = (None, None, None) if expected.status in ("failed", "budget") else expected.counts
    found = score["status"], score["covered"], score["uncovered"], score["unjudged"]
    assert found == (expected.status, *counts), name
    assert (score["score"], score["score_low"], score["score_high"]) == pytest.approx(bounds), name
    ends = {each["measure"]: (each["value"], each["value_low"], each["value_high"]) for each in measures}
    assert ends == {measure: pytest.approx(wanted) for measure, wanted in expected.measures.items()}, name


@contextmanager
def run_worlds(
    run_here: RunHere, folder: Path, samples: list[Row], *flags: str, settings: Mapping[str, Any], answer: str = "world"
) -> Iterator[WorldJob]:
    """Run a job over the samples and yield it while its server runs."""
    path = write_samples(folder / "samples.jsonl", samples)
    with ModelServer(answer=answer) as server:
        ended = run_here(server, path, folder / "out", *flags, settings=settings)
        yield WorldJob(server, samples, path, folder / "out", ended)
