"""Measure the CPU time of one actor by the number of its endpoints, which answer in this process after a delay."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from types import SimpleNamespace
from typing import Any, cast

from tests.benchmarks.figures import Figure, Options
from tests.udfs.llm.askers import SETTINGS, RunOfSeveral
from untold.udfs.llm.calls import Answer
from untold.udfs.llm.limiter import Limits
from untold.udfs.llm.usage import Usage

REQUESTS = 10_000
PAIRS = 5
WORKERS = 1_280
FEW, MANY = 2, 20
A_GROUP = 6
GOAL = 1.8


class Instant:
    """A client that answers after a delay, without a server."""

    async def call(self, *_: object) -> Answer:
        await asyncio.sleep(0.01)
        return Answer(text="x", model="m", usage=Usage(7, 0, 3))

    async def close(self) -> None:
        """There is no connection to close."""


def measure(options: Options) -> list[Figure]:
    """Measure the same requests with the same total of workers. A separate look per slot took 2.7 times as long."""
    count = options.requests or REQUESTS
    seconds_of(FEW, count)
    turns = [(seconds_of(FEW, count), seconds_of(MANY, count)) for _ in range(options.pairs or PAIRS)]
    return [
        Figure("CPU: twenty endpoints / two", tuple(many / few for few, many in turns), at_most=GOAL),
        Figure("two endpoints", tuple(1000 * few / count for few, _ in turns), "ms/call"),
        Figure("twenty endpoints", tuple(1000 * many / count for _, many in turns), "ms/call"),
    ]


def seconds_of(endpoints: int, count: int) -> float:
    """Return seconds of CPU for `count` requests in groups with a common prefix. Endpoints share the workers."""
    rows = [
        (f"r{number:06d}", {"query": f"Who {number // A_GROUP}?", "text": f"T {number}."}) for number in range(count)
    ]
    places = [SimpleNamespace(base_url=f"http://replica{number}/v1") for number in range(endpoints)]
    with TemporaryDirectory(prefix="untold-") as folder:
        settings = replace(SETTINGS, limits=Limits(max_concurrency=WORKERS // endpoints))
        run = RunOfSeveral(cast(Any, places), Path(folder), settings=settings)
        for channel in run.asker._channels:
            channel.client = cast(Any, Instant())
        began = process_time()
        progress = asyncio.run(run.ask({"unit": rows}, 60.0))
        seconds = process_time() - began
    if (progress.usage.done, len(progress.usage.endpoints)) != (count, endpoints):
        raise RuntimeError(f"{progress.usage.done} of {count} requests came back from {endpoints} endpoints")
    return seconds
