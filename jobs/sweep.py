"""Recompute scores over a range of beta or k without calls: `untold sweep` and `untold curve`."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.graph.plotting import STYLE, save_figure
from untold.graph.views import FORMATS, one_line
from untold.jobs.metrics.views import count
from untold.jobs.run.output import Output
from untold.jobs.run.session import read_parquet
from untold.jobs.run.terminal import page_of, print_lines, table
from untold.jobs.run_tables import RunTables, open_run
from untold.jobs.summary.ranking import interval_text
from untold.jobs.summary.score_counts import GRID, MAX_DISTINCT
from untold.jobs.tables import BETA_SWEEP, CONTEXTS_USED, MEASURES, RECALL_CURVE, SCORES
from untold.udfs.errors import UserError, shorten
from untold.udfs.facts.aspect_coverage import COVERAGE, FACT, icat_score
from untold.udfs.statistics.intervals import bca_interval
from untold.udfs.storage import StoragePath

# Lines that are told apart by colour; of more systems the first are drawn, and the table has all
COLOURS = (*(f"C{number}" for number in range(10)), "black", "gold")
MOST_LINES = len(COLOURS)
NAME_LENGTH = 40
Rows = Sequence[Mapping[str, Any]]


class UnmeasuredError(UserError):
    """A run without the measures that are wanted. The message says what to do."""


def read_measured(spark: SparkSession, run: RunTables, metric: str) -> tuple[DataFrame, DataFrame]:
    """The rows of a metric: of the table `measures`, and sample_id and system of `scores`.

    Raises UnmeasuredError where the run lacks one of these tables.
    """
    missing = [name for name in ("measures", "scores") if name not in run.tables]
    if missing:
        raise UnmeasuredError(f"{run.directory} has no table {missing[0]}. Score it with --metric {metric} first")
    measures, scores = (
        read_parquet(spark, run.path_of(name).spark, schema=schema).where(F.col("metric") == metric)
        for name, schema in (("measures", MEASURES), ("scores", SCORES))
    )
    return measures, scores.select("sample_id", "system")


def count_distinct(rows: DataFrame, *values: str) -> Iterable[Mapping[str, Any]]:
    """Count equal rows: their columns, and count. Beyond `MAX_DISTINCT` rows the `values` are rounded."""
    # One more than the maximum shows that there are more, without a count of all
    counted = _count(rows, values).limit(MAX_DISTINCT + 1).toArrow()
    if counted.num_rows > MAX_DISTINCT:
        counted = _count(rows, values, GRID).toArrow()
    for batch in counted.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _count(rows: DataFrame, values: Sequence[str], grid: int | None = None) -> DataFrame:
    rounded = {} if grid is None else {name: F.round(F.col(name) * grid) / grid for name in values}
    return rows.withColumns(rounded).groupBy(*rows.columns).agg(F.count("*").alias("count"))


def check_measured(found: Mapping[Any, Any], run: RunTables, metric: str) -> None:
    """Raises UnmeasuredError where nothing was found, which says whether the run has the metric."""
    if found:
        return
    whole = next((row for row in run.manifest.get("summary", ()) if row["metric"] == metric), None)
    if whole is None:
        raise UnmeasuredError(f"{run.directory} has no measures of {metric}. Score it with --metric {metric} first")
    raise UnmeasuredError(
        f"{run.directory}: none of {whole['n']:,} samples has the measures of {metric} ({whole['failed']:,} failed, "
        f"{whole['undefined']:,} undefined). The table failures has the reasons. Retry with untold score --retry-failed"
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
    places = f"The table is {output}/{name}. The pictures are {pictures}"
    print_lines([*table(heads, cells, page_of(sys.stdout), names=names, texts=1), places])


def _picture_place(output: str, name: str, form: str) -> StoragePath:
    return StoragePath(output) / "pictures" / f"{name}.{form}"


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
    pairs = _collect(count_distinct(_read_values(spark, run), "fact", "coverage"))
    check_measured(pairs, run, METRIC)
    systems = sorted(pairs, key=lambda system: (system is not None, system or ""))
    rows = [row for system in systems for row in sweep_rows(system, pairs[system], request.betas, request.seed)]
    write_lines(request.output, TABLE, rows, BETA_SWEEP, draw_sweep)
    return rows


def _read_values(spark: SparkSession, run: RunTables) -> DataFrame:
    """Columns system, fact, coverage: a row a sample that has both measures."""
    measures, systems = read_measured(spark, run, METRIC)
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
        draw_bands(axes, rows, "beta", systems)
        axes.set_xscale("log", base=2)
        # Matplotlib's own labels of powers are mathematics, which is off for the sake of names
        axes.xaxis.set_major_formatter(lambda beta, _: f"{beta:g}")
        title = title_of("ICAT by the weight of coverage", systems)
        axes.set(xlabel="beta", ylabel="ICAT (mean, 95 % interval)", ylim=(0, 1), title=title)
        draw_legend(figure, systems)
        return save_figure(figure, form)


def show_sweep(rows: Rows, output: str) -> None:
    """Prints the table and where it and the pictures are."""
    show_lines(rows, output, TABLE, {"beta": "g"})


CURVE_METRIC, CURVE_TABLE = "importance", "recall_curve"
# The metric of contexts, and the table that says what each adds
RAG, CONTEXTS, OF_CONTEXTS = "rag", "contexts_used", "contexts"
# By the name of a measure at k, what it ranks facts by, in the order of the panels; claim recall is of contexts
RANKINGS = {
    "recall": "combined",
    "recall_relevance": "relevance",
    "recall_salience": "salience",
    "claim_recall": OF_CONTEXTS,
}
_AT_K = re.compile(rf"({'|'.join(RANKINGS)})@(\d+)")
# (system, ranking, k), and how many samples have each value; system None are all samples
Line = tuple[str | None, str, int]
Values = dict[Line, Counter[float]]


@dataclass(frozen=True)
class CurveRequest:
    """What `untold curve` was asked for: the output of a run with the metric importance, or rag."""

    output: str
    seed: int = 0


def curve(spark: SparkSession, request: CurveRequest) -> list[dict[str, Any]]:
    """The rows of the table `recall_curve`, which it writes with two pictures into the run's output.

    First all samples (system null), then each system by name; of each the rankings combined, relevance, salience and
    contexts, each by k. Means and intervals are of the samples whose recall is defined (methods, sections 12 and 16).
    Raises UnmeasuredError where the run has none of the metrics, and UnreadableRunError for what is no output of a run
    that has ended.
    """
    run = open_run(request.output)
    values = _collect_curve(count_distinct(_read_curve_values(spark, run), "value"))
    scored = {row["metric"] for row in run.manifest.get("summary", ())}
    check_measured(values, run, RAG if RAG in scored and CURVE_METRIC not in scored else CURVE_METRIC)
    rows = list(curve_rows(values, request.seed))
    write_lines(request.output, CURVE_TABLE, rows, RECALL_CURVE, draw_curve)
    return rows


def _read_curve_values(spark: SparkSession, run: RunTables) -> DataFrame:
    """Columns system, measure, value: a row a defined recall at some k of a sample."""
    measures, systems = read_measured(spark, run, CURVE_METRIC)
    at_k = F.col("measure").rlike(f"^(?:{_AT_K.pattern})$") & F.col("value").isNotNull()
    facts = measures.where(at_k).join(systems, on="sample_id", how="inner").select("system", "measure", "value")
    return facts.unionByName(_recalled(spark, run)) if CONTEXTS in run.tables else facts


def _recalled(spark: SparkSession, run: RunTables) -> DataFrame:
    """The same columns: the share of a sample's ground-truth claims that its first k contexts state, or all it has.

    A sample without such claims has no row, nor one of whose contexts something is not known.
    """
    contexts = read_parquet(spark, run.path_of(CONTEXTS).spark, schema=CONTEXTS_USED)
    most = contexts.agg(F.coalesce(F.max("rank"), F.lit(1))).collect()[0][0]
    by_sample = contexts.groupBy("sample_id").agg(
        F.array_sort(F.collect_list(F.struct("rank", "new_claims"))).alias("contexts"),
        F.max(F.size("ground_truth")).alias("claims"),
    )
    ks = F.explode(F.sequence(F.lit(1), F.lit(most))).alias("k")
    new = F.transform(F.slice("contexts", 1, F.col("k").cast("int")), lambda one: one["new_claims"])
    recalled = F.aggregate(new, F.lit(0).cast("long"), lambda total, one: total + one)
    _, systems = read_measured(spark, run, RAG)
    shares = by_sample.where(F.col("claims") > 0).select("*", ks).withColumn("value", recalled / F.col("claims"))
    named = shares.where(F.col("value").isNotNull()).withColumn("measure", F.concat(F.lit("claim_recall@"), "k"))
    return named.join(systems, on="sample_id", how="inner").select("system", "measure", "value")


def _collect_curve(counted: Iterable[Mapping[str, Any]]) -> Values:
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
        shown = {row["ranking"] for row in rows}
        of_facts = [name for name in RANKINGS.values() if name != OF_CONTEXTS] if shown - {OF_CONTEXTS} else []
        rankings = [*of_facts, *({OF_CONTEXTS} & shown)]
        panels = figure.subplots(1, len(rankings), sharey=True, squeeze=False)[0]
        for axes, ranking in zip(panels, rankings, strict=True):
            draw_bands(axes, [row for row in rows if row["ranking"] == ranking], "k", systems)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set(xlabel="k", ylim=(0, 1), title=ranking)
        panels[0].set_ylabel("recall at k (mean, 95 % interval)")
        draw_legend(figure, systems)
        what = "Recall of the k most important facts" if of_facts else "Claim recall of the first k contexts"
        figure.suptitle(title_of(what, systems))
        return save_figure(figure, form)


def show_curve(rows: Rows, output: str) -> None:
    """Prints the table and where it and the pictures are, and how many contexts are enough."""
    show_lines(rows, output, CURVE_TABLE, {"ranking": "", "k": "d"})
    of_contexts = [row for row in rows if row["ranking"] == OF_CONTEXTS and row["system"] is None]
    if of_contexts:
        best = max(row["mean"] for row in of_contexts)
        enough = min(row["k"] for row in of_contexts if row["mean"] == best)
        print_lines([f"claim recall is highest, {best:.3f}, from {count(enough, 'context')} on"])
