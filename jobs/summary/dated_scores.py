"""Count scores by date with DuckDB, which spills to disk.

New versions only add nullable columns to the tables of a trend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from untold.jobs.run_tables import RunTables, connect_tables, quoted, quoted_list
from untold.jobs.summary.score_counts import (
    ANSWERED,
    DECIMALS,
    FAILED_STATUSES,
    SCORE,
    SCORE_OR_ZERO,
    STATUSES_OF,
    clusters_by,
    fetch_rows,
    rows_of,
)
from untold.udfs.statistics.intervals import clustered_bca_interval, wilson_interval
from untold.udfs.statistics.permutation import Change, Clusters, resamples_for

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


# A date of a trend: all systems, one system, or the sentinel. Intervals resample queries
TREND = pa.schema(
    [
        ("date", pa.string()),  # of a week its Monday, or the date of a break of comparability within it
        ("metric", pa.string()),
        ("level", pa.string()),  # overall, system or sentinel
        ("system", pa.string()),  # null unless the level is system; `all` where samples name none
        ("stretch", pa.int64()),  # from 1; dates of one stretch are comparable
        *((name, pa.int64()) for name in ("n", "scored", "undefined", "failed")),
        *((name, pa.float64()) for name in ("mean", "ci_low", "ci_high")),
        *((name, pa.float64()) for name in ("answer_rate", "answer_ci_low", "answer_ci_high", "mean_zero")),
        ("cost", pa.float64()),  # of all outputs of the date; null for a system
        ("failed_share", pa.float64()),
    ]
)
# A system, or the sentinel, on a date less itself before
CHANGES = pa.schema(
    [
        ("metric", pa.string()),
        ("level", pa.string()),  # system or sentinel
        ("system", pa.string()),
        ("kind", pa.string()),  # step: a date less the one before; shift: a level that begins with a date
        ("date", pa.string()),
        ("before", pa.string()),  # the last date before it
        ("paired_by", pa.string()),  # sample or query; null if both dates share too few
        ("n", pa.int64()),  # common samples or queries; unpaired, the samples of both
        *((name, pa.float64()) for name in ("difference", "ci_low", "ci_high", "p_value")),
        ("p_adjusted", pa.float64()),  # after Benjamini and Hochberg, over the changes of a metric, measure and kind
        ("judge_difference", pa.float64()),  # of the sentinel between the same dates
        ("judge_p_value", pa.float64()),
        *((name, pa.float64()) for name in ("net_difference", "net_ci_low", "net_ci_high", "net_p_value")),  # less it
        ("cause", pa.string()),  # judge, system or both, if it is beyond chance; null without a sentinel
        ("measure", pa.string()),  # mean, answer_rate or failed_share; a share only if it changes
    ]
)
# A sample with one of the largest moves in a change beyond chance
MOVED = pa.schema(
    [
        *((name, pa.string()) for name in ("metric", "system", "kind", "date", "before")),
        ("sample_id", pa.string()),
        ("query", pa.string()),
        *((name, pa.float64()) for name in ("before_score", "score", "difference")),
    ]
)


# Levels of rows: all systems, one system, or the sentinel
OVERALL, SYSTEM, SENTINEL = "overall", "system", "sentinel"
# Samples with the largest moves per change
MOST_MOVED = 10
NAMELESS = "all"
_KEYS = ("sample", "query")
# The measures of a date: mean of scores, share of answered samples, share of failed samples
MEAN, ANSWER_RATE, FAILED_SHARE = "mean", "answer_rate", "failed_share"
MEASURES = (MEAN, ANSWER_RATE, FAILED_SHARE)
_VALUES = f"""score as value_{MEAN}, {ANSWERED} as value_{ANSWER_RATE},
    (status in ({quoted_list(FAILED_STATUSES)}))::double as value_{FAILED_SHARE}"""
_COUNTS = ", ".join(
    f"count(*) filter (status in ({quoted_list(statuses)})) as {column}" for column, statuses in STATUSES_OF.items()
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Series:
    """The means of a measure for a system or the sentinel under a metric, by the indices of the dates."""

    metric: str
    level: str
    system: str | None
    measure: str
    means: Mapping[int, float]


class DatedScores:
    """The scores of runs by the indices of their dates. `add` reads each run once, and the other methods reuse them.

    A stretch of a series is a range of these indices.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._runs: dict[int, list[tuple[RunTables, str]]] = {}
        self._database: DuckDBPyConnection = connect_tables([], ())
        self._database.execute(
            "create table scored (place integer, series ubigint, sample ubigint, query ubigint, score double)"
        )

    def add(self, place: int, runs: Sequence[tuple[RunTables, str]]) -> list[Row]:
        """Store the scores of a date. Return its counts, means and intervals by level, metric and system."""
        self._runs[place] = list(runs)
        # A single query cannot be resampled, so its samples are
        self._database.execute(
            f"""create or replace temp table now as
                with every as ({self._select(place)}),
                    queries as (select level, metric, count(distinct query) > 1 as several from every group by all)
                select every.*, case when several then query else sample end as asked
                from every join queries using (level, metric)"""
        )
        self._database.execute(
            f"""insert into scored
                with measured as (
                    unpivot (select *, {_VALUES} from now)
                    on {", ".join(f"value_{name} as {name}" for name in MEASURES)} into name measure value value)
                select {place}, {_hash("level", "metric", "case when level = 'system' then system end", "measure")},
                    sample, asked, value
                from measured"""
        )
        clusters = clusters_by(("level", "metric", "system"), rows_of(self._database, _CLUSTERS))
        return [self._point(row, clusters) for row in fetch_rows(self._database, _POINTS)]

    def change(self, series: Series, later: range, earlier: range) -> tuple[Change, str | None]:
        """Return the change of a series between two stretches, and the key of its pairs: sample, query or None.

        The key is the sample (id and query) if both share half of the samples of the smaller one, or else the query.
        """
        where = [_within(series, dates) for dates in (later, earlier)]
        for key in _KEYS:
            if self._shares(key, where):
                # The sums and sizes of differences, by query
                pairs = f"""select round(sum(a.score - b.score), {DECIMALS}) as sum, count(*) as size
                    from {_means(key, where[0])} a join {_means(key, where[1])} b using (key) group by a.query"""
                return Change([self._collect(pairs)]), key
        # The sums and sizes of the means of samples, by query
        sides = [
            f"""select round({sign}sum(score), {DECIMALS}) as sum, count(*) as size
                from {_means("sample", one)} group by query"""
            for sign, one in zip(("", "-"), where, strict=True)
        ]
        return Change(list(map(self._collect, sides))), None

    def moved(self, series: Series, later: range, earlier: range, key: str) -> list[Row]:
        """Return the samples of a system with the largest moves between two stretches, with their latest texts."""
        where = [_within(series, dates) for dates in (later, earlier)]
        found = fetch_rows(
            self._database,
            f"""select a.key, b.score as before_score, a.score, round(a.score - b.score, {DECIMALS}) as difference
                from {_means(key, where[0])} a join {_means(key, where[1])} b using (key)
                where difference != 0 order by abs(difference) desc, a.key limit {MOST_MOVED}""",
        )
        wanted = ", ".join(str(row["key"]) for row in found) or "null"
        texts: dict[int, Row] = {}
        for place in later if found else ():
            rows = fetch_rows(
                self._database,
                f"""select {key} as key, min(sample_id) as sample_id, any_value(query_text) as query
                    from ({self._select(place, ", sample_id, query as query_text")})
                    where {key} in ({wanted}) and level = '{SYSTEM}' and metric = {quoted(series.metric)}
                        and system = {quoted(str(series.system))} group by all""",
            )
            texts |= {row["key"]: row for row in rows}
        named = {"metric": series.metric, "system": series.system}
        return [row | texts.get(row["key"], {}) | named for row in found]

    def _select(self, place: int, more: str = "") -> str:
        """Return SQL of all scores of a date: level, metric, system, sample, query, status, score, score_zero."""
        return " union all ".join(self._select_run(run, level, more) for run, level in self._runs[place])

    def _select_run(self, run: RunTables, level: str, more: str) -> str:
        scores, samples = (run.select_from(self._database, name) for name in ("scores", "samples"))
        return f"""select '{level}' as level, metric, coalesce(s.system, '{NAMELESS}') as system,
                hash(sample_id, query) as sample, hash(coalesce(query, sample_id)) as query, status,
                {SCORE} as score, {SCORE_OR_ZERO} as score_zero{more}
            from ({scores}) s left join (select sample_id, query from ({samples})) using (sample_id)"""

    def _point(self, row: Row, clusters: Mapping[tuple[str, ...], Clusters]) -> Row:
        part = clusters.get((row["level"], row["metric"], row["system"]), ([], [], []))
        mean = clustered_bca_interval(*part, seed=self._seed, resamples=resamples_for(part))
        level = OVERALL if row["level"] == SYSTEM and row["system"] is None else row["level"]
        answered = wilson_interval(row["defined"], row["answerable"]).columns(ANSWER_RATE, "answer_ci")
        return {**row, "level": level, **mean.columns("mean"), **answered, FAILED_SHARE: row["failed"] / row["n"]}

    def _shares(self, key: str, where: Sequence[str]) -> bool:
        """Return True if two stretches share half of the keys of the smaller one."""
        sets = [f"(select distinct {key} as key from scored where {one})" for one in where]
        counts = ", ".join(f"(select count(*) from {one})" for one in sets)
        (both, *each) = self._database.sql(
            f"select (select count(*) from {sets[0]} semi join {sets[1]} using (key)), {counts}"
        ).fetchall()[0]
        return bool(both and 2 * both >= min(each))

    def _collect(self, sums: str) -> Clusters:
        found = self._database.sql(f"select sum, size, count(*) as count from ({sums}) group by all order by all")
        columns = found.fetchnumpy()
        return tuple(np.asarray(columns[name]) for name in ("sum", "size", "count"))  # type: ignore[return-value]


