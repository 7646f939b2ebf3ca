"""Read and check the inputs of a meta-evaluation: labelled samples, and tables of scores of exactly these samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from untold.jobs.inputs.files import find_files, inspect_files
from untold.jobs.metrics.graphs import COVERAGE, ONE_SIDED
from untold.jobs.run.manifest import NAME
from untold.jobs.run.session import read_parquet
from untold.jobs.run.terminal import amount
from untold.jobs.run_tables import find_table, open_run
from untold.jobs.study.judgements import MetaEvaluationError as MetaEvaluationError
from untold.jobs.summary.ranking import FAILED_STATUSES
from untold.jobs.tables import ATOMS, MEASURES, MEASURES_SUMMARY, STATEMENTS
from untold.udfs.errors import aside, near_misses, shorten
from untold.udfs.samples.adapters import CONFLICTBANK_CLAIMS, CONFLICTBANK_SETS
from untold.udfs.statistics.confusion import LABELS
from untold.udfs.storage import StoragePath


def read_table(spark: SparkSession, place: str, name: str, schema: pa.Schema | None) -> DataFrame | None:
    """A table of an output; None where the folder has none, as one that holds verdicts alone.

    schema: that of the table, None for that of its files. Whoever reads it has opened the output before.
    """
    found = find_table(place, name)
    if found is None:
        return None
    return read_parquet(spark, found.spark, schema=schema)


def read_means(spark: SparkSession, places: Mapping[str, str], metric: str) -> dict[str, dict[str, float | None]]:
    """By model, the means of a metric's measures over all samples of its output; none of a folder without them."""
    found: dict[str, dict[str, float | None]] = {}
    for model, place in places.items():
        table = read_table(spark, place, "measures_summary", MEASURES_SUMMARY)
        if table is not None:
            own = table.where((F.col("metric") == metric) & (F.col("level") == "overall"))
            rows: list[Any] = own.select("measure", "mean").collect()
            found[model] = {row["measure"]: row["mean"] for row in rows}
    return found


# Columns that scores from anywhere must have; `status` is read where there is one
REQUIRED = ("sample_id", "metric", "score")
KEYS = ["model", "metric", "sample_id"]
# What is told of each kind of id that does not fit, with the name of the input
FAULTS = {
    "lost": ("sample of {about} has no score", "samples of {about} have no score"),
    "unknown": ("score is of no sample of {about}", "scores are of no sample of {about}"),
    "repeated": ("sample of {about} has several scores", "samples of {about} have several scores"),
}
# Values that a message shows: enough to see the pattern, and still one line
SHOWN = 3


@dataclass(frozen=True)
class ScoreTables:
    """Scores of several models: model, metric, sample_id strings, score double, null where undefined, failed boolean.

    A score is failed where the column `status` says that it could not be had; a table without that column has none.
    `metrics` are those of each model, in the order asked for, or sorted.
    """

    scores: DataFrame
    metrics: Mapping[str, tuple[str, ...]]


def check_samples(path: str, samples: DataFrame, *, labelled: bool, by_source: bool = False) -> None:
    """Raises MetaEvaluationError for labels that are none of `LABELS` or, without labels, incomplete instances.

    samples: label string; or row long, as the adapters of ConflictBank give it.
    """
    if labelled:
        _check_labels(path, samples)
    else:
        _check_instances(path, samples, len(CONFLICTBANK_CLAIMS) * (1 if by_source else len(CONFLICTBANK_SETS)))


def _check_labels(path: str, samples: DataFrame) -> None:
    """Raises MetaEvaluationError for labels that are none of the three, with the most frequent ones and near misses."""
    wrong = samples.where(F.isnull("label") | ~F.col("label").isin(*LABELS)).groupBy("label").count()
    rows = wrong.orderBy(F.desc("count"), "label").collect()
    if rows:
        parts = [_describe_label(row["label"], row["count"]) for row in rows[:SHOWN]]
        have = amount(sum(row["count"] for row in rows), "sample has", "samples have")
        raise MetaEvaluationError(
            f"{path}: {have} a label that is none of {', '.join(LABELS)}: "
            f"{', '.join(parts)}{', ...' if len(rows) > SHOWN else ''}; correct or remove them"
        )


def _describe_label(label: str | None, count: int) -> str:
    """A wrong label as a message shows it: cut, with the label that it may have been meant as, and how often."""
    if label is None:
        return f"none at all in {count:,}"
    return f"`{shorten(label)}`{aside(near_misses(label, LABELS))} in {count:,}"


