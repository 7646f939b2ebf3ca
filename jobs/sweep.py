"""ICAT of systems over a range of beta, from what a run has measured: a table and a plot; asks nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import style
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
from jobs.tables import BETA_SWEEP, MEASURES, SCORES
from udfs.errors import UserError
from udfs.facts.coverage import COVERAGE, FACT, icat_score
from udfs.files import write_bytes
from udfs.statistics.intervals import bca_interval

METRIC, TABLE = "icat", "beta_sweep"
BETAS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Lines that are told apart by colour; of more systems the first are drawn, and the table has all
MOST_LINES = 12
NAME_LENGTH = 40
# (S_fact, S_coverage), and how many samples have these
Pairs = Counter[tuple[float, float]]


class SweepError(UserError):
    """A run without what a sweep is made of. The message says what to do."""


@dataclass(frozen=True)
class SweepRequest:
    """What `untold sweep` was asked for: the output of a run with the metric icat, and the values of beta."""

    output: str
    betas: tuple[float, ...] = BETAS
    seed: int = 0


def sweep(spark: SparkSession, request: SweepRequest) -> list[dict[str, Any]]:
    """The rows of the table `beta_sweep`, which it writes with two pictures into the run's output.

    First all samples (system null), then each system by name; of each its betas ascending. Means and intervals are of
    the samples whose ICAT is defined (methods, section 11). Raises SweepError where the run has none of the metric, and
    UnreadableRunError for what is no output of a run that has ended.
    """
    run = open_run(request.output)
    pairs = _collect(_counted(_read_values(spark, run)))
    if not pairs:
        raise SweepError(f"{request.output}: no measures of {METRIC}; score it with --metric {METRIC} first")
    systems = sorted(pairs, key=lambda system: (system is not None, system or ""))
    rows = [row for system in systems for row in sweep_rows(system, pairs[system], request.betas, request.seed)]
    with Output(request.output, (TABLE,)) as output:
        output.write_rows(TABLE, rows, BETA_SWEEP)
        for form in FORMATS:
            write_bytes(picture_place(request.output, form), draw_sweep(rows, form))
    return rows


def picture_place(output: str, form: str) -> str:
    """Where the picture of that form lies."""
    return f"{output.rstrip('/')}/pictures/{TABLE}.{form}"


def _read_values(spark: SparkSession, run: Run) -> DataFrame:
    """Columns system, fact, coverage: a row a sample that has both measures."""
    missing = [name for name in ("measures", "scores") if name not in run.tables]
    if missing:
        raise SweepError(f"{run.directory}: no table {missing[0]}; score it with --metric {METRIC} first")
    tables = {
        name: spark.read.schema(spark_schema(schema)).parquet(f"{run.directory}/{name}")
        for name, schema in (("measures", MEASURES), ("scores", SCORES))
    }
    of_metric = F.col("metric") == METRIC
    values = [F.max(F.when(F.col("measure") == name, F.col("value"))).alias(name) for name in (FACT, COVERAGE)]
    measured = tables["measures"].where(of_metric).groupBy("sample_id").agg(*values)
    systems = tables["scores"].where(of_metric).select("sample_id", "system")
    both = measured.join(systems, on="sample_id", how="inner").where(
        F.col(FACT).isNotNull() & F.col(COVERAGE).isNotNull()
    )
    return both.select("system", F.col(FACT).alias("fact"), F.col(COVERAGE).alias("coverage"))


def _counted(values: DataFrame) -> Iterable[Mapping[str, Any]]:
    """How many samples have each pair of values: system, fact, coverage, count.

    Only distinct pairs reach the driver; where these are more than `MAX_DISTINCT`, values are rounded to multiples of
    1 / `GRID` in Spark first.
    """

    def count(rows: DataFrame) -> DataFrame:
        return rows.groupBy("system", "fact", "coverage").agg(F.count("*").alias("count"))

    counted = count(values).limit(MAX_DISTINCT + 1).toArrow()
    if counted.num_rows > MAX_DISTINCT:
        rounded = {name: F.round(F.col(name) * GRID) / GRID for name in ("fact", "coverage")}
        counted = count(values.withColumns(rounded)).toArrow()
    rows: list[Mapping[str, Any]] = counted.to_pylist()
    return rows


def _collect(counted: Iterable[Mapping[str, Any]]) -> dict[str | None, Pairs]:
    """By system, and under None for all samples: how many samples have each pair of values."""
    found: dict[str | None, Pairs] = {}
    for row in counted:
        for system in {None, row["system"]}:
            found.setdefault(system, Counter())[row["fact"], row["coverage"]] += row["count"]
    return found


def sweep_rows(system: str | None, pairs: Pairs, betas: Iterable[float], seed: int) -> Iterator[dict[str, Any]]:
    """The rows of a system: the mean of its samples' ICAT under each beta, with its BCa interval."""
    for beta in sorted(set(betas)):
        scores = [icat_score(fact, coverage, beta) for fact, coverage in pairs]
        interval = bca_interval([score or 0.0 for score in scores], list(pairs.values()), seed=seed)
        yield {
            "system": system,
            "beta": beta,
            "mean": interval.mean,
            "ci_low": interval.low,
            "ci_high": interval.high,
            "n": pairs.total(),
        }


def draw_sweep(rows: Sequence[Mapping[str, Any]], form: str) -> bytes:
    """The plot of a sweep as the bytes of an SVG or a PNG: a line a system over beta, its interval about it."""
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(8, 5))
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        systems = list(dict.fromkeys(row["system"] for row in rows))
        for system in systems[:MOST_LINES]:
            own = [row for row in rows if row["system"] == system]
            betas = [row["beta"] for row in own]
            (line,) = axes.plot(betas, [row["mean"] for row in own], marker="o", label=_label(system))
            low, high = (
                [row["mean"] if row[end] is None else row[end] for row in own] for end in ("ci_low", "ci_high")
            )
            axes.fill_between(betas, low, high, color=line.get_color(), alpha=0.15)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="beta", ylabel="ICAT (mean, 95 % interval)", ylim=(0, 1), title=_title(systems))
        axes.legend()
        return save_figure(figure, form)


def _label(system: str | None) -> str:
    return "all" if system is None else one_line(system)[:NAME_LENGTH]


def _title(systems: Sequence[str | None]) -> str:
    more = f" (the first {MOST_LINES} of {len(systems):,} lines)" if len(systems) > MOST_LINES else ""
    return f"ICAT by the weight of coverage{more}"


def show_sweep(rows: Iterable[Mapping[str, Any]], output: str) -> None:
    """Prints the table and where it and the pictures are."""
    print(f"{'system':28} {'beta':>7} {'n':>7} {'mean':>6}  95 % interval")
    for row in rows:
        interval = "-" if row["ci_low"] is None else f"{row['ci_low']:.3f} .. {row['ci_high']:.3f}"
        print(f"{_label(row['system'])[:28]:28} {row['beta']:>7g} {row['n']:>7,} {row['mean']:>6.3f}  {interval}")
    print(f"table: {output}/{TABLE}; pictures: {', '.join(picture_place(output, form) for form in FORMATS)}")
