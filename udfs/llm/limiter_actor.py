"""The limiters that all runs of a cluster share, as one Ray actor, and how others find it.

A module of its own: the actor's process imports no client of endpoints, and so starts in a third of the time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError

from untold.udfs.llm.limiter import Lease, Limiter, LimiterReport
from untold.udfs.llm.usage import NOTHING_USED, Usage

if TYPE_CHECKING:
    from untold.udfs.llm.channels import Lend

NAMESPACE = "untold"
# The version is of reports and leases: runs of another one have limiters of their own.
ACTOR = "limiter-v6"
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

    def lease(self, reports: Mapping[str, LimiterReport]) -> dict[str, Lease]:
        """`Limiter.lease` of each name; whoever asks keeps the actor alive."""
        self._used = now = monotonic()
        return {name: self._limiter(name, now).lease(report) for name, report in reports.items()}

    def _limiter(self, name: str, now: float) -> Limiter:
        limiter, used = self._limiters.get(name, (None, now))
        if limiter is None or now - used >= IDLE_SECONDS:
            limiter = Limiter(restarted=self._restarted)
        self._limiters[name] = limiter, now
        return limiter

    def leave(self, names: Sequence[str], client: str) -> list[Usage]:
        """`Limiter.leave` of each name. No use: an actor that only hears farewells may end."""
        known = [self._limiters.get(name) for name in names]
        return [NOTHING_USED if one is None else one[0].leave(client) for one in known]

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


class LimiterClient:
    """The limiters as those know them who ask for leases: where their actor was lost, a new one is made and asked.

    Reports that come while others are under way wait for these and go together: a message costs the actor a
    millisecond, and the lease in it a tenth of that.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._actor = names, open_limiters()
        self._turn = asyncio.Lock()
        self._reports: dict[str, LimiterReport] = {}
        self._leases: dict[str, Lease] = {}

    async def lease(self, name: str, report: LimiterReport) -> Lease:
        """A lease of the limiter of that name, from the actor that there is now. Ends by being cancelled."""
        self._reports[name] = report
        try:
            async with self._turn:
                if name in self._reports:
                    await self._send()
                return self._leases.pop(name)
        finally:
            self._reports.pop(name, None)

    @property
    def lends(self) -> list[Lend]:
        """`lease` of each name."""
        return [partial(self.lease, name) for name in self._names]

    async def leave(self, client: str) -> None:
        """Frees all places of a client. An actor that hangs does so by itself after `CLIENT_EXPIRY`."""
        with suppress(RayActorError, TimeoutError):
            async with asyncio.timeout(LEASE_SECONDS):
                await self._actor.leave.remote(self._names, client)

    async def _send(self) -> None:
        """Exchanges all reports that there are for leases."""
        while True:
            sent = dict(self._reports)
            try:
                async with asyncio.timeout(LEASE_SECONDS):
                    leases = await self._actor.lease.remote(sent)
                break
            except (RayActorError, TimeoutError):
                await asyncio.sleep(LIMITER_RETRY_SECONDS)
                self._actor = open_limiters()
        for name, lease in leases.items():
            if self._reports.get(name) is sent[name]:
                self._leases[name] = lease
                del self._reports[name]
