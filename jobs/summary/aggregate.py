"""Scores to summary: counts by Spark, means and intervals on the driver from counts of distinct values.

Samples that were scored several times under other salts show how far a judge agrees with itself (methods, section 7).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.run.terminal import amount
from untold.jobs.summary.ranking import (
    COLUMN_OF_STATUS,
    DECIMALS,
    GRID,
    MAX_DISTINCT,
    Counts,
    Row,
    Rows,
    answer_columns,
    interval_of_counts,
    summarise_counts,
    values_and_counts,
)
from untold.udfs.statistics.intervals import clustered_bca_interval, mean_of_counts

# Measures that count what others of the metric are over: what a response states, or which nuggets are vital
STATED = ("claims", "vital_nuggets")


def most_frequent_errors(failures: DataFrame, stages: Sequence[str]) -> list[dict[str, Any]]:
    """Of each stage the error that most of its requests failed with: stage, error_type, error, count.

    failures: stage, request_id, error_type, error.
    """
    kinds = failures.where(F.col("stage").isin(list(stages))).groupBy("stage", "error_type", "error")
    counted = kinds.agg(F.count_distinct("request_id").alias("count"))
    # Of equally frequent ones the last by its text, whatever the order of the rows
    most = counted.groupBy("stage").agg(F.max(F.struct("count", "error_type", "error")).alias("most"))
    return [row.asDict() for row in most.select("stage", "most.*").collect()]


def count_values(scores: DataFrame, *, grid: int | None = None) -> DataFrame:
    """How often each value occurs: metric, system, status, measure, value, count.

    `measure` is score, score_low, score_high, or score_zero, what `score_or_zero` gives; `value` is null where the
    measure is null or NaN. With `grid`, values are rounded to multiples of 1 / grid.
    """
    measures = ("score", "score_low", "score_high", "score_zero")
    return _count(scores.withColumn("score_zero", score_or_zero()), ("metric", "system", "status"), measures, grid)


def score_or_zero() -> Column:
    """The score; 0 where it is undefined although there was something to state; null elsewhere (methods, section 7).

    Reads status strings, score double, covered and uncovered long.
    """
    silent = F.col("status").isin([name for name, column in COLUMN_OF_STATUS.items() if column == "undefined"])
    return F.coalesce(F.when(~F.isnan("score"), F.col("score")), F.when(silent & _has_to_state(), F.lit(0.0)))


def _has_to_state() -> Column:
    """Whether there are statements, aspects or facts that a response should state; null where that is unknown."""
    return F.col("covered") + F.col("uncovered") > 0


def _count(rows: DataFrame, keys: tuple[str, ...], values: tuple[str, ...], grid: int | None = None) -> DataFrame:
    """The columns of `keys`, measure (the name of one of `values`), value, count."""
    value = F.when(~F.isnan("value"), F.col("value"))
    return (
        rows.unpivot(keys, values, "measure", "value")
        .withColumn("value", value if grid is None else F.round(value * grid) / grid)
        .groupBy(*keys, "measure", "value")
        .agg(F.count("*").alias("count"))
        .select(*keys, "measure", "value", "count")
    )


def summarise(
    scores: DataFrame, *, seed: int, max_distinct: int = MAX_DISTINCT, zero: bool = False
) -> list[dict[str, Any]]:
    """The rows of the table `summary`, as `summarise_counts` gives them.

    scores: metric, system, status strings, score, score_low, score_high double, covered, uncovered long. Only counts
    of distinct values reach the driver, so that partitioning changes no bit. Where they are more than `max_distinct`
    rows over all metrics, systems and statuses, values are rounded to multiples of 1 / `GRID` in Spark first: no mean
    or limit then moves by more than half of that.
    """
    return summarise_counts(collect_counts(partial(count_values, scores), max_distinct), seed=seed, zero=zero)


def summarise_measures(
    measures: DataFrame,
    scores: DataFrame,
    zeroed: Mapping[str, Collection[str]],
    always: Mapping[str, Collection[str]] | None = None,
    *,
    seed: int,
    max_distinct: int = MAX_DISTINCT,
) -> list[dict[str, Any]]:
    """The rows of the table `measures_summary`, in the order of `summarise`, and of one metric by measure.

    measures: the table; scores: sample_id, metric, system, covered, uncovered; zeroed: by metric the measures of
    which an undefined value counts as 0 in `mean_zero`, where a response states nothing; always: those of which every
    one does. n counts samples, `defined` those with a value, which the mean and its interval are of; means of bounds
    are of the samples that have them. Rounding as in `summarise`.
    """
    always = always or {}
    rows = _with_zeros(measures, scores, zeroed, always).withColumnRenamed("measure", "named")
    count = partial(_count, rows, ("metric", "named", "system"), ("value", "value_low", "value_high", "value_zero"))
    sizes: Counter[tuple[str, str, str | None]] = Counter()
    values: dict[tuple[str, str, str | None], Counts] = defaultdict(lambda: defaultdict(Counter))
    for row in collect_counts(count, max_distinct):
        for group in {(row["metric"], row["named"], None), (row["metric"], row["named"], row["system"])}:
            sizes[group] += row["count"] if row["measure"] == "value" else 0
            if row["value"] is not None:
                values[group][row["measure"]][row["value"]] += row["count"]
    groups = sorted(sizes, key=lambda group: (*group[:2], group[2] is not None, group[2] or ""))
    return [
        _measure_row(
            group,
            sizes[group],
            values[group],
            seed,
            zeroed=any(group[1] in named.get(group[0], ()) for named in (zeroed, always)),
        )
        for group in groups
    ]


def with_query_intervals(
    found: Sequence[dict[str, Any]], measures: DataFrame, samples: DataFrame, measure: str, *, seed: int
) -> list[dict[str, Any]]:
    """The rows of `measures_summary`, those of one measure with intervals of whole queries: what moves one answer to a
    query may move all.

    measures: the table; samples: sample_id, query, system.
    """
    if not any(row["measure"] == measure for row in found):
        return list(found)
    own = measures.where((F.col("measure") == measure) & F.col("value").isNotNull())
    joined = own.select("sample_id", "metric", "value").join(samples, on="sample_id", how="inner")
    levels = [joined.withColumn("level", F.lit(level)) for level in ("overall", "system")]
    levels[0] = levels[0].withColumn("system", F.lit(None).cast("string"))
    of_query = levels[0].unionByName(levels[1].where("system is not null"))
    keys = ("metric", "level", "system")
    # Equal sums of other orders differ in their last bits
    summed = of_query.groupBy(*keys, "query").agg(F.round(F.sum("value"), 9).alias("sum"), F.count("*").alias("size"))
    clusters: dict[tuple[Any, ...], list[tuple[float, int, int]]] = defaultdict(list)
    for row in summed.groupBy(*keys, "sum", "size").count().toArrow().to_pylist():
        clusters[tuple(row[key] for key in keys)].append((row["sum"], row["size"], row["count"]))
    return [
        {**row, **clustered_bca_interval(*zip(*clusters[key], strict=True), seed=seed).columns("mean")}
        if row["measure"] == measure and (key := tuple(row[name] for name in keys)) in clusters
        else row
        for row in found
    ]


def _with_zeros(
    measures: DataFrame,
    scores: DataFrame,
    zeroed: Mapping[str, Collection[str]],
    always: Mapping[str, Collection[str]],
) -> DataFrame:
    """The measures with their samples' systems and value_zero: 0 where a sample lacks it as its response is silent.

    Of those of `always`, 0 where it is undefined; what is unknown has bounds.
    """
    key = ["sample_id", "metric"]
    stated = F.col("measure").isin(*STATED) & (F.col("value") == 0)
    silent = measures.where(stated).select(*key, F.lit(True).alias("silent"))
    systems = scores.select(*key, "system", _has_to_state().alias("has_to_state"))
    silenced = _named(zeroed) & F.col("silent") & F.col("has_to_state")
    zero = F.when(silenced | (_named(always) & F.col("value_low").isNull()), F.lit(0.0))
    value = F.coalesce(F.when(~F.isnan("value"), F.col("value")), zero)
    joined = measures.join(systems, on=key, how="left").join(silent, on=key, how="left")
    return joined.withColumn("value_zero", value)


def _named(measures: Mapping[str, Collection[str]]) -> Column:
    """Whether a row is of one of these measures, by metric."""
    rows = ((F.col("metric") == name) & F.col("measure").isin(list(own)) for name, own in measures.items())
    return reduce(Column.__or__, rows, F.lit(False))


def _measure_row(
    group: tuple[str, str, str | None], size: int, values: Counts, seed: int, *, zeroed: bool
) -> dict[str, Any]:
    metric, measure, system = group
    interval = interval_of_counts(values["value"], seed)
    return {
        "metric": metric,
        "measure": measure,
        "level": "overall" if system is None else "system",
        "system": system,
        "n": size,
        "defined": values["value"].total(),
        **interval.columns("mean"),
        "mean_low": mean_of_counts(*values_and_counts(values["value_low"])),
        "mean_high": mean_of_counts(*values_and_counts(values["value_high"])),
        **answer_columns(values["value"], values["value_zero"] if zeroed else Counter()),
    }


def collect_counts(count: Callable[..., DataFrame], max_distinct: int = MAX_DISTINCT) -> Iterable[dict[str, Any]]:
    """The counts, exact where they are few enough, else of rounded values; small batches of Python rows at a time.

    `count` takes a `grid`, as `count_values` does.
    """
    # One more than is allowed says that there are more, without counting them all
    counted = count().limit(max_distinct + 1).toArrow()
    if counted.num_rows > max_distinct:
        counted = count(grid=GRID).toArrow()
    for batch in counted.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


Key = tuple[str, str | None]


def measure_repeats(runs: Sequence[Mapping[str, DataFrame]]) -> Rows:
    """The rows of the table `repeatability`: of each metric all samples, then each system.

    runs: the tables of each scoring, the first that of all samples. Samples count that every scoring has a score for,
    and statements of one text that every scoring has of a sample.
    """
    scored = _numbered([run["scores"].select("metric", "sample_id", "system", "score") for run in runs])
    repeated = (
        scored.where(~F.isnan("score"))
        .groupBy("metric", "sample_id", "system")
        .agg(F.count("score").alias("scorings"), F.var_samp("score").alias("within"))
        .where(F.col("scorings") == len(runs))
    )
    within = _by_group(repeated, F.count("*").alias("n"), F.avg("within").alias("within"))
    known = runs[0]["scores"].where(~F.isnan("score"))
    total = _by_group(known, F.var_samp("score").alias("total"))
    sums = (F.count("*").alias("statements"), F.count_if("flips").alias("flips"))
    verdicts = _verdicts(runs)
    counts = {} if verdicts is None else _by_group(verdicts, *sums)
    return [
        {
            "metric": metric,
            "level": "overall" if system is None else "system",
            "system": system,
            "repeats": len(runs),
            "n": row["n"],
            "deviation": round(math.sqrt(row["within"]), DECIMALS),
            **_flips(counts.get((metric, system))),
            "share": _share(row["within"], total[metric, system]["total"]),
        }
        for (metric, system), row in sorted(within.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    ]


def repeatability_lines(rows: Rows) -> Iterator[str]:
    """A line a metric: how far its scorings differ."""
    for row in rows:
        if row["level"] == "overall":
            rate = row["disagreement_rate"]
            flips = "" if rate is None else f", {rate:.1%} of {row['statements']:,} statements flip"
            share = "" if row["share"] is None else f", {row['share']:.1%} of the scores' variance is the judge's own"
            yield (
                f"{row['metric']}: over {row['repeats']} scorings of {amount(row['n'], 'sample')} a score varies by "
                f"{row['deviation']:.3f} (standard deviation){flips}{share}"
            )


def widened(summary: Rows, repeats: Rows) -> Rows:
    """The rows of `summary` with intervals for one more scoring of the same samples, whose mean has that error too."""
    shares = {(row["metric"], row["system"]): row["share"] for row in repeats}
    return [_widened(row, math.sqrt(1 + (shares.get((row["metric"], row["system"])) or 0.0))) for row in summary]


def _widened(row: dict[str, Any], factor: float) -> dict[str, Any]:
    if row["ci_low"] is None:
        return row
    low, high = (row["mean"] + factor * (row[end] - row["mean"]) for end in ("ci_low", "ci_high"))
    return {**row, "ci_low": max(0.0, low), "ci_high": min(1.0, high)}


def _numbered(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, [one.withColumn("scoring", F.lit(place)) for place, one in enumerate(frames)])


def _verdicts(runs: Sequence[Mapping[str, DataFrame]]) -> DataFrame | None:
    """metric, system, flips: a row a statement that each scoring has, and whether they differ about it."""
    if not all("statements" in run for run in runs):
        return None
    text = F.lower(F.trim("text")).alias("text")
    judged = _numbered([run["statements"].select("metric", "sample_id", text, "covered") for run in runs])
    found = (
        judged.where(F.col("covered").isNotNull())
        .groupBy("metric", "sample_id", "text")
        .agg(F.count_distinct("scoring").alias("scorings"), (F.min("covered") != F.max("covered")).alias("flips"))
        .where(F.col("scorings") == len(runs))
    )
    systems = runs[0]["scores"].select("metric", "sample_id", "system")
    return found.join(systems, on=["metric", "sample_id"], how="inner")


def _by_group(rows: DataFrame, *sums: Any) -> dict[Key, Row]:
    """Aggregates by metric and system; under the system None of all samples."""
    groups = F.explode(F.array_distinct(F.array(F.lit(None), F.col("system")))).alias("of")
    others = [name for name in rows.columns if name != "system"]
    found = rows.select(*others, groups).groupBy("metric", "of").agg(*sums).collect()
    return {(row["metric"], row["of"]): row.asDict() for row in found}


def _flips(counts: Row | None) -> dict[str, Any]:
    statements = counts["statements"] if counts else 0
    rate = counts["flips"] / statements if counts and statements else None
    return {"statements": statements, "disagreement_rate": rate}


def _share(within: float, total: float | None) -> float | None:
    """The share of the variance of scores that is the judge's own; null where scores do not vary."""
    return round(min(1.0, within / total), DECIMALS) if total else None
