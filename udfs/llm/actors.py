"""The Ray actors: the limiter that all runs of a cluster share, and the answering actors of one run."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayActorError

from untold.udfs.llm.asking import Asker
from untold.udfs.llm.calls import CallSettings, Progress, Work
from untold.udfs.llm.channels import NO_LIMITS, Channel, Channels, Slots
from untold.udfs.llm.client import Endpoint
from untold.udfs.llm.journal import Journal, journal_folder, replay
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.limiter import Budget, Lease, Limiter, Report
from untold.udfs.llm.records import COMPLETIONS
from untold.udfs.llm.script import key_header_of
from untold.udfs.llm.segments import SegmentWriter, write_file
from untold.udfs.llm.units import read_requests
from untold.udfs.llm.usage import Usage, dearest
from untold.udfs.stages import definition_of

NAMESPACE = "untold"
# Of reports and leases: runs of another version have a limiter of their own.
PROTOCOL = 4
# Long enough for the next stage, or a run a little later, to find what was learnt of the endpoint's rate.
IDLE_SECONDS = 600.0
IDLE_CHECK_SECONDS = 30.0
LIMITER_RETRY_SECONDS = 0.2
# Ray itself took 15 s to find a raylet that was killed (2.60), and lets its actors live on.
RAYLET_LOOK_SECONDS = 0.5
RAYLET_GRACE_SECONDS = 3.0
# A lease takes milliseconds; one that does not come was lost with the limiter's node, or waits in a queue without end.
LEASE_SECONDS = 30.0


class LimiterActor:
    """`Limiter` as an actor; it ends itself after ten idle minutes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._limiter = Limiter(restarted=ray.get_runtime_context().was_current_actor_reconstructed)
        self._used = monotonic()
        threading.Thread(target=self._end_when_idle, daemon=True).start()

    def lease(self, report: Report) -> Lease:
        """`Limiter.lease`; whoever asks keeps the actor alive."""
        self._used = monotonic()
        return self._limiter.lease(report)

    def leave(self, client: str) -> Usage:
        """`Limiter.leave`. No use: an actor that only hears farewells may end."""
        return self._limiter.leave(client)

    def _end_when_idle(self) -> None:
        """Looks every `IDLE_CHECK_SECONDS`; a thread, as the actor's methods run one at a time and none waits."""
        pause = threading.Event()
        while monotonic() - self._used < IDLE_SECONDS:
            pause.wait(IDLE_CHECK_SECONDS)
        # An exit of the process would count as a crash, and `max_restarts` would bring it back.
        ray.kill(ray.get_actor(self._name, namespace=NAMESPACE), no_restart=True)


def limiter_name(base_url: str, model: str) -> str:
    """The name under which all runs find the limiter of this endpoint and model."""
    # A hash: an address may hold a password, and names of actors are shown by Ray's tools.
    digest = blake2b(f"{base_url.rstrip('/')}\n{model}".encode(), digest_size=8).hexdigest()
    return f"limiter-v{PROTOCOL}-{digest}"


def open_limiter(name: str) -> Any:
    """The limiter of that name, made where there is none."""
    # Without a namespace two jobs had a limiter each, and one not detached died with the job that made it (both were
    # tried). It takes no CPU: on a full cluster it would never start. A lease that is lost is reported anew by its
    # client, with a number that tells it from the first.
    options = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": 0,
    }
    return ray.remote(LimiterActor).options(**options).remote(name)


class Lender:
    """A limiter as those know it who ask it for leases: where it was lost, a new one is made and asked."""

    def __init__(self, name: str) -> None:
        self._name, self._limiter = name, open_limiter(name)

    async def lease(self, report: Report) -> Lease:
        """A lease, from the limiter that there is now. Ends by being cancelled."""
        while True:
            try:
                async with asyncio.timeout(LEASE_SECONDS):
                    lease: Lease = await self._limiter.lease.remote(report)
                return lease
            except (RayActorError, TimeoutError):
                await asyncio.sleep(LIMITER_RETRY_SECONDS)
                self._limiter = open_limiter(self._name)

    async def leave(self, client: str) -> None:
        """Frees the places of a client. A limiter that hangs does so by itself after `CLIENT_EXPIRY`."""
        with suppress(RayActorError, TimeoutError):
            async with asyncio.timeout(LEASE_SECONDS):
                await self._limiter.leave.remote(client)


