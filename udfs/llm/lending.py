"""The limiters that all runs of a cluster share, as one Ray actor, and how others find it.

A module of its own: the actor's process imports no client of endpoints, and so starts in a third of the time.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from hashlib import blake2b
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayActorError

from untold.udfs.llm.limiter import Lease, Limiter, Report
from untold.udfs.llm.usage import NOTHING_USED, Usage

NAMESPACE = "untold"
# The version is of reports and leases: runs of another one have limiters of their own.
ACTOR = "limiter-v5"
# Long enough for the next stage, or a run a little later, to find what was learnt of the endpoint's rate.
IDLE_SECONDS = 600.0
IDLE_CHECK_SECONDS = 30.0
LIMITER_RETRY_SECONDS = 0.2
# A lease takes milliseconds; one that does not come was lost with the limiter's node, or waits in a queue without end.
LEASE_SECONDS = 30.0


class LimiterActor:
    """A `Limiter` for each endpoint and model, as one actor; it ends itself after ten idle minutes.

    One process for all: Ray starts few at a time, and while the others came up the first endpoint had all requests.
    """

    def __init__(self) -> None:
        self._restarted = ray.get_runtime_context().was_current_actor_reconstructed
        # With the time of the last lease
        self._limiters: dict[str, tuple[Limiter, float]] = {}
        self._used = monotonic()
        threading.Thread(target=self._end_when_idle, daemon=True).start()

    def lease(self, name: str, report: Report) -> Lease:
        """`Limiter.lease` of that name; whoever asks keeps the actor alive."""
        self._used = now = monotonic()
        limiter, used = self._limiters.get(name, (None, now))
        if limiter is None or now - used >= IDLE_SECONDS:
            limiter = Limiter(restarted=self._restarted)
        self._limiters[name] = limiter, now
        return limiter.lease(report)

    def leave(self, name: str, client: str) -> Usage:
        """`Limiter.leave` of that name. No use: an actor that only hears farewells may end."""
        return self._limiters[name][0].leave(client) if name in self._limiters else NOTHING_USED

    def _end_when_idle(self) -> None:
        """Looks every `IDLE_CHECK_SECONDS`; a thread, as the actor's methods run one at a time and none waits."""
        pause = threading.Event()
        while monotonic() - self._used < IDLE_SECONDS:
            pause.wait(IDLE_CHECK_SECONDS)
        # An exit of the process would count as a crash, and `max_restarts` would bring it back.
        ray.kill(ray.get_actor(ACTOR, namespace=NAMESPACE), no_restart=True)


def limiter_name(base_url: str, model: str) -> str:
    """The name under which all runs have the limiter of this endpoint and model."""
    # A hash: an address may hold a password.
    return blake2b(f"{base_url.rstrip('/')}\n{model}".encode(), digest_size=8).hexdigest()


def open_limiters() -> Any:
    """The actor of all limiters, made where there is none."""
    # Without a namespace two jobs had a limiter each, and one not detached died with the job that made it (both were
    # tried). It takes no CPU: on a full cluster it would never start. A lease that is lost is reported anew by its
    # client, with a number that tells it from the first.
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


class Lender:
    """A limiter as those know it who ask it for leases: where its actor was lost, a new one is made and asked."""

    def __init__(self, name: str) -> None:
        self._name, self._actor = name, open_limiters()

    async def lease(self, report: Report) -> Lease:
        """A lease, from the actor that there is now. Ends by being cancelled."""
        while True:
            try:
                async with asyncio.timeout(LEASE_SECONDS):
                    lease: Lease = await self._actor.lease.remote(self._name, report)
                return lease
            except (RayActorError, TimeoutError):
                await asyncio.sleep(LIMITER_RETRY_SECONDS)
                self._actor = open_limiters()

    async def leave(self, client: str) -> None:
        """Frees the places of a client. An actor that hangs does so by itself after `CLIENT_EXPIRY`."""
        with suppress(RayActorError, TimeoutError):
            async with asyncio.timeout(LEASE_SECONDS):
                await self._actor.leave.remote(self._name, client)
