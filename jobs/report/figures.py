"""The figures of a report: systems with their intervals and distributions, measures, failures, usage."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from untold.jobs.analysis import changes, compare_runs, distribution, left_out
from untold.jobs.report.sources import Sources, rows_of
from untold.jobs.run.manifest import by_stage
from untold.jobs.summary.ranking import CompareError
from untold.jobs.summary.run_summary import count_failures
from untold.jobs.summary.trends import date_of, describe_finding
from untold.udfs.redaction import redact

Row = dict[str, Any]
# Bars of a distribution, from 0 to 1
BARS = 20
# Pairs of systems of a metric, and statements that are left out, that a report lists
PAIRS, LEFT_OUT = 40, 30
# The last dates that its trend shows
DATES = 31


def system_rows(sources: Sources) -> dict[str, list[Row]]:
    """By metric the rows of the tables `summary`, best mean first: their columns, `label` and `bars`.

    The row of all samples comes first where a run has several systems, and stands for the run where it has none.
    """
    found: dict[str, list[Row]] = defaultdict(list)
    for place, rows in enumerate(sources.summaries):
        bars = _distributions(sources, place)
        systems = Counter(row["metric"] for row in rows if row["level"] == "system")
        for row in rows:
            several = row["level"] == "overall" and systems[row["metric"]]
            # One system is all of its run, and runs beside each other have no row in common
            if several and (several == 1 or len(sources.runs) > 1):
                continue
            label = "all systems" if several else sources.labels[place, row["system"]]
            counts = bars[row["metric"], row["system"]]
            found[row["metric"]].append({**row, "label": label, "run": place, "all": bool(several), "bars": counts})
    return {metric: sorted(rows, key=_best_first) for metric, rows in sorted(found.items())}


def _best_first(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return not row["all"], row["mean"] is None, -(row["mean"] or 0.0), row["label"]


def _distributions(sources: Sources, place: int) -> dict[tuple[str, str | None], list[int]]:
    """How many scores lie in each of `BARS` parts from 0 to 1, by metric and system, and by metric alone as None."""
    found: dict[tuple[str, str | None], list[int]] = defaultdict(lambda: [0] * BARS)
    for row in distribution([sources.runs[place]], BARS).to_pylist():
        for system in (None, row["system"]):
            found[row["metric"], system][round(row["low"] * BARS)] += row["count"]
    return found


def difference_rows(sources: Sources) -> tuple[dict[str, list[Row]], str | None]:
    """By metric the pairs of systems, as `untold compare` has them; else how each changed from run to run by date.

    Where neither can be had, why. Of many pairs those of the least p are left.
    """
    try:
        rows = compare_runs(sources.runs)["comparisons"].to_pylist()
    except CompareError as error:
        # The same systems answered the same questions in several runs
        if len({date_of(run) for run in sources.runs}) < max(2, len(sources.runs)):
            return {}, str(error)
        changed = changes(sources.runs).to_pylist() if sources.trend is None else sources.trend.steps
        names = (("first", "date"), ("second", "before"))
        rows = [row | {name: f"{row['system']}, {row[date]}" for name, date in names} for row in changed]
    found: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["p_value"] is None, row["p_value"] or 0)):
        if len(found[row["metric"]]) < PAIRS:
            found[row["metric"]].append(row)
    return found, None


def trend_rows(sources: Sources) -> tuple[dict[str, list[Row]], list[str]]:
    """By metric the means of the last dates, and the lines about what changed; nothing where the runs have no dates."""
    found = sources.trend
    if found is None:
        return {}, []
    last = set(found.dates[-DATES:])
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in found.shown:
        if row["date"] in last:
            rows[row["metric"]].append({**row, "label": row["system"] or f"({row['level']})"})
    return rows, [describe_finding(row) for row in found.findings]


def left_out_rows(sources: Sources) -> list[Row]:
    """The statements that most answers to a query miss, as `untold.Run.left_out` has them."""
    return [row for row in left_out(sources.runs, n=LEFT_OUT).to_pylist() if row["responses"] > 1]


def measure_rows(sources: Sources) -> list[Row]:
    """The rows of the tables `measures_summary` with `label`; a run with several systems has theirs alone."""
    found = []
    for place, run in enumerate(sources.runs):
        rows = rows_of(run, "measures_summary")
        systems = {(row["metric"], row["measure"]) for row in rows if row["level"] == "system"}
        shown = [row for row in rows if row["level"] == "system" or (row["metric"], row["measure"]) not in systems]
        found += [{**row, "label": sources.labels.get((place, row["system"]), row["system"])} for row in shown]
    return sorted(found, key=lambda row: (row["metric"], row["measure"], row["label"] or ""))


def failure_rows(sources: Sources) -> list[Row]:
    """Failed requests by run, stage and kind, most first: count, and sample_id and error of one."""
    found = []
    for place, run in enumerate(sources.runs):
        if "failures" in run.tables:
            rows = count_failures(run.dataset("failures"))
            found += [{**row, "run": place, "error": redact(row["error"] or "")} for row in rows]
    return sorted(found, key=lambda row: -row["count"])


def usage_rows(sources: Sources) -> list[Row]:
    """The rows of the tables `usage`, one a stage, with `run`, and `tokens`."""
    found = []
    for place, run in enumerate(sources.runs):
        for row in by_stage(rows_of(run, "usage")):
            tokens = (row["prompt_tokens"] or 0) + (row["completion_tokens"] or 0)
            found.append({**row, "run": place, "tokens": tokens})
    return found


def total(rows: Iterable[Mapping[str, Any]], name: str) -> float:
    """The sum of a column, nulls as 0."""
    return sum(row.get(name) or 0 for row in rows)


def cost_of(sources: Sources) -> list[float | None]:
    """By run what all its starts cost; None without a price."""
    return [(run.manifest.get("totals") or {}).get("cost") for run in sources.runs]


def costs_a_sample(sources: Sources) -> list[float | None]:
    """By run its cost over its samples; None without a price."""
    found = zip(cost_of(sources), sources.sizes, strict=True)
    return [None if cost is None or not size else cost / size for cost, size in found]


def counts_of(sources: Sources) -> dict[str, Row]:
    """By metric how many samples were scored, undefined and failed, over all runs."""
    rows = [row for own in sources.summaries for row in own if row["level"] == "overall"]
    names = ("n", "scored", "undefined", "failed")
    metrics = sorted({row["metric"] for row in rows})
    return {
        one: {name: int(total((row for row in rows if row["metric"] == one), name)) for name in names}
        for one in metrics
    }
