"""Outputs of `untold score` to a ranking of systems, with intervals and paired tests (methods, sections 7 and 8)."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import combinations
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.results import Run, open_run
from untold.jobs.run.session import spark_schema
from untold.jobs.run.terminal import Page, amount, table, wrapped
from untold.jobs.summary.aggregate import MAX_DISTINCT, collect_counts, interval_text, score_or_zero, summarise
from untold.jobs.tables import SAMPLES, SCORES
from untold.udfs.errors import UserError
from untold.udfs.hints import did_you_mean, near_misses
from untold.udfs.statistics.intervals import clustered_bca_interval
from untold.udfs.statistics.permutation import adjust_p_values, clustered_permutation_test

# Of an adjusted p-value: pairs below it are printed, all with --all
CHANCE = 0.05
PAIR_HEADS = ("metric", "first", "second", "n", "diff.", "p", "p adj.")
SYSTEM_COLUMNS = (
    *("metric", "system", "n", "scored", "undefined", "failed", "mean", "ci_low", "ci_high"),
    *("answer_rate", "answer_ci_low", "answer_ci_high", "mean_zero"),
)
# What an undefined score of a sample with something to state is in the ranking: nothing, or 0
UNDEFINED = {"mean": "mean", "zero": "mean_zero"}
# Decimals of a difference: beyond them it depends on the order in which a mean was summed
# (a double has almost 16, and sums of up to thousands of scores lose some)
DECIMALS = 12
Rows = list[dict[str, Any]]


class CompareError(UserError):
    """Outputs that cannot be compared. The message is one line a problem and says what to do."""


def compare(
    spark: SparkSession,
    outputs: Sequence[str],
    *,
    metrics: Sequence[str] | None = None,
    seed: int,
    notify: Callable[[str], None] = lambda _: None,
    max_distinct: int = MAX_DISTINCT,
    cluster: bool = False,
    undefined: str = "mean",
) -> dict[str, Rows]:
    """`systems` and `comparisons` of outputs of `untold score`, over `metrics` or all that they have.

    `systems`, best first within a metric: `SYSTEM_COLUMNS`, as in the table `summary`. Samples without a system are of
    one that is named after their output. `undefined` names what they are ranked by, a key of `UNDEFINED`: with `zero`,
    intervals and comparisons too are of scores where an undefined one counts as 0 if there was something to state.
    `notify` says where systems differ in their answer rates by more than chance.

    `comparisons`, a row two systems of a metric, the better one first: metric, first, second, n (questions that both
    have a score for), difference of the means over these, p_value, p_adjusted (Benjamini-Hochberg within the metric);
    null where n is 0. A question is a query with its contexts; several samples of one count as their mean. With
    `cluster`, all rows of one query are resampled together and flip together; `notify` says where that is not so.

    Only counts of distinct values reach the driver; where these are more than `max_distinct`, values are rounded to
    multiples of 1 / `untold.jobs.summary.aggregate.GRID`. Raises CompareError for outputs that cannot be compared,
    UnreadableRunError for what is no output. Methods, sections 7 and 8.
    """
    if undefined not in UNDEFINED:
        raise CompareError(f"undefined={undefined}: must be {' or '.join(UNDEFINED)}")
    runs = [_open(output) for output in _distinct(outputs)]
    wanted = _wanted_metrics(runs, metrics)
    for difference in _differences(runs):
        notify(difference)
    # Read by several jobs; on disk where memory does not hold it
    scores = _read_scores(spark, runs, wanted).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        _check_once(scores, runs)
        zero = undefined == "zero"
        systems = rank(summarise(scores, seed=seed, max_distinct=max_distinct, zero=zero), UNDEFINED[undefined])
        _check_scored(systems, outputs, UNDEFINED[undefined])
        for line in _unequal_answers(scores, systems, seed, cluster=cluster):
            notify(line)
        if zero:
            scores = scores.withColumn("score", score_or_zero())
        if cluster:
            systems = with_clustered_intervals(systems, scores, seed, max_distinct)
        elif repeated := count_repeated_queries(scores):
            have = amount(repeated, "query has", "queries have")
            notify(
                f"{have} several rows of one system, which are alike: intervals and tests over single rows are too "
                "narrow; --cluster resamples whole queries"
            )
        pairs = compare_pairs(scores, systems, seed, max_distinct, cluster=cluster)
        return {"systems": systems, "comparisons": pairs}
    finally:
        scores.unpersist()


def _distinct(outputs: Sequence[str]) -> Sequence[str]:
    """The outputs. Raises CompareError where one is given twice: each of its samples would be counted so."""
    twice = sorted({output for output in outputs if outputs.count(output) > 1})
    if twice:
        raise CompareError(f"{', '.join(twice)}: given twice; give every output once")
    return outputs


def _open(output: str) -> Run:
    """The run of an output. Raises CompareError where it has no scores."""
    run = open_run(output)
    missing = [name for name in ("samples", "scores") if name not in run.tables]
    if missing:
        score_it = f"score it: untold score --input {run.path_of('samples')}"
        hint = score_it if "samples" in run.tables else "give other outputs"
        raise CompareError(f"{output}: no table {' and no table '.join(missing)}, so no output of untold score; {hint}")
    return run


def _wanted_metrics(runs: Sequence[Run], metrics: Sequence[str] | None) -> Sequence[str]:
    """The metrics to compare, all that the outputs have by default. Raises CompareError for one that none has."""
    known = sorted({name for run in runs for name in run.manifest.get("metrics", ())})
    unknown = [name for name in metrics or () if name not in known]
    if unknown:
        hint = f"{did_you_mean(near_misses(unknown[0], known), quote='')} the outputs have {', '.join(known)}"
        raise CompareError(f"no scores of metric {', '.join(unknown)}; {hint.strip()}")
    return metrics or known


def _differences(runs: Sequence[Run]) -> Iterable[str]:
    """A line for every two outputs that were judged by different stages (model, decoding, template) or settings.

    Such outputs are compared all the same: what differs may be what is compared. Only stages that both have are looked
    at.
    """
    for one, other in combinations(runs, 2):
        first, second = (run.manifest.get("identity", {}) for run in (one, other))
        stages = first.get("stages", {}).keys() & second.get("stages", {}).keys()
        judged = [name for name in sorted(stages) if first["stages"][name] != second["stages"][name]]
        options = [_options(identity) for identity in (first, second)]
        changed = sorted(name for name in options[0] if options[0][name] != options[1].get(name))
        if judged or changed:
            what = ", ".join([*judged, *changed])
            pair = f"{one.directory} and {other.directory}"
            yield f"{pair} were judged by different {what}: the results may not be comparable"


def _options(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that change scores, of every metric, less what is only of the statistics."""
    results = identity.get("results", {})
    return {name: value for name, value in results.items() if name not in ("stages", "statistics")}


