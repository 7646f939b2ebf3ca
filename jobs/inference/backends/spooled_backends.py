"""The backends that write requests to a folder and collect the completions: spools, Ray jobs and batches."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from untold.jobs.inference.backends.backends import PendingRequests, shown
from untold.jobs.inference.backends.batch_jobs import Batch, BatchJob, Watch, batch_jobs, batch_spool
from untold.jobs.inference.backends.job import Job, JobOutcome, Spool, SpooledJob
from untold.jobs.inference.backends.process import ActorProcessError
from untold.jobs.inference.stage.call_settings import RunEndpoint, call_settings, explain_refusal
from untold.jobs.inference.stage.engines import Engines
from untold.jobs.inference.store.store import StageStore
from untold.jobs.run.error_messages import explain, root_cause
from untold.jobs.run.locks import LockedError
from untold.jobs.run.outcome import EXIT_CODES
from untold.jobs.run.session import read_parquet
from untold.jobs.run.terminal import amount
from untold.jobs.settings.model import Settings, backend_for
from untold.udfs.errors import require
from untold.udfs.llm.calls import format_at
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.usage import NOTHING_USED, Usage
from untold.udfs.redaction import redact
from untold.udfs.storage import StoragePath

if TYPE_CHECKING:
    from untold.jobs.inference.backends.batch_submission import BatchSubmitter


# Of what tells the jobs of one stage and start apart: there are a few of them
JOB_CHARACTERS = 8


@dataclass
class SpoolBackend:
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
        return Spool(StoragePath(path).spark if path else f"{self.store}/spool")

    @property
    def is_used(self) -> bool:
        """Whether this start leaves requests in the spool."""
        return self.settings.llm.uses_spool

    def prepare(self, stage: Stage) -> None:
        """There is nothing to start."""

    def answer(self, unanswered: PendingRequests) -> JobOutcome:
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
            job.publish(self._budgeted(unanswered.job(self.settings, base_url, **places)))
        else:
            job.place.remove()
        return JobOutcome("spooled", spool.path)

    def _pending(self, prefix: str) -> list[str]:
        """Folders or files with the ids of the requests that other jobs have."""
        return [job.requests for job in self.spool.jobs(prefix) if job.is_open]

    def _budgeted(self, job: Job) -> Job:
        """Return the job without the usage of this start: each worker of a spool has a budget of its own."""
        return replace(job, call=replace(job.call, spent=NOTHING_USED))

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
class RayJobBackend(SpoolBackend):
    """Has the requests of a spool answered by `untold answer` on the cluster of `ray.address`, where it waits for that.

    The job knows the name of the key's variable alone. Ray shows and logs what a runtime_env holds, so that no key is
    sent: the nodes have it.
    """

    def prepare(self, stage: Any) -> None:
        """Raises UserError where Ray's client of jobs is not installed."""
        require("llm.backend=ray-job", "cluster", "requests", "aiohttp")

    def answer(self, unanswered: PendingRequests) -> JobOutcome:
        """Leaves the requests in the spool, has them answered, and takes the answers. Raises ActorProcessError."""
        super().answer(unanswered)
        spool = self.spool.path
        jobs = self.spool.jobs(self.spool.prefix(unanswered.stage, self.store))
        # Another start may have taken the answers of the last open job meanwhile
        if not any(job.is_open for job in jobs):
            return JobOutcome()
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
                return JobOutcome(usage=used)
            reason = "interrupted" if stopped else REASONS.get(info.driver_exit_code)
            if reason is None:
                said = client.get_job_logs(name).splitlines() or [info.message or "no message"]
                raise ActorProcessError(redact(f"the Ray job {name} failed: {said[-1].removeprefix('untold: ')}"))
            return JobOutcome(reason, usage=used)

    def _budgeted(self, job: Job) -> Job:
        """Return the job as it is: the jobs of this start share one budget."""
        return job

    def _event(self, unanswered: PendingRequests, usage: Usage) -> dict[str, Any]:
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
            raise ActorProcessError(redact(text)) from error
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


# How an answering ends, from what only waits
ENDS = (None, "batched")


class WaitingError(ActorProcessError):
    """Batches of an earlier start keep a stage from being asked. `outcome` says why."""

    def __init__(self, outcome: JobOutcome) -> None:
        super().__init__(outcome.error or "")
        self.outcome = outcome


