"""Compute the tables about a whole run: `summary`, `measures_summary`, `repeatability` and `source_preference`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.metrics.graphs import SIDES
from untold.jobs.run.terminal import amount
from untold.jobs.run_tables import RunTables, connect_tables, quoted, quoted_list
from untold.jobs.summary.ranking import (
    LEVELS,
    CountedGroup,
    add_adjusted,
    answer_columns,
    group_counts,
    map_in_threads,
    mean_columns,
    summarise_counts,
)
from untold.jobs.summary.score_counts import (
    DECIMALS,
    Row,
    Rows,
    ScoreCounts,
    clusters_by,
    connect_scores,
    count_distinct,
    fetch_rows,
    group_by,
    rows_of,
    without_nan,
)
from untold.udfs.statistics.intervals import clustered_bca_interval
from untold.udfs.statistics.item_agreement import krippendorff_alpha
from untold.udfs.statistics.permutation import binomial_test

# Measures that count the statements of a response, or the vital nuggets. At 0 the others of the metric are undefined
STATED = ("claims", "vital_nuggets")


def summarise(run: RunTables, *, seed: int, zero: bool = False) -> Rows:
    """Return the rows of the table `summary` of a run, as `summarise_counts`.

    Only counts of distinct values leave DuckDB. If there are more than `MAX_DISTINCT` over all metrics, systems and
    statuses, values are rounded to multiples of 1 / `GRID` first, so that no mean or limit moves by more than half of
    that.
    """
    return summarise_counts(ScoreCounts(connect_scores([run], None)).count_values(), seed=seed, zero=zero)


def summarise_measures(
    run: RunTables,
    zeroed: Mapping[str, Collection[str]],
    always: Mapping[str, Collection[str]],
    *,
    seed: int,
) -> Rows:
    """Return the rows of the table `measures_summary` of a run, in the order of `summarise`, then by measure.

    zeroed: by metric the measures that count as 0 in `mean_zero` if they are undefined because a response states
    nothing; always: those that count as 0 whenever they are undefined. n counts samples. `defined` counts those with a
    value; the mean and its interval are over these. Means of bounds are over the samples with bounds. Values are
    rounded as in `summarise`.
    """
    columns = ("value", "value_low", "value_high", "value_zero")
    silent = f"select sample_id, metric from measures where measure in ({quoted_list(STATED)}) and value = 0"
    counted = count_distinct(
        connect_tables([run], ["measures", "scores"]),
        "measures",
        "metric, named, system, measure",
        ["value"],
        f"""select metric, named, system, measure, {without_nan("value")} as value from (
                select m.metric, m.measure as named, system, value, value_low, value_high, coalesce(
                    {without_nan("value")},
                    case when {_named(zeroed)} and covered + uncovered > 0 and (sample_id, metric) in ({silent})
                        or {_named(always)} and value_low is null then 0.0 end) as value_zero
                from measures m left join scores using (sample_id, metric))
            unpivot include nulls (value for measure in ({", ".join(columns)}))""",
    )

    def row_of(group: CountedGroup) -> dict[str, Any]:
        (metric, measure, system), sizes, values = group
        counts_zeros = any(measure in named.get(str(metric), ()) for named in (zeroed, always))
        return {
            "metric": metric,
            "measure": measure,
            "level": LEVELS[system is not None],
            "system": system,
            "n": sizes.total(),
            "defined": values["value"].total(),
            **mean_columns(values, "value", "value", seed),
            **answer_columns(values["value"], values["value_zero"] if counts_zeros else Counter()),
        }

    return map_in_threads(row_of, group_counts(counted.to_pylist(), ("metric", "named"), "value"))


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


def _named(measures: Mapping[str, Collection[str]]) -> str:
    """Return SQL that is true for a row of one of these measures, by metric."""
    parts = (f"m.metric = {quoted(name)} and measure in ({quoted_list(own)})" for name, own in measures.items() if own)
    return f"({' or '.join(parts) or 'false'})"


Key = tuple[str, str | None]


def with_alpha(summary: Rows, run: RunTables, stages: Mapping[str, str]) -> Rows:
    """Return the rows of `summary` with Krippendorff's alpha of the votes of a panel.

    run: has the tables `votes` and `scores`. stages: by metric the stage whose votes count. Only the counts of equal
    votes leave DuckDB.
    """
    of_stage = " or ".join(f"metric = {quoted(name)} and stage = {quoted(stage)}" for name, stage in stages.items())
    counted = fetch_rows(
        connect_tables([run], ["votes", "scores"]),
        f"""with items as (
                select metric, sample_id, item_id, list_sort(list(label)) as labels from votes
                where label is not null and ({of_stage}) group by all)
            select metric, system, labels, count(*) as count from items join scores using (sample_id, metric)
            group by grouping sets ((metric, system, labels), (metric, labels))
            having grouping(system) = 1 or system is not null""",
    )
    items: dict[Key, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for row in counted:
        items[row["metric"], row["system"]][tuple(row["labels"])] += row["count"]
    return [{**row, "alpha": _alpha(items[row["metric"], row["system"]])} for row in summary]


def _alpha(items: Counter[tuple[str, ...]]) -> float | None:
    """Return Krippendorff's alpha of items, counted by their labels."""
    names = sorted({label for labels in items for label in labels})
    table = [[labels.count(name) for name in names] for labels in items]
    alpha = krippendorff_alpha(table, list(items.values())) if table else None
    return None if alpha is None else round(alpha, DECIMALS)


