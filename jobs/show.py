"""Show one sample of a run: its response and statements in the terminal, and its graph as a picture."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from untold.graph import views
from untold.jobs.inputs.options import ShowRequest
from untold.jobs.metrics import METRICS
from untold.jobs.metrics.views import VIEWS, Row, SampleRows, View, count, required
from untold.jobs.run_tables import RunTables, UnreadableRunError, open_run
from untold.jobs.summary.run_summary import describe_failures
from untold.udfs.errors import did_you_mean, near_misses
from untold.udfs.storage import StoragePath

NEAR_IDS = 10_000  # the sample ids of the search for near misses, because a run can have millions
SHOWN_IDS = 3
LISTED_IDS = 10  # without --sample
SHOWN_LENGTH = 80  # characters of an id in a message
# Characters of a sample_id or a metric in a title or in the name of a file, which has at most 255 bytes
NAME_LENGTH = 80


class ShowError(UnreadableRunError):
    """The sample or the picture cannot be shown. The message has the remedy."""


def show(request: ShowRequest) -> list[str]:
    """Print the response and the statements of a sample, write its pictures, and return the paths of the pictures.

    Print the first ids if the request has no sample. Raises UnreadableRunError without a run, and ShowError for a run
    that has not ended, an unknown sample or metric, and a failed write.
    """
    form = _form(request.picture)
    run = _open(request.output)
    if request.sample is None:
        if request.picture is not None:
            raise ShowError("--picture needs --sample")
        _print(_id_lines(run))
        return []
    found = _read(run, request.sample, request.metric)
    paths = []
    for number, shown in enumerate(found):
        _print([*([""] if number else []), *describe(shown)])
        if request.picture is not None:
            place = _place(request.picture, shown.rows.score, several=len(found) > 1)
            paths += _draw(shown, place, form, raw=request.raw)
    return paths


def rows_of_sample(request: ShowRequest) -> list[dict[str, Any]]:
    """Return the rows of the tables for a sample, one mapping per metric. Raises the errors of `show`.

    Without a sample, return the first ids.
    """
    run = _open(request.output)
    if request.sample is None:
        return [{"sample_id": name} for name in _first_ids(run)[:LISTED_IDS]]
    found = _read(run, request.sample, request.metric)
    return [{one.name: getattr(shown.rows, one.name) for one in fields(SampleRows)} for shown in found]


def _first_ids(run: RunTables) -> list[str]:
    """Return the sample ids of the first rows of a run. Raises ShowError for a run without scores."""
    if "scores" not in run.tables:
        raise ShowError(f"{run.directory} has no scores. Start the run again")
    return _ids(run.dataset("scores").head(NEAR_IDS, columns=["sample_id"]))


def _id_lines(run: RunTables) -> list[str]:
    """Return lines with the first sample ids of a run, and the command that shows one of them."""
    first = _first_ids(run)[:LISTED_IDS]
    lines = ["the first sample ids:", *(f"  {views.one_line(name)}" for name in first)]
    example = shlex.quote(first[0] if first and first[0].isprintable() else "ID")
    return [*lines, "", f"next: untold show {shlex.quote(run.directory)} --sample {example}"]


def _draw(shown: View, place: str, form: str, *, raw: bool) -> list[str]:
    """Write the picture of a sample, print its path and return it. A sample without nodes has no picture."""
    # Texts need no library of pictures
    from untold.graph.plotting import draw_graph

    graph = make_graph(shown, raw=raw)
    if not graph:
        _print(["no picture, because there is nothing to draw"])
        return []
    _write(place, draw_graph(graph, form=form, title=_title(shown), response=(shown.rows.sample or {}).get("response")))
    _print([f"picture: {views.one_line(place)}"])
    return [place]


def _form(picture: str | None) -> str:
    """Return the format of a picture by the extension, SVG without a name. Raises ShowError for another extension."""
    form = PurePosixPath(picture).suffix[1:].lower() if picture else views.FORMATS[0]
    if form not in views.FORMATS:
        endings = " or ".join(f".{name}" for name in views.FORMATS)
        raise ShowError(f"--picture {picture}: the name has to end in {endings}")
    return form


def _open(output: str) -> RunTables:
    """Return the run. Raises ShowError for a run that has not ended, because its tables can be incomplete."""
    run = open_run(output, allow_running=True)
    if run.manifest.get("status") == "running":
        raise ShowError(f"{output}: the run has not ended, or was killed. Wait for it, or start it again")
    return run


def _read(run: RunTables, sample: str, metric: str | None) -> list[View]:
    """Return one view per shown metric, sorted. Raises ShowError for an unknown sample or metric."""
    # Arrow rejects the lone surrogates of arguments that are not UTF-8
    sample_id = sample.encode("utf-8", "replace").decode()
    scores = {str(row["metric"]): row for row in _rows(run, "scores", sample_id)}
    if not scores:
        raise ShowError(_unknown_sample(run, sample_id))
    if metric is not None and metric not in scores:
        raise ShowError(f"--metric {metric}: the sample was scored by {', '.join(map(views.one_line, sorted(scores)))}")
    texts = next(iter(_rows(run, "samples", sample_id, columns=["query", "response", "contexts"])), None)
    wanted = sorted(scores) if metric is None else [metric]
    return [_read_metric(run, sample_id, scores[name], texts) for name in wanted]


def _read_metric(run: RunTables, sample_id: str, score: Row, sample: Row | None) -> View:
    """Return the view of one sample for the metric of its score."""
    of_metric = ds.field("metric") == score["metric"]
    view = _view_of(score["metric"])
    # Most pairs are neutral, and a sample can have millions
    extra = {"relations": ds.field("relation").isin(views.DRAWN_RELATIONS)}
    names = (one.name for one in fields(SampleRows) if one.name not in ("score", "sample", "chunks"))
    found: dict[str, Sequence[Row]] = {
        name: _rows(run, name, sample_id, of_metric & extra[name] if name in extra else of_metric) for name in names
    }
    found["statements"] = views.order_statements(found["statements"])
    rows = SampleRows(score, sample, **found)
    # Chunks belong to all samples
    wanted = view(rows).chunk_ids() if "chunks" in run.tables else []
    if not wanted:
        return view(rows)
    chunks = run.dataset("chunks").to_table(filter=ds.field("chunk_id").isin(wanted))
    return view(replace(rows, chunks=chunks.to_pylist()))


def _view_of(metric: str) -> type[View]:
    """Return the view of a metric. A metric of another package is loaded, and may need the engine."""
    if metric in VIEWS or metric not in METRICS:
        return VIEWS.get(metric, View)
    return METRICS[metric].view


def _rows(
    run: RunTables, table: str, sample_id: str, extra: pc.Expression | None = None, *, columns: list[str] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of one sample, none for a missing table. Other rows are not kept in memory."""
    if table not in run.tables:
        return []
    wanted = ds.field("sample_id") == sample_id
    found = run.dataset(table).to_table(columns=columns, filter=wanted if extra is None else wanted & extra)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def _unknown_sample(run: RunTables, sample_id: str) -> str:
    """Return the message about an unknown sample with near misses.

    These are ids of the table that contain the unknown id, and then similar ids of its first rows.
    """
    first = _first_ids(run)
    containing = pc.match_substring(ds.field("sample_id"), sample_id, ignore_case=True)
    scanner = run.dataset("scores").scanner(columns=["sample_id"], filter=containing)
    near = _ids(scanner.head(SHOWN_IDS)) if sample_id else []
    # The time of a comparison grows with the product of the lengths
    cut = {name[:SHOWN_LENGTH]: name for name in first}
    close = [cut[name] for name in near_misses(sample_id[:SHOWN_LENGTH], cut, most=SHOWN_IDS)]
    found = list(dict.fromkeys([*near, *close]))[:SHOWN_IDS]
    examples = f"its ids look like {', '.join(map(_quote, first[:SHOWN_IDS]))}" if first else "it has none"
    hint = did_you_mean([_quote(name) for name in found], quote="") or examples
    return f"{run.directory} has no sample {_quote(sample_id)}; {hint}"


