"""Measure the used share of a request limit in a whole job over a minute, with a server that enforces the limit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import run_job
from tests.benchmarks.samples import write_samples
from tests.fakes.model_server import ModelServer

LIMIT = 6_000
REQUESTS = 6_600
MINUTE = 60.0
GOAL_SHARE = 0.97
# In one second: limit/60 plus a tenth of it, at least plus two
GOAL_SECOND = LIMIT / MINUTE + max(2.0, LIMIT / MINUTE / 10)


def measure(options: Options) -> list[Figure]:
    """Run a job for a minute. If `requests` is small, the whole job is measured instead of its first minute."""
    requests = options.requests or REQUESTS
    limits = {"requests_per_minute": LIMIT}
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="fixed", limits=limits) as server:
        samples = write_samples(Path(name) / "samples.jsonl", requests)
        ran = run_job(server, samples, Path(name) / "job", f"llm.requests_per_minute={LIMIT}")
    times = ran.arrivals
    seconds = min(MINUTE, times[-1] - times[0])
    used = bisect_left(times, times[0] + seconds)
    return [
        Figure(f"share of {LIMIT:,} a minute, first minute", (used / (LIMIT * seconds / MINUTE),), at_least=GOAL_SHARE),
        Figure("answers 429", (ran.rejected,), at_most=0),
        Figure("most calls in any 60 s", (count_most(times, MINUTE),), at_most=LIMIT),
        Figure("most calls in any 1 s", (count_most(times, 1.0),), at_most=GOAL_SECOND),
        Figure("first to last call", (times[-1] - times[0],), "s"),
        Figure("first to last call, rate a minute", (ran.rate * MINUTE,), "calls/min"),
    ]


def count_most(times: Sequence[float], seconds: float) -> int:
    """Return the maximum number of sorted times in a window of `seconds`."""
    return max(bisect_left(times, at + seconds) - index for index, at in enumerate(times))
