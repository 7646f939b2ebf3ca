"""The tables that `untold plan` prints: what is possible of each stage, and what is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from untold.jobs.run.terminal import Page

POSSIBLE = ("requests", "reused", "prompt_tokens", "completion_tokens", "cost", "hours")
EXPECTED = ("expected_requests", "expected_prompt_tokens", "expected_completion_tokens", "expected_cost")
HEADS = ("requests", "tokens in", "tokens out", "cost")
AMOUNTS = ("cost", "hours", "expected_cost")
NOTES = (
    "=: exact, <=: at most. Tokens, cost and hours are of the requests still to be asked (requests - reused), without "
    "retries. Tokens in are estimated, tokens out are at most. Expected: by the means of the store's completions, else "
    "by the figures of docs/methods.md, section 9. -: no price or no limit is set."
)
WIDEST = 100
Row = Mapping[str, Any]


def plan_lines(rows: Sequence[Row], page: Page) -> list[str]:
    """The plan as two tables with their totals: what is possible, and what is expected."""
    from untold.jobs.run.terminal import Page, table, wrapped

    whole = [*rows, _total(rows)]
    names = [[row["metric"], row["stage"]] for row in whole]
    possible = [[*name, *_possible(row)] for name, row in zip(names, whole, strict=True)]
    expected = [[*name, *_numbers(row, EXPECTED)] for name, row in zip(names, whole, strict=True)]
    head, *tail = HEADS
    return [
        "possible",
        *table(["metric", "stage", head, "reused", *tail, "hours"], possible, page, names=2),
        "",
        "expected",
        *table(["metric", "stage", *HEADS], expected, page, names=2),
        "",
        *wrapped(NOTES, Page(min(page.width or WIDEST, WIDEST))),
    ]


def _possible(row: Row) -> list[str]:
    """The numbers of a row: `=` before an exact number of requests, `<=` before an upper bound."""
    requests, *others = _numbers(row, POSSIBLE)
    return [f"{'=' if row['exact'] else '<='} {requests}", *others]


def _numbers(row: Row, names: Sequence[str]) -> list[str]:
    """Counts in full, amounts with two decimals, `-` for what is not known."""
    return ["-" if row[name] is None else format(row[name], ",.2f" if name in AMOUNTS else ",") for name in names]


def _total(rows: Sequence[Row]) -> dict[str, Any]:
    """The sums of all rows; stages are asked one after the other, so hours add up too."""
    known = {name: [row[name] for row in rows if row[name] is not None] for name in (*POSSIBLE, *EXPECTED)}
    sums = {name: sum(values) if values else None for name, values in known.items()}
    return {"metric": "total", "stage": "", "exact": all(row["exact"] for row in rows), **sums}
