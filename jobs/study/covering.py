"""A study of coverage: labelled items, verdicts on them and floors, to tables and a report; methods, section 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.run.output import Output
from jobs.run.workspace import Workspace
from jobs.settings.model import Settings
from jobs.study import coverage
from jobs.study.agreement import read_rows
from jobs.study.coverage_report import render
from jobs.study.items import (
    Verdicts,
    check_items,
    floors_of,
    human_coverage,
    judge_items,
    metric_coverage,
    read_items,
    read_verdicts,
)
from jobs.study.report import Cost
from jobs.tables import COVERAGE, META_EVALUATION
from udfs.retrieval.embedding import find_model
from udfs.retrieval.local_models import LocalModelFileError, ModelFiles

# All that a study reads of a sample, beside its items
NEEDS = ("query", "response")


@dataclass(frozen=True)
class Items:
    """The items of all samples, read and checked: frames of `jobs.study.items`, and the labels that mean covered."""

    about: str
    samples: DataFrame  # of `read_items`
    judged: DataFrame  # of `judge_items`
    covered: tuple[str, ...]

    def verdicts(
        self, places: Mapping[str, str], metrics: Sequence[str] | None, judges: Mapping[str, Sequence[str]]
    ) -> Verdicts:
        """What the metrics of models say of these; arguments and errors as `jobs.study.items.read_verdicts`."""
        return read_verdicts(self.samples.sparkSession, places, metrics, self.judged, self.about, judges)


def label_items(steps: Workspace, about: str, samples: DataFrame, covered: Sequence[str] | None) -> Items:
    """The items of the samples of the input `about`. Raises MetaEvaluationError as `read_items` and `check_items`."""
    read = steps.keep(read_items(about, samples), "items")
    labels = check_items(about, read, covered)
    return Items(about, read, steps.keep(judge_items(read, labels), "judged-items"), labels)


def write_study(
    output: Output,
    items: Items,
    verdicts: Verdicts,
    settings: Settings,
    costs: Mapping[str, Mapping[str, Cost]],
    *,
    clustered: bool,
) -> tuple[str, dict[str, Any]]:
    """Writes the tables `coverage` and `meta_evaluation`; gives the report and what the manifest says of the study.

    costs: of a sample, by model and metric, of those that were run.
    """
    model, missing = _token_model(settings)
    votes = read_rows(items.judged.groupBy("yes", "no").agg(F.count("*").alias("count")))
    people = read_rows(human_coverage(items.samples, items.judged).orderBy("sample_id"))
    judged = read_rows(metric_coverage(verdicts.rows, items.judged))
    floors = read_rows(floors_of(_spread(items.samples), model))
    owners = [(metric, name) for name, metrics in verdicts.metrics.items() for metric in metrics]
    labels = coverage.count_labels(votes)
    samples = coverage.sample_rows(people, judged, floors, owners)
    rows = coverage.evaluation_rows(samples, labels, clustered=clustered, seed=settings.statistics.seed)
    notes = [missing] if missing else []
    queries = len({row["cluster"] for row in people})
    if queries < len(people) and not clustered:
        notes.append(
            f"{len(people):,} samples are of {queries:,} queries, and those of one query are alike: intervals that "
            "take samples one by one are too narrow; --cluster takes whole queries"
        )
    report = render(rows, labels, items.covered, costs, clustered=clustered, notes=notes)
    output.write_rows("coverage", samples, COVERAGE)
    output.write_rows("meta_evaluation", rows, META_EVALUATION)
    metrics = sorted({metric for metric, _ in owners})
    counts = {"items": labels.items, "labelled": labels.labelled, "ties": labels.ties}
    return report, {"metrics": metrics, "labels": {"covered": list(items.covered), **counts}}


def _token_model(settings: Settings) -> tuple[ModelFiles | None, str | None]:
    """The model whose token states are compared, or None and why."""
    if settings.embeddings.base_url is not None:
        return None, "BERTScore is left out: embeddings.base_url gives vectors of texts, and none of their tokens"
    try:
        return find_model(settings.embeddings.model), None
    except LocalModelFileError as error:
        return None, f"BERTScore is left out: {error}"


def _spread(samples: DataFrame) -> DataFrame:
    """Over all cores: a floor costs tens of milliseconds a sample, and thousands of samples lie in one small file."""
    return samples.repartition(samples.sparkSession.sparkContext.defaultParallelism, "sample_id")
