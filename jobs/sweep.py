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

from untold.graph.drawing import STYLE, save_figure
from untold.jobs.results import Run, open_run
from untold.jobs.summary import bands
from untold.jobs.tables import BETA_SWEEP
from untold.udfs.facts.aspect_coverage import COVERAGE, FACT, icat_score
from untold.udfs.statistics.intervals import bca_interval

METRIC, TABLE = "icat", "beta_sweep"
BETAS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# (S_fact, S_coverage), and how many samples have these
Pairs = Counter[tuple[float, float]]


@dataclass(frozen=True)
class SweepRequest:
    """What `untold sweep` was asked for: the output of a run with the metric icat, and the values of beta."""

    output: str
    betas: tuple[float, ...] = BETAS
    seed: int = 0


def sweep(spark: SparkSession, request: SweepRequest) -> list[dict[str, Any]]:
    """The rows of the table `beta_sweep`, which it writes with two pictures into the run's output.

    First all samples (system null), then each system by name; of each its betas ascending. Means and intervals are of
    the samples whose ICAT is defined (methods, section 11). Raises UnmeasuredError where the run has none of the
    metric, and UnreadableRunError for what is no output of a run that has ended.
    """
    run = open_run(request.output)
    pairs = _collect(bands.count_distinct(_read_values(spark, run), "fact", "coverage"))
    bands.check_measured(pairs, run, METRIC)
    systems = sorted(pairs, key=lambda system: (system is not None, system or ""))
    rows = [row for system in systems for row in sweep_rows(system, pairs[system], request.betas, request.seed)]
    bands.write_lines(request.output, TABLE, rows, BETA_SWEEP, draw_sweep)
    return rows


def _read_values(spark: SparkSession, run: Run) -> DataFrame:
    """Columns system, fact, coverage: a row a sample that has both measures."""
    measures, systems = bands.read_measured(spark, run, METRIC)
    values = [F.max(F.when(F.col("measure") == name, F.col("value"))).alias(name) for name in (FACT, COVERAGE)]
    measured = measures.groupBy("sample_id").agg(*values)
    both = measured.join(systems, on="sample_id", how="inner").where(
        F.col(FACT).isNotNull() & F.col(COVERAGE).isNotNull()
    )
    return both.select("system", F.col(FACT).alias("fact"), F.col(COVERAGE).alias("coverage"))


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
            **interval.columns("mean"),
            "n": pairs.total(),
        }


def draw_sweep(rows: Sequence[Mapping[str, Any]], form: str) -> bytes:
    """The plot of a sweep as the bytes of an SVG or a PNG: a line a system over beta, its interval about it."""
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(9, 5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        systems = list(dict.fromkeys(row["system"] for row in rows))
        bands.draw_bands(axes, rows, "beta", systems)
        axes.set_xscale("log", base=2)
        # Matplotlib's own labels of powers are mathematics, which is off for the sake of names
        axes.xaxis.set_major_formatter(lambda beta, _: f"{beta:g}")
        title = bands.title_of("ICAT by the weight of coverage", systems)
        axes.set(xlabel="beta", ylabel="ICAT (mean, 95 % interval)", ylim=(0, 1), title=title)
        bands.draw_legend(figure, systems)
        return save_figure(figure, form)


def show_sweep(rows: bands.Rows, output: str) -> None:
    """Prints the table and where it and the pictures are."""
    bands.show_lines(rows, output, TABLE, {"beta": "g"})
