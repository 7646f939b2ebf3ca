"""The answering actors of a run."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from untold.udfs.llm.calls import CallSettings, Progress, Work
from untold.udfs.llm.channels import NO_LIMITS, Channel, Channels, Lend
from untold.udfs.llm.keys import LOCAL, Stage
from untold.udfs.llm.limiter import Budget
from untold.udfs.llm.limiter_actor import LimiterClient, limiter_name
from untold.udfs.llm.pacing import Slots
from untold.udfs.llm.request_loop import RequestLoop
from untold.udfs.llm.script import accept_of, key_header_of
from untold.udfs.llm.store_files import COMPLETIONS, SegmentWriter, write_file
from untold.udfs.llm.text_models import LocalClassifier
from untold.udfs.llm.units import read_requests
from untold.udfs.llm.usage import Usage, dearest
from untold.udfs.stages import definition_of

if TYPE_CHECKING:
    from untold.udfs.llm.client import Endpoint

# Ray 2.60 takes 15 s to notice a killed raylet, and keeps its actors alive
RAYLET_LOOK_SECONDS = 0.5
RAYLET_GRACE_SECONDS = 3.0


def limiters_of(work: Work) -> list[str]:
    """Return the names of the limiters of all endpoints. If several share a budget, its limiter is the last one."""
    names = [limiter_name(one.label, one.model or work.stage.model) for one in work.settings.each]
    return (
        [*names, limiter_name("budget", "")] if work.settings.endpoints and work.settings.budget != Budget() else names
    )


def open_channels(work: Work, lend: Lend) -> Channels:
    """Return the channels of the endpoints. `lend` requests leases from the limiters in the order of `limiters_of`."""
    several = bool(work.settings.endpoints)
    own = [replace(one, budget=Budget() if several else one.budget) for one in work.settings.each]
    each = [Channel(replace(work, settings=one), open_client(one, work.stage)) for one in own]
    if len(limiters_of(work)) == len(each):
        return Channels(work, lend, each)
    dear = replace(work.settings, prices=dearest([one.prices for one in own]), limits=NO_LIMITS)
    return Channels(work, lend, each, Slots(replace(work, settings=dear)))


def open_client(settings: CallSettings, stage: Stage) -> Endpoint | LocalClassifier:
    """Return the client of an endpoint with its key, or the runtime of a local model."""
    if stage.api == LOCAL:
        return LocalClassifier(stage, settings.provider)
    # In an actor alone, which has loaded it: openai takes a second
    from untold.udfs.llm.client import ApiKey, Endpoint

    return Endpoint(
        settings.base_url,
        ApiKey.of(settings),
        connections=settings.limits.max_concurrency,
        timeout=settings.timeout,
        key_header=key_header_of(stage),
        headers=settings.headers,
        query=settings.query,
        protocol=settings.protocol,
    )


class AnsweringActor:
    """An actor that sends units of work. Its `RequestLoop` runs between the calls of its methods."""

    def __init__(self) -> None:
        self._loop: RequestLoop | None = None
        self._lender: LimiterClient | None = None
        self._client = ""
        self._raylet = os.getppid()
        self._watch: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Import the client and pandas before the first request.

        The first write of Parquet in a process imports pandas, which takes 2.4 s.
        """
        for name in ("untold.udfs.llm.client", "pandas"):
            await asyncio.to_thread(import_module, name)

    async def start(self, work: Work) -> str:
        """Write the probe, start the workers, and return the path of the probe.

        Raises OSError if the folder of completions is not writable. Nothing is paid at that time.
        """
        self._lender, self._client = LimiterClient(limiters_of(work)), work.name
        probe = f"{work.directory}/_probe-{work.name}"
        await self.load()
        await asyncio.to_thread(lambda: write_file(probe, COMPLETIONS.empty_table()))
        writer = SegmentWriter(work.directory, work.name, work.settings.flush)
        channels = open_channels(work, self._lender.lease)
        form = definition_of(work.stage.name).form
        self._loop = RequestLoop(work, accept_of(work.stage), channels, writer, form)
        self._loop.start()
        self._watch = self._watch or asyncio.create_task(self._end_with_raylet())
        # The loaded modules stay until the end, so the garbage collector can skip them. With a pool of workers instead
        # of a task per request, the CPU time per call fell from 0.50 to 0.39 ms
        gc.collect()
        gc.freeze()
        return probe

    async def feed(self, unit: str, skip: frozenset[str]) -> None:
        """Add the requests of a unit, except those in `skip`, which have a completion."""
        rows = await asyncio.to_thread(read_requests, unit)
        self._running().feed(unit, [row for row in rows if row[0] not in skip])

    async def feed_rows(self, unit: str, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Add single requests of a unit."""
        self._running().feed(unit, rows)

    async def remember(self, gone: Mapping[str, Usage]) -> None:
        """`RequestLoop.remember`."""
        self._running().remember(gone)

    async def progress(self) -> Progress:
        """`RequestLoop.progress`. Raises the error of a broken task."""
        return self._running().progress()

    async def stop(self, grace: float) -> Progress:
        """Stop the loop, write all completions and release the slots in flight."""
        progress = await self._running().stop(grace)
        if self._lender is not None:
            await self._lender.leave(self._client)
        return progress

    async def shorten_deadline(self, grace: float) -> None:
        """`RequestLoop.shorten_deadline`."""
        self._running().shorten_deadline(grace)

    async def _end_with_raylet(self) -> None:
        """Write all completions and exit when the raylet dies. Another actor sends the other requests."""
        while os.getppid() == self._raylet:
            await asyncio.sleep(RAYLET_LOOK_SECONDS)
        try:
            await self._running().stop(RAYLET_GRACE_SECONDS)
        finally:
            os._exit(1)

    def _running(self) -> RequestLoop:
        """Return the request loop. Raises RuntimeError before `start`."""
        if self._loop is None:
            raise RuntimeError("the actor was not started")
        return self._loop
