"""Where workers of one event loop wait until there is a request to send and the right to send it."""

from __future__ import annotations

import asyncio
from collections import deque


class Waiters:
    """Workers without a slot or a request, woken one by one.

    One, not all: with hundreds of workers, each slot would be hundreds of turns of the loop for one call.
    """

    def __init__(self) -> None:
        self._sleepers: deque[asyncio.Future[None]] = deque()
        self._alarm: asyncio.TimerHandle | None = None

    async def wait(self) -> None:
        """Until it is this worker's turn to look again."""
        sleeper = asyncio.get_running_loop().create_future()
        self._sleepers.append(sleeper)
        await sleeper

    def wake(self) -> None:
        """Wakes one worker, which wakes the next one where there is more to do."""
        while self._sleepers:
            sleeper = self._sleepers.popleft()
            # One that was cancelled while it slept cannot pass the turn on.
            if not sleeper.done():
                sleeper.set_result(None)
                return

    def wake_after(self, seconds: float) -> None:
        """Wakes one worker when the next slot's time comes."""
        loop = asyncio.get_running_loop()
        # One alarm is enough: a worker that wakes sets the next, for the slot that is first by then.
        if self._alarm is None or self._alarm.cancelled() or self._alarm.when() <= loop.time():
            self._alarm = loop.call_later(seconds, self.wake)
