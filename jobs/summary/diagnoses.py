"""Which half of a retrieval pipeline takes responses from their ground truth: the faults of rag in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.dataset as ds

from untold.jobs.results import Run, first_rows
from untold.jobs.run.terminal import amount
from untold.udfs.facts.rag_measures import FAULTS, GROUPS
from untold.udfs.redaction import redact


def describe_means(run: Run) -> list[str]:
    """The means over samples of the measures of rag in per cent, by the group that RAGChecker has them in.

    Where some are undefined, the mean with 0 for these stands behind.
    """
    summary = run.table("measures_summary").to_pylist() if "measures_summary" in run.tables else []
    rows = {row["measure"]: row for row in summary if row["metric"] == "rag" and row["level"] == "overall"}
    known = {group: [rows[name] for name in names if name in rows] for group, names in GROUPS.items()}
    return [f"{group}: {', '.join(map(_mean, own))}" for group, own in known.items() if own]


def _mean(row: Mapping[str, Any]) -> str:
    if row["mean"] is None:
        return f"{row['measure']} -"
    zero = f" ({row['mean_zero']:.1%} with 0 where undefined)" if row["mean_zero"] != row["mean"] else ""
    return f"{row['measure']} {row['mean']:.1%}{zero}"


def describe_faults(run: Run) -> list[str]:
    """A sentence for each fault that samples of a run have, that of the most samples first.

    It says which half of the pipeline it is of, the measure that shows it, how many of the samples that it is defined
    for have it, and which one has most of it.
    """
    found = []
    for name, (half, measure, what) in FAULTS.items() if "measures" in run.tables else ():
        measures, own = run.dataset("measures"), ds.field("measure") == name
        order = [("value", "descending"), ("sample_id", "ascending")]
        for worst in first_rows(measures, 1, ["value", "sample_id"], order, own & (ds.field("value") > 0)).to_pylist():
            samples = measures.count_rows(filter=own & (ds.field("value") > 0))
            of = amount(measures.count_rows(filter=own & ds.field("value").is_valid()), "sample")
            most = f"worst: {redact(worst['sample_id'])} ({worst['value']:.1%} of its claims)"
            found.append((samples, f"{half} ({measure}): {samples:,} of {of} have claims {what}; {most}"))
    return [sentence for _, sentence in sorted(found, key=lambda one: -one[0])]
