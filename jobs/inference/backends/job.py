"""A stage to run, as plain JSON, and the spool: a folder that machines share for such jobs. Imports no pyspark."""

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
    finding: SchemaSupport | None = None
    parameters: Parameters | None = None


def note_left_out(event: Mapping[str, Any], told: set[str], note: Callable[[str], None]) -> None:
    """Says once of each endpoint that refuses a run that the others answer alone."""
    for line in set(event.get("left_out", ())) - told:
        note(f"left out while others answer: {line}")
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
    context = CallContext(**{**call, "stage": Stage(**stage), "spent": Usage.of(call.get("spent", {}))})
    return Job(**{**plain, "call": context, "settings": _settings(plain["settings"])})


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


JOBS = "jobs"
JOB = "job.json"
REQUESTS, COMPLETIONS = "requests", "completions"
USAGE = "usage-"
TAKEN = "taken.json"  # the files of completions that the run has


class SpoolError(UserError):
    """A spool that cannot be used. The message says why and what to do."""


@dataclass(frozen=True)
class SpooledJob:
    """A job in a spool. Requests never change once it is open."""

    place: StoragePath

    @property
    def name(self) -> str:
        """`<stage>-<digest>-<store>-<part>-<run>`; store and part are hexadecimal."""
        return self.place.name

    @property
    def requests(self) -> str:
        """The folder of its requests files."""
        return str(self.place / REQUESTS)

    @property
    def completions(self) -> str:
        """The folder that its answers are written to."""
        return str(self.place / COMPLETIONS)

    @property
    def is_open(self) -> bool:
        """Whether something of it is still to be answered."""
        return (self.place / JOB).entry().kind == "file"

    def is_of(self, runs: Collection[str]) -> bool:
        """Whether one of these runs left it."""
        return any(self.name.endswith(f"-{run}") for run in runs)

    def count_requests(self) -> int:
        """How many requests its files hold."""
        return sum(list_units(self.requests).values())

    def publish(self, job: Job) -> None:
        """Opens the job, once its requests are written. Raises SpoolError for settings that hold a secret."""
        each = [{"base_url": one.base_url, **_texts(one.headers), **_texts(one.query)} for one in job.settings.each]
        sent = {"each": each, "extra_body": job_to_json(job)["call"]["stage"]["extra_body"]}
        if without_secrets(sent) != sent:
            raise SpoolError(
                "llm.base_url or llm.extra_body holds a secret, or a header or parameter does, and a spool holds none: "
                "name the variable of the key by llm.api_key_env, of a header by {env: NAME}, or answer without a "
                "spool (llm.backend=process)"
            )
        content = job_to_json(replace(job, requests=REQUESTS, directory=COMPLETIONS))
        (self.place / JOB).write_bytes(json.dumps(content).encode())

    def read(self) -> Job:
        """The job with its paths as this machine sees them. Raises SpoolError where it makes no sense."""
        try:
            job = job_from_json(json.loads((self.place / JOB).read_bytes()))
        except (ValueError, TypeError, KeyError) as error:
            raise SpoolError(
                f"{self.place / JOB} cannot be read: remove {self.place}, and start the run again that left it"
            ) from error
        return replace(job, requests=self.requests, directory=self.completions)

    def close(self) -> None:
        """Removes what is answered. Completions stay until a run takes them."""
        (self.place / JOB).remove()
        (self.place / REQUESTS).remove()

    def note_usage(self, worker: str, usage: Usage) -> None:
        """Writes what a worker has used so far, in the place of what it wrote before."""
        (self.place / f"{USAGE}{worker}.json").write_bytes(json.dumps(asdict(usage)).encode())

    def noted_usage(self) -> Usage:
        """What workers have noted and nobody has collected."""
        return _sum_of(self._notes())

    def _notes(self) -> list[StoragePath]:
        return [entry.place for entry in self.place.entries() if entry.name.startswith(USAGE)]

    def collect(self, folder: str) -> Usage:
        """Copies the completions to a stage's folder and gives what they took, each time what is new alone.

        What a worker that was killed had not noted yet of its calls is not known; its answers count all the same.
        """
        # The folder may have merged what was taken before, so that names in it do not say what that was
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
        """Holds the job, so that one process works on it; gives whether that was lost. Raises LockedError."""
        with lock_folder(str(self.place), run, wait=wait, notify=notify) as lock:
            yield lambda: lock.lost


@dataclass(frozen=True)
class Spool:
    """A folder of jobs."""

    path: str

    def jobs(self, prefix: str = "") -> list[SpooledJob]:
        """The jobs whose names begin like that, by name, open or not."""
        found = (StoragePath(self.path) / JOBS).entries()
        jobs = [SpooledJob(entry.place) for entry in found if entry.kind == "folder" and entry.name.startswith(prefix)]
        return sorted(jobs, key=lambda job: job.name)

    def job(self, name: str) -> SpooledJob:
        """A job of that name, which need not be there."""
        return SpooledJob(StoragePath(self.path) / JOBS / name)

    def prefix(self, stage: Stage, store: str) -> str:
        """What the names of all jobs of a stage and a store begin with.

        A spool may serve several stores. They are told apart by where they lie as seen from the spool, which stays the
        same on all machines.
        """
        here, there = StoragePath(self.path).local, StoragePath(store).local
        place = os.path.relpath(there, here) if here is not None and there is not None else store
        return f"{stage.name}-{stage.digest}-{blake2b(place.encode(), digest_size=4).hexdigest()}-"


def open_spool(path: str) -> Spool:
    """The spool at a path. Raises SpoolError where there is none."""
    if (StoragePath(path) / JOBS).entry().kind != "folder":
        raise SpoolError(f"{path} is not a spool: it has no folder {JOBS}; give the path that the run has printed")
    return Spool(path)


def _texts(sent: Mapping[str, Any]) -> dict[str, str]:
    """Those headers or parameters whose values stand in the settings."""
    return {name: str(value) for name, value in sent.items() if not isinstance(value, Mapping)}


def _sum_of(notes: Iterable[StoragePath]) -> Usage:
    return sum((Usage.of(json.loads(note.read_bytes())) for note in notes), NOTHING_USED)