def _read_scores(spark: SparkSession, runs: Sequence[Run], metrics: Sequence[str]) -> DataFrame:
    """Columns of `scores`, output (its place among the runs) and question, null where the sample is invalid."""
    names = _names_of(runs)
    frames = [
        _read_run(spark, run, name).withColumn("output", F.lit(place))
        for place, (run, name) in enumerate(zip(runs, names, strict=True))
    ]
    return reduce(DataFrame.unionByName, frames).where(F.col("metric").isin(*metrics))


def _names_of(runs: Sequence[Run]) -> list[str]:
    """What samples without a system are called: the name of the folder, the whole path where two have one name.

    `runs/a` and `runs/b` are a and b; `x/out` and `y/out` keep their paths.
    """
    short = [os.path.basename(run.directory.rstrip("/")) for run in runs]
    return [name if short.count(name) == 1 else run.directory for name, run in zip(short, runs, strict=True)]


def _read_run(spark: SparkSession, run: Run, name: str) -> DataFrame:
    """The scores of an output with the query and the question of their sample: columns of `scores`, query, question.

    question: a hash of query and contexts, null where the sample has none. name: the system of samples that have none.
    """
    scores = spark.read.schema(spark_schema(SCORES)).parquet(run.path_of("scores").spark)
    samples = spark.read.schema(spark_schema(SAMPLES)).parquet(run.path_of("samples").spark)
    text = F.to_json(F.struct("query", "contexts"))
    # A hash, since texts as keys of joins would be shuffled whole
    question = F.when(F.col("query").isNotNull() & F.col("contexts").isNotNull(), F.sha2(text, 256))
    asked = samples.select("sample_id", "query", question.alias("question"))
    # Scores of invalid rows stay: they count among the failed
    return scores.join(asked, on="sample_id", how="left").withColumn("system", F.coalesce("system", F.lit(name)))


