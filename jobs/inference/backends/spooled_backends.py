"""The backends that write requests to a folder and collect the completions: spools, Ray jobs and batches."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from untold.jobs.inference.backends.backends import PendingRequests, explained, shown
from untold.jobs.inference.backends.batch_jobs import Batch, BatchJob, Watch, batch_spool
from untold.jobs.inference.backends.job import JobOutcome, Spool, SpooledJob
from untold.jobs.inference.backends.process import ActorProcessError
from untold.jobs.inference.stage.call_settings import RunEndpoint, call_settings
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


# A stage has few jobs per start, so this many characters distinguish them
JOB_CHARACTERS = 8


@dataclass
class SpoolBackend:
    """Write requests to the spool of a store. `runs` are the earlier starts that this one continues."""

    engines: Engines
    settings: Settings
    endpoint: RunEndpoint
    store: str
    runs: Collection[str] = ()

    @property
    def spool(self) -> Spool:
        """Return the spool of `llm.spool`, by default a folder in the store."""
        path = self.settings.llm.spool
        return Spool(StoragePath(path).spark if path else f"{self.store}/spool")

    @property
    def is_used(self) -> bool:
        """Return True if this start writes requests to the spool."""
        return self.settings.llm.uses_spool

    def jobs(self, stage: Stage) -> Sequence[SpooledJob]:
        """Return the jobs of a stage, sorted by name."""
        return self.spool.jobs(self.spool.prefix(stage, self.store))

    def prepare(self, stage: Stage) -> None:
        """Do nothing, because this start sends no request."""

    def answer(self, unanswered: PendingRequests) -> JobOutcome:
        """Write a job of the requests that no other job of the stage has. The usage of this start is not its budget."""
        # Each worker has its own budget
        self._leave(replace(unanswered, call=replace(unanswered.call, spent=NOTHING_USED)))
        return JobOutcome("spooled", self.spool.path)

    def _leave(self, unanswered: PendingRequests) -> None:
        spool, stage, spark = self.spool, unanswered.stage, unanswered.rows.sparkSession
        if pending := [job.pending() for job in self.jobs(stage) if job.is_open]:
            known = read_parquet(spark, *pending).select("request_id")
            unanswered = replace(unanswered, rows=unanswered.rows.join(known, on="request_id", how="left_anti"))
        name = f"{spool.prefix(stage, self.store)}{uuid4().hex[:JOB_CHARACTERS]}-{self.engines.run}"
        job = spool.job(name)
        unanswered.write(self.settings, job.requests)
        if job.count_requests():
            base_url = self.endpoint.base_url(stage.api)
            places = {"requests": job.requests, "directory": job.completions, "run": self.engines.run}
            job.publish(unanswered.job(self.settings, base_url, **places))
        else:
            job.place.remove()

    def collect(self, stage: Stage, store: StageStore) -> Usage:
        """Copy the completions of workers into the store, and return their usage.

        Jobs in use by a worker are skipped. A start without a spool removes its own jobs first, so that no request is
        sent twice. Raises LockedError if a worker uses one of them.
        """
        used = NOTHING_USED
        if jobs := self.jobs(stage):
            with store.locked():
                used = sum((self._collect(job, store.folder) for job in jobs), used)
                store.compact()
        return used

    def _collect(self, job: SpooledJob, folder: str) -> Usage:
        take_back = job.is_of(self.runs) and not self.is_used
        try:
            with self.engines.interrupts.waiting():
                return self._take(job, folder, wait=take_back and self.engines.options.wait, take_back=take_back)
        except LockedError:
            if take_back:
                raise
            return NOTHING_USED

    def _take(self, job: SpooledJob, folder: str, *, wait: bool = False, take_back: bool = False) -> Usage:
        """Copy the completions of a job, and remove a finished job. Raises LockedError."""
        with job.locked(self.engines.run, wait=wait, notify=self.engines.display.note):
            used = job.collect(folder)
            if take_back or not job.is_open:
                job.place.remove()
            return used

    def _take_all(self, jobs: Sequence[SpooledJob], folder: str) -> Usage:
        return sum((self._take(job, folder) for job in jobs), NOTHING_USED)


LOOK_SECONDS = 1.0
START_SECONDS = 60.0
# A stopped worker needs this time for its last requests, its last write and the end of its actors
STOP_SECONDS = 30
REASONS = {EXIT_CODES[reason]: reason for reason in ("budget", "outage", "interrupted")}


@dataclass
class RayJobBackend(SpoolBackend):
    """Run `untold answer` for the spool on the cluster of `ray.address`, and wait for its end.

    Ray shows and logs a runtime_env, so the job has only the name of the key's variable. The nodes have the key.
    """

    def prepare(self, stage: Any) -> None:
        """Raise UserError if Ray's client of jobs is not installed."""
        require("llm.backend=ray-job", "cluster", "requests", "aiohttp")

    def answer(self, unanswered: PendingRequests) -> JobOutcome:
        """Write the requests, run the worker, and copy the completions. Raises ActorProcessError."""
        # The jobs of this start share one budget
        self._leave(unanswered)
        jobs = self.jobs(unanswered.stage)
        # Another start may have collected the last open job
        if not any(job.is_open for job in jobs):
            return JobOutcome()
        command = f"python -m untold answer {shlex.quote(self.spool.path)} --ray-address auto"
        with shown(self.engines, unanswered.stage), self._submitted(command) as (client, name):
            info, stopped = client.get_job_info(name), False
            while not info.status.is_terminal():
                if not stopped and (self.engines.interrupts.requested or unanswered.is_lost()):
                    # Once, because a worker does not write after a second signal
                    stopped = client.stop_job(name)
                unanswered.show_usage(sum((job.noted_usage() for job in jobs), NOTHING_USED))
                sleep(LOOK_SECONDS)
                info = client.get_job_info(name)
            used = self._take_all(jobs, unanswered.folder)
            unanswered.show_usage(used)
            if info.driver_exit_code == 0:
                return JobOutcome(usage=used)
            reason = "interrupted" if stopped else REASONS.get(info.driver_exit_code)
            if reason is None:
                said = client.get_job_logs(name).splitlines() or [info.message or "no message"]
                raise ActorProcessError(redact(f"the Ray job {name} failed: {said[-1].removeprefix('untold: ')}"))
            return JobOutcome(reason, usage=used)

    @contextmanager
    def _submitted(self, command: str) -> Iterator[tuple[Any, str]]:
        """Submit a job. Yields Ray's client and the name of the job, which ends with the context."""
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
    """Submit a job and return its name. Waits for a head that has just started. Raises RuntimeError."""
    until = monotonic() + START_SECONDS
    while True:
        try:
            return str(client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env))
        except RuntimeError as error:
            if "try again later" not in str(error) or monotonic() > until:
                raise
            sleep(LOOK_SECONDS)