def _ids(table: pa.Table) -> list[str]:
    """Return the distinct ids of a table in their order."""
    return [name for name in dict.fromkeys(table.column("sample_id").to_pylist()) if name is not None]


def _quote(name: str) -> str:
    """Return an id in quotes on one line, shortened, without control characters."""
    shown = views.one_line(name[: 2 * SHOWN_LENGTH])
    return f"'{shown if len(shown) <= SHOWN_LENGTH else shown[:SHOWN_LENGTH] + '…'}'"


def make_graph(shown: View, *, raw: bool) -> views.Graph:
    """Return the graph of the statements, of the atoms (`raw`), or of the contexts of a sample without atoms."""
    rows = shown.rows
    if rows.atoms:
        make = views.raw_graph if raw else views.condensed_graph
        return make(rows.atoms, rows.relations, rows.statements)
    if rows.claims:
        return views.claims_graph(required(rows.statements), rows.claims)
    return views.sources_graph(rows.statements, (rows.sample or {}).get("contexts") or ())


def describe(shown: View) -> list[str]:
    """Return the lines of a sample without control characters: its texts, its score, and the parts of its view."""
    failed = [f"failed: {text}" for text in describe_failures(shown.rows.failures)]
    texts = (line for name in ("query", "response") for line in _text_lines(shown, name))
    wrapped = (line for parts in shown.lines() for line in _wrap(*parts))
    return [_heading(shown.rows.score), *texts, _score_line(shown), *failed, *wrapped, ""]


