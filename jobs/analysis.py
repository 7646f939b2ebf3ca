"""What runs have found, counted by DuckDB on one machine and without Spark: each function gives an Arrow table.

The same functions are methods of `untold.Run`. Several runs are one table: samples without a system are of one that is
named after their output. Only what a table asks for is read; what does not fit memory waits on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from untold.jobs.run_tables import RunTables, connect_tables, quoted
from untold.jobs.summary import ranking
from untold.jobs.summary.dated_scores import CHANGES
from untold.jobs.summary.ranking import FAILED_STATUSES, GRID, MAX_DISTINCT, SCORE, SCORE_OR_ZERO
from untold.jobs.summary.trends import date_of, find_trend
from untold.jobs.tables import SUMMARY
from untold.udfs.errors import UserError, aside, near_misses

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SYSTEMS = pa.schema([SUMMARY.field(name) for name in ranking.SYSTEM_COLUMNS])
# Two systems of a metric, the better one first, over the questions that both have a score for
DIFFERENCES = pa.schema(
    [
        ("metric", pa.string()),
        ("first", pa.string()),
        ("second", pa.string()),
        ("n", pa.int64()),
        *((name, pa.float64()) for name in ("difference", "ci_low", "ci_high", "p_value", "p_adjusted")),
    ]
)
TOPICS = pa.schema(
    [
        ("topic", pa.string()),
        *((name, pa.int64()) for name in ("statements", "missed", "queries")),
        ("more", pa.list_(pa.string())),
    ]
)
MOST_STATEMENTS = 2_000  # whose distances are 16 MB
_LOW, _HIGH = (f"case when not isnan({name}) then {name} end" for name in ("score_low", "score_high"))
# What `untold.jobs.compare.as_scores` says, for measures of these names and statuses of which nothing is known
_MEASURED = """(select s.* exclude (score, score_low, score_high, status, covered, uncovered), m.measure,
        m.value as score, m.value_low as score_low, m.value_high as score_high,
        null::bigint as covered, null::bigint as uncovered,
        case when m.value is not null then 'ok' when m.value_high is not null or s.status in ({1}) then 'failed'
            else 'no_statements' end as status
    from scores s join measures m using (output, sample_id, metric) where m.measure in ({0}))"""
# Equal statements of a query differ in white space, case or the full stop at most
_SAME_TEXT = r"rtrim(lower(trim(regexp_replace(text, '\s+', ' ', 'g'))), '.')"


def compare_runs(
    runs: Sequence[RunTables],
    *,
    metrics: Sequence[str] | None = None,
    measures: Sequence[str] | None = None,
    seed: int = 0,
    notify: Callable[[str], None] = lambda _: None,
    cluster: bool = False,
    undefined: str = "mean",
) -> dict[str, pa.Table]:
    """`systems` and `comparisons` of runs, with the numbers of `untold compare` (`untold.jobs.compare.compare`).

    Raises CompareError for runs that cannot be compared.
    """
    wanted = ranking.wanted_measures(ranking.check_runs(runs), measures)
    scores = _DuckScores(_judged(runs, ranking.wanted_metrics(runs, metrics), wanted))
    how = {"cluster": cluster, "measured": bool(wanted)}
    found = ranking.compare_scores(scores, runs, seed=seed, notify=notify, undefined=undefined, **how)
    schemas = {"systems": SYSTEMS, "comparisons": DIFFERENCES}
    return {name: pa.Table.from_pylist(rows, schemas[name]) for name, rows in found.items()}


def differences_by_query(
    runs: Sequence[RunTables], n: int | None = 20, metrics: Sequence[str] | None = None
) -> pa.Table:
    """The n questions in which two systems differ most, or all: metric, query, first, second, their scores, difference.

    `first` sorts before `second`; equal differences stand in the order of metrics and queries.
    """
    database = _judged(ranking.check_runs(runs), ranking.wanted_metrics(runs, metrics))
    return _rows(
        database,
        f"""with means as (
                select metric, question, any_value(query) as query, system, avg(score) as score
                from judged join asked using (output, sample_id)
                where question is not null and score is not null group by metric, question, system)
            select metric, query, a.system as first, b.system as second, a.score as first_score,
                b.score as second_score, {_rounded("a.score - b.score")} as difference
            from means a join means b using (metric, question, query) where a.system < b.system
            order by abs(difference) desc, metric, query, first, second""",
        n,
    )


def agreement(runs: Sequence[RunTables]) -> pa.Table:
    """How alike two metrics judge the samples that both have a score for: first, second, n, spearman, pearson.

    Coefficients are null where a side is constant. The difference is of the means of the first less the second.
    """
    database = _judged(runs)
    rank = "rank() over ({0} order by {1}) + (count(*) over ({0}, {1}) - 1) / 2".format
    by_pair = "partition by first, second"
    return _rows(
        database,
        f"""with pairs as (
                select a.metric as first, b.metric as second, a.score as x, b.score as y
                from judged a join judged b using (output, sample_id)
                where a.metric < b.metric and a.score is not null and b.score is not null),
            ranked as (select *, {rank(by_pair, "x")} as rank_x, {rank(by_pair, "y")} as rank_y from pairs)
            select first, second, count(*) as n, {_correlation("rank_x", "rank_y")} as spearman,
                {_correlation("x", "y")} as pearson, {_rounded("avg(x) - avg(y)")} as difference
            from ranked group by first, second order by first, second""",
    )


def distribution(runs: Sequence[RunTables], bins: int = 10) -> pa.Table:
    """How many samples have which score: metric, system, low, high, count, share of the system's; empty bins left out.

    The last bin holds its upper limit too.
    """
    return _rows(
        _judged(runs),
        f"""select metric, system, bin / {bins} as low, (bin + 1) / {bins} as high, count(*) as count,
                count(*) / sum(count(*)) over (partition by metric, system) as share
            from (select metric, system, least(floor(score * {bins})::int, {bins - 1}) as bin from judged
                where score is not null)
            group by metric, system, bin order by metric, system, bin""",
    )


def statuses(runs: Sequence[RunTables]) -> pa.Table:
    """What became of samples: metric, system, status, count, share of the system's."""
    return _rows(
        _judged(runs),
        """select metric, system, status, count(*) as count,
                count(*) / sum(count(*)) over (partition by metric, system) as share
            from judged group by metric, system, status order by metric, system, count desc, status""",
    )


