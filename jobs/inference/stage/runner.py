"""Run a stage over a DataFrame: look up, send, read. Each step is materialised as Parquet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from threading import Lock
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.backends.backends import Backend, ClusterChecks, PendingRequests, ProcessBackend, TaskBackend
from untold.jobs.inference.backends.job import JobOutcome, note_left_out
from untold.jobs.inference.backends.local_model import LocalModelError
from untold.jobs.inference.backends.process import ActorProcessError
from untold.jobs.inference.backends.spooled_backends import BatchBackend, RayJobBackend, SpoolBackend, WaitingError
from untold.jobs.inference.stage.call_settings import (
    Findings,
    RunEndpoint,
    address_of,
    price,
    runs_in_tasks,
    section_of,
)
from untold.jobs.inference.stage.engines import Engines, MainThreadExecutor
from untold.jobs.inference.stage.requests import Requests, Rows, without_requests
from untold.jobs.inference.stage.usage import Account, StageResult
from untold.jobs.inference.store.compaction import note_use, wait_for_prune
from untold.jobs.inference.store.store import Results, StageStore, StoreLookup
from untold.jobs.run.folders import Workspace
from untold.jobs.run.locks import Lock as FolderLock
from untold.jobs.run.locks import LockedError
from untold.jobs.run.notifications import span
from untold.jobs.run.outcome import LEFT, Ending
from untold.jobs.run.terminal import amount
from untold.jobs.settings.model import Settings, backend_for
from untold.udfs.llm.calls import CallContext
from untold.udfs.llm.keys import LOCAL, UNTRIED, SchemaSupport, Stage
from untold.udfs.llm.retrying import JUDGE_DOWN
from untold.udfs.llm.usage import NOTHING_USED, Usage
from untold.udfs.stages import UNASKED


@dataclass
class StageRunner:
    """Run the stages of one run. After it `ended`, it sends no request and only reads stored completions.

    `store` is the folder of completions. `answered_before` is True if an endpoint responded to an earlier start, and
    `earlier` are the starts that this one continues (`Output.spooled_runs`). `ended` is a reason of `Ending`, or None.
    """

    engines: Engines
    settings: Settings
    stages: Mapping[str, Stage]
    endpoint: RunEndpoint
    workspace: Workspace
    store: str
    answered_before: bool = False
    earlier: Collection[str] = ()
    # The checks of the machines; None without checks
    reach: ClusterChecks | None = None
    ended: str | None = None
    error: str | None = None
    lost: int = 0
    account: Account = field(default_factory=Account)
    # Only one stage sends requests at a time
    turns: MainThreadExecutor = field(default_factory=MainThreadExecutor)
    # The runners of the judges of a panel by their models
    panel: dict[str, StageRunner] = field(default_factory=dict)
    # For a judge the runner of the run's own model
    run: StageRunner | None = None
    _locks: dict[str, Lock] = field(default_factory=dict)
    _stores: dict[str, StageStore] = field(default_factory=dict)
    _warned_of_ratings: bool = False
    _is_down: bool = False
    _left_out: set[str] = field(default_factory=set)

    @property
    def usage(self) -> list[dict[str, Any]]:
        """Return the rows of the table `usage` so far, one per stage."""
        return self.account.rows

    @property
    def models(self) -> set[str | None]:
        """Return the names of the models in all responses, also of earlier starts."""
        return self.account.models

    @property
    def parameters(self) -> dict[str, list[str]]:
        """Return the lines about parameters that endpoints refuse, by model."""
        own = self._findings.described(self.stages.values())
        return own | {model: lines for one in self.panel.values() for model, lines in one.parameters.items()}

    @property
    def damaged_files(self) -> int:
        """Return the number of damaged files that were moved."""
        own = sum(one.damaged for one in self._stores.values())
        return own + sum(one.damaged_files for one in self.panel.values())

    @property
    def ending(self) -> Ending:
        """Return the end of the run, with the reason of an early end."""
        where = self.store if self.ended == "batched" else self._spool.spool.path
        return Ending(self.ended, self.error, self.account.spent.calls, self.lost, where)

    def follow(self, before: StageRunner) -> None:
        """Continue after another runner of the start with the same budget, or end if that runner ended."""
        self.account.spent = before.account.spent
        if before.ended not in LEFT:
            self.ended, self.error = before.ended, before.error

    def ask(self, name: str, rows: DataFrame | Requests, carry: Iterable[str] = ()) -> DataFrame:
        """Run a stage. Return the columns of `carry`, request_id, the stage's output, error_type and error.

        The variables of a frame are its columns with the names of the stage's variables. `Requests` define their own
        columns. A row has the error_type `unasked` if its request was not sent, and nulls if it has no request. An
        error of the endpoint ends the run (`ended`) and raises nothing. Raises StoreError for an unreadable store.
        """
        if self.run is not None:
            self.ended, self.error = self.run.ended or self.ended, self.run.error or self.error
        # Two metrics with a common stage pay once for common requests
        with (
            self._locks.setdefault(name, Lock()),
            span(f"stage {name}", metric=self.engines.display.course.metric),
        ):
            results = self._ask_stage(name, rows, carry)
        return results if self.run is None else self._as_votes(results, self.run)

    def _as_votes(self, results: DataFrame, run: StageRunner) -> DataFrame:
        """Return the results of a judge. If only its endpoint has failed, its missing votes are `JUDGE_DOWN`.

        Any other end of the judge ends the run.
        """
        if self.ended not in ("refused", "outage"):
            run.ended, run.error = run.ended or self.ended, run.error or self.error
        if run.ended or not self.ended:
            return results
        reason = self.error or "the endpoint does not answer"
        if not self._is_down:
            self.engines.display.note(f"the judge {self.settings.llm.model} has no more votes: {reason}")
        self._is_down = True
        lost = {"error_type": JUDGE_DOWN, "error": reason}
        missing = F.col("error_type").eqNullSafe(UNASKED)
        return results.withColumns({name: F.when(missing, text).otherwise(F.col(name)) for name, text in lost.items()})

    def _ask_stage(self, name: str, rows: DataFrame | Requests, carry: Iterable[str]) -> DataFrame:
        display = self.engines.display
        display.course.begin(name)
        display.status(f"{display.course.describe(name)}: looking up stored answers")
        requests = Rows(rows, tuple(carry)) if isinstance(rows, DataFrame) else rows
        stage_call = self._identify(name, requests)
        results = self._ask(stage_call)
        while results is None:
            stage_call = replace(self._identify(name, requests), usage=stage_call.usage)
            results = self._ask(stage_call)
        usage = price(self.settings, stage_call.stage, stage_call.usage)
        self.account.add(
            StageResult(stage_call.stage, results.rows, stage_call.reused or 0, usage, self._address(stage_call.stage))
        )
        if requests.all_asked:
            return results.rows
        return results.rows.unionByName(without_requests(stage_call.identified, results.rows.schema, requests.carry))

    def _address(self, stage: Stage) -> str | None:
        """Return the endpoint of a stage, None for several endpoints and for local models."""
        section = section_of(stage.api)
        several = section == "llm" and self.settings.llm.endpoints
        return None if several or stage.api == LOCAL else address_of(self.settings, section)

    def _named(self, section: str) -> str:
        """Return the name of the endpoint of a section in the account."""
        return f"{section} of {self.settings.llm.model}" if self.run else section

    def _identify(self, name: str, requests: Requests) -> _StageCall:
        """Return the stage without refused parameters, and its requests with their ids."""
        waits = self._spool.is_used or self._batches.delivers(name)
        if waits and self._findings.needs_probe(self.stages[name]):
            # No other stage waits for the first response
            self.engines.display.note(self._findings.record(self.stages[name], SchemaSupport(UNTRIED)))
        stage = self._findings.applied(self.stages[name])
        # Pairs are too many for a list of their ids
        column = "request_id" if isinstance(requests, Rows) else None
        identified = self.workspace.keep(requests.identify(stage), f"{name}-requests", column=column)
        store = self._store_of(stage)
        # Before the lookup, so that `prune` does not remove these completions in between
        ids = self.workspace.values(identified, "request_id")
        engines = self.engines
        note_use(self.store, engines.run, f"{stage.name}-{stage.digest}", ids)
        if engines.options.lock:
            wait_for_prune(self.store, engines.run, wait=engines.options.wait, notify=engines.display.note)
        return _StageCall(stage, store, requests, identified)

    @cached_property
    def _findings(self) -> Findings:
        return Findings(self.settings, self.store)

    @cached_property
    def _spool(self) -> SpoolBackend:
        backend = RayJobBackend if self.settings.llm.backend == "ray-job" else SpoolBackend
        return backend(self.engines, self.settings, self.endpoint, self.store, self.earlier)

    @cached_property
    def _batches(self) -> BatchBackend:
        given = (self.engines, self.settings, self.endpoint, self.store, self.earlier)
        return BatchBackend(*given, rounds=sum(backend_for(self.settings, name) == "batch" for name in self.stages))

    def _store_of(self, stage: Stage) -> StageStore:
        """Return the stage's folder of the store, one object per run, which reports damage once."""
        if stage.digest not in self._stores:
            self._stores[stage.digest] = StageStore(self.store, stage, self.engines, self.workspace, self.earlier)
        return self._stores[stage.digest]

    def _backend_of(self, stage: Stage) -> Backend:
        """Return the backend of a stage."""
        if runs_in_tasks(stage, self.settings):
            return TaskBackend(self.engines, self.settings, self.workspace)
        if self._batches.delivers(stage.name):
            return self._batches
        if self._spool.is_used:
            return self._spool
        return ProcessBackend(self.engines, self.settings, self.endpoint, self.workspace, self.reach)

    def _ask(self, stage_call: _StageCall) -> Results | None:
        """Look up, send and read, again if a file of the folder is damaged.

        Returns None if the endpoint refuses the stage's schema, because the requests then change.
        """
        with self._ending_early():
            for spool in (self._spool, self._batches):
                stage_call.usage += spool.collect(stage_call.stage, stage_call.store)
        while True:
            stage_call.look_up()
            self.turns.take(partial(self._answer_for, self.engines.display.course.metric, stage_call))
            if self._findings.applied(stage_call.stage).digest != stage_call.stage.digest:
                return None
            before = stage_call.store.damaged
            results = stage_call.store.read(stage_call.requests, stage_call.identified)
            self.account.note_models(self._named(section_of(stage_call.stage.api)), results.models)
            if stage_call.store.damaged == before or self.ended:
                self._check(stage_call, results)
                return results
            # The lookup did not read the damaged page. The requests of its file are sent again.

    def _answer_for(self, metric: str, stage_call: _StageCall) -> None:
        """Send the missing requests of a metric. An error ends the run."""
        self.engines.display.course.enter(metric)
        with self._ending_early():
            self._answer_missing(stage_call)

    @contextmanager
    def _ending_early(self) -> Iterator[None]:
        """End the run with `error` if the block raises an error of an endpoint or a process."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.engines.interrupts.requested:
                raise
            self.ended = "interrupted"
        except WaitingError as error:
            self.ended, self.error = error.outcome.reason, error.outcome.error
        except (ActorProcessError, LockedError, LocalModelError) as error:
            # A process that is stopped before its job begins ends without an outcome
            self.ended = "interrupted" if self.engines.interrupts.requested else "broken"
            self.error = str(error)

    def _answer_missing(self, stage_call: _StageCall) -> None:
        """Send the missing requests under the lock of the stage's folder, unless the run has ended."""
        if self.engines.interrupts.requested:
            self.ended = self.ended or "interrupted"
        # Another stage can have learned refused parameters in between
        if self.ended or self._findings.applied(stage_call.stage).digest != stage_call.stage.digest:
            return
        if not stage_call.found.missing:
            stage_call.store.compact_leftovers()
            return
        backend = self._backend_of(stage_call.stage)
        with self.engines.interrupts.waiting():
            backend.prepare(stage_call.stage)
        with stage_call.store.locked() as lock:
            if stage_call.store.has_changed(stage_call.found):
                stage_call.look_up()
            if stage_call.found.missing:
                self._answer(stage_call, backend, lock)
                stage_call.store.compact()

    def _answer(self, stage_call: _StageCall, backend: Backend, lock: FolderLock | None) -> None:
        """Send the missing requests with a backend. The usage counts also after an error."""
        stage, section = stage_call.stage, section_of(stage_call.stage.api)
        last = NOTHING_USED

        def show(event: Mapping[str, Any]) -> None:
            nonlocal last
            last = Usage.of(event["usage"])
            self.engines.display.show(event)
            note_left_out(event, self._left_out, self.engines.display.note)

        has_answered = self._named(section) in self.account.sections
        call = CallContext(
            stage,
            spent=self.account.spent,
            # Each section has its own endpoint. The manifest of earlier starts knows the endpoint of `llm` only.
            answered_before=has_answered or (section == "llm" and self.answered_before),
            tries_schema=self._findings.goes_alone(stage),
            may_drop_schema=self._findings.can_drop_schema(stage),
            may_adapt=backend is not self._spool and backend is not self._batches,
        )
        rows = stage_call.store.missing(stage_call.requests, stage_call.identified, stage_call.found)
        unanswered = PendingRequests(call, stage_call.store.folder, rows, stage_call.found.missing, lock, show)
        try:
            self._end(backend.answer(unanswered), stage)
        finally:
            stage_call.usage += last
            self.account.spent += last

    def _end(self, outcome: JobOutcome, stage: Stage) -> None:
        """Record the outcome of a backend."""
        self.account.note_models(self._named(section_of(stage.api)), outcome.models)
        self.lost += outcome.lost
        if outcome.finding is not None:
            self.engines.display.note(self._findings.record(stage, outcome.finding))
        if outcome.parameters is not None:
            for line in self._findings.adapt(stage, outcome.parameters):
                self.engines.display.note(line)
        if outcome.reason != "restructured":
            self._findings.settle(stage)
        if outcome.reason not in (None, "restructured"):
            self.ended, self.error = outcome.reason, outcome.error

    def _check(self, stage_call: _StageCall, results: Results) -> None:
        """End the run if paid completions cannot be read, and note once that ratings are not weighted.

        Sending the requests again would pay twice. A rating without probabilities is the digit of the completion.
        """
        if results.unasked and not self.ended:
            self.ended = "broken"
            self.error = f"cannot read {amount(results.unasked, 'completion')} back from {stage_call.store.folder}"
        if results.unweighted and not self._warned_of_ratings:
            self._warned_of_ratings = True
            self.engines.display.note("the endpoint returns no log-probabilities: ratings are not probability-weighted")


@dataclass
class _StageCall:
    """A running stage: its requests with their ids, their lookup in the store, and the usage.

    `reused` is the number of requests with a stored completion, None before the first lookup.
    """

    stage: Stage
    store: StageStore
    requests: Requests
    identified: DataFrame
    found: StoreLookup = field(init=False)
    reused: int | None = None
    usage: Usage = field(default_factory=Usage)

    def look_up(self) -> None:
        """Look up the requests. Completions of this call and lost completions do not count as reused."""
        self.found = self.store.look_up(self.requests, self.identified)
        ok = max(0, self.found.ok - (self.usage.done - self.usage.failed))
        self.reused = ok if self.reused is None else min(self.reused, ok)
