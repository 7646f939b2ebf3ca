"""What a meta-evaluation is asked to do, and what became of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import PurePath

from untold.jobs.asking.endpoint import DEMO_LABEL
from untold.jobs.inputs.request import RunRequest
from untold.jobs.settings.model import Prompts, Settings
from untold.jobs.study.claims_study import DATASET as CLAIMS
from untold.jobs.study.coverage_rows import DATASET as COVERAGE
from untold.jobs.study.nuggets_study import DATASET as NUGGETS
from untold.udfs.statistics.tiers import Subset

RUNS = "runs"


@dataclass(frozen=True)
class StudyEndpoint:
    """A judge to run the metrics with: a model, and whose prompts where several are compared; and its settings."""

    name: str
    settings: Settings
    embedded: bool
    prompts: Prompts | None = None

    @property
    def model(self) -> str:
        """Its name in tables: that of the model, `NAME (published prompts)` where prompts are compared."""
        return self.name if self.prompts is None else f"{self.name} ({self.prompts} prompts)"

    @property
    def folder(self) -> str:
        """The name of its run's folder: letters, digits, `_`, `.` and `-`, without dots at its ends.

        `meta-llama/Llama-3.3-70B` is `meta-llama-Llama-3.3-70B`. Two models may share one, which `meta_evaluate`
        refuses.
        """
        model = re.sub(r"[^\w.-]+", "-", self.name).strip(".") or "model"
        return model if self.prompts is None else f"{model}-{self.prompts}-prompts"


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


def endpoint_of(settings: Settings, *, embedded: bool, prompts: Prompts | None = None) -> StudyEndpoint:
    """The endpoint of some settings, named after its model; under `prompts` where these are compared."""
    local = settings.llm.local_model
    # A local model has no name of its own but its file's
    name = settings.llm.model or (PurePath(local).stem if local else DEMO_LABEL)
    if prompts is not None:
        settings = settings.model_copy(update={"prompts": prompts})
    return StudyEndpoint(name, settings, embedded, prompts)
