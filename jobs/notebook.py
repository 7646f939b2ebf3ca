"""Progress as a notebook draws it: a bar a stage."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from html import escape
from time import monotonic
from typing import Any

from untold.jobs.run.progress import clock

# A redraw is a message to the browser
REDRAW_SECONDS = 0.5


def notebook_bars() -> Callable[[Mapping[str, Any]], None] | None:
    """Draws progress events in the notebook that this process is the kernel of; None where it is none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # A terminal's IPython shows no HTML
    return _Bars(ipython.display).draw if ipython is not None and hasattr(shell, "kernel") else None


class _Bars:
    """The bars of one call, in one output that is rewritten."""

    def __init__(self, display: Any) -> None:
        self._html = display.HTML
        self._handle = display.display(self._html(""), display_id=True)
        self._lines: dict[str, str] = {}
        self._drawn = 0.0

    def draw(self, event: Mapping[str, Any]) -> None:
        """Takes an event as `Session.score` tells it."""
        if "note" in event:
            self._lines[f"note {len(self._lines)}"] = f"<div>{escape(event['note'])}</div>"
        else:
            self._lines[event["stage"]] = _bar(event)
        done = event.get("done") == event.get("total")
        if done or monotonic() - self._drawn >= REDRAW_SECONDS:
            self._drawn = monotonic()
            self._handle.update(self._html("".join(self._lines.values())))


def _bar(event: Mapping[str, Any]) -> str:
    """A stage's line: its bar, its calls, its cost, and the time that is left of it."""
    done, total = event["done"], event.get("total")
    parts = [f"{done:,} / {total:,}" if total else "starting", f"{event.get('calls', 0):,} calls"]
    if event.get("cost") is not None:
        parts.append(f"cost {event['cost']:.4f}")
    if event.get("left") is not None:
        parts.append(f"{clock(event['left'])} left")
    bar = f'<progress value="{done}" max="{total or 1}"></progress>'
    return f"<div>{bar} {escape(event['stage'])}: {', '.join(parts)}</div>"
