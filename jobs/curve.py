"""Recall of the first k facts against k, from what a run has measured: a table and a plot; asks nothing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.graph.drawing import STYLE, save_figure
from untold.jobs.results import Run, open_run
from untold.jobs.summary.bands import (
    Rows,
    check_measured,
    count_distinct,
    draw_bands,
    draw_legend,
    read_measured,
    show_lines,
    title_of,
    write_lines,
)
from untold.jobs.tables import RECALL_CURVE
from untold.udfs.statistics.intervals import bca_interval

METRIC, TABLE = "importance", "recall_curve"
# By the name of a measure at k, what it ranks facts by, in the order of the panels
RANKINGS = {"recall": "combined", "recall_relevance": "relevance", "recall_salience": "salience"}
_AT_K = re.compile(rf"({'|'.join(RANKINGS)})@(\d+)")
# (system, ranking, k), and how many samples have each value; system None are all samples
Line = tuple[str | None, str, int]
Values = dict[Line, Counter[float]]


@dataclass(frozen=True)
class CurveRequest:
    """What `untold curve` was asked for: the output of a run with the metric importance."""

    output: str
    seed: int = 0


def curve(spark: SparkSession, request: CurveRequest) -> list[dict[str, Any]]:
    """The rows of the table `recall_curve`, which it writes with two pictures into the run's output.

    First all samples (system null), then each system by name; of each the rankings combined, relevance and salience,
    each by k. Means and intervals are of the samples whose recall is defined (methods, section 12). Raises
    UnmeasuredError where the run has none of the metric, and UnreadableRunError for what is no output of a run that has
    ended.
    """
    run = open_run(request.output)
    values = _collect(count_distinct(_read_values(spark, run), "value"))
    check_measured(values, run, METRIC)
    rows = list(curve_rows(values, request.seed))
    write_lines(request.output, TABLE, rows, RECALL_CURVE, draw_curve)
    return rows


def _read_values(spark: SparkSession, run: Run) -> DataFrame:
    """Columns system, measure, value: a row a defined recall at some k of a sample."""
    measures, systems = read_measured(spark, run, METRIC)
    at_k = F.col("measure").rlike(f"^(?:{_AT_K.pattern})$") & F.col("value").isNotNull()
    return measures.where(at_k).join(systems, on="sample_id", how="inner").select("system", "measure", "value")


def _collect(counted: Iterable[Mapping[str, Any]]) -> Values:
    """By line and k how many samples have each value, of each system and of all samples."""
    found: Values = defaultdict(Counter)
    for row in counted:
        named = _AT_K.fullmatch(row["measure"])
        assert named is not None
        for system in {None, row["system"]}:
            found[system, RANKINGS[named[1]], int(named[2])][row["value"]] += row["count"]
    return found


def curve_rows(values: Values, seed: int) -> Iterator[dict[str, Any]]:
    """The rows of the table: means with their BCa intervals, in the order that `curve` gives."""
    panels = list(RANKINGS.values())

    def place(line: Line) -> tuple[bool, str, int, int]:
        system, ranking, k = line
        return system is not None, system or "", panels.index(ranking), k

    for line in sorted(values, key=place):
        interval = bca_interval(list(values[line]), list(values[line].values()), seed=seed)
        yield {
            **dict(zip(("system", "ranking", "k"), line, strict=True)),
            **interval.columns("mean"),
            "n": values[line].total(),
        }


def draw_curve(rows: Sequence[Mapping[str, Any]], form: str) -> bytes:
    """The plot of a curve as the bytes of an SVG or a PNG: a panel a ranking, in it a line a system with its band."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(12, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(RANKINGS), sharey=True)
        for axes, ranking in zip(panels, RANKINGS.values(), strict=True):
            draw_bands(axes, [row for row in rows if row["ranking"] == ranking], "k", systems)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set(xlabel="k", ylim=(0, 1), title=ranking)
        panels[0].set_ylabel("recall at k (mean, 95 % interval)")
        draw_legend(figure, systems)
        figure.suptitle(title_of("Recall of the k most important facts", systems))
        return save_figure(figure, form)


def show_curve(rows: Rows, output: str) -> None:
    """Prints the table and where it and the pictures are."""
    show_lines(rows, output, TABLE, {"ranking": "", "k": "d"})
