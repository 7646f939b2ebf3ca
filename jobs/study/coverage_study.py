"""Study coverage: labelled items, verdicts on them, baselines and methods, to tables and a report; methods, section 6.

A method is a metric under a model, or a baseline (LongRecall). References are rows here, but what comes to the driver
are counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from untold.jobs.metrics import METRICS
from untold.jobs.run.folders import Workspace
from untold.jobs.run.output import Output
from untold.jobs.run.session import spark_schema, task_slots
from untold.jobs.run.terminal import amount
from untold.jobs.settings.model import Settings
from untold.jobs.study import coverage_rows
from untold.jobs.study.agreement import compare_items
from untold.jobs.study.coverage_items import (
    ITEM,
    ItemVerdicts,
    check_items,
    human_coverage,
    judge_items,
    metric_coverage,
    read_items,
    read_rows,
    read_verdicts,
    similarity_baselines,
)
from untold.jobs.study.coverage_report import IMPORTANCE, CoverageFindings, render
from untold.jobs.study.coverage_rows import annotator_rows, overlap_rows, weight_rows
from untold.jobs.study.meta_evaluation import StudyEndpoint
from untold.jobs.study.report import Cost
from untold.jobs.study.study_inputs import read_means, read_table
from untold.jobs.tables import (
    CANDIDATES,
    CLAIMS,
    COMPARISONS,
    COVERAGE,
    FALSE_NEGATIVES,
    META_EVALUATION,
    SUBSET,
    TIERS,
)
from untold.udfs.recall.concluding import MISSES, miss_batches
from untold.udfs.retrieval.embedding import find_model
from untold.udfs.retrieval.local_models import LocalModelFileError, ModelFiles
from untold.udfs.statistics.item_agreement import fleiss_kappa
from untold.udfs.statistics.tiers import Subset, all_tiers, quotas_of, shortages, tier_of

CALLS = ["calling", "known"]


@dataclass(frozen=True)
class Tiers:
    """References by tier: how many of each, in the order of reports, and how many some method says nothing of.

    items: sample_id, reference_id, tier, a row a reference that all methods judged.
    """

    counts: Mapping[str, int]
    unknown: int
    items: DataFrame


def count_tiers(verdicts: ItemVerdicts, items: DataFrame) -> Tiers:
    """The tiers of all items. items: sample_id, reference_id; one that no method judged is unknown."""
    methods = [method.name for method in verdicts.methods]
    calls = _calls(verdicts, items)
    patterns = read_rows(calls.groupBy(*CALLS).agg(F.count("*").alias("count")))
    whole = [row for row in patterns if row["known"] == len(methods)]
    counts = dict.fromkeys(all_tiers(methods), 0)
    tiers = []
    for row in whole:
        tier = tier_of({name: name in row["calling"] for name in methods})
        counts[tier] += row["count"]
        tiers.append((row["calling"], row["known"], tier))
    named = F.broadcast(items.sparkSession.createDataFrame(tiers, "calling array<string>, known long, tier string"))
    unknown = sum(row["count"] for row in patterns) - sum(counts.values())
    return Tiers(counts, unknown, calls.join(named, on=CALLS, how="inner").select(*ITEM, "tier"))


def _calls(verdicts: ItemVerdicts, items: DataFrame) -> DataFrame:
    """sample_id, reference_id, calling array<string> (the methods that call it covered, sorted), known long."""
    names = F.create_map(
        *[F.lit(text) for one in verdicts.methods for text in (f"{one.metric}\n{one.model}", one.name)]
    )
    method = names[F.concat_ws("\n", "metric", "model")]
    given = verdicts.rows.where("covered IS NOT NULL").groupBy(*ITEM)
    says = given.agg(
        F.array_sort(F.collect_list(F.when(F.col("covered"), method))).alias("calling"),
        F.count("*").alias("known"),
    )
    none = F.array().cast("array<string>")
    joined = items.select(*ITEM).join(says, on=ITEM, how="left")
    return joined.select(
        *ITEM, F.coalesce("calling", none).alias("calling"), F.coalesce("known", F.lit(0)).alias("known")
    )


def draw_items(tiers: Tiers, subset: Subset, methods: Sequence[str], seed: int) -> tuple[DataFrame, list[str]]:
    """sample_id, reference_id, tier of the references of a subset, and lines on tiers that have fewer than wanted.

    Within a tier, those with the least hashes of seed, sample_id and reference_id.
    """
    counts = {name: tiers.counts.get(name, 0) for name in all_tiers(methods)}
    quotas = quotas_of(subset, counts, methods)
    key = F.sha2(F.concat_ws(":", F.lit(str(seed)), "sample_id", "reference_id"), 256)
    place = F.row_number().over(Window.partitionBy("tier").orderBy(key, *ITEM))
    wanted = F.broadcast(tiers.items.sparkSession.createDataFrame(list(quotas.items()), "tier string, quota long"))
    ranked = tiers.items.withColumn("place", place).join(wanted, on="tier", how="inner")
    short = shortages(subset, quotas, counts)
    notes = [
        f"{subset} is short: {have:,} references of {name}, {want:,} wanted" for name, (have, want) in short.items()
    ]
    return ranked.where(F.col("place") <= F.col("quota")).select(*ITEM, "tier"), notes


def read_misses(
    verdicts: ItemVerdicts, places: Mapping[str, str], samples: DataFrame, judged: DataFrame
) -> list[dict[str, Any]]:
    """The rows of the table `false_negatives`: method, fn, fn_candidate, fn_entailment.

    fn: items that people call covered, and the method does not. Of these fn_candidate are those of which nothing (with
    `covered_by`: none of that) was shown to a stage of entailment, fn_entailment the others; null for methods that show
    no candidates. samples: of `read_items`; judged: of `judge_items`; places: by model its output.
    """
    missed = verdicts.rows.join(judged.where("said").select(*ITEM), on=ITEM, how="inner").where("NOT covered")
    counted = {
        (row["metric"], row["model"]): row["count"] for row in missed.groupBy("metric", "model").count().collect()
    }
    split = _split_misses(verdicts, places, samples, missed)
    rows = []
    for one in verdicts.methods:
        parts = split.get(one.name)
        rows.append(
            {
                "method": one.name,
                "fn": counted.get((one.metric, one.model), 0),
                "fn_candidate": None if parts is None else parts.get(False, 0),
                "fn_entailment": None if parts is None else parts.get(True, 0),
            }
        )
    return rows


def _split_misses(
    verdicts: ItemVerdicts, places: Mapping[str, str], samples: DataFrame, missed: DataFrame
) -> dict[str, dict[bool, int]]:
    """By method with candidates: how many of its misses had something shown, and how many had not."""
    found, frames = {}, []
    covering = samples.select("sample_id", F.explode("items").alias("item")).select(
        "sample_id", F.col("item.id").alias("reference_id"), "item.covered_by"
    )
    for one in verdicts.methods:
        shown = _read_shown(samples, one.metric, places[one.model])
        if shown is None:
            continue
        found[one.name] = dict[bool, int]()
        own = missed.where((F.col("metric") == one.metric) & (F.col("model") == one.model)).select(*ITEM)
        both = own.join(shown, on=ITEM, how="left").join(covering, on=ITEM, how="left")
        frames.append(both.select(F.lit(one.name).alias("method"), "shown", "covered_by"))
    if frames:
        told = reduce(DataFrame.unionByName, frames).mapInArrow(miss_batches, spark_schema(MISSES))
        for row in told.groupBy("method", "was_shown").count().collect():
            found[row["method"]][row["was_shown"]] = row["count"]
    return found


def _read_shown(samples: DataFrame, metric: str, place: str) -> DataFrame | None:
    """sample_id, reference_id, shown array<string>: texts that a stage was shown for a reference; None without a table.

    An anchor's fact is shown as `anchor: text`, and either is its text here.
    """
    if metric not in METRICS or "candidates" not in METRICS[metric].tables:
        return None
    spark = samples.sparkSession
    tables = [
        read_table(spark, place, name, schema) for name, schema in (("candidates", CANDIDATES), ("claims", CLAIMS))
    ]
    statements = read_table(spark, place, "statements", None)
    if tables[0] is None or tables[1] is None or statements is None or "statement_id" not in statements.columns:
        return None
    candidates, claims = (frame.where(F.col("metric") == metric) for frame in tables if frame is not None)
    names = statements.where(F.col("metric") == metric).select("sample_id", "statement_id", "reference_id")
    texts = claims.select("sample_id", "claim_id", F.explode(_texts_of_claim()).alias("text"))
    pairs = candidates.select("sample_id", "statement_id", "claim_id").distinct()
    shown = pairs.join(names, on=["sample_id", "statement_id"], how="inner")
    told = shown.join(texts, on=["sample_id", "claim_id"], how="inner").groupBy(*ITEM)
    return told.agg(F.collect_set("text").alias("shown"))


def _texts_of_claim() -> Column:
    whole = F.concat_ws(": ", "anchor", "text")
    return F.array_distinct(F.array(F.col("text"), whole))


def kappas_of_models(verdicts: ItemVerdicts, judged: DataFrame) -> list[dict[str, Any]]:
    """For each metric of several models, Fleiss' kappa of these and of the two majorities: rows of `meta_evaluation`.

    Models are raters of the items that all of them judged; the majorities are theirs and that of the annotators, where
    both have one. n: items compared, excluded: the others.
    """
    counts: dict[str, int] = {}
    for names in verdicts.metrics.values():
        for metric in names:
            counts[metric] = counts.get(metric, 0) + 1
    several = {metric: count for metric, count in counts.items() if count > 1}
    if not several:
        return []
    given = verdicts.rows.where(F.col("metric").isin(*several)).groupBy("metric", *ITEM)
    votes = given.agg(F.count_if("covered").alias("yes"), F.count_if(~F.col("covered")).alias("no")).join(
        judged.select(*ITEM, "said"), on=ITEM, how="inner"
    )
    rows = read_rows(votes.groupBy("metric", "yes", "no", "said").agg(F.count("*").alias("count")))
    items = judged.count()
    return [row for metric, count in several.items() for row in _kappa_rows(metric, count, items, rows)]


def _kappa_rows(metric: str, models: int, items: int, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    own = [row for row in rows if row["metric"] == metric]
    raters = [(row["yes"], row["no"]) for row in own if row["yes"] + row["no"] == models for _ in range(row["count"])]
    majorities = [
        (row["said"] + (row["yes"] > row["no"]), (not row["said"]) + (row["yes"] < row["no"]))
        for row in own
        if row["said"] is not None and row["yes"] != row["no"]
        for _ in range(row["count"])
    ]
    return [
        {
            "metric": metric,
            "measure": name,
            "value": fleiss_kappa(table),
            "n": len(table),
            "excluded": items - len(table),
        }
        for name, table in (("fleiss_kappa_models", raters), ("fleiss_kappa_majorities", majorities))
    ]


# All that a study reads of a sample, beside its items
NEEDS = ("query", "response")


@dataclass(frozen=True)
class CoverageItems:
    """The items of all samples, read and checked: frames of `coverage_items`, and the labels that mean covered."""

    about: str
    samples: DataFrame  # of `read_items`
    judged: DataFrame  # of `judge_items`
    covered: tuple[str, ...]
    steps: Workspace

    def verdicts(
        self, places: Mapping[str, str], metrics: Sequence[str] | None, judges: Mapping[str, Sequence[str]]
    ) -> ItemVerdicts:
        """What the metrics of models say of these; arguments and errors as `read_verdicts`."""
        return read_verdicts(self.samples.sparkSession, places, metrics, self.judged, self.about, judges)


@dataclass(frozen=True)
class CoveragePlan:
    """What a study is to be of: by model the place of its output, and the references, all where there is no subset.

    `clustered`: intervals resample queries. `prompt_pairs`: judges of one model that are compared.
    """

    settings: Settings
    places: Mapping[str, str]
    subset: Subset | None = None
    clustered: bool = False
    prompt_pairs: Sequence[tuple[StudyEndpoint, StudyEndpoint]] = ()

    @property
    def seed(self) -> int:
        """Of every draw."""
        return self.settings.statistics.seed


def label_items(
    steps: Workspace,
    about: str,
    samples: DataFrame,
    covered: Sequence[str] | None,
    *,
    metrics: Sequence[str] | None = None,
    unlabelled: bool = False,
) -> CoverageItems:
    """The items of the samples of the input `about`. Raises MetaEvaluationError as `read_items` and `check_items`."""
    read = steps.keep(read_items(about, samples, metrics), "items")
    labels = check_items(about, read, covered, unlabelled=unlabelled)
    return CoverageItems(about, read, steps.keep(judge_items(read, labels), "judged-items"), labels, steps)


def write_study(
    output: Output,
    items: CoverageItems,
    verdicts: ItemVerdicts,
    plan: CoveragePlan,
    costs: Mapping[str, Mapping[str, Cost]],
) -> tuple[str, dict[str, Any]]:
    """Writes the tables of a study of coverage; gives the report and what the manifest says of the study.

    costs: of a sample, by model and metric, of those that were run.
    """
    model, missing = _token_model(plan.settings)
    methods = [method.name for method in verdicts.methods]
    tiers = count_tiers(verdicts, items.judged)
    notes = [missing] if missing else []
    if tiers.unknown:
        one, many = (f"{words} of no tier: some method says nothing of" for words in ("reference is", "references are"))
        notes.append(amount(tiers.unknown, f"{one} it", f"{many} them"))
    if plan.subset is not None:
        drawn, short = draw_items(tiers, plan.subset, methods, plan.seed)
        kept = items.steps.keep(drawn, "subset")
        output.write_rows("subset", read_rows(kept.orderBy(*ITEM)), SUBSET)
        items = replace(items, judged=items.judged.join(kept.select(*ITEM), on=ITEM, how="left_semi"))
        notes += short
    counted = [{"dataset": coverage_rows.DATASET, "tier": tier, "count": count} for tier, count in tiers.counts.items()]
    people = read_rows(human_coverage(items.samples, items.judged).orderBy("sample_id"))
    votes = read_rows(items.judged.groupBy("yes", "no").agg(F.count("*").alias("count")))
    judged = read_rows(metric_coverage(verdicts.rows, items.judged))
    baselines = read_rows(similarity_baselines(_spread(items.samples), model))
    owners = [(metric, name) for name, metrics in verdicts.metrics.items() for metric in metrics]
    labels = coverage_rows.count_labels(votes)
    samples = coverage_rows.sample_rows(people, judged, baselines, owners)
    more = _single_items(items, verdicts, plan)
    rows = coverage_rows.evaluation_rows(samples, labels, more, clustered=plan.clustered, seed=plan.seed)
    misses = read_misses(verdicts, plan.places, items.samples, items.judged)
    queries = len({row["cluster"] for row in people})
    if queries < len(people) and not plan.clustered:
        notes.append(
            f"{amount(len(people), 'sample is', 'samples are')} of {amount(queries, 'query', 'queries')}, and those of "
            "one query are alike: intervals over single samples are too narrow; --cluster resamples whole queries"
        )
    compared = compare_items(samples, plan.prompt_pairs, clustered=plan.clustered, seed=plan.seed)
    found = CoverageFindings(
        rows, labels, items.covered, counted, misses, _means(items, plan, verdicts), plan.subset, compared
    )
    report = render(found, costs, clustered=plan.clustered, notes=notes)
    output.write_rows("coverage", samples, COVERAGE)
    if compared:
        output.write_rows("comparisons", compared, COMPARISONS)
    output.write_rows("meta_evaluation", rows, META_EVALUATION)
    output.write_rows("tiers", counted, TIERS)
    output.write_rows("false_negatives", misses, FALSE_NEGATIVES)
    metrics = sorted({metric for metric, _ in owners})
    counts = {"items": labels.items, "labelled": labels.labelled, "ties": labels.ties}
    subset = None if plan.subset is None else str(plan.subset)
    return report, {"metrics": metrics, "labels": {"covered": list(items.covered), **counts}, "subset": subset}


def _single_items(items: CoverageItems, verdicts: ItemVerdicts, plan: CoveragePlan) -> list[dict[str, Any]]:
    """Rows of `meta_evaluation` of single items, and of the models together."""
    options: dict[str, Any] = {"clustered": plan.clustered, "seed": plan.seed}
    rows = kappas_of_models(verdicts, items.judged)
    if items.covered:
        rows += overlap_rows(items.samples, items.judged, **options) + annotator_rows(items.judged)
    return rows + weight_rows(verdicts, items.samples, items.judged, **options)


def _means(items: CoverageItems, plan: CoveragePlan, verdicts: ItemVerdicts) -> dict[str, dict[str, float | None]]:
    """By model the means of the measures of importance, where that is a metric of the study."""
    places = {name: plan.places[name] for name, metrics in verdicts.metrics.items() if IMPORTANCE in metrics}
    return read_means(items.samples.sparkSession, places, IMPORTANCE)


def _token_model(settings: Settings) -> tuple[ModelFiles | None, str | None]:
    """The model whose token states are compared, or None and why."""
    if settings.embeddings.base_url is not None:
        return None, "BERTScore is left out: embeddings.base_url gives vectors of texts, and none of their tokens"
    try:
        return find_model(settings.embeddings.model), None
    except LocalModelFileError as error:
        return None, f"BERTScore is left out: {error}"


def _spread(samples: DataFrame) -> DataFrame:
    """Over all cores: a baseline takes tens of milliseconds a sample, and one small file has thousands of them."""
    return samples.repartition(task_slots(samples.sparkSession), "sample_id")
