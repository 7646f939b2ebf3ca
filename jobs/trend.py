"""Compare the outputs of many dates, and write the changes and their causes: `untold trend`. It needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from untold.jobs.inputs.files import NoInputError, find_files
from untold.jobs.run.terminal import Page, amount, table, wrapped
from untold.jobs.run_tables import MANIFEST, RunTables, UnreadableRunError, open_run
from untold.jobs.summary.dated_scores import ANSWER_RATE, CHANGES, MOVED, OVERALL, TREND
from untold.jobs.summary.ranking import interval_text, number_text
from untold.jobs.summary.trends import Trend, date_of, describe_finding, find_trend
from untold.udfs.errors import UserError
from untold.udfs.storage import FOOTERS_AT_ONCE, StoragePath
from untold.udfs.texts import escape_formula

# The maximum number of dates on a terminal. The files have all dates
MOST_DATES = 14
HEADS = ("date", "metric", "system", "n", "scored", "failed", "answered", "cost", "mean", "95 % interval")


class TrendError(UserError):
    """Outputs without a trend. The message names the remedy."""


@dataclass(frozen=True)
class TrendResult:
    """A trend, the falls for an alert, and the written files."""

    trend: Trend
    falls: Sequence[Mapping[str, Any]]
    files: Sequence[str]

    @property
    def content(self) -> dict[str, Any]:
        """Return the content of `trend.json` and of `--json`."""
        found = self.trend
        rows = {"points": _rows(found.points, TREND), "changes": _rows(found.changes, CHANGES)}
        return {"dates": found.dates, "breaks": found.breaks, "findings": found.findings, "falls": self.falls, **rows}


def trend(
    outputs: Sequence[str], output: str, *, by: str, fall: float, seed: int, notify: Callable[[str], None]
) -> TrendResult:
    """Write the trend of outputs, or of the outputs in folders, into a folder: tables, a picture and `trend.json`.

    fall: the minimum fall of a system in `falls`; notify: accepts a line about excluded outputs. Raises TrendError if
    no output has a date, or if the folder belongs to a run.
    """
    if (StoragePath(output) / MANIFEST).entry().kind:
        raise TrendError(f"{output} belongs to a run; give another --output")
    runs = open_dated(outputs, notify)
    found = find_trend(runs, by=by, seed=seed)
    _note_missing(runs, notify)
    if len(found.dates) < 2:
        notify(f"{found.dates[0]} is the only date, so there is no comparison. Give the outputs of more dates")
    falls = _rows(found.falls(fall), CHANGES)
    tables = {"trend": (found.points, TREND), "changes": (found.changes, CHANGES), "moved": (found.moved, MOVED)}
    files = dict(file for name, (rows, schema) in tables.items() for file in _files_of(name, rows, schema))
    if all(map(find_spec, ("matplotlib", "networkx"))):
        from untold.jobs.plots import draw_trend

        files["trend.png"] = draw_trend(found).png()
    else:
        notify("no picture: it needs Matplotlib (pip install 'untold[notebook]')")
    written = TrendResult(found, falls, [f"{output}/{name}" for name in (*files, "trend.json")])
    files["trend.json"] = json.dumps(written.content, indent=1, ensure_ascii=False).encode() + b"\n"
    for name, content in files.items():
        (StoragePath(output) / name).write_bytes(content)
    return written


def open_dated(paths: Sequence[str], notify: Callable[[str], None]) -> list[RunTables]:
    """Return the finished outputs with scores and a date at paths, globs and folders of outputs.

    notify: accepts a line about other folders. Raises TrendError if no output remains.
    """
    found = {place: path for path in paths for place in _outputs(path)}
    left_out = [f"{path} (no output)" for path in paths if path not in found.values()]
    runs = []
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        opened = list(pool.map(_open, found))
    for place, (run, problem) in zip(found, opened, strict=True):
        runs += [run] if run is not None and problem is None else []
        left_out += [f"{place} ({problem})"] if problem else []
    if left_out:
        notify(f"left out: {', '.join(left_out)}")
    if not runs:
        raise TrendError("no finished output of untold score has a date. Give outputs of untold nightly: 'nightly/*'")
    return runs


def _outputs(path: str) -> list[str]:
    """Return the outputs of a path: the path itself, the matches of a glob, or the outputs in a folder."""
    path = StoragePath(path).spark
    for form in (f"{path}/{MANIFEST}", f"{path}/*/{MANIFEST}"):
        with suppress(NoInputError):
            return [file.path.rpartition("/")[0] for file in find_files(form)]
    return []


def _open(place: str) -> tuple[RunTables | None, str | None]:
    """Return the run of an output, and the reason for its exclusion from a trend."""
    try:
        run = open_run(place)
    except UnreadableRunError as error:
        return None, "it has not ended" if "has not ended" in str(error) else "it cannot be read"
    if run.status != "finished":
        return run, f"it ended early: {run.status}"
    if not {"samples", "scores"} <= set(run.tables):
        return run, "no scores"
    return run, None if date_of(run) else "no date in its name"


def _note_missing(runs: Iterable[RunTables], notify: Callable[[str], None]) -> None:
    """Note each metric that is missing on some dates."""
    metrics: dict[str, set[str]] = {}
    for run in runs:
        metrics.setdefault(date_of(run), set()).update(run.manifest.get("metrics", ()))
    for metric in sorted(set().union(*metrics.values())):
        lacking = sorted(day for day, names in metrics.items() if metric not in names)
        if lacking:
            dates = lacking[0] if len(lacking) == 1 else f"{amount(len(lacking), 'date')} from {lacking[0]} on"
            notify(f"{metric}: no scores of {dates}")


def _rows(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in schema.names} for row in rows]


def _files_of(name: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> Iterator[tuple[str, bytes]]:
    """Yield a table as Parquet, and as CSV without formulas."""
    texts = [
        {column: escape_formula(value) if isinstance(value, str) else value for column, value in row.items()}
        for row in rows
    ]
    for form, write, own in (("parquet", pq.write_table, rows), ("csv", pyarrow.csv.write_csv, texts)):
        target = BytesIO()
        write(pa.Table.from_pylist(own, schema), target)
        yield f"{name}.{form}", target.getvalue()


def trend_lines(found: TrendResult, fall: float, page: Page) -> Iterator[str]:
    """Yield the means of the last dates, the changes, and the written files."""
    dates = found.trend.dates
    last = set(dates[-MOST_DATES:])
    shown = [row for row in found.trend.shown if row["date"] in last]
    yield from table(HEADS, [_cells(row) for row in shown], page, names=3, texts=1)
    if len(dates) > MOST_DATES:
        yield f"the last {MOST_DATES} of {len(dates):,} dates (the files have all dates)"
    told = [describe_finding(row) for row in found.trend.findings] or ["no change is more than chance"]
    yield ""
    for line in told:
        yield from wrapped(line, page)
    for row in found.falls:
        what = "answer rate of " if row["measure"] == ANSWER_RATE else ""
        line = f"fall: {what}{row['system']} under {row['metric']}, {row['date']}, by more than {fall:g} beyond chance"
        yield from wrapped(line, page)
    yield from ("", f"files: {', '.join(found.files)}")


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        *(row["date"], row["metric"], row["system"] or {OVERALL: "all systems"}.get(row["level"], row["level"])),
        *(f"{row[name]:,}" for name in ("n", "scored", "failed")),
        *(number_text(row["answer_rate"], ".2f"), number_text(row["cost"], ",.4f")),
        *(number_text(row["mean"]), interval_text(row, clustered=True)),
    ]