def measure_repeats(runs: Sequence[Mapping[str, DataFrame]]) -> Rows:
    """Return the rows of the table `repeatability`: per metric all samples, then each system.

    runs: the tables of each scoring, the first with all samples. Samples count if every scoring has a score for them,
    and statements if every scoring of the sample has their text.
    """
    repeated = (
        _scored(runs)
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
    found = []
    for (metric, system), row in sorted(within.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        counted = counts.get((metric, system), {"statements": 0, "flips": 0})
        statements, variance = counted["statements"], total[metric, system]["total"]
        own = {
            "metric": metric,
            "level": LEVELS[system is not None],
            "system": system,
            "repeats": len(runs),
            "n": row["n"],
            "deviation": round(math.sqrt(row["within"]), DECIMALS),
            "statements": statements,
            "disagreement_rate": counted["flips"] / statements if statements else None,
            # None if scores do not vary
            "share": round(min(1.0, row["within"] / variance), DECIMALS) if variance else None,
        }
        found.append(own)
    return found


def with_order_differences(summary: Rows, runs: Sequence[Mapping[str, DataFrame]], *, seed: int) -> Rows:
    """Return the rows of `summary` with the mean of a sample's first score minus its mean in the other scorings.

    The interval resamples samples. runs: as in `measure_repeats`, with another order of contexts in each.
    """
    is_first = F.col("scoring") == 0
    first, others = (F.avg(F.when(condition, F.col("score"))) for condition in (is_first, ~is_first))
    sums = F.count("score").alias("scorings"), F.round(first - others, DECIMALS - 3).alias("difference")
    repeated = _scored(runs).groupBy("metric", "sample_id", "system").agg(*sums).where(F.col("scorings") == len(runs))
    counted = repeated.groupBy("metric", "system", "difference").count()
    found: dict[Key, list[Row]] = defaultdict(list)
    for one in counted.collect():
        for system in {None, one["system"]}:
            found[one["metric"], system].append(one.asDict())
    rows = []
    for row in summary:
        own = found[row["metric"], row["system"]]
        differences, counts = ([one[name] for one in own] for name in ("difference", "count"))
        interval = clustered_bca_interval(differences, [1] * len(own), counts, seed=seed)
        rows.append({**row, **interval.columns("order_difference", "order_ci")})
    return rows


def repeatability_lines(rows: Rows) -> Iterator[str]:
    """Yield a line per metric about the differences between its scorings."""
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
    """Return the rows of `summary` with intervals for the mean of one more scoring of the same samples."""
    shares = {(row["metric"], row["system"]): row["share"] for row in repeats}
    found = []
    for row in summary:
        factor = math.sqrt(1 + (shares.get((row["metric"], row["system"])) or 0.0))
        if row["ci_low"] is not None:
            low, high = (row["mean"] + factor * (row[end] - row["mean"]) for end in ("ci_low", "ci_high"))
            row = {**row, "ci_low": max(0.0, low), "ci_high": min(1.0, high)}
        found.append(row)
    return found


def _numbered(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, [one.withColumn("scoring", F.lit(place)) for place, one in enumerate(frames)])


def _scored(runs: Sequence[Mapping[str, DataFrame]]) -> DataFrame:
    """Return metric, sample_id, system, score and scoring: the defined scores of all scorings."""
    scored = _numbered([run["scores"].select("metric", "sample_id", "system", "score") for run in runs])
    return scored.where(~F.isnan("score"))


def _verdicts(runs: Sequence[Mapping[str, DataFrame]]) -> DataFrame | None:
    """Return metric, system, flips: a row per statement of all scorings. `flips` is true if they differ."""
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
    """Return aggregates by metric and system. The system None stands for all samples."""
    groups = F.explode(F.array_distinct(F.array(F.lit(None), F.col("system")))).alias("of")
    others = [name for name in rows.columns if name != "system"]
    found = rows.select(*others, groups).groupBy("metric", "of").agg(*sums).collect()
    return {(row["metric"], row["of"]): row.asDict() for row in found}


# The columns that distinguish sources
BY = ("rank", "kind")
# Kinds are free texts. Rarer ones have no rows
MOST_KINDS = 50
_KEYS = ("metric", "system", "by", "source")


def count_leaning(run: RunTables) -> Rows:
    """Count the queries by their numbers of conflicts: metric, system, by, source, followed, n, count.

    run: has the tables `conflicts` and `samples`. n: one-sided conflicts with exactly one side that the source states;
    followed: the conflicts among them in which that side is covered. Rows without a system include all samples. The
    `MOST_KINDS` most frequent kinds have rows. The number of rows does not grow with the number of queries.
    """
    database = connect_tables([run], ["conflicts", "samples"])
    # Samples have further columns of their files, also an id of the query
    columns = database.sql("from samples").columns
    names = (name for name in ("query_id", "query", "sample_id") if name in columns)
    return fetch_rows(
        database,
        f"""with sides as (
                select row_number() over () as conflict, sample_id, metric,
                    if(coverage = 'first', first_sources, second_sources) as covered,
                    if(coverage = 'first', second_sources, first_sources) as missing
                from conflicts where coverage in ({quoted_list(SIDES)})),
            stated as (
                select sample_id, system, coalesce({", ".join(f"{name}::varchar" for name in names)}) as query,
                    unnest(contexts).id as id, unnest(contexts).kind as kind, generate_subscripts(contexts, 1) as place
                from samples semi join sides using (sample_id)),
            named as (
                select * exclude (kind, place), 'rank' as "by", place::varchar as source from stated
                union all select * exclude (kind, place), 'kind', kind from stated where kind is not null),
            choices as (
                select conflict, metric, system, query, "by", source,
                    coalesce(bool_or(list_contains(covered, id)), false) as follows,
                    coalesce(bool_or(list_contains(missing, id)), false) as contradicts
                from sides join named using (sample_id) group by all having follows != contradicts),
            frequent as (
                select source from choices where "by" = 'kind' group by source
                order by count(*) desc, source limit {MOST_KINDS}),
            queries as (
                select metric, system, "by", source, count(*) filter (follows) as followed, count(*) as n
                from choices where "by" = 'rank' or source in (from frequent)
                group by grouping sets ((metric, system, "by", source, query), (metric, "by", source, query))
                having grouping(system) = 1 or system is not null)
            select *, count(*) as count from queries group by all""",
    )


def leaning_rows(counts: Iterable[Row], *, seed: int) -> list[dict[str, Any]]:
    """Return the rows of the table `source_preference`. All samples come before systems.

    counts: rows of `count_leaning`. Intervals resample queries. P-values are adjusted over the rows of a metric and
    level.
    """
    queries = group_by(counts, *_KEYS)
    found = []
    for key in sorted(queries, key=_order):
        columns = [[row[name] for row in queries[key]] for name in ("followed", "n", "count")]
        followed, total = (sum(row[name] * row["count"] for row in queries[key]) for name in ("followed", "n"))
        named = dict(zip(_KEYS, key, strict=True))
        own = {
            **named,
            "level": LEVELS[named["system"] is not None],
            "n": total,
            "followed": followed,
            **clustered_bca_interval(*columns, seed=seed).columns("share"),
            "p_value": binomial_test(followed, total),
        }
        found.append(own)
    return add_adjusted(found, "metric", "level")


def _order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sort by metric, all samples before systems, ranks before kinds, ranks as numbers."""
    metric, system, by, source = key
    return metric, system is not None, system or "", BY.index(by), int(source) if by == "rank" else 0, source
