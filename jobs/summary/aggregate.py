"""Scores to summary: counts by Spark, means and intervals on the driver from counts of distinct values."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.udfs.hints import did_you_mean, near_misses
from untold.udfs.statistics.intervals import Interval, bca_interval, mean_of_counts, wilson_interval

# docs/contract.md, "Scores": the column of `summary` that a sample of each status is counted in
COLUMN_OF_STATUS = {
    "ok": "scored",
    "partial": "scored",
    "no_statements": "undefined",
    "failed": "failed",
    "budget": "failed",
}
MAX_DISTINCT = 200_000  # rows of counts that reach the driver as they are
GRID = 10_000  # steps between 0 and 1 that values are rounded to beyond that
FEW = 10  # values of which a bootstrap interval is rough
# The measure that counts what a response states, where a metric has one
STATED = "claims"
Counts = dict[str, Counter[float]]
Group = tuple[str, str | None]


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
    """The rows of the table `summary`: for each metric one of level `overall`, then one a system, sorted by name.

    scores: metric, system, status strings, score, score_low, score_high double, covered, uncovered long; samples
    without a system count in the overall row alone. The interval is of `mean`, with `zero` of `mean_zero`. Only counts
    of distinct values reach the driver, so that partitioning changes no bit. Where they are more than `max_distinct`
    rows over all metrics, systems and statuses, values are rounded to multiples of 1 / `GRID` in Spark first: no mean
    or limit then moves by more than half of that. Raises ValueError for a status that the contract does not know.
    Interval: methods section 7.
    """
    columns: dict[Group, Counter[str]] = defaultdict(Counter)
    values: dict[Group, Counts] = defaultdict(lambda: defaultdict(Counter))
    for row in collect_counts(partial(count_values, scores), max_distinct):
        for group in {(row["metric"], None), (row["metric"], row["system"])}:
            if row["measure"] == "score":
                columns[group][_column_of(row["status"])] += row["count"]
            if row["value"] is not None:
                # Null and NaN are no values: they are counted by status alone
                values[group][row["measure"]][row["value"]] += row["count"]
    # The overall row first: None does not sort beside names
    groups = sorted(columns, key=lambda group: (group[0], group[1] is not None, group[1] or ""))
    return [_summary_row(group, columns[group], values[group], seed, zero=zero) for group in groups]


def summarise_measures(
    measures: DataFrame,
    scores: DataFrame,
    zeroed: Mapping[str, Collection[str]],
    *,
    seed: int,
    max_distinct: int = MAX_DISTINCT,
) -> list[dict[str, Any]]:
    """The rows of the table `measures_summary`, in the order of `summarise`, and of one metric by measure.

    measures: the table; scores: sample_id, metric, system, covered, uncovered; zeroed: by metric the measures of
    which an undefined value counts as 0 in `mean_zero`, where a response states nothing. n counts samples, `defined`
    those with a value, which the mean and its interval are of; means of bounds are of the samples that have them.
    Rounding as in `summarise`.
    """
    rows = _with_zeros(measures, scores, zeroed).withColumnRenamed("measure", "named")
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
        _measure_row(group, sizes[group], values[group], seed, zeroed=group[1] in zeroed.get(group[0], ()))
        for group in groups
    ]


def _with_zeros(measures: DataFrame, scores: DataFrame, zeroed: Mapping[str, Collection[str]]) -> DataFrame:
    """The measures with their samples' systems and value_zero: 0 where a sample lacks it as its response is silent."""
    key = ["sample_id", "metric"]
    stated = (F.col("measure") == STATED) & (F.col("value") == 0)
    silent = measures.where(stated).select(*key, F.lit(True).alias("silent"))
    systems = scores.select(*key, "system", _has_to_state().alias("has_to_state"))
    counts = reduce(
        Column.__or__,
        ((F.col("metric") == name) & F.col("measure").isin(list(own)) for name, own in zeroed.items()),
        F.lit(False),
    )
    zero = F.when(counts & F.col("silent") & F.col("has_to_state"), F.lit(0.0))
    value = F.coalesce(F.when(~F.isnan("value"), F.col("value")), zero)
    joined = measures.join(systems, on=key, how="left").join(silent, on=key, how="left")
    return joined.withColumn("value_zero", value)


