"""Whether work grows as its input does: the ratio of two sizes in one run, on any machine."""

from __future__ import annotations

import time
from collections.abc import Callable

FACTOR = 16
# Caches and the collector may cost a few times more of a larger input; work that is quadratic costs 16 times more.
ALLOWED = 4
ROUNDS = 3


def assert_linear(work: Callable[[int], object], size: int) -> None:
    """Raises AssertionError where `work` of a size takes more than four times its share of a sixteenth of it."""
    ratios = []
    for _ in range(ROUNDS):
        ratios.append(seconds_of(lambda: work(size)) / seconds_of(lambda: work(size // FACTOR), rounds=ROUNDS))
        if ratios[-1] <= ALLOWED * FACTOR:
            return
    raise AssertionError(f"{FACTOR} times the size took {', '.join(f'{ratio:.0f}' for ratio in ratios)} times as long")


def seconds_of(work: Callable[[], object], rounds: int = 1) -> float:
    """The CPU seconds of this thread for some work: the least of so many rounds."""
    return min(_seconds(work) for _ in range(rounds))


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
