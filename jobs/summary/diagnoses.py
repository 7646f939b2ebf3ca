"""Explain results in words: the faults of a retrieval pipeline by rag, and failed requests by stage and kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow.dataset as ds

from untold.graph.views import one_line
from untold.jobs.results import Run, first_rows, quoted
from untold.jobs.run.manifest import by_stage
from untold.jobs.run.terminal import amount
from untold.udfs.facts.rag_measures import FAULTS, GROUPS
from untold.udfs.redaction import redact

Row = Mapping[str, Any]


def dead_stages(usage: Iterable[Row]) -> list[Row]:
    """The rows of `usage` of stages without an answer, new or from the store, where requests failed."""
    return [row for row in by_stage(usage) if row["failed"] and not row["answered"] and not row["reused"]]


def explain_dead_stages(dead: Iterable[Row], errors: Iterable[Row]) -> list[str]:
    """A line for each stage without an answer: how many requests failed, and most often with what.

    dead: rows of `dead_stages`; errors: stage, error_type, error, count of its most frequent one.

    >>> error = {"stage": "match_one", "error_type": "http_500", "error": "HTTP 500", "count": 3}
    >>> explain_dead_stages([{"stage": "match_one", "failed": 4, "requests": 4}], [error])
    ['every request of match_one failed (4 of 4); the most frequent error, 3 times: http_500: HTTP 500']
    >>> explain_dead_stages([{"stage": "match_one", "failed": 1, "requests": 4}], [])
    ['no request of match_one succeeded (1 of 4 failed)']
    """
    by_stage = {row["stage"]: row for row in errors}
    return [_explain(row, by_stage.get(row["stage"])) for row in dead]


def _explain(usage: Row, error: Row | None) -> str:
    stage, count = usage["stage"], f"{usage['failed']:,} of {usage['requests']:,}"
    said = f"every request of {stage} failed ({count})"
    if usage["failed"] < usage["requests"]:
        said = f"no request of {stage} succeeded ({count} failed)"
    if error is None:
        return said
    times = "once" if error["count"] == 1 else f"{error['count']:,} times"
    return f"{said}; the most frequent error, {times}: {_error(error['error_type'], error['error'])}"


def describe_failures(failures: Iterable[Row]) -> list[str]:
    """A line for each stage and kind of error, sorted: how often it came, and the most frequent text.

    >>> row = {"stage": "match_one", "error_type": "timeout", "error": "no answer within 60 s"}
    >>> describe_failures([row, row])
    ['match_one (2): timeout: no answer within 60 s']
    """
    found: dict[tuple[str, str], Counter[str]] = {}
    for row in failures:
        found.setdefault((str(row["stage"]), str(row["error_type"])), Counter())[row.get("error") or ""] += 1
    return [
        f"{one_line(stage)} ({texts.total():,}): {_error(kind, max(sorted(texts), key=texts.__getitem__))}"
        for (stage, kind), texts in sorted(found.items())
    ]


def _error(kind: str | None, text: str | None) -> str:
    said = one_line(redact(text or ""))
    return f"{one_line(str(kind))}: {said}" if said else one_line(str(kind))


RAG = "rag"
# Systems that have a line
SHOWN = 10


def describe_means(run: Run) -> list[str]:
    """The means over samples of the measures of rag in per cent, by the group that RAGChecker has them in.

    Where some are undefined, the mean with 0 for these stands behind.
    """
    rows = _measures(run)
    known = {group: [rows[name] for name in names if name in rows] for group, names in GROUPS.items()}
    return [f"{group}: {', '.join(map(_mean, own))}" for group, own in known.items() if own]


def _measures(run: Run) -> dict[str, Mapping[str, Any]]:
    """The summaries of the measures of rag over all samples, by name; none where the run did not score by it."""
    summary = run.table("measures_summary").to_pylist() if "measures_summary" in run.tables else []
    return {row["measure"]: row for row in summary if row["metric"] == RAG and row["level"] == "overall"}


def _mean(row: Mapping[str, Any]) -> str:
    if row["mean"] is None:
        return f"{row['measure']} -"
    zero = f" ({row['mean_zero']:.1%} with 0 where undefined)" if row["mean_zero"] != row["mean"] else ""
    return f"{row['measure']} {row['mean']:.1%}{zero}"


def describe_faults(run: Run) -> list[str]:
    """A sentence for each fault that samples of a run have, that of the most samples first.

    It says which half of the pipeline it is of, the measure that shows it, how many of the samples that it is defined
    for have it, and which one has most of it. Of several systems each has a line with its faults behind.
    """
    # SQL over the tables takes tens of megabytes of the driver
    if not _measures(run) or not {"measures", "scores"} <= set(run.tables):
        return []
    counted = _count_faults(run)
    of_systems: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in counted:
        if not row["overall"]:
            of_systems[row["system"] or "without a system"].append(row)
    lines = [_of_system(name, of_systems[name]) for name in sorted(of_systems)]
    more = [f"{len(lines) - SHOWN:,} more systems in the table measures_summary"] if len(lines) > SHOWN else []
    found = [_sentence(run, row) for row in counted if row["overall"]]
    return [*found, *lines[:SHOWN], *more] if found and len(lines) > 1 else found


def _count_faults(run: Run) -> list[dict[str, Any]]:
    """measure, system, overall, samples, defined: how many samples have each fault, the most frequent ones first."""
    faults = ", ".join(quoted(name) for name in FAULTS)
    rows = run.sql(
        "select measure, system, grouping(system) = 1 as overall, count_if(value > 0) as samples, "
        "count(value) as defined from measures join scores using (sample_id, metric) "
        f"where metric = {quoted(RAG)} and measure in ({faults}) "
        "group by grouping sets ((measure), (measure, system)) having count_if(value > 0) > 0"
    )
    found: list[dict[str, Any]] = rows.to_arrow_table().to_pylist()
    places = list(FAULTS)
    return sorted(found, key=lambda row: (-row["samples"], places.index(row["measure"])))


def _sentence(run: Run, row: Mapping[str, Any]) -> str:
    half, measure, what = FAULTS[row["measure"]]
    own = (ds.field("metric") == RAG) & (ds.field("measure") == row["measure"]) & (ds.field("value") > 0)
    order = [("value", "descending"), ("sample_id", "ascending")]
    columns = ["value", "sample_id", "metric", "measure"]
    (worst,) = first_rows(run.dataset("measures"), 1, columns, order, own).to_pylist()
    most = f"worst: {redact(worst['sample_id'])} ({worst['value']:.1%} of its claims)"
    have = f"{row['samples']:,} of {amount(row['defined'], 'sample')}"
    return f"{half} ({measure}): {have} have claims {what}; {most}"


def _of_system(name: str, rows: Iterable[Mapping[str, Any]]) -> str:
    faults = [(*FAULTS[row["measure"]][:2], row) for row in rows]
    told = [f"{half} ({measure}) {row['samples']:,} of {row['defined']:,}" for half, measure, row in faults]
    return f"{redact(name)}: {', '.join(told)}"
