"""Counts of distinct values to rows of the table `summary`, whatever counted them: Spark, or DuckDB on one machine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from untold.jobs.results import quoted
from untold.udfs.hints import did_you_mean, near_misses
from untold.udfs.statistics.intervals import Interval, bca_interval, mean_of_counts, wilson_interval

# docs/contract.md, "Scores": the column of `summary` that a sample of each status is counted in
COLUMN_OF_STATUS = {
    "ok": "scored",
    "partial": "scored",
    "no_statements": "undefined",
    "failed": "failed",
    "budget": "failed",
}
FAILED_STATUSES = [status for status, column in COLUMN_OF_STATUS.items() if column == "failed"]
# As SQL: statuses whose score is undefined, the score of a sample, and 0 where it is undefined although there was
# something to state
SILENT = ", ".join(quoted(status) for status, column in COLUMN_OF_STATUS.items() if column == "undefined")
SCORE = "case when not isnan(score) then score end"
SCORE_OR_ZERO = f"coalesce({SCORE}, case when status in ({SILENT}) and covered + uncovered > 0 then 0.0 end)"
MAX_DISTINCT = 200_000  # rows of counts that reach the driver as they are
GRID = 10_000  # steps between 0 and 1 that values are rounded to beyond that
FEW = 10  # values of which a bootstrap interval is rough
Counts = dict[str, Counter[float]]
Group = tuple[str, str | None]


def summarise_counts(counts: Iterable[Mapping[str, Any]], *, seed: int, zero: bool = False) -> list[dict[str, Any]]:
    """The rows of the table `summary`: for each metric one of level `overall`, then one a system, sorted by name.

    counts: metric, system, status, measure (score, score_low, score_high or score_zero), value, count; value is null
    where there is none. Samples without a system count in the overall row alone. The interval is of `mean`, with `zero`
    of `mean_zero`. Raises ValueError for a status that the contract does not know. Interval: methods section 7.
    """
    columns: dict[Group, Counter[str]] = defaultdict(Counter)
    values: dict[Group, Counts] = defaultdict(lambda: defaultdict(Counter))
    for row in counts:
        for group in {(row["metric"], None), (row["metric"], row["system"])}:
            if row["measure"] == "score":
                columns[group][_column_of(row["status"])] += row["count"]
            if row["value"] is not None:
                # Null and NaN are no values: they are counted by status alone
                values[group][row["measure"]][row["value"]] += row["count"]
    # The overall row first: None does not sort beside names
    groups = sorted(columns, key=lambda group: (group[0], group[1] is not None, group[1] or ""))
    return [_summary_row(group, columns[group], values[group], seed, zero=zero) for group in groups]


def mean_text(row: Mapping[str, Any]) -> str:
    """The mean of a row as it is printed."""
    return "-" if row["mean"] is None else f"{row['mean']:.3f}"


def interval_text(row: Mapping[str, Any], *, clustered: bool = False) -> str:
    """The 95 % interval of a row as it is printed, or why there is none; one of fewer than `FEW` values says so.

    `clustered`: it takes whole queries.

    >>> [interval_text({"ci_low": low, "ci_high": 0.5, "n": n}) for low, n in [(0.25, 12), (0.25, 3), (None, 1)]]
    ['0.250 .. 0.500', '0.250 .. 0.500 (n < 10)', '- (n = 1)']
    """
    count = row.get("scored", row["n"])
    if row["ci_low"] is not None:
        return f"{row['ci_low']:.3f} .. {row['ci_high']:.3f}" + (f" (n < {FEW})" if count < FEW else "")
    if count < 2:
        return f"- (n = {count})"
    return "- (one query, or all equal)" if clustered else "- (all equal)"


def answer_columns(defined: Counter[float], zero: Counter[float]) -> dict[str, float | None]:
    """answer_rate with its interval, and mean_zero, from counts of values without and with zeros; null without any."""
    rate = wilson_interval(defined.total() if zero else 0, zero.total())
    return {
        "answer_rate": rate.mean,
        "answer_ci_low": rate.low,
        "answer_ci_high": rate.high,
        "mean_zero": mean_of_counts(*values_and_counts(zero)),
    }


def _column_of(status: str) -> str:
    """The column of `summary` of a status. Raises ValueError for an unknown one: a mean would hide it."""
    if status not in COLUMN_OF_STATUS:
        hint = did_you_mean(near_misses(str(status), COLUMN_OF_STATUS), quote="'")
        raise ValueError(f"scores: status {status!r} is none of {', '.join(COLUMN_OF_STATUS)}; {hint}".rstrip("; "))
    return COLUMN_OF_STATUS[status]


def _summary_row(group: Group, columns: Counter[str], values: Counts, seed: int, *, zero: bool) -> dict[str, Any]:
    """A row of the table `summary`, null where nothing was scored.

    columns: how many samples count in each column; values: by measure how often each value occurs.
    """
    metric, system = group
    interval = interval_of_counts(values["score_zero" if zero else "score"], seed)
    return {
        "metric": metric,
        "level": "overall" if system is None else "system",
        "system": system,
        "n": columns.total(),
        "scored": columns["scored"],
        "undefined": columns["undefined"],
        "failed": columns["failed"],
        "mean": mean_of_counts(*values_and_counts(values["score"])),
        "ci_low": interval.low,
        "ci_high": interval.high,
        "mean_low": mean_of_counts(*values_and_counts(values["score_low"])),
        "mean_high": mean_of_counts(*values_and_counts(values["score_high"])),
        **answer_columns(values["score"], values["score_zero"]),
    }


def interval_of_counts(counts: Counter[float], seed: int) -> Interval:
    return bca_interval(*values_and_counts(counts), seed=seed)


def values_and_counts(counts: Counter[float]) -> tuple[list[float], list[int]]:
    """Distinct values and their counts, as `untold.udfs.statistics.intervals` takes them."""
    return list(counts.keys()), list(counts.values())
