"""A run's side of batches: it leaves requests in a job, has the endpoint's batches answer it, and takes the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from untold.jobs.inference.backends.backends import Unanswered, shown
from untold.jobs.inference.backends.batch_jobs import Batch, BatchJob, Watch, batch_jobs, batch_spool
from untold.jobs.inference.backends.job import Outcome
from untold.jobs.inference.backends.process import AnsweringError
from untold.jobs.inference.backends.spool import Spool, SpooledJob
from untold.jobs.inference.backends.spool_backend import SpoolAnswerer
from untold.jobs.inference.stage.call_settings import call_settings, explain_refusal
from untold.jobs.inference.store.store import StageStore
from untold.jobs.run.error_messages import explain, root_cause
from untold.jobs.run.locks import LockedError
from untold.jobs.run.terminal import amount
from untold.jobs.settings.model import delivery_for
from untold.udfs.llm.calls import format_at
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.usage import NOTHING_USED, Usage

if TYPE_CHECKING:
    from untold.jobs.inference.backends.batch_submission import Delivery

# How an answering ends, from what only waits
ENDS = (None, "batched")


class WaitingError(AnsweringError):
    """Batches of an earlier start keep a stage from being asked. `outcome` says why."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error or "")
        self.outcome = outcome


@dataclass
class BatchAnswerer(SpoolAnswerer):
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
        return delivery_for(self.settings, stage) == "batch"

    def prepare(self, stage: Stage) -> None:
        """Says once how long it may take."""
        if not self._told:
            self._told = True
            rounds = amount(self.rounds, "round of batches", "rounds of batches")
            form = format_at(str(self.settings.llm.base_url)) if self.settings.batch.format == "auto" else "openai"
            known = f", in the form of {form} by the host" if form != "openai" else ""
            self.engines.display.note(f"llm.delivery=batch: at most {rounds}, one a stage, each within 24 hours{known}")

    def answer(self, unanswered: Unanswered) -> Outcome:
        """By the jobs of the stage: first all of them are submitted, then each is waited for."""
        super().answer(unanswered)
        stage, lock = unanswered.stage, unanswered.lock
        jobs = self._open_jobs(stage)

        def stopped() -> str | None:
            return "interrupted" if self.engines.interrupts.requested or unanswered.is_lost() else None

        with shown(self.engines, stage):
            worst = self._deliver(jobs, stopped, unanswered.show, unanswered.spent)
            if lock is not None:
                lock.check()
            used = sum((self._take(job, unanswered.folder) for job in jobs), NOTHING_USED)
            priced = call_settings(self.settings, stage, "", unanswered.folder).priced(used)
            progress = {"stage": stage.name, "total": unanswered.count, "usage": asdict(priced)}
            unanswered.show({"event": "progress", **progress})
        return self._explained(worst)

    def _deliver(
        self, jobs: Sequence[BatchJob], stopped: Callable[[], str | None], show: Callable[..., None], spent: Usage
    ) -> Outcome:
        """Looks at all jobs once, then waits for each, until no more comes of any; the outcome is that of the worst."""
        poll = False
        while True:
            before, outcomes = [(job.is_open, job.ledger()) for job in jobs], [Outcome()]
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

    def _explained(self, outcome: Outcome) -> Outcome:
        """The outcome, with what to do where the endpoint refused the run."""
        if outcome.reason != "refused":
            return outcome
        return replace(outcome, error=explain_refusal(str(outcome.error), [self.settings.llm.api_key_env]))

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
            self.engines.display.note("batches of an earlier start are waited for; untold batches DIR cancel ends them")

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
    ) -> Iterator[Delivery]:
        """The batches of a job, locked. Raises LockedError, and AnsweringError for a disk that fails."""
        # Only where batches are: openai, which every run would import with them, takes a second
        from untold.jobs.inference.backends.batch_submission import Delivery
        from untold.udfs.llm.batch_formats import open_batches

        display = self.engines.display
        with job.locked(self.engines.run, wait=wait and self.engines.wait, notify=display.note) as is_lost:
            try:
                read = job.read()
                own = call_settings(self.settings, read.stage, read.settings.base_url, read.directory)
                same = own.base_url == self.settings.llm.base_url
                calls = own if same else read.settings
                if job.ledger().in_flight:
                    # They are where they were sent
                    calls = replace(
                        calls, batch_format=read.settings.batch_format, batch_folder=read.settings.batch_folder
                    )
                known = replace(read, settings=calls, spent=spent)
                watch = Watch(lambda: stopped() or ("interrupted" if is_lost() else None), show, display.note)
                with closing(open_batches(known.settings)) as api:
                    yield Delivery(job, known, api, self.settings.batch, watch, beside)
            except OSError as error:
                raise AnsweringError(f"{job.place}: {explain(error) or root_cause(error)}") from error