def _check_instances(path: str, samples: DataFrame, whole: int) -> None:
    """Raises MetaEvaluationError for rows that are no instances, and instances that lack some of their samples.

    whole: samples of an instance, two under `by_source` and ten where each context is evaluated alone (methods, section
    6). samples: row long, null for what is no instance; one job counts both faults.
    """
    sizes = samples.groupBy("row").agg(F.count("*").alias("size"))
    unread, cut, rows = sizes.agg(
        F.coalesce(F.max(F.when(F.isnull("row"), F.col("size"))), F.lit(0)),
        F.count_if(F.col("row").isNotNull() & (F.col("size") != whole)),
        F.count("*"),
    ).collect()[0]
    if unread:
        raise MetaEvaluationError(
            f"{path}: {amount(unread, 'row')} cannot be read as instances; correct or remove them"
        )
    if cut:
        raise MetaEvaluationError(
            f"{path}: {cut:,} of {rows:,} instances lack some of their {whole} samples; "
            f"give --limit a multiple of {whole}"
        )


def read_score_tables(
    spark: SparkSession,
    places: Mapping[str, str],
    metrics: Sequence[str] | None,
    ids: DataFrame,
    about: str,
    judged: Mapping[str, Sequence[str]] | None = None,
) -> ScoreTables:
    """The scores of each model, from an output of `untold score` or a bare folder of Parquet.

    places: model -> folder. metrics: those wanted, all that a table has where it is None; `judged` those of a model
    that is to judge some alone. ids: sample_id, a row a
    sample of the input that is named `about`. Raises MetaEvaluationError for all that does not fit, SampleError where
    there are no files, UnreadableRunError for an output whose run has not ended.

    All problems of all tables are told at once, a line each. Metrics of tables may have any name.
    """
    frames, found, problems = [], {}, []
    for model, place in places.items():
        frame = _read(spark, model, place)
        names, wrong = _check_values(frame, (judged or {}).get(model, metrics), f"{model} ({place})")
        problems += wrong
        found[model] = names
        frames.append(frame.where(F.col("metric").isin(*names)))
    raise_all(problems)
    # Ids are compared once for all models, after what is wrong with a table by itself was told
    scores = reduce(DataFrame.unionByName, frames)
    _check_ids(spark, scores, found, ids, places, about)
    return ScoreTables(scores, found)


def _read(spark: SparkSession, model: str, place: str) -> DataFrame:
    """model, metric, sample_id, score, failed; NaN is null.

    place: as `table_files`. Raises MetaEvaluationError for unreadable files, missing columns and scores that are no
    numbers.
    """
    where = f"{model} ({place})"
    rows = read_columns(spark, where, place, "scores", REQUIRED)
    if not isinstance(rows.schema["score"].dataType, T.NumericType):
        kind = rows.schema["score"].dataType.simpleString()
        raise MetaEvaluationError(
            f"{where}: the column `score` is {kind}; give numbers from 0 to 1, null where undefined"
        )
    score = F.col("score").cast("double")
    return rows.select(
        F.lit(model).alias("model"),
        F.col("metric").cast("string").alias("metric"),
        F.col("sample_id").cast("string").alias("sample_id"),
        F.when(~F.isnan(score), score).alias("score"),
        _failed(rows).alias("failed"),
    )


def read_columns(spark: SparkSession, where: str, place: str, name: str, required: Sequence[str]) -> DataFrame:
    """All columns of a table, place and name as `table_files`; `where` is what messages call it.

    Raises MetaEvaluationError for unreadable files and for missing columns, with near misses.
    """
    try:
        # Files of different writers may lack columns that are not required
        rows = read_parquet(spark, *table_files(place, name), mergeSchema=True)
    except PySparkException as error:
        condition = error.getCondition() or type(error).__name__
        raise MetaEvaluationError(
            f"{where}: a file of it cannot be read ({condition}); give one table of {name}"
        ) from error
    missing = [column for column in required if column not in rows.columns]
    if missing:
        parts = [f"no column `{column}`{aside(near_misses(column, rows.columns))}" for column in missing]
        raise MetaEvaluationError(f"{where}: {'; '.join(parts)}; it has {', '.join(sorted(rows.columns))}")
    return rows


def _failed(rows: DataFrame) -> Column:
    """Whether the status says that a score could not be had; false without the column, or where it is null."""
    known = F.col("status").isin(*FAILED_STATUSES) if "status" in rows.columns else F.lit(False)
    return F.coalesce(known, F.lit(False))


def with_views(spark: SparkSession, scores: ScoreTables, places: Mapping[str, str]) -> ScoreTables:
    """The scores, and of each metric with measures of conflicts `<metric>_view`: what a response gives of their sides.

    Its score is conflict_coverage + one_sided / 2, which is 1 where both sides of every conflict are given, 0 where
    none is, and null without conflicts; failed where it is null because something was lost. Methods, section 6.
    """
    tables = {model: read_table(spark, place, "measures", MEASURES) for model, place in places.items()}
    views = [_read_views(rows, scores.scores, model) for model, rows in tables.items() if rows is not None]
    return replace(scores, scores=reduce(DataFrame.unionByName, views, scores.scores))


