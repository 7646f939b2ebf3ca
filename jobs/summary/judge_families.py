"""Compare the ratings of systems by several judges, and test if a judge favours its own family (methods, section 22).

The ratings are the votes of a panel (the table `votes` of a run), or the scores of several runs over the same samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from untold.jobs.run.terminal import Page, amount, table, wrapped
from untold.jobs.run_tables import RunTables, quoted, quoted_list
from untold.jobs.summary.ranking import (
    CompareError,
    add_adjusted,
    check_runs,
    interval_text,
    is_unlikely,
    limits_text,
    map_in_threads,
    names_of,
    number_text,
    wanted_metrics,
)
from untold.jobs.summary.score_counts import Rows, clusters_by, connect_scores, count_distinct, fetch_rows, rounded_row
from untold.udfs.statistics.intervals import clustered_bca_interval
from untold.udfs.statistics.permutation import Clusters, clustered_permutation_test

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_WORD = re.compile(r"[^\W\d_]+")
# The credit of a vote. Levels of a rubric have no common credit
CREDITS = {
    **dict.fromkeys(("true", "entailment", "support", "full", "met", "supported"), 1.0),
    **dict.fromkeys(("partial_support", "partial", "partly_met"), 0.5),
    **dict.fromkeys(("false", "neutral", "contradiction", "not_support", "none", "not_met"), 0.0),
    **dict.fromkeys(("not_supported", "contradicted"), 0.0),
}
_CELL = ("metric", "judge", "family")


def family_of(name: str, families: Mapping[str, str]) -> str:
    """Return the given family of a model or system, or by default the first word of the last part of its name.

    >>> [family_of(name, {"rag-b": "llama"}) for name in ("openai/gpt-4o", "Llama3.1-8B", "rag-b", "42")]
    ['gpt', 'llama', 'llama', '42']
    """
    if name in families:
        return families[name]
    word = _WORD.search(name.rsplit("/", 1)[-1])
    return word[0].lower() if word else name


def compare_judges(
    runs: Sequence[RunTables],
    *,
    metrics: Sequence[str] | None = None,
    families: Mapping[str, str] | None = None,
    seed: int = 0,
    notify: Callable[[str], None] = lambda _: None,
) -> Rows:
    """Return the ratings of each family by each judge, and the interaction of both, for each metric.

    If there is one run, its panel gives the judges, and the rating of a response is the mean credit of its votes. If
    there are several runs over the same samples, each run has one judge, and the rating is the score. An item or a
    response counts if all judges rated it. The intervals and tests resample whole queries. Methods, section 22.

    Args:
        metrics: names of metrics, by default all metrics of the runs with votes or scores.
        families: the family by name of a model or system (`family_of`).
        notify: a function that accepts a line about votes without a credit, or about families without a judge.

    Returns:
        Rows with metric, judge, family, own, n, mean, ci_low, ci_high, interaction, interaction_low, interaction_high,
        p_value and p_adjusted. `own` is true if the family of the judge is the family of the systems. `n` is the number
        of questions. `interaction` is the excess of the judge over the other judges for this family, less the excess
        for the other families. It is null if no question has responses from several families. `p_adjusted` is adjusted
        within the metric by the method of Benjamini and Hochberg.

    Raises:
        CompareError: no response of a system has ratings from two judges.
    """
    metrics = wanted_metrics(check_runs(runs), metrics)
    database = connect_scores(runs, None, metrics, tables=("votes", "criteria"))
    rated = _votes(database, notify) if len(runs) == 1 else _scores(runs)
    database.execute(f"create temp table rated as {rated}")
    _keep_common(database)
    named = families or {}
    _note_families(database, named, notify)
    _rate_families(database)
    means = _clusters(database, "value")
    interactions = _clusters(database, "interaction")
    keys = sorted(means)
    if not keys:
        raise CompareError(
            "no response has a system and ratings of two or more judges. Score the same samples with each judge"
        )
    rows = map_in_threads(lambda key: _row(key, means[key], interactions.get(key), named, seed), keys)
    return add_adjusted(rows, "metric")


def _votes(database: DuckDBPyConnection, notify: Callable[[str], None]) -> str:
    """Return SQL of the ratings by a panel: metric, judge, system, sample_id, query, question, value.

    Of a rubric, only votes on the whole response count. The credit of a criterion with points below 0 is reversed.
    """
    if not fetch_rows(database, "select 1 from votes limit 1"):
        raise CompareError(
            "the run has no table votes, so it has one judge. Score with `judges`, or give a run per judge"
        )
    credits = " ".join(f"when {quoted(label)} then {credit}" for label, credit in CREDITS.items())
    database.execute(
        f"""create temp view credited as
            select v.*, case label {credits} end as credit, coalesce(c.points, 0) < 0 as is_bad
            from votes v left join criteria c on c.sample_id = v.sample_id and c.metric = v.metric
                and v.item_id = concat_ws(':', c.sample_id, c.metric, c.number)
            where c.number is not null or v.metric not in (select metric from criteria)"""
    )
    (without,) = fetch_rows(
        database, "select count(*) as count from credited where label is not null and credit is null"
    )
    if without["count"]:
        notify(
            f"{amount(without['count'], 'vote is', 'votes are')} left out, because levels of a rubric have no credit"
        )
    return """
        with known as (
            select metric, sample_id, judge, case when is_bad then 1 - credit else credit end as credit,
                count(credit) over (partition by metric, stage, sample_id, item_id) as votes from credited),
        panel as (select metric, count(distinct judge) as judges from votes group by metric),
        means as (
            select metric, judge, sample_id, avg(credit) as value from known join panel using (metric)
            where votes = judges group by all)
        select metric, judge, j.system, sample_id, coalesce(query, sample_id) as query,
            coalesce(question::varchar, sample_id) as question, value
        from means join judged j using (metric, sample_id) join asked using (sample_id)"""


def _scores(runs: Sequence[RunTables]) -> str:
    """Return SQL of the ratings by the models of runs, with the columns of `_votes`.

    Raises CompareError for a panel and for equal judges.
    """
    judges = []
    for run, folder in zip(runs, names_of(runs), strict=True):
        if run.manifest.get("rows", {}).get("votes"):
            raise CompareError(
                f"{run.directory} has a panel of judges. Compare the judges of this run without the other runs"
            )
        usage = [row for start in run.manifest.get("starts", []) for row in start.get("usage", [])]
        models = {row["model"] for row in usage if row.get("model")}
        judges.append(models.pop() if len(models) == 1 else folder)
    if len(set(judges)) < len(runs):
        raise CompareError(f"two runs have the same judge ({', '.join(judges)}). Give one run per judge")
    return f"""
        select metric, [{quoted_list(judges)}][output + 1] as judge, system, sample_id,
            coalesce(query, sample_id) as query, coalesce(question::varchar, sample_id) as question, score as value
        from judged join asked using (output, sample_id) where score is not null"""


def _keep_common(database: DuckDBPyConnection) -> None:
    """Create the table `common`: the mean rating of a system's responses to a question that all judges rated."""
    database.execute(
        """create temp table common as
            with ratings as (
                select metric, judge, system, query, question, avg(value) as value from rated
                where system is not null group by all),
            panel as (select metric, count(distinct judge) as judges from ratings group by metric)
            select r.*, judges from ratings r join panel using (metric) where judges > 1
            qualify count(*) over (partition by metric, system, question) = judges"""
    )