# The reasons of outcomes that do not end the run, the better one first
ENDS = (None, "batched")


class WaitingError(ActorProcessError):
    """Batches of an earlier start keep a stage from sending requests. `outcome` has the reason."""

    def __init__(self, outcome: JobOutcome) -> None:
        super().__init__(outcome.error or "")
        self.outcome = outcome


@dataclass
class BatchBackend(SpoolBackend):
    """Send requests in batches of the endpoint. `rounds` is the number of stages that wait for each other."""

    rounds: int = 0
    _told: bool = field(default=False, init=False)

    @property
    def spool(self) -> Spool:
        """Return the spool with the batches of the store."""
        return batch_spool(self.store)

    @property
    def is_used(self) -> bool:
        """Return True, because the jobs of an earlier start stay: the endpoint has their batches."""
        return True

    def jobs(self, stage: Stage) -> list[BatchJob]:
        """Return the jobs of a stage, sorted by name."""
        return [BatchJob(job.place) for job in super().jobs(stage)]

    def delivers(self, stage: str) -> bool:
        """Return True if the requests of a stage are sent in batches."""
        return backend_for(self.settings, stage) == "batch"

    def prepare(self, stage: Stage) -> None:
        """Print the longest time of the run once."""
        if not self._told:
            self._told = True
            rounds = amount(self.rounds, "round of batches", "rounds of batches")
            form = format_at(str(self.settings.llm.base_url)) if self.settings.batch.format == "auto" else "openai"
            known = f", in the form of {form} by the host" if form != "openai" else ""
            self.engines.display.note(f"llm.backend=batch: at most {rounds}, one a stage, each within 24 hours{known}")

    def answer(self, unanswered: PendingRequests) -> JobOutcome:
        """Write a job, carry out all jobs of the stage, and copy their completions."""
        super().answer(unanswered)
        jobs = [job for job in self.jobs(unanswered.stage) if job.is_open]

        def stopped() -> str | None:
            return "interrupted" if self.engines.interrupts.requested or unanswered.is_lost() else None

        with shown(self.engines, unanswered.stage):
            worst = self._deliver(jobs, stopped, unanswered.show, unanswered.call.spent)
            if unanswered.lock is not None:
                unanswered.lock.check()
            used = self._take_all(jobs, unanswered.folder)
            unanswered.show_usage(call_settings(self.settings, unanswered.stage, "").priced(used))
        return explained(worst, self.settings)

    def _deliver(
        self, jobs: Sequence[BatchJob], stopped: Callable[[], str | None], show: Callable[..., None], spent: Usage
    ) -> JobOutcome:
        """Submit the batches of all jobs, then wait for each job. Returns the outcome of the worst job."""
        poll = False
        while True:
            before, outcomes = [(job.is_open, job.ledger()) for job in jobs], [JobOutcome()]
            for job in jobs:
                if job.is_open and outcomes[-1].reason in ENDS:
                    others = [one.ledger().batches for one in jobs if one.name != job.name and one.is_open]
                    with self._delivery(job, stopped, show, spent, sum(others, ())) as delivery:
                        outcomes.append(delivery.run(poll=poll))
                    spent += outcomes[-1].usage
            worst = max(outcomes, key=lambda one: ENDS.index(one.reason) if one.reason in ENDS else len(ENDS))
            # A job waits for room that the batches of another job take, and continues after these are read
            went_on = not poll or before != [(job.is_open, job.ledger()) for job in jobs]
            if worst.reason != "batched" or not self.engines.options.poll or not went_on:
                return worst
            poll = True

    def collect(self, stage: Stage, store: StageStore) -> Usage:
        """Read the batches that have ended, and copy the completions. Other requests of their jobs are pending again.

        A stage of another backend first waits for its batches. Raises WaitingError if this fails, or if the start does
        not wait.
        """
        for job in self.jobs(stage):
            if job.is_open:
                self._look_at(job, alone=not self.delivers(stage.name))
        return super().collect(stage, store)

    def _look_at(self, job: BatchJob, *, alone: bool) -> None:
        """Read the batches of an earlier start. Jobs in use by another run are skipped.

        With `alone`, another backend sends the other requests, so all batches must have ended.
        """
        poll = alone and self.engines.options.poll
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
            raise WaitingError(explained(outcome, self.settings))

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
        """Lock a job, and yield its submitter. Raises LockedError, and ActorProcessError for a broken disk."""
        # The import of openai takes a second, and other runs do not need it
        from untold.jobs.inference.backends.batch_submission import BatchSubmitter
        from untold.udfs.llm.batch_formats import open_batches

        display = self.engines.display
        with job.locked(self.engines.run, wait=wait and self.engines.options.wait, notify=display.note) as is_lost:
            try:
                read = job.read()
                own, known = call_settings(self.settings, read.stage, read.settings.base_url), read.settings
                calls = own if own.base_url == self.settings.llm.base_url else known
                if job.ledger().in_flight:
                    # These batches cannot move
                    calls = replace(calls, batch_format=known.batch_format, batch_folder=known.batch_folder)
                read = replace(read, settings=calls, call=replace(read.call, spent=spent))
                watch = Watch(lambda: stopped() or ("interrupted" if is_lost() else None), show, display.note)
                with closing(open_batches(calls)) as api:
                    yield BatchSubmitter(job, read, api, self.settings.batch, watch, beside)
            except OSError as error:
                raise ActorProcessError(f"{job.place}: {explain(error) or root_cause(error)}") from error