def costs(runs: Sequence[RunTables]) -> pa.Table:
    """What the last start of each run used, by stage and model, the dearest first: requests, tokens, cost, share.

    `cost` is in the currency of the prices set, and null without a price; `cost_of_thousand` is of 1,000 samples.
    """
    counts = ("requests", "reused", "calls", "failed", "prompt_tokens", "completion_tokens", "cost", "seconds")
    sums = ", ".join(
        f"sum({name})::{'double' if name in ('cost', 'seconds') else 'bigint'} as {name}" for name in counts
    )
    samples = sum(run.dataset("samples").count_rows() for run in runs if "samples" in run.tables)
    return _rows(
        _connect(runs, "usage"),
        f"""select *, cost / nullif(sum(cost) over (), 0) as share,
                1000 * cost / nullif({samples}, 0) as cost_of_thousand
            from (select stage, model, {sums} from usage group by stage, model)
            order by cost desc nulls last, calls desc, stage""",
    )


def left_out(
    runs: Sequence[RunTables], by: str = "statement", n: int | None = 20, metrics: Sequence[str] | None = None
) -> pa.Table:
    """What answers leave out most, the n first rows or all (docs/contract.md, "Analysis").

    by: `statement`, `query`, `source` or `system`. Of a statement, `missed` counts the responses to its query that
    leave it out, of `responses` that were judged; statements are equal but for case and white space. Otherwise `missed`
    counts statements that are left out, of `statements`. `share` is of these. Raises UserError for another `by`.
    """
    if by not in _LEFT_OUT:
        raise UserError(f"by={by}: must be {', '.join(_LEFT_OUT)}{aside(near_misses(by, _LEFT_OUT))}")
    database = _judged(runs, metrics)
    database.execute(
        """create view stated as
            select output, sample_id, metric, system, query, question, contexts, text, s.covered, sources
            from statements s join judged using (output, sample_id, metric) join asked using (output, sample_id)
            where s.covered is not null and kept is distinct from false"""
    )
    return _rows(database, _LEFT_OUT[by], n)


_SUMS = """count(distinct (output, sample_id)) as responses, count(*) as statements,
    count(*) filter (not covered) as missed, missed / statements as share"""
