"""Analyse runs by DuckDB on one machine, without Spark. Each function returns an Arrow table.

The functions of a run and others are methods of `untold.Run`. Several runs are one table. Samples without a system have
the name of their output as their system. DuckDB reads only the necessary columns, and spills to disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from untold.jobs.run_tables import RunTables, connect_tables
from untold.jobs.summary import ranking
from untold.jobs.summary.dated_scores import CHANGES
from untold.jobs.summary.score_counts import connect_scores, rounded, rows_of
from untold.jobs.summary.trends import date_of, find_trend
from untold.jobs.tables import SUMMARY
from untold.udfs.errors import ENGINE, UserError, aside, near_misses, require

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SYSTEMS = pa.schema([SUMMARY.field(name) for name in ranking.SYSTEM_COLUMNS])
# Two systems of a metric, the better one first, over the questions with a score of both
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
MOST_STATEMENTS = 2_000  # their distances take 16 MB
# Equal statements of a query may differ in white space, case and the full stop
_SAME_TEXT = r"rtrim(lower(trim(regexp_replace(text, '\s+', ' ', 'g'))), '.')"


def compare_runs(runs: Sequence[RunTables], **how: Any) -> dict[str, pa.Table]:
    """Return `systems` and `comparisons` of runs, the numbers of `untold compare`.

    `how` are the arguments of `ranking.compare_scores`. Raises CompareError for runs that cannot be compared.
    """
    schemas = {"systems": SYSTEMS, "comparisons": DIFFERENCES}
    found = ranking.compare_scores(runs, **how)
    return {name: pa.Table.from_pylist(rows, schemas[name]) for name, rows in found.items()}


def differences_by_query(
    run: RunTables, *others: RunTables, n: int | None = 20, metrics: Sequence[str] | None = None
) -> pa.Table:
    """Return the n questions with the largest differences of two systems, or all questions, with both scores.

    Columns: metric, query, first, second, first_score, second_score, difference. `first` sorts before `second`. Equal
    differences have the order of metrics and queries.
    """
    runs = ranking.check_runs((run, *others))
    database = _judged(runs, ranking.wanted_metrics(runs, metrics))
    return rows_of(
        database,
        f"""with means as (
                select metric, question, any_value(query) as query, system, avg(score) as score
                from judged join asked using (output, sample_id)
                where question is not null and score is not null group by metric, question, system)
            select metric, query, a.system as first, b.system as second, a.score as first_score,
                b.score as second_score, {rounded("a.score - b.score")} as difference
            from means a join means b using (metric, question, query) where a.system < b.system
            order by abs(difference) desc, metric, query, first, second""",
        n,
    )


def agreement(run: RunTables, *others: RunTables) -> pa.Table:
    """Return the correlations of each pair of metrics over the samples with a score of both.

    Columns: first, second, n, spearman, pearson, difference. Coefficients are null if a side is constant. The
    difference is the mean of the first metric less the mean of the second.
    """
    database = _judged((run, *others))
    rank = "rank() over ({0} order by {1}) + (count(*) over ({0}, {1}) - 1) / 2".format
    by_pair = "partition by first, second"
    return rows_of(
        database,
        f"""with pairs as (
                select a.metric as first, b.metric as second, a.score as x, b.score as y
                from judged a join judged b using (output, sample_id)
                where a.metric < b.metric and a.score is not null and b.score is not null),
            ranked as (select *, {rank(by_pair, "x")} as rank_x, {rank(by_pair, "y")} as rank_y from pairs)
            select first, second, count(*) as n, {_correlation("rank_x", "rank_y")} as spearman,
                {_correlation("x", "y")} as pearson, {rounded("avg(x) - avg(y)")} as difference
            from ranked group by first, second order by first, second""",
    )


def distribution(run: RunTables, *others: RunTables, bins: int = 10) -> pa.Table:
    """Count samples by score: metric, system, low, high, count, share of the samples of the system.

    The last bin contains its upper limit. Empty bins have no row.
    """
    return rows_of(
        _judged((run, *others)),
        f"""select metric, system, bin / {bins} as low, (bin + 1) / {bins} as high, count(*) as count,
                count(*) / sum(count(*)) over (partition by metric, system) as share
            from (select metric, system, least(floor(score * {bins})::int, {bins - 1}) as bin from judged
                where score is not null)
            group by metric, system, bin order by metric, system, bin""",
    )


def statuses(run: RunTables, *others: RunTables) -> pa.Table:
    """Count samples by status: metric, system, status, count, share of the samples of the system."""
    return rows_of(
        _judged((run, *others)),
        """select metric, system, status, count(*) as count,
                count(*) / sum(count(*)) over (partition by metric, system) as share
            from judged group by metric, system, status order by metric, system, count desc, status""",
    )


def costs(run: RunTables, *others: RunTables) -> pa.Table:
    """Return the usage of the last attempt of each run by stage and model: requests, tokens, cost, share.

    The most expensive comes first. `cost` has the currency of the prices, and is null without a price.
    `cost_of_thousand` is the cost of 1,000 samples.
    """
    counts = ("requests", "reused", "calls", "failed", "prompt_tokens", "completion_tokens", "cost", "seconds")
    sums = ", ".join(
        f"sum({name})::{'double' if name in ('cost', 'seconds') else 'bigint'} as {name}" for name in counts
    )
    runs = (run, *others)
    samples = sum(one.dataset("samples").count_rows() for one in runs if "samples" in one.tables)
    return rows_of(
        connect_tables(runs, ["usage"], numbered=True),
        f"""select *, cost / nullif(sum(cost) over (), 0) as share,
                1000 * cost / nullif({samples}, 0) as cost_of_thousand
            from (select stage, model, {sums} from usage group by stage, model)
            order by cost desc nulls last, calls desc, stage""",
    )


def left_out(
    run: RunTables,
    *others: RunTables,
    by: str = "statement",
    n: int | None = 20,
    metrics: Sequence[str] | None = None,
) -> pa.Table:
    """Return the most frequently missed statements, queries, sources or systems (docs/contract.md, "Analysis").

    by: `statement`, `query`, `source` or `system`; n: the number of rows, or None for all. For statements, `missed`
    counts the responses to the query without the statement, among the judged `responses`; case and white space do not
    distinguish statements. Otherwise `missed` counts the missed statements among `statements`. `share` is their
    quotient. Raises UntoldError for another `by`.
    """
    if by not in _LEFT_OUT:
        raise UserError(f"by={by}: must be {', '.join(_LEFT_OUT)}{aside(near_misses(by, _LEFT_OUT))}")
    database = _judged((run, *others), metrics, ["statements"])
    database.execute(
        """create view stated as
            select output, sample_id, metric, system, query, question, contexts, text, s.covered, sources
            from statements s join judged using (output, sample_id, metric) join asked using (output, sample_id)
            where s.covered is not null and kept is distinct from false"""
    )
    return rows_of(database, _LEFT_OUT[by], n)


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


def topics(run: RunTables, *others: RunTables, n: int = 10, metrics: Sequence[str] | None = None) -> pa.Table:
    """Group missed statements by vectors of the embedded model: topic, statements, missed, queries, more.

    The `MOST_STATEMENTS` most frequently missed statements form n groups (average linkage of cosines). A `topic` is
    the central statement of its group, and `more` has up to three others. Raises UntoldError without `untold[engine]`.
    """
    require("Run.topics", ENGINE, "onnxruntime", "tokenizers", "scipy")
    from scipy.cluster.hierarchy import fcluster, linkage

    from untold.udfs.retrieval.embedding import Embedder, normalised
    from untold.udfs.retrieval.local_models import find_minilm

    rows = left_out(run, *others, n=MOST_STATEMENTS, metrics=metrics).to_pylist()
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
        topic, *further = dict.fromkeys(row["statement"] for row in nearest)
        missed, queries = sum(row["missed"] for row in nearest), len({row["query"] for row in nearest})
        counts = {"statements": len(own), "missed": missed, "queries": queries}
        found.append({"topic": topic, **counts, "more": further[:3]})
    return pa.Table.from_pylist(sorted(found, key=lambda row: -row["missed"]), TOPICS)


def changes(run: RunTables, *others: RunTables, metrics: Sequence[str] | None = None, seed: int = 0) -> pa.Table:
    """Return the change of each system from one date to the next with 95 % intervals, as in the table `changes`.

    The p-values are adjusted over the changes of a metric. Dates before and after a break are not compared.
    """
    runs = ranking.check_runs((run, *others))
    wanted = ranking.wanted_metrics(runs, metrics)
    found = [row for row in find_trend(runs, seed=seed).steps if row["metric"] in wanted]
    return pa.Table.from_pylist(found, CHANGES)


def trend(run: RunTables, *others: RunTables) -> pa.Table:
    """Return the summaries of runs by date: date, output, and the columns of `summary` without the level.

    The date of a run is the date in the name of its folder (`nightly/2026-11-20`), or the date of its start.
    """
    runs = (run, *others)
    rows = [
        {"date": date_of(one), "output": name, **row}
        for one, name in zip(runs, ranking.names_of(runs), strict=True)
        for row in (one.summary().to_pylist() if "summary" in one.tables else ())
    ]
    columns = [field for field in SUMMARY if field.name != "level"]
    schema = pa.schema([("date", pa.string()), ("output", pa.string()), *columns])
    return pa.Table.from_pylist(rows, schema).sort_by([(name, "ascending") for name in ("date", "output", "metric")])


def _judged(
    runs: Sequence[RunTables], metrics: Sequence[str] | None = None, tables: Sequence[str] = ()
) -> DuckDBPyConnection:
    return connect_scores(runs, ranking.names_of(runs), metrics, tables=tables)


def _correlation(x: str, y: str) -> str:
    """Return SQL of Pearson's coefficient, null if a side is constant."""
    return f"case when stddev_pop({x}) > 0 and stddev_pop({y}) > 0 then {rounded(f'corr({x}, {y})')} end"