@dataclass
class BatchBackend(SpoolBackend):
    """Has requests answered by batches of the endpoint. `rounds`: how many stages of the run wait for each other."""

    rounds: int = 0
    _told: bool = field(default=False, init=False)

    @property
    def spool(self) -> Spool:
        """The batches of the store."""
        return batch_spool(self.store)

    @property
    def is_used(self) -> bool:
        """A start that goes on takes none of its jobs back: the endpoint is at them."""
        return True

    def delivers(self, stage: str) -> bool:
        """Whether requests of a stage are asked in batches."""
        return backend_for(self.settings, stage) == "batch"

    def prepare(self, stage: Stage) -> None:
        """Says once how long it may take."""
        if not self._told:
            self._told = True
            rounds = amount(self.rounds, "round of batches", "rounds of batches")
            form = format_at(str(self.settings.llm.base_url)) if self.settings.batch.format == "auto" else "openai"
            known = f", in the form of {form} by the host" if form != "openai" else ""
            self.engines.display.note(f"llm.backend=batch: at most {rounds}, one a stage, each within 24 hours{known}")

    def answer(self, unanswered: PendingRequests) -> JobOutcome:
        """By the jobs of the stage: first all of them are submitted, then each is waited for."""
        super().answer(unanswered)
        stage, lock = unanswered.stage, unanswered.lock
        jobs = self._open_jobs(stage)

        def stopped() -> str | None:
            return "interrupted" if self.engines.interrupts.requested or unanswered.is_lost() else None

        with shown(self.engines, stage):
            worst = self._deliver(jobs, stopped, unanswered.show, unanswered.call.spent)
            if lock is not None:
                lock.check()
            used = sum((self._take(job, unanswered.folder) for job in jobs), NOTHING_USED)
            priced = call_settings(self.settings, stage, "").priced(used)
            progress = {"stage": stage.name, "total": unanswered.count, "usage": asdict(priced)}
            unanswered.show({"event": "progress", **progress})
        return self._explained(worst)

    def _deliver(
        self, jobs: Sequence[BatchJob], stopped: Callable[[], str | None], show: Callable[..., None], spent: Usage
    ) -> JobOutcome:
        """Looks at all jobs once, then waits for each, until no more comes of any; the outcome is that of the worst."""
        poll = False
        while True:
            before, outcomes = [(job.is_open, job.ledger()) for job in jobs], [JobOutcome()]
            for job in jobs:
                if job.is_open and outcomes[-1].reason in ENDS:
                    others = [one.ledger().batches for one in jobs if one.name != job.name and one.is_open]
                    with self._delivery(job, stopped, show, spent, sum(others, ())) as delivery:
                        outcomes.append(delivery.run(poll=poll))
                    spent += outcomes[-1].usage
            # What ends the run before what only waits
            worst = max(outcomes, key=lambda one: ENDS.index(one.reason) if one.reason in ENDS else len(ENDS))
            # A job gives way to the batches of another, and goes on once these are read
            went_on = not poll or before != [(job.is_open, job.ledger()) for job in jobs]
            if worst.reason != "batched" or not self.engines.poll or not went_on:
                return worst
            poll = True

    def _explained(self, outcome: JobOutcome) -> JobOutcome:
        """The outcome, with what to do where the endpoint refused the run."""
        if outcome.reason != "refused":
            return outcome
        return replace(outcome, error=explain_refusal(str(outcome.error), [self.settings.llm]))

    def collect(self, stage: Stage, store: StageStore) -> Usage:
        """As of a spool, once what the endpoint has by now is there. What it does not have is asked anew.

        A stage that is asked by calls first waits for its batches. Raises WaitingError where that cannot be had, or
        where the start waits for none.
        """
        for job in self._open_jobs(stage):
            self._look_at(job, alone=not self.delivers(stage.name))
        return super().collect(stage, store)

    def _look_at(self, job: BatchJob, *, alone: bool) -> None:
        """Takes what the batches of an earlier start have answered; those of another run at work are left to it.

        `alone`: no more batches are made, so that all must have ended before anything is asked.
        """
        poll = alone and self.engines.poll
        if poll:
            self.engines.display.note("waiting for batches of an earlier start. untold batches DIR cancel ends them")

        def stopped() -> str | None:
            return "interrupted" if self.engines.interrupts.requested else None

        try:
            with self._delivery(job, stopped, self.engines.display.show, NOTHING_USED, wait=alone) as delivery:
                outcome = delivery.run(submit=False, poll=poll)
        except LockedError:
            if alone:
                raise
            return
        if outcome.reason == "interrupted":
            raise KeyboardInterrupt
        if alone and outcome.reason is not None:
            raise WaitingError(self._explained(outcome))

    def _open_jobs(self, stage: Stage) -> list[BatchJob]:
        return batch_jobs(self.store, self.spool.prefix(stage, self.store))

    def _pending(self, prefix: str) -> list[str]:
        return [job.note_asked() for job in batch_jobs(self.store, prefix)]

    def _take(self, job: SpooledJob, folder: str, *, wait: bool = False, take_back: bool = False) -> Usage:
        return super()._take(BatchJob(job.place), folder, wait=wait, take_back=take_back)

    @contextmanager
    def _delivery(
        self,
        job: BatchJob,
        stopped: Callable[[], str | None],
        show: Callable[..., None],
        spent: Usage,
        beside: Sequence[Batch] = (),
        *,
        wait: bool = True,
    ) -> Iterator[BatchSubmitter]:
        """The batches of a job, locked. Raises LockedError, and ActorProcessError for a disk that fails."""
        # Only where batches are: openai, which every run would import with them, takes a second
        from untold.jobs.inference.backends.batch_submission import BatchSubmitter
        from untold.udfs.llm.batch_formats import open_batches

        display = self.engines.display
        with job.locked(self.engines.run, wait=wait and self.engines.wait, notify=display.note) as is_lost:
            try:
                read = job.read()
                own = call_settings(self.settings, read.stage, read.settings.base_url)
                same = own.base_url == self.settings.llm.base_url
                calls = own if same else read.settings
                if job.ledger().in_flight:
                    # They are where they were sent
                    calls = replace(
                        calls, batch_format=read.settings.batch_format, batch_folder=read.settings.batch_folder
                    )
                known = replace(read, settings=calls, call=replace(read.call, spent=spent))
                watch = Watch(lambda: stopped() or ("interrupted" if is_lost() else None), show, display.note)
                with closing(open_batches(known.settings)) as api:
                    yield BatchSubmitter(job, known, api, self.settings.batch, watch, beside)
            except OSError as error:
                raise ActorProcessError(f"{job.place}: {explain(error) or root_cause(error)}") from error
