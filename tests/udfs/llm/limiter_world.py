"""Simulated clients of a limiter with a simulated clock."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any

from untold.udfs.llm.limiter import Budget, Lease, Limiter, LimiterReport, Limits
from untold.udfs.llm.usage import TOKENS_OF_A_PRICE, Prices, Usage

START = 1_000_000.0
LATE = 0.05
NO_BUDGET = Budget()


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@dataclass
class Behaviour:
    """The behavior of a simulated client, with all times in seconds."""

    in_flight: int = 64
    answer: tuple[float, float] = (0.05, 0.5)
    poll: tuple[float, float] = (0.05, 0.1)
    delay: tuple[float, float] = (0.0, 0.0)
    awake: tuple[float, float] = (1e9, 1e9)
    asleep: tuple[float, float] = (0.0, 0.0)
    jitter: float = 0.02
    estimates: tuple[int, int] = (0, 0)
    error: tuple[float, float] = (0.0, 0.0)


@dataclass
class Client:
    """The state of a request loop between its reports."""

    name: str
    behaviour: Behaviour
    slots: deque[tuple[float, int]] = field(default_factory=deque)
    places: int = 1
    in_flight: int = 0
    reserved: int = 0
    unused: int = 0
    calls: int = 0
    tokens: int = 0
    until: float = float("-inf")
    tokens_until: float = float("-inf")
    awake: bool = True
    refusal: str | None = None


@dataclass(frozen=True)
class Sent:
    at: float
    estimate: int
    used: int


class World:
    """The clients, the limiter and a heap of events. An event is a tuple of the time, a number and a function."""

    def __init__(
        self,
        clients: Sequence[Behaviour],
        limits: Limits,
        *,
        seed: int = 0,
        budget: Budget = NO_BUDGET,
        price: float = 0.0,
    ) -> None:
        self.clock, self.random = Clock(), Random(seed)
        self.limits, self.budget, self.price = limits, budget, price
        self.limiter = Limiter(self.clock)
        self.clients = [Client(f"c{number}", behaviour) for number, behaviour in enumerate(clients)]
        self.sent: list[Sent] = []
        self.peak = 0
        self._events: list[tuple[float, int, Any]] = []
        self._number = 0
        for client in self.clients:
            self._at(self._between((0.0, 1.0)), lambda client=client: self._poll(client))
            self._at(self._between(client.behaviour.awake), lambda client=client: self._turn(client))

    def run(self, seconds: float) -> World:
        end = self.clock.now + seconds
        while self._events and self._events[0][0] <= end:
            self.clock.now, _, act = heappop(self._events)
            act()
        self.clock.now = end
        return self

    def restart_limiter(self) -> None:
        self.limiter = Limiter(self.clock, restarted=True)

    def _at(self, wait: float, act: Any) -> None:
        self._number += 1
        heappush(self._events, (self.clock.now + wait, self._number, act))

    def _between(self, span: tuple[float, float]) -> float:
        return self.random.uniform(*span)

    def _turn(self, client: Client) -> None:
        client.awake = not client.awake
        span = client.behaviour.awake if client.awake else client.behaviour.asleep
        self._at(self._between(span), lambda: self._turn(client))

    def _poll(self, client: Client) -> None:
        self._drop_late(client)
        report = self._report(client)
        lease = self.limiter.lease(report)
        client.unused = 0
        self._at(self._between(client.behaviour.delay), lambda: self._receive(client, report, lease))

    def _receive(self, client: Client, report: LimiterReport, lease: Lease) -> None:
        client.places, client.refusal, client.tokens_until = lease.places, lease.refusal, lease.tokens_until
        for at, estimate in zip(lease.times, report.estimates, strict=False):
            client.slots.append((at, estimate))
            client.until = max(client.until, at)
            late = self.random.uniform(0.0, client.behaviour.jitter)
            self._at(max(0.0, at - self.clock.now) + late, lambda: self._send(client))
        self._at(self._between(client.behaviour.poll), lambda: self._poll(client))

    def _report(self, client: Client) -> LimiterReport:
        behaviour = client.behaviour
        count = max(0, min(client.places - client.in_flight + 1, behaviour.in_flight) - len(client.slots))
        estimates = tuple(self.random.randint(*behaviour.estimates) for _ in range(count)) if client.awake else ()
        tokens = client.tokens + client.reserved
        held = sum(estimate for _, estimate in client.slots)
        return LimiterReport(
            client=client.name,
            run="run",
            estimates=estimates,
            in_flight=client.in_flight,
            held=len(client.slots),
            held_tokens=held,
            spent=Usage(tokens, calls=client.calls, cost=tokens * self.price),
            prices=Prices(prompt=self.price * TOKENS_OF_A_PRICE),
            unused_tokens=client.unused,
            ahead=client.until - self.clock.now,
            tokens_ahead=client.tokens_until - self.clock.now,
            limits=self.limits,
            budget=self.budget,
        )

    def _send(self, client: Client) -> None:
        """Use the next slot, or drop the slot if it is late, there is no free place, or there is no request."""
        self._drop_late(client)
        if not client.slots or client.slots[0][0] > self.clock.now or client.in_flight >= client.places:
            return
        estimate = client.slots.popleft()[1]
        used = max(0, round(estimate * (1 + self._between(client.behaviour.error))))
        client.in_flight += 1
        client.calls += 1
        client.reserved += estimate
        self.sent.append(Sent(self.clock.now, estimate, used))
        self.peak = max(self.peak, sum(one.in_flight for one in self.clients))
        self._at(self._between(client.behaviour.answer), lambda: self._answered(client, estimate, used))

    def _drop_late(self, client: Client) -> None:
        while client.slots and client.slots[0][0] < self.clock.now - LATE:
            client.unused += client.slots.popleft()[1]

    def _answered(self, client: Client, estimate: int, used: int) -> None:
        client.in_flight -= 1
        client.reserved -= estimate
        client.tokens += used
        client.unused += estimate - used


def most_in(seconds: float, times: Sequence[float]) -> int:
    """Return the maximum number of events in a half-open window of this length."""
    ordered = sorted(times)
    return max((bisect_left(ordered, at + seconds) - index for index, at in enumerate(ordered)), default=0)


def most_tokens(seconds: float, sent: Sequence[Sent]) -> int:
    best, total, window = 0, 0, deque[Sent]()
    for one in sorted(sent, key=lambda item: item.at):
        window.append(one)
        total += one.used
        while window[0].at <= one.at - seconds:
            total -= window.popleft().used
        best = max(best, total)
    return best


def assert_requests_within(world: World, limit: float) -> None:
    times = [one.at for one in world.sent]
    assert most_in(60.0, times) <= limit
    assert most_in(1.0, times) <= limit / 60 + max(2.0, limit / 600)


def random_behaviour(random: Random) -> Behaviour:
    slow = random.choice([0.1, 1.0, 5.0])
    return Behaviour(
        in_flight=random.choice([1, 4, 64]),
        answer=(0.01, slow),
        poll=random.choice([(0.01, 0.02), (0.05, 0.1), (0.1, 2.0)]),
        delay=random.choice([(0.0, 0.0), (0.0, 0.01), (0.0, 0.1)]),
        awake=random.choice([(1e9, 1e9), (0.1, 1.0), (5.0, 20.0)]),
        asleep=random.choice([(0.1, 0.5), (5.0, 40.0)]),
        jitter=random.choice([0.0, 0.01, LATE]),
    )
