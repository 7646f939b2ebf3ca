"""The table that `untold plan` prints: what is possible of each stage, and beside it what is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = (
    *("metric", "stage", "", "requests", "reused", "prompt tokens", "completion tokens", "cost", "hours"),
    *("expected requests", "prompt tokens", "completion tokens", "cost"),
)
# Columns that are set to the left; numbers stand to the right
TEXT_COLUMNS = 3
COUNTS_SHOWN = ("requests", "reused", "prompt_tokens", "completion_tokens")
AMOUNTS_SHOWN = ("cost", "hours")
EXPECTED_SHOWN = ("expected_requests", "expected_prompt_tokens", "expected_completion_tokens")


def show_plan(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the plan as a table with its totals: what is possible, and behind it what is expected."""
    lines = [COLUMNS, *map(_line, rows), _line(_total(rows))]
    widths = [max(len(line[place]) for line in lines) for place in range(len(COLUMNS))]
    for line in lines:
        cells = [
            cell.ljust(width) if place < TEXT_COLUMNS else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    print("=: exact, <=: at most. Tokens, cost and hours are of what is still to be asked (requests - reused), without")
    print("retries; prompt tokens are estimated, completion tokens are at most. Expected: by the means of the store's")
    print("completions, else by the figures of docs/methods.md, section 9. -: no price or no limit is set.")


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row as cells: `=` for an exact number of requests, `<=` for an upper bound, `-` for what is not known."""
    counts = [f"{row[name]:,}" for name in COUNTS_SHOWN]
    amounts = ["-" if row[name] is None else f"{row[name]:,.2f}" for name in (*AMOUNTS_SHOWN, "expected_cost")]
    expected = [f"{row[name]:,}" for name in EXPECTED_SHOWN]
    sign = "=" if row["exact"] else "<="
    return row["metric"], row["stage"], sign, *counts, *amounts[:2], *expected, amounts[2]


def _total(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of all rows; stages are asked one after the other, so hours add up too."""
    names = (*COUNTS_SHOWN, *AMOUNTS_SHOWN, *EXPECTED_SHOWN, "expected_cost")
    known = {name: [row[name] for row in rows if row[name] is not None] for name in names}
    sums = {name: sum(values) if values else None for name, values in known.items()}
    return {"metric": "total", "stage": "", "exact": all(row["exact"] for row in rows), **sums}
