"""A stage to answer, as plain JSON between the processes. Imports no pyspark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from untold.udfs.llm.calls import CallSettings
from untold.udfs.llm.keys import Finding, Parameters, Stage
from untold.udfs.llm.limiter import Budget, Limits
from untold.udfs.llm.usage import Prices, Usage


@dataclass(frozen=True)
class Job:
    """One stage to answer: where its requests and its completions are, and how to ask.

    `requests`, `directory`: a folder or URI of requests files, and the stage's folder in the store. `run` is the id of
    the start, in the names of all files that it writes. `spent` is what this start spent on earlier stages, against its
    budget; `answered_before`, whether the endpoint ever answered this run, so that a 403 or 404 is a row's and not the
    run's. `tries_schema`: whether the first answer is to say what the endpoint makes of a schema; `may_drop_schema`:
    whether a refusal of it ends the job, to be asked without one; `may_adapt`: whether a refused parameter does.
    """

    requests: str
    directory: str
    run: str
    stage: Stage
    settings: CallSettings
    actors: int = 1
    spent: Usage = field(default_factory=Usage)
    answered_before: bool = False
    tries_schema: bool = False
    may_drop_schema: bool = False
    may_adapt: bool = False


@dataclass(frozen=True)
class Outcome:
    """How an answering ended: `reason` is None where all was answered, else a reason of `untold.jobs.run.outcome`.

    `error`: of `refused` and `broken`. `models`: the names that answered. `lost`: answers that were paid for and could
    not be written. `finding`: what the endpoint makes of a schema; where that changes how the stage is asked, the
    reason is `restructured`. `parameters`: those that the endpoint refuses, likewise.
    """

    reason: str | None = None
    error: str | None = None
    usage: Usage = field(default_factory=Usage)
    models: tuple[str, ...] = ()
    lost: int = 0
    finding: Finding | None = None
    parameters: Parameters | None = None


def tell_left_out(event: Mapping[str, Any], told: set[str], note: Callable[[str], None]) -> None:
    """Says once of each endpoint that refuses a run that the others answer alone."""
    for line in set(event.get("left_out", ())) - told:
        note(f"left out while others answer: {line}")
        told.add(line)


def job_to_json(job: Job) -> dict[str, Any]:
    """A job as plain JSON values."""
    plain = asdict(job)
    plain["stage"] = {item.name: _plain(getattr(job.stage, item.name)) for item in fields(Stage)}
    return plain


def job_from_json(plain: Mapping[str, Any]) -> Job:
    """The job of `job_to_json`, of which `actors`, `spent` and what follows them may be left out.

    Raises TypeError or KeyError for a field that is not known or missing.
    """
    stage = dict(plain["stage"])
    stage["variables"], stage["tools"] = tuple(stage["variables"]), tuple(stage.get("tools", ()))
    rest = {**plain, "stage": Stage(**stage), "settings": _settings(plain["settings"])}
    return Job(**{**rest, "spent": Usage.of(plain.get("spent", {}))})


def _settings(plain: Mapping[str, Any]) -> CallSettings:
    """The settings of their JSON, with those of each endpoint."""
    parts: dict[str, Any] = {
        "limits": Limits(**plain.get("limits", {})),
        "budget": Budget(**plain.get("budget", {})),
        "prices": Prices(**plain.get("prices", {})),
        "endpoints": tuple(map(_settings, plain.get("endpoints", ()))),
    }
    return CallSettings(**{**plain, **parts})


def _plain(value: Any) -> Any:
    """Mappings as dictionaries, tuples as lists: a stage's mappings are read-only, which `asdict` cannot copy."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