def _note_families(database: DuckDBPyConnection, families: Mapping[str, str], notify: Callable[[str], None]) -> None:
    """Create the table `families` of the systems. Notify if no system belongs to the family of a judge."""
    of_column: dict[str, dict[str, str]] = {}
    for column in ("judge", "system"):
        names = fetch_rows(database, f"select distinct {column} as name from common")
        of_column[column] = {row["name"]: family_of(row["name"], families) for row in names}
    database.execute("create temp table families (system varchar, family varchar)")
    for system, family in sorted(of_column["system"].items()):
        database.execute("insert into families values (?, ?)", [system, family])
    of_judges, of_systems = (sorted(set(own.values())) for own in of_column.values())
    if of_systems and not set(of_judges) & set(of_systems):
        notify(
            f"no system belongs to the family of a judge (judges: {', '.join(of_judges)}; systems: "
            f"{', '.join(of_systems)}). Name the families with --families"
        )


def _rate_families(database: DuckDBPyConnection) -> None:
    """Create the table `ratings`: the rating of a family by a judge for a question, and the interaction of both.

    The interaction is null if the question has responses of one family.
    """
    database.execute(
        """create temp table ratings as
            with of_family as (
                select metric, judge, family, query, question, judges, avg(value) as value
                from common join families using (system) group by all),
            excesses as (
                select *, value - (sum(value) over one - value) / (judges - 1) as excess
                from of_family window one as (partition by metric, family, question))
            select metric, judge, family, query, value,
                excess - (sum(excess) over one - excess) / nullif(count(*) over one - 1, 0) as interaction
            from excesses window one as (partition by metric, judge, question)"""
    )


