"""Milliseconds of processor time a call: of the answering actor in the whole job, and of the two bare loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import Ran, run_job, run_loop
from tests.benchmarks.samples import write_samples
from tests.benchmarks.throughput import take_turn
from tests.benchmarks.watching import ACTOR, ANSWERING, OTHER, cpu_between
from tests.fakes.model_server import ModelServer

REQUESTS = 20_000
PAIRS = 1


def measure(options: Options) -> list[Figure]:
    """Runs the three in turn. The whole process counts, all threads, from the first call to the last."""
    requests, pairs = options.requests or REQUESTS, options.pairs or PAIRS
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="fixed") as server:
        folder = Path(name)
        samples = write_samples(folder / "samples.jsonl", requests)
        steps: dict[str, Callable[[], Ran]] = {
            "user": lambda: run_loop(server, "user", samples, calls=requests),
            "job": lambda: run_job(server, samples, folder / "job", "llm.actors=1", calls=requests, watch=True),
            "engine": lambda: run_loop(server, "engine", samples, calls=requests),
        }
        turns = [take_turn(steps, backwards=bool(number % 2)) for number in range(pairs)]
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
