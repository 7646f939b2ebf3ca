"""The end of an attempt: signals, the reason, the exit code and the last line."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

from untold.jobs.run.terminal import amount

# The codes of docs/contract.md. Shells return 130 (128 + SIGINT) for an interrupted command
EXIT_CODES = {"budget": 3, "outage": 5, "spooled": 6, "batched": 7, "interrupted": 130, "refused": 1, "broken": 1}
FAILED_TOO_MANY = 4
# The samples of `untold compare --max-drop` decide neither for a pass nor for a failure
UNDECIDED = 8
# The reasons with requests that the next start continues
LEFT = ("batched", "spooled")
# Readers of the manifest see a refused endpoint and a broken process as a failed run
MANIFEST_STATUS = {"refused": "failed", "broken": "failed", None: "finished"}


@dataclass(frozen=True)
class Ending:
    """The reason for the end of a start.

    Attributes:
        reason: `budget`, `outage`, `spooled`, `batched`, `interrupted`, `refused` or `broken` (the last two with
            `error`). None if the start sent all requests.
        calls: number of calls.
        lost: number of paid completions that could not be written.
        spool: folder of the spool, or the store, with the requests.
    """

    reason: str | None = None
    error: str | None = None
    calls: int = 0
    lost: int = 0
    spool: str = ""

    @property
    def status(self) -> str:
        """The status for the manifest."""
        return MANIFEST_STATUS.get(self.reason) or str(self.reason)

    def explain(self, command: str) -> str | None:
        """Return a line about the reason of an early end and how to continue. None without an early end."""
        again = f"continue with: {command}"
        reasons = {
            "budget": f"the budget is used up after {amount(self.calls, 'call')}; raise budget.*, then {again}",
            "outage": f"the endpoint does not answer; {self._kept('the completions are kept')}, {again}",
            "spooled": f"requests wait in a spool. Run `untold answer {shlex.quote(self.spool)}`, then {again}",
            "batched": f"requests wait in batches. See `untold batches {shlex.quote(self.spool)}`, and later {again}",
            "interrupted": f"interrupted; {self._kept('the completions are kept')}, {again}",
            "refused": f"the endpoint refuses the run: {self.error}, then {again}",
            # A broken process may have had unwritten completions
            "broken": f"{self.error}; {self._kept('the stored completions are kept')}, {again}",
        }
        return reasons.get(self.reason or "")

    def _kept(self, all_kept: str) -> str:
        """Return a text about lost completions, or `all_kept` if none is known to be lost."""
        lost = amount(self.lost, "answer is lost", "answers are lost")
        return f"{lost} and will be paid for again, all others are kept" if self.lost else all_kept

    def exit_code(
        self, statuses: Mapping[str, int], fail_on_error: str | Mapping[str, float], missed: Sequence[str] = ()
    ) -> int:
        """Return the exit code of a run from its numbers of samples by status (docs/contract.md, "Exit codes").

        missed: the result of `missed_too_often`.
        """
        if self.reason in EXIT_CODES:
            return EXIT_CODES[self.reason]
        bad = statuses.get("failed", 0) + statuses.get("partial", 0)
        if isinstance(fail_on_error, str):
            exceeded = fail_on_error == "any" and bad > 0
        else:
            share = bad / max(sum(statuses.values()), 1)
            exceeded = share > fail_on_error.get("share", 1) or bad > fail_on_error.get("count", bad)
        return FAILED_TOO_MANY if exceeded or missed else 0


def below_bars(summary: Iterable[Mapping[str, Any]], bars: Mapping[str, float]) -> list[str]:
    """Return a line for each metric with a mean over all systems below its bar. An undefined mean is below any bar.

    summary: rows of the table `summary`; bars: the minimum mean by metric.
    """
    overall = {row["metric"]: row for row in summary if row["level"] == "overall"}
    found = []
    for metric, bar in bars.items():
        row = overall.get(metric, {"mean": None, "n": 0, "scored": 0})
        if row["mean"] is None or row["mean"] < bar:
            mean = "undefined mean" if row["mean"] is None else f"mean {row['mean']:.6g}"
            found.append(f"{metric}: {mean} is below the bar {bar:g} (n {row['n']:,}, scored {row['scored']:,})")
    return found


def missed_too_often(audits: Iterable[Mapping[str, Any]], bars: Mapping[str, float | None]) -> list[str]:
    """Return a line for each metric with an upper limit of its miss rate above its bar.

    audits: rows of `measures_summary` about audits; bars: the maximum miss rate by metric, None for no limit.
    """
    return [
        f"{row['metric']}: up to {row['ci_high']:.3%} of the pairs that the model did not judge are wrong, and "
        f"max_miss_rate is {bar:.3%} ({amount(row['defined'], 'audited pair')})"
        for row in audits
        if row["measure"] == "miss_rate" and (bar := bars.get(row["metric"])) is not None and row["ci_high"] > bar
    ]


class Interrupts:
    """The request to end a run. Code checks `requested` between pieces of work.

    The first signal sets it and calls `say`. The second signal raises KeyboardInterrupt in the main thread.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self.requested = False
        self._say = say
        self._waiting = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Raise KeyboardInterrupt at the first signal, for waits without work to finish."""
        self._waiting = True
        try:
            # A signal before the wait counts
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM within the context. In threads other than the main thread, nothing changes.

        Enter it after the Spark session is open, because the session sets its own handlers.
        """
        numbers = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()
        before = {number: signal.signal(number, self._note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        """Handle both signals."""
        again, self.requested = self.requested, True
        if again or self._waiting:
            raise KeyboardInterrupt
        self._say("Stopping. Press Ctrl-C again to stop at once")