def view_of(metric: str) -> str:
    """What the view of a metric is called among metrics."""
    return f"{metric}_view"


def _read_views(measures: DataFrame, scores: DataFrame, model: str) -> DataFrame:
    """The columns of `ScoreTables.scores` for the views of a model's metrics."""
    weight = F.when(F.col("measure") == COVERAGE, 1.0).when(F.col("measure") == ONE_SIDED, 0.5)
    sides = measures.where(weight.isNotNull()).groupBy("metric", "sample_id")
    # Only what is not known has bounds and no value: undefined has neither
    lost = F.bool_or(F.col("value").isNull() & F.col("value_high").isNotNull())
    views = sides.agg(F.sum(F.col("value") * weight).alias("view"), lost.alias("lost"))
    own = scores.where(F.col("model") == model).join(views, on=["metric", "sample_id"], how="inner")
    name, failed = F.concat("metric", F.lit(view_of(""))), F.col("failed") | F.col("lost")
    return own.select("model", name.alias("metric"), "sample_id", F.col("view").alias("score"), failed.alias("failed"))


def read_source_shares(spark: SparkSession, places: Mapping[str, str]) -> DataFrame:
    """What of the statements of each source is covered: model, metric, sample_id, source strings, share double.

    From the tables of outputs of `untold score`, places: model -> folder. Under a metric with atoms (nli, qa) the kept
    atoms that a source states count, each as its statement does, before condensation made one of several; under others
    the statements. A source that states nothing has no row. Methods, section 6. Raises MetaEvaluationError where a
    folder has scores alone.
    """
    frames = [_read_shares(spark, place).withColumn("model", F.lit(model)) for model, place in places.items()]
    return reduce(DataFrame.unionByName, frames)


def _read_shares(spark: SparkSession, place: str) -> DataFrame:
    """metric, sample_id, source, share of one run: the mean of `covered` over what a source states, from 0 to 1.

    A metric is one with atoms where the table has any of it; the statements of others count themselves.
    """
    tables = {name: _read_run_table(spark, place, name) for name in ("atoms", "statements")}
    keys = ["sample_id", "metric", "statement_id"]
    kept = tables["atoms"].where("kept").select(*keys, "sources")
    judged = kept.join(tables["statements"].select(*keys, "covered"), on=keys, how="inner")
    with_atoms = tables["atoms"].select("metric").distinct()
    # Metrics with atoms are counted by these; their statements would be counted twice
    stated = tables["statements"].select(*keys, "sources", "covered").join(with_atoms, on="metric", how="left_anti")
    each = judged.unionByName(stated).select("metric", "sample_id", "covered", F.explode("sources").alias("source"))
    share = F.avg(F.col("covered").cast("double")).alias("share")
    return each.groupBy("metric", "sample_id", "source").agg(share)


def _read_run_table(spark: SparkSession, place: str, name: str) -> DataFrame:
    """The table of a run with the columns of the contract. Raises MetaEvaluationError where the folder has none."""
    found = find_table(place, name)
    if found is None:
        raise MetaEvaluationError(
            f"{place}: no table {name}, and the shares of each source are counted from it; give an output of untold "
            "score, or --conflictbank alone with scores of each context by itself"
        )
    return read_parquet(spark, found.spark, schema={"atoms": ATOMS, "statements": STATEMENTS}[name])


def table_files(place: str, name: str) -> list[str]:
    """The Parquet files of a table of an output (scores, statements), or of the folder itself.

    An output whose run has not ended is refused by `open_run`: its tables may be of an earlier start.
    """
    table = find_table(place, name)
    # A folder of that name without a manifest is somebody's own, and has no run to ask
    if table is not None and (StoragePath(place) / NAME).entry().kind == "file":
        open_run(place)
    files = inspect_files(find_files(place if table is None else str(table)))
    found = [StoragePath(file.path).spark for file in files if file.kind == "parquet"]
    if not found:
        raise MetaEvaluationError(f"{place}: no Parquet in it; give an output of untold score, or a folder of Parquet")
    return found


