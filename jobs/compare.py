"""Rank systems with intervals and paired tests, and estimate means from a judged part (methods, sections 7 and 8)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import combinations, groupby
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.run.session import read_parquet
from untold.jobs.run.terminal import Page, amount, table, wrapped
from untold.jobs.run_tables import RunTables, open_run
from untold.jobs.summary.aggregate import collect_counts, count_values, score_or_zero
from untold.jobs.summary.estimating import EstimateError, EstimateRequest, Group, read_groups
from untold.jobs.summary.ranking import (
    CHANCE,
    DECIMALS,
    FAILED_STATUSES,
    MAX_DISTINCT,
    UNDEFINED,
    Rows,
    check_runs,
    compare_scores,
    interval_text,
    is_unlikely,
    names_of,
    wanted_measures,
    wanted_metrics,
)
from untold.jobs.tables import ESTIMATES, MEASURES, SAMPLES, SCORES
from untold.udfs.statistics.permutation import adjust_p_values
from untold.udfs.statistics.prediction_powered import samples_needed

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
    multiples of 1 / `untold.jobs.summary.ranking.GRID`. Raises CompareError for outputs that cannot be compared,
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
    spark: SparkSession, runs: Sequence[RunTables], metrics: Sequence[str], measures: Sequence[str] = ()
) -> DataFrame:
    """Columns of `scores`, output (its place among the runs) and question, null where the sample is invalid."""
    names = names_of(runs)
    frames = [
        _read_run(spark, run, name, metrics, measures).withColumn("output", F.lit(place))
        for place, (run, name) in enumerate(zip(runs, names, strict=True))
    ]
    return reduce(DataFrame.unionByName, frames)


def _read_run(
    spark: SparkSession, run: RunTables, name: str, metrics: Sequence[str], measures: Sequence[str]
) -> DataFrame:
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


TABLE = "estimates"
# A proxy that weighs less adds nothing; nor does one that is worth fewer judged samples than these, as a share
LEAST_WEIGHT, LEAST_GAIN = 0.05, 1.05
SHOWN_NAMES = 3
ESTIMATE_HEADS = ("metric", "proxy", "first", "second", "judged", "diff.", "95 % interval", "p", "p adj.")
NEEDED_COLUMNS = ("metric", "proxy", "level", "system", "n", "judged")


@dataclass(frozen=True)
class Estimates:
    """`means`: rows of the table `estimates` of one system or of all; `differences`: those of two systems."""

    means: Rows
    differences: Rows


def estimate(request: EstimateRequest, notify: Callable[[str], None] = lambda _: None) -> Estimates:
    """The mean of each metric over all samples, all together, by system, and as differences of two systems.

    `notify` says what an estimate rests on: samples without a score, a proxy that adds nothing. Raises EstimateError
    and CompareError for runs and labels that do not go together.
    """
    if request.proxy is None and request.labels is None:
        raise EstimateError("give --proxy, cheap scores of all samples, or --labels, or both")
    groups = read_groups(request, notify)
    for line in _useless(groups):
        notify(line)
    differences: Rows = []
    for _, own in groupby(groups, key=lambda group: group.pair):
        systems = [group for group in own if group.system is not None]
        ranked = sorted(systems, key=lambda group: -group.moments.mean)
        rows = [_row(one.less(other)) for one, other in combinations(ranked, 2)]
        adjusted = adjust_p_values([row["p_value"] for row in rows])
        differences += [{**row, "p_adjusted": value} for row, value in zip(rows, adjusted, strict=True)]
    return Estimates([_row(group) for group in groups], differences)


def needed(request: EstimateRequest, half_width: float, notify: Callable[[str], None] = lambda _: None) -> Rows:
    """How many samples have to be judged for intervals of this half width, by the variances of a pilot.

    metric, proxy, level, system, n, judged, half_width, needed: null where all n are too few.
    """
    return [
        {
            **{name: value for name, value in _row(group).items() if name in NEEDED_COLUMNS},
            "half_width": half_width,
            "needed": samples_needed(group.moments, group.judged, group.rest, half_width),
        }
        for group in read_groups(request, notify)
    ]


def write_estimates(request: EstimateRequest, found: Estimates, output: str, *, overwrite: bool = False) -> None:
    """Writes the table `estimates` into an output of its own."""
    from untold.jobs.run.outcome import Ending
    from untold.jobs.run.output import Output

    runs = {"run": request.run, "proxy": request.everything}
    given: dict[str, str | None] = {name: run.directory for name, run in runs.items()}
    given |= {"labels": request.labels, "undefined": request.undefined}
    of = [run.manifest.get("identity", {}) for run in runs.values()]
    identity = {
        "dataset": "estimate",
        "input": json.dumps([of, given["labels"], given["undefined"]], sort_keys=True),
        "metrics": sorted({row["metric"] for row in found.means}),
    }
    with Output(output, (TABLE,), overwrite, inputs=[run.directory for run in runs.values()]) as place:
        place.claim(identity)
        place.begin({}, input=given)
        place.write_rows(TABLE, [*found.means, *found.differences], ESTIMATES)
        place.end(Ending())


def estimate_lines(found: Estimates, page: Page, *, every: bool = False) -> Iterator[str]:
    """The estimates as lines, then the differences beyond chance, or all."""
    heads = (
        "metric",
        "proxy",
        "system",
        "n",
        "judged",
        "mean",
        "95 % interval",
        "judged alone",
        "95 % interval",
        "worth",
    )
    cells = [
        [
            *(row["metric"], row["proxy"], row["system"] or "all", f"{row['n']:,}", f"{row['judged']:,}"),
            *(_figure(row["mean"]), _limits(row, "ci"), _figure(row["plain_mean"]), _limits(row, "plain")),
            "-" if row["effective_sample_size"] is None else f"{row['effective_sample_size']:,.0f}",
        ]
        for row in found.means
    ]
    yield from table(heads, cells, page, names=3)
    yield from wrapped("worth: judged samples whose plain mean would have an interval as narrow", page)
    shown = [row for row in found.differences if every or is_unlikely(row)]
    if shown:
        cells = [
            [
                *(row["metric"], row["proxy"], row["system"], row["compared_system"], f"{row['judged']:,}"),
                *(_figure(row["mean"], "+.3f"), _limits(row, "ci", "+.3f")),
                *(_figure(row[name], ".4f") for name in ("p_value", "p_adjusted")),
            ]
            for row in shown
        ]
        yield from ("", *table(ESTIMATE_HEADS, cells, page, names=4))
    if hidden := len(found.differences) - len(shown):
        pairs = amount(hidden, "pair does not differ", "pairs do not differ")
        yield from ("", *wrapped(f"{pairs} by more than chance (p adj. < {CHANCE}); --all or --json shows all", page))


def needed_lines(rows: Rows, page: Page) -> Iterator[str]:
    """How many samples have to be judged, as lines."""
    cells = [
        [
            *(row["metric"], row["proxy"], row["system"] or "all", f"{row['n']:,}", f"{row['judged']:,}"),
            "not enough" if row["needed"] is None else f"{row['needed']:,}",
        ]
        for row in rows
    ]
    yield from table(("metric", "proxy", "system", "n", "judged", "needed"), cells, page, names=3)
    yield from wrapped(f"needed: judged samples for a 95 % interval of +-{rows[0]['half_width']:g}", page)


def _figure(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)


def _limits(row: Mapping[str, Any], name: str, form: str = ".3f") -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return "-" if low is None else f"{low:{form}} .. {high:{form}}"


def _row(group: Group) -> dict[str, Any]:
    """A row of the table `estimates`, its p-value not yet adjusted."""
    moments, metric_and_proxy = group.moments, dict(zip(("metric", "proxy"), group.pair, strict=True))
    weight = moments.weight
    plain, found = moments.interval(0), moments.interval(weight)
    level = "difference" if group.compared_system else "system" if group.system else "overall"
    variance = moments.variance_at(weight)
    row = {
        **metric_and_proxy,
        "level": level,
        "system": group.system,
        "compared_system": group.compared_system,
        "n": group.judged + group.rest,
        "judged": group.judged,
        "undefined": group.undefined,
        "failed": group.failed,
        **found.columns("mean"),
        "plain_mean": plain.mean,
        "plain_low": plain.low,
        "plain_high": plain.high,
        "weight": weight,
        "effective_sample_size": round(group.judged * moments.variance / variance, 6) if variance else None,
        "p_value": moments.p_value() if group.compared_system else None,
    }
    # The last bits depend on the order in which threads sum up
    return {name: round(value, DECIMALS) if isinstance(value, float) else value for name, value in row.items()}


def _useless(groups: Sequence[Group]) -> Iterator[str]:
    """A line for each proxy that adds nothing to some means."""
    for (metric, proxy), own in groupby(groups, key=lambda group: group.pair):
        poor = [group for group in own if proxy is not None and _adds_nothing(group)]
        if poor:
            names = [group.system or "all samples" for group in poor]
            more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
            why = f"its weight is {poor[0].moments.weight:.2f}" if poor[0].rest else "every sample is judged"
            yield (
                f"{metric}: the proxy {proxy} adds nothing to the mean of {', '.join(names[:SHOWN_NAMES])}{more} "
                f"({why}); that of the judged samples alone is as good"
            )


def _adds_nothing(group: Group) -> bool:
    """Whether the proxy hardly counts, or narrows no interval."""
    moments, weight = group.moments, group.moments.weight
    return moments.variance > 0 and (
        weight < LEAST_WEIGHT or moments.variance < LEAST_GAIN * moments.variance_at(weight)
    )
