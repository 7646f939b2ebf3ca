"""The request of a meta-evaluation, its endpoints, their prompts compared, and its outcome."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import PurePath
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.call_settings import DEMO_LABEL
from untold.jobs.inputs.request import RunRequest
from untold.jobs.metrics import METRICS, stages_of
from untold.jobs.run import manifest
from untold.jobs.run.outcome import FAILED_TOO_MANY
from untold.jobs.run.terminal import Display, amount
from untold.jobs.settings.model import PromptSet, Settings
from untold.jobs.settings.templates import stages_that_differ, template_of
from untold.jobs.study.agreement import compare_metrics, count_differences, read_rows
from untold.jobs.study.claims_study import DATASET as CLAIMS
from untold.jobs.study.claims_study import LabelledClaims, StageAsker, verify_claims
from untold.jobs.study.coverage_rows import DATASET as COVERAGE
from untold.jobs.study.nuggets_study import DATASET as NUGGETS
from untold.jobs.study.report import Cost
from untold.jobs.study.study_inputs import MetaEvaluationError
from untold.udfs.statistics.permutation import adjust_p_values, clustered_permutation_test
from untold.udfs.statistics.tiers import Subset

RUNS = "runs"


@dataclass(frozen=True)
class StudyEndpoint:
    """A judge to run the metrics with: a model, and whose prompts where several are compared; and its settings."""

    name: str
    settings: Settings
    embedded: bool
    prompt_set: PromptSet | None = None

    @property
    def model(self) -> str:
        """Its name in tables: that of the model, `NAME (published prompts)` where prompts are compared."""
        return self.name if self.prompt_set is None else f"{self.name} ({self.prompt_set} prompts)"

    @property
    def folder(self) -> str:
        """The name of its run's folder: letters, digits, `_`, `.` and `-`, without dots at its ends.

        `meta-llama/Llama-3.3-70B` is `meta-llama-Llama-3.3-70B`. Two models may share one, which `meta_evaluate`
        refuses.
        """
        model = re.sub(r"[^\w.-]+", "-", self.name).strip(".") or "model"
        return model if self.prompt_set is None else f"{model}-{self.prompt_set}-prompts"


@dataclass(frozen=True)
class Sheet:
    """The annotation sheet to write: of so many samples, and the endpoint that restates answers, where there is one."""

    samples: int
    seed: int
    endpoint: StudyEndpoint | None


@dataclass(frozen=True, kw_only=True)
class MetaEvaluationRequest(RunRequest):
    """What `untold meta-evaluate` was asked to do: run `endpoints`, or take the `scores` of models.

    `limit`, `draw`, `retry_failed`, `wait` and `command` go on to the runs of the endpoints.
    """

    dataset: str
    metrics: tuple[str, ...] | None = None  # None: all that the scores have
    endpoints: tuple[StudyEndpoint, ...] = ()
    scores: Mapping[str, str] | None = None  # by model, a folder
    judges: Mapping[str, str] | None = None  # by metric the model of `scores` that judges it, where each has its own
    sheet: Sheet | None = None
    cluster: bool = False  # intervals and tests take all answers to a question together (methods, section 7)
    # Of a study of coverage alone
    covered: tuple[str, ...] | None = None  # labels that mean covered
    subset: Subset | None = None

    @property
    def runs(self) -> dict[str, str]:
        """By model, where its scores are."""
        made = {one.model: f"{self.output}/{RUNS}/{one.folder}" for one in self.endpoints}
        return made if self.scores is None else dict(self.scores)

    @property
    def prompt_pairs(self) -> list[tuple[StudyEndpoint, StudyEndpoint]]:
        """Any two judges of one model under different prompts."""
        return [(one, other) for one, other in combinations(self.endpoints, 2) if one.name == other.name]

    @property
    def layout(self) -> str | None:
        """How the input's files lie: a name of `FORMATS`, None where they are samples as they are."""
        return self.format if self.dataset in (COVERAGE, CLAIMS, NUGGETS) else self.dataset

    @property
    def judged(self) -> dict[str, list[str]]:
        """By model of `judges`, the metrics that it judges; it is read for these alone."""
        found = defaultdict[str, list[str]](list)
        for metric, judge in (self.judges or {}).items():
            found[judge].append(metric)
        return found