def _check_once(scores: DataFrame, runs: Sequence[Run]) -> None:
    """Raises CompareError where a system has scores of one metric for one question in two outputs."""
    outputs = F.min("output").alias("one"), F.max("output").alias("other")
    places = scores.where(F.col("question").isNotNull()).groupBy("metric", "system", "question").agg(*outputs)
    several = places.where(F.col("one") < F.col("other")).groupBy("metric", "system", "one", "other")
    first = several.agg(F.count("*").alias("count")).orderBy("metric", "system", "one", "other").first()
    if first is not None:
        one, other = (runs[first[name]].directory for name in ("one", "other"))
        raise CompareError(
            f"{one} and {other} both have {first['metric']} scores of system {first['system']}, for "
            f"{amount(first['count'], 'question')}; give one of the two, or name the systems apart"
        )


def _check_scored(systems: Rows, outputs: Sequence[str], by: str) -> None:
    """Raises CompareError where no system has the mean of that column."""
    if all(row[by] is None for row in systems):
        failed, undefined = (sum(row[name] for row in systems) for name in ("failed", "undefined"))
        raise CompareError(
            f"nothing to compare: no sample of {', '.join(outputs)} has a score ({failed:,} failed, {undefined:,} "
            "undefined); the table failures says why, untold score --retry-failed asks again"
        )


def rank(summary: Iterable[Mapping[str, Any]], by: str = "mean") -> Rows:
    """The rows of the systems of a summary, best first within a metric, without a mean last; `SYSTEM_COLUMNS`.

    by: the column of the mean. Equal means stand in the order of names.
    """
    rows = [{name: row[name] for name in SYSTEM_COLUMNS} for row in summary if row["level"] == "system"]
    return sorted(rows, key=lambda row: (row["metric"], row[by] is None, -(row[by] or 0.0), row["system"]))


def _unequal_answers(scores: DataFrame, systems: Rows, seed: int, *, cluster: bool) -> Iterator[str]:
    """A line for each metric whose systems differ in their answer rates by more than chance (methods, section 7).

    The pair with the largest difference is named. Nothing is counted where every system answers all.
    """
    answering = [row for row in systems if row["answer_rate"] is not None]
    silent = sorted({row["metric"] for row in answering if row["answer_rate"] < 1})
    if not silent:
        return
    # 1 where there is a score, 0 where there could be one
    answered = F.when(score_or_zero().isNotNull(), F.col("score").isNotNull().cast("double"))
    marked = scores.where(F.col("metric").isin(silent)).withColumn("score", answered)
    pairs = compare_pairs(marked, [row for row in answering if row["metric"] in silent], seed, cluster=cluster)
    rates = {(row["metric"], row["system"]): row["answer_rate"] for row in answering}
    for metric in silent:
        own = [row for row in pairs if row["metric"] == metric and _is_unlikely(row)]
        if own:
            pair = max(own, key=lambda row: abs(row["difference"]))
            low, high = sorted((pair["first"], pair["second"]), key=lambda name: rates[metric, name])
            yield (
                f"{metric}: answer rates differ by more than chance ({low} {rates[metric, low]:.2f}, {high} "
                f"{rates[metric, high]:.2f}); --undefined zero counts what was not answered as 0"
            )


def _is_unlikely(pair: Mapping[str, Any]) -> bool:
    """Whether two systems differ by more than chance."""
    return pair["p_adjusted"] is not None and pair["p_adjusted"] < CHANCE