def _measure_row(
    group: tuple[str, str, str | None], size: int, values: Counts, seed: int, *, zeroed: bool
) -> dict[str, Any]:
    metric, measure, system = group
    interval = _interval(values["value"], seed)
    return {
        "metric": metric,
        "measure": measure,
        "level": "overall" if system is None else "system",
        "system": system,
        "n": size,
        "defined": values["value"].total(),
        **interval.columns("mean"),
        "mean_low": mean_of_counts(*_arrays(values["value_low"])),
        "mean_high": mean_of_counts(*_arrays(values["value_high"])),
        **_answers(values["value"], values["value_zero"] if zeroed else Counter()),
    }


def _answers(defined: Counter[float], zero: Counter[float]) -> dict[str, float | None]:
    """answer_rate with its interval, and mean_zero, from counts of values without and with zeros; null without any."""
    rate = wilson_interval(defined.total() if zero else 0, zero.total())
    return {
        "answer_rate": rate.mean,
        "answer_ci_low": rate.low,
        "answer_ci_high": rate.high,
        "mean_zero": mean_of_counts(*_arrays(zero)),
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


def interval_text(row: Mapping[str, Any], *, clustered: bool = False) -> str:
    """The 95 % interval of a row as it is printed, or why there is none; one of fewer than `FEW` values says so.

    `clustered`: it takes whole queries.

    >>> [interval_text({"ci_low": low, "ci_high": 0.5, "n": n}) for low, n in [(0.25, 12), (0.25, 3), (None, 1)]]
    ['0.250 .. 0.500', '0.250 .. 0.500 (n < 10)', '- (n = 1)']
    """
    count = row.get("scored", row["n"])
    if row["ci_low"] is not None:
        return f"{row['ci_low']:.3f} .. {row['ci_high']:.3f}" + (f" (n < {FEW})" if count < FEW else "")
    if count < 2:
        return f"- (n = {count})"
    return "- (one query, or all equal)" if clustered else "- (all equal)"


def _column_of(status: str) -> str:
    """The column of `summary` of a status. Raises ValueError for an unknown one: a mean would hide it."""
    if status not in COLUMN_OF_STATUS:
        hint = did_you_mean(near_misses(str(status), COLUMN_OF_STATUS), quote="'")
        raise ValueError(f"scores: status {status!r} is none of {', '.join(COLUMN_OF_STATUS)}; {hint}".rstrip("; "))
    return COLUMN_OF_STATUS[status]


def _summary_row(group: Group, columns: Counter[str], values: Counts, seed: int, *, zero: bool) -> dict[str, Any]:
    """A row of the table `summary`, null where nothing was scored.

    columns: how many samples count in each column; values: by measure how often each value occurs.
    """
    metric, system = group
    interval = _interval(values["score_zero" if zero else "score"], seed)
    return {
        "metric": metric,
        "level": "overall" if system is None else "system",
        "system": system,
        "n": columns.total(),
        "scored": columns["scored"],
        "undefined": columns["undefined"],
        "failed": columns["failed"],
        "mean": mean_of_counts(*_arrays(values["score"])),
        "ci_low": interval.low,
        "ci_high": interval.high,
        "mean_low": mean_of_counts(*_arrays(values["score_low"])),
        "mean_high": mean_of_counts(*_arrays(values["score_high"])),
        **_answers(values["score"], values["score_zero"]),
    }


def _interval(counts: Counter[float], seed: int) -> Interval:
    return bca_interval(*_arrays(counts), seed=seed)


def _arrays(counts: Counter[float]) -> tuple[list[float], list[int]]:
    """Distinct values and their counts, as `untold.udfs.statistics.intervals` takes them."""
    return list(counts.keys()), list(counts.values())
