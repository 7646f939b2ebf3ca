"""Backends that carry out the requests of a stage (actor process, Spark's tasks), and the checks of their machines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any, Protocol
from uuid import uuid4

import pyarrow.parquet as pq
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from untold.jobs.inference.backends.job import Job, JobOutcome, progress
from untold.jobs.inference.backends.node_checks import NodeCheckError, Probe, check_nodes, probing
from untold.jobs.inference.backends.process import ActorProcessError, ProcessWhenNeeded
from untold.jobs.inference.stage.bindings import order_of_prompt
from untold.jobs.inference.stage.call_settings import (
    RunEndpoint,
    batch_of,
    call_settings,
    count_actors,
    explain_refusal,
    flush_seconds,
    section_of,
)
from untold.jobs.inference.stage.engines import Engines
from untold.jobs.inference.store.store import SPARK_ERRORS
from untold.jobs.run.error_messages import explain, root_cause
from untold.jobs.run.folders import Workspace, write_parquet
from untold.jobs.run.locks import Lock
from untold.jobs.run.output import WORK
from untold.jobs.run.session import is_connect, is_local, read_parquet, spark_schema, task_slots
from untold.jobs.settings.model import Settings
from untold.udfs.llm.calls import CallContext
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.store_files import digest_of
from untold.udfs.llm.units import UNIT_BYTES, UNIT_ROWS
from untold.udfs.llm.usage import Usage
from untold.udfs.node_report import NodeReport, visit_in_task
from untold.udfs.retrieval.embedding import COUNTS, answer_in_task
from untold.udfs.storage import StoragePath

# Executors can start while others already answer
ROUNDS = 5
# Units per actor. Small last units keep all actors busy.
UNITS_OF_AN_ACTOR = 4
# Requests per Spark task that writes units
REQUESTS_OF_A_TASK = 10_000


@dataclass(frozen=True)
class PendingRequests:
    """The requests of a stage without a completion, and the stage's folder in the store, which `lock` holds.

    `rows` has one row per request: request_id and the stage's variables. `count` is their number or an upper bound.
    `show` accepts the events of progress.
    """

    call: CallContext
    folder: str
    rows: DataFrame
    count: int
    lock: Lock | None
    show: Callable[[Mapping[str, Any]], None]

    @property
    def stage(self) -> Stage:
        """Return the stage of the call."""
        return self.call.stage

    def show_usage(self, usage: Usage) -> None:
        """Show the usage of this call so far."""
        self.show(progress(self.stage, self.count, usage))

    def is_lost(self) -> bool:
        """Return True if another run took over the folder."""
        return self.lock is not None and self.lock.lost

    def write(self, settings: Settings, path: str) -> None:
        """Write one row per request, in files of one unit of work, or several units for long texts.

        The files have no dictionaries, so the sizes in their footers are the sizes in memory (`list_units`).
        """
        unit = self._rows_of_a_unit(settings)
        # In the order of the prompt, so that prompts with a common beginning follow each other and use prompt caches
        keys = (*order_of_prompt(self.stage), "request_id")
        # By the number of requests: Spark's default depends on cores, and the last unit of each task is short
        tasks = -(-self.count // REQUESTS_OF_A_TASK)
        ordered = self.rows.repartitionByRange(tasks, *keys).sortWithinPartitions(*keys)
        options = {"maxRecordsPerFile": unit, "parquet.enable.dictionary": False, "parquet.block.size": UNIT_BYTES}
        write_parquet(ordered, path, **options)

    def _rows_of_a_unit(self, settings: Settings) -> int:
        """Return the rows of a unit: fewer if actors would be idle, and whole calls if a call has several rows."""
        actors = count_actors(settings, self.stage.api)
        rows = max(1, min(UNIT_ROWS, -(-self.count // (UNITS_OF_AN_ACTOR * actors))))
        batch = batch_of(settings, self.stage.api)
        return min(-(-rows // batch), max(1, UNIT_ROWS // batch)) * batch

    def job(self, settings: Settings, base_url: str, **places: str) -> Job:
        """Return the requests as a job. `places` are the fields requests, directory and run of the job."""
        flush = flush_seconds(settings, places["directory"])
        calls = replace(call_settings(settings, self.stage, base_url), flush=flush)
        return Job(call=self.call, settings=calls, actors=count_actors(settings, self.stage.api), **places)


class Backend(Protocol):
    """A backend that carries out the requests of stages."""

    def prepare(self, stage: Stage) -> None:
        """Prepare for a stage before its folder is locked, because waiting in different orders would block runs."""

    def answer(self, unanswered: PendingRequests) -> JobOutcome:
        """Carry out the requests, or end early with a reason. Raises ActorProcessError for a broken process."""


@contextmanager
def shown(engines: Engines, stage: Stage) -> Iterator[None]:
    """Show the progress of the stage during the block."""
    engines.display.start(stage.name)
    try:
        yield
    finally:
        engines.display.end()


def explained(outcome: JobOutcome, settings: Settings, section: str = "llm") -> JobOutcome:
    """Return the outcome, with a remedy if the endpoint of a section refused the run."""
    if outcome.reason != "refused":
        return outcome
    each = settings.llm.each if section == "llm" else [getattr(settings, section)]
    return replace(outcome, error=explain_refusal(str(outcome.error), each, section))


@dataclass
class ProcessBackend:
    """Carry out requests in the actor process next to the driver."""

    engines: Engines
    settings: Settings
    endpoint: RunEndpoint
    workspace: Workspace
    reach: ClusterChecks | None = None
    _base_url: str = field(default="", init=False)

    def prepare(self, stage: Stage) -> None:
        """Start the server of the embedded model, if the stage uses it."""
        self._base_url = self.endpoint.base_url(stage.api)

    def answer(self, unanswered: PendingRequests) -> JobOutcome:
        """Pass the requests to the process as a job. The outcome of a refusal contains the remedy for a key.

        Raises NodeCheckError before the first request if a machine does not reach the folders of the run.
        """
        if self.reach is not None:
            self.reach.check_executors()
            if self.settings.ray.address:
                self.reach.check_nodes(self.engines.process)
        requests = self.workspace.path(f"{unanswered.stage.name}-units")
        unanswered.write(self.settings, requests)
        process, lock = self.engines.process.open(), unanswered.lock
        if lock is not None:
            lock.add_process(process.pid)
        job = unanswered.job(
            self.settings,
            self._base_url,
            requests=requests,
            directory=unanswered.folder,
            run=self.engines.run,
        )
        with shown(self.engines, unanswered.stage):
            if lock is not None:
                # The last check before the first paid call
                lock.check()
            if not process.ready:
                self.engines.display.status("starting Ray")
            outcome = process.answer(job, unanswered.show, unanswered.is_lost)
        return explained(outcome, self.settings, section_of(unanswered.stage.api))


# Rows per task: half a minute to a few minutes of work, so that the last tasks end together
TASK_ROWS = 2000
LOOK_SECONDS = 0.5
# Reading the footers of new files costs more than a check of the thread
COUNT_SECONDS = 5.0
# Errors of Python workers reach the driver as text with a traceback
_ERROR = re.compile(r"LocalModelFileError: ([^\n]+)")


@dataclass
class TaskBackend:
    """Carry out requests with local models in Spark's tasks, without calls and costs."""

    engines: Engines
    settings: Settings
    workspace: Workspace

    def prepare(self, stage: Stage) -> None:
        """Do nothing, because local models need no server."""

    def answer(self, unanswered: PendingRequests) -> JobOutcome:
        """Run one Spark job. An interrupt or a lost lock cancels it."""
        requests = self.workspace.path(f"{unanswered.stage.name}-units")
        unanswered.write(self.settings, requests)
        with shown(self.engines, unanswered.stage):
            run = _TaskRun(self.engines, self.settings, unanswered, requests)
            finished = run.answer()
        if not finished and unanswered.lock is not None:
            unanswered.lock.check()
        return JobOutcome(None if finished else "interrupted")


