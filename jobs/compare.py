"""Outputs of `untold score` to a ranking of systems, with intervals and paired tests (methods, sections 7 and 8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.results import Run, open_run
from untold.jobs.run.session import read_parquet
from untold.jobs.run.terminal import Page, amount, table, wrapped
from untold.jobs.summary.aggregate import collect_counts, count_values, score_or_zero
from untold.jobs.summary.ranking import (
    CHANCE,
    DECIMALS,
    UNDEFINED,
    Rows,
    check_runs,
    compare_scores,
    is_unlikely,
    names_of,
    wanted_measures,
    wanted_metrics,
)
from untold.jobs.summary.rows import FAILED_STATUSES, MAX_DISTINCT, interval_text
from untold.jobs.tables import MEASURES, SAMPLES, SCORES

PAIR_HEADS = ("metric", "first", "second", "n", "diff.", "95 % interval", "p", "p adj.")


def compare(
    spark: SparkSession,
    outputs: Sequence[str],
    *,
    metrics: Sequence[str] | None = None,
    measures: Sequence[str] | None = None,
    seed: int,
    notify: Callable[[str], None] = lambda _: None,
    max_distinct: int = MAX_DISTINCT,
    cluster: bool = False,
    undefined: str = "mean",
) -> dict[str, Rows]:
    """`systems` and `comparisons` of outputs of `untold score`, over `metrics` or all that they have.

    With `measures` the values of these count in place of scores, `metric` is `<metric>.<measure>`, and answer rates are
    null.

    `systems`, best first within a metric: `SYSTEM_COLUMNS`, as in the table `summary`. Samples without a system are of
    one that is named after their output. `undefined` names what they are ranked by, a key of `UNDEFINED`: with `zero`,
    intervals and comparisons too are of scores where an undefined one counts as 0 if there was something to state.
    `notify` says where systems differ in their answer rates by more than chance.

    `comparisons`, a row two systems of a metric, the better one first: metric, first, second, n (questions that both
    have a score for), difference of the means over these with ci_low and ci_high, p_value, p_adjusted
    (Benjamini-Hochberg within the metric); null where n is 0. A question is a query with its contexts; several samples
    of one count as their mean. With `cluster`, all rows of one query are resampled together and flip together;
    `notify` says where that is not so.

    Only counts of distinct values reach the driver; where these are more than `max_distinct`, values are rounded to
    multiples of 1 / `untold.jobs.summary.rows.GRID`. Raises CompareError for outputs that cannot be compared,
    UnreadableRunError for what is no output. Methods, sections 7 and 8.
    """
    runs = check_runs([open_run(output) for output in outputs])
    # Read by several jobs; on disk where memory does not hold it
    wanted = wanted_measures(runs, measures)
    scores = _read_scores(spark, runs, wanted_metrics(runs, metrics), wanted).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        counted, how = _SparkScores(scores, max_distinct), {"cluster": cluster, "measured": bool(wanted)}
        return compare_scores(counted, runs, seed=seed, notify=notify, undefined=undefined, **how)
    finally:
        scores.unpersist()


@dataclass(frozen=True)
class _SparkScores:
    """`CountedScores` of a frame of metric, system, query, question, output, status and the columns of a score."""

    scores: DataFrame
    max_distinct: int

    def count_values(self) -> Iterable[dict[str, Any]]:
        return collect_counts(partial(count_values, self.scores), self.max_distinct)

    def count_differences(self, score: str, *, cluster: bool) -> Iterable[dict[str, Any]]:
        count = partial(count_differences, self._scored(score), cluster=cluster)
        return collect_counts(count, self.max_distinct)

    def count_clusters(self, score: str) -> Iterable[dict[str, Any]]:
        return collect_counts(partial(count_clusters, self._scored(score)), self.max_distinct)

    def count_repeated_queries(self) -> int:
        asked = self.scores.where(F.col("query").isNotNull()).groupBy("metric", "system", "query")
        return asked.agg(F.count("*").alias("rows")).where(F.col("rows") > 1).select("query").distinct().count()

    def find_twice(self) -> dict[str, Any] | None:
        outputs = F.min("output").alias("one"), F.max("output").alias("other")
        known = self.scores.where(F.col("question").isNotNull())
        places = known.groupBy("metric", "system", "question").agg(*outputs)
        several = places.where(F.col("one") < F.col("other")).groupBy("metric", "system", "one", "other")
        first = several.agg(F.count("*").alias("count")).orderBy("metric", "system", "one", "other").first()
        return None if first is None else first.asDict()

    def _scored(self, score: str) -> DataFrame:
        """The scores where what `score` names counts as one (`CountedScores`)."""
        answered = F.when(score_or_zero().isNotNull(), F.col("score").isNotNull().cast("double"))
        named = {"score": F.col("score"), "score_zero": score_or_zero(), "answered": answered}
        return self.scores.withColumn("score", named[score])


def _read_scores(
    spark: SparkSession, runs: Sequence[Run], metrics: Sequence[str], measures: Sequence[str] = ()
) -> DataFrame:
    """Columns of `scores`, output (its place among the runs) and question, null where the sample is invalid."""
    names = names_of(runs)
    frames = [
        _read_run(spark, run, name, metrics, measures).withColumn("output", F.lit(place))
        for place, (run, name) in enumerate(zip(runs, names, strict=True))
    ]
    return reduce(DataFrame.unionByName, frames)


def _read_run(spark: SparkSession, run: Run, name: str, metrics: Sequence[str], measures: Sequence[str]) -> DataFrame:
    """The scores of an output with the query and the question of their sample: columns of `scores`, query, question.

    question: a hash of query and contexts, null where the sample has none. name: the system of samples that have none.
    """
    scores = read_parquet(spark, run.path_of("scores").spark, schema=SCORES)
    scores = scores.where(F.col("metric").isin(*metrics))
    if measures:
        values = read_parquet(spark, run.path_of("measures").spark, schema=MEASURES)
        scores = as_scores(values.where(F.col("measure").isin(*measures)), scores)
    samples = read_parquet(spark, run.path_of("samples").spark, schema=SAMPLES)
    text = F.to_json(F.struct("query", "contexts"))
    # A hash, since texts as keys of joins would be shuffled whole
    question = F.when(F.col("query").isNotNull() & F.col("contexts").isNotNull(), F.sha2(text, 256))
    asked = samples.select("sample_id", "query", question.alias("question"))
    # Scores of invalid rows stay: they count among the failed
    return scores.join(asked, on="sample_id", how="left").withColumn("system", F.coalesce("system", F.lit(name)))


def as_scores(measures: DataFrame, scores: DataFrame) -> DataFrame:
    """Measures in the columns of `scores`: `metric` is `<metric>.<measure>`, and nothing is known to be stated.

    What has bounds and no value is failed, and undefined without either.
    """
    values = {"value": "score", "value_low": "score_low", "value_high": "score_high"}
    rows = scores.drop(*values.values()).join(
        measures.withColumnsRenamed(values), on=["sample_id", "metric"], how="inner"
    )
    unknown = F.when(F.col("score_high").isNotNull() | F.col("status").isin(*FAILED_STATUSES), "failed")
    status = F.when(F.col("score").isNotNull(), "ok").otherwise(F.coalesce(unknown, F.lit("no_statements")))
    named = rows.withColumns({"metric": F.concat_ws(".", "metric", "measure"), "status": status})
    return named.withColumns(dict.fromkeys(("covered", "uncovered"), F.lit(None).cast("long"))).drop("measure")


def count_clusters(scores: DataFrame, *, grid: int | None = None) -> DataFrame:
    """How often queries of a system have one sum of scores, of one number of rows: metric, system, sum, size, count.

    With `grid`, the mean of a sum is rounded to a multiple of 1 / grid.
    """
    known = scores.where(F.col("score").isNotNull() & ~F.isnan("score"))
    query = F.coalesce("query", "sample_id").alias("query")
    queries = known.groupBy("metric", "system", query).agg(F.sum("score").alias("sum"), F.count("*").alias("size"))
    counted = queries.groupBy("metric", "system", _rounded("sum", grid).alias("sum"), "size")
    return counted.agg(F.count("*").alias("count"))


def _rounded(name: str, grid: int | None) -> Column:
    """A sum rounded, so that equal ones meet as one count whatever the order in which Spark added them.

    By the grid it is the mean that is, of `size` values: sums of more have no more distinct values.
    """
    if grid is None:
        return F.round(name, DECIMALS)
    return F.round(F.col(name) / F.col("size") * grid) / grid * F.col("size")


def count_differences(scores: DataFrame, *, grid: int | None = None, cluster: bool = False) -> DataFrame:
    """How often each difference of two systems occurs, as `CountedScores.count_differences` says.

    scores: metric, system, query, question strings, score double. With `grid`, the mean of a difference is rounded to a
    multiple of 1 / grid.
    """
    means = scores.where(F.col("question").isNotNull() & F.col("score").isNotNull() & ~F.isnan("score"))
    keys = ["metric", "question", *(["query"] if cluster else [])]
    means = means.groupBy(*keys, "system").agg(F.avg("score").alias("score"))
    first = means.withColumnsRenamed({"system": "first", "score": "first_score"})
    second = means.withColumnsRenamed({"system": "second", "score": "second_score"})
    pairs = first.join(second, on=keys, how="inner").where(F.col("first") < F.col("second"))
    pairs = pairs.withColumns({"difference": F.col("first_score") - F.col("second_score"), "size": F.lit(1)})
    if cluster:
        sums = [F.sum("difference").alias("difference"), F.sum("size").alias("size")]
        pairs = pairs.groupBy("metric", "first", "second", "query").agg(*sums)
    rounded = pairs.withColumn("difference", _rounded("difference", grid))
    counted = rounded.groupBy("metric", "first", "second", "difference", "size").agg(F.count("*").alias("count"))
    return counted.select("metric", "first", "second", "difference", "size", "count")


def comparison_lines(
    found: Mapping[str, Rows], page: Page, *, every: bool = False, clustered: bool = False, undefined: str = "mean"
) -> Iterator[str]:
    """The ranking as lines, then the pairs that differ by more than chance (p adjusted below `CHANCE`), or all."""
    by = UNDEFINED[undefined]
    heads = ["metric", "system", "n", "scored", "answered", by.replace("_", ", "), "95 % interval"]
    ranked = [
        [
            *(row["metric"], row["system"], f"{row['n']:,}", f"{row['scored']:,}"),
            *(_number(row["answer_rate"], ".2f"), _number(row[by], ".3f")),
            interval_text(row if by == "mean" else _with_zeros(row), clustered=clustered),
        ]
        for row in found["systems"]
    ]
    yield from table(heads, ranked, page, names=2, texts=1)
    pairs = found["comparisons"]
    shown = [row for row in pairs if every or is_unlikely(row)]
    if shown:
        systems = [row["system"] for row in found["systems"]]
        yield from ("", *table(PAIR_HEADS, [_pair_cells(row) for row in shown], page, names=3, among=systems))
    if hidden := len(pairs) - len(shown):
        told = amount(hidden, "pair does not differ", "pairs do not differ")
        told += f" by more than chance (p adj. < {CHANCE}); --all or --json shows {'it' if hidden == 1 else 'them'}"
        yield from ("", *wrapped(told, page))


def _with_zeros(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the number of values that its mean with zeros is of."""
    return {**row, "scored": row["scored"] + row["undefined"]}


def _pair_cells(row: Mapping[str, Any]) -> list[str]:
    interval = "-" if row["ci_low"] is None else f"{row['ci_low']:+.3f} .. {row['ci_high']:+.3f}"
    return [
        *(row["metric"], row["first"], row["second"], f"{row['n']:,}", _number(row["difference"], "+.3f"), interval),
        *(_number(row[name], ".4f") for name in ("p_value", "p_adjusted")),
    ]


def _number(value: float | None, form: str) -> str:
    """A number in this form, `-` where there is none."""
    return "-" if value is None else format(value, form)
