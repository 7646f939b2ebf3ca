"""Meta-evaluations of several data sets together: `untold combine-studies`. Dejl et al. 2025; methods, section 6."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from untold.jobs.results import Run, open_run
from untold.jobs.run.outcome import Ending
from untold.jobs.run.output import Output
from untold.jobs.study.agreement import average_rows, has_answered, missing_averages
from untold.jobs.study.report import AVERAGE, render_averages
from untold.jobs.tables import META_EVALUATION
from untold.udfs.errors import UserError
from untold.udfs.storage import Place

TABLE = "meta_evaluation"
REPORT = f"{TABLE}.md"
# match_counts is what intervals over data sets are made of: means and limits alone cannot be joined
NEEDED = (TABLE, "match_counts")
# What two studies may not both have: it would count twice
KEYS = ("dataset", "metric", "model")


class CombineError(UserError):
    """Outputs that cannot be combined. The message says which, and what to do."""


def combine_studies(
    studies: Sequence[str],
    output: str,
    *,
    seed: int,
    overwrite: bool = False,
    notify: Callable[[str], None] = lambda _: None,
) -> str:
    """Writes the table `meta_evaluation` and the report of several outputs of meta-evaluate together; gives the report.

    The table has the LMR rows of each, then the averages over data sets and their spread over models. Raises
    CombineError for what is no finished meta-evaluation and for two that have the same metric of a model on one data
    set, UnreadableRunError for what is no output.
    """
    runs = [_open(study) for study in studies]
    _check_once(runs)
    # Baselines are of no model, and of no interest as averages
    counts = [row for run in runs for row in _rows(run, "match_counts") if row["model"] is not None]
    for metric, model, missing in missing_averages(counts):
        notify(f"{metric} of {model} has no average: it was not evaluated on {', '.join(missing)}")
    given = [row for run in runs for row in _rows(run, TABLE) if row["measure"] == "lmr"]
    averages = average_rows(counts, seed=seed)
    if not has_answered(averages):
        raise CombineError(
            "nothing to average: no metric of a model has an LMR on all data sets of these studies; "
            "see their reports, and evaluate again what failed"
        )
    rows = given + averages
    report = render_averages(rows)
    # All is computed first, so that a study that cannot be combined leaves no output behind
    with Output(output, (TABLE,), overwrite) as target:
        target.claim({"dataset": AVERAGE, "input": _fingerprint(runs), "statistics": {"seed": seed}})
        target.begin({}, counts={"studies": len(runs)})
        target.write_rows(TABLE, rows, META_EVALUATION)
        (Place(output) / REPORT).write_bytes(report.encode())
        target.end(Ending())
    return report


def _open(study: str) -> Run:
    """The run of a study. Raises CombineError unless it is a finished meta-evaluation."""
    run = open_run(study)
    missing = [name for name in NEEDED if name not in run.tables]
    if missing or run.manifest.get("status") != "finished":
        raise CombineError(
            f"{study}: not a finished output of untold meta-evaluate ({' and '.join(missing) or 'it has not ended'}); "
            "give other outputs, or evaluate it again"
        )
    return run


def _fingerprint(runs: Sequence[Run]) -> str:
    """32 hex characters of what the studies are of."""
    identities = [run.manifest.get("identity", {}) for run in runs]
    return hashlib.blake2b(json.dumps(identities, sort_keys=True).encode(), digest_size=16).hexdigest()


def _rows(run: Run, table: str) -> list[dict[str, Any]]:
    """The rows of a table of a study; these are small, a few for a metric, model and measure."""
    rows: list[dict[str, Any]] = run.table(table).to_pylist()
    return rows


def _check_once(runs: Sequence[Run]) -> None:
    """Raises CombineError where two studies have the same metric of a model on one data set."""
    owners: dict[tuple[str, ...], str] = {}
    for run in runs:
        for owner in sorted({tuple(row[key] for key in KEYS) for row in _rows(run, TABLE)}):
            other = owners.setdefault(owner, run.directory)
            if other != run.directory:
                dataset, metric, model = owner
                raise CombineError(f"{other} and {run.directory} both have {metric} of {model} on {dataset}; give one")