def limiters_of(settings: CallSettings, model: str) -> tuple[str, ...]:
    """The names of the limiters of all endpoints, and last, where several share a budget, of what leases that."""
    names = tuple(limiter_name(one.label, one.model or model) for one in settings.each)
    spends = bool(settings.endpoints) and settings.budget != Budget()
    return (*names, limiter_name("budget", "")) if spends else names


def open_channels(work: Work, lenders: Sequence[Lender]) -> Channels:
    """The endpoints of some work with their limiters, which `limiters_of` names."""
    several = bool(work.settings.endpoints)
    own = [replace(one, budget=Budget() if several else one.budget) for one in work.settings.each]
    each = [
        Channel(replace(work, settings=one), open_client(one, work.stage), lender.lease)
        for one, lender in zip(own, lenders, strict=False)
    ]
    if len(lenders) == len(each):
        return Channels(work, each)
    dear = replace(work.settings, prices=dearest([one.prices for one in own]), limits=NO_LIMITS)
    return Channels(work, each, Slots(replace(work, settings=dear), lenders[-1].lease))


def open_client(settings: CallSettings, stage: Stage) -> Endpoint:
    """The client of an endpoint, with the key that its settings name."""
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
    """Answers units of work with one `Asker` a stage. Every method is short; the asking goes on between them."""

    def __init__(self) -> None:
        self._lenders: list[Lender] = []
        self._client = ""
        self._asker: Asker | None = None
        self._raylet = os.getppid()
        self._watch: asyncio.Task[None] | None = None

    async def start(self, assignment: Assignment) -> Started:
        """Writes the probe (the first write is slow) and what dead actors of the node left, and starts the workers.

        Raises OSError where the folder of completions cannot be written: nothing has been paid for by then.
        """
        work, settings = assignment.work, assignment.work.settings
        self._lenders, self._client = [Lender(name) for name in assignment.limiters], work.name
        probe = f"{assignment.directory}/_probe-{work.name}"
        # The first write of Parquet in a process imports pandas: 2.4 s that would else come in the middle of the
        # stream.
        await asyncio.to_thread(lambda: write_file(probe, COMPLETIONS.empty_table()))
        journal, replayed = None, list[str]()
        if settings.journal is not None:
            folder = journal_folder(settings.journal)
            replayed = await asyncio.to_thread(replay, folder, assignment.directory, write_file)
            journal = Journal(folder, assignment.directory, work.name)
        writer = SegmentWriter(assignment.directory, work.name, settings.flush, journal)
        definition = definition_of(work.stage.name)
        channels = open_channels(work, self._lenders)
        self._asker = Asker(work, definition.parse, channels, writer, definition.form)
        self._asker.start()
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
        """`Asker.remember`."""
        self._running().remember(gone)

    async def progress(self) -> Progress:
        """`Asker.progress`. Raises what broke one of its loops."""
        return self._running().progress()

    async def stop(self, grace: float) -> Progress:
        """Ends the asking, writes what is known and frees the places in flight."""
        progress = await self._running().stop(grace)
        await asyncio.gather(*(lender.leave(self._client) for lender in self._lenders))
        return progress

    async def hurry(self, grace: float) -> None:
        """`Asker.hurry`."""
        self._running().hurry(grace)

    async def _end_with_raylet(self) -> None:
        """Writes what is answered and ends the process once its raylet has died: another actor asks the rest."""
        while os.getppid() == self._raylet:
            await asyncio.sleep(RAYLET_LOOK_SECONDS)
        try:
            await self._running().stop(RAYLET_GRACE_SECONDS)
        finally:
            os._exit(1)

    def _running(self) -> Asker:
        """The asker. Raises RuntimeError before `start`."""
        if self._asker is None:
            raise RuntimeError("the actor was not started")
        return self._asker