def _clusters(database: DuckDBPyConnection, value: str) -> dict[tuple[str, ...], Clusters]:
    """Return the frequencies of the sums of a column of `ratings` over the questions of a query, by `_CELL`."""
    rows = f"""select metric, judge, family, sum({value}) as sum, count(*) as size
        from ratings where {value} is not null group by metric, judge, family, query"""
    return clusters_by(_CELL, count_distinct(database, "ratings", ", ".join((*_CELL, "size")), ["sum"], rows))


def _row(
    key: tuple[str, ...], ratings: Clusters, interactions: Clusters | None, families: Mapping[str, str], seed: int
) -> dict[str, Any]:
    """Return the row of a metric, judge and family without the adjusted p."""
    _, judge, family = key
    _, sizes, counts = ratings
    row: dict[str, Any] = {
        **dict(zip(_CELL, key, strict=True)),
        "own": family_of(judge, families) == family,
        "n": int(np.dot(sizes, counts)),
        **clustered_bca_interval(*ratings, seed=seed).columns("mean"),
        **dict.fromkeys(("interaction", "interaction_low", "interaction_high", "p_value")),
    }
    if interactions is not None:
        row |= clustered_bca_interval(*interactions, seed=seed).columns("interaction", "interaction")
        row["p_value"] = clustered_permutation_test(*interactions, seed=seed).p_value
    return rounded_row(row)


def judge_lines(rows: Rows, page: Page) -> Iterator[str]:
    """Yield the matrix of judges and families as lines, then a line per metric about the judges' own families."""
    heads = ("metric", "judge", "family", "n", "mean", "95 % interval", "interaction", "95 % interval", "p adj.")
    cells = [
        [
            *(row["metric"], row["judge"], f"{row['family']} (own)" if row["own"] else row["family"], f"{row['n']:,}"),
            *(number_text(row["mean"]), interval_text(row, clustered=True), number_text(row["interaction"], "+.3f")),
            *(limits_text(row, "interaction", "+.3f"), number_text(row["p_adjusted"], ".4f")),
        ]
        for row in rows
    ]
    yield from table(heads, cells, page, names=3)
    for metric, of_metric in groupby(rows, key=lambda row: row["metric"]):
        own = [row for row in of_metric if row["own"]]
        favoured = [row for row in own if is_unlikely(row) and row["interaction"] > 0]
        for row in favoured:
            yield from ("", *wrapped(f"{metric}: {row['judge']} favours its own family {row['family']}", page))
        if own and not favoured:
            yield from ("", *wrapped(f"{metric}: no judge favours its own family by more than chance", page))