# Sums, sizes and counts of queries, by level, metric and system; the system is null for all of them
_CLUSTERS = f"""with sums as (
        select level, metric, system, round(sum(score), {DECIMALS}) as sum, count(*) as size
        from now where score is not null
        group by grouping sets ((level, metric, system, asked), (level, metric, asked)))
    select level, metric, system, sum, size, count(*) as count from sums group by all"""
_POINTS = f"""select level, metric, system, count(*) as n, {_COUNTS}, favg(score_zero) as mean_zero,
        count(score_zero) as answerable, count(score) as defined
    from now group by grouping sets ((level, metric, system), (level, metric))
    having level = '{SYSTEM}' or system is null"""


def _hash(*names: str) -> str:
    """Return SQL for the key of a series: its level, metric, system and measure."""
    return f"hash({', '.join(names)})"


def _within(series: Series, dates: range) -> str:
    """Return SQL that is true for the scores of a series on these dates."""
    given = (series.level, series.metric, series.system, series.measure)
    names = ("null" if name is None else quoted(name) for name in given)
    return f"series = {_hash(*names)} and place between {dates[0]} and {dates[-1]}"


def _means(key: str, where: str) -> str:
    return (
        f"(select {key} as key, any_value(query) as query, avg(score) as score from scored where {where} group by all)"
    )
