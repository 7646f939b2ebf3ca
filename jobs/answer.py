"""Run the jobs of a spool on Ray: `untold answer`. It does not use Spark or Java."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayError

from untold.jobs.inference.backends.actor_driver import ActorDriver, explain
from untold.jobs.inference.backends.actor_pool import Actor, start_ray, visit_nodes
from untold.jobs.inference.backends.job import (
    Job,
    JobOutcome,
    Spool,
    SpooledJob,
    SpoolError,
    note_left_out,
    open_spool,
)
from untold.jobs.inference.backends.node_checks import check_nodes
from untold.jobs.inference.stage.call_settings import explain_refusal, with_given
from untold.jobs.inference.store.compaction import answered_ids
from untold.jobs.inputs.options import AnswerOptions
from untold.jobs.run.locks import LockedError
from untold.jobs.run.outcome import Ending, Interrupts
from untold.jobs.run.terminal import Display, Page, table
from untold.jobs.settings.model import Settings
from untold.udfs.llm.usage import NOTHING_USED, Usage
from untold.udfs.storage import StoragePath


@dataclass(frozen=True, kw_only=True)
class AnswerRequest(AnswerOptions):
    """The request of `untold answer`. The settings in `given` override the settings of the jobs."""

    given: Settings
    command: str = ""


@dataclass(frozen=True)
class AnswerOutcome:
    """The end of a start: exit code, usage by stage, number of open jobs, and the reason of an early end."""

    exit_code: int
    stages: Mapping[str, Usage]
    left: int
    message: str | None = None


def answer(request: AnswerRequest, display: Display) -> AnswerOutcome:
    """Run all jobs of a spool, or end early. Raises errors of one line that a user can fix.

    The completions are kept in the spool until the run is started again. After a kill, the next start continues the
    work. Several workers can use one spool at the same time.
    """
    spool = open_spool(StoragePath(request.spool).spark)
    worker = _SpoolWorker(request, display, Interrupts(display.note))
    if any(job.is_open for job in spool.jobs()):
        display.status("starting Ray")
        address = request.ray_address or request.given.ray.address
        try:
            start_ray(address, request.given.ray.runtime_env)
        except RuntimeError as error:
            raise SpoolError(str(error)) from error
        try:
            if address is not None:
                check_nodes({spool.path: spool.path}, visit_nodes, display.note)
            with worker.interrupts.installed():
                worker.work(spool)
        finally:
            ray.shutdown()
    message = worker.ending.explain(request.command)
    left = sum(job.is_open for job in spool.jobs())
    return AnswerOutcome(worker.ending.exit_code({}, "none"), worker.used, left, message)


@dataclass
class _SpoolWorker:
    """A worker of a spool. `used` is the usage of each stage. All stages have one budget."""

    request: AnswerRequest
    display: Display
    interrupts: Interrupts
    name: str = field(default_factory=lambda: uuid4().hex[:12])
    used: dict[str, Usage] = field(default_factory=dict)
    ending: Ending = field(default_factory=Ending)
    _idle: list[Actor] = field(default_factory=list)

    def work(self, spool: Spool) -> None:
        """Run the jobs one after another. The jobs of other workers are last."""
        busy = [job for job in spool.jobs() if not self._take(job, wait=False)]
        for job in busy:
            if not self._take(job, wait=self.request.wait):
                raise LockedError(f"{job.place} is in use by another worker; start again without --no-wait to wait")

    def _take(self, spooled: SpooledJob, *, wait: bool) -> bool:
        """Run a job, unless the work has ended. Return False if another worker runs the job."""
        if self.ending.reason is not None:
            return True
        with ExitStack() as stack:
            try:
                with self.interrupts.waiting():
                    locked = spooled.locked(self.name, wait=wait, notify=self.display.note)
                    is_lost = stack.enter_context(locked)
            except LockedError:
                return False
            if spooled.is_open:
                self._answer(spooled, is_lost)
            elif not StoragePath(spooled.completions).entries():
                # The run has collected the job, and the lock has created the folder again
                spooled.place.remove()
        return True

    def _answer(self, spooled: SpooledJob, is_lost: Callable[[], bool]) -> None:
        """Send the missing requests of a job. The usage is written as often as the completions."""
        job = with_given(spooled.read(), self.request.given)
        job = replace(job, call=replace(job.call, spent=sum(self.used.values(), job.call.spent)))
        noted, told = monotonic(), set[str]()

        def stopped() -> str | None:
            return "interrupted" if self.interrupts.requested or is_lost() else None

        def show(event: Mapping[str, Any]) -> None:
            nonlocal noted
            if event["event"] == "progress":
                self.display.show(event)
                note_left_out(event, told, self.display.note)
                if monotonic() - noted >= job.settings.flush:
                    noted = monotonic()
                    spooled.note_usage(self.name, Usage.of(event["usage"]))

        self.display.start(job.stage.name)
        try:
            StoragePath(job.directory).make_folder()
            answered = answered_ids(
                job.requests, job.directory, self.display.note, retry_failed=self.request.retry_failed
            )
            outcome = ActorDriver(job, stopped, show, idle=self._idle, answered=answered).run()
        except (RayError, RuntimeError, OSError) as error:
            raise SpoolError(f"{spooled.place} could not be answered: {explain(error)}") from error
        finally:
            self.display.end()
        if is_lost():
            raise SpoolError(f"another worker took over {spooled.place} because this worker lost its lock. Start again")
        spooled.note_usage(self.name, outcome.usage)
        self._end(job, outcome)
        if outcome.reason is None:
            spooled.close()

    def _end(self, job: Job, outcome: JobOutcome) -> None:
        """Add the usage of a job and record its end."""
        stage, section = job.stage.name, job.settings.section
        self.used[stage] = self.used.get(stage, NOTHING_USED) + outcome.usage
        error = outcome.error
        if outcome.reason == "refused":
            error = explain_refusal(str(error), job.settings.each, section)
        calls = sum(usage.calls for usage in self.used.values())
        self.ending = Ending(outcome.reason, error, calls, outcome.lost)


def answer_lines(outcome: AnswerOutcome, page: Page) -> list[str]:
    """Return the lines of the usage of each stage, and the next command."""
    if not outcome.stages:
        return ["Nothing to answer"]
    rows = [
        [
            stage,
            *(f"{count:,}" for count in (used.done - used.failed, used.failed, used.calls, used.tokens)),
            "" if used.cost is None else f"{used.cost:.4f}",
        ]
        for stage, used in outcome.stages.items()
    ]
    next_command = [] if outcome.left else ["next: start the run again that wrote these requests"]
    return [*table(["stage", "answered", "failed", "calls", "tokens", "cost"], rows, page, names=1), *next_command]
