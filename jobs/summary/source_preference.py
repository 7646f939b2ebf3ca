"""What responses give of contexts that contradict each other, and which of these they follow (methods, 5 and 7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.metrics.graphs import COVERAGE, MEASURES, NUMBER, ONE_SIDED, SIDES
from untold.jobs.run.terminal import Page, table
from untold.jobs.summary.ranking import interval_text, mean_text
from untold.udfs.statistics.intervals import clustered_bca_interval
from untold.udfs.statistics.permutation import adjust_p_values, binomial_test

# What sources are told apart by
BY = ("rank", "kind")
SHOWN = 10
# Kinds are free texts: of more, the most frequent are told apart
MOST_KINDS = 50
_KEYS = ("metric", "system", "by", "source")
Row = Mapping[str, Any]


def read_counts(conflicts: DataFrame, samples: DataFrame) -> list[dict[str, Any]]:
    """The rows of `count_leaning`, which are as many as queries look different."""
    rows: list[dict[str, Any]] = count_leaning(conflicts, samples).toArrow().to_pylist()
    return rows


def count_leaning(conflicts: DataFrame, samples: DataFrame) -> DataFrame:
    """How many queries follow a source so often: metric, system, by, source, followed, n, count.

    conflicts, samples: the tables. n: one-sided conflicts of which the source states one side alone; followed: those
    whose covered side it states. Rows without a system are of all samples. Of kinds the
    `MOST_KINDS` most frequent have rows.
    """
    is_first = F.col("coverage") == "first"
    chosen = conflicts.where(F.col("coverage").isin(*SIDES)).select(
        "sample_id",
        "metric",
        F.when(is_first, F.col("first_sources")).otherwise(F.col("second_sources")).alias("covered"),
        F.when(is_first, F.col("second_sources")).otherwise(F.col("first_sources")).alias("missing"),
    )
    # A column that no metric reads has the type of its file
    named = [F.col(name).cast("string") for name in ("query_id", "query", "sample_id") if name in samples.columns]
    places = F.transform(
        "contexts",
        lambda context, place: F.struct(
            context["id"].alias("id"), context["kind"].alias("kind"), (place + 1).cast("string").alias("rank")
        ),
    )
    asked = samples.select("sample_id", "system", F.coalesce(*named).alias("cluster"), places.alias("places"))
    joined = chosen.join(asked, on="sample_id", how="inner")
    choices = reduce(DataFrame.unionByName, [_choices(joined, by) for by in BY])
    kinds = choices.where(F.col("by") == "kind").groupBy("by", "source").count()
    frequent = kinds.orderBy(F.desc("count"), "source").limit(MOST_KINDS)
    ranked = choices.where(F.col("by") == "rank")
    choices = ranked.unionByName(choices.join(frequent, on=["by", "source"], how="left_semi"))
    levels = F.array_distinct(F.array(F.lit(None).cast("string"), "system"))
    rows = choices.withColumn("system", F.explode(levels))
    queries = rows.groupBy(*_KEYS, "cluster").agg(F.sum("followed").alias("followed"), F.count("*").alias("n"))
    return queries.groupBy(*_KEYS, "followed", "n").agg(F.count("*").alias("count"))


def _choices(joined: DataFrame, by: str) -> DataFrame:
    """Columns metric, system, cluster, by, source, followed: a row a conflict and source that states one side alone."""
    covered, missing = _sources("covered", by), _sources("missing", by)
    sides = F.concat(_chosen(F.array_except(covered, missing), 1), _chosen(F.array_except(missing, covered), 0))
    return joined.select("metric", "system", "cluster", F.lit(by).alias("by"), F.inline(sides))


def _sources(side: str, by: str) -> Column:
    """The ranks or kinds of the contexts that state a side."""
    stating = F.filter("places", lambda one: F.array_contains(side, one["id"]))
    return F.array_compact(F.transform(stating, lambda one: one[by]))


def _chosen(sources: Column, followed: int) -> Column:
    return F.transform(sources, lambda source: F.struct(source.alias("source"), F.lit(followed).alias("followed")))


def leaning_rows(counts: Iterable[Row], *, seed: int) -> list[dict[str, Any]]:
    """Return the rows of the table `source_preference`, of each metric those of all samples first.

    counts: rows of `count_leaning`. Intervals resample queries. P-values are adjusted over the rows of a metric and
    level.
    """
    queries: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in counts:
        queries[tuple(row[name] for name in _KEYS)].append(row)
    found = [_row(dict(zip(_KEYS, key, strict=True)), queries[key], seed) for key in sorted(queries, key=_order)]
    families: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        families[row["metric"], row["level"]].append(row)
    for family in families.values():
        adjusted = adjust_p_values([row["p_value"] for row in family])
        for row, p_value in zip(family, adjusted, strict=True):
            row["p_adjusted"] = p_value
    return found


def _order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """By metric, all samples before systems, ranks before kinds; ranks as numbers."""
    metric, system, by, source = key
    return metric, system is not None, system or "", BY.index(by), int(source) if by == "rank" else 0, source


def _row(named: dict[str, Any], queries: Sequence[Row], seed: int) -> dict[str, Any]:
    columns = [[row[name] for row in queries] for name in ("followed", "n", "count")]
    followed, total = (sum(row[name] * row["count"] for row in queries) for name in ("followed", "n"))
    return {
        **named,
        "level": "overall" if named["system"] is None else "system",
        "n": total,
        "followed": followed,
        **clustered_bca_interval(*columns, seed=seed).columns("share"),
        "p_value": binomial_test(followed, total),
    }


def conflict_lines(measures: Iterable[Row], page: Page) -> list[str]:
    """How many conflicts there are, and how much of their sides is given, as a table; none without conflicts.

    measures: rows of `measures_summary`.
    """
    found: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in measures:
        if row["measure"] in MEASURES:
            found[row["metric"], row["system"] or "all"][row["measure"]] = row
    known = {key: rows for key, rows in found.items() if rows.keys() == MEASURES.keys() and rows[NUMBER]["mean"]}
    heads = ["metric", "system", "conflicts", "both sides", "95 % interval", "one side", "95 % interval"]
    lines = [
        [*key, f"{rows[NUMBER]['mean'] * rows[NUMBER]['defined']:,.0f}", *_shares(rows)] for key, rows in known.items()
    ]
    return _first_lines(heads, lines, page, 2, "measures_summary") if lines else []


def _shares(rows: Mapping[str, Row]) -> list[str]:
    shares = [{**rows[name], "n": rows[name]["defined"]} for name in (COVERAGE, ONE_SIDED)]
    return [text for row in shares for text in (mean_text(row), interval_text(row))]


def leaning_lines(rows: Sequence[Row], page: Page) -> list[str]:
    """The first rows as a table."""
    lines = [
        [
            *(row["metric"], row["system"] or "all", row["by"], row["source"], f"{row['followed']:,} of {row['n']:,}"),
            *(mean_text({"mean": row["share"]}), interval_text(row, clustered=True), f"{row['p_adjusted']:.4f}"),
        ]
        for row in rows
    ]
    heads = ["metric", "system", "by", "source", "followed", "share", "95 % interval", "p adj."]
    return _first_lines(heads, lines, page, 4, "source_preference")


def _first_lines(heads: Sequence[str], lines: Sequence[list[str]], page: Page, names: int, of: str) -> list[str]:
    more = [f"{len(lines) - SHOWN:,} more in the table {of}"] if len(lines) > SHOWN else []
    return [*table(heads, lines[:SHOWN], page, names=names), *more]