@dataclass
class _TaskRun:
    """One execution of a stage's requests in tasks."""

    engines: Engines
    settings: Settings
    unanswered: PendingRequests
    requests: str
    _tag: str = field(default_factory=lambda: f"untold-{uuid4().hex}")
    _error: BaseException | None = None
    _counted: dict[str, int] = field(default_factory=dict)
    # Rows of an earlier call of the stage in this start
    _earlier: int = 0
    # Rows and failures, after all tasks have ended
    _done: tuple[int, int] | None = None

    def answer(self) -> bool:
        """Run the tasks. Return True if they finished, False if they were canceled.

        Raises ActorProcessError with one line if a worker cannot use a model or the tasks fail.
        """
        StoragePath(self.unanswered.folder).make_folder()
        self._earlier = self._rows_written()
        total = self.unanswered.count
        began = told = monotonic()
        thread = InheritableThread(target=self._work, args=(total,), session=self.engines.spark)
        thread.start()
        cancelled = False
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
            if not cancelled and (self.engines.interrupts.requested or self.unanswered.is_lost()):
                cancelled = True
                self.engines.spark.interruptTag(self._tag)
            if monotonic() - told >= COUNT_SECONDS:
                self._show(total, began)
                told = monotonic()
        self._show(total, began)
        if self._error is not None and not cancelled:
            raise ActorProcessError(self._explain(self._error)) from self._error
        return not cancelled

    def _work(self, total: int) -> None:
        """Run the Spark job in a thread, so that the main thread receives signals."""
        # Only runs with a model in tasks need its imports
        from untold.udfs.judge.stages import ANSWERS

        try:
            self.engines.spark.addTag(self._tag)
            frame = read_parquet(self.engines.spark, self.requests)
            # Requests files are small. Without repartitioning, one task would read all of them.
            tasks = max(-(-total // TASK_ROWS), min(task_slots(self.engines.spark), total))
            answer = partial(
                answer_in_task,
                stage=self.unanswered.stage,
                folder=self.unanswered.folder,
                run=self.engines.run,
                flush=flush_seconds(self.settings, self.unanswered.folder),
                answering=ANSWERS,
            )
            counts = frame.repartition(tasks).mapInArrow(answer, spark_schema(COUNTS)).collect()
            self._done = sum(row["done"] for row in counts), sum(row["failed"] for row in counts)
        except BaseException as error:
            self._error = error

    def _show(self, total: int, began: float) -> None:
        """Show the progress by the written files."""
        # A repeated task counts twice in the files, which is accurate enough before the end
        done, failed = self._done or (min(self._rows_written() - self._earlier, total), 0)
        self.unanswered.show_usage(Usage(done=done, failed=failed, seconds=monotonic() - began))

    def _rows_written(self) -> int:
        """Return the number of rows in the files of this run. Each footer is read once."""
        prefix = f"{self.engines.run}-{self.unanswered.stage.name}-task-"
        for entry in StoragePath(self.unanswered.folder).entries():
            name = entry.name
            if name.startswith(prefix) and name.endswith(".parquet") and name not in self._counted:
                with entry.place.open() as file:
                    self._counted[name] = pq.read_metadata(file).num_rows
        return sum(self._counted.values())

    def _explain(self, error: BaseException) -> str:
        """Return one line: the error of a model's file, of a disk, or of the worker."""
        found = _ERROR.search(str(error))
        if found:
            return found[1].strip()
        return f"{self.unanswered.stage.name} failed within Spark's tasks ({explain(error) or root_cause(error)})"


@dataclass
class ClusterChecks:
    """The checked machines of a run: the executors of Spark, and the nodes of Ray before the first request.

    `places` are the folders that all machines write and read, by their names in messages. `files` are the files that
    executors read. `note` is called with harmless differences.
    """

    spark: SparkSession
    places: Mapping[str, str]
    files: Sequence[str] = ()
    note: Callable[[str], None] = print
    _executors: set[str] = field(default_factory=set)
    _nodes_known: bool = False

    def check_executors(self) -> None:
        """Raise NodeCheckError for folders that executors do not reach. Each executor is checked once.

        A local Spark has the disks and the versions of this process, so only its object stores are checked, except the
        store of the output, which it writes before the first request.
        """
        local = is_local(self.spark)
        remote = {place: folder for place, folder in self.places.items() if StoragePath(folder).local is None}
        if local:
            remote = {place: folder for place, folder in remote.items() if not folder.endswith(f"/{WORK}")}
        if self._executors and (local or _count_executors(self.spark) <= len(self._executors)):
            return
        if not local or remote:
            with probing(remote if local else self.places) as probe:
                if not local:
                    probe.check(self._visit_executors(probe), self.note)
                _check_spark(self.spark, probe, remote)
        self._executors |= {"driver"} if local else set()

    def check_nodes(self, process: ProcessWhenNeeded) -> None:
        """Raise NodeCheckError for folders that nodes of the Ray cluster do not reach. The nodes are checked once."""
        if not self._nodes_known:
            check_nodes(self.places, process.open().visit_nodes, self.note)
        self._nodes_known = True

    def _visit_executors(self, probe: Probe) -> list[NodeReport]:
        """Return the report of every executor. Small tasks run until all known executors have reported."""
        files = {path: digest_of(StoragePath(path)) for path in self.files if StoragePath(path).entry().kind == "file"}
        visit = partial(visit_in_task, folders=probe.folders, files=files, nonce=probe.nonce)
        found: dict[str, NodeReport] = {}
        for _ in range(ROUNDS):
            tasks = task_slots(self.spark)
            rows = self.spark.range(0, tasks, 1, tasks).mapInArrow(visit, "executor string, report string").collect()
            found |= {row["executor"]: json.loads(row["report"]) for row in rows}
            if len(found) >= _count_executors(self.spark):
                break
        self._executors |= set(found)
        return list(found.values())


def reached_places(output: str, work: str, store: str) -> dict[str, str]:
    """Return the folders that every machine writes and reads, by their names in messages.

    >>> reached_places("/out", "/out/_work", "/out/completions"), reached_places("/out", "/w", "/s")
    ({'/out': '/out/_work'}, {'/out': '/out/_work', '/w': '/w', '/s': '/s'})
    """
    # The next run removes this folder of the output, also after a kill
    places = {output: f"{output}/{WORK}"}
    others = [place for place in (work, store) if place and not f"{place}/".startswith(f"{output}/")]
    return places | {place: place for place in others}


def _check_spark(spark: SparkSession, probe: Probe, places: Iterable[str]) -> None:
    """Raise NodeCheckError for object stores that Spark cannot write and read with its own client."""
    for place in places:
        path = f"{probe.folders[place]}/spark"
        try:
            write_parquet(spark.range(1), path)
            read_parquet(spark, path).collect()
        except SPARK_ERRORS as error:
            raise NodeCheckError(
                f"{place}: Spark cannot write and read there ({explain(error) or root_cause(error)}). "
                "Check the settings storage and spark.conf"
            ) from error


def _count_executors(spark: SparkSession) -> int:
    """Return the number of known executors, 0 over Spark Connect."""
    # The driver is one of them
    return 0 if is_connect(spark) else len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1
