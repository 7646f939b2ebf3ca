"""A run's side of a spool: it leaves requests there, and takes the answers that workers have written."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from untold.jobs.asking.answerers import Unanswered
from untold.jobs.asking.endpoint import RunEndpoint
from untold.jobs.asking.engines import Engines
from untold.jobs.asking.job import Outcome
from untold.jobs.asking.spool import Spool, SpooledJob
from untold.jobs.asking.stage_store import StageStore
from untold.jobs.run.locks import LockedError
from untold.jobs.run.session import read_parquet
from untold.jobs.settings.model import Settings
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.usage import NOTHING_USED, Usage
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
