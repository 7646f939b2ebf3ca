"""Jobs that carry out a stage, as JSON, and spools, the shared folders of jobs. Imports no pyspark."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any

from untold.jobs.inference.store.compaction import is_segment
from untold.jobs.run.locks import lock_folder
from untold.udfs.errors import UserError
from untold.udfs.llm.calls import CallContext, CallSettings
from untold.udfs.llm.keys import Parameters, SchemaSupport, Stage
from untold.udfs.llm.limiter import Budget, Limits
from untold.udfs.llm.retrying import ASKED_AGAIN
from untold.udfs.llm.store_files import DamagedError, read_fields
from untold.udfs.llm.units import list_units
from untold.udfs.llm.usage import NOTHING_USED, Prices, Usage
from untold.udfs.redaction import without_secrets
from untold.udfs.storage import StoragePath


@dataclass(frozen=True)
class Job:
    """The requests of one stage as a job that another process or machine can carry out.

    `requests` is the folder or URI of the requests files, `directory` the stage's folder in the store, and `run` the id
    of the start, which the names of all files of the job contain.
    """

    requests: str
    directory: str
    run: str
    call: CallContext
    settings: CallSettings
    actors: int = 1

    @property
    def stage(self) -> Stage:
        """Return the stage of the call."""
        return self.call.stage


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of a job. `reason` is None after all requests, or a reason of `untold.jobs.run.outcome`.

    `error` belongs to the reasons `refused` and `broken`. `models` are the names in the responses. `lost` counts paid
    completions that could not be written. `finding` is the schema support of the endpoint, and `parameters` are the
    refused parameters. If they change the requests of the stage, the reason is `restructured`.
    """

    reason: str | None = None
    error: str | None = None
    usage: Usage = field(default_factory=Usage)
    models: tuple[str, ...] = ()
    lost: int = 0
    finding: SchemaSupport | None = None
    parameters: Parameters | None = None


def progress(stage: Stage, total: int, usage: Usage) -> dict[str, Any]:
    """Return the event of progress: the stage, the number of its requests, and the usage so far."""
    return {"event": "progress", "stage": stage.name, "total": total, "usage": asdict(usage)}


def note_left_out(event: Mapping[str, Any], told: set[str], note: Callable[[str], None]) -> None:
    """Note once per endpoint that it refuses the run while others respond."""
    for line in set(event.get("left_out", ())) - told:
        note(f"skipped while other endpoints answer: {line}")
        told.add(line)


def job_to_json(job: Job) -> dict[str, Any]:
    """Return the job as JSON values."""
    plain = asdict(job)
    plain["call"]["stage"] = {item.name: _plain(getattr(job.stage, item.name)) for item in fields(Stage)}
    return plain


def job_from_json(plain: Mapping[str, Any]) -> Job:
    """Return the job of the JSON values of `job_to_json`. Fields with a default may be missing.

    Raises TypeError or KeyError for an unknown field or a missing one.
    """
    call = dict(plain["call"])
    stage = dict(call["stage"])
    stage["variables"], stage["tools"] = tuple(stage["variables"]), tuple(stage.get("tools", ()))
    stage["mask"] = tuple(stage["mask"]) if stage.get("mask") else None
    context = CallContext(**{**call, "stage": Stage(**stage), "spent": Usage.of(call.get("spent", {}))})
    return Job(**{**plain, "call": context, "settings": _settings(plain["settings"])})


def _settings(plain: Mapping[str, Any]) -> CallSettings:
    """Return the settings from their JSON, with the settings of each endpoint."""
    parts: dict[str, Any] = {
        "limits": Limits(**plain.get("limits", {})),
        "budget": Budget(**plain.get("budget", {})),
        "prices": Prices(**plain.get("prices", {})),
        "endpoints": tuple(map(_settings, plain.get("endpoints", ()))),
    }
    return CallSettings(**{**plain, **parts})


