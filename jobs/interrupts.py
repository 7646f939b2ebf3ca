"""Ctrl-C and SIGTERM: the first asks a run to end in order, the second ends it at once."""

from __future__ import annotations

import signal
from types import FrameType


class Interrupts:
    """Remembers that the run was asked to end. `requested` is looked at between pieces of work."""

    def __init__(self) -> None:
        self.requested = False

    def install(self) -> None:
        """Takes over SIGINT and SIGTERM; call it after the Spark session was opened, which sets its own."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
