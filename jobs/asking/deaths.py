"""How many answering actors may die: memory and nodes fail by chance, but a reason that stays must end a job."""

from __future__ import annotations

from collections import deque
from time import monotonic

# So many deaths within an hour, those not counted that a request was found guilty of, have a reason that stays
DEATHS_IN_AN_HOUR = 50
HOUR_SECONDS = 3600.0
# Ray tells of a death over many lines, the reason last
CAUSE_CHARACTERS = 600


class Deaths:
    """The deaths of the last hour; a long run may see many in all."""

    def __init__(self) -> None:
        self._died_at: deque[float] = deque()

    def count(self, cause: Exception) -> None:
        """Notes a death. Raises RuntimeError, with the cause of the last, where too many came within an hour."""
        now = monotonic()
        self._died_at.append(now)
        while self._died_at[0] <= now - HOUR_SECONDS:
            self._died_at.popleft()
        if (deaths := len(self._died_at)) > DEATHS_IN_AN_HOUR:
            reason = " ".join(str(cause).split())[-CAUSE_CHARACTERS:]
            raise RuntimeError(f"{deaths} answering actors died within an hour, the last because: {reason}")

    def forgive(self, count: int) -> None:
        """Forgets the last few, which one request turned out to be guilty of."""
        for _ in range(min(count, len(self._died_at))):
            self._died_at.pop()
