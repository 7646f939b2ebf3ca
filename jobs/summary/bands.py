"""Lines of systems with bands about them, from what a run has measured: read, counted, drawn and written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.graph.views import FORMATS, one_line
from untold.jobs.results import Run
from untold.jobs.run.output import Output
from untold.jobs.run.session import read_parquet
from untold.jobs.run.terminal import page_of, print_lines, table
from untold.jobs.summary.aggregate import collect_counts
from untold.jobs.summary.rows import interval_text
from untold.jobs.tables import MEASURES, SCORES
from untold.udfs.errors import UserError
from untold.udfs.hints import shorten
from untold.udfs.storage import Place

# Lines that are told apart by colour; of more systems the first are drawn, and the table has all
COLOURS = (*(f"C{number}" for number in range(10)), "black", "gold")
MOST_LINES = len(COLOURS)
NAME_LENGTH = 40
Rows = Sequence[Mapping[str, Any]]


class UnmeasuredError(UserError):
    """A run without the measures that are wanted. The message says what to do."""


def read_measured(spark: SparkSession, run: Run, metric: str) -> tuple[DataFrame, DataFrame]:
    """The rows of a metric: of the table `measures`, and sample_id and system of `scores`.

    Raises UnmeasuredError where the run lacks one of these tables.
    """
    missing = [name for name in ("measures", "scores") if name not in run.tables]
    if missing:
        raise UnmeasuredError(f"{run.directory}: no table {missing[0]}; score it with --metric {metric} first")
    measures, scores = (
        read_parquet(spark, run.path_of(name).spark, schema=schema).where(F.col("metric") == metric)
        for name, schema in (("measures", MEASURES), ("scores", SCORES))
    )
    return measures, scores.select("sample_id", "system")


def count_distinct(rows: DataFrame, *values: str) -> Iterable[Mapping[str, Any]]:
    """How many rows are the same: their columns, and count; beyond `MAX_DISTINCT` of rounded `values`."""
    return collect_counts(partial(_count, rows, values))


def _count(rows: DataFrame, values: Sequence[str], grid: int | None = None) -> DataFrame:
    rounded = {} if grid is None else {name: F.round(F.col(name) * grid) / grid for name in values}
    return rows.withColumns(rounded).groupBy(*rows.columns).agg(F.count("*").alias("count"))


def check_measured(found: Mapping[Any, Any], run: Run, metric: str) -> None:
    """Raises UnmeasuredError where nothing was found, which says whether the run has the metric."""
    if found:
        return
    whole = next((row for row in run.manifest.get("summary", ()) if row["metric"] == metric), None)
    if whole is None:
        raise UnmeasuredError(f"{run.directory}: no measures of {metric}; score it with --metric {metric} first")
    raise UnmeasuredError(
        f"{run.directory}: none of {whole['n']:,} samples has the measures of {metric} ({whole['failed']:,} failed, "
        f"{whole['undefined']:,} undefined); the table failures says why, untold score --retry-failed asks again"
    )


def write_lines(
    output: str, name: str, rows: list[dict[str, Any]], schema: pa.Schema, draw: Callable[[Rows, str], bytes]
) -> None:
    """Writes a table into the run's output, and its pictures; `draw`: from rows and form to bytes."""
    with Output(output, (name,)) as place:
        place.write_rows(name, rows, schema)
        for form in FORMATS:
            _picture_place(output, name, form).write_bytes(draw(rows, form))


def show_lines(rows: Rows, output: str, name: str, over: Mapping[str, str]) -> None:
    """Prints a table, and where it and its pictures are; `over`: formats of the columns between system and n."""
    cells = [
        [
            row["system"] or "all",
            *(f"{row[column]:{form}}" for column, form in over.items()),
            *(f"{row['n']:,}", f"{row['mean']:.3f}", interval_text(row)),
        ]
        for row in rows
    ]
    heads = ["system", *over, "n", "mean", "95 % interval"]
    names = 1 + sum(not form for form in over.values())
    pictures = ", ".join(str(_picture_place(output, name, form)) for form in FORMATS)
    places = f"table: {output}/{name}; pictures: {pictures}"
    print_lines([*table(heads, cells, page_of(sys.stdout), names=names, texts=1), places])


def _picture_place(output: str, name: str, form: str) -> Place:
    return Place(output) / "pictures" / f"{name}.{form}"


def draw_bands(axes: Axes, rows: Rows, over: str, systems: Sequence[str | None]) -> None:
    """For each of the first systems a line of means over a column, its interval about it."""
    for system, colour in zip(systems, COLOURS, strict=False):
        own = [row for row in rows if row["system"] == system]
        places = [row[over] for row in own]
        axes.plot(places, [row["mean"] for row in own], marker="o", color=colour)
        low, high = ([row["mean"] if row[end] is None else row[end] for row in own] for end in ("ci_low", "ci_high"))
        axes.fill_between(places, low, high, color=colour, alpha=0.15)


def draw_legend(figure: Figure, systems: Sequence[str | None]) -> None:
    """Which line is which system's, beside the panels of a figure with a constrained layout."""
    lines = [Line2D([], [], marker="o", color=colour) for colour, _ in zip(COLOURS, systems, strict=False)]
    legend = figure.legend(lines, ["" for _ in lines], loc="outside right upper", frameon=False)
    # Matplotlib leaves labels out that begin with an underscore
    for text, system in zip(legend.get_texts(), systems, strict=False):
        text.set_text(label_of(system))


def label_of(system: str | None) -> str:
    """What a line is called; None are all samples."""
    return "all" if system is None else shorten(one_line(system), NAME_LENGTH)


def title_of(text: str, systems: Sequence[str | None]) -> str:
    """The title of a picture, which says where it has only some of the lines."""
    more = f" (the first {MOST_LINES} of {len(systems):,} lines)" if len(systems) > MOST_LINES else ""
    return f"{text}{more}"
