"""Ctrl-C and SIGTERM: the first asks a run to end in order, the second ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


class Interrupts:
    """Remembers that the run was asked to end. `requested` is looked at between pieces of work.

    The first signal only sets it, and `say`s so; the second raises KeyboardInterrupt wherever the main thread is.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self.requested = False
        self._say = say
        self._waiting = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For waits that have nothing to put in order: here the first signal raises KeyboardInterrupt."""
        self._waiting = True
        try:
            # A signal that came before the wait is not to be waited for again
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Takes over SIGINT and SIGTERM while the context lasts. Only the main thread can: in others nothing changes.

        Enter it after the Spark session was opened, which sets handlers of its own.
        """
        numbers = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()
        before = {number: signal.signal(number, self._note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        """The handler of both signals."""
        again, self.requested = self.requested, True
        if again or self._waiting:
            raise KeyboardInterrupt
        self._say("Stopping; press Ctrl-C again to stop now")
