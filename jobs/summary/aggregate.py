"""Compute the tables `summary`, `measures_summary` and `repeatability` of a run (methods, section 7)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.run.terminal import amount
from untold.jobs.run_tables import RunTables, connect_tables, quoted
from untold.jobs.summary.ranking import LEVELS, answer_columns, group_counts, mean_columns, summarise_counts
from untold.jobs.summary.score_counts import (
    DECIMALS,
    Row,
    Rows,
    ScoreCounts,
    clusters_by,
    connect_scores,
    count_distinct,
    rows_of,
)
from untold.udfs.statistics.intervals import clustered_bca_interval

# Measures that count the statements of a response, or the vital nuggets. At 0 the others of the metric are undefined
STATED = ("claims", "vital_nuggets")


def summarise(run: RunTables, *, seed: int, zero: bool = False) -> Rows:
    """Return the rows of the table `summary` of a run, as `summarise_counts`.

    Only counts of distinct values leave DuckDB. If there are more than `MAX_DISTINCT` over all metrics, systems and
    statuses, values are rounded to multiples of 1 / `GRID` first, so that no mean or limit moves by more than half of
    that.
    """
    counts = ScoreCounts(connect_scores([run], None)).count_values()
    return summarise_counts(counts, seed=seed, zero=zero)


def summarise_measures(
    run: RunTables,
    zeroed: Mapping[str, Collection[str]],
    always: Mapping[str, Collection[str]] | None = None,
    *,
    seed: int,
) -> Rows:
    """Return the rows of the table `measures_summary` of a run, in the order of `summarise`, then by measure.

    zeroed: by metric the measures that count as 0 in `mean_zero` if they are undefined because a response states
    nothing; always: those that count as 0 whenever they are undefined. n counts samples. `defined` counts those with a
    value; the mean and its interval are over these. Means of bounds are over the samples with bounds. Values are
    rounded as in `summarise`.
    """
    always = always or {}
    columns = ("value", "value_low", "value_high", "value_zero")
    silent = f"select sample_id, metric from measures where measure in ({_listed(STATED)}) and value = 0"
    counted = count_distinct(
        connect_tables([run], ["measures", "scores"]),
        "measures",
        "metric, named, system, measure",
        "value",
        f"""select metric, named, system, measure, case when not isnan(value) then value end as value from (
                select m.metric, m.measure as named, system, value, value_low, value_high, coalesce(
                    case when not isnan(value) then value end,
                    case when {_named(zeroed)} and covered + uncovered > 0 and (sample_id, metric) in ({silent})
                        or {_named(always)} and value_low is null then 0.0 end) as value_zero
                from measures m left join scores using (sample_id, metric))
            unpivot include nulls (value for measure in ({", ".join(columns)}))""",
    )
    rows = []
    for (metric, measure, system), sizes, values in group_counts(counted.to_pylist(), ("metric", "named"), "value"):
        counts_zeros = any(measure in named.get(str(metric), ()) for named in (zeroed, always))
        rows.append(
            {
                "metric": metric,
                "measure": measure,
                "level": LEVELS[system is not None],
                "system": system,
                "n": sizes.total(),
                "defined": values["value"].total(),
                **mean_columns(values, "value", "value", seed),
                **answer_columns(values["value"], values["value_zero"] if counts_zeros else Counter()),
            }
        )
    return rows


def with_query_intervals(found: Sequence[dict[str, Any]], run: RunTables, measure: str, *, seed: int) -> Rows:
    """Return the rows of `measures_summary` of a run, with intervals over whole queries for one measure.

    The values of all responses to a query may depend on each other.
    """
    if not any(row["measure"] == measure for row in found):
        return list(found)
    keys = ("metric", "level", "system")
    summed = rows_of(
        connect_tables([run], ["measures", "samples"]),
        f"""select metric, level, system, sum, size, count(*) as count from (
                select metric, case grouping(system) when 1 then 'overall' else 'system' end as level, system,
                    round(sum(value), 9) as sum, count(*) as size
                from measures join samples using (sample_id) where measure = {quoted(measure)} and value is not null
                group by grouping sets ((metric, query), (metric, query, system))
                having level = 'overall' or system is not null)
            group by all""",
    )
    clusters = clusters_by(keys, summed)
    return [
        {**row, **clustered_bca_interval(*clusters[key], seed=seed).columns("mean")}
        if row["measure"] == measure and (key := tuple(row[name] for name in keys)) in clusters
        else row
        for row in found
    ]


def _listed(texts: Collection[str]) -> str:
    return ", ".join(map(quoted, texts))


def _named(measures: Mapping[str, Collection[str]]) -> str:
    """Return SQL that is true for a row of one of these measures, by metric."""
    parts = (f"m.metric = {quoted(name)} and measure in ({_listed(own)})" for name, own in measures.items() if own)
    return f"({' or '.join(parts) or 'false'})"


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
