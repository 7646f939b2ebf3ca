"""One sample of a run: its response and statements in the terminal, and its graph as a picture."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from untold.graph import views
from untold.jobs.inputs.options import ShowRequest
from untold.jobs.metrics import METRICS
from untold.jobs.metrics.views import Line, Row, SampleRows, View, count, required
from untold.jobs.run_tables import RunTables, UnreadableRunError, open_run
from untold.jobs.summary.run_summary import describe_failures
from untold.udfs.errors import did_you_mean, near_misses
from untold.udfs.storage import StoragePath

NEAR_IDS = 10_000  # sample ids that near misses are looked for among: a run may have millions
SHOWN_IDS = 3
# a line of a terminal
SHOWN_LENGTH = 80  # characters of an id in a message
# Characters of a file's name or a title; names of files end at 255 bytes, and a sample_id and a metric share one
NAME_LENGTH = 80


class ShowError(UnreadableRunError):
    """A sample or a picture that cannot be shown. The message says what to do."""


def show(request: ShowRequest) -> list[str]:
    """Prints a sample's response and statements, and writes the pictures asked for; gives the paths of those written.

    Raises UnreadableRunError where there is no run, and ShowError for a run that has not ended, an unknown sample or
    metric, and a picture that cannot be written.
    """
    form = _form(request.picture)
    run = _open(request.output)
    found = _read(run, request)
    paths = []
    for number, shown in enumerate(found):
        _print([*([""] if number else []), *describe(shown)])
        if request.picture is not None:
            place = _place(request.picture, shown.rows.score, several=len(found) > 1)
            paths += _draw(shown, place, form, raw=request.raw)
    return paths


def _draw(shown: View, place: str, form: str, *, raw: bool) -> list[str]:
    """Writes the picture of a sample and says where it is; empty where there is nothing to draw."""
    # Here, as texts are shown without the libraries of pictures
    from untold.graph.plotting import draw_graph

    graph = make_graph(shown, raw=raw)
    if not graph:
        _print(["no picture, because there is nothing to draw"])
        return []
    _write(place, draw_graph(graph, form=form, title=_title(shown), response=_of_sample(shown, "response")))
    _print([f"picture: {views.one_line(place)}"])
    return [place]


def _form(picture: str | None) -> str:
    """The picture's form by the ending of its name, SVG without one. Raises ShowError for another ending."""
    form = PurePosixPath(picture).suffix[1:].lower() if picture else views.FORMATS[0]
    if form not in views.FORMATS:
        endings = " or ".join(f".{name}" for name in views.FORMATS)
        raise ShowError(f"--picture {picture}: the name has to end in {endings}")
    return form


def _open(output: str) -> RunTables:
    """The run. Raises ShowError where it has not ended: its tables may be half written."""
    run = open_run(output, allow_running=True)
    if run.manifest.get("status") == "running":
        raise ShowError(f"{output}: the run has not ended, or was killed. Wait for it, or start it again")
    return run


def _read(run: RunTables, request: ShowRequest) -> list[View]:
    """What the run holds of the sample, a value for each metric shown, sorted. Raises ShowError for an unknown one."""
    # Words of a command line that are not UTF-8 hold lone surrogates, which Arrow refuses
    sample_id = request.sample.encode("utf-8", "replace").decode()
    scores = {str(row["metric"]): row for row in _rows(run, "scores", sample_id)}
    if not scores:
        raise ShowError(_unknown_sample(run, sample_id))
    if request.metric is not None and request.metric not in scores:
        raise ShowError(
            f"--metric {request.metric}: the sample was scored by {', '.join(map(views.one_line, sorted(scores)))}"
        )
    sample = next(iter(_rows(run, "samples", sample_id, columns=["query", "response", "contexts"])), None)
    wanted = sorted(scores) if request.metric is None else [request.metric]
    return [_read_metric(run, sample_id, scores[metric], sample) for metric in wanted]


def _read_metric(run: RunTables, sample_id: str, score: Row, sample: Row | None) -> View:
    """What the run holds of one sample under the metric of its score."""
    of_metric = ds.field("metric") == score["metric"]
    metric = METRICS.get(score["metric"])
    view = View if metric is None else metric.view
    rows = SampleRows(
        score=score,
        sample=sample,
        statements=views.order_statements(_rows(run, "statements", sample_id, of_metric)),
        atoms=_rows(run, "atoms", sample_id, of_metric),
        # Most pairs are neutral, and a sample may have millions
        relations=_rows(run, "relations", sample_id, of_metric & ds.field("relation").isin(views.DRAWN_RELATIONS)),
        conflicts=_rows(run, "conflicts", sample_id, of_metric),
        failures=_rows(run, "failures", sample_id, of_metric),
        claims=_rows(run, "claims", sample_id, of_metric),
        evidence=_rows(run, "evidence", sample_id, of_metric),
        candidates=_rows(run, "candidates", sample_id, of_metric),
    )
    # Chunks are of all samples
    wanted = view(rows).chunk_ids() if "chunks" in run.tables else []
    if not wanted:
        return view(rows)
    chunks = run.dataset("chunks").to_table(filter=ds.field("chunk_id").isin(wanted))
    return view(replace(rows, chunks=chunks.to_pylist()))


