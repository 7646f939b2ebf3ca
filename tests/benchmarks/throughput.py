"""Calls a second of a stage asked through the whole job, beside two bare loops and beside two actors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import Ran, run_job, run_loop
from tests.benchmarks.samples import write_samples
from tests.fakes.model_server import ModelServer

REQUESTS = 20_000
PAIRS = 5
GOAL_USER = 2.0
GOAL_ENGINE = 0.8
GOAL_TWO_ACTORS = 1.4


def measure(options: Options) -> list[Figure]:
    """Runs all four in turn; a ratio compares two runs of one turn."""
    jobs = {"one": "llm.actors=1", "two": "llm.actors=2"}
    return _figures(run_turns(jobs, options.requests or REQUESTS, options.pairs or PAIRS))


def run_turns(jobs: Mapping[str, str], requests: int, pairs: int, *, watch: bool = False) -> list[dict[str, Ran]]:
    """Turns of the user's loop, jobs of these settings, and the engine's bare loop, over one file of samples.

    Every other turn goes backwards, so that what the machine does meanwhile falls on all alike.
    """
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="fixed") as server:
        folder = Path(name)
        samples = write_samples(folder / "samples.jsonl", requests)

        def run(step: str) -> Ran:
            if step in jobs:
                return run_job(server, samples, folder / "job", jobs[step], calls=requests, watch=watch)
            return run_loop(server, step, samples, calls=requests)

        steps = ["user", *jobs, "engine"]
        return [{step: run(step) for step in steps[:: -1 if turn % 2 else 1]} for turn in range(pairs)]


def _figures(turns: Sequence[Mapping[str, Ran]]) -> list[Figure]:
    def ratios(name: str, over: str) -> tuple[float, ...]:
        return tuple(turn[name].rate / turn[over].rate for turn in turns)

    def each(read: Callable[[Ran], float], name: str) -> tuple[float, ...]:
        return tuple(read(turn[name]) for turn in turns)

    return [
        Figure("job / user's loop", ratios("one", "user"), at_least=GOAL_USER),
        Figure("job / engine's bare loop", ratios("one", "engine"), at_least=GOAL_ENGINE),
        Figure("two actors / one", ratios("two", "one"), at_least=GOAL_TWO_ACTORS),
        Figure("job", each(lambda ran: ran.rate, "one"), "calls/s"),
        Figure("job, two actors", each(lambda ran: ran.rate, "two"), "calls/s"),
        Figure("user's loop", each(lambda ran: ran.rate, "user"), "calls/s"),
        Figure("engine's bare loop", each(lambda ran: ran.rate, "engine"), "calls/s"),
        Figure("job, wall", each(lambda ran: ran.seconds, "one"), "s"),
        Figure("job, start to first call", each(lambda ran: ran.seconds_before, "one"), "s"),
        Figure("job, first to last call", each(lambda ran: ran.arrivals[-1] - ran.arrivals[0], "one"), "s"),
        Figure("job, last call to end", each(lambda ran: ran.seconds_after, "one"), "s"),
        Figure("job, two actors, wall", each(lambda ran: ran.seconds, "two"), "s"),
        Figure("user's loop, wall", each(lambda ran: ran.seconds, "user"), "s"),
    ]
