"""The tables that `untold plan` prints: what is possible of each stage, and what is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from untold.jobs.run.terminal import Page

POSSIBLE = ("requests", "reused", "prompt_tokens", "completion_tokens", "cost", "hours")
EXPECTED = ("expected_requests", "expected_prompt_tokens", "expected_completion_tokens", "expected_cost")
CLUSTER = ("cluster_hours", "files", "bytes", "store_requests", "machines")
CLUSTER_HEADS = ("hours", "files", "bytes", "store requests", "machines")
CLUSTER_NOTE = (
    "Cluster: the expected requests on these machines, at the limits or at the measured speed, whichever is slower; "
    "files and bytes of completions, and the requests to an object store that write and read them. Machines: how many "
    "are worth having, - where no limit ends what more of them gain."
)
HEADS = ("requests", "tokens in", "tokens out", "cost")
AMOUNTS = ("cost", "hours", "expected_cost", "cluster_hours")
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
        *_by_batches(whole),
        *(_on_cluster(whole, page) if CLUSTER[0] in rows[0] else []),
        *wrapped(NOTES, Page(min(page.width or WIDEST, WIDEST))),
    ]


def _by_batches(rows: Sequence[Row]) -> list[str]:
    """What batches would cost, and how many rounds of them there are; nothing without prices."""
    from untold.jobs.run.terminal import amount
    from untold.udfs.stages import LOOKUPS

    *stages, total = rows
    if total["batch_cost"] is None:
        return []
    # Stages of several metrics are asked one after the other too
    asked = {row["stage"] for row in stages if row["requests"] > row["reused"] and row["batch_cost"] is not None}
    within = amount(len(asked.difference(LOOKUPS)), "round of batches", "rounds of batches")
    cost = f"cost {total['batch_cost']:,.2f} at most"
    return [f"by batches (llm.delivery=batch): {cost}, {within}, each within 24 hours", ""]


def _on_cluster(rows: Sequence[Row], page: Page) -> list[str]:
    """What the stages take on the machines, and what its columns say."""
    from untold.jobs.run.terminal import Page, table, wrapped

    cells = [[row["metric"], row["stage"], *_numbers(row, CLUSTER)] for row in rows]
    head = table(["metric", "stage", *CLUSTER_HEADS], cells, page, names=2)
    return ["cluster", *head, "", *wrapped(CLUSTER_NOTE, Page(min(page.width or WIDEST, WIDEST))), ""]


def _possible(row: Row) -> list[str]:
    """The numbers of a row: `=` before an exact number of requests, `<=` before an upper bound."""
    requests, *others = _numbers(row, POSSIBLE)
    return [f"{'=' if row['exact'] else '<='} {requests}", *others]


def _numbers(row: Row, names: Sequence[str]) -> list[str]:
    """Counts in full, amounts with two decimals, `-` for what is not known."""
    return ["-" if row[name] is None else format(row[name], ",.2f" if name in AMOUNTS else ",") for name in names]


def _total(rows: Sequence[Row]) -> dict[str, Any]:
    """The sums of all rows; stages are asked one after the other, so hours add up too."""
    names = (*POSSIBLE, "batch_cost", *EXPECTED, *(CLUSTER if CLUSTER[0] in rows[0] else ()))
    known = {name: [row[name] for row in rows if row[name] is not None] for name in names}
    sums = {name: sum(values) if values else None for name, values in known.items()}
    # One stage after the other has all machines
    most = {"machines": max(known["machines"], default=None)} if "machines" in known else {}
    return {"metric": "total", "stage": "", "exact": all(row["exact"] for row in rows), **sums, **most}
