"""Two prompts of one model compared on the same samples: which of them agrees more with people; methods, 6 and 7."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.metrics import stages_of
from untold.jobs.settings.templates import stages_that_differ, template_of
from untold.jobs.study.agreement import compare_metrics, count_differences, read_rows
from untold.jobs.study.meta_evaluation import StudyEndpoint
from untold.jobs.study.study_inputs import MetaEvaluationError
from untold.udfs.statistics.permutation import adjust_p_values, clustered_permutation_test

Pairs = Sequence[tuple[StudyEndpoint, StudyEndpoint]]


def compare_labels(
    points: DataFrame, pairs: Pairs, dataset: str, scale: int, *, clustered: bool, seed: int
) -> list[dict[str, Any]]:
    """The rows of the table `comparisons` for judges of one model: tests of LMR, a family of their own.

    points: as `untold.jobs.study.label_points` describes them.
    """
    if not pairs:
        return []
    judges = list(dict.fromkeys(one.model for pair in pairs for one in pair))
    # A test of two judges under a metric is that of two metrics of a judge, with their names exchanged
    sides = [F.col("metric").alias("model"), F.col("model").alias("metric")]
    turned = points.select(*sides, "convention", "measure", "unit", "cluster", "points")
    compared = {(one.model, other.model): (one, other) for one, other in pairs}
    differences = read_rows(count_differences(turned, judges, clustered=clustered))
    counted = [row for row in differences if (row["first"], row["second"]) in compared]
    rows = compare_metrics(counted, dataset, scale, seed=seed)
    return [row | _names(row["model"], *compared[row["first"], row["second"]]) for row in rows]


def check_prompts(pairs: Pairs, metrics: Sequence[str]) -> None:
    """Raises MetaEvaluationError for judges that would be asked the same by all stages of the metrics."""
    for one, other in pairs:
        stages = stages_that_differ() & set(stages_of(metrics, one.settings))
        if all(template_of(stage, one.settings) == template_of(stage, other.settings) for stage in stages):
            raise MetaEvaluationError(
                f"--prompts: {', '.join(metrics)} would ask {one.name} the same under both; prompts differ for "
                f"{', '.join(sorted(stages_that_differ()))}, unless prompts_dir or stages.<stage>.prompts says which"
            )


def compare_items(
    rows: Iterable[Mapping[str, Any]], pairs: Pairs, *, clustered: bool, seed: int
) -> list[dict[str, Any]]:
    """The rows of the table `comparisons` for judges of one model: tests of accuracy over labelled items.

    rows: of the table `coverage`. Items of one sample, or with `clustered` of one query, flip together. A sample counts
    where both judges have judged as many of its items.
    """
    given: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for row in rows:
        if row["judged"]:
            given[row["metric"], row["model"]][row["sample_id"]] = row
    tests = []
    for metric in dict.fromkeys(metric for metric, _ in given):
        for one, other in pairs:
            sums, sizes = _differences(given[metric, one.model], given[metric, other.model], clustered)
            test = clustered_permutation_test(sums, sizes, seed=seed)
            found = {"dataset": "coverage", "difference": test.difference, "p_value": test.p_value, "n": test.n}
            tests.append(found | {"convention": None} | _names(metric, one, other))
    adjusted = adjust_p_values([test["p_value"] for test in tests])
    return [test | {"p_adjusted": value} for test, value in zip(tests, adjusted, strict=True)]


def _names(metric: str, one: StudyEndpoint, other: StudyEndpoint) -> dict[str, Any]:
    return {"metric": metric, "model": one.name, "first": one.prompts, "second": other.prompts}


def _differences(
    one: Mapping[str, Mapping[str, Any]], other: Mapping[str, Mapping[str, Any]], clustered: bool
) -> tuple[list[int], list[int]]:
    """By sample or query: by how many items more the first agrees with people, and of how many items."""
    sums: dict[str, int] = defaultdict(int)
    sizes: dict[str, int] = defaultdict(int)
    for sample in sorted(one.keys() & other.keys()):
        first, second = one[sample], other[sample]
        if first["judged"] == second["judged"]:
            unit = first["query_id"] if clustered else sample
            sums[unit] += _agreeing(first) - _agreeing(second)
            sizes[unit] += first["judged"]
    return list(sums.values()), list(sizes.values())


def _agreeing(row: Mapping[str, Any]) -> int:
    return int(row["true_positives"] + row["true_negatives"])
