"""Test that the time of a function is linear in its input. It compares two sizes in one run, on any machine."""

from __future__ import annotations

import time
from collections.abc import Callable

FACTOR = 16
# Caches and the garbage collector can make a large input a few times slower. Quadratic work is 16 times slower.
ALLOWED = 4
ROUNDS = 3


def assert_linear(work: Callable[[int], object], size: int) -> None:
    """Raise AssertionError if the function needs more than four times the expected time for a larger input."""
    ratios = []
    for _ in range(ROUNDS):
        ratios.append(seconds_of(lambda: work(size)) / seconds_of(lambda: work(size // FACTOR), rounds=ROUNDS))
        if ratios[-1] <= ALLOWED * FACTOR:
            return
    raise AssertionError(f"{FACTOR} times the input took {', '.join(f'{ratio:.0f}' for ratio in ratios)} times as long")


def seconds_of(work: Callable[[], object], rounds: int = 1) -> float:
    """Return the CPU time of this thread for the function, in seconds. It is the minimum of several rounds."""
    return min(_seconds(work) for _ in range(rounds))


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
