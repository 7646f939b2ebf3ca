"""Recall of the first k facts against k, from what a run has measured: a table and a plot; asks nothing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from graph.drawing import FORMATS, STYLE, save_figure
from graph.views import one_line
from jobs.results import Run, open_run
from jobs.run.output import Output
from jobs.run.session import spark_schema
from jobs.study.aggregate import GRID, MAX_DISTINCT
from jobs.tables import MEASURES, RECALL_CURVE, SCORES
from udfs.errors import UserError
from udfs.files import write_bytes
from udfs.statistics.intervals import bca_interval

METRIC, TABLE = "importance", "recall_curve"
# By the name of a measure at k, what it ranks facts by, in the order of the panels
RANKINGS = {"recall": "combined", "recall_relevance": "relevance", "recall_salience": "salience"}
_AT_K = re.compile(rf"({'|'.join(RANKINGS)})@(\d+)")
# Lines that are told apart by colour; of more systems the first are drawn, and the table has all
MOST_LINES = 12
NAME_LENGTH = 40
# (system, ranking, k), and how many samples have each value; system None are all samples
Line = tuple[str | None, str, int]
Values = dict[Line, Counter[float]]


class CurveError(UserError):
    """A run without what a curve is made of. The message says what to do."""


@dataclass(frozen=True)
class CurveRequest:
    """What `untold curve` was asked for: the output of a run with the metric importance."""

    output: str
    seed: int = 0


def curve(spark: SparkSession, request: CurveRequest) -> list[dict[str, Any]]:
    """The rows of the table `recall_curve`, which it writes with two pictures into the run's output.

    First all samples (system null), then each system by name; of each the rankings combined, relevance and salience,
    each by k. Means and intervals are of the samples whose recall is defined (methods, section 12). Raises CurveError
    where the run has none of the metric, and UnreadableRunError for what is no output of a run that has ended.
    """
    run = open_run(request.output)
    values = _collect(_counted(_read_values(spark, run)))
    if not values:
        raise CurveError(f"{request.output}: no measures of {METRIC}; score it with --metric {METRIC} first")
    rows = list(curve_rows(values, request.seed))
    with Output(request.output, (TABLE,)) as output:
        output.write_rows(TABLE, rows, RECALL_CURVE)
        for form in FORMATS:
            write_bytes(picture_place(request.output, form), draw_curve(rows, form))
    return rows


def picture_place(output: str, form: str) -> str:
    """Where the picture of that form lies."""
    return f"{output.rstrip('/')}/pictures/{TABLE}.{form}"


def _read_values(spark: SparkSession, run: Run) -> DataFrame:
    """Columns system, measure, value: a row a defined recall at some k of a sample."""
    missing = [name for name in ("measures", "scores") if name not in run.tables]
    if missing:
        raise CurveError(f"{run.directory}: no table {missing[0]}; score it with --metric {METRIC} first")
    tables = {
        name: spark.read.schema(spark_schema(schema)).parquet(f"{run.directory}/{name}")
        for name, schema in (("measures", MEASURES), ("scores", SCORES))
    }
    of_metric = F.col("metric") == METRIC
    at_k = F.col("measure").rlike(f"^(?:{_AT_K.pattern})$") & F.col("value").isNotNull()
    systems = tables["scores"].where(of_metric).select("sample_id", "system")
    measured = tables["measures"].where(of_metric & at_k)
    return measured.join(systems, on="sample_id", how="inner").select("system", "measure", "value")


def _counted(values: DataFrame) -> Iterable[Mapping[str, Any]]:
    """How many samples have each value: system, measure, value, count.

    Only distinct values reach the driver; where these are more than `MAX_DISTINCT`, they are rounded to multiples of
    1 / `GRID` in Spark first.
    """

    def count(rows: DataFrame) -> DataFrame:
        return rows.groupBy("system", "measure", "value").agg(F.count("*").alias("count"))

    counted = count(values).limit(MAX_DISTINCT + 1).toArrow()
    if counted.num_rows > MAX_DISTINCT:
        counted = count(values.withColumn("value", F.round(F.col("value") * GRID) / GRID)).toArrow()
    rows: list[Mapping[str, Any]] = counted.to_pylist()
    return rows


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
            "mean": interval.mean,
            "ci_low": interval.low,
            "ci_high": interval.high,
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
            for system in systems[:MOST_LINES]:
                _draw_line(axes, [row for row in rows if (row["system"], row["ranking"]) == (system, ranking)])
            axes.set(xlabel="k", ylim=(0, 1), title=ranking)
        panels[0].set_ylabel("recall at k (mean, 95 % interval)")
        panels[0].legend()
        figure.suptitle(_title(systems))
        return save_figure(figure, form)


def _draw_line(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """A system's line over k with its interval; nothing where no recall by that ranking is defined."""
    if not rows:
        return
    ks = [row["k"] for row in rows]
    (line,) = axes.plot(ks, [row["mean"] for row in rows], marker="o", label=_label(rows[0]["system"]))
    low, high = ([row["mean"] if row[end] is None else row[end] for row in rows] for end in ("ci_low", "ci_high"))
    axes.fill_between(ks, low, high, color=line.get_color(), alpha=0.15)


def _label(system: str | None) -> str:
    return "all" if system is None else one_line(system)[:NAME_LENGTH]


def _title(systems: Sequence[str | None]) -> str:
    more = f" (the first {MOST_LINES} of {len(systems):,} lines)" if len(systems) > MOST_LINES else ""
    return f"Recall of the k most important facts{more}"


def show_curve(rows: Iterable[Mapping[str, Any]], output: str) -> None:
    """Prints the table and where it and the pictures are."""
    print(f"{'system':28} {'ranking':>10} {'k':>5} {'n':>7} {'mean':>6}  95 % interval")
    for row in rows:
        interval = "-" if row["ci_low"] is None else f"{row['ci_low']:.3f} .. {row['ci_high']:.3f}"
        label = _label(row["system"])[:28]
        print(f"{label:28} {row['ranking']:>10} {row['k']:>5} {row['n']:>7,} {row['mean']:>6.3f}  {interval}")
    print(f"table: {output}/{TABLE}; pictures: {', '.join(picture_place(output, form) for form in FORMATS)}")
