"""Recall of the first k facts or contexts against k, from what a run has measured: a table and a plot; asks nothing."""

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
from untold.jobs.metrics.views import count
from untold.jobs.results import Run, open_run
from untold.jobs.run.session import read_parquet
from untold.jobs.run.terminal import print_lines
from untold.jobs.summary import bands
from untold.jobs.tables import CONTEXTS_USED, RECALL_CURVE
from untold.udfs.statistics.intervals import bca_interval

METRIC, TABLE = "importance", "recall_curve"
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
    values = _collect(bands.count_distinct(_read_values(spark, run), "value"))
    scored = {row["metric"] for row in run.manifest.get("summary", ())}
    bands.check_measured(values, run, RAG if RAG in scored and METRIC not in scored else METRIC)
    rows = list(curve_rows(values, request.seed))
    bands.write_lines(request.output, TABLE, rows, RECALL_CURVE, draw_curve)
    return rows


def _read_values(spark: SparkSession, run: Run) -> DataFrame:
    """Columns system, measure, value: a row a defined recall at some k of a sample."""
    measures, systems = bands.read_measured(spark, run, METRIC)
    at_k = F.col("measure").rlike(f"^(?:{_AT_K.pattern})$") & F.col("value").isNotNull()
    facts = measures.where(at_k).join(systems, on="sample_id", how="inner").select("system", "measure", "value")
    return facts.unionByName(_recalled(spark, run)) if CONTEXTS in run.tables else facts


def _recalled(spark: SparkSession, run: Run) -> DataFrame:
    """The same columns: the share of a sample's ground-truth claims that its first k contexts state, or all it has.

    A sample without such claims has no row, nor one of whose contexts something is not known.
    """
    contexts = read_parquet(spark, run.path_of(CONTEXTS).spark, schema=CONTEXTS_USED)
    most = contexts.agg(F.coalesce(F.max("rank"), F.lit(1))).collect()[0][0]
    by_sample = contexts.groupBy("sample_id").agg(
        F.array_sort(F.collect_list(F.struct("rank", "new"))).alias("contexts"),
        F.max(F.size("ground_truth")).alias("claims"),
    )
    ks = F.explode(F.sequence(F.lit(1), F.lit(most))).alias("k")
    new = F.transform(F.slice("contexts", 1, F.col("k").cast("int")), lambda one: one["new"])
    recalled = F.aggregate(new, F.lit(0).cast("long"), lambda total, one: total + one)
    _, systems = bands.read_measured(spark, run, RAG)
    shares = by_sample.where(F.col("claims") > 0).select("*", ks).withColumn("value", recalled / F.col("claims"))
    named = shares.where(F.col("value").isNotNull()).withColumn("measure", F.concat(F.lit("claim_recall@"), "k"))
    return named.join(systems, on="sample_id", how="inner").select("system", "measure", "value")


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
        shown = {row["ranking"] for row in rows}
        of_facts = [name for name in RANKINGS.values() if name != OF_CONTEXTS] if shown - {OF_CONTEXTS} else []
        rankings = [*of_facts, *({OF_CONTEXTS} & shown)]
        panels = figure.subplots(1, len(rankings), sharey=True, squeeze=False)[0]
        for axes, ranking in zip(panels, rankings, strict=True):
            bands.draw_bands(axes, [row for row in rows if row["ranking"] == ranking], "k", systems)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set(xlabel="k", ylim=(0, 1), title=ranking)
        panels[0].set_ylabel("recall at k (mean, 95 % interval)")
        bands.draw_legend(figure, systems)
        what = "Recall of the k most important facts" if of_facts else "Claim recall of the first k contexts"
        figure.suptitle(bands.title_of(what, systems))
        return save_figure(figure, form)


def show_curve(rows: bands.Rows, output: str) -> None:
    """Prints the table and where it and the pictures are, and how many contexts are enough."""
    bands.show_lines(rows, output, TABLE, {"ranking": "", "k": "d"})
    of_contexts = [row for row in rows if row["ranking"] == OF_CONTEXTS and row["system"] is None]
    if of_contexts:
        best = max(row["mean"] for row in of_contexts)
        enough = min(row["k"] for row in of_contexts if row["mean"] == best)
        print_lines([f"claim recall is highest, {best:.3f}, from {count(enough, 'context')} on"])
