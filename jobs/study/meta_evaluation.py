"""The request of a meta-evaluation, its endpoints and their costs, and the base class of the studies."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import PurePath
from typing import Any, ClassVar
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from untold.jobs.inference.backends.backends import ClusterChecks, reached_places
from untold.jobs.inference.backends.process import ActorProcessError
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.call_settings import DEMO_LABEL, RunEndpoint
from untold.jobs.inference.stage.engines import open_engines
from untold.jobs.inference.stage.runner import StageRunner
from untold.jobs.inference.stage.start import RunRequest
from untold.jobs.inputs.samples import Samples
from untold.jobs.metrics import METRICS, stages_of
from untold.jobs.run import manifest
from untold.jobs.run.folders import Workspace
from untold.jobs.run.outcome import Ending
from untold.jobs.run.output import store_of
from untold.jobs.run.terminal import Display
from untold.jobs.settings.model import PromptSet, Settings
from untold.jobs.settings.templates import stages_that_differ, template_of
from untold.jobs.study.judgements import Judgements, MetaEvaluationError, Owner, Row, Source, read_judgements
from untold.jobs.study.rendering import number
from untold.udfs.llm.usage import shown_tokens
from untold.udfs.statistics.item_agreement import Subset

RUNS = "runs"
RESTATE = "restate_answer"
# Readers of tables ignore names with a leading underscore
WORK = "_asking"
# The columns of a sample that all studies but those of labels and claims need
NEEDS = ("query", "response")
CLAIMS, COVERAGE, NUGGETS, RUBRICS = "claims", "coverage", "nuggets", "rubrics"


@dataclass(frozen=True)
class StudyEndpoint:
    """An endpoint that runs the metrics: a model with its settings, and a prompt set if several are compared."""

    name: str
    settings: Settings
    embedded: bool
    prompt_set: PromptSet | None = None

    @property
    def model(self) -> str:
        """Its name in tables: that of the model, or `NAME (published prompts)` if prompt sets are compared."""
        return self.name if self.prompt_set is None else f"{self.name} ({self.prompt_set} prompts)"

    @property
    def folder(self) -> str:
        """The name of the folder of its run: letters, digits, `_`, `.` and `-`, without dots at both ends.

        `meta-llama/Llama-3.3-70B` becomes `meta-llama-Llama-3.3-70B`. `meta_evaluate` refuses two models with equal
        folders.
        """
        model = re.sub(r"[^\w.-]+", "-", self.name).strip(".") or "model"
        return model if self.prompt_set is None else f"{model}-{self.prompt_set}-prompts"


PromptPairs = Sequence[tuple[StudyEndpoint, StudyEndpoint]]
"""Endpoints of one model with two prompt sets."""


@dataclass(frozen=True)
class Sheet:
    """The annotation sheet to write: its number of samples, and the endpoint that restates answers, if there is one."""

    samples: int
    seed: int
    endpoint: StudyEndpoint | None


@dataclass(frozen=True, kw_only=True)
class MetaEvaluationRequest(RunRequest):
    """The arguments of `untold meta-evaluate`: `endpoints` to run, or existing `scores` of models.

    The runs and stages of the endpoints have the options of the request, such as `limit`, `draw` and `lock`.
    """

    dataset: str
    # None means all metrics of the scores
    metrics: tuple[str, ...] | None = None
    endpoints: tuple[StudyEndpoint, ...] = ()
    # The folder of each model
    scores: Mapping[str, str] | None = None
    # The model of `scores` that judges each metric, if every metric has its own
    judges: Mapping[str, str] | None = None
    sheet: Sheet | None = None
    # Resample and test whole questions (methods, section 7)
    cluster: bool = False
    # Options of a study of coverage: the labels that mean covered, and the references to draw
    covered: tuple[str, ...] | None = None
    subset: Subset | None = None

    @property
    def runs(self) -> dict[str, str]:
        """The folder of the scores of each model."""
        made = {one.model: f"{self.output}/{RUNS}/{one.folder}" for one in self.endpoints}
        return made if self.scores is None else dict(self.scores)

    @property
    def resampling(self) -> dict[str, Any]:
        """The options of intervals and tests: `clustered` and `seed`."""
        return {"clustered": self.cluster, "seed": self.settings.statistics.seed}

    @property
    def prompt_pairs(self) -> list[tuple[StudyEndpoint, StudyEndpoint]]:
        """The pairs of endpoints that have one model and different prompt sets."""
        return [(one, other) for one, other in combinations(self.endpoints, 2) if one.name == other.name]

    @property
    def layout(self) -> str | None:
        """The format of the input: a name of `FORMATS`, or None for plain samples."""
        return self.format if self.dataset in (COVERAGE, CLAIMS, NUGGETS, RUBRICS) else self.dataset

    @property
    def judged(self) -> dict[str, list[str]]:
        """The metrics of each model of `judges`."""
        found = defaultdict[str, list[str]](list)
        for metric, judge in (self.judges or {}).items():
            found[judge].append(metric)
        return found


@dataclass(frozen=True)
class MetaEvaluationOutcome:
    """The exit code, the report, and a message about the runs, if there is one."""

    exit_code: int
    report: str = ""
    message: str | None = None


@dataclass(frozen=True)
class StudyFindings:
    """The results of a study: rows by table, the report as Markdown, and fields of the manifest.

    `figure` are the rows of the figure, None for a study without a figure.
    """

    tables: Mapping[str, Sequence[Row]]
    report: str
    manifest: Mapping[str, Any]
    figure: Sequence[Row] | None = None


@dataclass(frozen=True)
class Study(ABC):
    """A comparison of judgements with the labels of one kind of units. `samples` are those of the input.

    The samples need the columns `needs`; `optional` are further columns that the study reads.
    """

    source: ClassVar[Source]
    needs: ClassVar[Sequence[str]] = NEEDS
    optional: ClassVar[Sequence[str]] = ()
    request: MetaEvaluationRequest
    samples: DataFrame
    steps: Workspace

    @classmethod
    def read_samples(cls, spark: SparkSession, request: MetaEvaluationRequest) -> Samples:
        """Read the input of the request as samples."""
        return request.read_columns(spark, cls.needs, cls.optional)

    @property
    @abstractmethod
    def units(self) -> Any:
        """The labelled units. Raises MetaEvaluationError for labels that the study cannot use."""

    def read(self) -> Judgements:
        """Return the judgements of the models. Raise MetaEvaluationError if they do not fit the labels."""
        request = self.request
        return read_judgements(self.source, request.runs, self.units, request.metrics, request.judged)

    @abstractmethod
    def evaluate(self, found: Judgements) -> StudyFindings:
        """Compare the judgements with the labels."""


@dataclass(frozen=True)
class StageCaller:
    """A runner of single stages at an endpoint. Keeps completions in the output of the request, or in its store."""

    request: MetaEvaluationRequest
    endpoint: StudyEndpoint
    display: Display

    def ask(
        self, stage: str, rows: DataFrame, carry: Sequence[str], columns: Sequence[str]
    ) -> tuple[DataFrame, Ending]:
        """Run a stage over rows. Return the columns `carry` of the rows and `columns` of the results, and the ending.

        If the run ends early, some rows have no completion; the next run uses the completions of the others.
        """
        request, settings, note = self.request, self.endpoint.settings, self.display.note
        workspace = Workspace(rows.sparkSession, f"{request.output}/{WORK}")
        workspace.remove()
        with (
            RunEndpoint(settings, embedded=self.endpoint.embedded, wait=request.wait, notify=note) as endpoint,
            open_engines(settings, self.display, uuid4().hex[:12], request) as engines,
        ):
            stages = {stage: bind_stage(stage, settings, embedded_model=endpoint.model_sha256)}
            store = store_of(settings, request.output)
            reach = ClusterChecks(rows.sparkSession, reached_places(request.output, workspace.folder, store), note=note)
            reach.check_executors()
            runner = StageRunner(engines, settings, stages, endpoint, workspace, store, reach=reach)
            try:
                asked = runner.ask(stage, rows, carry=tuple(carry))
                # The working folder of the rows is removed before they are read
                return asked.select(*carry, *columns).localCheckpoint(), runner.ending
            finally:
                workspace.remove()

    def restate(self, spark: SparkSession, pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """Run `restate_answer` on pairs of question and answer. Return these with statement and error_type.

        A failed pair has an error_type and no statement. Raises ActorProcessError if the run ends early. Methods,
        section 6.
        """
        given = spark.createDataFrame(list(pairs), "question string, answer string")
        rows, ending = self.ask(RESTATE, given, ("question", "answer"), ("statement", "error_type"))
        if ending.reason is not None:
            raise ActorProcessError(ending.explain(self.request.command))
        found: list[dict[str, Any]] = rows.toArrow().to_pylist()
        return found


def endpoint_of(settings: Settings, *, embedded: bool, prompt_set: PromptSet | None = None) -> StudyEndpoint:
    """Return the endpoint of some settings, named after its model, with the prompt set if several are compared."""
    local = settings.llm.local_model
    # The name of a local model is that of its file
    name = settings.llm.model or (PurePath(local).stem if local else DEMO_LABEL)
    if prompt_set is not None:
        settings = settings.model_copy(update={"prompt_set": prompt_set})
    return StudyEndpoint(name, settings, embedded, prompt_set)


@dataclass(frozen=True)
class Cost:
    """The calls, the tokens and the cost per sample of a metric; the cost is None without a known price."""

    calls: float
    tokens: float
    cost: float | None
    tokens_estimated: bool = False


COSTS = ("calls", "tokens", "cost")


def cost_cells(cost: Cost | None) -> dict[str, str]:
    """Return the cells of `COSTS`. A sample may cost a small part of a cent, so the cost has six decimals."""
    if cost is None:
        return dict.fromkeys(COSTS, "-")
    tokens = shown_tokens(cost.tokens, estimated=cost.tokens_estimated)
    return {"calls": f"{cost.calls:.2f}", "tokens": tokens, "cost": number(cost.cost, 6)}


def all_costs(request: MetaEvaluationRequest) -> dict[Owner, Cost]:
    """Return the cost per sample by model and metric, over all attempts; each metric counts a shared stage.

    The cost is the sum of the known costs, None if none is known. Existing scores have no costs.
    """
    costs = {}
    for endpoint, metric in product(request.endpoints, request.metrics or ()):
        run = manifest.read_manifest(request.runs[endpoint.model])
        assert run is not None
        stages, samples = METRICS[metric].stages(endpoint.settings), run["counts"]["samples"]
        usage = [row for start in run["starts"] for row in start["usage"] if row["stage"] in stages]
        known = [row["cost"] for row in usage if row["cost"] is not None]
        costs[endpoint.model, metric] = Cost(
            calls=sum(row["calls"] for row in usage) / samples,
            tokens=sum(row["prompt_tokens"] + row["completion_tokens"] for row in usage) / samples,
            cost=sum(known) / samples if known else None,
            tokens_estimated=any(row["tokens_estimated"] for row in usage),
        )
    return costs


def check_prompts(pairs: PromptPairs, metrics: Sequence[str]) -> None:
    """Raise MetaEvaluationError if all stages of the metrics have equal prompts under two prompt sets."""
    for one, other in pairs:
        stages = stages_that_differ() & set(stages_of(metrics, one.settings))
        if all(template_of(stage, one.settings) == template_of(stage, other.settings) for stage in stages):
            raise MetaEvaluationError(
                f"--prompt-set: {', '.join(metrics)} would send {one.name} equal prompts under both. They differ for "
                f"{', '.join(sorted(stages_that_differ()))}, unless prompts_dir or stages.<stage>.prompt_set is set"
            )
