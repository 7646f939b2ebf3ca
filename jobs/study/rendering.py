"""Render rows as Markdown, and show the published figures of `conf/published.csv` next to results."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from itertools import groupby
from typing import Any

from untold.graph.views import one_line
from untold.jobs.run.terminal import Page, table

Row = Mapping[str, Any]
Columns = Mapping[str, str | Callable[[Any], str]]
"""The columns of a table by head: the name of a field of its rows, or a function of a row."""


def document(title: str, *parts: str) -> str:
    """Return a page of Markdown with a title and the parts that are not empty."""
    return "\n\n".join(filter(None, [f"# {title}", *parts])) + "\n"


def section(heading: str, note: str, columns: Columns, rows: Iterable[Row]) -> str:
    """Return a heading, a note and a table with one line per row; empty without rows."""
    return table_section(heading, note, list(columns), cells(columns, rows))


def table_section(heading: str, note: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a heading, a note and a table of lines, or an empty text without lines."""
    return "\n\n".join(filter(None, [f"## {heading}", note, markdown_table(heads, lines)])) if lines else ""


def cells(columns: Columns, rows: Iterable[Row]) -> list[list[str]]:
    """Return one list of texts per row, with one text per column."""
    return [[_cell(row, column) for column in columns.values()] for row in rows]


def _cell(row: Row, column: str | Callable[[Any], str]) -> str:
    value = column(row) if callable(column) else row[column]
    return value if isinstance(value, str) else number(value)


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with escaped cells."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(map(markdown_cell, row))} |" for row in rows)


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


def intervals(measures: Iterable[str], digits: int = 3) -> dict[str, Callable[[Row], str]]:
    """Return a column per measure of a pivoted table, with the interval."""
    return {name: partial(_interval_of, name, digits) for name in measures}


def _interval_of(name: str, digits: int, row: Row) -> str:
    return interval(row[name], digits)


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


@dataclass(frozen=True)
class PublishedFigure:
    """A published value.

    `metric` and `measure` have the names of the table `meta_evaluation`. `text` has the digits of the paper, and its
    interval if the paper has one.
    """

    dataset: str | None
    metric: str | None
    model: str | None
    measure: str
    value: float
    text: str


@cache
def published_figures(paper: str) -> tuple[PublishedFigure, ...]:
    """Return the figures of a paper, in the order of the file."""
    lines = files("untold.conf").joinpath("published.csv").read_text(encoding="utf-8").splitlines()
    found = []
    for source, *names, measure, value, low, high in csv.reader(lines[1:]):
        if source == paper:
            dataset, metric, model = (name or None for name in names)
            text = f"{value} [{low}, {high}]" if low else value
            found.append(PublishedFigure(dataset, metric, model, measure, float(value), text))
    return tuple(found)


def find_published(
    dataset: str, metric: str, model: str | None, measure: str, paper: str = DEJL
) -> PublishedFigure | None:
    """Return the figure of a model in a paper, or None. Ignores providers, case and punctuation in names of models.

    `meta-llama/Llama-3.3-70B-Instruct` equals `llama-3.3-70b-instruct`.
    """
    key = dataset, metric, _plain(model), measure
    return next((one for one in published_figures(paper) if _key(one) == key), None)


def _key(one: PublishedFigure) -> tuple[str | None, ...]:
    return one.dataset, one.metric, _plain(one.model), one.measure


def _plain(model: str | None) -> str:
    """Return the name of a model without provider, prompt set, case and punctuation."""
    model = re.sub(r" \(\w+ prompts\)$", "", model or "")
    return re.sub("[^a-z0-9]", "", model.rpartition("/")[2].lower())


def with_published(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows of `meta_evaluation` with the column `published`, the figure of Dejl et al. 2025 for a match rate."""
    return [{**row, "published": _published_value(row)} for row in rows]


def _published_value(row: Row) -> float | None:
    found = None
    if has_published_convention(row):
        found = find_published(row["dataset"], row["metric"], row["model"], row["measure"])
    return None if found is None else found.value


def has_published_convention(row: Row) -> bool:
    """Return True under the convention `published`, and under its equal `zero` if no score failed."""
    return row["convention"] == PUBLISHED_CONVENTION or (row["convention"] == "zero" and row.get("excluded") == 0)


def published_section(
    heading: str, note: str, figures: Sequence[PublishedFigure], ours: Callable[[PublishedFigure], str | None]
) -> str:
    """Return the figures as a section of a report, each next to the result `ours`; only the note without figures."""
    rows = [
        {"data set": one.dataset, "metric": one.metric, "model": one.model, "measure": one.measure}
        | {"here": ours(one), "published": one.text}
        for one in figures
    ]
    names = ("data set", "metric", "model", "measure", "here", "published")
    return section(heading, note, {name: name for name in names}, rows) or f"## {heading}\n\n{note}"


def by_measure(rows: Iterable[Row], show: Callable[[Row], str]) -> Callable[[PublishedFigure], str | None]:
    """Return a function from a figure to our result under the same data set, metric, model and measure."""
    found: dict[tuple[str | None, ...], str] = {
        (row["dataset"], row["metric"], _plain(row["model"]), row["measure"]): show(row) for row in rows
    }
    return lambda one: found.get(_key(one))