_LEFT_OUT = {
    "statement": f"""with missed as (
            select metric, question, {_SAME_TEXT} as same, any_value(query) as query, min(text) as statement,
                count(distinct (output, sample_id)) as missed, list_sort(list(distinct system)) as systems,
                list_sort(list_distinct(flatten(list(coalesce(sources, []))))) as sources
            from stated where not covered group by metric, question, same),
        answers as (
            select metric, question, count(*) as responses from judged join asked using (output, sample_id)
            where covered is not null group by metric, question)
        select metric, query, statement, missed, responses, missed / responses as share, systems, sources
        from missed join answers using (metric, question)
        order by missed desc, share desc, metric, query, statement""",
    "query": f"""select metric, any_value(query) as query, {_SUMS} from stated
        group by metric, question having missed > 0 order by missed desc, share desc, metric, query""",
    "source": f"""select metric, any_value(query) as query, source, {_SUMS},
            any_value(list_filter(contexts, lambda one: one.id = source)[1].text) as context
        from (select *, unnest(sources) as source from stated)
        group by metric, question, source having missed > 0 order by missed desc, share desc, metric, query, source""",
    "system": f"""select metric, system, {_SUMS} from stated group by metric, system
        order by share desc, metric, system""",
}


def topics(
    runs: Sequence[RunTables], n: int = 10, metrics: Sequence[str] | None = None, *, statements: int = MOST_STATEMENTS
) -> pa.Table:
    """What left out statements are about, by vectors of the embedded model: topic, statements, missed, queries, more.

    The `statements` most missed ones are put into n groups (average linkage of cosines). A `topic` is the statement in
    the middle of its group, `more` are up to three others. Needs `untold[local]`; raises UserError without it.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    from untold.udfs.retrieval.embedding import Embedder, normalised
    from untold.udfs.retrieval.local_models import find_minilm

    rows = left_out(runs, n=statements, metrics=metrics).to_pylist()
    if not rows:
        return TOPICS.empty_table()
    vectors = normalised(Embedder(find_minilm()).embed([row["statement"] for row in rows]))
    tree = linkage(vectors, "average", "cosine") if len(rows) > 1 else None
    groups = [1] if tree is None else fcluster(tree, n, "maxclust").tolist()
    found = []
    for group in sorted(set(groups)):
        own = [place for place, other in enumerate(groups) if other == group]
        middle = vectors[own].mean(axis=0)
        nearest = [rows[place] for place in sorted(own, key=lambda place: -float(vectors[place] @ middle))]
        topic, *others = dict.fromkeys(row["statement"] for row in nearest)
        missed, queries = sum(row["missed"] for row in nearest), len({row["query"] for row in nearest})
        counts = {"statements": len(own), "missed": missed, "queries": queries}
        found.append({"topic": topic, **counts, "more": others[:3]})
    return pa.Table.from_pylist(sorted(found, key=lambda row: -row["missed"]), TOPICS)


def changes(runs: Sequence[RunTables], metrics: Sequence[str] | None = None, seed: int = 0) -> pa.Table:
    """How each system changed from one date to the next: columns of `CHANGES`; p is adjusted over those of a metric.

    Dates that a break of comparability parts are not compared.
    """
    wanted = ranking.wanted_metrics(ranking.check_runs(runs), metrics)
    found = [row for row in find_trend(runs, seed=seed).steps if row["metric"] in wanted]
    return pa.Table.from_pylist(found, CHANGES)


def trend(runs: Sequence[RunTables]) -> pa.Table:
    """The summaries of runs by their dates: date, output, and the columns of `summary` but for its level.

    A run's date is the one in its folder's name (`nightly/2026-11-20`), else that on which it started.
    """
    rows = [
        {"date": date_of(run), "output": name, **row}
        for run, name in zip(runs, ranking.names_of(runs), strict=True)
        for row in (run.summary().to_pylist() if "summary" in run.tables else ())
    ]
    columns = [field for field in SUMMARY if field.name != "level"]
    schema = pa.schema([("date", pa.string()), ("output", pa.string()), *columns])
    return pa.Table.from_pylist(rows, schema).sort_by([(name, "ascending") for name in ("date", "output", "metric")])


@dataclass(frozen=True)
class _DuckScores:
    """`CountedScores` of the views of `_judged`."""

    database: DuckDBPyConnection

    def count_values(self) -> ranking.Rows:
        return self._collect(
            "metric, system, status, measure",
            "value",
            """from (select metric, system, status, score, score_low, score_high, score_zero from judged)
                unpivot include nulls (value for measure in (score, score_low, score_high, score_zero))""",
        )

    def count_differences(self, score: str, *, cluster: bool) -> ranking.Rows:
        self._hash_questions()
        own = "sum(difference) as difference, count(*) as size" if cluster else "difference, 1 as size"
        return self._collect(
            "metric, first, second, size",
            "difference",
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

    def count_clusters(self, score: str) -> ranking.Rows:
        self._hash_questions()
        return self._collect(
            "metric, system, size",
            "sum",
            f"""select metric, system, sum({score}) as sum, count(*) as size
                from judged left join questions using (output, sample_id) where {score} is not null
                group by metric, system, coalesce(query::varchar, sample_id)""",
        )

    def count_repeated_queries(self) -> int:
        self._hash_questions()
        return self._number(
            """select count(distinct query) from (
                select query from judged join questions using (output, sample_id)
                where query is not null group by metric, system, query having count(*) > 1)"""
        )

    def find_twice(self) -> dict[str, Any] | None:
        self._hash_questions()
        found = _rows(
            self.database,
            """select metric, system, one, other, count(*) as count from (
                    select metric, system, question, min(output) as one, max(output) as other
                    from judged join questions using (output, sample_id)
                    where question is not null group by metric, system, question having one < other)
                group by all order by metric, system, one, other""",
            1,
        ).to_pylist()
        return found[0] if found else None

    def _hash_questions(self) -> None:
        """Keeps which sample asks what, so that texts are read once."""
        self.database.execute(
            """create temp table if not exists questions as
                select output, sample_id, md5_number(query) as query, question from asked"""
        )

    def _collect(self, keys: str, value: str, rows: str) -> ranking.Rows:
        """How often each value of a query's rows occurs: the keys, the value and count; rounded where they are many.

        Millions of rows are first looked at for how many of them differ, in little memory.
        """
        rounded = value if value == "value" else _rounded(value)
        count = f"select {keys}, {{}} as {value}, count(*) as count from ({rows}) group by all".format
        if self._number("select count(*) from judged") <= MAX_DISTINCT or (
            self._number(f"select approx_count_distinct(hash({keys}, {rounded})) from ({rows})") <= 2 * MAX_DISTINCT
        ):
            found = _rows(self.database, count(rounded), MAX_DISTINCT + 1)
            if found.num_rows <= MAX_DISTINCT:
                return list(found.to_pylist())
        # As `untold.jobs.compare` rounds sums
        size = "size" if "size" in keys else "1"
        return list(_rows(self.database, count(f"round({value} / {size} * {GRID}) / {GRID} * {size}")).to_pylist())

    def _number(self, query: str) -> int:
        found = self.database.sql(query).fetchone()
        return int(found[0]) if found else 0


def _judged(
    runs: Sequence[RunTables], metrics: Iterable[str] | None = None, measures: Sequence[str] = ()
) -> DuckDBPyConnection:
    """A database with `judged`, the scores with their systems' names, and `asked`, what each sample asks.

    With `measures`, their values are the scores, as `untold.jobs.compare.as_scores` has them. `question` is a hash of
    query and contexts, null where the sample has none.
    """
    database = _connect(runs, "samples", "scores", "statements", *(["measures"] if measures else []))
    names = ", ".join(map(quoted, ranking.names_of(runs)))
    system = f"coalesce(system, [{names}][output + 1])"
    where = "" if metrics is None else f"where metric in ({_listed(metrics)})"
    name = "concat_ws('.', metric, measure)" if measures else "metric"
    rows = "scores" if not measures else _MEASURED.format(_listed(measures), ", ".join(map(quoted, FAILED_STATUSES)))
    database.execute(
        f"""create view judged as
            select output, sample_id, metric, {system} as system, status, covered,
                {SCORE} as score, {_LOW} as score_low, {_HIGH} as score_high, {SCORE_OR_ZERO} as score_zero,
                case when {SCORE_OR_ZERO} is not null then ({SCORE} is not null)::double end as answered
            from (select * replace ({name} as metric) from {rows} {where});
        create view asked as
            select output, sample_id, query, contexts, case when query is not null and contexts is not null
                then md5_number(to_json({{query: query, contexts: contexts}})) end as question
            from samples"""
    )
    return database


def _listed(texts: Iterable[str]) -> str:
    """A query of these texts, none where there are none."""
    return f"select unnest([{', '.join(map(quoted, texts))}]::varchar[])"


def _connect(runs: Sequence[RunTables], *names: str) -> DuckDBPyConnection:
    return connect_tables(runs, names, numbered=True)


def _rows(database: DuckDBPyConnection, query: str, n: int | None = None) -> pa.Table:
    """The first n rows of a query, or all."""
    return database.sql(query if n is None else f"{query} limit {n}").to_arrow_table()


def _rounded(value: str) -> str:
    """A value without the decimals that depend on the order of a sum."""
    return f"round({value}, {ranking.DECIMALS})"


def _correlation(x: str, y: str) -> str:
    """Pearson's coefficient, null where a side is constant."""
    return f"case when stddev_pop({x}) > 0 and stddev_pop({y}) > 0 then {_rounded(f'corr({x}, {y})')} end"