def _plain(value: Any) -> Any:
    """Return mappings as dictionaries and tuples as lists. `asdict` cannot copy read-only mappings."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


JOBS = "jobs"
JOB = "job.json"
REQUESTS, COMPLETIONS = "requests", "completions"
USAGE = "usage-"
TAKEN = "taken.json"  # the files that the run has collected


class SpoolError(UserError):
    """An unusable spool. The message has the reason and the remedy."""


@dataclass(frozen=True)
class SpooledJob:
    """A job in a spool. Its requests never change after it is published."""

    place: StoragePath

    @property
    def name(self) -> str:
        """Return the name: `<stage>-<digest>-<store>-<part>-<run>`, with hexadecimal store and part."""
        return self.place.name

    @property
    def requests(self) -> str:
        """Return the folder of the requests files."""
        return str(self.place / REQUESTS)

    @property
    def completions(self) -> str:
        """Return the folder of the completions."""
        return str(self.place / COMPLETIONS)

    def pending(self) -> str:
        """Return the path of Parquet files with the ids of the requests that wait in the job."""
        return self.requests

    @property
    def is_open(self) -> bool:
        """Return True if the job has missing requests."""
        return (self.place / JOB).entry().kind == "file"

    def is_of(self, runs: Collection[str]) -> bool:
        """Return True if one of these runs wrote the job."""
        return any(self.name.endswith(f"-{run}") for run in runs)

    def count_requests(self) -> int:
        """Return the number of requests in the files."""
        return sum(list_units(self.requests).values())

    def publish(self, job: Job) -> None:
        """Publish the job after its requests are written. Raises SpoolError for settings with a secret.

        A worker must not run a command from a shared folder, so it uses the `llm.api_key_command` of its own settings.
        """
        each = [{"base_url": one.base_url, **_texts(one.headers), **_texts(one.query)} for one in job.settings.each]
        sent = {"each": each, "extra_body": job_to_json(job)["call"]["stage"]["extra_body"]}
        if without_secrets(sent) != sent:
            raise SpoolError(
                "llm.base_url, llm.extra_body, a header or a parameter contains a secret, which a spool must not "
                "contain. Set llm.api_key_env to the variable of the key, write a header as {env: NAME}, or run "
                "without a spool (llm.backend=process)"
            )
        endpoints = tuple(replace(one, api_key_command=None) for one in job.settings.endpoints)
        settings = replace(job.settings, api_key_command=None, endpoints=endpoints)
        content = job_to_json(replace(job, requests=REQUESTS, directory=COMPLETIONS, settings=settings))
        (self.place / JOB).write_bytes(json.dumps(content).encode())

    def read(self) -> Job:
        """Return the job with the paths of this machine. Raises SpoolError for an invalid job."""
        try:
            job = job_from_json(json.loads((self.place / JOB).read_bytes()))
        except (ValueError, TypeError, KeyError) as error:
            raise SpoolError(
                f"{self.place / JOB} cannot be read. Remove {self.place}, and start the run again that left it"
            ) from error
        return replace(job, requests=self.requests, directory=self.completions)

    def close(self) -> None:
        """Remove the job and its requests. Completions stay until a run collects them."""
        (self.place / JOB).remove()
        (self.place / REQUESTS).remove()

    def note_usage(self, worker: str, usage: Usage) -> None:
        """Write the usage of a worker so far, and replace its earlier note."""
        (self.place / f"{USAGE}{worker}.json").write_bytes(json.dumps(asdict(usage)).encode())

    def noted_usage(self) -> Usage:
        """Return the usage in the notes of workers that are not collected yet."""
        return _sum_of(self._notes())

    def _notes(self) -> list[StoragePath]:
        return [entry.place for entry in self.place.entries() if entry.name.startswith(USAGE)]

    def collect(self, folder: str) -> Usage:
        """Copy new completions to a stage's folder, and return their usage.

        The calls of a killed worker since its last note are unknown, but its completions count.
        """
        # The folder can have merged collected files, so its names do not identify them
        note = self.place / TAKEN
        known = set(json.loads(note.read_bytes())) if note.entry().kind == "file" else set()
        StoragePath(folder).make_folder()
        errors: list[str | None] = []
        for entry in StoragePath(self.completions).entries():
            if entry.name not in known and is_segment(entry.name):
                entry.place.copy_whole(StoragePath(folder) / entry.name)
                with suppress(DamagedError):
                    errors += [row.get("error_type") for row in read_fields(entry.place, "error_type")]
                known.add(entry.name)
        note.write_bytes(json.dumps(sorted(known)).encode())
        notes = self._notes()
        used = _sum_of(notes)
        for each in notes:
            each.remove()
        errors = [error for error in errors if error != ASKED_AGAIN]
        return replace(used, done=len(errors), failed=sum(error is not None for error in errors))

    @contextmanager
    def locked(
        self, run: str, *, wait: bool, notify: Callable[[str], None] = lambda _: None
    ) -> Iterator[Callable[[], bool]]:
        """Lock the job for one process. Yields a function that returns True if the lock is lost. Raises LockedError."""
        with lock_folder(str(self.place), run, wait=wait, notify=notify) as lock:
            yield lambda: lock.lost


@dataclass(frozen=True)
class Spool:
    """A folder of jobs."""

    path: str

    def jobs(self, prefix: str = "") -> list[SpooledJob]:
        """Return the jobs whose names begin with the prefix, sorted by name."""
        found = (StoragePath(self.path) / JOBS).entries()
        jobs = [SpooledJob(entry.place) for entry in found if entry.kind == "folder" and entry.name.startswith(prefix)]
        return sorted(jobs, key=lambda job: job.name)

    def job(self, name: str) -> SpooledJob:
        """Return the job of this name, which can be missing."""
        return SpooledJob(StoragePath(self.path) / JOBS / name)

    def prefix(self, stage: Stage, store: str) -> str:
        """Return the common prefix of all jobs of a stage and a store.

        A spool can serve several stores. A store is identified by its path relative to the spool, which is equal on all
        machines.
        """
        here, there = StoragePath(self.path).local, StoragePath(store).local
        place = os.path.relpath(there, here) if here is not None and there is not None else store
        return f"{stage.name}-{stage.digest}-{blake2b(place.encode(), digest_size=4).hexdigest()}-"


def open_spool(path: str) -> Spool:
    """Return the spool at a path. Raises SpoolError if the path is not a spool."""
    if (StoragePath(path) / JOBS).entry().kind != "folder":
        raise SpoolError(f"{path} is not a spool, because it has no folder {JOBS}. Use the path that the run printed")
    return Spool(path)


def _texts(sent: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers or parameters with a value in the settings."""
    return {name: str(value) for name, value in sent.items() if not isinstance(value, Mapping)}


def _sum_of(notes: Iterable[StoragePath]) -> Usage:
    return sum((Usage.of(json.loads(note.read_bytes())) for note in notes), NOTHING_USED)
