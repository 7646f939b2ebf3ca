"""A study of coverage: labelled items, verdicts on them and baselines, to tables and a report; methods, section 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.run.output import Output
from untold.jobs.run.session import task_slots
from untold.jobs.run.terminal import amount
from untold.jobs.run.workspace import Workspace
from untold.jobs.settings.model import Settings
from untold.jobs.study import coverage_rows
from untold.jobs.study.agreement import read_rows
from untold.jobs.study.compared_methods import count_tiers, draw_items, kappas_of_models, read_misses
from untold.jobs.study.coverage_items import (
    ITEM,
    ItemVerdicts,
    check_items,
    human_coverage,
    judge_items,
    metric_coverage,
    read_items,
    read_verdicts,
    similarity_baselines,
)
from untold.jobs.study.coverage_report import IMPORTANCE, CoverageFindings, render
from untold.jobs.study.itemwise import annotator_rows, overlap_rows, weight_rows
from untold.jobs.study.meta_evaluation import StudyEndpoint
from untold.jobs.study.prompt_pairs import compare_items
from untold.jobs.study.report import Cost
from untold.jobs.study.run_tables import read_means
from untold.jobs.tables import COMPARISONS, COVERAGE, FALSE_NEGATIVES, META_EVALUATION, SUBSET, TIERS
from untold.udfs.retrieval.embedding import find_model
from untold.udfs.retrieval.local_models import LocalModelFileError, ModelFiles
from untold.udfs.statistics.tiers import Subset

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
            "one query are alike: intervals that take samples one by one are too narrow; --cluster takes whole queries"
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
