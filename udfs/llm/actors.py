"""The answering actors of a run."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from untold.udfs.llm.calls import CallSettings, Progress, Work
from untold.udfs.llm.channels import NO_LIMITS, Channel, Channels, Lend, Slots
from untold.udfs.llm.keys import LOCAL, Stage
from untold.udfs.llm.limiter import Budget
from untold.udfs.llm.limiter_actor import LimiterClient, limiter_name
from untold.udfs.llm.request_loop import RequestLoop
from untold.udfs.llm.script import key_header_of
from untold.udfs.llm.segments import COMPLETIONS, Journal, SegmentWriter, journal_folder, replay, write_file
from untold.udfs.llm.text_models import LocalClassifier
from untold.udfs.llm.units import read_requests
from untold.udfs.llm.usage import Usage, dearest
from untold.udfs.stages import definition_of
from untold.udfs.stages.non_answers import example_names

if TYPE_CHECKING:
    from untold.udfs.llm.client import Endpoint

# Ray itself took 15 s to find a raylet that was killed (2.60), and lets its actors live on.
RAYLET_LOOK_SECONDS = 0.5
RAYLET_GRACE_SECONDS = 3.0


def limiters_of(settings: CallSettings, model: str) -> tuple[str, ...]:
    """The names of the limiters of all endpoints, and last, where several share a budget, of what leases that."""
    names = tuple(limiter_name(one.label, one.model or model) for one in settings.each)
    spends = bool(settings.endpoints) and settings.budget != Budget()
    return (*names, limiter_name("budget", "")) if spends else names


def open_channels(work: Work, lends: Sequence[Lend]) -> Channels:
    """The endpoints of some work with what each limiter lends, in the order of `limiters_of`."""
    several = bool(work.settings.endpoints)
    own = [replace(one, budget=Budget() if several else one.budget) for one in work.settings.each]
    each = [
        Channel(replace(work, settings=one), open_client(one, work.stage), lend)
        for one, lend in zip(own, lends, strict=False)
    ]
    if len(lends) == len(each):
        return Channels(work, each)
    dear = replace(work.settings, prices=dearest([one.prices for one in own]), limits=NO_LIMITS)
    return Channels(work, each, Slots(replace(work, settings=dear), lends[-1]))


def open_client(settings: CallSettings, stage: Stage) -> Endpoint | LocalClassifier:
    """The client of an endpoint, with the key that its settings name; of a local model, what runs it."""
    if stage.api == LOCAL:
        return LocalClassifier(stage, settings.provider)
    # In an actor alone, which has loaded it: openai takes a second
    from untold.udfs.llm.client import Endpoint

    return Endpoint(
        settings.base_url,
        os.environ.get(settings.api_key_env or "") or None,
        connections=settings.limits.max_concurrency,
        timeout=settings.timeout,
        key_header=key_header_of(stage),
        headers=settings.headers,
        query=settings.query,
    )


@dataclass(frozen=True)
class Assignment:
    """What an answering actor needs to know: its work, the limiters of it, and where completions go."""

    work: Work
    limiters: tuple[str, ...]
    directory: str


@dataclass(frozen=True)
class Started:
    """What an actor wrote at its start: a probe, and segments of what dead actors of its node had in their journals."""

    probe: str
    replayed: tuple[str, ...] = ()


class AnsweringActor:
    """Answers units of work with one `RequestLoop` a stage. Every method is short; the asking goes on between them."""

    def __init__(self) -> None:
        self._loop: RequestLoop | None = None
        self._lender: LimiterClient | None = None
        self._client = ""
        self._raylet = os.getppid()
        self._watch: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Imports what would else come in the middle of the stream.

        That is the client, and pandas, which the first write of Parquet in a process does and which takes 2.4 s.
        """
        for name in ("untold.udfs.llm.client", "pandas"):
            await asyncio.to_thread(import_module, name)

    async def start(self, assignment: Assignment) -> Started:
        """Writes the probe and what dead actors of the node left, and starts the workers.

        Raises OSError where the folder of completions cannot be written: nothing has been paid for by then.
        """
        work, settings = assignment.work, assignment.work.settings
        self._lender, self._client = LimiterClient(assignment.limiters), work.name
        probe = f"{assignment.directory}/_probe-{work.name}"
        await self.load()
        await asyncio.to_thread(lambda: write_file(probe, COMPLETIONS.empty_table()))
        journal, replayed = None, list[str]()
        if settings.journal is not None:
            folder = journal_folder(settings.journal)
            replayed = await asyncio.to_thread(replay, folder, assignment.directory, write_file)
            journal = Journal(folder, assignment.directory, work.name)
        writer = SegmentWriter(assignment.directory, work.name, settings.flush, journal)
        definition = definition_of(work.stage.name)
        channels = open_channels(work, self._lender.lends)
        accept = partial(definition.accept, names=example_names(work.stage.template))
        self._loop = RequestLoop(work, accept, channels, writer, definition.form)
        self._loop.start()
        self._watch = self._watch or asyncio.create_task(self._end_with_raylet())
        # What is loaded by now stays to the end, and no collection need walk it again: with a pool of workers instead
        # of a task a request, CPU a call fell from 0.50 to 0.39 ms.
        gc.collect()
        gc.freeze()
        return Started(probe, tuple(replayed))

    async def feed(self, unit: str, skip: frozenset[str]) -> None:
        """Takes a unit, less the requests that are answered already."""
        rows = await asyncio.to_thread(read_requests, unit)
        self._running().feed(unit, [row for row in rows if row[0] not in skip])

    async def feed_rows(self, unit: str, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Takes single requests."""
        self._running().feed(unit, rows)

    async def remember(self, gone: Mapping[str, Usage]) -> None:
        """`RequestLoop.remember`."""
        self._running().remember(gone)

    async def progress(self) -> Progress:
        """`RequestLoop.progress`. Raises what broke one of its loops."""
        return self._running().progress()

    async def stop(self, grace: float) -> Progress:
        """Ends the asking, writes what is known and frees the places in flight."""
        progress = await self._running().stop(grace)
        if self._lender is not None:
            await self._lender.leave(self._client)
        return progress

    async def shorten_deadline(self, grace: float) -> None:
        """`RequestLoop.shorten_deadline`."""
        self._running().shorten_deadline(grace)

    async def _end_with_raylet(self) -> None:
        """Writes what is answered and ends the process once its raylet has died: another actor asks the rest."""
        while os.getppid() == self._raylet:
            await asyncio.sleep(RAYLET_LOOK_SECONDS)
        try:
            await self._running().stop(RAYLET_GRACE_SECONDS)
        finally:
            os._exit(1)

    def _running(self) -> RequestLoop:
        """The asker. Raises RuntimeError before `start`."""
        if self._loop is None:
            raise RuntimeError("the actor was not started")
        return self._loop
