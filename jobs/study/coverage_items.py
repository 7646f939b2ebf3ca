"""What a study of coverage stands on, as Spark has it: labelled items of samples, verdicts on them, baselines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from untold.jobs.metrics import METRICS
from untold.jobs.run.session import spark_schema
from untold.jobs.run.terminal import amount
from untold.jobs.study.study_inputs import SHOWN, MetaEvaluationError, raise_all, read_columns
from untold.udfs.errors import aside, near_misses, shorten
from untold.udfs.recall.concluding import ARECALL, BASELINES, ERECALL
from untold.udfs.retrieval.local_models import ModelFiles
from untold.udfs.samples.labelled import ITEMS, baseline_batches, baseline_names, baseline_schema, item_batches

# The columns of samples that may hold the items, the first that is there
SOURCES = ("aspects", "references")
# What kind of reference each is, where a data set says so
TYPES = "reference_types"
# What a label has to be, without case, for its item to count as covered where --covered names none
COVERED = ("covered", "true", "yes", "1")
VERDICTS = ("metric", "sample_id", "reference_id", "covered")
# The baselines of longrecall that ask no model
UNASKED = (ARECALL, ERECALL)
KEYS = ["model", "metric", "sample_id", "reference_id"]
ITEM = ["sample_id", "reference_id"]
# So many labels of the input are looked at: whoever has more kinds has no labels there, but texts
MOST_LABELS = 1000


@dataclass(frozen=True)
class Method:
    """What judges references: a metric under a model, or a baseline. `name` is what tables call it."""

    name: str
    metric: str
    model: str


@dataclass(frozen=True)
class ItemVerdicts:
    """What metrics of models say of items: model, metric, sample_id, reference_id, covered boolean, weight double.

    covered is null if unknown. `metrics` are those of each model, in the order asked for, or sorted, each followed by
    its baselines.
    """

    rows: DataFrame
    metrics: Mapping[str, tuple[str, ...]]

    @property
    def methods(self) -> list[Method]:
        """`<metric>:<model>`; a baseline that asks no model and is of one model alone needs no model in its name."""
        counts = Counter(metric for names in self.metrics.values() for metric in names)
        return [
            Method(metric if metric in UNASKED and counts[metric] == 1 else f"{metric}:{model}", metric, model)
            for model, names in self.metrics.items()
            for metric in names
        ]


def read_items(path: str, samples: DataFrame, metrics: Sequence[str] | None = None) -> DataFrame:
    """sample_id, cluster, response, types array<string>, items array<struct<id, text, labels, covered_by>>.

    A row a sample; labels and covered_by are array<string>. samples: sample_id, query, response, perhaps query_id, and
    a column of `SOURCES`; where all metrics read references, these come first. The cluster is the query_id, the query
    where there is none, else the sample. Raises MetaEvaluationError where no column holds items.
    """
    of_references = metrics and all(name in METRICS and "references" in METRICS[name].reads for name in metrics)
    sources = SOURCES[::-1] if of_references else SOURCES
    source = next((name for name in sources if name in samples.columns), None)
    if source is None:
        near = aside(near_misses(SOURCES[0], samples.columns))
        raise MetaEvaluationError(
            f"{path}: no column `{SOURCES[0]}`{near} or `{SOURCES[1]}`; give each sample what a response ought to cover"
        )
    is_text = isinstance(samples.schema[source].dataType, T.StringType)
    given = samples.select("sample_id", (F.col(source) if is_text else F.to_json(source)).alias("items"))
    read = given.mapInArrow(item_batches, spark_schema(ITEMS))
    names = [name for name in ("query_id", "query") if name in samples.columns]
    cluster = F.coalesce(*[F.col(name).cast("string") for name in names], F.col("sample_id"))
    texts = T.ArrayType(T.StringType())
    typed = TYPES in samples.columns and samples.schema[TYPES].dataType == texts
    types = F.col(TYPES) if typed else F.lit(None).cast(texts)
    named = samples.select("sample_id", cluster.alias("cluster"), "response", types.alias("types"))
    return named.join(read, on="sample_id", how="inner")


def check_items(
    path: str, read: DataFrame, covered: Sequence[str] | None, *, unlabelled: bool = False
) -> tuple[str, ...]:
    """The labels that mean covered: those given, else those of the input that are in `COVERED` but for case.

    Raises MetaEvaluationError for items that cannot be read, for a label given that no item has, and where no item has
    a label at all, unless they may be `unlabelled`, or their kinds are given.
    """
    broken = read.where(F.col("error").isNotNull())
    shown = broken.select("sample_id", "error").orderBy("sample_id").limit(SHOWN).collect()
    if shown:
        parts = ", ".join(f"`{shorten(row['sample_id'])}` ({row['error']})" for row in shown)
        raise MetaEvaluationError(
            f"{path}: {amount(broken.count(), 'sample has', 'samples have')} items that cannot be read: {parts}"
        )
    labels = read.select(F.explode("items").alias("item")).select(F.explode("item.labels").alias("label"))
    known = labels.where("label IS NOT NULL").groupBy("label").count().orderBy(F.desc("count"), "label")
    found = [row["label"] for row in known.limit(MOST_LABELS).collect()]
    if not found and not covered and (unlabelled or not read.where("types IS NOT NULL").isEmpty()):
        return ()
    if not found:
        raise MetaEvaluationError(f"{path}: no item has a label; give each {{id, text, labels}}, a label an annotator")
    if covered is None:
        return _default_labels(path, found)
    unknown = [name for name in covered if name not in found]
    if unknown:
        parts = ", ".join(f"`{shorten(name)}`{aside(near_misses(name, found))}" for name in unknown)
        raise MetaEvaluationError(f"{path}: no item is labelled {parts}; labels are {_listed(found)}")
    return tuple(covered)


def _default_labels(path: str, found: Sequence[str]) -> tuple[str, ...]:
    labels = tuple(name for name in found if name.strip().lower() in COVERED)
    if not labels:
        raise MetaEvaluationError(
            f"{path}: no label is one of {', '.join(COVERED)}; name those that mean covered with --covered: "
            f"labels are {_listed(found)}"
        )
    return labels


def _listed(found: Sequence[str]) -> str:
    parts = [f"`{shorten(name)}`" for name in found[:SHOWN]]
    return f"{', '.join(parts)}{', ...' if len(found) > SHOWN else ''}"


def judge_items(read: DataFrame, covered: Sequence[str]) -> DataFrame:
    """sample_id, reference_id, yes and no long (annotators who found it covered or not), said and agreed, type string.

    A row an item. `said` boolean is the majority, null where annotators are split evenly, or none said anything;
    `agreed` array<boolean>, whether each annotator is with it, null where one said nothing. read: of `read_items`.
    """
    item = read.select("sample_id", "types", F.posexplode("items").alias("place", "item"))
    given = F.array_compact("item.labels")
    yes = F.size(F.filter(given, lambda label: label.isin(*covered)))
    votes = item.select(
        "sample_id",
        F.col("item.id").alias("reference_id"),
        yes.cast("long").alias("yes"),
        (F.size(given) - yes).cast("long").alias("no"),
        F.transform("item.labels", lambda label: label.isin(*covered)).alias("labels"),
        # An index beyond the end is null
        F.get("types", F.col("place")).alias("type"),
    )
    said = votes.withColumn("said", F.when(F.col("yes") != F.col("no"), F.col("yes") > F.col("no")))
    agreed = F.transform("labels", lambda label: label == F.col("said"))
    return said.select("sample_id", "reference_id", "yes", "no", "said", agreed.alias("agreed"), "type")


def read_verdicts(
    spark: SparkSession,
    places: Mapping[str, str],
    metrics: Sequence[str] | None,
    items: DataFrame,
    about: str,
    judged: Mapping[str, Sequence[str]],
) -> ItemVerdicts:
    """The table `statements` of each model, from an output of `untold score` or a bare folder of Parquet.

    Arguments and errors as `jobs.study.study_inputs.read_score_tables`; items: of `judge_items`. Rows without a
    reference_id are of no item and are passed over. A sample that has none is not judged: its metric failed, and
    nothing says more. What baselines say beside a metric comes with it; a baseline that asks no model and says the
    same under all of them is taken once, of the first.
    """
    frames, found, problems = [], {}, []
    for model, place in places.items():
        frame = _read(spark, model, place)
        pairs = [(row["owner"], row["metric"]) for row in frame.select("owner", "metric").distinct().collect()]
        has = sorted({metric for _, metric in pairs if metric is not None})
        # A judge of some metrics is read for these alone
        wanted = tuple(judged.get(model, metrics or sorted({owner for owner, _ in pairs if owner is not None})))
        problems += [
            f"{model} ({place}): no statements with a reference_id of metric `{shorten(name)}`"
            f"{aside(near_misses(name, has))}; it has {', '.join(has) or 'none'}"
            for name in wanted or ("any",)
            if name not in has
        ]
        beside = [metric for metric in BASELINES if any((owner, metric) in pairs for owner in wanted)]
        found[model] = tuple(dict.fromkeys((*wanted, *beside)))
        frames.append(frame.where(F.col("metric").isin(*found[model])).drop("owner"))
    raise_all(problems)
    rows = reduce(DataFrame.unionByName, frames)
    _check_ids(rows, items, about)
    return _once(rows, found)


def _once(rows: DataFrame, found: Mapping[str, tuple[str, ...]]) -> ItemVerdicts:
    """Verdicts without what `UNASKED` baselines say again under a further model."""
    counts = Counter(metric for names in found.values() for metric in names)
    several = [name for name in UNASKED if counts[name] > 1]
    if not several:
        return ItemVerdicts(rows, found)
    given = rows.where(F.col("metric").isin(*several)).groupBy("metric", *ITEM)
    says = given.agg(F.count("covered").alias("given"), (F.min("covered") == F.max("covered")).alias("alike"))
    differ = ~F.coalesce("alike", F.lit(False))
    counted = says.groupBy("metric").agg(F.max("given").alias("most"), F.min("given").alias("least"), F.max(differ))
    same = [
        row["metric"]
        for row in counted.collect()
        if row["most"] == row["least"] == counts[row["metric"]] and not row[3]
    ]
    first = {name: next(model for model, names in found.items() if name in names) for name in same}
    kept = {model: tuple(one for one in names if first.get(one, model) == model) for model, names in found.items()}
    for name, model in first.items():
        rows = rows.where((F.col("metric") != name) | (F.col("model") == model))
    return ItemVerdicts(rows, kept)


def _read(spark: SparkSession, model: str, place: str) -> DataFrame:
    """The columns of `ItemVerdicts.rows`, and owner: the metric whose row it is, which for a baseline is another.

    Raises MetaEvaluationError for unreadable files, missing columns and verdicts that are no booleans.
    """
    where = f"{model} ({place})"
    rows = read_columns(spark, where, place, "statements", VERDICTS)
    baselines = [name for name in BASELINES if name in rows.columns]
    for name in ("covered", *baselines):
        if not isinstance(rows.schema[name].dataType, T.BooleanType):
            kind = rows.schema[name].dataType.simpleString()
            raise MetaEvaluationError(
                f"{where}: the column `{name}` is {kind}; give true, false, or null where unknown"
            )
    given = rows.where("reference_id IS NOT NULL")
    names = [F.col(name).cast("string").alias(name) for name in ITEM]
    weight = (F.col("weight") if "weight" in rows.columns else F.lit(None)).cast("double").alias("weight")
    owner = F.col("metric").cast("string").alias("owner")

    def said(metric: Column, name: str) -> DataFrame:
        return given.select(
            F.lit(model).alias("model"), owner, metric.alias("metric"), *names, F.col(name).alias("covered"), weight
        )

    others = [said(F.lit(name), name).where("covered IS NOT NULL") for name in baselines]
    return reduce(DataFrame.unionByName, others, said(owner, "covered"))


def _check_ids(rows: DataFrame, items: DataFrame, about: str) -> None:
    """Raises MetaEvaluationError for verdicts on what is no item of the input, and for two on one."""
    given = rows.groupBy(*KEYS).agg(F.count("*").alias("given"))
    known = items.select("sample_id", "reference_id", F.lit(True).alias("known"))
    both = given.join(known, on=["sample_id", "reference_id"], how="left")
    fault = F.when(F.col("known").isNull(), "unknown").when(F.col("given") > 1, "repeated")
    faults = both.select(*KEYS, fault.alias("fault")).where("fault IS NOT NULL").groupBy("model", "metric", "fault")
    named = F.min(F.struct("sample_id", "reference_id")).alias("first")
    shown = faults.agg(F.count("*").alias("count"), named).orderBy("model", "metric", "fault").collect()
    words = {
        "unknown": (f"statement is of no item of {about}", f"statements are of no item of {about}"),
        "repeated": (f"item of {about} has several statements", f"items of {about} have several statements"),
    }
    raise_all(
        [
            f"{row['model']}: {row['metric']}: {amount(row['count'], *words[row['fault']])}: reference_id "
            f"`{shorten(row['first']['reference_id'])}` of sample `{shorten(row['first']['sample_id'])}`"
            for row in shown
        ]
    )


def human_coverage(read: DataFrame, items: DataFrame) -> DataFrame:
    """sample_id, cluster, labelled and ties long, human double: covered of the labelled; null where none is labelled.

    read: of `read_items`; items: of `judge_items`. Ties have labels and no majority.
    """
    counted = items.groupBy("sample_id").agg(
        F.count("said").alias("labelled"),
        F.count_if(F.isnull("said") & (F.col("yes") > 0)).alias("ties"),
        F.avg(F.col("said").cast("double")).alias("human"),
    )
    joined = read.select("sample_id", "cluster").join(counted, on="sample_id", how="left")
    return joined.fillna(0, ["labelled", "ties"]).select("sample_id", "cluster", "labelled", "ties", "human")


def metric_coverage(verdicts: DataFrame, items: DataFrame) -> DataFrame:
    """model, metric, sample_id, value double, then long: hits, wrong, missed, rightly_left, judged.

    `value` is the metric's coverage: covered of all items that it judged, labelled or not. hits to rightly_left count
    labelled items by what metric and people say of them (both, the metric alone, people alone, neither); `judged` is
    their sum. A row a sample that the metric judged.
    """
    both = verdicts.join(
        items.select("sample_id", "reference_id", "said"), on=["sample_id", "reference_id"], how="inner"
    )
    metric, people = F.col("covered"), F.col("said")
    return both.groupBy("model", "metric", "sample_id").agg(
        F.avg(metric.cast("double")).alias("value"),
        F.count_if(metric & people).alias("true_positives"),
        F.count_if(metric & ~people).alias("false_positives"),
        F.count_if(~metric & people).alias("false_negatives"),
        F.count_if(~metric & ~people).alias("true_negatives"),
        F.count_if(metric.isNotNull() & people.isNotNull()).alias("judged"),
    )


def similarity_baselines(read: DataFrame, model: ModelFiles | None) -> DataFrame:
    """sample_id, then a double a baseline: response against the texts of all its items, joined by newlines.

    read: of `read_items`. Null where there is no response, or there are no items. BERTScore needs a local model.
    """
    reference = F.concat_ws("\n", F.transform("items", _text))
    texts = read.where(F.size("items") > 0).select("sample_id", "response", reference.alias("reference"))
    fields = spark_schema(baseline_schema(baseline_names(model)))
    return texts.mapInArrow(partial(baseline_batches, model=model), fields)


def _text(item: Column) -> Column:
    return item["text"]


def read_rows(counted: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame."""
    rows: list[dict[str, Any]] = counted.toArrow().to_pylist()
    return rows
