"""Milliseconds of processor time a call: of the answering actor in the whole job, and of the two bare loops."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import Ran
from tests.benchmarks.throughput import run_turns
from tests.benchmarks.watching import ACTOR, ANSWERING, OTHER, cpu_between

REQUESTS = 20_000
PAIRS = 1


def measure(options: Options) -> list[Figure]:
    """Runs the three in turn. The whole process counts, all threads, from the first call to the last."""
    requests, pairs = options.requests or REQUESTS, options.pairs or PAIRS
    turns = run_turns({"job": "llm.actors=1"}, requests, pairs, watch=True)
    jobs = [turn["job"] for turn in turns]
    return [
        _figure("answering actor", [_cpu(ran, ACTOR) for ran in jobs], requests),
        _figure("user's loop", [turn["user"].cpu_seconds for turn in turns], requests),
        _figure("engine's bare loop", [turn["engine"].cpu_seconds for turn in turns], requests),
        _figure("beside the actor: answering process", [_cpu(ran, ANSWERING) for ran in jobs], requests),
        _figure("beside the actor: limiter and Ray", [_cpu(ran, OTHER) for ran in jobs], requests),
    ]


def _cpu(ran: Ran, role: str) -> float:
    return cpu_between(ran.looks, role, ran.arrivals[0], ran.arrivals[-1])


def _figure(name: str, seconds: Sequence[float], requests: int) -> Figure:
    return Figure(name, tuple(1000 * spent / requests for spent in seconds), "ms/call")
