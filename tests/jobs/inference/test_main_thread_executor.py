"""Test parallel functions with parts that run one at a time in the main thread.

No thread waits forever for its turn.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from threading import Barrier, Event, current_thread
from time import sleep

import pytest

from untold.jobs.inference.stage.engines import MainThreadExecutor

LONG = 10.0


def test_functions_run_in_parallel_and_return_in_their_order() -> None:
    together = Barrier(2)

    def give(number: int) -> int:
        together.wait(LONG)
        return number

    assert MainThreadExecutor().run([lambda: give(1), lambda: give(2)], at_once=2) == [1, 2]


def test_parts_run_one_at_a_time_in_the_main_thread() -> None:
    turns, together, here = MainThreadExecutor(), Barrier(3), current_thread()
    seen: list[tuple[str, bool]] = []

    def part() -> None:
        seen.append(("begin", current_thread() is here))
        sleep(0.01)
        seen.append(("end", current_thread() is here))

    def function() -> None:
        together.wait(LONG)
        for _ in range(5):
            turns.take(part)

    turns.run([function] * 3, at_once=3)
    assert seen == [("begin", True), ("end", True)] * 15


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_error_of_a_part_is_raised_in_the_calling_thread(at_once: int) -> None:
    turns = MainThreadExecutor()

    def fail() -> None:
        raise KeyError("part")

    def function() -> str:
        with pytest.raises(KeyError):
            turns.take(fail)
        return "went on"

    assert turns.run([function, function], at_once) == ["went on", "went on"]


def check_nothing_follows(turns: MainThreadExecutor, fails: Callable[[], None], error: type[BaseException]) -> None:
    """Check that no other function runs a part after an error."""
    together, over, refused, done = Barrier(2), Event(), Event(), list[int]()

    def failing() -> None:
        together.wait(LONG)
        fails()

    def other() -> None:
        together.wait(LONG)
        over.wait(LONG)
        with suppress(CancelledError):
            turns.take(lambda: done.append(1))
        refused.set()

    with pytest.raises(error):
        turns.run([failing, other], at_once=2)
    over.set()
    assert refused.wait(LONG)
    assert done == []


def test_an_error_ends_all_functions_and_no_thread_waits_for_a_turn() -> None:
    def fail() -> None:
        raise ValueError("function")

    check_nothing_follows(MainThreadExecutor(), fail, ValueError)


def test_a_signal_in_a_part_ends_all() -> None:
    turns = MainThreadExecutor()

    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        sleep(LONG)

    check_nothing_follows(turns, lambda: turns.take(interrupted), KeyboardInterrupt)


def test_a_signal_while_nothing_waits_for_a_turn_ends_all() -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        sleep(1.0)

    with pytest.raises(KeyboardInterrupt):
        MainThreadExecutor().run([interrupt, lambda: sleep(1.0)], at_once=2)