def count_repeated_queries(scores: DataFrame) -> int:
    """How many queries have several rows of one system under a metric. scores: metric, system, query strings."""
    rows = scores.where(F.col("query").isNotNull()).groupBy("metric", "system", "query").agg(F.count("*").alias("rows"))
    return rows.where(F.col("rows") > 1).select("query").distinct().count()


def with_clustered_intervals(systems: Rows, scores: DataFrame, seed: int, max_distinct: int = MAX_DISTINCT) -> Rows:
    """The rows of the systems with intervals that resample queries; scores without a query are clusters of their own.

    Only counts of equal queries reach the driver, with sums rounded as differences are in `compare_pairs`.
    """
    clusters: dict[tuple[str, str], Rows] = defaultdict(list)
    for row in collect_counts(partial(count_clusters, scores), max_distinct):
        clusters[row["metric"], row["system"]].append(row)
    return [row | _clustered_limits(clusters[row["metric"], row["system"]], seed) for row in systems]


def count_clusters(scores: DataFrame, *, grid: int | None = None) -> DataFrame:
    """How often queries of a system have one sum of scores, of one number of rows: metric, system, sum, size, count.

    With `grid`, sums are rounded to multiples of 1 / grid.
    """
    known = scores.where(F.col("score").isNotNull() & ~F.isnan("score"))
    query = F.coalesce("query", "sample_id").alias("query")
    queries = known.groupBy("metric", "system", query).agg(F.sum("score").alias("sum"), F.count("*").alias("size"))
    counted = queries.groupBy("metric", "system", _rounded("sum", grid).alias("sum"), "size")
    return counted.agg(F.count("*").alias("count"))


def _rounded(name: str, grid: int | None) -> Column:
    """A column rounded, so that equal values meet as one count whatever the order in which Spark added them."""
    return F.round(name, DECIMALS) if grid is None else F.round(F.col(name) * grid) / grid


def _clustered_limits(rows: Rows, seed: int) -> dict[str, float | None]:
    """ci_low and ci_high of a system from its queries' sums, sizes and counts."""
    sums, sizes, counts = ([row[name] for row in rows] for name in ("sum", "size", "count"))
    interval = clustered_bca_interval(sums, sizes, counts, seed=seed)
    return {"ci_low": interval.low, "ci_high": interval.high}


def compare_pairs(
    scores: DataFrame, systems: Rows, seed: int, max_distinct: int = MAX_DISTINCT, *, cluster: bool = False
) -> Rows:
    """The rows of `comparisons` of ranked systems: every two of a metric, the better one first.

    scores: metric, system, query, question strings, score double. With `cluster` all questions of one query flip
    together. Methods, section 7.
    """
    counts = _collect_counts(scores, max_distinct, cluster=cluster)
    ranked: dict[str, list[str]] = defaultdict(list)
    for row in systems:
        ranked[row["metric"]].append(row["system"])
    rows: Rows = []
    for metric, names in ranked.items():
        found = [_compare_pair(metric, first, second, counts, seed) for first, second in combinations(names, 2)]
        adjusted = adjust_p_values([row["p_value"] for row in found])
        rows += [{**row, "p_adjusted": value} for row, value in zip(found, adjusted, strict=True)]
    return rows


def count_differences(scores: DataFrame, *, grid: int | None = None, cluster: bool = False) -> DataFrame:
    """How often each difference of two systems occurs: metric, first, second, difference, count.

    A difference is of one question, or with `cluster` the sum over the questions of a query: `size` says of how many.
    `first` sorts before `second`. A system's score of a question is the mean over its samples that have one.
    With `grid`, differences are rounded to multiples of 1 / grid.
    """
    means = scores.where(F.col("question").isNotNull() & F.col("score").isNotNull() & ~F.isnan("score"))
    keys = ["metric", "question", *(["query"] if cluster else [])]
    means = means.groupBy(*keys, "system").agg(F.avg("score").alias("score"))
    first = means.withColumnsRenamed({"system": "first", "score": "first_score"})
    second = means.withColumnsRenamed({"system": "second", "score": "second_score"})
    pairs = first.join(second, on=keys, how="inner").where(F.col("first") < F.col("second"))
    difference = F.col("first_score") - F.col("second_score")
    sized = ["size"] if cluster else []
    if cluster:
        sums = [F.sum(difference).alias("difference"), F.count("*").alias("size")]
        pairs = pairs.groupBy("metric", "first", "second", "query").agg(*sums)
    else:
        pairs = pairs.withColumn("difference", difference)
    rounded = pairs.withColumn("difference", _rounded("difference", grid))
    counted = rounded.groupBy("metric", "first", "second", "difference", *sized).agg(F.count("*").alias("count"))
    return counted.select("metric", "first", "second", "difference", "count", *sized)


