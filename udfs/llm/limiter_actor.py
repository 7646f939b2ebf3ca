"""The Ray actor with the limiters of all runs of a cluster, and its client.

The process of the actor imports no client of endpoints, so it starts in a third of the time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayActorError

from untold.udfs.llm.limiter import Lease, Limiter, LimiterReport
from untold.udfs.llm.usage import NOTHING_USED, Usage

NAMESPACE = "untold"
# With the version of reports and leases. Runs of another version have their own limiters
ACTOR = "limiter-v7"
# Long enough to keep the rate of an endpoint for the next stage or run
IDLE_SECONDS = 600.0
IDLE_CHECK_SECONDS = 30.0
LIMITER_RETRY_SECONDS = 0.2
# A lease takes milliseconds. After this time, it was lost with the node of the limiter, or waits in a queue forever
LEASE_SECONDS = 30.0


class LimiterActor:
    """A `Limiter` for each endpoint and model in one actor. It ends after ten minutes without a lease.

    With several actors, the first endpoint would get all requests while Ray starts the others.
    """

    def __init__(self) -> None:
        self._restarted = ray.get_runtime_context().was_current_actor_reconstructed
        # With the time of the last lease
        self._limiters: dict[str, tuple[Limiter, float]] = {}
        self._used = monotonic()
        threading.Thread(target=self._end_when_idle, daemon=True).start()

    def lease(self, reports: Mapping[str, LimiterReport]) -> dict[str, Lease]:
        """Call `Limiter.lease` for each name. This keeps the actor alive."""
        self._used = now = monotonic()
        return {name: self._limiter(name, now).lease(report) for name, report in reports.items()}

    def _limiter(self, name: str, now: float) -> Limiter:
        limiter, used = self._limiters.get(name, (None, now))
        if limiter is None or now - used >= IDLE_SECONDS:
            limiter = Limiter(restarted=self._restarted)
        self._limiters[name] = limiter, now
        return limiter

    def leave(self, names: Sequence[str], client: str) -> list[Usage]:
        """Call `Limiter.leave` for each name. This does not keep the actor alive."""
        known = [self._limiters.get(name) for name in names]
        return [NOTHING_USED if one is None else one[0].leave(client) for one in known]

    def _end_when_idle(self) -> None:
        """End the idle actor, in a thread, because the methods of the actor run one after another and never wait."""
        pause = threading.Event()
        while monotonic() - self._used < IDLE_SECONDS:
            pause.wait(IDLE_CHECK_SECONDS)
        # Ray would restart the actor after an exit of its process (`max_restarts`)
        ray.kill(ray.get_actor(ACTOR, namespace=NAMESPACE), no_restart=True)


def limiter_name(base_url: str, model: str) -> str:
    """Return the name of the limiter of an endpoint and model, the same for all runs."""
    # A hash, because an address may contain a password
    return blake2b(f"{base_url.rstrip('/')}\n{model}".encode(), digest_size=8).hexdigest()


def open_limiters() -> Any:
    """Return the actor of all limiters, and create it if it is missing."""
    # Without a namespace, two jobs have different limiters, and a limiter that is not detached ends with its job. It
    # requests no CPU, because it would not start on a full cluster. If a lease is lost, the client sends its report
    # again, and the limiter recognizes it by its number
    options = {
        "name": ACTOR,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": 0,
    }
    return ray.remote(LimiterActor).options(**options).remote()


class LimiterClient:
    """A client of the limiters with these names. It creates a new actor if the old one is lost."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._actor = names, open_limiters()

    async def lease(self, reports: Mapping[int, LimiterReport]) -> dict[int, Lease]:
        """Return leases of limiters by their numbers. Waits until the actor responds or the task is cancelled.

        All reports are one message, because a message costs the actor a millisecond, and a lease in it a tenth of that.
        """
        sent = {self._names[number]: report for number, report in reports.items()}
        while True:
            try:
                async with asyncio.timeout(LEASE_SECONDS):
                    leases = await self._actor.lease.remote(sent)
                return {number: leases[self._names[number]] for number in reports}
            except (RayActorError, TimeoutError):
                await asyncio.sleep(LIMITER_RETRY_SECONDS)
                self._actor = open_limiters()

    async def leave(self, client: str) -> None:
        """Free all places of a client. If the actor does not respond, they are free after `CLIENT_EXPIRY`."""
        with suppress(RayActorError, TimeoutError):
            async with asyncio.timeout(LEASE_SECONDS):
                await self._actor.leave.remote(self._names, client)
