"""What reports of studies are made of: sections with tables in Markdown, and how numbers stand in these."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from untold.graph.views import one_line

Row = Mapping[str, Any]


def section(heading: str, note: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A heading, a note and a table; empty where there are no lines."""
    parts = [f"## {heading}", note, markdown_table(heads, lines)]
    return "\n\n".join(filter(None, parts)) if lines else ""


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table of cells that are escaped."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(map(markdown_cell, row))} |" for row in rows)


def markdown_cell(cell: str) -> str:
    """A cell that neither ends the line nor the column, whatever name a model or a metric has."""
    return one_line(cell).replace("|", "\\|")


def number(value: float | None, digits: int = 3) -> str:
    """A value, `-` where there is none; a whole number with its thousands apart.

    >>> number(0.25), number(1200), number(None)
    ('0.250', '1,200', '-')
    """
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def interval(row: Row, digits: int = 3) -> str:
    """A row's value with its interval where that is known; `-` where it is undefined."""
    if row["value"] is None or row["ci_low"] is None:
        return number(row["value"], digits)
    return f"{row['value']:.{digits}f} [{row['ci_low']:.{digits}f}, {row['ci_high']:.{digits}f}]"


def by_owner(rows: Iterable[Row], measures: Container[str]) -> dict[tuple[str, str | None], dict[str, Row]]:
    """By metric and model, in the order of the rows, those of these measures by measure."""
    found: dict[tuple[str, str | None], dict[str, Row]] = {}
    for row in rows:
        if row["measure"] in measures:
            found.setdefault((row["metric"], row["model"]), {})[row["measure"]] = row
    return found