@dataclass(frozen=True)
class MetaEvaluationOutcome:
    """How it ended: exit code, the report, and the line that says why a run ended early, where one did."""

    exit_code: int
    report: str = ""
    message: str | None = None


def endpoint_of(settings: Settings, *, embedded: bool, prompt_set: PromptSet | None = None) -> StudyEndpoint:
    """The endpoint of some settings, named after its model; under `prompt_set` where these are compared."""
    local = settings.llm.local_model
    # A local model has no name of its own but its file's
    name = settings.llm.model or (PurePath(local).stem if local else DEMO_LABEL)
    if prompt_set is not None:
        settings = settings.model_copy(update={"prompt_set": prompt_set})
    return StudyEndpoint(name, settings, embedded, prompt_set)


def verify_endpoints(request: MetaEvaluationRequest, claims: LabelledClaims, display: Display) -> MetaEvaluationOutcome:
    """Has each endpoint verify the claims, until one ends early; too many failures do not stop the others."""
    code = 0
    for endpoint in request.endpoints:
        display.note(f"model {endpoint.model}")
        told = verify_claims(claims, asker(request, endpoint, display), request.runs[endpoint.model])
        if told.exit_code not in (0, FAILED_TOO_MANY):
            return MetaEvaluationOutcome(told.exit_code, message=told.message)
        if told.without_evidence:
            have = amount(told.without_evidence, "claim has", "claims have")
            display.note(f"{have} no evidence: not supported, unasked")
        code = max(code, told.exit_code)
    return MetaEvaluationOutcome(code)


def asker(request: MetaEvaluationRequest, endpoint: StudyEndpoint, display: Display) -> StageAsker:
    """What asks a stage of an endpoint, beside the runs."""
    return StageAsker(
        endpoint.settings,
        endpoint.embedded,
        request.output,
        display,
        wait=request.wait,
        retry_failed=request.retry_failed,
        command=request.command,
    )


def all_costs(request: MetaEvaluationRequest) -> dict[str, dict[str, Cost]]:
    """By model and metric what a sample cost; nothing where scores were given."""
    return {endpoint.model: _costs(request, endpoint) for endpoint in request.endpoints}


def _costs(request: MetaEvaluationRequest, endpoint: StudyEndpoint) -> dict[str, Cost]:
    """By metric what its stages cost a sample over all starts; a stage that metrics share counts for each of them."""
    run = manifest.read_manifest(request.runs[endpoint.model])
    assert run is not None
    assert request.metrics is not None
    usage = [row for start in run["starts"] for row in start["usage"]]
    costs = {}
    for metric in request.metrics:
        stages = METRICS[metric].stages(endpoint.settings)
        costs[metric] = _cost([row for row in usage if row["stage"] in stages], run["counts"]["samples"])
    return costs


def _cost(usage: Sequence[Mapping[str, Any]], samples: int) -> Cost:
    """Calls, tokens and cost a sample; a cost is the sum of what is known, None where nothing is."""
    calls = sum(row["calls"] for row in usage)
    tokens = sum(row["prompt_tokens"] + row["completion_tokens"] for row in usage)
    known = [row["cost"] for row in usage if row["cost"] is not None]
    estimated = any(row["tokens_estimated"] for row in usage)
    return Cost(calls / samples, tokens / samples, sum(known) / samples if known else None, estimated)


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
                f"--prompt-set: {', '.join(metrics)} would ask {one.name} the same under both; prompts differ for "
                f"{', '.join(sorted(stages_that_differ()))}, unless prompts_dir or stages.<stage>.prompt_set says which"
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
    return {"metric": metric, "model": one.name, "first": one.prompt_set, "second": other.prompt_set}


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
