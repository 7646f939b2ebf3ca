"""Render rows as Markdown, and show the published figures of `conf/published.csv` next to results."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import groupby
from typing import Any

from untold.graph.views import one_line
from untold.jobs.run.terminal import Page, table

Row = Mapping[str, Any]
Show = Callable[[Any], str]
Columns = Sequence[str | tuple[str, str | Show]]
"""The columns of a table: a field of its rows, or a head with a field or a function of a row."""


def document(title: str, *parts: str) -> str:
    """Return a page of Markdown with a title and the parts that are not empty."""
    return "\n\n".join(filter(None, [f"# {title}", *parts])) + "\n"


def section(heading: str, note: str, columns: Columns, rows: Iterable[Row]) -> str:
    """Return a heading, a note and a table with one line per row; empty without rows."""
    given = list(rows)
    return "\n\n".join(filter(None, [f"## {heading}", note, markdown_table(columns, given)])) if given else ""


def cells(columns: Columns, rows: Iterable[Row]) -> list[list[str]]:
    """Return the heads of the columns, then one list of texts per row."""
    pairs = [(column, column) if isinstance(column, str) else column for column in columns]
    values = [[column(row) if callable(column) else row[column] for _, column in pairs] for row in rows]
    texts = [[value if isinstance(value, str) else number(value) for value in line] for line in values]
    return [[head for head, _ in pairs], *texts]


def markdown_table(columns: Columns, rows: Iterable[Row]) -> str:
    """Return a Markdown table with escaped cells and one line per row."""
    heads, *lines = cells(columns, rows)
    return "\n".join(f"| {' | '.join(map(markdown_cell, line))} |" for line in [heads, ["---"] * len(heads), *lines])


def markdown_cell(cell: str) -> str:
    """Return a name of a model or a metric as the text of one cell in one line."""
    return one_line(cell).replace("|", "\\|")


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with its digits, a whole number with thousands separators, `-` for None.

    >>> number(0.25), number(1200), number(None)
    ('0.250', '1,200', '-')
    """
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def interval(row: Row, digits: int = 3) -> str:
    """Return the value of a row with its interval, if that is known; `-` if the value is undefined."""
    if row["value"] is None or row["ci_low"] is None:
        return number(row["value"], digits)
    return f"{row['value']:.{digits}f} [{row['ci_low']:.{digits}f}, {row['ci_high']:.{digits}f}]"


def pivot(rows: Iterable[Row], measures: Iterable[str], keys: Sequence[str] = ("metric", "model")) -> list[Row]:
    """Return one row per key, in the order of the rows: the fields of its first row, and its rows by measure.

    `baseline` is the model, or `(baseline)`.
    """
    wanted = set(measures)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row["measure"] in wanted:
            first = {"baseline": row["model"] or "(baseline)", **row}
            found.setdefault(tuple(row[key] for key in keys), first)[row["measure"]] = row
    return list(found.values())


def intervals(
    measures: Iterable[str], digits: int = 3, beside: tuple[str, Show] | None = None
) -> list[tuple[str, Show]]:
    """Return a column per measure of a pivoted table, with the interval, each with the column `beside` it."""
    shown: list[tuple[str, Show]] = [("", partial(interval, digits=digits)), *([beside] if beside else [])]
    return [(head or name, partial(_of_measure, name, show)) for name in measures for head, show in shown]


def _of_measure(name: str, show: Show, row: Row) -> str:
    return show(row[name])


# The start of a cell with a number, an interval or nothing
_NUMBER = re.compile(r"[-+<]?(\d|$)")


def report_lines(report: str, page: Page) -> list[str]:
    """Return the lines of a report: plain Markdown, or on a terminal with tables that fit its width."""
    lines: list[str] = []
    for is_table, group in groupby(report.removesuffix("\n").split("\n"), key=lambda line: line.startswith("| ")):
        if not is_table or page.width is None:
            lines += group
            continue
        heads, _, *rows = (_cells(line) for line in group)
        numeric = [all(_NUMBER.match(row[place]) for row in rows) for place in range(len(heads))]
        lines += table(heads, rows, page, names=[*numeric, True].index(True))
    return lines


def _cells(line: str) -> list[str]:
    """Return the cells of a line of a Markdown table."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


DEJL, ICAT, IMPORTANCE, LONGRECALL, FACTSCORE = (
    *("Dejl et al. 2025", "Samarinas et al. 2025", "Jafari et al. 2026", "Ardestani et al. 2025", "Min et al. 2023"),
)
PUBLISHED_CONVENTION = "published"


@cache
def published_figures(paper: str) -> tuple[Row, ...]:
    """Return the figures of a paper in the order of the file: dataset, metric, model, measure, value and text.

    A name is None if the figure does not have it. `text` is the value as published, with its interval if the paper has
    one.
    """
    lines = files("untold.conf").joinpath("published.csv").read_text(encoding="utf-8").splitlines()
    found = []
    for source, *names, value, low, high in csv.reader(lines[1:]):
        if source == paper:
            named = dict(zip(("dataset", "metric", "model", "measure"), (name or None for name in names), strict=True))
            found.append(named | {"value": float(value), "text": f"{value} [{low}, {high}]" if low else value})
    return tuple(found)


def find_published(dataset: str, metric: str, model: str | None, measure: str, paper: str = DEJL) -> Row | None:
    """Return the figure of a model in a paper, or None. Ignores providers, case and punctuation in names of models.

    `meta-llama/Llama-3.3-70B-Instruct` equals `llama-3.3-70b-instruct`.
    """
    key = figure_key({"dataset": dataset, "metric": metric, "model": model, "measure": measure})
    return next((one for one in published_figures(paper) if figure_key(one) == key), None)


def figure_key(row: Row) -> tuple[str | None, ...]:
    """Return data set, metric, model and measure of a result or a published figure.

    The model has no provider, prompt set, case and punctuation.
    """
    model = re.sub(r" \(\w+ prompts\)$", "", row["model"] or "")
    return row["dataset"], row["metric"], re.sub("[^a-z0-9]", "", model.rpartition("/")[2].lower()), row["measure"]


def with_published(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows of `meta_evaluation` with the column `published`, the figure of Dejl et al. 2025 for a match rate."""
    figures = {figure_key(one): one["value"] for one in published_figures(DEJL)}
    return [
        {**row, "published": figures.get(figure_key(row)) if has_published_convention(row) else None} for row in rows
    ]


def has_published_convention(row: Row) -> bool:
    """Return True under the convention `published`, and under its equal `zero` if no score failed."""
    return row["convention"] == PUBLISHED_CONVENTION or (row["convention"] == "zero" and row.get("excluded") == 0)


def published_section(heading: str, note: str, figures: Sequence[Row], ours: Callable[[Row], str | None]) -> str:
    """Return the figures as a section of a report, each next to the result `ours`; only the note without figures."""
    columns: Columns = [("data set", "dataset"), "metric", "model", "measure", "here", ("published", "text")]
    rows = [{**one, "here": ours(one)} for one in figures]
    return section(heading, note, columns, rows) or f"## {heading}\n\n{note}"
