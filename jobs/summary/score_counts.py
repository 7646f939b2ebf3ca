"""Count the scores of runs by DuckDB. The counts do not grow with the number of samples, and DuckDB spills to disk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from untold.jobs.run_tables import RunTables, connect_tables, quoted_list
from untold.udfs.statistics.permutation import Clusters

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# docs/contract.md, "Scores": the column of `summary` that counts the samples of a status
COLUMN_OF_STATUS = {
    "ok": "scored",
    "partial": "scored",
    "no_statements": "undefined",
    "failed": "failed",
    "budget": "failed",
}
STATUSES_OF = {
    column: [status for status, one in COLUMN_OF_STATUS.items() if one == column]
    for column in dict.fromkeys(COLUMN_OF_STATUS.values())
}
FAILED_STATUSES = STATUSES_OF["failed"]


def without_nan(column: str) -> str:
    """Return SQL of a column of numbers with null for NaN.

    DuckDB 2 evaluates `isnan` in filters by the statistics of Parquet, which omit NaN.
    """
    return f"case when isfinite({column}) or isinf({column}) then {column} end"


# As SQL: the statuses of undefined scores, the score of a sample, and the score with 0 if it is undefined although the
# sample has something to state
SILENT = quoted_list(STATUSES_OF["undefined"])
SCORE = without_nan("score")
SCORE_OR_ZERO = f"coalesce({SCORE}, case when status in ({SILENT}) and covered + uncovered > 0 then 0.0 end)"
# From the two scores above: 1 for a sample with a score, 0 for a sample that could have one, otherwise null
ANSWERED = "case when score_zero is not null then (score is not null)::double end"
# Values of measures in place of scores. A measure with bounds and no value counts as failed
_MEASURED = """(select s.* exclude (score, score_low, score_high, status, covered, uncovered), m.measure,
        m.value as score, m.value_low as score_low, m.value_high as score_high,
        null::bigint as covered, null::bigint as uncovered,
        case when m.value is not null then 'ok' when m.value_high is not null or s.status in ({1}) then 'failed'
            else 'no_statements' end as status
    from scores s join measures m using (output, sample_id, metric) where m.measure in ({0}))"""
MAX_DISTINCT = 200_000  # rows of exact counts that leave the database
GRID = 10_000  # steps between 0 and 1 to which values are rounded if there are more
# The last bits of a sum depend on its order: a double has almost 16 decimals, and sums of thousands of scores lose some
DECIMALS = 12
Row = Mapping[str, Any]
Rows = list[dict[str, Any]]
Given = TypeVar("Given", bound=Row)


@dataclass(frozen=True)
class ScoreCounts:
    """Counts of the scores in the views of `connect_scores`.

    The argument `score` names the score of a sample: the column `score`, `score_zero` (0 if the score is undefined
    although there is something to state), or `answered` (1 with a score, 0 if there could be one).
    """

    database: DuckDBPyConnection

    def count_values(self) -> Rows:
        """Return metric, system, status, measure, value, count, as `ranking.summarise_counts` accepts them."""
        found: Rows = count_distinct(
            self.database,
            "judged",
            "metric, system, status, measure",
            ["value"],
            """from (select metric, system, status, score, score_low, score_high, score_zero from judged)
                unpivot include nulls (value for measure in (score, score_low, score_high, score_zero))""",
        ).to_pylist()
        return found

    def count_differences(self, score: str, *, cluster: bool) -> dict[tuple[str, ...], Clusters]:
        """Return the frequency of each difference of two systems, by metric, first and second.

        `first` sorts before `second`. A difference is the difference of one question (its size is 1), or with `cluster`
        the sum over the questions of a query. The score of a system for a question is the mean over its samples.
        """
        self.hash_questions()
        own = "sum(difference) as sum, count(*) as size" if cluster else "difference as sum, 1 as size"
        return self._collect_clusters(
            ("metric", "first", "second"),
            f"""with means as (
                    select metric, question, any_value(query) as query, system, avg({score}) as score
                    from judged join questions using (output, sample_id)
                    where question is not null and {score} is not null group by metric, question, system),
                differences as (
                    select metric, a.system as first, b.system as second, a.query, a.score - b.score as difference
                    from means a join means b using (metric, question) where a.system < b.system)
                select metric, first, second, {own} from differences
                {"group by metric, first, second, query" if cluster else ""}""",
        )

    def count_clusters(self, score: str) -> dict[tuple[str, ...], Clusters]:
        """Return the frequency of each sum of the scores of a query, by metric and system."""
        self.hash_questions()
        return self._collect_clusters(
            ("metric", "system"),
            f"""select metric, system, sum({score}) as sum, count(*) as size
                from judged left join questions using (output, sample_id) where {score} is not null
                group by metric, system, coalesce(query::varchar, sample_id)""",
        )

    def count_repeated_queries(self) -> int:
        """Count the queries with several rows of one system under a metric."""
        self.hash_questions()
        found = self.database.sql(
            """select count(distinct query) from (
                select query from judged join questions using (output, sample_id)
                where query is not null group by metric, system, query having count(*) > 1)"""
        )
        return int(found.fetchall()[0][0])

    def find_twice(self) -> Row | None:
        """Return the first system with scores of one question in two outputs: metric, system, one, other, count."""
        self.hash_questions()
        found = fetch_rows(
            self.database,
            """select metric, system, one, other, count(*) as count from (
                    select metric, system, question, min(output) as one, max(output) as other
                    from judged join questions using (output, sample_id)
                    where question is not null group by metric, system, question having one < other)
                group by all order by metric, system, one, other limit 1""",
        )
        return found[0] if found else None

    def hash_questions(self) -> None:
        """Store the hashes of the query and question of each sample, so that DuckDB reads the texts once."""
        self.database.execute(
            """create temp table if not exists questions as
                select output, sample_id, md5_number(query) as query, question from asked"""
        )

    def _collect_clusters(self, keys: tuple[str, ...], rows: str) -> dict[tuple[str, ...], Clusters]:
        return clusters_by(keys, count_distinct(self.database, "judged", ", ".join((*keys, "size")), ["sum"], rows))


def count_distinct(database: DuckDBPyConnection, table: str, keys: str, values: Sequence[str], rows: str) -> pa.Table:
    """Count the distinct rows of a query over a table: its keys, the values and count.

    If there are more than `MAX_DISTINCT`, the values (with a key `size`, the means of sums) are rounded to the grid.
    With millions of rows an estimate of their number comes first, because it needs little memory.
    """

    def number(query: str) -> int:
        ((found,),) = database.sql(query).fetchall()
        return int(found)

    def count(form: str) -> str:
        columns = ", ".join(f"{form.format(value)} as {value}" for value in values)
        return f"select {keys}, {columns}, count(*) as count from ({rows}) group by all"

    exact, size = (rounded("{0}"), "size") if "size" in keys else ("{0}", "1")
    distinct = ", ".join(exact.format(value) for value in values)
    if number(f"select count(*) from {table}") <= MAX_DISTINCT or (
        number(f"select approx_count_distinct(hash({keys}, {distinct})) from ({rows})") <= 2 * MAX_DISTINCT
    ):
        found = rows_of(database, count(exact), MAX_DISTINCT + 1)
        if found.num_rows <= MAX_DISTINCT:
            return found
    return rows_of(database, count(f"round({{0}} / {size} * {GRID}) / {GRID} * {size}"))


def clusters_by(keys: Sequence[str], counted: pa.Table) -> dict[tuple[str, ...], Clusters]:
    """Return sums, sizes and counts of clusters by the values of the keys."""
    lists = counted.group_by(list(keys)).aggregate([(name, "list") for name in ("sum", "size", "count")])
    return {
        tuple(row[key] for key in keys): (row["sum_list"], row["size_list"], row["count_list"])
        for row in lists.to_pylist()
    }


def connect_scores(
    runs: Sequence[RunTables],
    names: Sequence[str] | None,
    metrics: Iterable[str] | None = None,
    measures: Sequence[str] = (),
    tables: Sequence[str] = (),
) -> DuckDBPyConnection:
    """Open a database with the views `judged`, the scores and systems of all runs, and `asked`, the texts of samples.

    names: the system of samples without one, by run; None keeps it null. With `measures`, the values of these are the
    scores, and the metric is `<metric>.<measure>`. `question` is a hash of query and contexts, null if the sample has
    none. tables: further tables to open.
    """
    own = ["samples", "scores", *(["measures"] if measures else []), *tables]
    database = connect_tables(runs, own, numbered=True)
    system = "system" if names is None else f"coalesce(system, [{quoted_list(names)}][output + 1])"
    where = "" if metrics is None else f"where metric in ({_listed(metrics)})"
    name = "concat_ws('.', metric, measure)" if measures else "metric"
    rows = "scores" if not measures else _MEASURED.format(_listed(measures), quoted_list(FAILED_STATUSES))
    database.execute(
        f"""create view judged as
            select *, {ANSWERED} as answered from (
                select output, sample_id, metric, {system} as system, status, covered, {SCORE} as score,
                    {without_nan("score_low")} as score_low, {without_nan("score_high")} as score_high,
                    {SCORE_OR_ZERO} as score_zero
                from (select * replace ({name} as metric) from {rows} {where}));
        create view asked as
            select output, sample_id, query, contexts, case when query is not null and contexts is not null
                then md5_number(to_json({{query: query, contexts: contexts}})) end as question
            from samples"""
    )
    return database


def _listed(texts: Iterable[str]) -> str:
    """Return a query of these texts, without rows if there are none."""
    return f"select unnest([{quoted_list(texts)}]::varchar[])"


def rows_of(database: DuckDBPyConnection, query: str, n: int | None = None) -> pa.Table:
    """Return the first n rows of a query, or all."""
    return database.sql(query if n is None else f"{query} limit {n}").to_arrow_table()


def fetch_rows(database: DuckDBPyConnection, query: str) -> Rows:
    """Return all rows of a query as mappings."""
    rows: Rows = rows_of(database, query).to_pylist()
    return rows


def group_by(rows: Iterable[Given], *names: str) -> dict[Any, list[Given]]:
    """Return the rows by the value of a column, or by the values of several columns, in their order."""
    found: dict[Any, list[Given]] = defaultdict(list)
    key = itemgetter(*names)
    for row in rows:
        found[key(row)].append(row)
    return dict(found)


def rounded(value: str) -> str:
    """Return SQL of a value without the decimals that depend on the order of a sum."""
    return f"round({value}, {DECIMALS})"


def rounded_row(row: Row) -> dict[str, Any]:
    """Return a row with its numbers without the decimals that depend on the order of threads or of a sum."""
    return {name: round(value, DECIMALS) if isinstance(value, float) else value for name, value in row.items()}
