"""Measure the calls of a stage in a whole job, with one actor and with several, and in two bare loops.

Calls per second depend on the other load of the machine. Calls per second of the processor time of the actor or the
loop do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import Ran, run_job, run_loop
from tests.benchmarks.samples import write_samples
from tests.benchmarks.watching import ACTOR, ANSWERING, LIMITER, OTHER, cpu_between
from tests.fakes.model_server import ModelServer

REQUESTS = 20_000
PAIRS = 3
ACTORS = (1, 2, 4)
GOAL_USER = 2.0
GOAL_ENGINE = 0.8
GOAL_TWO_ACTORS = 1.4
Read = Callable[[Ran], float]


def measure(options: Options) -> list[Figure]:
    """Run all of them in turn. A ratio compares two runs of one turn."""
    jobs = {str(count): f"llm.actors={count}" for count in ACTORS}
    requests = options.requests or REQUESTS
    turns = run_turns(jobs, requests, options.pairs or PAIRS)

    def ratio(name: str, over: str, read: Read = lambda ran: ran.rate) -> tuple[float, ...]:
        return tuple(read(turn[name]) / read(turn[over]) for turn in turns)

    def each(name: str, read: Read) -> tuple[float, ...]:
        return tuple(read(turn[name]) for turn in turns)

    return [
        Figure("calls a core: actor / user's loop", ratio("1", "user", _a_core), at_least=GOAL_USER),
        Figure("calls a core: actor / engine's bare loop", ratio("1", "engine", _a_core), at_least=GOAL_ENGINE),
        Figure("calls/s: job / user's loop", ratio("1", "user"), at_least=GOAL_USER),
        Figure("calls/s: job / engine's bare loop", ratio("1", "engine"), at_least=GOAL_ENGINE),
        Figure("calls/s: two actors / one", ratio("2", "1"), at_least=GOAL_TWO_ACTORS),
        Figure("calls/s: four actors / one", ratio("4", "1")),
        *(Figure(f"job, actors: {count}", each(str(count), lambda ran: ran.rate), "calls/s") for count in ACTORS),
        Figure("user's loop", each("user", lambda ran: ran.rate), "calls/s"),
        Figure("engine's bare loop", each("engine", lambda ran: ran.rate), "calls/s"),
        Figure("one actor", each("1", _a_core), "calls/s a core"),
        Figure("user's loop", each("user", _a_core), "calls/s a core"),
        Figure("engine's bare loop", each("engine", _a_core), "calls/s a core"),
        *(
            Figure(
                f"beside the actor: {role}", each("1", lambda ran, of=role: 1000 * _cpu(ran, of) / requests), "ms/call"
            )
            for role in (ANSWERING, LIMITER, OTHER)
        ),
        Figure("job, wall", each("1", lambda ran: ran.seconds), "s"),
        Figure("job, start to first call", each("1", lambda ran: ran.seconds_before), "s"),
        Figure("job, last call to end", each("1", lambda ran: ran.seconds_after), "s"),
    ]


def run_turns(jobs: Mapping[str, str], requests: int, pairs: int) -> Sequence[Mapping[str, Ran]]:
    """Run turns of the user's loop, jobs with these settings, and the engine's bare loop, on one file of samples.

    Every other turn is reversed, so that the other load of the machine affects all equally.
    """
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="fixed") as server:
        folder = Path(name)
        samples = write_samples(folder / "samples.jsonl", requests)

        def run(step: str) -> Ran:
            if step in jobs:
                return run_job(server, samples, folder / "job", jobs[step], calls=requests, watch=True)
            return run_loop(server, step, samples, calls=requests)

        steps = ["user", *jobs, "engine"]
        return [{step: run(step) for step in steps[:: -1 if turn % 2 else 1]} for turn in range(pairs)]


def _cpu(ran: Ran, role: str) -> float:
    return cpu_between(ran.looks, role, ran.arrivals[0], ran.arrivals[-1])


def _a_core(ran: Ran) -> float:
    """Return calls per second of processor time, over all threads of the actor or of the loop."""
    return len(ran.arrivals) / (ran.cpu_seconds or _cpu(ran, ACTOR))