def _check_values(frame: DataFrame, metrics: Sequence[str] | None, where: str) -> tuple[tuple[str, ...], list[str]]:
    """The metrics to take, and what is wrong with the rows: a line each, none where all is well.

    metrics: those wanted, all that the table has where it is None. One job counts for all metrics.
    """
    outside = (F.col("score") < 0) | (F.col("score") > 1)
    counted = frame.groupBy("metric").agg(
        F.count_if(F.isnull("sample_id")).alias("unnamed"), F.count_if(outside).alias("outside")
    )
    rows = counted.collect()
    has = sorted(row["metric"] for row in rows if row["metric"] is not None)
    wanted = tuple(metrics or has)
    problems = [
        f"{where}: no scores of metric `{shorten(name)}`{aside(near_misses(name, has))}; "
        f"it has {', '.join(has) or 'none'}"
        for name in wanted
        if name not in has
    ]
    if any(row["metric"] is None for row in rows):
        problems.append(f"{where}: the column `metric` is null in some rows; name the metric of every score")
    for name, what in (("unnamed", "no sample_id"), ("outside", "a score that is not between 0 and 1")):
        if count := sum(row[name] for row in rows if row["metric"] in wanted):
            problems.append(f"{where}: {amount(count, 'row has', 'rows have')} {what}; correct them")
    if not has:
        problems.append(f"{where}: no rows in it")
    return wanted, problems


def _check_ids(
    spark: SparkSession,
    scores: DataFrame,
    metrics: Mapping[str, Sequence[str]],
    ids: DataFrame,
    places: Mapping[str, str],
    about: str,
) -> None:
    """Raises MetaEvaluationError where a metric of a model has not exactly one score a sample.

    ids: sample_id; metrics: by model. A lost id is shown beside the given one that differs by case and signs alone,
    where there is one.
    """
    owners = [(model, metric) for model, names in metrics.items() for metric in names]
    # A handful of rows beside perhaps millions of ids
    pairs = F.broadcast(spark.createDataFrame(owners, "model string, metric string"))
    wanted = ids.select("sample_id").crossJoin(pairs).withColumn("wanted", F.lit(True))
    given = scores.groupBy(*KEYS).agg(F.count("*").alias("given"))
    both = wanted.join(given, on=KEYS, how="full")
    faults = both.select(*KEYS, _fault().alias("fault")).where("fault IS NOT NULL")
    counted = faults.groupBy("model", "metric", "fault").agg(
        F.count("*").alias("count"), F.min("sample_id").alias("id")
    )
    rows = counted.orderBy("model", "metric", "fault").collect()
    # Only where both occur can one be the other, and the search is another two jobs
    near = _near_ids(faults) if {"lost", "unknown"} <= {row["fault"] for row in rows} else {}
    problems = []
    for row in rows:
        where = f"{row['model']} ({places[row['model']]}): {row['metric']}"
        lost, given_id = near.get((row["model"], row["metric"]), (row["id"], None))
        shown, close = (lost, [given_id] if given_id else []) if row["fault"] == "lost" else (row["id"], [])
        example = f"`{shorten(shown)}`{aside(close)}"
        told = amount(row["count"], *(words.format(about=about) for words in FAULTS[row["fault"]]))
        problems.append(f"{where}: {told}: {example}")
    raise_all(problems)


def _fault() -> Column:
    """What is wrong with the scores of an id, a key of `FAULTS`; null where there is exactly one."""
    several = F.when(F.col("given") > 1, "repeated")
    return F.when(F.isnull("given"), "lost").when(F.isnull("wanted"), "unknown").otherwise(several)


def _near_ids(faults: DataFrame) -> dict[tuple[str, str], tuple[str, str]]:
    """By (model, metric) a sample without a score, and the id of a score that differs from its by case and signs."""
    folded = F.regexp_replace(F.lower("sample_id"), r"[^\p{L}\p{N}]+", "").alias("folded")
    lost, unknown = (faults.where(F.col("fault") == name).select("*", folded) for name in ("lost", "unknown"))
    other = unknown.select("model", "metric", "folded", F.col("sample_id").alias("given_id"))
    found = lost.join(other, on=["model", "metric", "folded"], how="inner").groupBy("model", "metric")
    rows = found.agg(F.min(F.struct("sample_id", "given_id")).alias("pair")).collect()
    return {(row["model"], row["metric"]): (row["pair"]["sample_id"], row["pair"]["given_id"]) for row in rows}


def describe_repeats(points: DataFrame) -> str | None:
    """The line that says that questions have several answers, where they do; points: unit, cluster strings."""
    questions, units = points.agg(F.count_distinct("cluster"), F.count_distinct("unit")).collect()[0]
    if questions == units:
        return None
    return (
        f"{amount(units, 'row is', 'rows are')} of {amount(questions, 'question')}, and answers to one question are "
        "alike: intervals and tests over single rows are too narrow; --cluster resamples whole questions"
    )


def raise_all(problems: Sequence[str]) -> None:
    """Raises MetaEvaluationError with a line a problem, where there are any."""
    if problems:
        raise MetaEvaluationError("\n".join(problems))