Pairs = dict[tuple[str, str, str], Rows]


def _collect_counts(scores: DataFrame, max_distinct: int, *, cluster: bool) -> Pairs:
    """By metric and two systems in the order of their names: rows of difference, size and count."""
    counts: Pairs = defaultdict(list)
    for row in collect_counts(partial(count_differences, scores, cluster=cluster), max_distinct):
        counts[row["metric"], row["first"], row["second"]].append(row)
    return counts


def _compare_pair(metric: str, first: str, second: str, counts: Pairs, seed: int) -> dict[str, Any]:
    """A row of `comparisons`, not yet adjusted: n is 0 and the rest null where the two share no question.

    Counts are kept in the order of names; the sign turns where the better one sorts second.
    """
    low, high = sorted((first, second))
    sign = 1.0 if first == low else -1.0
    rows = counts.get((metric, low, high), [])
    sums = [sign * row["difference"] for row in rows]
    sizes, times = [row.get("size", 1) for row in rows], [row["count"] for row in rows]
    test = clustered_permutation_test(sums, sizes, times, seed=seed)
    return {
        "metric": metric,
        "first": first,
        "second": second,
        "n": test.n,
        "difference": test.difference,
        "p_value": test.p_value,
    }


def comparison_lines(
    found: Mapping[str, Rows], page: Page, *, every: bool = False, clustered: bool = False, undefined: str = "mean"
) -> Iterator[str]:
    """The ranking as lines, then the pairs that differ by more than chance (p adjusted below `CHANCE`), or all."""
    by = UNDEFINED[undefined]
    heads = ["metric", "system", "n", "scored", "answered", by.replace("_", ", "), "95 % interval"]
    ranked = [
        [
            *(row["metric"], row["system"], f"{row['n']:,}", f"{row['scored']:,}"),
            *(_number(row["answer_rate"], ".2f"), _number(row[by], ".3f")),
            interval_text(row if by == "mean" else _with_zeros(row), clustered=clustered),
        ]
        for row in found["systems"]
    ]
    yield from table(heads, ranked, page, names=2, texts=1)
    pairs = found["comparisons"]
    shown = [row for row in pairs if every or _is_unlikely(row)]
    if shown:
        systems = [row["system"] for row in found["systems"]]
        yield from ("", *table(PAIR_HEADS, [_pair_cells(row) for row in shown], page, names=3, among=systems))
    if hidden := len(pairs) - len(shown):
        told = amount(hidden, "pair does not differ", "pairs do not differ")
        told += f" by more than chance (p adj. < {CHANCE}); --all or --json shows {'it' if hidden == 1 else 'them'}"
        yield from ("", *wrapped(told, page))


def _with_zeros(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the number of values that its mean with zeros is of."""
    return {**row, "scored": row["scored"] + row["undefined"]}


def _pair_cells(row: Mapping[str, Any]) -> list[str]:
    numbers = (("difference", "+.3f"), ("p_value", ".4f"), ("p_adjusted", ".4f"))
    return [
        *(row["metric"], row["first"], row["second"], f"{row['n']:,}"),
        *(_number(row[name], form) for name, form in numbers),
    ]


def _number(value: float | None, form: str) -> str:
    """A number in this form, `-` where there is none."""
    return "-" if value is None else format(value, form)