def _heading(score: Row) -> str:
    """Return the sample, the metric and the system, if the sample has one."""
    system = f", system {views.one_line(score['system'])}" if score["system"] is not None else ""
    return f"sample {views.one_line(score['sample_id'])}, metric {views.one_line(score['metric'])}{system}"


def _text_lines(shown: View, column: str) -> Iterator[str]:
    """Yield the lines of a text of the sample, if the run has it."""
    text = (shown.rows.sample or {}).get(column)
    if text is not None:
        lines = [views.one_line(line) for line in text.splitlines() if line.strip()] or ["(empty)"]
        for number, line in enumerate(lines):
            yield from _wrap(line, "  " if number else f"{column}: ", "  ")


def _score_line(shown: View) -> str:
    """Return the score with different bounds, the status and the counts."""
    score = shown.rows.score
    value = _number(score["score"])
    bounds = ""
    if score["score_low"] is not None and not score["score_low"] == score["score"] == score["score_high"]:
        bounds = f", between {_number(score['score_low'])} and {_number(score['score_high'])}"
    counts = f", {score['covered'] or 0:,} covered, {score['uncovered'] or 0:,} missing" if value != "none" else ""
    unjudged = f", {count(score['unjudged'], shown.unjudged)} unjudged" if score["unjudged"] else ""
    dropped = f", {score['dropped']:,} {shown.dropped}" if score.get("dropped") else ""
    return f"score: {value}{bounds} ({views.one_line(score['status'])}){counts}{unjudged}{dropped}"


def _number(value: float | None) -> str:
    """Return a score with two decimals, `none` for null."""
    return "none" if value is None else f"{value:.2f}"


def _wrap(text: str, start: str, indent: str) -> list[str]:
    """Return lines that fit a terminal, or one line for another output, which can then be searched."""
    if not sys.stdout.isatty():
        return [start + text]
    width = max(shutil.get_terminal_size().columns, 2 * len(start))
    return textwrap.wrap(text, width, initial_indent=start, subsequent_indent=indent) or [start.rstrip()]


def _print(lines: Iterable[str]) -> None:
    """Print lines in the encoding of the output, with `?` for unknown characters."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "replace").decode(encoding))


def _title(shown: View) -> str:
    """Return the title of a picture."""
    score = shown.rows.score
    return (
        f"{score['sample_id'][:NAME_LENGTH]} · {score['metric']} · score {_number(score['score'])} ({score['status']})"
    )


def _place(picture: str, score: Row, *, several: bool) -> str:
    """Return the path of a picture, with the name of the metric if there are several."""
    stem, ending = os.path.splitext(picture)
    return f"{stem}-{_safe(score['metric'])}{ending}" if several else picture


def _write(place: str, picture: bytes) -> None:
    """Write a picture. Raises ShowError for a failed write."""
    try:
        StoragePath(place).write_whole(lambda file: file.write(picture))
    except (OSError, pa.ArrowException) as error:
        raise ShowError(f"{place} cannot be written ({type(error).__name__}). Give another --picture") from error


def _safe(name: str) -> str:
    """Return a name with safe characters. A changed name ends with 8 hex digits of a hash of the whole name."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:NAME_LENGTH].lstrip(".")
    if safe == name:
        return name
    return f"{safe}-{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"
