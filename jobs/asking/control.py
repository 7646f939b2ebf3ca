"""What the answering process is told from outside: signals, and lines of standard input. Imports no pyspark."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator

from untold.jobs.asking.job import Job, job_from_json


class Control:
    """What may end this process: a signal, a `stop` line on standard input, or the end of standard input.

    A thread reads the lines of standard input: `stop`, `go`, or a job as JSON. The first reason stays: `interrupted`,
    or `orphaned` where standard input ended, so that nobody waits for an outcome.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self._lines: list[str] = []
        self._go = False
        self._news = threading.Condition()
        self.take_signals()
        threading.Thread(target=self._read, daemon=True).start()

    def take_signals(self) -> None:
        """SIGINT and SIGTERM end the asking in order; Ray takes them over when it starts."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop("interrupted"))

    def reason(self) -> str | None:
        """`interrupted` or `orphaned`; None while nothing has asked this process to end."""
        return self._reason

    def confirmed(self) -> bool:
        """Whether a `go` line came since this was last true."""
        gone, self._go = self._go, False
        return gone

    def jobs(self) -> Iterator[Job]:
        """The jobs of standard input, one a line, until it ends or something stops this process."""
        while True:
            with self._news:
                self._news.wait_for(lambda: self._lines or self._reason, timeout=1.0)
                if self._reason:
                    return
                line = self._lines.pop(0) if self._lines else None
            if line:
                yield job_from_json(json.loads(line))

    def _read(self) -> None:
        """Sorts the lines of standard input; its end means that the process which started this one has gone."""
        for line in sys.stdin:
            if line.strip() == "stop":
                self._stop("interrupted")
                continue
            if line.strip() == "go":
                self._go = True
                continue
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        self._stop("orphaned")

    def _stop(self, reason: str) -> None:
        """Notes the reason, and wakes whoever waits for a job. A signal's handler runs this too."""
        self._reason = self._reason or reason
        # A signal's handler must not wait: where the lock is taken, `jobs` sees the reason within a second
        if self._news.acquire(blocking=False):
            self._news.notify_all()
            self._news.release()
