"""Which half of a retrieval pipeline takes responses from their ground truth: the faults of rag in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow.dataset as ds

from untold.jobs.results import Run, first_rows, quoted
from untold.jobs.run.terminal import amount
from untold.udfs.facts.rag_measures import FAULTS, GROUPS
from untold.udfs.redaction import redact

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
