"""Work side by side in threads, of which some parts are done in turn by the thread that started them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any, TypeVar

Given = TypeVar("Given")


class Turns:
    """Runs functions side by side, once. What they hand to `take` is done one after the other, in the calling thread.

    Signals reach the main thread alone, so whatever a signal is to end belongs there.
    """

    def __init__(self) -> None:
        self._runner: Thread | None = None
        self._over = False
        # None: a function has ended
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def run(self, functions: Sequence[Callable[[], Given]], at_once: int) -> list[Given]:
        """What the functions give, in their order. Raises what the first of them raises, without waiting for others."""
        if min(at_once, len(functions)) <= 1:
            return [function() for function in functions]
        self._runner = current_thread()
        pool = ThreadPoolExecutor(at_once)
        running = [pool.submit(function) for function in functions]
        for one in running:
            one.add_done_callback(lambda _: self._waiting.put(None))
        try:
            while not all(one.done() for one in running):
                self._do_next()
                for one in running:
                    if one.done():
                        one.result()
            return [one.result() for one in running]
        finally:
            # What Spark is at for the others ends with its session
            pool.shutdown(wait=False, cancel_futures=True)
            self._end()

    def take(self, part: Callable[[], Given]) -> Given:
        """Does a part of a function in its turn, and gives or raises what that does.

        Raises CancelledError where one of the functions has failed: nothing is done for the others any more.
        """
        if self._runner in (None, current_thread()):
            return part()
        turn: Future[Given] = Future()
        self._waiting.put((turn, part))
        if self._over:
            self._end()
        return turn.result()

    def _do_next(self) -> None:
        """Waits for a part that is handed over, or for the end of a function, and does the part."""
        if (waiting := self._waiting.get()) is None:
            return
        turn, part = waiting
        try:
            turn.set_result(part())
        except BaseException as error:
            turn.set_exception(error)
            if not isinstance(error, Exception):
                raise

    def _end(self) -> None:
        """Lets nobody wait for a turn that does not come."""
        self._over = True
        while not self._waiting.empty():
            if (waiting := self._waiting.get()) is not None:
                waiting[0].cancel()