def _rows(
    run: RunTables, table: str, sample_id: str, extra: pc.Expression | None = None, *, columns: list[str] | None = None
) -> list[dict[str, Any]]:
    """The rows of one sample; none where the run does not have the table. Only matching rows are kept in memory."""
    if table not in run.tables:
        return []
    wanted = ds.field("sample_id") == sample_id
    found = run.dataset(table).to_table(columns=columns, filter=wanted if extra is None else wanted & extra)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def _unknown_sample(run: RunTables, sample_id: str) -> str:
    """The message for a sample that the run does not have, with ids that may have been meant.

    Near misses come from ids that contain the given one anywhere in the table, then from its first rows.
    """
    if "scores" not in run.tables:
        return f"{run.directory} has no scores. Start the run again"
    scores = run.dataset("scores")
    containing = pc.match_substring(ds.field("sample_id"), sample_id, ignore_case=True)
    near = _ids(scores.scanner(columns=["sample_id"], filter=containing).head(SHOWN_IDS)) if sample_id else []
    first = _ids(scores.head(NEAR_IDS, columns=["sample_id"]))
    # Comparing takes time with the product of two lengths, and ids may be of any
    cut = {name[:SHOWN_LENGTH]: name for name in first}
    close = [cut[name] for name in near_misses(sample_id[:SHOWN_LENGTH], cut, most=SHOWN_IDS)]
    found = list(dict.fromkeys([*near, *close]))[:SHOWN_IDS]
    examples = f"its ids look like {', '.join(map(_quote, first[:SHOWN_IDS]))}" if first else "it has none"
    hint = did_you_mean([_quote(name) for name in found], quote="") or examples
    return f"{run.directory} has no sample {_quote(sample_id)}; {hint}"


def _ids(table: pa.Table) -> list[str]:
    """The ids of a table of them, each once, in their order."""
    return [name for name in dict.fromkeys(table.column("sample_id").to_pylist()) if name is not None]


def _quote(name: str) -> str:
    """An id in quotes, cut, on one line and without signs that a terminal obeys."""
    shown = views.one_line(name[: 2 * SHOWN_LENGTH])
    return f"'{shown if len(shown) <= SHOWN_LENGTH else shown[:SHOWN_LENGTH] + '…'}'"


def make_graph(shown: View, *, raw: bool) -> views.Graph:
    """The graph of a sample: of its statements, of its atoms (`raw`), or where there are none of its contexts."""
    rows = shown.rows
    if rows.atoms:
        make = views.raw_graph if raw else views.condensed_graph
        return make(rows.atoms, rows.relations, rows.statements)
    if rows.claims:
        return views.claims_graph(required(rows.statements), rows.claims)
    return views.sources_graph(rows.statements, (rows.sample or {}).get("contexts") or ())


def describe(shown: View) -> list[str]:
    """The lines that say what a sample covers and misses. No text of the run can move a terminal's cursor.

    Statements that are missing come first, as they are what a reader looks for; `*` marks the basis.
    """
    failed = [f"failed: {text}" for text in describe_failures(shown.rows.failures)]
    texts = (line for name in ("query", "response") for line in _text_lines(shown, name))
    return [_heading(shown.rows.score), *texts, _score_line(shown), *failed, *_wrapped(shown.lines()), ""]


def _heading(score: Row) -> str:
    """What is shown: sample, metric and the system, where there is one."""
    system = f", system {views.one_line(score['system'])}" if score["system"] is not None else ""
    return f"sample {views.one_line(score['sample_id'])}, metric {views.one_line(score['metric'])}{system}"


def _of_sample(shown: View, column: str) -> str | None:
    """A text of the sample; None where the run has no such sample, or no text."""
    return (shown.rows.sample or {}).get(column)


def _text_lines(shown: View, column: str) -> Iterator[str]:
    """The lines of a text of the sample, as far as it has any."""
    text = _of_sample(shown, column)
    if text is None:
        return
    lines = [views.one_line(line) for line in text.splitlines() if line.strip()] or ["(empty)"]
    for number, line in enumerate(lines):
        yield from _wrap(line, "  " if number else f"{column}: ", "  ")


def _wrapped(lines: Iterable[Line]) -> Iterator[str]:
    for text, start, indent in lines:
        yield from _wrap(text, start, indent)


def _score_line(shown: View) -> str:
    """The score with its bounds where they differ from it, its status, and what was counted."""
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
    """A score to two decimals; `none` for null."""
    return "none" if value is None else f"{value:.2f}"


def _wrap(text: str, start: str, indent: str) -> list[str]:
    """Lines that fit a terminal; one line where the output is no terminal, so that it can be searched."""
    if not sys.stdout.isatty():
        return [start + text]
    width = max(shutil.get_terminal_size().columns, 2 * len(start))
    return textwrap.wrap(text, width, initial_indent=start, subsequent_indent=indent) or [start.rstrip()]


def _print(lines: Iterable[str]) -> None:
    """Prints lines in the encoding of the output; signs that it does not have become `?` and no error."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "replace").decode(encoding))


def _title(shown: View) -> str:
    """The picture's title."""
    score = shown.rows.score
    return (
        f"{score['sample_id'][:NAME_LENGTH]} · {score['metric']} · score {_number(score['score'])} ({score['status']})"
    )


def _place(picture: str, score: Row, *, several: bool) -> str:
    """The file asked for, with the metric's name in it where several are shown."""
    stem, ending = os.path.splitext(picture)
    return f"{stem}-{_safe(score['metric'])}{ending}" if several else picture


def _write(place: str, picture: bytes) -> None:
    """Writes a picture. Raises ShowError where that cannot be done."""
    try:
        StoragePath(place).write_whole(lambda file: file.write(picture))
    except (OSError, pa.ArrowException) as error:
        raise ShowError(f"{place} cannot be written ({type(error).__name__}). Give another --picture") from error


def _safe(name: str) -> str:
    """A name of safe characters; with 8 hex digits of a hash of the whole name, where it had to be changed."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:NAME_LENGTH].lstrip(".")
    if safe == name:
        return name
    return f"{safe}-{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"
