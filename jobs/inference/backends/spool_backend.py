"""Carry out requests by a spool or by a Ray job: write the requests, wait, and collect the completions."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from untold.jobs.inference.backends.backends import Unanswered, shown
from untold.jobs.inference.backends.job import Outcome
from untold.jobs.inference.backends.process import AnsweringError
from untold.jobs.inference.backends.spool import Spool, SpooledJob
from untold.jobs.inference.stage.call_settings import RunEndpoint
from untold.jobs.inference.stage.engines import Engines
from untold.jobs.inference.store.store import StageStore
from untold.jobs.run.locks import LockedError
from untold.jobs.run.outcome import EXIT_CODES
from untold.jobs.run.session import read_parquet
from untold.jobs.settings.model import Settings
from untold.udfs.errors import require
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.usage import NOTHING_USED, Usage
from untold.udfs.redaction import redact
from untold.udfs.storage import Place

# Of what tells the jobs of one stage and start apart: there are a few of them
JOB_CHARACTERS = 8


@dataclass
class SpoolAnswerer:
    """Leaves requests in the spool of a store. `runs`: earlier starts that this one goes on with."""

    engines: Engines
    settings: Settings
    endpoint: RunEndpoint
    store: str
    runs: Collection[str] = ()

    @property
    def spool(self) -> Spool:
        """The folder of `llm.spool`, else one in the store."""
        path = self.settings.llm.spool
        return Spool(Place(path).spark if path else f"{self.store}/spool")

    @property
    def is_used(self) -> bool:
        """Whether this start leaves requests in the spool."""
        return self.settings.llm.answering != "process"

    def prepare(self, stage: Stage) -> None:
        """There is nothing to start."""

    def answer(self, unanswered: Unanswered) -> Outcome:
        """Adds a job of the requests that no other job of the stage has."""
        spool, stage, spark = self.spool, unanswered.stage, unanswered.rows.sparkSession
        prefix = spool.prefix(stage, self.store)
        if pending := self._pending(prefix):
            known = read_parquet(spark, *pending).select("request_id")
            unanswered = replace(unanswered, rows=unanswered.rows.join(known, on="request_id", how="left_anti"))
        job = spool.job(f"{prefix}{uuid4().hex[:JOB_CHARACTERS]}-{self.engines.run}")
        unanswered.write(self.settings, job.requests)
        if job.count_requests():
            base_url = self.endpoint.base_url(stage.api)
            places = {"requests": job.requests, "directory": job.completions, "run": self.engines.run}
            job.publish(unanswered.job(self.settings, base_url, **places, **self._more(unanswered)))
        else:
            job.place.remove()
        return Outcome("spooled", spool.path)

    def _pending(self, prefix: str) -> list[str]:
        """Folders or files with the ids of the requests that other jobs have."""
        return [job.requests for job in self.spool.jobs(prefix) if job.is_open]

    def _more(self, unanswered: Unanswered) -> dict[str, Any]:
        """Further fields of a job. A worker has a budget of its own, whatever this start spent."""
        return {}

    def collect(self, stage: Stage, store: StageStore) -> Usage:
        """Takes what workers have answered of a stage into the store, and gives what that took.

        Jobs that a worker is at are left to it. A start that answers by itself takes its own jobs back first, so that
        nothing is asked twice. Raises LockedError where a worker is at one of these.
        """
        jobs = self.spool.jobs(self.spool.prefix(stage, self.store))
        used = NOTHING_USED
        if jobs:
            with store.locked():
                for job in jobs:
                    used += self._collect(job, store.folder)
                store.compact()
        return used

    def _collect(self, job: SpooledJob, folder: str) -> Usage:
        take_back = job.is_of(self.runs) and not self.is_used
        try:
            with self.engines.interrupts.waiting():
                return self._take(job, folder, wait=take_back and self.engines.wait, take_back=take_back)
        except LockedError:
            if take_back:
                raise
            return NOTHING_USED

    def _take(self, job: SpooledJob, folder: str, *, wait: bool = False, take_back: bool = False) -> Usage:
        """Takes the answers of a job that no worker is at. Raises LockedError."""
        with job.locked(self.engines.run, wait=wait, notify=self.engines.display.note):
            used = job.collect(folder)
            if take_back or not job.is_open:
                job.place.remove()
            return used


LOOK_SECONDS = 1.0
START_SECONDS = 60.0
# What a worker that is stopped needs for its last requests, its last write and the end of its actors
STOP_SECONDS = 30
REASONS = {EXIT_CODES[reason]: reason for reason in ("budget", "outage", "interrupted")}


@dataclass
class RayJobAnswerer(SpoolAnswerer):
    """Has the requests of a spool answered by `untold answer` on the cluster of `ray.address`, where it waits for that.

    The job knows the name of the key's variable alone. Ray shows and logs what a runtime_env holds, so that no key is
    sent: the nodes have it.
    """

    def prepare(self, stage: Any) -> None:
        """Raises UserError where Ray's client of jobs is not installed."""
        require("llm.answering=ray-job", "cluster", "requests", "aiohttp")

    def answer(self, unanswered: Unanswered) -> Outcome:
        """Leaves the requests in the spool, has them answered, and takes the answers. Raises AnsweringError."""
        super().answer(unanswered)
        spool = self.spool.path
        jobs = self.spool.jobs(self.spool.prefix(unanswered.stage, self.store))
        # Another start may have taken the answers of the last open job meanwhile
        if not any(job.is_open for job in jobs):
            return Outcome()
        command = f"python -m untold answer {shlex.quote(spool)} --ray-address auto"
        with shown(self.engines, unanswered.stage), self._submitted(command) as (client, name):
            info, stopped = client.get_job_info(name), False
            while not info.status.is_terminal():
                if not stopped and (self.engines.interrupts.requested or unanswered.is_lost()):
                    # Once: a worker takes a second signal for the wish to end without writing
                    stopped = client.stop_job(name)
                unanswered.show(self._event(unanswered, sum((job.noted_usage() for job in jobs), NOTHING_USED)))
                sleep(LOOK_SECONDS)
                info = client.get_job_info(name)
            used = sum((self._take(job, unanswered.folder) for job in jobs), NOTHING_USED)
            unanswered.show(self._event(unanswered, used))
            if info.driver_exit_code == 0:
                return Outcome(usage=used)
            reason = "interrupted" if stopped else REASONS.get(info.driver_exit_code)
            if reason is None:
                said = client.get_job_logs(name).splitlines() or [info.message or "no message"]
                raise AnsweringError(redact(f"the Ray job {name} failed: {said[-1].removeprefix('untold: ')}"))
            return Outcome(reason, usage=used)

    def _more(self, unanswered: Unanswered) -> dict[str, Any]:
        """One budget holds for all jobs of this start."""
        return {"spent": unanswered.spent}

    def _event(self, unanswered: Unanswered, usage: Usage) -> dict[str, Any]:
        """What is shown of the job, as the answering process tells it."""
        waits = {"paused": 0.0, "unwritten": 0, "trouble": None}
        known = {"stage": unanswered.stage.name, "total": unanswered.count, "usage": asdict(usage)}
        return {"event": "progress", **known, **waits}

    @contextmanager
    def _submitted(self, command: str) -> Iterator[tuple[Any, str]]:
        """A submitted job: Ray's client and its name. Whatever ends the context ends the job."""
        from ray.job_submission import JobSubmissionClient

        ray = self.settings.ray
        own = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), **self.settings.storage.environment}
        given = {**ray.runtime_env, "env_vars": {**ray.runtime_env.get("env_vars", {}), **own}}
        python = ray.runtime_env.get("py_executable")
        try:
            client = JobSubmissionClient(ray.address)
            entrypoint = command.replace("python", str(python), 1) if python else command
            name = _submit(client, entrypoint, given)
        except (ConnectionError, RuntimeError) as error:
            reason = str(error).strip().rpartition("\n")[2]
            text = (
                f"no job could be submitted to {ray.address} ({reason}): see that ray.address "
                "names the job server of a running Ray cluster, with ray[default] on its head"
            )
            raise AnsweringError(redact(text)) from error
        try:
            yield client, name
        finally:
            if not client.get_job_status(name).is_terminal():
                client.stop_job(name)


def _submit(client: Any, entrypoint: str, runtime_env: dict[str, Any]) -> str:
    """Submits a job and gives its name; waits for a head that has just started. Raises RuntimeError."""
    until = monotonic() + START_SECONDS
    while True:
        try:
            return str(client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env))
        except RuntimeError as error:
            if "try again later" not in str(error) or monotonic() > until:
                raise
            sleep(LOOK_SECONDS)
